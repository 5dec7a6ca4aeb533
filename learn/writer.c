/* What is written beside training: checkpoints and candidates, one at a time (learn/learner.h: learner_checkpoint*, learner_candidate*, learner_write*).
 *
 * Training stands still while state is copied, at one byte of the journal: a memcpy. What takes longer are errands, run by a thread each while steps go on.
 * A checkpoint has two: before the copy the memory for it is made, since the system takes longer to give pages than we to fill them; after
 * it the copy is made durable, first what it refers to (records of the pool), then the file. What steps journal meanwhile lies behind that byte.
 * A candidate has one, its folder in the store: its weights are copied as its entry is applied, so they are those of that place in the journal
 * whatever is trained while they are written.
 * An errand touches nothing but its `struct saving`, and only the learner's thread draws conclusions from what it came to, so there is no lock: the one
 * shared word says that the errand is done. The copy is counted (learner_copy_bytes) and freed when the files are there.
 *
 * A kill at any moment leaves the checkpoints before it, or it and one before: the file appears under its name when it is whole and
 * synced, and segments of the pool go only after that. And it loses no candidate: a checkpoint behind its entry is copied only when its folder is there
 * (or could not be written, which that checkpoint says then); a start from one before applies the entry again, and writes the same bits.
 */
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/sha.h"
#include "learn/learner.h"

struct candidate {
	const char *store;     /* borrowed, as the next is */
	const struct frozen *fz;
	char name[96], sha[65];
	struct draft_config file;
	uint32_t base;         /* version that it descends from */
	json_t *meta;          /* owned */
};

struct saving {
	pthread_t thread;      /* of the errand; joined by the learner's */
	atomic_bool done;      /* it is */
	/* the errand's, until then */
	struct checkpoint c;   /* of a candidate: its weights and d2t, nothing else */
	struct candidate *candidate; /* owned; NULL: this is a checkpoint */
	char dir[PATH_MAX];
	int64_t serial;
	int first[2];          /* to be synced before the file; -1: none */
	uint64_t ended_us;
	int r;
	struct errtext e;
	/* the learner's */
	bool copied;           /* the errand is the last */
	size_t bytes;
	uint32_t segment;      /* oldest of the pool that it needs */
	int64_t step;
	uint64_t began_us, stood_us, stood_cpu_us, waited_us;
};

static struct saving *saving_free(struct saving *s)
{
	if (!s)
		return NULL;
	for (int i = 0; i < 2; i++)
		if (s->first[i] >= 0)
			(void)close(s->first[i]);
	checkpoint_done(&s->c);
	if (s->candidate)
		json_decref(s->candidate->meta);
	free(s->candidate);
	free(s);
	return NULL;
}

static struct saving *saving_new(void)
{
	struct saving *s = calloc(1, sizeof *s);
	if (!s)
		return NULL;
	s->first[0] = s->first[1] = -1;
	s->began_us = clock_us();
	return s;
}

/* Said and counted; frees s, which may be NULL. Returns r. */
static int not_made(struct written *x, const char *what, struct saving *s, int r, struct errtext *e)
{
	x->failed++;
	if (s && *s->e.text)
		(void)snprintf(x->error, sizeof x->error, "%s", s->e.text);
	else
		(void)snprintf(x->error, sizeof x->error, "%s: %s", what, strerror(-r));
	errtext_plain(x->error);
	saving_free(s);
	return errtext_set(e, r, "%s", x->error);
}

static void ended(struct saving *s)
{
	checkpoint_done(&s->c);
	s->ended_us = clock_us();
	atomic_store(&s->done, true);
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
	ended(s);
	return NULL;
}

static void *write_candidate(void *arg)
{
	struct saving *s = arg;
	struct candidate *x = s->candidate;
	uint32_t parent = x->base && publish_state_of(x->store, x->base) ? x->base : 0; /* the store may be another one now */
	fs_crash_point("candidate-begun");
	publish_remove(x->store, x->name); /* what a kill left of it */
	s->r = json_object_set_new(x->meta, "parent", json_integer((json_int_t)parent)) ? -ENOMEM
		: publish_write(x->store, x->name, &x->file, s->c.d2t, s->c.params, x->fz, x->meta, x->sha, &s->e);
	ended(s);
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
	uint64_t began = clock_us(), cpu = clock_thread_us();
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
	s->stood_cpu_us = clock_thread_us() - cpu;
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
	(void)!learner_write_end(l, true, NULL); /* where a checkpoint failed, this one is written in its place */
	struct saving *s = saving_new();
	int r = s ? 0 : -ENOMEM;
	if (s) {
		r = snprintf(s->dir, sizeof s->dir, "%s/checkpoint", l->o.state_dir) < (int)sizeof s->dir ? learner_copy_room(l, &s->c) : -ENAMETOOLONG;
		s->bytes = s->c.room_bytes;
	}
	if (!r)
		r = start(s, make_room);
	if (r)
		return not_made(&l->saved, "checkpoint", s, r, e);
	l->saving = s;
	return 0;
}

