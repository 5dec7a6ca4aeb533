/* The online softmax that paged and TTT attention share.
 *
 * A block of 8 warps holds up to 32 query rows, four a warp. Keys come in blocks of
 * 32 at absolute positions, loaded once for all rows; lane j scores key j in one
 * chain over the head's channels, and lane c then adds the 32 values to
 * channels c, c+32, ... in the order of the keys. Masked keys are left out rather
 * than weighted with 0. Nothing of that depends on the other rows.
 */
#pragma once
#include "kernels/cuda/kern.cuh"

enum { CHANNELS = CK_MAX_D / WARP, PER_WARP = CK_TILE / CK_WARPS };

static __device__ inline int min_int(int a, int b)
{
	return a < b ? a : b;
}

static __device__ inline int max_int(int a, int b)
{
	return a > b ? a : b;
}

struct softmax_row {
	float max, sum, acc[CHANNELS];
};

static __device__ inline void softmax_clear(struct softmax_row *r)
{
	r->max = -INFINITY;
	r->sum = 0;
	UNROLL
	for (int i = 0; i < CHANNELS; i++)
		r->acc[i] = 0;
}

/* Keys lo..hi of a block whose k and v lie in shared memory, [32][d+1]; q [d] is times scale; p is the warp's, [32]. */
static __device__ inline void attend(struct softmax_row *r, const float *q, const float *k, const float *v, float *p, int d, int lo, int hi)
{
	int lane = (int)threadIdx.x % WARP, ld = d + 1;
	float s = -INFINITY;
	if (lane >= lo && lane <= hi) {
		s = 0;
		for (int c = 0; c < d; c++)
			s += q[c] * k[lane * ld + c];
	}
	float mx = fmaxf(r->max, warp_max(s)), keep = expf(r->max - mx), w = expf(s - mx);
	r->sum = r->sum * keep + warp_sum(w);
	r->max = mx;
	p[lane] = w;
	__syncwarp();
	UNROLL
	for (int i = 0; i < CHANNELS; i++) {
		int c = lane + i * WARP;
		float a = r->acc[i] * keep;
		for (int j = lo; j <= hi && c < d; j++)
			a += p[j] * v[j * ld + c];
		r->acc[i] = a;
	}
	__syncwarp();
}

/* sum over the head of a[c] b[c], the result in every lane */
static __device__ inline float warp_dot(const float *a, const float *b, int d)
{
	float s = 0;
	for (int c = (int)threadIdx.x % WARP; c < d; c += WARP)
		s += a[c] * b[c];
	return warp_sum(s);
}
