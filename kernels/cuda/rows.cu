/* Row and elementwise kernels: norms, RoPE, the gate, copies.
 *
 * A norm is one block of 256 threads a row, thread t summing columns t, t+256, ...
 * and then a tree: an order of the width alone. The rest is elementwise.
 */
#include "kernels/cuda/kern.cuh"

static __global__ void rmsnorm_kernel(float *y, int ldy, float *rstd, const float *x, int ldx, const float *g, float eps, int H)
{
	__shared__ float red[THREADS / WARP];
	size_t m = blockIdx.x;
	const float *xr = x + m * (size_t)ldx;
	float *yr = y + m * (size_t)ldy;
	float sum = 0;
	for (int i = (int)threadIdx.x; i < H; i += THREADS)
		sum += xr[i] * xr[i];
	float r = 1 / sqrtf(block_sum(sum, red) / (float)H + eps);
	for (int i = (int)threadIdx.x; i < H; i += THREADS)
		yr[i] = xr[i] * r * g[i];
	if (rstd && threadIdx.x == 0)
		rstd[m] = r;
}

cudaError_t ck_rmsnorm(cudaStream_t s, float *y, int ldy, float *rstd, const float *x, int ldx, const float *g, float eps, int M, int H)
{
	LAUNCH(rmsnorm_kernel, (unsigned)M, THREADS, 0, s, y, ldy, rstd, x, ldx, g, eps, H);
	return cudaGetLastError();
}

/* y = x r g with r = rsqrt(mean(x²)+eps):  dx += g dy r - x r³/H (dy . g x) */
static __global__ void rmsnorm_dx_kernel(float *dx, int lddx, const float *dy, int lddy, const float *x, int ldx, const float *g, const float *rstd, int H)
{
	__shared__ float red[THREADS / WARP];
	size_t m = blockIdx.x;
	const float *xr = x + m * (size_t)ldx, *dyr = dy + m * (size_t)lddy;
	float *dxr = dx + m * (size_t)lddx;
	float dot = 0, r = rstd[m];
	for (int i = (int)threadIdx.x; i < H; i += THREADS)
		dot += dyr[i] * g[i] * xr[i];
	float c = block_sum(dot, red) * r * r * r / (float)H;
	for (int i = (int)threadIdx.x; i < H; i += THREADS)
		dxr[i] += g[i] * dyr[i] * r - xr[i] * c;
}

cudaError_t ck_rmsnorm_dx(cudaStream_t s, float *dx, int lddx, const float *dy, int lddy, const float *x, int ldx, const float *g, const float *rstd, int M, int H)
{
	LAUNCH(rmsnorm_dx_kernel, (unsigned)M, THREADS, 0, s, dx, lddx, dy, lddy, x, ldx, g, rstd, H);
	return cudaGetLastError();
}

/* dg_i += sum_m dy_mi x_mi r_m: runs of 64 rows first, then the runs in order */
static __global__ void rmsnorm_dg_part_kernel(float *part, const float *dy, int lddy, const float *x, int ldx, const float *rstd, int M, int H)
{
	int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), m0 = (int)blockIdx.y * CK_NORM_ROWS, m1 = m0 + CK_NORM_ROWS < M ? m0 + CK_NORM_ROWS : M;
	if (i >= H)
		return;
	float sum = 0;
	for (int m = m0; m < m1; m++)
		sum += dy[(size_t)m * (size_t)lddy + (size_t)i] * x[(size_t)m * (size_t)ldx + (size_t)i] * rstd[m];
	part[(size_t)blockIdx.y * (size_t)H + (size_t)i] = sum;
}

static __global__ void rmsnorm_dg_sum_kernel(float *dg, const float *part, int n_parts, int H)
{
	int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
	if (i >= H)
		return;
	float sum = 0;
	for (int p = 0; p < n_parts; p++)
		sum += part[(size_t)p * (size_t)H + (size_t)i];
	dg[i] += sum;
}

cudaError_t ck_rmsnorm_dg(cudaStream_t s, float *dg, float *part, const float *dy, int lddy, const float *x, int ldx, const float *rstd, int M, int H)
{
	int n_parts = (M + CK_NORM_ROWS - 1) / CK_NORM_ROWS;
	unsigned across = (unsigned)(H + THREADS - 1) / THREADS;
	LAUNCH(rmsnorm_dg_part_kernel, dim3(across, (unsigned)n_parts), THREADS, 0, s, part, dy, lddy, x, ldx, rstd, M, H);
	LAUNCH(rmsnorm_dg_sum_kernel, across, THREADS, 0, s, dg, part, n_parts, H);
	return cudaGetLastError();
}

/* One thread turns pair i of every head of a row: sine and cosine are worked out once. */
static __global__ void rope_kernel(float *x, int ldx, int nh, int half, const uint32_t *pos, const float *inv_freq, float mscale, int M, float sign)
{
	for (size_t at = grid_first(); at < (size_t)M * (size_t)half; at += grid_step()) {
		size_t m = at / (size_t)half, i = at % (size_t)half;
		float angle = (float)pos[m] * inv_freq[i], c = cosf(angle) * mscale, sn = sign * (sinf(angle) * mscale);
		float *p = x + m * (size_t)ldx + i;
		for (int h = 0; h < nh; h++, p += 2 * half) {
			float x0 = p[0], x1 = p[half];
			p[0] = x0 * c - x1 * sn;
			p[half] = x1 * c + x0 * sn;
		}
	}
}

