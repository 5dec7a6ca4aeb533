/* The K largest of a row and its log-sum-exp: one block of 256 threads a row.
 *
 * A value and its index make one 64-bit key, larger is better, and no two are
 * equal: ties go to the lower index by themselves, and NaN is made -inf. The K-th
 * largest key is found byte by byte from the top (a radix select: count, walk the
 * counts from above, keep the byte where K falls), usually in three passes over
 * the row; then every key from there up is collected and the K are sorted.
 */
#include "kernels/cuda/kern.cuh"

static __device__ inline uint64_t key_of(float v, uint32_t i)
{
	union bits32 x;
	x.f = v == v ? v + 0.0f : -INFINITY; /* -0 + 0 is 0: equal values get equal bits */
	uint32_t u = x.u & 0x80000000u ? ~x.u : x.u | 0x80000000u;
	return (uint64_t)u << 32 | (uint32_t)~i;
}

/* The smallest key that belongs to the K largest, found in shared state. */
struct select {
	unsigned count[256];
	unsigned need, taken; /* still to be found below what the prefix holds; collected so far */
	int shift;            /* of the byte just decided; -1: not one more needed */
	uint64_t prefix;
};

static __device__ void select_byte(struct select *s, const float *x, int N, int shift)
{
	uint64_t above = shift == 56 ? 0 : ~(uint64_t)0 << (shift + 8);
	s->count[threadIdx.x] = 0;
	__syncthreads();
	for (int i = (int)threadIdx.x; i < N; i += THREADS) {
		uint64_t k = key_of(x[i], (uint32_t)i);
		if ((k & above) == s->prefix)
			atomicAdd(&s->count[(k >> shift) & 255], 1u);
	}
	__syncthreads();
	if (threadIdx.x == 0) {
		int b = 255;
		while (s->count[b] < s->need)
			s->need -= s->count[b--];
		s->prefix |= (uint64_t)b << shift;
		s->shift = s->count[b] == s->need ? -1 : shift; /* all of this byte's: no lower byte matters */
	}
	__syncthreads();
}

static __device__ void sort_down(uint64_t *key, int n)
{
	for (int size = 2; size <= n; size *= 2)
		for (int d = size / 2; d; d /= 2) {
			for (int i = (int)threadIdx.x; i < n; i += THREADS) {
				int j = i ^ d;
				bool down = (i & size) == 0;
				if (j > i && (key[i] < key[j]) == down) {
					uint64_t t = key[i];
					key[i] = key[j];
					key[j] = t;
				}
			}
			__syncthreads();
		}
}

static __global__ void topk_kernel(uint32_t *ids, float *vals, const float *x, int ldx, int N, int K, int K2)
{
	__shared__ struct select s;
	__shared__ uint64_t key[CK_TOPK_MAX];
	size_t m = blockIdx.x;
	const float *xr = x + m * (size_t)ldx;
	if (threadIdx.x == 0) {
		s.need = (unsigned)K;
		s.taken = 0;
		s.prefix = 0;
		s.shift = 64;
	}
	__syncthreads();
	for (int shift = 56; shift >= 0 && s.shift >= 0; shift -= 8)
		select_byte(&s, xr, N, shift);
	for (int i = (int)threadIdx.x; i < K2; i += THREADS)
		key[i] = 0;
	__syncthreads();
	for (int i = (int)threadIdx.x; i < N; i += THREADS) {
		uint64_t k = key_of(xr[i], (uint32_t)i);
		if (k >= s.prefix)
			key[atomicAdd(&s.taken, 1u)] = k;
	}
	__syncthreads();
	sort_down(key, K2);
	for (int i = (int)threadIdx.x; i < K; i += THREADS) {
		uint32_t id = ~(uint32_t)key[i];
		if (ids)
			ids[m * (size_t)K + (size_t)i] = id;
		if (vals)
			vals[m * (size_t)K + (size_t)i] = xr[id] == xr[id] ? xr[id] : -INFINITY;
	}
}

static __global__ void lse_kernel(float *lse, const float *x, int ldx, int N)
{
	__shared__ float red[THREADS / WARP];
	const float *xr = x + (size_t)blockIdx.x * (size_t)ldx;
	float mx = -INFINITY, sum = 0;
	for (int i = (int)threadIdx.x; i < N; i += THREADS)
		mx = fmaxf(mx, xr[i]);
	mx = block_max(mx, red);
	for (int i = (int)threadIdx.x; i < N; i += THREADS)
		sum += expf(xr[i] - mx);
	sum = block_sum(sum, red);
	if (threadIdx.x == 0)
		lse[blockIdx.x] = (float)((double)mx + log((double)sum));
}

cudaError_t ck_topk(cudaStream_t s, uint32_t *ids, float *vals, float *lse, const float *x, int ldx, int M, int N, int K)
{
	int K2 = 1;
	while (K2 < K)
		K2 *= 2;
	if (K && (ids || vals))
		LAUNCH(topk_kernel, (unsigned)M, THREADS, 0, s, ids, vals, x, ldx, N, K, K2);
	if (lse)
		LAUNCH(lse_kernel, (unsigned)M, THREADS, 0, s, lse, x, ldx, N);
	return cudaGetLastError();
}

/* A thread a row: there are few, and few of each. */
static __global__ void name_kernel(uint32_t *ids, float *logp, uint32_t *first, const uint32_t *best, const float *vals, const float *lse, const uint32_t *names, int M,
				   int N, int K)
{
	for (size_t m = grid_first(); m < (size_t)M; m += grid_step()) {
		float l = lse[m];
		bool fine = l - l == 0;
		for (size_t at = m * (size_t)K; at < (m + 1) * (size_t)K; at++) {
			ids[at] = fine && best[at] < (uint32_t)N ? names[best[at]] : CK_NO_NAME;
			logp[at] = vals[at] - l;
		}
		if (first)
			first[m] = fine && best[m * (size_t)K] < (uint32_t)N ? names[best[m * (size_t)K]] : 0;
	}
}

cudaError_t ck_name(cudaStream_t s, uint32_t *ids, float *logp, uint32_t *first, const uint32_t *best, const float *vals, const float *lse, const uint32_t *names,
		    int M, int N, int K)
{
	LAUNCH(name_kernel, grid_for((size_t)M), THREADS, 0, s, ids, logp, first, best, vals, lse, names, M, N, K);
	return cudaGetLastError();
}
