/* Making a CPU device: pick the ISA path, start the pool.
 *
 * A path is chosen once, here; the files of a path are compiled always and run
 * only where cpuid says they may.
 */
#include "kernels/cpu/cpu.h"
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
		       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx2") &&
		       __builtin_cpu_supports("fma");
#endif
	return isa == ISA_PORTABLE;
}

static const struct cpu_kernels *kernels_of(enum dev_isa isa)
{
#if defined(__x86_64__) && !defined(REDRAFT_DOUBLE)
	if (isa == ISA_AVX2)
		return &cpu_kernels_avx2;
	if (isa == ISA_AVX512)
		return &cpu_kernels_avx512;
#endif
	(void)isa;
	return &cpu_kernels_portable;
}

int dev_cpu_new(int threads, enum dev_isa isa, struct dev **ret)
{
	if (isa == ISA_AUTO)
		isa = cpu_has(ISA_AVX512) ? ISA_AVX512 : cpu_has(ISA_AVX2) ? ISA_AVX2 : ISA_PORTABLE;
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
	c->k = kernels_of(isa);
	c->max_threads = threads;
	*d = (struct dev){.ops = &ops_cpu, .impl = c, .n_threads = threads, .isa = isa};
	*ret = d;
	return 0;
}

struct dev *dev_free(struct dev *d)
{
	if (!d)
		return NULL;
	struct cpu *c = cpu_of(d);
	pool_free(c->pool);
	cpu_rope_free(c->rope);
	cpu_arena_close(c->chunk);
	free(c->scratch);
	free(c);
	free(d);
	return NULL;
}

void dev_set_threads(struct dev *d, int n)
{
	d->n_threads = cpu_max(1, cpu_min(n, cpu_of(d)->max_threads));
}

static const char *const isa_names[] = {
	[ISA_AUTO] = "auto",
	[ISA_PORTABLE] = "portable",
	[ISA_AVX2] = "avx2",
	[ISA_AVX512] = "avx512",
};

const char *dev_isa_name(enum dev_isa isa)
{
	return (size_t)isa < sizeof isa_names / sizeof *isa_names ? isa_names[isa] : "?";
}

int dev_isa_parse(const char *name, enum dev_isa *ret)
{
	for (size_t i = 0; i < sizeof isa_names / sizeof *isa_names; i++)
		if (strcmp(name, isa_names[i]) == 0) {
			*ret = (enum dev_isa)i;
			return 0;
		}
	return -EINVAL;
}
