/* Sealed lines go to the file at once, or wait. The head of the chain moves when a line is sealed, so lines that wait keep
 * their order; a line that finds no place to wait is never sealed, and a "Lost" line later says how many there were.
 */
#include "daemon/audit.h"
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "daemon/base/clock.h"
#include "daemon/base/fs.h"
#include "daemon/base/log.h"
#include "daemon/base/loop.h"
#include "daemon/base/metrics.h"
#include "daemon/news.h"
#include "daemon/report.h"
#include "schemas/audit.h"
#include "schemas/manifest.h"

enum { AUDIT_WAITING = 256, AUDIT_RETRY_US = 1000000 };

struct audit {
	struct audit_options o;
	char dir[400];
	struct audit_head head;
	int fd;          /* audit.log, or -1 */
	int64_t size;    /* bytes of whole lines in it; -1: not known, taken from the file when it is opened */
	char broken[256];
	char *waiting[AUDIT_WAITING]; /* sealed, not written; owned */
	int n_waiting;
	uint64_t lost, lost_said;
	bool failed;     /* it has been said */
	struct loop_timer *again;
	void (*heard)(void *arg, const json_t *record, const char *line, size_t len);
	void *heard_arg;
	pthread_t thread; /* syncs */
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool dirty, stop; /* under the lock */
	int sync_fd;     /* a duplicate of fd for the thread, under the lock; -1 = none */
};

/* ---- the thread ---- */

static void *audit_syncs(void *arg)
{
	struct audit *a = arg;

	pthread_mutex_lock(&a->lock);
	for (;;) {
		int fd;

		while (!a->dirty && !a->stop)
			pthread_cond_wait(&a->wake, &a->lock);
		if (!a->dirty)
			break;
		a->dirty = false;
		fd = a->sync_fd >= 0 ? fcntl(a->sync_fd, F_DUPFD_CLOEXEC, 0) : -1;
		pthread_mutex_unlock(&a->lock);
		if (fd >= 0) {
			(void)fdatasync(fd); /* an error here shows at the next write, or it is past helping */
			close(fd);
		}
		pthread_mutex_lock(&a->lock);
	}
	pthread_mutex_unlock(&a->lock);
	return NULL;
}

static void audit_want_sync(struct audit *a)
{
	pthread_mutex_lock(&a->lock);
	a->sync_fd = a->fd;
	a->dirty = true;
	pthread_cond_signal(&a->wake);
	pthread_mutex_unlock(&a->lock);
}

/* ---- the file ---- */

static void audit_close(struct audit *a)
{
	if (a->fd < 0)
		return;
	(void)fdatasync(a->fd);
	pthread_mutex_lock(&a->lock);
	a->sync_fd = -1;
	pthread_mutex_unlock(&a->lock);
	close(a->fd);
	a->fd = -1;
}

static int audit_open(struct audit *a)
{
	char path[PATH_MAX];
	struct stat st;
	int r = fs_mkdirs(a->dir);

	snprintf(path, sizeof path, "%s/audit.log", a->dir);
	if (!r && a->fd >= 0 && (stat(path, &st) < 0 || st.st_size < a->size)) { /* taken away or cut under us: not by us */
		log_error("audit: %s was removed or cut while in use; what was written stands in the topic, if there is one", path);
		audit_close(a);
		a->size = -1;
	}
	if (!r && a->fd < 0) {
		a->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0640);
		r = a->fd < 0 ? -errno : 0;
		if (!r && a->size < 0) /* nothing that stands there is written over */
			a->size = fstat(a->fd, &st) == 0 ? (int64_t)st.st_size : 0;
		if (!r)
			r = fs_sync_dir(a->dir);
	}
	return r;
}

/* audit.log becomes audit.1 and so on up; the oldest goes. Failing leaves a file that is longer than it should be. */
static void audit_rotate(struct audit *a)
{
	char from[PATH_MAX], to[PATH_MAX];

	audit_close(a);
	for (int i = AUDIT_MAX_FILES; i >= 0; i--) {
		snprintf(from, sizeof from, i ? "%s/audit.%d" : "%s/audit.log", a->dir, i);
		snprintf(to, sizeof to, "%s/audit.%d", a->dir, i + 1);
		if (i >= a->o.keep) /* also those of a time when more were kept: a hole in the chain would look like somebody's doing */
			(void)unlink(from);
		else if (rename(from, to) < 0 && !i)
			return;
	}
	a->size = 0;
}

