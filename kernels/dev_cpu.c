/* Making a CPU device: pick the ISA path, start the pool.
 *
 * A path is chosen once, here; the files of a path are compiled always and run
 * only where cpuid says they may. Which one it is never depends on a measurement: a learner repeats its steps bit for bit
 * after a crash only on the path that took them.
 */
#include "kernels/cpu/cpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const struct ops ops_cpu;

static bool cpu_has(enum dev_isa isa)
{
#if defined(__x86_64__) && !defined(REDRAFT_DOUBLE)
	if (isa == ISA_AVX2)
		return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
	if (isa == ISA_AVX512)
		return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
		       __builtin_cpu_supports("avx512dq") && cpu_has(ISA_AVX2);
	if (isa == ISA_AVX512_BF16)
		return __builtin_cpu_supports("avx512bf16") && cpu_has(ISA_AVX512);
#endif
	return isa == ISA_PORTABLE;
}

/* An Emerald Rapids begins a vdpbf16ps every other cycle, or two fmas each: half as many products in pairs as in f32 (kernels/README.md has
 * what comes of it). Intel's others are taken to be alike. A Zen 4 begins one of either: twice as many. */
static enum dev_isa fastest(void)
{
	bool pairs = cpu_has(ISA_AVX512_BF16);
#if defined(__x86_64__)
	pairs = pairs && !__builtin_cpu_is("intel");
#endif
	return pairs ? ISA_AVX512_BF16 : cpu_has(ISA_AVX512) ? ISA_AVX512 : cpu_has(ISA_AVX2) ? ISA_AVX2 : ISA_PORTABLE;
}

static struct cpu_kernels kernels_of(enum dev_isa isa)
{
	struct cpu_kernels k = cpu_kernels_portable;
#if defined(__x86_64__) && !defined(REDRAFT_DOUBLE)
	if (isa == ISA_AVX2)
		k = cpu_kernels_avx2;
	if (isa == ISA_AVX512 || isa == ISA_AVX512_BF16)
		k = cpu_kernels_avx512;
	if (isa == ISA_AVX512_BF16)
		cpu_kernels_add_pairs(&k);
#endif
	(void)isa;
	return k;
}

static struct dev *close_dev(struct dev *d)
{
	struct cpu *c = cpu_of(d);
	pool_free(c->pool);
	cpu_rope_free(c->rope);
	cpu_arena_close(c->chunk);
	free(c->scratch);
	free(c);
	free(d);
	return NULL;
}

static int again(struct dev *d, struct dev **ret)
{
	int r = dev_cpu_new(1, d->isa, ret);
	if (!r)
		dev_cpu_math(*ret, d->math);
	return r;
}

void dev_cpu_math(struct dev *d, enum dev_math math)
{
	int n = cpu_of(d)->max_threads;
	d->math = cpu_of(d)->k->dot_pairs ? math : MATH_STRICT;
	(void)snprintf(d->about, sizeof d->about, "cpu %s, %s%d thread%s", dev_isa_name(d->isa), d->math == MATH_FAST ? "fast, " : "", n, n == 1 ? "" : "s");
}

int dev_cpu_new(int threads, enum dev_isa isa, struct dev **ret)
{
	if (isa == ISA_AUTO)
		isa = fastest();
	if (!cpu_has(isa))
		return -ENOTSUP;
	struct dev *d = calloc(1, sizeof *d);
	struct cpu *c = calloc(1, sizeof *c);
	if (!d || !c) {
		free(d);
		free(c);
		return -ENOMEM;
	}
	int r = pool_new(threads, &c->pool);
	if (r < 0) {
		free(d);
		free(c);
		return r;
	}
	c->kernels = kernels_of(isa);
	c->k = &c->kernels;
	c->max_threads = threads;
	*d = (struct dev){.ops = &ops_cpu, .impl = c, .kind = DEV_CPU, .n_threads = threads, .isa = isa, .close = close_dev, .again = again};
	dev_cpu_math(d, MATH_STRICT);
	*ret = d;
	return 0;
}

void dev_set_threads(struct dev *d, int n)
{
	if (d->kind != DEV_CPU)
		return;
	d->n_threads = cpu_max(1, cpu_min(n, cpu_of(d)->max_threads));
}
