/* Memory, scratch, failure texts, and how many threads a piece of work is worth. */
#include "kernels/cpu/cpu.h"
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Below so much work each (about flops) a thread more costs more than it brings: so much for every thread that takes part, since all of them look at
 * one word, up to a limit. */
static const double WORK_EACH = 5e3, WORK_MOST = 60e3;

void *cpu_alloc_bytes(size_t bytes)
{
	void *p = NULL;
	size_t align = bytes >= CPU_HUGE ? (size_t)CPU_HUGE : 64;

	if (bytes > SIZE_MAX - CPU_HUGE || posix_memalign(&p, align, bytes ? cpu_round_up(bytes, align) : align) != 0)
		return NULL;
	if (bytes >= CPU_HUGE)
		(void)madvise(p, cpu_round_up(bytes, align), MADV_HUGEPAGE); /* a hint: worth 30 % at decode, not needed */
	memset(p, 0, bytes);
	return p;
}

int cpu_fail_memory(struct dev *d, const char *what, size_t bytes)
{
	(void)snprintf(d->error, sizeof d->error, "out of memory: %s, %zu bytes", what, bytes);
	return -ENOMEM;
}

int cpu_bad(struct dev *d, const char *what)
{
	(void)snprintf(d->error, sizeof d->error, "bad sizes: %s", what);
	return -EINVAL;
}

void *cpu_scratch(struct dev *d, size_t bytes)
{
	struct cpu *c = cpu_of(d);
	if (bytes <= c->scratch_bytes && c->scratch)
		return c->scratch;
	size_t want = cpu_round_up(bytes + bytes / 4, 1 << 16);
	void *p = cpu_alloc_bytes(want);
	if (!p) {
		(void)cpu_fail_memory(d, "scratch", want);
		return NULL;
	}
	free(c->scratch);
	c->scratch = p;
	c->scratch_bytes = want;
	return p;
}

int cpu_threads_for(const struct dev *d, double work)
{
	int n = d->n_threads;
	while (n > 1 && work < n * fmin(n * WORK_EACH, WORK_MOST))
		n--;
	return n;
}

void cpu_run(struct dev *d, double work, void (*fn)(void *ctx, int t, int n), void *ctx)
{
	if (d->between)
		d->between(d->between_arg);
	/* One thread calls a dev at a time: no read-modify-write is needed. */
	atomic_store_explicit(&d->beats, atomic_load_explicit(&d->beats, memory_order_relaxed) + 1, memory_order_relaxed);
	pool_run(cpu_of(d)->pool, cpu_threads_for(d, work), fn, ctx);
}
