/* Ranks: what is sent arrives, in order and whole; a broadcast, a gather and a barrier reach all; a sum is the
 * sum in the order of ranks, the same bits on each, for lengths around the cut into slices; a rank that gives up, a
 * rank that is told to end, ranks that disagree about a size and a peer that never answers end the others with a sentence.
 * Each over comm_threads and over comm_nccl (its sockets, and its messages between emulated devices).
 */
#include <time.h>
#include "ranks.h"

static _Atomic int ended; /* ranks, so far */

static void nap(void)
{
	(void)nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

static void ring(struct comm *c, struct dev *d)
{
	const struct ops *o = d->ops;
	int a[3] = {c->rank, 10 + c->rank, 20 + c->rank}, got[3], next = (c->rank + 1) % c->size, prev = (c->rank + c->size - 1) % c->size;
	char *from = o->alloc(d, sizeof a), *to = o->alloc(d, sizeof a);
	EXPECT(from && to && o->upload(d, from, a, sizeof a) == 0);
	for (int turn = 0; turn < 20; turn++) { /* three messages a turn, taken in order */
		struct comm_out out[] = {{next, from, 4}, {next, from + 4, 8}, {next, from, 0}};
		struct comm_in in[] = {{prev, to, 4}, {prev, to + 4, 8}, {prev, to, 0}};
		EXPECT(o->zero(d, to, sizeof a) == 0);
		EXPECT(comm_post(c, COMM_DEVICE, out, 3, in, 3) == 0);
		EXPECT(comm_wait(c) == 0);
		EXPECT(o->download(d, got, to, sizeof got) == 0);
		EXPECT(got[0] == prev && got[1] == 10 + prev && got[2] == 20 + prev);
	}
	o->free(d, from);
	o->free(d, to);
}

/* Rank 0 and each other, both ways at once, more than a socket holds. */
static void host(struct comm *c, struct dev *d)
{
	enum { LONG = 3 << 20 };
	char *mine = malloc(LONG), *got = malloc((size_t)c->size * LONG);
	struct comm_out out[8][2];
	struct comm_in in[8][2];
	int n = 0;
	(void)d;
	if (!mine || !got)
		abort();
	memset(mine, 'a' + c->rank, LONG);
	for (int p = 0; p < c->size; p++)
		if (p != c->rank && (!p || !c->rank)) {
			out[n][0] = (struct comm_out){p, mine, 5};
			out[n][1] = (struct comm_out){p, mine, LONG};
			in[n][0] = (struct comm_in){p, got, 5};
			in[n++][1] = (struct comm_in){p, got + (size_t)p * LONG, LONG};
		}
	EXPECT(comm_post(c, COMM_HOST, out[0], 2 * n, in[0], 2 * n) == 0);
	EXPECT(comm_wait(c) == 0);
	for (int i = 0; i < n; i++)
		EXPECT(got[(size_t)in[i][0].peer * LONG] == 'a' + in[i][0].peer && got[(size_t)(in[i][0].peer + 1) * LONG - 1] == 'a' + in[i][0].peer);
	free(mine);
	free(got);
}

static void collectives(struct comm *c, struct dev *d)
{
	(void)d;
	char text[8] = "", all[8 * 4];
	if (c->rank == 0)
		memcpy(text, "hello", 6);
	EXPECT(comm_broadcast(c, text, sizeof text) == 0);
	EXPECT(strcmp(text, "hello") == 0);
	uint32_t mine = 7 + (uint32_t)c->rank;
	EXPECT(comm_all_gather(c, &mine, all, 4) == 0);
	for (int i = 0; i < c->size; i++) {
		uint32_t v;
		memcpy(&v, all + 4 * i, 4);
		EXPECT(v == 7 + (uint32_t)i);
	}
	EXPECT(comm_barrier(c) == 0);
}

static real value(int rank, size_t i)
{
	return (real)sin((double)(i * 7 + 1) * (rank + 1)) * (real)(rank % 2 ? 1e-4 : 1);
}

static void sums(struct comm *c, struct dev *d)
{
	const size_t sizes[] = {1, 2, 5, 1000, (1 << 18) * 3 + 5};
	for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
		size_t n = sizes[k];
		real *x = malloc(n * sizeof *x), *y = d->ops->alloc(d, n * sizeof *y);
		EXPECT(x && y);
		if (!x || !y)
			return;
		for (size_t i = 0; i < n; i++)
			x[i] = value(c->rank, i);
		EXPECT(d->ops->upload(d, y, x, n * sizeof *x) == 0);
		int r = comm_sum(c, d, y, n);
		EXPECT(r == 0);
		if (r)
			comm_abort(c, d->error);
		EXPECT(d->ops->download(d, x, y, n * sizeof *x) == 0);
		for (size_t i = 0; i < n; i++) {
			real want = value(0, i);
			for (int p = 1; p < c->size; p++)
				want += value(p, i);
			if (x[i] != want) {
				EXPECT(x[i] == want);
				break;
			}
		}
		free(x);
		d->ops->free(d, y);
	}
}