cudaError_t ck_rope(cudaStream_t s, float *x, int ldx, int nh, int hd, const uint32_t *pos, const float *inv_freq, float mscale, int M, int inverse)
{
	LAUNCH(rope_kernel, grid_for((size_t)M * (size_t)(hd / 2)), THREADS, 0, s, x, ldx, nh, hd / 2, pos, inv_freq, mscale, M, inverse ? -1.0f : 1.0f);
	return cudaGetLastError();
}

static __global__ void silu_kernel(float *y, const float *gu, size_t n, int I)
{
	for (size_t at = grid_first(); at < n; at += grid_step()) {
		size_t m = at / (size_t)I, i = at % (size_t)I;
		float g = gu[2 * m * (size_t)I + i], u = gu[(2 * m + 1) * (size_t)I + i];
		y[at] = g / (1 + expf(-g)) * u;
	}
}

cudaError_t ck_silu_gate(cudaStream_t s, float *y, const float *gu, int M, int I)
{
	size_t n = (size_t)M * (size_t)I;
	LAUNCH(silu_kernel, grid_for(n), THREADS, 0, s, y, gu, n, I);
	return cudaGetLastError();
}

/* y = g s u, s = sigmoid(g):  dg = dy u s (1 + g (1 - s)), du = dy g s */
static __global__ void silu_back_kernel(float *dgu, const float *dy, const float *gu, size_t n, int I)
{
	for (size_t at = grid_first(); at < n; at += grid_step()) {
		size_t m = at / (size_t)I, i = at % (size_t)I, a = 2 * m * (size_t)I + i, b = a + (size_t)I;
		float g = gu[a], u = gu[b], sg = 1 / (1 + expf(-g));
		dgu[a] = dy[at] * u * (sg + g * sg * (1 - sg));
		dgu[b] = dy[at] * g * sg;
	}
}

cudaError_t ck_silu_gate_back(cudaStream_t s, float *dgu, const float *dy, const float *gu, int M, int I)
{
	size_t n = (size_t)M * (size_t)I;
	LAUNCH(silu_back_kernel, grid_for(n), THREADS, 0, s, dgu, dy, gu, n, I);
	return cudaGetLastError();
}

static __global__ void axpby_kernel(float *y, float a, const float *x, float b, size_t n)
{
	for (size_t i = grid_first(); i < n; i += grid_step())
		y[i] = a * x[i] + b * y[i];
}

cudaError_t ck_axpby(cudaStream_t s, float *y, float a, const float *x, float b, size_t n)
{
	LAUNCH(axpby_kernel, grid_for(n), THREADS, 0, s, y, a, x, b, n);
	return cudaGetLastError();
}

static __global__ void copy_rows_kernel(float *y, int ldy, const float *x, int ldx, const uint32_t *rows, size_t total, int n)
{
	for (size_t at = grid_first(); at < total; at += grid_step()) {
		size_t m = at / (size_t)n, i = at % (size_t)n;
		y[m * (size_t)ldy + i] = x[(rows ? rows[m] : m) * (size_t)ldx + i];
	}
}

cudaError_t ck_copy_rows(cudaStream_t s, float *y, int ldy, const float *x, int ldx, const uint32_t *rows, int M, int n)
{
	size_t total = (size_t)M * (size_t)n;
	LAUNCH(copy_rows_kernel, grid_for(total), THREADS, 0, s, y, ldy, x, ldx, rows, total, n);
	return cudaGetLastError();
}

static __global__ void embed_kernel(float *y, const void *w, int wide, const uint32_t *ids, const uint32_t *given, size_t total, int K)
{
	for (size_t at = grid_first(); at < total; at += grid_step()) {
		uint32_t id = ids[at / (size_t)K];
		if (id & CK_GIVEN)
			id = given[id & ~CK_GIVEN];
		y[at] = element(w, wide, (size_t)id * (size_t)K + at % (size_t)K);
	}
}

cudaError_t ck_embed(cudaStream_t s, float *y, const void *w, int wide, const uint32_t *ids, const uint32_t *given, int M, int K)
{
	size_t total = (size_t)M * (size_t)K;
	LAUNCH(embed_kernel, grid_for(total), THREADS, 0, s, y, w, wide, ids, given, total, K);
	return cudaGetLastError();
}

static __global__ void pad_rows_kernel(void *y, int wide, const float *x, int ldx, size_t have, size_t total, int K)
{
	for (size_t at = grid_first(); at < total; at += grid_step())
		put(y, wide, at, at < have ? x[at / (size_t)K * (size_t)ldx + at % (size_t)K] : 0);
}

cudaError_t ck_pad_rows(cudaStream_t s, void *y, int wide, const float *x, int ldx, int M, int rows, int K)
{
	size_t total = (size_t)rows * (size_t)K;
	LAUNCH(pad_rows_kernel, grid_for(total), THREADS, 0, s, y, wide, x, ldx, (size_t)M * (size_t)K, total, K);
	return cudaGetLastError();
}

static __global__ void unpad_rows_kernel(float *y, int ldy, const float *x, size_t total, int N, int add)
{
	for (size_t at = grid_first(); at < total; at += grid_step()) {
		float *to = y + at / (size_t)N * (size_t)ldy + at % (size_t)N;
		*to = add ? *to + x[at] : x[at];
	}
}

cudaError_t ck_unpad_rows(cudaStream_t s, float *y, int ldy, const float *x, int M, int N, int add)
{
	size_t total = (size_t)M * (size_t)N;
	LAUNCH(unpad_rows_kernel, grid_for(total), THREADS, 0, s, y, ldy, x, total, N, add);
	return cudaGetLastError();
}
