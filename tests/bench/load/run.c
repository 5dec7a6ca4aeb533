/* Each client is a small state: its dialogue, the round, and all messages so far. Its next step is
 * always taken from the loop (an answer's end, a timer), never from inside another's.
 */
#include "tests/bench/load/run.h"
#include <event2/event.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/base/clock.h"
#include "tests/bench/load/arrivals.h"

enum { FAILED_WAIT_MS = 100 };

struct slice;

/* One stream within one slice. */
struct flow {
	struct slice *slice;
	const struct stream_options *o;
	const struct traffic *traffic;
	struct arrivals arrivals;
	struct event *timer; /* open loop: the next arrival */
	size_t next, end;    /* dialogues */
	int running;
	bool beside, over;
};

struct slice {
	struct run *r;
	int label;
	uint64_t began;
	struct flow main, beside;
	struct errtext *e;
	int failed;
};

struct user {
	struct flow *f;
	const struct dialogue *d;
	size_t index;
	uint32_t round;
	uint64_t due, tag;
	json_t *messages, *first; /* owned; first: the first message's text, before any tag */
	struct event *think;
	bool failed; /* its last answer: the client ends after a breath */
};

static void begin_round(struct user *u);
static bool start_dialogue(struct flow *f, uint64_t due);

static void slice_fail(struct slice *s, int r, const char *what)
{
	if (s->failed == 0)
		s->failed = errtext_set(s->e, r, "%s: %s", what, strerror(-r));
	(void)event_base_loopbreak(s->r->base);
}

static bool time_is_over(const struct flow *f)
{
	return f->over || f->next >= f->end || (f->o->seconds > 0 && (double)(clock_us() - f->slice->began) >= f->o->seconds * 1e6);
}

/* The main stream's end ends the one beside it; when both have ended so has the slice. */
static void settle(struct slice *s)
{
	bool main_over = s->main.running == 0 && time_is_over(&s->main);

	if (main_over)
		s->beside.over = true;
	if (main_over && s->beside.running == 0)
		(void)event_base_loopbreak(s->r->base);
}

static void user_free(struct user *u)
{
	if (u->think)
		event_free(u->think);
	json_decref(u->messages);
	json_decref(u->first);
	free(u);
}

static void end_dialogue(struct user *u)
{
	struct flow *f = u->f;

	user_free(u);
	f->running--;
	if (f->o->clients > 0 && !time_is_over(f))
		(void)start_dialogue(f, clock_us());
	settle(f->slice);
}

static int keep(struct slice *s, const struct user *u, struct answer *a)
{
	struct run *r = s->r;

	if (r->n_done == r->cap_done) {
		size_t cap = r->cap_done ? 2 * r->cap_done : 256;
		struct record *grown = realloc(r->done, cap * sizeof *grown);
		if (!grown)
			return -ENOMEM;
		r->done = grown;
		r->cap_done = cap;
	}
	r->done[r->n_done++] = (struct record){.label = s->label, .slice = r->arms[s->label].slices, .dialogue = (uint32_t)u->index, .round = u->round,
					       .beside = u->f->beside, .due = u->due, .a = *a};
	buf_done(&r->done[r->n_done - 1].a.text);
	return 0;
}

static void think_over(evutil_socket_t fd, short what, void *arg)
{
	struct user *u = arg;

	(void)fd;
	(void)what;
	if (u->failed) {
		end_dialogue(u);
		return;
	}
	u->due = clock_us();
	begin_round(u);
}

/* A dialogue goes on while it has rounds, the last one went well, and the next fits the context (by a careful guess: two characters a token). */
static bool goes_on(const struct user *u, const struct answer *a)
{
	json_t *next = json_array_get(u->d->rounds, u->round + 1), *m;
	size_t at, chars = 0;

	json_array_foreach(next, at, m) chars += json_string_length(json_object_get(m, "content")) + 16;
	return next && a->ok && !u->f->over && a->prompt_tokens + a->tokens + (int)(chars / 2) + u->f->o->max_tokens < u->f->o->context;
}

static void answered(void *arg, struct answer *a)
{
	struct user *u = arg;
	struct slice *s = u->f->slice;
	bool r_ok = a->ok, more = goes_on(u, a);
	int wait_ms = a->ok ? u->f->o->think_ms : FAILED_WAIT_MS;
	struct timeval think = {wait_ms / 1000, wait_ms % 1000 * 1000};
	bool told = more && buf_append(&a->text, "", 1) == 0 &&
		    json_array_append_new(u->messages, json_pack("{s:s,s:s}", "role", "assistant", "content", (char *)a->text.data)) == 0;

	if (keep(s, u, a) < 0) {
		answer_done(a);
		slice_fail(s, -ENOMEM, "an answer cannot be kept");
	}
	u->failed = !r_ok;
	if (!told && r_ok) {
		end_dialogue(u);
		return;
	}
	u->round++;
	if (!u->think)
		u->think = evtimer_new(s->r->base, think_over, u);
	if (!u->think || evtimer_add(u->think, &think) < 0)
		slice_fail(s, -ENOMEM, "a timer");
}