static enum ranks_by by_of(void **state)
{
	enum ranks_by by = *(const enum ranks_by *)*state;
	if (by == BY_NCCL)
		ranks_need_emulation();
	return by;
}

static void messages(void **state)
{
	enum ranks_by by = by_of(state);
	wrong = 0;
	for (int n = 2; n <= 8; n++) {
		ranks_run(by, n, ring);
		ranks_run(by, n, host);
	}
	for (int n = 1; n <= 8; n++)
		ranks_run(by, n, collectives);
	assert_int_equal(wrong, 0);
}

static void same_sums(void **state)
{
	enum ranks_by by = by_of(state);
	wrong = 0;
	for (int n = 1; n <= 5; n++)
		ranks_run(by, n, sums);
	assert_int_equal(wrong, 0);
}

static void gives_up(struct comm *c, struct dev *d)
{
	(void)d;
	if (c->rank == 2) {
		comm_abort(c, "no memory");
		return;
	}
	int r = comm_barrier(c);
	EXPECT(r == -ECONNABORTED && strcmp(c->error, "rank 2 of 4 gave up: no memory") == 0);
	EXPECT(comm_barrier(c) == r); /* for good */
	ended++;
}

static volatile int stop_all = 1;
static void told_to_end(struct comm *c, struct dev *d)
{
	(void)d;
	if (c->rank == 0) { /* never comes */
		while (ended < 5)
			nap();
		return;
	}
	c->stop = &stop_all;
	EXPECT(comm_barrier(c) == -ECANCELED);
	ended++;
}

static void disagree(struct comm *c, struct dev *d)
{
	(void)d;
	char b[8] = "";
	int r = comm_broadcast(c, b, c->rank ? 8 : 4);
	if (!r && c->rank == 0) /* what it sent went into a buffer */
		r = comm_barrier(c);
	if (c->rank) {
		EXPECT(r == -EMSGSIZE && strstr(c->error, "4 bytes"));
		comm_abort(c, c->error);
	} else
		EXPECT(r == -ECONNABORTED);
	ended++;
}

static void silent(struct comm *c, struct dev *d)
{
	(void)d;
	c->timeout_s = 1;
	if (c->rank == 0) {
		while (ended < 8)
			nap();
		return;
	}
	EXPECT(comm_barrier(c) == -ETIMEDOUT && strstr(c->error, "heard nothing"));
	ended++;
}

static void failures(void **state)
{
	enum ranks_by by = by_of(state);
	wrong = ended = 0;
	ranks_run(by, 4, gives_up);
	assert_int_equal(ended, 3);
	ranks_run(by, 3, told_to_end);
	assert_int_equal(ended, 5);
	ranks_run(by, 2, disagree);
	assert_int_equal(ended, 7);
	ranks_run(by, 2, silent);
	assert_int_equal(ended, 8);
	assert_int_equal(wrong, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {RANKS_TESTS(messages), RANKS_TESTS(same_sums), RANKS_TESTS(failures)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
