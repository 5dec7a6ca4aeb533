/* What the kernel tests share: one cmocka test per path (the CPU's ISA paths and CUDA; a
 * path that this machine or build lacks is skipped with a reason), seeded random arrays, and comparisons
 * that a NaN fails. References are naive loops in double.
 *
 * Where there is no GPU the CUDA path runs over tests/cuemu. Arrays come from kt_reals and the like
 * and go by kt_free: on a GPU they are memory that host and device both see, so that a test reads as
 * if there were one memory; for the same reason its device waits after each operation.
 */
#pragma once
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "kernels/ops.h"

enum { KT_MAX_THREADS = 3 };

/* Relative to the largest reference value (or 0.01). The double build proves the formulas. */
#ifdef REDRAFT_DOUBLE
#define KT_TOL(f32) (1e-12)
#else
#define KT_TOL(f32) (f32)
#endif

struct kt_path {
	enum dev_kind kind;
	enum dev_isa isa;
	enum dev_math math;
};
static const struct kt_path kt_paths[] = {{DEV_CPU, ISA_PORTABLE, MATH_STRICT}, {DEV_CPU, ISA_AVX2, MATH_STRICT}, {DEV_CPU, ISA_AVX512, MATH_STRICT},
					  {DEV_CUDA, ISA_AUTO, MATH_STRICT}, {DEV_CUDA, ISA_AUTO, MATH_FAST}, {DEV_CPU, ISA_AVX512_BF16, MATH_FAST},
					  {DEV_CPU, ISA_AVX512_BF16, MATH_STRICT}};

