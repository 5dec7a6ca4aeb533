/* Ranks as threads of one process (kernels/comm.h): for tests, under sanitizers too.
 *
 * One lock, a condition for each rank. A message is a pointer into the sender's memory that
 * waits in the mailbox of its pair of ranks; the receiver copies and counts it
 * off, and the sender's wait ends when all of its messages are counted off.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/comm.h"

enum { BOX = 64 /* messages of one pair under way */ };

struct mail {
	const void *p;
	size_t bytes;
};

struct box { /* a ring: head..tail */
	struct mail mail[BOX];
	unsigned head, tail;
};

struct shared {
	pthread_mutex_t lock;
	pthread_cond_t *moved; /* [n] something came for this rank, or all it sent was taken */
	int n, holders;
	bool aborted;
	char why[192];
	int *unread;      /* [n] messages of each rank not yet taken */
	struct box *box;  /* [n][n] from, to */
};

struct rank {
	struct shared *s;
	struct comm_in *in; /* [n_in] of the post under way */
	int n_in, cap;
	struct comm comm;
};

static int threads_post(struct comm *c, enum comm_memory where, const struct comm_out *out, int n_out, const struct comm_in *in, int n_in)
{
	struct rank *k = c->impl;
	struct shared *s = k->s;
	(void)where;
	if (n_in > k->cap) {
		struct comm_in *more = realloc(k->in, (size_t)n_in * sizeof *more);
		if (!more)
			return comm_fail(c, -ENOMEM, "out of memory for %d messages", n_in);
		k->in = more;
		k->cap = n_in;
	}
	if (n_in)
		memcpy(k->in, in, (size_t)n_in * sizeof *in);
	k->n_in = n_in;
	(void)pthread_mutex_lock(&s->lock);
	int r = 0;
	for (int i = 0; i < n_out && !r; i++) {
		struct box *b = &s->box[c->rank * s->n + out[i].peer];
		if (out[i].peer == c->rank || b->tail - b->head == BOX)
			r = comm_fail(c, -EINVAL, "a message to itself, or more than %d to one rank", BOX);
		else {
			b->mail[b->tail++ % BOX] = (struct mail){out[i].p, out[i].bytes};
			s->unread[c->rank]++;
			(void)pthread_cond_signal(&s->moved[out[i].peer]);
		}
	}
	(void)pthread_mutex_unlock(&s->lock);
	return r;
}

/* Take what has come for the receives from the front on. -EMSGSIZE: the ranks disagree. */
static int take(struct comm *c, struct rank *k, int *done)
{
	struct shared *s = k->s;
	while (*done < k->n_in) {
		const struct comm_in *in = &k->in[*done];
		struct box *b = &s->box[in->peer * s->n + c->rank];
		if (b->head == b->tail)
			return 0;
		const struct mail *m = &b->mail[b->head % BOX];
		if (m->bytes != in->bytes)
			return comm_fail(c, -EMSGSIZE, "rank %d sent %zu bytes where rank %d expects %zu", in->peer, m->bytes, c->rank, in->bytes);
		if (m->bytes)
			memcpy(in->p, m->p, m->bytes);
		b->head++;
		++*done;
		if (--s->unread[in->peer] == 0)
			(void)pthread_cond_signal(&s->moved[in->peer]);
	}
	return 0;
}

static int threads_wait(struct comm *c)
{
	struct rank *k = c->impl;
	struct shared *s = k->s;
	int done = 0, r = 0;
	struct timespec end, slice;
	(void)clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += c->timeout_s;
	(void)pthread_mutex_lock(&s->lock);
	while (!(r = take(c, k, &done)) && (done < k->n_in || s->unread[c->rank])) {
		if (s->aborted)
			r = comm_fail(c, -ECONNABORTED, "%s", s->why);
		else if (c->stop && *c->stop)
			r = comm_fail(c, -ECANCELED, "rank %d was told to end while it waited for others", c->rank);
		(void)clock_gettime(CLOCK_MONOTONIC, &slice);
		if (!r && c->timeout_s && slice.tv_sec > end.tv_sec)
			r = comm_fail(c, -ETIMEDOUT, "rank %d heard nothing for %d s", c->rank, c->timeout_s);
		if (r)
			break;
		slice.tv_nsec += 20000000;
		slice.tv_sec += slice.tv_nsec / 1000000000;
		slice.tv_nsec %= 1000000000;
		(void)pthread_cond_timedwait(&s->moved[c->rank], &s->lock, &slice);
	}
	(void)pthread_mutex_unlock(&s->lock);
	return r;
}

static void threads_abort(struct comm *c)
{
	struct shared *s = ((struct rank *)c->impl)->s;
	(void)pthread_mutex_lock(&s->lock);
	if (!s->aborted)
		memcpy(s->why, c->error, sizeof s->why);
	s->aborted = true;
	for (int i = 0; i < s->n; i++)
		(void)pthread_cond_signal(&s->moved[i]);
	(void)pthread_mutex_unlock(&s->lock);
}

static void shared_free(struct shared *s)
{
	if (!s)
		return;
	free(s->moved);
	free(s->unread);
	free(s->box);
	free(s);
}

static void shared_drop(struct shared *s)
{
	(void)pthread_mutex_lock(&s->lock);
	int left = --s->holders;
	(void)pthread_mutex_unlock(&s->lock);
	if (left)
		return;
	for (int i = 0; i < s->n; i++)
		(void)pthread_cond_destroy(&s->moved[i]);
	(void)pthread_mutex_destroy(&s->lock);
	shared_free(s);
}

static void threads_free(struct comm *c)
{
	struct rank *k = c->impl;
	shared_drop(k->s);
	free(k->in);
	free(k);
}

static const struct comm_ops threads_ops = {.name = "threads", .post = threads_post, .wait = threads_wait, .abort = threads_abort, .free = threads_free};

int comm_threads_new(int n, struct comm **ret)
{
	if (n < 1 || n > COMM_MAX_RANKS)
		return -EINVAL;
	if (n == 1) {
		*ret = comm_self();
		return 0;
	}
	struct shared *s = calloc(1, sizeof *s);
	struct rank *k[COMM_MAX_RANKS] = {0};
	pthread_condattr_t monotonic; /* a wall clock that is set back must not make anybody wait for as long */
	int made = 0;
	if (s) {
		s->n = n;
		s->moved = calloc((size_t)n, sizeof *s->moved);
		s->unread = calloc((size_t)n, sizeof *s->unread);
		s->box = calloc((size_t)n * (size_t)n, sizeof *s->box);
	}
	while (made < n && (k[made] = calloc(1, sizeof **k)))
		made++;
	if (!s || !s->moved || !s->unread || !s->box || made < n) {
		for (int i = 0; i < made; i++)
			free(k[i]);
		shared_free(s);
		return -ENOMEM;
	}
	(void)pthread_mutex_init(&s->lock, NULL);
	(void)pthread_condattr_init(&monotonic);
	(void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	s->holders = n;
	for (int i = 0; i < n; i++) {
		(void)pthread_cond_init(&s->moved[i], &monotonic);
		k[i]->s = s;
		k[i]->comm = (struct comm){.ops = &threads_ops, .impl = k[i], .rank = i, .size = n, .local = n, .here = i};
		ret[i] = &k[i]->comm;
	}
	return 0;
}