/* What is published, and what the store is to know of it. */
static int copy_candidate(struct learner *l, struct saving *s)
{
	const real *w = learner_draft(l);
	struct candidate *x = s->candidate = calloc(1, sizeof *x);
	if (!x || !w)
		return -ENOMEM;
	*x = (struct candidate){.store = l->o.store, .fz = l->fz, .file = l->file, .base = l->base};
	(void)snprintf(x->name, sizeof x->name, "%s", l->pending.name);
	x->meta = json_pack("{s:o,s:{s:I,s:I,s:f,s:f,s:I,s:s}}", "cut", json_deep_copy(l->pending.cut), "training", "step", (json_int_t)l->step, "tokens", (json_int_t)l->n.trained_tokens,
			    "loss", l->loss_mean, "accuracy", l->acc_mean, "records", (json_int_t)l->n.records, "who", "redraft-learn");
	s->c.n_params = l->o.kind->n_params(l->t);
	s->c.V_d = l->file.draft_vocab_size;
	int r = x->meta ? checkpoint_room(&s->c, false, false) : -ENOMEM;
	if (r)
		return r;
	memcpy(s->c.params, w, s->c.n_params * sizeof *w);
	memcpy(s->c.d2t, l->d2t, (size_t)s->c.V_d * sizeof *l->d2t);
	s->bytes = s->c.room_bytes;
	s->step = l->step;
	s->copied = true;
	return 0;
}

void learner_candidate_begin(struct learner *l)
{
	struct saving *s = saving_new();
	int r = s ? copy_candidate(l, s) : -ENOMEM;
	if (!r)
		r = start(s, write_candidate);
	if (r) {
		(void)not_made(&l->candidate, "candidate", s, r, NULL);
		return;
	}
	s->waited_us = journal_waited_us(l->journal);
	l->pending.writing = true;
	l->saving = s;
}

enum { NAMED_BY = 1 << 16 }; /* weights of which a candidate's name has the hash: every step changes all of them */

int learner_publish(struct learner *l, struct errtext *e)
{
	(void)!learner_write_end(l, true, NULL); /* no copy may fall between the entry and what it does */
	struct journal_entry x = {.kind = J_PUBLISH};
	uint64_t began = clock_us(), cpu = clock_thread_us();
	char sha[65] = "none";
	const real *w = l->t ? learner_draft(l) : NULL;
	size_t n = w ? l->o.kind->n_params(l->t) : 0;
	if (w)
		sha_hex(w, (n < NAMED_BY ? n : NAMED_BY) * sizeof *w, sha);
	(void)snprintf(x.text, sizeof x.text, "step-%" PRId64 "-%.8s", l->step, sha);
	int r = learner_do(l, &x, e);
	if (l->saving) {
		l->saving->began_us = began;
		l->saving->stood_us = clock_us() - began;
		l->saving->stood_cpu_us = clock_thread_us() - cpu;
	}
	return r;
}

/* It is there: what people are told of it. */
static void made(const struct learner *l, const struct saving *s, struct written *ret)
{
	ret->step = s->step;
	ret->bytes = s->bytes;
	ret->stood_us = s->stood_us + journal_waited_us(l->journal) - s->waited_us;
	ret->stood_cpu_us = s->stood_cpu_us;
	ret->took_us = s->ended_us - s->began_us;
	*ret->error = 0;
}

/* Its folder is there, or not: a store that cannot be written changes nothing of what is trained. */
static void candidate_ended(struct learner *l, struct saving *s)
{
	fs_crash_point("candidate-durable");
	l->pending.writing = false;
	if (s->r) {
		(void)not_made(&l->candidate, "candidate", s, s->r, NULL);
		return;
	}
	memcpy(l->pending.sha, s->candidate->sha, sizeof l->pending.sha);
	made(l, s, &l->candidate);
	saving_free(s);
}

void learner_candidate_wait(struct learner *l)
{
	struct saving *s = l->pending.writing ? l->saving : NULL;
	if (!s)
		return;
	(void)pthread_join(s->thread, NULL);
	l->saving = NULL;
	candidate_ended(l, s);
}

/* It is durable: what only older ones needed may go. */
static void take_up(struct learner *l, const struct saving *s)
{
	fs_crash_point("checkpoint-durable");
	l->serial = s->serial;
	l->kept_first[0] = l->kept_first[1];
	l->kept_first[1] = s->segment;
	pool_delete_below(l->pool, l->kept_first[0]);
	made(l, s, &l->saved);
}

int learner_write_end(struct learner *l, bool wait, struct errtext *e)
{
	struct saving *s = l->saving;
	int r = 0;
	while (s) {
		if (!wait && !atomic_load(&s->done))
			return LEARNER_E_WRITING;
		if (s->candidate) {
			learner_candidate_wait(l);
			return 0;
		}
		(void)pthread_join(s->thread, NULL);
		if (s->copied || (r = copy(l, s)))
			break;
	}
	if (!s)
		return 0;
	l->saving = NULL;
	r = r ? r : s->r;
	if (r)
		return not_made(&l->saved, "checkpoint", s, r, e);
	take_up(l, s);
	saving_free(s);
	return 0;
}

void learner_write_leave(struct learner *l)
{
	struct saving *s = l->saving;
	if (s && !s->copied) {
		(void)pthread_join(s->thread, NULL);
		l->saving = saving_free(s);
	}
	(void)!learner_write_end(l, true, NULL); /* where it fails, those before it stand */
}

int learner_checkpoint(struct learner *l, struct errtext *e)
{
	int r = learner_checkpoint_begin(l, e);
	return r ? r : learner_write_end(l, true, e);
}

size_t learner_copy_bytes(const struct learner *l)
{
	return l->saving && !(l->saving->copied && atomic_load(&l->saving->done)) ? l->saving->bytes : 0;
}
