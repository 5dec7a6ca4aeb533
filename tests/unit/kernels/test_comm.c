/* Ranks as threads: what is sent arrives, in order and whole; a broadcast, a gather and a barrier reach all; a sum is the
 * sum in the order of ranks, the same bits on each, for lengths around the cut into slices; a rank that gives up, a
 * rank that is told to end, ranks that disagree about a size and a peer that never answers end the others with a sentence.
 */
#include <pthread.h>
#include "kt.h"
#include "kernels/comm.h"

struct member {
	struct comm *c;
	void (*fn)(struct comm *c, struct dev *d);
};

/* cmocka's assertions jump, which only its own thread may: others count here. */
static _Atomic int wrong, ended;
#define EXPECT(x)                                                            \
	do {                                                                 \
		if (!(x)) {                                                  \
			wrong++;                                             \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); \
		}                                                            \
	} while (0)

static void *member_main(void *arg)
{
	struct member *m = arg;
	struct dev *d = NULL;
	EXPECT(dev_cpu_new(1, ISA_PORTABLE, &d) == 0);
	m->fn(m->c, d);
	dev_free(d);
	comm_free(m->c);
	return NULL;
}

static void run(int n, void (*fn)(struct comm *c, struct dev *d))
{
	struct comm *c[8];
	struct member m[8];
	pthread_t t[8];
	assert_int_equal(comm_threads_new(n, c), 0);
	for (int i = 0; i < n; i++) {
		m[i] = (struct member){c[i], fn};
		assert_int_equal(pthread_create(&t[i], NULL, member_main, &m[i]), 0);
	}
	for (int i = 0; i < n; i++)
		(void)pthread_join(t[i], NULL);
}

static void ring(struct comm *c, struct dev *d)
{
	(void)d;
	int a[3] = {c->rank, 10 + c->rank, 20 + c->rank}, got[3] = {-1, -1, -1}, next = (c->rank + 1) % c->size, prev = (c->rank + c->size - 1) % c->size;
	for (int turn = 0; turn < 50; turn++) { /* three messages a turn, taken in order */
		struct comm_out out[] = {{next, a, 4}, {next, a + 1, 8}, {next, a, 0}};
		struct comm_in in[] = {{prev, got, 4}, {prev, got + 1, 8}, {prev, got, 0}};
		EXPECT(comm_post(c, out, 3, in, 3) == 0);
		EXPECT(comm_wait(c) == 0);
		EXPECT(got[0] == prev && got[1] == 10 + prev && got[2] == 20 + prev);
	}
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
		real *x = malloc(n * sizeof *x);
		EXPECT(x);
		if (!x)
			return;
		for (size_t i = 0; i < n; i++)
			x[i] = value(c->rank, i);
		EXPECT(comm_sum(c, d, x, n) == 0);
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
	}
}

static void messages(void **state)
{
	(void)state;
	wrong = 0;
	for (int n = 2; n <= 8; n++)
		run(n, ring);
	for (int n = 1; n <= 8; n++)
		run(n, collectives);
	assert_int_equal(wrong, 0);
}

static void same_sums(void **state)
{
	(void)state;
	wrong = 0;
	for (int n = 1; n <= 5; n++)
		run(n, sums);
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
	if (c->rank == 0)
		return; /* never comes */
	c->stop = &stop_all;
	EXPECT(comm_barrier(c) == -ECANCELED);
	ended++;
}

static void disagree(struct comm *c, struct dev *d)
{
	(void)d;
	char b[8] = "";
	int r = comm_broadcast(c, b, c->rank ? 8 : 4);
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
	if (c->rank == 0)
		return;
	EXPECT(comm_barrier(c) == -ETIMEDOUT && strstr(c->error, "heard nothing"));
	ended++;
}

static void failures(void **state)
{
	(void)state;
	wrong = ended = 0;
	run(4, gives_up);
	assert_int_equal(ended, 3);
	run(3, told_to_end);
	assert_int_equal(ended, 5);
	run(2, disagree);
	assert_int_equal(ended, 7);
	run(2, silent);
	assert_int_equal(ended, 8);
	assert_int_equal(wrong, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(messages), cmocka_unit_test(same_sums), cmocka_unit_test(failures)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
