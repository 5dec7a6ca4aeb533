/* Thread pool: one word says what to do.
 *
 * `job` holds (count << 8 | active threads). A worker that sees it change reads
 * from the same word whether it takes part; if it does, the caller is waiting
 * for it, so fn and ctx are stable; if it does not, it must not touch them.
 *
 * A worker that sleeps is often woken on the caller's own processor, where it waits
 * until the caller is done, and the kernel takes milliseconds to part the two: longer
 * than the product of a decoding step, which then gains nothing by a second thread.
 * So a worker that finds itself there goes elsewhere and keeps off that one processor;
 * which of the others it takes is left to the kernel.
 */
#include "kernels/cpu/pool.h"
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SPIN_NS = 50000 };

struct worker {
	struct pool *pool;
	pthread_t thread;
	int t;
};

struct pool {
	int n;
	cpu_set_t allowed; /* where the maker of the pool might run */
	bool roomy;        /* that is a processor a thread at least */
	struct worker *workers; /* [n - 1], t = 1.. */
	void (*fn)(void *ctx, int t, int n);
	void *ctx;
	_Alignas(64) _Atomic uint32_t job;
	_Atomic uint32_t job_sleepers;
	_Atomic int caller_cpu; /* of the last job; -1: not known */
	_Atomic bool stop;
	_Alignas(64) _Atomic uint32_t left; /* workers that have not finished */
	_Atomic uint32_t caller_sleeps;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
	(void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
	(void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static uint64_t now_ns(void)
{
	struct timespec ts;
	(void)clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#else
	atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* Wait until *word differs from (or, with want_equal, equals) value. `sleepers`
 * is raised before each sleep, so that whoever changes the word knows to wake. */
static uint32_t wait_word(_Atomic uint32_t *word, uint32_t value, bool want_equal, _Atomic uint32_t *sleepers)
{
	uint64_t start = 0;
	for (unsigned i = 0;; i++) {
		uint32_t w = atomic_load(word);
		if ((w == value) == want_equal)
			return w;
		relax();
		if (i % 32 != 31)
			continue;
		uint64_t t = now_ns();
		if (start == 0)
			start = t;
		if (t - start > SPIN_NS)
			break;
	}
	for (;;) {
		atomic_fetch_add(sleepers, 1);
		uint32_t w = atomic_load(word);
		if ((w == value) != want_equal)
			futex_wait(word, w);
		atomic_fetch_sub(sleepers, 1);
		w = atomic_load(word);
		if ((w == value) == want_equal)
			return w;
	}
}

/* Off the caller's processor, and not back; where that is refused (a sandbox may) all stays as it was. */
static void keep_off(const struct pool *p, int cpu)
{
	if (!p->roomy || cpu < 0 || cpu >= CPU_SETSIZE || sched_getcpu() != cpu)
		return;
	cpu_set_t rest = p->allowed;
	CPU_CLR((size_t)cpu, &rest);
	(void)sched_setaffinity(0, sizeof rest, &rest);
}

static void *worker_main(void *arg)
{
	struct worker *me = arg;
	struct pool *p = me->pool;
	uint32_t seen = 0;

	for (;;) {
		seen = wait_word(&p->job, seen, false, &p->job_sleepers);
		if (atomic_load(&p->stop))
			return NULL;
		int n = (int)(seen & 0xffu);
		if (me->t >= n)
			continue;
		keep_off(p, atomic_load_explicit(&p->caller_cpu, memory_order_relaxed));
		p->fn(p->ctx, me->t, n);
		if (atomic_fetch_sub(&p->left, 1) == 1 && atomic_load(&p->caller_sleeps))
			futex_wake(&p->left, 1);
	}
}

static void post(struct pool *p, uint32_t active)
{
	uint32_t count = (atomic_load(&p->job) >> 8) + 1;
	atomic_store(&p->job, count << 8 | active);
	if (atomic_load(&p->job_sleepers))
		futex_wake(&p->job, POOL_MAX_THREADS);
}

void pool_run(struct pool *p, int n, void (*fn)(void *ctx, int t, int n), void *ctx)
{
	if (n <= 1) {
		fn(ctx, 0, 1);
		return;
	}
	p->fn = fn;
	p->ctx = ctx;
	atomic_store(&p->left, (uint32_t)n - 1);
	atomic_store_explicit(&p->caller_cpu, sched_getcpu(), memory_order_relaxed);
	post(p, (uint32_t)n);
	fn(ctx, 0, n);
	(void)wait_word(&p->left, 0, true, &p->caller_sleeps);
}

int pool_new(int n_threads, struct pool **ret)
{
	if (n_threads < 1 || n_threads > POOL_MAX_THREADS)
		return -EINVAL;
	struct pool *p = NULL;
	if (posix_memalign((void **)&p, 64, sizeof *p) != 0)
		return -ENOMEM;
	*p = (struct pool){.n = 1};
	p->roomy = sched_getaffinity(0, sizeof p->allowed, &p->allowed) == 0 && CPU_COUNT(&p->allowed) >= n_threads;
	p->workers = calloc((size_t)n_threads, sizeof *p->workers);
	if (!p->workers) {
		free(p);
		return -ENOMEM;
	}
	for (int t = 1; t < n_threads; t++) {
		struct worker *w = &p->workers[t - 1];
		*w = (struct worker){.pool = p, .t = t};
		int r = pthread_create(&w->thread, NULL, worker_main, w);
		if (r != 0) {
			pool_free(p);
			return -r;
		}
		p->n = t + 1;
	}
	*ret = p;
	return 0;
}

struct pool *pool_free(struct pool *p)
{
	if (!p)
		return NULL;
	atomic_store(&p->stop, true);
	post(p, 0);
	for (int t = 1; t < p->n; t++)
		(void)pthread_join(p->workers[t - 1].thread, NULL);
	free(p->workers);
	free(p);
	return NULL;
}
