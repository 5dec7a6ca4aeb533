/* What the kernels share. The same text is compiled by nvcc for a GPU and by g++
 * over tests/cuemu for a machine without one; LAUNCH is the only difference.
 */
#pragma once
#include "kernels/cuda/kern.h"
#include <math.h>

#ifdef __CUDACC__
#define LAUNCH(kernel, grid, block, shared, stream, ...) kernel<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__)
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) float name[]
#define UNROLL _Pragma("unroll")
#define UNROLL_BY_(n) _Pragma(#n)
#define UNROLL_BY(n) UNROLL_BY_(unroll n)
#else
#define UNROLL
#define UNROLL_BY(n)
#endif

enum { WARP = 32 };
#define FULL 0xffffffffu

static __device__ inline float warp_sum(float v)
{
	for (int o = WARP / 2; o; o >>= 1)
		v += __shfl_xor_sync(FULL, v, o);
	return v;
}

static __device__ inline double warp_sum_double(double v)
{
	for (int o = WARP / 2; o; o >>= 1)
		v += __shfl_xor_sync(FULL, v, o);
	return v;
}

static __device__ inline float warp_max(float v)
{
	for (int o = WARP / 2; o; o >>= 1)
		v = fmaxf(v, __shfl_xor_sync(FULL, v, o));
	return v;
}

/* Over a block of 256 threads, the result in every thread; red holds 8. */
enum { THREADS = 256 };
static __device__ inline float block_sum(float v, float *red)
{
	v = warp_sum(v);
	__syncthreads(); /* red may still be read from the call before */
	if (threadIdx.x % WARP == 0)
		red[threadIdx.x / WARP] = v;
	__syncthreads();
	return ((red[0] + red[1]) + (red[2] + red[3])) + ((red[4] + red[5]) + (red[6] + red[7]));
}

static __device__ inline double block_sum_double(double v, double *red)
{
	v = warp_sum_double(v);
	__syncthreads();
	if (threadIdx.x % WARP == 0)
		red[threadIdx.x / WARP] = v;
	__syncthreads();
	return ((red[0] + red[1]) + (red[2] + red[3])) + ((red[4] + red[5]) + (red[6] + red[7]));
}

static __device__ inline float block_max(float v, float *red)
{
	v = warp_max(v);
	__syncthreads();
	if (threadIdx.x % WARP == 0)
		red[threadIdx.x / WARP] = v;
	__syncthreads();
	return fmaxf(fmaxf(fmaxf(red[0], red[1]), fmaxf(red[2], red[3])), fmaxf(fmaxf(red[4], red[5]), fmaxf(red[6], red[7])));
}

union bits32 {
	float f;
	uint32_t u;
};

static __device__ inline float bf16_float(uint16_t h)
{
	union bits32 x;
	x.u = (uint32_t)h << 16;
	return x.f;
}

/* nearest even; a NaN stays one: the same as f32_to_bf16 of ops.h */
static __device__ inline uint16_t float_bf16(float f)
{
	union bits32 x;
	x.f = f;
	if ((x.u & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)((x.u >> 16) | 0x40u);
	return (uint16_t)((x.u + 0x7fffu + ((x.u >> 16) & 1u)) >> 16);
}

/* Element i of an array of f32 (wide) or bf16 */
static __device__ inline float element(const void *p, int wide, size_t i)
{
	return wide ? ((const float *)p)[i] : bf16_float(((const uint16_t *)p)[i]);
}

static __device__ inline void put(void *p, int wide, size_t i, float v)
{
	if (wide)
		((float *)p)[i] = v;
	else
		((uint16_t *)p)[i] = float_bf16(v);
}

/* Elementwise kernels go over n in strides of the grid. */
static __device__ inline size_t grid_first(void)
{
	return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ inline size_t grid_step(void)
{
	return (size_t)gridDim.x * blockDim.x;
}

static inline unsigned grid_for(size_t n)
{
	size_t blocks = (n + THREADS - 1) / THREADS;
	return (unsigned)(blocks < 1 ? 1 : blocks > 4096 ? 4096 : blocks);
}