#define KT_TESTS(fn)                                                                          \
	{#fn "/portable", fn, NULL, NULL, (void *)(uintptr_t)&kt_paths[0]},                   \
		{#fn "/avx2", fn, NULL, NULL, (void *)(uintptr_t)&kt_paths[1]},               \
		{#fn "/avx512", fn, NULL, NULL, (void *)(uintptr_t)&kt_paths[2]},             \
		{#fn "/avx512-bf16", fn, NULL, NULL, (void *)(uintptr_t)&kt_paths[6]},        \
	{                                                                                     \
#fn "/cuda", fn, NULL, NULL, (void *)(uintptr_t)&kt_paths[3]                          \
	}

/* Where fast arithmetic takes a way of its own */
#define KT_FAST(fn) {#fn "/cuda fast", fn, NULL, NULL, (void *)(uintptr_t)&kt_paths[4]}
#define KT_FAST_CPU(fn) {#fn "/avx512-bf16 fast", fn, NULL, NULL, (void *)(uintptr_t)&kt_paths[5]}

static struct dev *kt_gpu; /* of the test that runs; NULL on the CPU */

/* Skipped where the machine or the build lacks it; a driver without the library for it is a failure. */
static inline struct dev *kt_open(const struct dev_options *o)
{
	struct errtext e = {""};
	struct dev *d = NULL;
	int r = dev_new(o, &d, &e);
	if (r == -ENOTSUP || r == -ENODEV) {
		print_message("skip: %s\n", e.text);
		skip();
	}
	if (r)
		fail_msg("%s", e.text);
	kt_gpu = d->kind == DEV_CUDA ? d : NULL;
	return d;
}

static inline struct dev *kt_dev(void **state, int threads)
{
	const struct kt_path *path = *state;
	struct dev *d = kt_open(&(struct dev_options){.kind = path->kind, .threads = threads, .isa = path->isa, .math = path->math, .wait = true});
	assert_int_equal(d->kind, path->kind);
	assert_int_equal(d->isa, path->isa);
	return d;
}

static inline bool kt_rounds_x(const struct dev *d) /* do bf16 weights meet bf16 activations? */
{
	return d->kind == DEV_CUDA || d->isa == ISA_AVX512_BF16;
}

static inline int kt_threads(const struct dev *d) /* up to which a test tries */
{
	return d->kind == DEV_CUDA ? 1 : KT_MAX_THREADS;
}

enum { KT_MAX_SHARED = 1024 };
static void *kt_shared[KT_MAX_SHARED]; /* what came from kt_gpu */

/* malloc'd exactly, so that the sanitizer sees a step past the end */
static inline void *kt_mem(size_t n, size_t size)
{
	if (n >= (size_t)1 << 32)
		abort();
	if (!kt_gpu) {
		void *p = malloc(n ? n * size : 1);
		assert_non_null(p);
		return p;
	}
	int i = 0;
	while (i < KT_MAX_SHARED - 1 && kt_shared[i])
		i++;
	assert_null(kt_shared[i]);
	kt_shared[i] = kt_gpu->ops->alloc_shared(kt_gpu, n * size);
	assert_non_null(kt_shared[i]);
	return kt_shared[i];
}

static inline void kt_free(void *p)
{
	for (int i = 0; kt_gpu && p && i < KT_MAX_SHARED; i++)
		if (kt_shared[i] == p) {
			kt_shared[i] = NULL;
			kt_gpu->ops->free(kt_gpu, p);
			return;
		}
	free(p);
}

static uint64_t kt_state = 0x9e3779b97f4a7c15u;

static inline void kt_seed(uint64_t s)
{
	print_message("seed %llu\n", (unsigned long long)s);
	kt_state = s * 0x9e3779b97f4a7c15u + 1;
}

static inline uint32_t kt_u32(void)
{
	kt_state ^= kt_state << 13;
	kt_state ^= kt_state >> 7;
	kt_state ^= kt_state << 17;
	return (uint32_t)(kt_state >> 32);
}

static inline double kt_uniform(void) /* [-1, 1) */
{
	return (double)kt_u32() / 2147483648.0 - 1.0;
}

static inline real *kt_reals(size_t n, double scale)
{
	real *p = kt_mem(n, sizeof *p);
	for (size_t i = 0; i < n; i++)
		p[i] = (real)(kt_uniform() * scale);
	return p;
}

static inline float *kt_floats(size_t n, double scale)
{
	if (n >= (size_t)1 << 32)
		abort();
	float *p = malloc(n ? n * sizeof *p : 1);
	assert_non_null(p);
	for (size_t i = 0; i < n; i++)
		p[i] = (float)(kt_uniform() * scale);
	return p;
}

static inline double *kt_doubles(size_t n)
{
	double *p = calloc(n ? n : 1, sizeof *p);
	assert_non_null(p);
	return p;
}

static inline real *kt_copy(const real *x, size_t n)
{
	real *p = kt_mem(n, sizeof *p);
	memcpy(p, x, n * sizeof *p);
	return p;
}

#define kt_close(a, b, n, tol) kt_close_at(a, b, n, tol, __FILE__, __LINE__)
static inline void kt_close_at(const real *a, const double *b, size_t n, double tol, const char *file, int line)
{
	double max = 0.01;
	for (size_t i = 0; i < n; i++)
		max = fabs(b[i]) > max ? fabs(b[i]) : max;
	for (size_t i = 0; i < n; i++)
		if (!(fabs((double)a[i] - b[i]) <= tol * max)) {
			print_error("element %zu of %zu: %.9g, reference %.9g, largest %.3g, tolerance %.3g\n", i, n, (double)a[i], b[i], max, tol);
			_fail(file, line);
		}
}

#define kt_same_bits(a, b, n) kt_same_bits_at(a, b, n, __FILE__, __LINE__)
static inline void kt_same_bits_at(const real *a, const real *b, size_t n, const char *file, int line)
{
	for (size_t i = 0; i < n; i++)
		if (memcmp(&a[i], &b[i], sizeof *a) != 0) {
			print_error("element %zu of %zu differs in its bits: %.9g and %.9g\n", i, n, (double)a[i], (double)b[i]);
			_fail(file, line);
		}
}
