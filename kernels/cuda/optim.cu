/* The sum of squares and AdamW: kernels/cpu/train.c on a GPU. */
#include "kernels/cuda/kern.cuh"

static __global__ void sumsq_kernel(double *part, const float *x, size_t n)
{
	__shared__ double red[THREADS / WARP];
	size_t first = (size_t)blockIdx.x * CK_SUM_BLOCK;
	double sum = 0;
	for (size_t i = first + threadIdx.x; i < n && i < first + CK_SUM_BLOCK; i += THREADS)
		sum += (double)x[i] * (double)x[i];
	sum = block_sum_double(sum, red);
	if (threadIdx.x == 0)
		part[blockIdx.x] = sum;
}

cudaError_t ck_sumsq(cudaStream_t s, double *part, const float *x, size_t n)
{
	LAUNCH(sumsq_kernel, (unsigned)((n + CK_SUM_BLOCK - 1) / CK_SUM_BLOCK), THREADS, 0, s, part, x, n);
	return cudaGetLastError();
}

static __global__ void adamw_kernel(float *w, float *m, float *v, const float *g, size_t n, struct ck_adamw c)
{
	for (size_t i = grid_first(); i < n; i += grid_step()) {
		float gi = g[i] * c.gscale;
		float mi = c.beta1 * m[i] + (1 - c.beta1) * gi, vi = c.beta2 * v[i] + (1 - c.beta2) * gi * gi;
		m[i] = mi;
		v[i] = vi;
		w[i] = w[i] * c.decay - c.lr * mi / (sqrtf(vi * c.ic2) + c.eps);
	}
}

cudaError_t ck_adamw(cudaStream_t s, float *w, float *m, float *v, const float *g, size_t n, struct ck_adamw c)
{
	LAUNCH(adamw_kernel, grid_for(n), THREADS, 0, s, w, m, v, g, n, c);
	return cudaGetLastError();
}
