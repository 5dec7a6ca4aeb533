/* A checkpoint that does not stop training (learn/learner.h: learner_checkpoint*).
 *
 * Training stands still while the state is copied, at one byte of the journal: a memcpy. Then a thread makes the copy durable, first what
 * it refers to (records of the pool), then the file, and ends; steps go on meanwhile, and what they journal lies behind that byte.
 * The thread touches nothing but the copy, which is counted (learner_copy_bytes) and freed with it. Only the learner's thread draws conclusions
 * from what it came to, so there is no lock: the one shared word says that the thread is done.
 *
 * A kill at any moment leaves the checkpoints before it, or it and one before: the file appears under its name when it is whole and
 * synced, and segments of the pool go only after that.
 */
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "learn/learner.h"

struct saving {
	pthread_t thread;
	atomic_bool done;
	/* the thread's, until it is done */
	struct checkpoint c;
	char dir[PATH_MAX];
	int64_t serial;
	int first[2];          /* to be synced before the file; -1: none */
	uint64_t began_us, ended_us;
	int r;
	struct errtext e;
	/* the learner's */
	size_t bytes;
	uint32_t segment;      /* oldest of the pool that it needs */
	int64_t step;
	uint64_t copied_us, waited_us;
};

static struct saving *saving_free(struct saving *s)
{
	if (!s)
		return NULL;
	for (int i = 0; i < 2; i++)
		if (s->first[i] >= 0)
			(void)close(s->first[i]);
	checkpoint_done(&s->c);
	free(s);
	return NULL;
}

static void *write_it(void *arg)
{
	struct saving *s = arg;
	for (int i = 0; i < 2 && !s->r; i++)
		if (s->first[i] >= 0 && fsync(s->first[i]))
			s->r = errtext_set(&s->e, -errno, "checkpoint: the pool: %s", strerror(errno));
	fs_crash_point("checkpoint-synced");
	if (!s->r)
		s->r = checkpoint_write(s->dir, s->serial, &s->c, &s->e);
	checkpoint_done(&s->c);
	s->ended_us = clock_us();
	atomic_store(&s->done, true);
	return NULL;
}

/* What the copy is of, and what must be durable before it. */
static int prepare(struct learner *l, struct saving *s, struct errtext *e)
{
	s->began_us = clock_us();
	s->first[0] = s->first[1] = -1;
	s->serial = l->serial + 1;
	s->step = l->step;
	s->segment = pool_where(l->pool).first;
	int r = journal_sync(l->journal); /* it says how far the journal goes */
	if (!r)
		r = pool_sync_later(l->pool, s->first);
	if (r)
		return errtext_set(e, r, "state_dir: %s", strerror(-r));
	if (snprintf(s->dir, sizeof s->dir, "%s/checkpoint", l->o.state_dir) >= (int)sizeof s->dir)
		return -ENAMETOOLONG;
	r = learner_copy(l, &s->c, e);
	s->bytes = s->c.room_bytes;
	s->copied_us = clock_us();
	s->waited_us = journal_waited_us(l->journal);
	return r;
}

int learner_checkpoint_begin(struct learner *l, struct errtext *e)
{
	(void)!learner_checkpoint_end(l, true, NULL); /* where it failed, this one is written in its place */
	struct saving *s = calloc(1, sizeof *s);
	int r = s ? prepare(l, s, e) : -ENOMEM;
	if (!r)
		r = -pthread_create(&s->thread, NULL, write_it, s);
	if (r) {
		saving_free(s);
		return e && *e->text ? r : errtext_set(e, r, "checkpoint: %s", strerror(-r));
	}
	l->saving = s;
	fs_crash_point("checkpoint-begun");
	return 0;
}

/* It is durable: what only older ones needed may go. */
static void take_up(struct learner *l, const struct saving *s)
{
	fs_crash_point("checkpoint-durable");
	l->serial = s->serial;
	l->kept_first[0] = l->kept_first[1];
	l->kept_first[1] = s->segment;
	pool_delete_below(l->pool, l->kept_first[0]);
	l->saved.step = s->step;
	l->saved.bytes = s->bytes;
	l->saved.stood_us = s->copied_us - s->began_us + (journal_waited_us(l->journal) - s->waited_us);
	l->saved.took_us = s->ended_us - s->began_us;
	*l->saved.error = 0;
}

int learner_checkpoint_end(struct learner *l, bool wait, struct errtext *e)
{
	struct saving *s = l->saving;
	if (!s)
		return 0;
	if (!wait && !atomic_load(&s->done))
		return LEARNER_E_WRITING;
	(void)pthread_join(s->thread, NULL);
	l->saving = NULL;
	int r = s->r;
	if (r) {
		l->saved.failed++;
		(void)snprintf(l->saved.error, sizeof l->saved.error, "%.150s", s->e.text);
		r = errtext_set(e, r, "%s", s->e.text);
	} else {
		take_up(l, s);
	}
	saving_free(s);
	return r;
}

int learner_checkpoint(struct learner *l, struct errtext *e)
{
	int r = learner_checkpoint_begin(l, e);
	return r ? r : learner_checkpoint_end(l, true, e);
}

size_t learner_copy_bytes(const struct learner *l)
{
	return l->saving && !atomic_load(&l->saving->done) ? l->saving->bytes : 0;
}
