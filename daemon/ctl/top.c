/* redraftctl top: the state, live. On a terminal a full screen (plain ANSI, drawn anew at each look and whenever the size
 * changes; q ends it); otherwise one line a look, and with --json one Status a line. It only asks what anybody may ask.
 *
 * Rates and curves are made here of what successive looks say, so they begin when top begins.
 */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>
#include "daemon/base/buf.h"
#include "daemon/base/clock.h"
#include "daemon/ctl/ctl.h"
#include "daemon/ctl/table.h"

enum { DOMAINS = 17, CURVE = 60, EVENTS = 40 };

struct curve {
	char name[32];
	double al[CURVE]; /* newest last; 0 = nothing */
};

struct top {
	const struct ctl_conf *c;
	struct curve curve[DOMAINS];
	int n_curves, rows, columns;
	bool screen; /* a terminal: drift and events are shown too */
	json_t *status, *drift, *tail; /* owned; of the last look, NULL = nobody answered */
	char trouble[200];
	uint64_t at_us;
	double tokens_at, steps_at, tokens_s, steps_s; /* counters then; rates since */
	struct buf out;
};

static struct termios before;
static volatile sig_atomic_t resized, ended;

static void on_signal(int sig)
{
	if (sig == SIGWINCH)
		resized = 1;
	else
		ended = 1;
}

/* ---- looking ---- */

static void look_curves(struct top *t)
{
	json_t *domains = json_object_get(t->status, "domains"), *d;
	const char *name;

	for (int i = 0; i < t->n_curves; i++) {
		memmove(t->curve[i].al, t->curve[i].al + 1, (CURVE - 1) * sizeof(double));
		t->curve[i].al[CURVE - 1] = 0;
	}
	json_object_foreach(domains, name, d)
	{
		int i = 0;

		while (i < t->n_curves && strcmp(t->curve[i].name, name) != 0)
			i++;
		if (i == t->n_curves && i == DOMAINS)
			continue;
		if (i == t->n_curves)
			snprintf(t->curve[t->n_curves++].name, sizeof t->curve[i].name, "%s", name);
		t->curve[i].al[CURVE - 1] = json_number_value(json_object_get(d, "recent"));
	}
}

static void look_rates(struct top *t, uint64_t now)
{
	double tokens = json_number_value(json_object_get(json_object_get(json_object_get(t->status, "serve"), "tokens"), "generated"));
	double steps = (double)num(json_object_get(t->status, "learn"), "step"), s = t->at_us ? (double)(now - t->at_us) / 1e6 : 0;

	t->tokens_s = s > 0 && tokens >= t->tokens_at ? (tokens - t->tokens_at) / s : 0;
	t->steps_s = s > 0 && steps >= t->steps_at ? (steps - t->steps_at) / s : 0;
	t->tokens_at = tokens;
	t->steps_at = steps;
	t->at_us = now;
}

static int look(struct top *t, struct errtext *e)
{
	json_t *none = json_object(), *last = json_pack("{s:i}", "last", EVENTS);
	json_t *status = NULL, *drift = NULL, *tail = NULL;
	int r = ctl_call(t->c, "io.redraft.Daemon.Status", true, none, &status, e);
	struct errtext ignored;

	if (!r && t->screen && !ctl_call(t->c, "io.redraft.Daemon.Drift", true, none, &drift, &ignored))
		(void)ctl_call(t->c, "io.redraft.Daemon.Tail", true, last, &tail, &ignored); /* NULL if not: shown without */
	json_decref(t->status);
	json_decref(t->drift);
	json_decref(t->tail);
	t->status = status;
	t->drift = drift;
	t->tail = tail;
	json_decref(none);
	json_decref(last);
	snprintf(t->trouble, sizeof t->trouble, "%.190s", r ? e->text : "");
	look_rates(t, clock_us());
	look_curves(t);
	return r;
}

/* ---- drawing ---- */

/* One line of the screen, cut at its width (bytes of UTF-8 continuation do not count), the rest of the line cleared. */
static void PRINTF(2, 3) line(struct top *t, const char *fmt, ...)
{
	char text[1024];
	int columns = 0;
	size_t n = 0;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	if (t->rows-- <= 0)
		return;
	while (text[n] && (columns < t->columns || ((unsigned char)text[n] & 0xc0) == 0x80)) {
		columns += ((unsigned char)text[n] & 0xc0) != 0x80;
		if ((unsigned char)text[n] < 32 || text[n] == 127)
			text[n] = '?';
		n++;
	}
	text[n] = '\0';
	if (buf_printf(&t->out, "%s\033[K\r\n", text) < 0)
		return; /* 256 KiB of screen: drawn as far as it goes */
}

