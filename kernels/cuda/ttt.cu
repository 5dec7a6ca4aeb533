/* TTT attention on FP32 units: a causal trunk plus one diagonal key for each earlier step, forward
 * and backward (eagle3.md 3.3, 3.5). With the merged output O and log-sum-exp M:
 *   delta_t = dO_t . O_t,  P = exp(S - M),  dS = P (dO V' - delta)
 *   dQ = scale dS K,  dV += P' dO,  dK += scale dS' Q
 *
 * Three kernels backward, and no float atomics: dQ by blocks of query rows (as
 * forward), dK and dV of the trunk by blocks of 32 keys that walk the query rows in
 * order, and the diagonals by one warp a (row, kv head). Nothing quadratic is stored.
 *
 * A further block of trunk keys, as it comes round a ring of ranks, is the same with bounds
 * of its own for each row; its result is merged with what is there by the log-sum-exp.
 */
#include "kernels/cuda/ttt.cuh"

/* `rows` rows from `row` on of one head of x, times a, into shared memory [32][hd+1]; all threads take part */
static __device__ inline void load_rows(float *to, const struct ck_ttt *t, const float *x, int heads, int head, int row, int rows, float a)
{
	for (int i = (int)threadIdx.x; i < rows * t->hd; i += THREADS)
		to[i / t->hd * (t->hd + 1) + i % t->hd] = a * x[head_at(t, row + i / t->hd, head, heads) + (size_t)(i % t->hd)];
}

/* A block of trunk keys and values; what the block before left there may still be read */
static __device__ inline void load_keys(float *k, float *v, const struct ck_ttt *t, int kv_head, int first, int count)
{
	__syncthreads();
	load_rows(k, t, t->k[0], t->nkv, kv_head, first, count, 1);
	load_rows(v, t, t->v[0], t->nkv, kv_head, first, count, 1);
	__syncthreads();
}

/* A tile of query rows: rows t0.. times the heads of a group. Query row i is row t0 + i/group. */
struct query_tile {
	int t0, rows, lo, hi, kv_head, group; /* lo, hi: first and last key any of them sees */
};

static __device__ inline struct query_tile tile_of_block(const struct ck_ttt *t)
{
	struct query_tile x;
	x.group = t->nh / t->nkv;
	int per = CK_TILE / x.group;
	x.t0 = (int)blockIdx.x * per;
	x.kv_head = (int)blockIdx.y;
	x.rows = min_int(per, t->n - x.t0) * x.group;
	x.lo = first_key(t, x.t0);
	x.hi = last_key(t, x.t0);
	for (int i = x.group; i < x.rows; i += x.group) {
		x.lo = min_int(x.lo, first_key(t, x.t0 + i / x.group));
		x.hi = max_int(x.hi, last_key(t, x.t0 + i / x.group));
	}
	return x;
}

static __device__ inline void load_queries(float *to, const struct ck_ttt *t, const struct query_tile *x, const float *from, float a)
{
	for (int i = (int)threadIdx.x; i < x->rows * t->hd; i += THREADS) {
		int qr = i / t->hd;
		to[i] = a * from[head_at(t, x->t0 + qr / x->group, x->kv_head * x->group + qr % x->group, t->nh) + (size_t)(i % t->hd)];
	}
}

static __global__ void forward_kernel(struct ck_ttt t)
{
	DYNAMIC_SHARED(mem);
	int hd = t.hd, warp = (int)threadIdx.x / WARP;
	float *k = mem, *v = k + CK_BLOCK * (hd + 1), *q = v + CK_BLOCK * (hd + 1), *p = q + CK_TILE * hd + warp * WARP;
	struct query_tile x = tile_of_block(&t);
	struct softmax_row st[PER_WARP];
	UNROLL
	for (int i = 0; i < PER_WARP; i++)
		softmax_clear(&st[i]);
	load_queries(q, &t, &x, t.q, t.scale);
	for (int first = x.lo / CK_BLOCK * CK_BLOCK; first <= x.hi; first += CK_BLOCK) {
		load_keys(k, v, &t, x.kv_head, first, min_int(CK_BLOCK, x.hi + 1 - first));
		UNROLL
		for (int i = 0; i < PER_WARP; i++) {
			int qr = warp + i * CK_WARPS, row = x.t0 + qr / x.group;
			if (qr >= x.rows)
				continue;
			int lo = max_int(0, first_key(&t, row) - first), hi = min_int(CK_BLOCK - 1, last_key(&t, row) - first);
			if (lo <= hi)
				attend(&st[i], q + qr * hd, k, v, p, hd, lo, hi);
		}
	}
	UNROLL
	for (int i = 0; i < PER_WARP; i++)
		if (warp + i * CK_WARPS < x.rows)
			finish_row(&t, x.t0 + (warp + i * CK_WARPS) / x.group, x.kv_head * x.group + (warp + i * CK_WARPS) % x.group, &st[i], q + (warp + i * CK_WARPS) * hd, 1);
}

