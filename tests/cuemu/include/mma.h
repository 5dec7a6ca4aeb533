/* nvcuda::wmma on a CPU: the 16x16x16 shape with bf16 factors and f32 sums, as kernels/cuda uses it.
 *
 * A fragment is 8 elements a lane, as on a GPU; which element of the matrix each of them is CUDA does not say, and here it is
 * a scrambled order of its own, so that a kernel that relies on one shows. Every call is one that all 32 lanes of a warp must make, with the
 * same matrix and stride; else the process ends. Memory is aligned as CUDA asks: 32 bytes, strides of 16. None of the calls orders memory:
 * a load reads before its lanes have met, and a store writes after, so that a missing __syncwarp shows.
 */
#pragma once
#include <cuda_bf16.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

/* Of vector_types.h, which nvcc includes by itself */
struct alignas(16) uint4 {
	unsigned x, y, z, w;
};
struct alignas(16) float4 {
	float x, y, z, w;
};
#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif

namespace nvcuda {
namespace wmma {
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment {
	static_assert(M == 16 && N == 16 && K == 16, "the stand-in knows one shape");
	enum { num_elements = 8 };
	T x[num_elements];
};

/* Where element i of this lane lies in the 256 of the matrix: odd multipliers, so every place is taken once; accumulators differ from factors. */
static inline int place(int i, bool sums)
{
	unsigned at = cuemu::lane * 8 + (unsigned)i;
	return (int)(sums ? at * 77 + 19 : at * 45 + 101) & 255;
}

struct meeting {
	float a[256], b[256], c[256];
	const void *what[32];
	unsigned stride[32];
};

/* Of this lane's warp, in turns, so that one meeting's numbers outlast the next one's beginning */
static inline meeting &room(bool next)
{
	static meeting rooms[32][2];
	static unsigned char turn[1024];
	unsigned i = cuemu::tid.x + cuemu::bdim.x * (cuemu::tid.y + cuemu::bdim.y * cuemu::tid.z);
	if (next)
		turn[i] ^= 1;
	return rooms[i / 32][turn[i]];
}

[[noreturn]] static inline void die(const char *why)
{
	fprintf(stderr, "cuemu: wmma: %s (block %u,%u thread %u)\n", why, cuemu::bid.x, cuemu::bid.y, cuemu::tid.x);
	abort();
}

/* All lanes are here, with the same matrix. */
static inline void meet(meeting &m, const void *what, unsigned stride)
{
	m.what[cuemu::lane] = what;
	m.stride[cuemu::lane] = stride;
	(void)cuemu::exchange(0xffffffffu, 0, 0);
	for (int j = 0; j < 32; j++)
		if (m.what[j] != what || m.stride[j] != stride)
			die("lanes of one call name different matrices");
}

template <class T> static inline void aligned(const T *p, unsigned stride)
{
	if ((uintptr_t)p % 32 || stride * sizeof(T) % 16)
		die("a matrix that is not aligned to 32 bytes, or a stride that is no multiple of 16");
}

template <class F, class T> static inline void fill_fragment(F &f, T v)
{
	for (int i = 0; i < F::num_elements; i++)
		f.x[i] = v;
}

/* Rows of the matrix follow one another in memory, or columns do */
static inline size_t offset(int at, unsigned stride, bool by_rows)
{
	size_t row = (size_t)(at / 16), col = (size_t)(at % 16);
	return by_rows ? row * stride + col : col * stride + row;
}

template <class U> struct is_row_major { static const bool yes = false; };
template <> struct is_row_major<row_major> { static const bool yes = true; };

template <class Use, class T, class L> static inline void load_matrix_sync(fragment<Use, 16, 16, 16, T, L> &f, const T *p, unsigned stride)
{
	aligned(p, stride);
	for (int i = 0; i < 8; i++)
		f.x[i] = p[offset(place(i, false), stride, is_row_major<L>::yes)];
	meet(room(true), p, stride);
}

static inline void load_matrix_sync(fragment<accumulator, 16, 16, 16, float> &f, const float *p, unsigned stride, layout_t how)
{
	aligned(p, stride);
	for (int i = 0; i < 8; i++)
		f.x[i] = p[offset(place(i, true), stride, how == mem_row_major)];
	meet(room(true), p, stride);
}

static inline void store_matrix_sync(float *p, const fragment<accumulator, 16, 16, 16, float> &f, unsigned stride, layout_t how)
{
	aligned(p, stride);
	meet(room(true), p, stride);
	for (int i = 0; i < 8; i++)
		p[offset(place(i, true), stride, how == mem_row_major)] = f.x[i];
}

/* d = a b + c: products exact, sums in f32 in the order of k */
template <class LA, class LB>
static inline void mma_sync(fragment<accumulator, 16, 16, 16, float> &d, const fragment<matrix_a, 16, 16, 16, __nv_bfloat16, LA> &a,
			    const fragment<matrix_b, 16, 16, 16, __nv_bfloat16, LB> &b, const fragment<accumulator, 16, 16, 16, float> &c)
{
	meeting &m = room(true);
	for (int i = 0; i < 8; i++) {
		int at = place(i, false);
		m.a[at] = __bfloat162float(a.x[i]);
		m.b[at % 16 * 16 + at / 16] = __bfloat162float(b.x[i]); /* by columns */
	}
	meet(m, "mma_sync", 0);
	for (int i = 0; i < 8; i++) {
		int at = place(i, true);
		const float *x = m.a + at / 16 * 16, *y = m.b + at % 16 * 16;
		float sum = c.x[i];
		for (int k = 0; k < 16; k++)
			sum += x[k] * y[k];
		d.x[i] = sum;
	}
}
} // namespace wmma
} // namespace nvcuda
