/* What the kernel tests share: one cmocka test per ISA path (a path that this CPU
 * or build lacks is skipped with a reason), seeded random arrays, and comparisons
 * that a NaN fails. References are naive loops in double.
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

static const enum dev_isa kt_isas[] = {ISA_PORTABLE, ISA_AVX2, ISA_AVX512};

#define KT_TESTS(fn)                                                                          \
	{#fn "/portable", fn, NULL, NULL, (void *)(uintptr_t)&kt_isas[0]},                    \
		{#fn "/avx2", fn, NULL, NULL, (void *)(uintptr_t)&kt_isas[1]},                \
	{                                                                                     \
#fn "/avx512", fn, NULL, NULL, (void *)(uintptr_t)&kt_isas[2]                         \
	}

static inline struct dev *kt_dev(void **state, int threads)
{
	enum dev_isa isa = *(const enum dev_isa *)*state;
	struct dev *d = NULL;
	int r = dev_cpu_new(threads, isa, &d);
	if (r == -ENOTSUP) {
		print_message("skip: this CPU or build has no %s path\n", dev_isa_name(isa));
		skip();
	}
	assert_int_equal(r, 0);
	assert_int_equal(d->isa, isa);
	return d;
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

/* malloc'd exactly, so that the sanitizer sees a step past the end */
static inline real *kt_reals(size_t n, double scale)
{
	if (n >= (size_t)1 << 32)
		abort();
	real *p = malloc(n ? n * sizeof *p : 1);
	assert_non_null(p);
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
	if (n >= (size_t)1 << 32)
		abort();
	real *p = malloc(n ? n * sizeof *p : 1);
	assert_non_null(p);
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