static dim3 query_grid(const struct ck_ttt *t)
{
	int per = CK_TILE / (t->nh / t->nkv);
	return dim3((unsigned)((t->n + per - 1) / per), (unsigned)t->nkv);
}

cudaError_t ck_ttt_forward(cudaStream_t s, const struct ck_ttt *t)
{
	if (t->kb)
		return ck_ttt_tensor_forward(s, t);
	size_t shared = sizeof(float) * (size_t)(2 * CK_BLOCK * (t->hd + 1) + CK_TILE * t->hd + CK_WARPS * WARP);
	cudaError_t e = cudaFuncSetAttribute((const void *)forward_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
	if (e != cudaSuccess)
		return e;
	LAUNCH(forward_kernel, query_grid(t), THREADS, shared, s, *t);
	return cudaGetLastError();
}

/* ---- backward ---- */

/* P and dS of one query row against the 32 keys in shared memory, one a lane; 0 outside [lo, hi] */
static __device__ inline void softmax_back(float *ret_p, float *ret_ds, const float *q, const float *dO, const float *k, const float *v, int d, int lo, int hi,
					   float lse, float delta)
{
	int lane = (int)threadIdx.x % WARP, ld = d + 1;
	float s = 0, dp = 0;
	*ret_p = *ret_ds = 0;
	if (lane < lo || lane > hi)
		return;
	for (int c = 0; c < d; c++) {
		s += q[c] * k[lane * ld + c];
		dp += dO[c] * v[lane * ld + c];
	}
	*ret_p = expf(s - lse);
	*ret_ds = *ret_p * (dp - delta);
}

/* dq of one row against one block of keys: acc += dS K */
static __device__ inline void dq_block(float acc[CHANNELS], const float *q, const float *dO, const float *k, const float *v, float *p, int d, int lo, int hi,
				       float lse, float delta)
{
	int lane = (int)threadIdx.x % WARP;
	float w, ds;
	softmax_back(&w, &ds, q, dO, k, v, d, lo, hi, lse, delta);
	p[lane] = ds;
	__syncwarp();
	UNROLL
	for (int i = 0; i < CHANNELS; i++)
		for (int j = lo; j <= hi && lane + i * WARP < d; j++)
			acc[i] += p[j] * k[j * (d + 1) + lane + i * WARP];
	__syncwarp();
}

static __global__ void dq_kernel(struct ck_ttt t)
{
	DYNAMIC_SHARED(mem);
	int hd = t.hd, warp = (int)threadIdx.x / WARP;
	float *k = mem, *v = k + CK_BLOCK * (hd + 1), *q = v + CK_BLOCK * (hd + 1), *dO = q + CK_TILE * hd, *p = dO + CK_TILE * hd + warp * WARP;
	struct query_tile x = tile_of_block(&t);
	float acc[PER_WARP][CHANNELS], lse[PER_WARP], delta[PER_WARP];
	load_queries(q, &t, &x, t.q, t.scale);
	load_queries(dO, &t, &x, t.dout, 1);
	__syncthreads();
	UNROLL
	for (int i = 0; i < PER_WARP; i++) {
		int qr = warp + i * CK_WARPS, row = x.t0 + qr / x.group, head = x.kv_head * x.group + qr % x.group;
		lse[i] = delta[i] = 0;
		UNROLL
		for (int c = 0; c < CHANNELS; c++)
			acc[i][c] = 0;
		if (qr >= x.rows)
			continue;
		lse[i] = t.lse[(size_t)row * (size_t)t.nh + (size_t)head];
		delta[i] = warp_dot(dO + qr * hd, t.out + head_at(&t, row, head, t.nh), hd);
	}
	for (int first = x.lo / CK_BLOCK * CK_BLOCK; first <= x.hi; first += CK_BLOCK) {
		load_keys(k, v, &t, x.kv_head, first, min_int(CK_BLOCK, x.hi + 1 - first));
		UNROLL
		for (int i = 0; i < PER_WARP; i++) {
			int qr = warp + i * CK_WARPS, row = x.t0 + qr / x.group;
			if (qr >= x.rows)
				continue;
			int lo = max_int(0, first_key(&t, row) - first), hi = min_int(CK_BLOCK - 1, last_key(&t, row) - first);
			if (lo <= hi)
				dq_block(acc[i], q + qr * hd, dO + qr * hd, k, v, p, hd, lo, hi, lse[i], delta[i]);
		}
	}
	UNROLL
	for (int i = 0; i < PER_WARP; i++) {
		int qr = warp + i * CK_WARPS;
		if (qr < x.rows)
			finish_dq(&t, x.t0 + qr / x.group, x.kv_head * x.group + qr % x.group, acc[i], q + qr * hd, 1, dO + qr * hd, lse[i], delta[i]);
	}
}

enum { KEYS = CK_BLOCK / CK_WARPS }; /* keys of a warp, 4 */

struct dkv_acc {
	float dk[KEYS][CHANNELS], dv[KEYS][CHANNELS];
};

/* 32 query rows of one head, in shared memory, against the block's keys: first P and dS by rows, then the sums by keys */
static __device__ inline void dkv_rows(struct dkv_acc *a, const struct ck_ttt *t, int head, int key0, int t0, int rows, const float *q, const float *dO, const float *k,
				       const float *v, float *P, float *dS)
{
	int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, ld = t->hd + 1;
	for (int r = warp; r < rows; r += CK_WARPS) {
		int row = t0 + r, lo = max_int(0, first_key(t, row) - key0), hi = min_int(CK_BLOCK - 1, last_key(t, row) - key0);
		size_t at = (size_t)row * (size_t)t->nh + (size_t)head;
		softmax_back(&P[r * WARP + lane], &dS[r * WARP + lane], q + r * ld, dO + r * ld, k, v, t->hd, lo, hi, t->lse[at], t->delta[at]);
	}
	__syncthreads();
	UNROLL
	for (int j = 0; j < KEYS; j++)
		UNROLL
		for (int i = 0; i < CHANNELS; i++) {
			int key = warp * KEYS + j, c = lane + i * WARP;
			for (int r = 0; r < rows && c < t->hd; r++) {
				a->dv[j][i] += P[r * WARP + key] * dO[r * ld + c];
				a->dk[j][i] += dS[r * WARP + key] * q[r * ld + c];
			}
		}
}

static __global__ void dkv_kernel(struct ck_ttt t)
{
	DYNAMIC_SHARED(mem);
	int ld = t.hd + 1, group = t.nh / t.nkv, kv_head = (int)blockIdx.y, key0 = (int)blockIdx.x * CK_BLOCK, keys = min_int(CK_BLOCK, t.nk - key0);
	int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
	float *k = mem, *v = k + CK_BLOCK * ld, *q = v + CK_BLOCK * ld, *dO = q + CK_TILE * ld, *P = dO + CK_TILE * ld, *dS = P + CK_TILE * WARP;
	struct dkv_acc a;
	UNROLL
	for (int j = 0; j < KEYS; j++)
		UNROLL
		for (int i = 0; i < CHANNELS; i++)
			a.dk[j][i] = a.dv[j][i] = 0;
	load_rows(k, &t, t.k[0], t.nkv, kv_head, key0, keys, 1);
	load_rows(v, &t, t.v[0], t.nkv, kv_head, key0, keys, 1);
	for (int t0 = t.lo ? 0 : key0; t0 < t.n; t0 += CK_TILE) {
		int rows = min_int(CK_TILE, t.n - t0), mine = t0 + lane;
		/* rows of later runs, or of other blocks, see none of these keys */
		if (!__syncthreads_or(mine < t.n && first_key(&t, mine) < key0 + keys && last_key(&t, mine) >= key0))
			continue;
		for (int h = 0; h < group; h++) {
			int head = kv_head * group + h;
			__syncthreads();
			load_rows(q, &t, t.q, t.nh, head, t0, rows, t.scale);
			load_rows(dO, &t, t.dout, t.nh, head, t0, rows, 1);
			__syncthreads();
			dkv_rows(&a, &t, head, key0, t0, rows, q, dO, k, v, P, dS);
		}
	}
	UNROLL
	for (int j = 0; j < KEYS; j++)
		UNROLL
		for (int i = 0; i < CHANNELS; i++) {
			int key = warp * KEYS + j, c = lane + i * WARP;
			if (key < keys && c < t.hd) {
				t.dk[0][head_at(&t, key0 + key, kv_head, t.nkv) + (size_t)c] += a.dk[j][i];
				t.dv[0][head_at(&t, key0 + key, kv_head, t.nkv) + (size_t)c] += a.dv[j][i];
			}
		}
}

/* Diagonal i of row t: w = exp(s - M), dv_i += w dO, dk_i += scale w (dO . v_i - delta) q; the group's heads in order */
static __global__ void diagonal_kernel(struct ck_ttt t)
{
	int row = (int)(blockIdx.x * CK_WARPS + threadIdx.x / WARP), kv_head = (int)blockIdx.y, group = t.nh / t.nkv, lane = (int)threadIdx.x % WARP;
	if (row >= t.n)
		return;
	size_t kv_at = head_at(&t, row, kv_head, t.nkv);
	for (int j = 1; j < t.n_steps; j++)
		for (int h = kv_head * group; h < (kv_head + 1) * group; h++) {
			size_t at = (size_t)row * (size_t)t.nh + (size_t)h;
			const float *q = t.q + at * (size_t)t.hd, *dO = t.dout + at * (size_t)t.hd;
			float w = expf(warp_dot(q, t.k[j] + kv_at, t.hd) * t.scale - t.lse[at]);
			float ds = w * (warp_dot(dO, t.v[j] + kv_at, t.hd) - t.delta[at]) * t.scale;
			for (int c = lane; c < t.hd; c += WARP) {
				t.dv[j][kv_at + (size_t)c] += w * dO[c];
				t.dk[j][kv_at + (size_t)c] += ds * q[c];
			}
		}
}

/* The trunk's gradients, and delta for the diagonals'. */
static cudaError_t trunk_backward(cudaStream_t s, const struct ck_ttt *t)
{
	size_t keys = (size_t)(2 * CK_BLOCK * (t->hd + 1));
	size_t by_rows = sizeof(float) * (keys + (size_t)(2 * CK_TILE * t->hd + CK_WARPS * WARP));
	size_t by_keys = sizeof(float) * (keys + (size_t)(2 * CK_TILE * (t->hd + 1) + 2 * CK_TILE * WARP));
	cudaError_t e = cudaFuncSetAttribute((const void *)dq_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)by_rows);
	if (e == cudaSuccess)
		e = cudaFuncSetAttribute((const void *)dkv_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)by_keys);
	if (e != cudaSuccess)
		return e;
	LAUNCH(dq_kernel, query_grid(t), THREADS, by_rows, s, *t);
	LAUNCH(dkv_kernel, dim3((unsigned)(t->nk + CK_BLOCK - 1) / CK_BLOCK, (unsigned)t->nkv), THREADS, by_keys, s, *t);
	return cudaGetLastError();
}

cudaError_t ck_ttt_backward(cudaStream_t s, const struct ck_ttt *t)
{
	cudaError_t e = t->kb ? ck_ttt_tensor_backward(s, t) : trunk_backward(s, t);
	if (e == cudaSuccess && t->n_steps > 1)
		LAUNCH(diagonal_kernel, dim3((unsigned)(t->n + CK_WARPS - 1) / CK_WARPS, (unsigned)t->nkv), THREADS, 0, s, *t);
	return e == cudaSuccess ? cudaGetLastError() : e;
}