/* The very first words of a dialogue (cold: of a request), so that it shares no prefix with any other. */
static int set_tag(struct user *u)
{
	struct slice *s = u->f->slice;
	json_t *first = json_array_get(u->messages, 0);
	char *text = NULL;
	int r;

	if (!u->first)
		u->first = json_incref(json_object_get(first, "content"));
	if (!u->f->o->unique)
		return 0;
	if (u->round == 0 || s->r->arms[s->label].cold)
		u->tag = s->r->tag++;
	if (asprintf(&text, "[%08x] %s", (unsigned)(u->tag * 2654435761u), json_string_value(u->first)) < 0)
		return -ENOMEM;
	r = json_object_set_new(first, "content", json_string(text)) < 0 ? -ENOMEM : 0;
	free(text);
	return r;
}

static void begin_round(struct user *u)
{
	struct slice *s = u->f->slice;
	const struct arm *arm = &s->r->arms[s->label];
	const struct stream_options *o = u->f->o;
	json_t *added = json_deep_copy(json_array_get(u->d->rounds, u->round));
	int r = added && json_array_extend(u->messages, added) == 0 ? set_tag(u) : -ENOMEM;
	char *text = r == 0 ? json_dumps(u->messages, JSON_COMPACT) : NULL;
	struct request q = {.to = &arm->to, .messages = text, .domain = u->d->domain, .max_tokens = o->max_tokens, .draft = arm->draft,
			    .trace = arm->trace, .token_ids = o->token_ids, .ignore_eos = o->ignore_eos, .temperature = o->temperature, .seed = o->seed + u->index};

	json_decref(added);
	if (r == 0)
		r = text ? call_start(s->r->base, &q, answered, u) : -ENOMEM;
	free(text);
	if (r < 0)
		slice_fail(s, r, "a request cannot be sent");
}

static bool start_dialogue(struct flow *f, uint64_t due)
{
	struct user *u = f->running < MAX_FLIGHT ? calloc(1, sizeof *u) : NULL;

	if (!u) {
		slice_fail(f->slice, f->running < MAX_FLIGHT ? -ENOMEM : -EAGAIN, "too many requests at once: the server is far too slow for this rate");
		return false;
	}
	u->f = f;
	u->index = f->next++;
	u->d = traffic_at(f->traffic, u->index);
	u->due = due;
	u->messages = json_array();
	f->running++;
	begin_round(u);
	return true;
}

static void set_timer(struct flow *f, double at)
{
	double wait = at - (double)(clock_us() - f->slice->began) / 1e6;
	struct timeval tv;

	if (!isfinite(at)) {
		f->over = true;
		settle(f->slice);
		return;
	}
	wait = fmax(wait, 0);
	tv = (struct timeval){(time_t)wait, (suseconds_t)(fmod(wait, 1) * 1e6)};
	if (evtimer_add(f->timer, &tv) < 0)
		slice_fail(f->slice, -ENOMEM, "a timer");
}

/* Arrivals that are due by now, all of them; then the timer for the next. */
static void arrive(evutil_socket_t fd, short what, void *arg)
{
	struct flow *f = arg;

	(void)fd;
	(void)what;
	if (time_is_over(f)) {
		f->over = true;
		settle(f->slice);
		return;
	}
	if (start_dialogue(f, f->slice->began + (uint64_t)(f->arrivals.last * 1e6)))
		set_timer(f, f->arrivals.last = arrivals_next(&f->arrivals));
}

static int flow_start(struct flow *f, struct slice *s, const struct stream_options *o, const struct traffic *t, bool beside)
{
	uint32_t ordinal = s->r->arms[s->label].slices;
	size_t first = ordinal * (o->requests ? o->requests : 1000);
	int r;

	*f = (struct flow){.slice = s, .o = o, .traffic = t, .next = first, .end = o->requests ? first + o->requests : SIZE_MAX, .beside = beside};
	if (o->clients > 0) {
		for (int i = 0; i < o->clients && f->next < f->end; i++)
			if (!start_dialogue(f, clock_us()))
				return s->failed;
		return 0;
	}
	r = *o->times ? arrivals_replay(&f->arrivals, o->times, s->e) : arrivals_init(&f->arrivals, o->rate, o->even, o->seed + ordinal, s->e);
	if (r < 0)
		return r;
	f->timer = evtimer_new(s->r->base, arrive, f);
	if (!f->timer)
		return -ENOMEM;
	set_timer(f, f->arrivals.last = arrivals_next(&f->arrivals));
	return 0;
}