static void draw_curve(const struct curve *c, char *ret, size_t size)
{
	static const char *const bars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
	double low = 1e9, high = 0;
	size_t n = 0;

	for (int i = 0; i < CURVE; i++) {
		if (c->al[i] > 0 && c->al[i] < low)
			low = c->al[i];
		if (c->al[i] > high)
			high = c->al[i];
	}
	if (high - low < 0.1) /* a flat line is flat, not noise blown up */
		high = low + 0.1;
	for (int i = 0; i < CURVE; i++) {
		int b = c->al[i] > 0 ? (int)((c->al[i] - low) / (high - low) * 7.99) : -1;
		const char *s = b < 0 ? " " : bars[b > 7 ? 7 : b];

		if (n + strlen(s) < size)
			n += (size_t)snprintf(ret + n, size - n, "%s", s);
	}
}

static void draw_domains(struct top *t)
{
	char bars[CURVE * 4 + 1];

	if (!t->n_curves)
		return;
	line(t, "%s", "");
	line(t, "%-12s %8s  accept length, %g s a column", "DOMAIN", "NOW", t->c->interval);
	for (int i = 0; i < t->n_curves; i++) {
		double now = t->curve[i].al[CURVE - 1];
		char text[16];

		draw_curve(&t->curve[i], bars, sizeof bars);
		snprintf(text, sizeof text, now > 0 ? "%.3f" : "-", now);
		line(t, "%-12.12s %8s  %s", t->curve[i].name, text, bars);
	}
}

static void draw_peers(struct top *t)
{
	const json_t *s = t->status, *serve = json_object_get(s, "serve"), *learn = json_object_get(s, "learn"), *watch = json_object_get(s, "watch");
	const json_t *records = json_object_get(learn, "records");

	line(t, "drafts   live %lld, previous %lld, base %lld, generation %lld%s%s", num(s, "live"), num(s, "previous"), num(s, "base"), num(s, "generation"),
	     num(s, "pin") ? ", pinned" : "", json_is_true(json_object_get(s, "hold")) ? ", HELD" : "");
	if (json_is_true(json_object_get(serve, "up")))
		line(t, "server   %s: %lld running, %lld waiting, %.0f tokens/s", str(serve, "model"), num(serve, "running"), num(serve, "waiting"), t->tokens_s);
	else
		line(t, "server   ABSENT");
	if (json_is_true(json_object_get(learn, "up")))
		line(t, "learner  step %lld (%.2f/s), loss %s, %lld tokens, %lld records behind%s", num(learn, "step"), t->steps_s, al(learn, "loss"),
		     num(learn, "trained_tokens"), num(records, "lag"), json_is_true(json_object_get(learn, "paused")) ? ", PAUSED" : "");
	else
		line(t, "learner  ABSENT");
	if (json_is_true(json_object_get(watch, "on")))
		line(t, "kafka    %s, %lld round records behind %s", json_is_true(json_object_get(watch, "up")) ? "answers" : "DOES NOT ANSWER", num(watch, "lag"),
		     str(watch, "trouble")[0] == '-' ? "" : str(watch, "trouble"));
	if (num(t->drift, "level"))
		line(t, "drift    level %lld", num(t->drift, "level"));
	if (str(t->drift, "decay")[0] != '-')
		line(t, "DECAY    %s", str(t->drift, "decay"));
}

static void draw(struct top *t)
{
	const json_t *events = json_object_get(t->tail, "events");
	struct winsize w = {0};
	size_t n = json_array_size(events);
	char now[32];

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) < 0 || !w.ws_row || !w.ws_col) {
		w.ws_row = 24;
		w.ws_col = 80;
	}
	t->rows = w.ws_row - 1;
	t->columns = w.ws_col;
	buf_clear(&t->out);
	clock_iso8601(clock_wall_ms(), now);
	if (buf_puts(&t->out, "\033[H") < 0)
		return;
	line(t, "redraft  %.19s  q ends", now);
	if (!t->status)
		line(t, "redraftd does not answer: %s", t->trouble);
	else
		draw_peers(t);
	draw_domains(t);
	if (n && t->rows > 2) {
		line(t, "%s", "");
		for (size_t i = n > (size_t)t->rows ? n - (size_t)t->rows : 0; i < n; i++) {
			const json_t *x = json_array_get(events, i);

			line(t, "%.8s  %-8s %s", strlen(str(x, "time")) > 11 ? str(x, "time") + 11 : "", str(x, "kind"), str(x, "text"));
		}
	}
	if (buf_puts(&t->out, "\033[J") < 0)
		return;
	(void)fwrite(t->out.data, 1, t->out.len, stdout);
	(void)fflush(stdout);
}

