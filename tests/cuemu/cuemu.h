/* CUDA's execution model on a CPU: included before a .cu file by g++ (-include).
 *
 * A thread of a block is a fiber with a stack of its own; blocks run one after the
 * other, all on whichever OS thread drains the stream. So `__shared__` is a plain
 * static, an atomic a plain read-modify-write, and a sanitizer sees every array.
 * Threads run until they wait at a barrier. What a GPU leaves undefined ends the
 * process here, with the kernel, block and thread named: a barrier that not all
 * threads reach, a warp call with lanes missing, a block that is no multiple of 32.
 * Every other block runs its threads from the last to the first, so that a
 * missing barrier shows in the result. Dynamic shared memory starts as NaN.
 * Tensor cores are in include/mma.h. Not covered: inline PTX, partial warp masks, the memory model.
 */
#pragma once
#include <cuda_runtime_api.h>
#include <cmath>
#include <cstring>
#include <functional>
#include <tuple>

#define __global__
#define __device__
#define __shared__ static

struct uint3 {
	unsigned x, y, z;
};
struct dim3 {
	unsigned x, y, z;
	dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

namespace cuemu {
extern uint3 tid, bid;
extern dim3 bdim, gdim;
extern float *dynamic;
extern unsigned lane;

void launch(const char *kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t s, std::function<void()> body);
void block_barrier();
int block_count(int p); /* barrier; how many threads said p */
/* All 32 lanes give 8 bytes and get those of lane `from`. */
uint64_t exchange(unsigned mask, uint64_t mine, unsigned from);

/* Arguments are taken at the launch, the kernel may run later. */
template <class... P, class... A> void call(const char *name, dim3 grid, dim3 block, size_t shared, cudaStream_t s, void (*kernel)(P...), A... a)
{
	std::tuple<P...> args(a...);
	launch(name, grid, block, shared, s, [kernel, args]() { std::apply(kernel, args); });
}
} // namespace cuemu

#define threadIdx (cuemu::tid)
#define blockIdx (cuemu::bid)
#define blockDim (cuemu::bdim)
#define gridDim (cuemu::gdim)
#define LAUNCH(kernel, grid, block, shared, stream, ...) cuemu::call(#kernel, (grid), (block), (shared), (stream), kernel, __VA_ARGS__)
#define DYNAMIC_SHARED(name) float *name = cuemu::dynamic

static inline void __syncthreads()
{
	cuemu::block_barrier();
}

static inline int __syncthreads_or(int p)
{
	return cuemu::block_count(p) != 0;
}

static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
	(void)cuemu::exchange(mask, 0, 0);
}

template <class T> static inline T __shfl_sync(unsigned mask, T v, int from)
{
	uint64_t bits = 0;
	static_assert(sizeof v <= 8, "");
	memcpy(&bits, &v, sizeof v);
	bits = cuemu::exchange(mask, bits, (unsigned)from & 31);
	memcpy(&v, &bits, sizeof v);
	return v;
}

template <class T> static inline T __shfl_xor_sync(unsigned mask, T v, int x)
{
	return __shfl_sync(mask, v, (int)cuemu::lane ^ x);
}

/* Not fused: draw.cu, which asks for that, is compiled without contraction. */
static inline double __dadd_rn(double a, double b)
{
	return a + b;
}

static inline double __dsub_rn(double a, double b)
{
	return a - b;
}

static inline double __dmul_rn(double a, double b)
{
	return a * b;
}

static inline long long __double_as_longlong(double v)
{
	long long bits;
	memcpy(&bits, &v, sizeof bits);
	return bits;
}

static inline double __longlong_as_double(long long bits)
{
	double v;
	memcpy(&v, &bits, sizeof v);
	return v;
}

template <class T> static inline T atomicAdd(T *p, T v)
{
	T old = *p;
	*p = old + v;
	return old;
}

template <class T> static inline T atomicMin(T *p, T v)
{
	T old = *p;
	*p = v < old ? v : old;
	return old;
}