static void flow_done(struct flow *f)
{
	if (f->timer)
		event_free(f->timer);
	arrivals_done(&f->arrivals);
}

int run_address(const char *text, char *ret_host, size_t size, uint16_t *ret_port, struct errtext *e)
{
	const char *colon = strrchr(text, ':');
	char *end = NULL;
	unsigned long port = colon ? strtoul(colon + 1, &end, 10) : 0;
	size_t n = colon ? (size_t)(colon - text) : 0;

	if (n == 0 || n >= size || port == 0 || port > 65535 || *end)
		return errtext_set(e, -EINVAL, "an address is HOST:PORT, not '%s'", text);
	memcpy(ret_host, text, n);
	ret_host[n] = 0;
	*ret_port = (uint16_t)port;
	return 0;
}

static int take_word(struct arm *a, const char *word, struct errtext *e)
{
	if (strcmp(word, "draft=off") == 0)
		a->draft = false;
	else if (strcmp(word, "trace=off") == 0)
		a->trace = false;
	else if (strcmp(word, "beside=off") == 0)
		a->beside = false;
	else if (strcmp(word, "cold=on") == 0)
		a->cold = true;
	else if (strncmp(word, "at=", 3) == 0)
		return run_address(word + 3, a->host, sizeof a->host, &a->to.port, e);
	else
		return errtext_set(e, -EINVAL, "slice %s: no word '%s' (draft=off trace=off beside=off cold=on at=HOST:PORT)", a->label, word);
	return 0;
}

static struct arm *arm_of(struct run *r, char *line, struct errtext *e)
{
	char *save = NULL, *label = strtok_r(line, " \t\n", &save), *word;
	struct arm *a = &r->arms[r->n_arms];

	if (!label || strlen(label) >= sizeof a->label) {
		(void)errtext_set(e, -EINVAL, "a slice needs a label of at most 31 characters");
		return NULL;
	}
	for (int i = 0; i < r->n_arms; i++)
		if (strcmp(r->arms[i].label, label) == 0)
			return &r->arms[i];
	if (r->n_arms == MAX_LABELS) {
		(void)errtext_set(e, -EINVAL, "at most %d labels", MAX_LABELS);
		return NULL;
	}
	*a = (struct arm){.draft = true, .trace = true, .beside = true, .to = r->to};
	(void)snprintf(a->label, sizeof a->label, "%s", label);
	(void)snprintf(a->host, sizeof a->host, "%s", r->to.host);
	while ((word = strtok_r(NULL, " \t\n", &save)))
		if (take_word(a, word, e) < 0)
			return NULL;
	a->to.host = a->host;
	r->n_arms++;
	return a;
}

int run_slice(struct run *r, const char *line, struct errtext *e)
{
	struct slice s = {.r = r, .e = e};
	char *copy = strdup(line);
	struct arm *arm = copy ? arm_of(r, copy, e) : NULL;

	free(copy);
	if (!arm)
		return -EINVAL;
	s.label = (int)(arm - r->arms);
	s.began = clock_us();
	s.beside.over = true;
	s.failed = flow_start(&s.main, &s, &r->main, &r->talk, false);
	if (s.failed == 0 && r->has_beside && arm->beside)
		s.failed = flow_start(&s.beside, &s, &r->beside, &r->noise, true);
	if (s.failed == 0)
		(void)event_base_dispatch(r->base);
	flow_done(&s.main);
	flow_done(&s.beside);
	arm->seconds += (double)(clock_us() - s.began) / 1e6;
	arm->slices++;
	return s.failed;
}

int run_init(struct run *r, struct errtext *e)
{
	int x = traffic_init(&r->talk, &r->main.traffic, e);

	if (x == 0 && r->has_beside)
		x = traffic_init(&r->noise, &r->beside.traffic, e);
	r->base = x == 0 ? event_base_new() : NULL;
	r->tag = r->main.seed;
	if (x < 0)
		return x;
	return r->base ? 0 : -ENOMEM;
}

void run_done(struct run *r)
{
	for (size_t i = 0; i < r->n_done; i++)
		answer_done(&r->done[i].a);
	free(r->done);
	traffic_done(&r->talk);
	traffic_done(&r->noise);
	if (r->base)
		event_base_free(r->base);
}
