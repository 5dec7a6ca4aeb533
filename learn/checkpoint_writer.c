/* A checkpoint that does not stop training (learn/learner.h: learner_checkpoint*).
 *
 * Training stands still while the state is copied, at one byte of the journal: a memcpy. Two errands are run by a thread each, one after the
 * other, while steps go on: before the copy the memory for it is made, since the system takes longer to give pages than we to fill them; after
 * it the copy is made durable, first what it refers to (records of the pool), then the file. What steps journal meanwhile lies behind that byte.
 * An errand touches nothing but its `struct saving`, and only the learner's thread draws conclusions from what it came to, so there is no lock: the one
 * shared word says that the errand is done. The copy is counted (learner_copy_bytes) and freed when the file is there.
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
	pthread_t thread;      /* of the errand; joined by the learner's */
	atomic_bool done;      /* it is */
	/* the errand's, until then */
	struct checkpoint c;
	char dir[PATH_MAX];
	int64_t serial;
	int first[2];          /* to be synced before the file; -1: none */
	uint64_t ended_us;
	int r;
	struct errtext e;
	/* the learner's */
	bool copied;           /* the errand is the second */
	size_t bytes;
	uint32_t segment;      /* oldest of the pool that it needs */
	int64_t step;
	uint64_t began_us, stood_us, waited_us;
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

/* Said and counted; frees s, which may be NULL. Returns r. */
static int not_made(struct learner *l, struct saving *s, int r, struct errtext *e)
{
	l->saved.failed++;
	if (s && *s->e.text)
		(void)snprintf(l->saved.error, sizeof l->saved.error, "%.150s", s->e.text);
	else
		(void)snprintf(l->saved.error, sizeof l->saved.error, "checkpoint: %s", strerror(-r));
	saving_free(s);
	return errtext_set(e, r, "%s", l->saved.error);
}

static void *make_room(void *arg)
{
	struct saving *s = arg;
	checkpoint_make_pages(&s->c);
	atomic_store(&s->done, true);
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

static int start(struct saving *s, void *(*errand)(void *arg))
{
	atomic_store(&s->done, false);
	return -pthread_create(&s->thread, NULL, errand, s);
}

/* What the file is of, and what must be durable before it. */
static int copy(struct learner *l, struct saving *s)
{
	uint64_t began = clock_us();
	int r = journal_sync(l->journal); /* the copy says how far the journal goes */
	if (!r)
		r = pool_sync_later(l->pool, s->first);
	if (!r)
		r = learner_copy(l, &s->c, &s->e);
	s->serial = l->serial + 1;
	s->step = l->step;
	s->segment = pool_where(l->pool).first;
	s->bytes = s->c.room_bytes;
	s->stood_us = clock_us() - began;
	s->waited_us = journal_waited_us(l->journal);
	s->copied = true;
	if (!r)
		r = start(s, write_it);
	if (!r)
		fs_crash_point("checkpoint-begun");
	return r;
}

int learner_checkpoint_begin(struct learner *l, struct errtext *e)
{
	(void)!learner_checkpoint_end(l, true, NULL); /* where it failed, this one is written in its place */
	struct saving *s = calloc(1, sizeof *s);
	int r = s ? 0 : -ENOMEM;
	if (s) {
		s->first[0] = s->first[1] = -1;
		s->began_us = clock_us();
		r = snprintf(s->dir, sizeof s->dir, "%s/checkpoint", l->o.state_dir) < (int)sizeof s->dir ? learner_copy_room(l, &s->c) : -ENAMETOOLONG;
		s->bytes = s->c.room_bytes;
	}
	if (!r)
		r = start(s, make_room);
	if (r)
		return not_made(l, s, r, e);
	l->saving = s;
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
	l->saved.stood_us = s->stood_us + journal_waited_us(l->journal) - s->waited_us;
	l->saved.took_us = s->ended_us - s->began_us;
	*l->saved.error = 0;
}

int learner_checkpoint_end(struct learner *l, bool wait, struct errtext *e)
{
	struct saving *s = l->saving;
	int r = 0;
	while (s) {
		if (!wait && !atomic_load(&s->done))
			return LEARNER_E_WRITING;
		(void)pthread_join(s->thread, NULL);
		if (s->copied || (r = copy(l, s)))
			break;
	}
	if (!s)
		return 0;
	l->saving = NULL;
	r = r ? r : s->r;
	if (r)
		return not_made(l, s, r, e);
	take_up(l, s);
	saving_free(s);
	return 0;
}

void learner_checkpoint_leave(struct learner *l)
{
	struct saving *s = l->saving;
	if (s && !s->copied) {
		(void)pthread_join(s->thread, NULL);
		l->saving = saving_free(s);
	}
	(void)!learner_checkpoint_end(l, true, NULL); /* where it fails, those before it stand */
}

int learner_checkpoint(struct learner *l, struct errtext *e)
{
	int r = learner_checkpoint_begin(l, e);
	return r ? r : learner_checkpoint_end(l, true, e);
}

size_t learner_copy_bytes(const struct learner *l)
{
	return l->saving && !(l->saving->copied && atomic_load(&l->saving->done)) ? l->saving->bytes : 0;
}
