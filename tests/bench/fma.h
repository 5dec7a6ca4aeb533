/* The arithmetic limit of this machine: a loop of independent FMAs, as wide as a path's vectors are. */
#pragma once
#include "kernels/cpu/pool.h"
#include "kernels/dev.h"

typedef float f4 __attribute__((vector_size(16)));
typedef float f8 __attribute__((vector_size(32)));
typedef float f16 __attribute__((vector_size(64)));
static volatile double fma_sink;

enum { FMA_ROUNDS = 1 << 20 };

#define FMA_LOOP(name, type, target_name)                                                                     \
	__attribute__((target(target_name))) static void name(void *ctx, int t, int n)                        \
	{                                                                                                     \
		type acc[12], a = (type){0} + 0.999f, b = (type){0} + 0.001f;                                 \
		(void)ctx, (void)n;                                                                           \
		for (int j = 0; j < 12; j++)                                                                  \
			acc[j] = (type){0} + (float)(j + t);                                                  \
		for (int i = 0; i < FMA_ROUNDS; i++)                                                          \
			for (int j = 0; j < 12; j++)                                                          \
				acc[j] = acc[j] * a + b;                                                      \
		for (int j = 1; j < 12; j++)                                                                  \
			acc[0] += acc[j];                                                                     \
		fma_sink = (double)acc[0][0];                                                                     \
	}
#pragma GCC push_options
#pragma GCC optimize("O3", "fp-contract=fast")
#if defined(__x86_64__)
FMA_LOOP(fma_avx2, f8, "avx2,fma")
FMA_LOOP(fma_avx512, f16, "avx512f,fma")
#else
#define fma_avx2 fma_plain
#define fma_avx512 fma_plain
#endif
static void fma_plain(void *ctx, int t, int n)
{
	f4 acc[12], a = (f4){0} + 0.999f, b = (f4){0} + 0.001f;
	(void)ctx, (void)n;
	for (int j = 0; j < 12; j++)
		acc[j] = (f4){0} + (float)(j + t);
	for (int i = 0; i < FMA_ROUNDS; i++)
		for (int j = 0; j < 12; j++)
			acc[j] = acc[j] * a + b;
	for (int j = 1; j < 12; j++)
		acc[0] += acc[j];
	fma_sink = (double)acc[0][0];
}
#pragma GCC pop_options

/* Flop a second of `threads` threads together, by the caller's clock */
static double fma_rate(struct pool *pool, int threads, enum dev_isa isa, double (*clock)(void))
{
	bool wide = isa == ISA_AVX512 || isa == ISA_AVX512_BF16;
	int lanes = wide ? 16 : isa == ISA_AVX2 ? 8 : 4;
	double t = clock();
	pool_run(pool, threads, wide ? fma_avx512 : isa == ISA_AVX2 ? fma_avx2 : fma_plain, NULL);
	return 2.0 * 12 * lanes * FMA_ROUNDS * threads / (clock() - t);
}
