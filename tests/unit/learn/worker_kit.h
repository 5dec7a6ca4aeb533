/* A compute thread in a toy world: begun, asked, waited for; its writers held at their sync, or met by a full disk there, as the journal may be at
 * its own; a file is known by its folder. */
#pragma once
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include "daemon/base/clock.h"
#include "daemon/base/loop.h"
#include "tests/unit/learn/learner_world.h"
#include "learn/worker.h"

static atomic_bool hold, held, full, journal_full;
static atomic_int dies; /* at the so manyth sync of the journal from now on; 0: never */
static const char *_Atomic whose = "/incoming/"; /* writer */

static inline const char *path_of(int fd, char ret[static 512])
{
	char link[64];
	(void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, ret, 511);
	ret[n > 0 ? n : 0] = 0;
	return ret;
}

int fdatasync(int fd)
{
	char path[512];
	bool journal = strstr(path_of(fd, path), "/s/journal");
	errno = ENOSPC;
	int r = journal_full && journal ? -1 : (int)syscall(SYS_fdatasync, fd);
	if (journal && dies && !--dies)
		_exit(137);
	return r;
}

int fsync(int fd)
{
	const struct timespec nap = {.tv_nsec = 1000000};
	char path[512];
	if (!strstr(path_of(fd, path), whose))
		return (int)syscall(SYS_fsync, fd);
	while (hold) {
		held = true;
		(void)nanosleep(&nap, NULL);
	}
	held = false;
	errno = ENOSPC;
	return full ? -1 : (int)syscall(SYS_fsync, fd);
}

struct heard {
	struct loop *loop;
	int n, code;
	char text[300];
};

static inline void on_exit_of(void *arg, int code, const char *message)
{
	struct heard *h = arg;
	h->n++;
	h->code = code;
	(void)snprintf(h->text, sizeof h->text, "%s", message);
	loop_stop(h->loop);
}

static inline struct source *free_source(struct source *s)
{
	free(s); /* the first of its struct */
	return NULL;
}

/* A source is the worker's own: one in which nothing comes. */
static inline struct source *no_source(void)
{
	struct tw_source *s = malloc(sizeof *s);
	assert_non_null(s);
	tw_source_init(s);
	s->base.free = free_source;
	return &s->base;
}

static inline struct source *free_script(struct source *s)
{
	tw_source_done((struct tw_source *)(void *)s);
	return free_source(s);
}

/* One in which all that is to come is there. */
static inline struct source *script(void)
{
	struct tw_source *s = malloc(sizeof *s);
	assert_non_null(s);
	tw_source_init(s);
	tw_script(s, 12, 4242);
	s->visible = s->n;
	s->base.free = free_script;
	return &s->base;
}

static const struct worker_pace quiet = {.publish_us = UINT64_MAX / 2, .checkpoint_us = UINT64_MAX / 2, .publish_min_steps = 1, .gate_k = 3, .governor = {.max_rows = 24}};

static char daemon_socket[400]; /* "": nobody is there */

static inline struct worker *begin(const struct world *w, const char *state, struct source *src, struct heard *h)
{
	struct worker *x = NULL;
	struct worker_options o = {.learner = options(w, state), .device = {.kind = DEV_CPU, .threads = 1, .isa = ISA_PORTABLE}, .policy = SCHED_OTHER, .serve_socket = "", .daemon_socket = daemon_socket,
				   .pace = quiet};
	o.learner.max_epochs = 100000;
	o.learner.pool_bytes = 1 << 24;
	*h = (struct heard){0};
	assert_int_equal(loop_new(&h->loop), 0);
	assert_int_equal(worker_start(&o, h->loop, src, &w->fz, on_exit_of, h, &x), 0);
	return x;
}

/* A number of its status, by a path of two names or one; -1: there is none. */
static inline int64_t number(struct worker *x, const char *in, const char *key)
{
	json_t *s = worker_status(x), *v = json_object_get(in ? json_object_get(s, in) : s, key);
	int64_t n = json_is_boolean(v) ? json_is_true(v) : json_is_integer(v) ? (int64_t)json_integer_value(v) : -1;
	json_decref(s);
	return n;
}

static inline void until(struct worker *x, const char *in, const char *key, int64_t least)
{
	const struct timespec nap = {.tv_nsec = 5000000};
	for (int i = 0; i < 20000; i++) {
		if (number(x, in, key) >= least)
			return;
		(void)nanosleep(&nap, NULL);
	}
	hold = false;
	fail_msg("%s never came to %lld", key, (long long)least);
}

/* Until it goes round. */
static inline void until_it_turns(struct worker *x)
{
	until(x, NULL, "step", 0);
}

struct answer { struct loop *loop; int n; char error[64], text[256]; };

static inline void on_answer(void *arg, json_t *reply, const char *error, const char *message)
{
	struct answer *a = arg;
	(void)reply;
	a->n++;
	(void)snprintf(a->error, sizeof a->error, "%s", error ? error : "");
	(void)snprintf(a->text, sizeof a->text, "%s", message);
	loop_stop(a->loop);
}

static inline void ask(struct worker *x, enum command_kind kind, struct answer *a)
{
	struct command c = {.kind = kind, .k = 1, .done = on_answer, .arg = a, .pace = quiet};
	c.pace.checkpoint_us = 1; /* CMD_PACE: always due, the candidate where it is candidates that are held */
	c.pace.publish_us = strcmp(whose, "/incoming/") == 0 ? 1 : quiet.publish_us;
	*a = (struct answer){.loop = a->loop};
	assert_int_equal(worker_post(x, &c), 0);
}

static inline void obeyed(struct worker *x, enum command_kind kind, struct loop *loop)
{
	struct answer a = {.loop = loop};
	ask(x, kind, &a);
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(a.n, 1);
	assert_string_equal(a.error, "");
}

static inline void *let_go(void *unused) /* of a writer that is held, while somebody waits for it */
{
	const struct timespec nap = {.tv_nsec = 100000000};
	(void)nanosleep(&nap, NULL);
	hold = false;
	return unused;
}

static inline void until_held(void)
{
	const struct timespec nap = {.tv_nsec = 1000000};
	while (!held)
		(void)nanosleep(&nap, NULL);
}
