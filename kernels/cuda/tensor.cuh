/* Tensor cores by nvcuda::wmma, 16x16x16: bf16 factors in shared memory, sums in f32.
 *
 * Which element of a matrix a lane's fragment holds CUDA does not say; it is asked once, by loading a matrix whose elements
 * are their own places (struct places).
 *
 * The one piece of PTX in this folder is the load of a factor: wmma::load_matrix_sync of bf16 is compiled (CUDA 13.0) to four generic loads, and to
 * transposes in registers where the matrix lies the other way, since the compiler does not carry "shared" through that call as it does for f16. With the
 * word in the instruction it is one ldmatrix. Fragments are the same: mma.h makes them of the same instruction.
 */
#pragma once
#include "kernels/cuda/kern.cuh"
#include <cuda_bf16.h>
#include <mma.h>

using namespace nvcuda;

enum { SUB = 16 };
typedef __nv_bfloat16 bf16;
typedef wmma::fragment<wmma::matrix_a, SUB, SUB, SUB, bf16, wmma::row_major> factor_a;
typedef wmma::fragment<wmma::matrix_b, SUB, SUB, SUB, bf16, wmma::row_major> factor_b;  /* of the matrix as it lies */
typedef wmma::fragment<wmma::matrix_b, SUB, SUB, SUB, bf16, wmma::col_major> factor_bt; /* of its transpose */
typedef wmma::fragment<wmma::accumulator, SUB, SUB, SUB, float> sums;
enum { EACH = sums::num_elements };

#ifdef __CUDACC__
typedef unsigned shared_at; /* where something lies in shared memory: 32 bits, to which the instruction adds what is constant */
static __device__ inline shared_at at_shared(const bf16 *p)
{
	return (unsigned)__cvta_generic_to_shared(p);
}
#define LOAD_FACTOR(type, which)                                                                         \
	template <int LD> static __device__ inline void load_factor(type &f, shared_at base, int offset) \
	{                                                                                                \
		unsigned *r = (unsigned *)f.x;                                                           \
		asm volatile("wmma.load." which ".m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"     \
			     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                            \
			     : "r"(base + 2 * offset), "n"(LD)                                           \
			     : "memory");                                                                \
	}
LOAD_FACTOR(factor_a, "a.sync.aligned.row")
LOAD_FACTOR(factor_b, "b.sync.aligned.row")
LOAD_FACTOR(factor_bt, "b.sync.aligned.col")
#else
typedef const bf16 *shared_at;
static inline shared_at at_shared(const bf16 *p)
{
	return p;
}
template <int LD, class F> static inline void load_factor(F &f, shared_at base, int offset)
{
	wmma::load_matrix_sync(f, base + offset, LD);
}
#endif

/* Where this lane's elements of an accumulator lie in the 16x16, a byte each: row * 16 + column */
struct places {
	unsigned four[EACH / 4];
};

static __device__ inline int place_row(const struct places *p, int i)
{
	return (int)(p->four[i / 4] >> (i % 4 * 8 + 4) & 15);
}

static __device__ inline int place_column(const struct places *p, int i)
{
	return (int)(p->four[i / 4] >> (i % 4 * 8) & 15);
}

/* By way of 16 rows of f32 that nobody uses yet */
static __device__ inline struct places find_places(float *room, int ld)
{
	struct places p;
	sums f;
	int lane = (int)threadIdx.x % WARP;
	for (int i = lane; i < SUB * SUB; i += WARP)
		room[i / SUB * ld + i % SUB] = (float)i;
	__syncwarp();
	wmma::load_matrix_sync(f, room, ld, wmma::mem_row_major);
	UNROLL
	for (int i = 0; i < EACH; i += 4)
		p.four[i / 4] = (unsigned)f.x[i] | (unsigned)f.x[i + 1] << 8 | (unsigned)f.x[i + 2] << 16 | (unsigned)f.x[i + 3] << 24;
	__syncwarp();
	return p;
}

static __device__ inline unsigned two_bf16(float a, float b)
{
	union {
		__nv_bfloat162 h;
		unsigned u;
	} x = {__floats2bfloat162_rn(a, b)};
	return x.u;
}