static int audit_put(struct audit *a, const char *line)
{
	size_t n = strlen(line), done = 0;
	int r = audit_open(a);

	if (!r && a->size && a->size + (int64_t)n > a->o.max_bytes) {
		audit_rotate(a);
		r = audit_open(a);
	}
	while (!r && done < n) {
		ssize_t k = pwrite(a->fd, line + done, n - done, (off_t)(a->size + (int64_t)done));

		if (k < 0 && errno == EINTR)
			continue;
		r = k < 0 ? -errno : k == 0 ? -ENOSPC : 0;
		done += k > 0 ? (size_t)k : 0;
	}
	if (r < 0 && a->fd >= 0 && done && ftruncate(a->fd, a->size) < 0)
		return r; /* a piece stays: written over by the next try, cut at the next start */
	if (!r)
		a->size += (int64_t)n;
	return r;
}

static void audit_publish(struct audit *a)
{
	struct metrics *m = a->o.metrics;

	if (!m)
		return;
	metric_set(metrics_gauge(m, "redraft_audit_unwritten", NULL, "Audit lines that wait for room on the disk."), a->n_waiting);
	metric_set(metrics_gauge(m, "redraft_audit_lost", NULL, "Changes since the start whose audit line found no room even in memory."), (double)a->lost);
	metric_set(metrics_gauge(m, "redraft_audit_broken", NULL, "1 when the audit chain did not fit at the start."), a->broken[0] != 0);
	metric_set(metrics_gauge(m, "redraft_audit_lines", NULL, "Number of the last audit line."), (double)a->head.seq);
}

static void audit_flush(struct audit *a)
{
	int n = 0, r = 0;

	while (n < a->n_waiting && !(r = audit_put(a, a->waiting[n])))
		free(a->waiting[n++]);
	memmove(a->waiting, a->waiting + n, (size_t)(a->n_waiting - n) * sizeof *a->waiting);
	a->n_waiting -= n;
	if (n)
		audit_want_sync(a);
	if (r < 0 && !a->failed)
		log_error("audit: %s/audit.log cannot be written: %s; orders are carried out all the same, lines wait, trying again every second", a->dir,
			  strerror(-r));
	else if (!r && a->failed)
		log_info("audit: written again");
	a->failed = r < 0;
	if (!a->n_waiting && a->lost > a->lost_said) {
		uint64_t lost = a->lost - a->lost_said;

		a->lost_said = a->lost;
		audit_note(a, "Lost", NULL, NULL, "%llu changes could not be kept while the disk was full; the journal of the system has them",
			   (unsigned long long)lost);
	}
	if (a->n_waiting && a->again)
		loop_timer_set(a->again, AUDIT_RETRY_US);
	audit_publish(a);
}

static void audit_tries_again(void *arg)
{
	audit_flush(arg);
}

/* ---- records ---- */

bool audit_write(struct audit *a, json_t *record)
{
	struct buf line = BUF_INIT(AUDIT_MAX_LINE + 1);
	struct audit_head was = a->head;
	char now[32];
	int r = record ? 0 : -ENOMEM;

	clock_iso8601(clock_wall_ms(), now);
	if (!r && json_object_set_new(record, "time", json_string(now)) < 0)
		r = -ENOMEM;
	if (!r && a->n_waiting == AUDIT_WAITING)
		r = -ENOBUFS;
	if (!r)
		r = audit_seal(record, &a->head, &line);
	if (!r && buf_append(&line, "", 1) < 0)
		r = -ENOMEM;
	if (!r) {
		a->waiting[a->n_waiting++] = (char *)line.data;
		if (a->heard)
			a->heard(a->heard_arg, record, (char *)line.data, line.len - 2);
		audit_flush(a);
	} else {
		a->head = was; /* the next line follows the last one that is kept */
		a->lost++;
		buf_done(&line);
		audit_publish(a);
	}
	json_decref(record);
	return !r && !a->n_waiting;
}

bool audit_change(struct audit *a, struct news *n, const struct store_state *now, const struct audit_change *c, const char *error, const char *text)
{
	const char *result = error ? error : "done", *of = c->detail[0] ? " of " : "", *because = c->why[0] ? "; why: " : "";
	json_t *j = json_pack("{s:s, s:s, s:o, s:O?, s:o, s:s}", "what", c->what, "who", c->who, "detail", report_text(c->detail), "from", c->from, "to",
			      audit_place(now), "result", result);
	char by[64] = "", fields[224];

	if (j && c->peer) {
		(void)json_object_set_new(j, "uid", json_integer((json_int_t)c->uid));
		(void)json_object_set_new(j, "pid", json_integer(c->pid));
		snprintf(by, sizeof by, "REDRAFT_UID=%u\nREDRAFT_PEER_PID=%d\n", c->uid, c->pid);
	}
	if (j && c->why[0])
		(void)json_object_set_new(j, "why", report_text(c->why));
	if (j && error)
		(void)json_object_set_new(j, "message", report_text(text));
	snprintf(fields, sizeof fields, "REDRAFT_EVENT=audit\nREDRAFT_WHAT=%s\n%sREDRAFT_RESULT=%s\nREDRAFT_LIVE=%u\n", c->what, by, result, now->live);
	log_fields(LOG_INFO, fields, "audit: %s by %s%s%s: %s%s%s%s%s", c->what, c->who, of, c->detail, result, error ? ": " : "", error ? text : "", because, c->why);
	news_say(n, "audit", now->live, "%s by %s%s%s: %s%s%s", c->what, c->who, of, c->detail, result, because, c->why);
	return audit_write(a, j);
}