/* Not a terminal: one line a look. */
static void print_line(struct top *t)
{
	const json_t *s = t->status, *serve = json_object_get(s, "serve"), *learn = json_object_get(s, "learn");
	char now[32];

	clock_iso8601(clock_wall_ms(), now);
	if (t->c->json && s) {
		json_dumpf(s, stdout, JSON_COMPACT);
		fputc('\n', stdout);
		return;
	}
	printf("%.19s ", now);
	if (!s) {
		printf("redraftd does not answer\n");
		return;
	}
	printf("live %lld server %s running %lld waiting %lld learner %s step %lld", num(s, "live"), json_is_true(json_object_get(serve, "up")) ? "up" : "absent",
	       num(serve, "running"), num(serve, "waiting"), json_is_true(json_object_get(learn, "up")) ? "up" : "absent", num(learn, "step"));
	for (int i = 0; i < t->n_curves; i++)
		if (t->curve[i].al[CURVE - 1] > 0)
			printf(" %s %.3f", t->curve[i].name, t->curve[i].al[CURVE - 1]);
	printf("\n");
}

/* ---- the terminal ---- */

static void screen_leave(void)
{
	(void)tcsetattr(STDIN_FILENO, TCSANOW, &before);
	(void)!write(STDOUT_FILENO, "\033[?25h\033[?1049l", 14);
}

static bool screen_enter(void)
{
	struct sigaction sa = {.sa_handler = on_signal}; /* no SA_RESTART: waits end */
	struct termios raw;

	if (tcgetattr(STDIN_FILENO, &before) < 0)
		return false;
	raw = before;
	raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	if (tcsetattr(STDIN_FILENO, TCSANOW, &raw) < 0)
		return false;
	(void)atexit(screen_leave);
	(void)sigaction(SIGWINCH, &sa, NULL);
	(void)sigaction(SIGINT, &sa, NULL);
	(void)sigaction(SIGTERM, &sa, NULL);
	(void)!write(STDOUT_FILENO, "\033[?1049h\033[?25l\033[2J", 18);
	return true;
}

/* Signals are held back but for the wait itself: one that comes between a look at its flag and the wait ends the wait. */
static bool wait_held(struct top *t, uint64_t due, const sigset_t *let)
{
	for (;;) {
		uint64_t now = clock_us();
		struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
		struct timespec left;
		char key = 0;

		if (ended)
			return true;
		if (resized) {
			resized = 0;
			draw(t);
		}
		if (now >= due)
			return false;
		left = (struct timespec){.tv_sec = (time_t)((due - now) / 1000000), .tv_nsec = (long)((due - now) % 1000000 * 1000)};
		if (ppoll(&p, 1, &left, let) > 0 && (read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q'))
			return true;
	}
}

/* Until the next look is due; true: to end. A new size is drawn at once. */
static bool wait_keys(struct top *t)
{
	sigset_t ours, before_us;
	bool end;

	sigemptyset(&ours);
	sigaddset(&ours, SIGWINCH);
	sigaddset(&ours, SIGINT);
	sigaddset(&ours, SIGTERM);
	(void)sigprocmask(SIG_BLOCK, &ours, &before_us);
	end = wait_held(t, clock_us() + (uint64_t)(t->c->interval * 1e6), &before_us);
	(void)sigprocmask(SIG_SETMASK, &before_us, NULL);
	return end;
}

int ctl_top(const struct ctl_verb *v, const struct ctl_conf *c, const char **pos, int n_pos)
{
	struct top t = {.c = c, .out = BUF_INIT(256 << 10)};
	struct errtext e = {.text = ""};
	json_t *params = ctl_params(v, c, pos, n_pos);
	bool end = false;
	int r;

	json_decref(params);
	if (!params)
		return EXIT_USAGE;
	t.screen = !c->json && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
	r = look(&t, &e);
	if (r) /* nobody there to begin with: say so instead of an empty screen */
		return ctl_failed(c, r, &e);
	t.screen = t.screen && screen_enter();
	while (!end) {
		if (t.screen) {
			draw(&t);
			end = wait_keys(&t);
		} else {
			print_line(&t);
			end = fflush(stdout) != 0;
			if (!end)
				usleep((useconds_t)(c->interval * 1e6));
		}
		if (!end)
			(void)look(&t, &e); /* gone: shown, and looked for again */
	}
	json_decref(t.status);
	json_decref(t.drift);
	json_decref(t.tail);
	buf_done(&t.out);
	return EXIT_DONE;
}
