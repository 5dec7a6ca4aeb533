/* The thread pool: every part runs exactly once whatever the count, also when
 * counts change from run to run and when workers have gone to sleep in between;
 * what a run wrote is visible after it. A worker that finds itself on the caller's
 * processor leaves it.
 */
#include "kt.h"
#include "kernels/cpu/pool.h"
#include <pthread.h>
#include <sched.h>
#include <time.h>

struct job {
	int hits[8], n_seen[8];
};

static void part(void *ctx, int t, int n)
{
	struct job *j = ctx;
	j->hits[t]++; /* a slot of its own: a second runner would be a race, seen as 2 */
	j->n_seen[t] = n;
}

static void each_part_once(void **state)
{
	(void)state;
	struct pool *p = NULL;
	assert_int_equal(pool_new(8, &p), 0);
	for (int i = 0; i < 4000; i++) {
		struct job j = {0};
		int n = 1 + i % 8;
		pool_run(p, n, part, &j);
		for (int t = 0; t < 8; t++) {
			assert_int_equal(j.hits[t], t < n);
			assert_int_equal(j.n_seen[t], t < n ? n : 0);
		}
		if (i % 500 == 0) {
			struct timespec ts = {.tv_nsec = 2000000}; /* long enough to fall asleep */
			nanosleep(&ts, NULL);
		}
	}
	assert_null(pool_free(p));
}

static void bounds(void **state)
{
	(void)state;
	struct pool *p = NULL;
	assert_int_equal(pool_new(0, &p), -EINVAL);
	assert_int_equal(pool_new(POOL_MAX_THREADS + 1, &p), -EINVAL);
	assert_null(p);
	assert_null(pool_free(NULL));
	assert_int_equal(pool_new(1, &p), 0);
	struct job j = {0};
	pool_run(p, 1, part, &j);
	assert_int_equal(j.hits[0], 1);
	pool_free(p);
}

struct place {
	int caller, seen; /* processors; seen: the worker's */
	bool come;        /* the worker is to go to the caller's */
};

static void go(int cpu)
{
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET((size_t)cpu, &one);
	assert_int_equal(pthread_setaffinity_np(pthread_self(), sizeof one, &one), 0);
}

static void where(void *ctx, int t, int n)
{
	struct place *j = ctx;
	(void)n;
	if (t != 1)
		return;
	j->seen = sched_getcpu();
	if (j->come)
		go(j->caller);
}

/* On each of two processors in turn: the caller goes there, the worker is put there, and is elsewhere at the next job. */
static void apart(void **state)
{
	(void)state;
	cpu_set_t allowed;
	struct pool *p = NULL;
	int turns = 0;
	assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
	if (CPU_COUNT(&allowed) < 2)
		skip();
	assert_int_equal(pool_new(2, &p), 0);
	for (int cpu = 0; cpu < CPU_SETSIZE && turns < 2; cpu++) {
		if (!CPU_ISSET((size_t)cpu, &allowed))
			continue;
		turns++;
		go(cpu);
		struct place j = {.caller = cpu, .come = true};
		pool_run(p, 2, where, &j);
		j.come = false;
		for (int i = 0; i < 20; i++) {
			pool_run(p, 2, where, &j);
			assert_int_not_equal(j.seen, cpu);
			assert_true(CPU_ISSET((size_t)j.seen, &allowed));
		}
	}
	assert_int_equal(pthread_setaffinity_np(pthread_self(), sizeof allowed, &allowed), 0);
	assert_null(pool_free(p));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(each_part_once), cmocka_unit_test(bounds), cmocka_unit_test(apart)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