void audit_note(struct audit *a, const char *what, json_t *from, json_t *to, const char *fmt, ...)
{
	char why[300];
	va_list ap;
	json_t *j;

	va_start(ap, fmt);
	vsnprintf(why, sizeof why, fmt, ap);
	va_end(ap);
	j = json_pack("{s:s, s:s, s:o, s:s}", "what", what, "who", "redraftd", "why", report_text(why), "result", "done");
	if (j && from)
		(void)json_object_set(j, "from", from);
	if (j && to)
		(void)json_object_set(j, "to", to);
	json_decref(from);
	json_decref(to);
	(void)audit_write(a, j);
}

json_t *audit_place(const struct store_state *s)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:b, s:b}", "generation", (json_int_t)s->generation, "live", (json_int_t)s->live, "previous",
			 (json_int_t)s->previous, "pin", (json_int_t)s->pin, "hold", (int)s->hold, "paused", (int)s->paused);
}

void audit_on_line(struct audit *a, void (*heard)(void *arg, const json_t *record, const char *line, size_t len), void *arg)
{
	a->heard = heard;
	a->heard_arg = arg;
}

json_t *audit_status(const struct audit *a)
{
	return json_pack("{s:I, s:s, s:i, s:I, s:s, s:s}", "seq", (json_int_t)a->head.seq, "hash", a->head.hash, "unwritten", a->n_waiting, "lost",
			 (json_int_t)a->lost, "broken", a->broken, "dir", a->dir);
}

uint64_t audit_written(const struct audit *a)
{
	return a->n_waiting ? 0 : a->head.seq;
}

const char *audit_dir(const struct audit *a)
{
	return a->dir;
}

/* ---- life ---- */

/* What was left behind by an earlier life: taken as it is, cut where a crash tore it. */
static void audit_take_up(struct audit *a)
{
	struct errtext e = {.text = ""};
	struct audit_seen s = {0};
	int r = audit_read(a->dir, &s, NULL, NULL, &e);

	if (r < 0) { /* the chain begins anew, behind what is there and cannot be read */
		a->size = -1;
		snprintf(a->broken, sizeof a->broken, "%s", e.text);
		log_error("audit: %s", e.text);
		return;
	}
	a->head = s.head;
	a->size = s.whole;
	if (s.broken) {
		snprintf(a->broken, sizeof a->broken, "%s", s.what);
		log_error("audit: the chain does not fit at %s (%d such lines); somebody has changed it. Going on behind it", s.what, s.broken);
	}
	if (s.torn && !audit_open(a) && ftruncate(a->fd, s.whole) == 0)
		audit_note(a, "Repair", NULL, NULL, "the last line was torn by a crash and is cut off");
	if (s.broken)
		audit_note(a, "Broken", NULL, NULL, "the chain does not fit at %s", s.what);
}

int audit_new(struct loop *l, const struct audit_options *o, struct audit **ret)
{
	struct audit *a = calloc(1, sizeof *a);

	if (!a)
		return -ENOMEM;
	a->o = *o;
	if (a->o.keep < 1)
		a->o.keep = 1;
	if (a->o.keep > AUDIT_MAX_FILES)
		a->o.keep = AUDIT_MAX_FILES;
	a->fd = a->sync_fd = -1;
	snprintf(a->dir, sizeof a->dir, "%s", o->dir);
	pthread_mutex_init(&a->lock, NULL);
	pthread_cond_init(&a->wake, NULL);
	if (loop_timer_new(l, audit_tries_again, a, &a->again) < 0 || pthread_create(&a->thread, NULL, audit_syncs, a) != 0) {
		loop_timer_free(a->again);
		free(a);
		return -ENOMEM;
	}
	audit_take_up(a);
	audit_publish(a);
	*ret = a;
	return 0;
}

struct audit *audit_free(struct audit *a)
{
	if (!a)
		return NULL;
	audit_flush(a);
	pthread_mutex_lock(&a->lock);
	a->stop = true;
	pthread_cond_signal(&a->wake);
	pthread_mutex_unlock(&a->lock);
	pthread_join(a->thread, NULL);
	audit_close(a);
	loop_timer_free(a->again);
	for (int i = 0; i < a->n_waiting; i++)
		free(a->waiting[i]);
	pthread_cond_destroy(&a->wake);
	pthread_mutex_destroy(&a->lock);
	free(a);
	return NULL;
}
