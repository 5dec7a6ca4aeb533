/* TTT attention's trunk on tensor cores: the formulas of ttt.cu with q, k, v and dO rounded to bf16, sums in f32, by
 * nvcuda::wmma (16x16x16). The same rounded factors give S forward and backward, so P sums to 1 to f32's rounding; what is left is
 * the rounding of P and dS to bf16, as factors of the products that follow. Diagonals stay in f32 (ttt.cuh).
 *
 * Work comes in tiles of 64 query rows of one head against 64 keys at absolute positions, both in shared memory. Forward, a warp owns 16 query
 * rows: scores go through shared memory to a softmax by two lanes a row and come back as the factor P. Backward needs no sum along a row, so P and
 * dS are made where the scores are, in registers: eight warps share a tile's scores, then the products with them. dQ walks the keys, dK
 * and dV walk the query rows, each in order: no atomics, the same bits for the same call.
 *
 * Keys that a row does not see have the factor 0, where ttt.cu leaves them out: of finite keys that is the same, and a NaN among the
 * 64 keys of a block reaches all the block's rows. Blocks that no row of a tile sees are not read.
 */
#include "kernels/cuda/ttt.cuh"
#include "kernels/cuda/tensor_attn.cuh"
#include <limits.h>

enum { BACK_THREADS = 256 };

/* Rows [row, row+64) of one head into shared memory; those from n on are zero. All threads take part. */
template <int HD, int N> static __device__ inline void load_tile(bf16 *to, const uint16_t *from, int row, int n, int head, int heads)
{
	UNROLL_BY(N == BACK_THREADS ? 2 : 4)
	for (int i = (int)threadIdx.x; i < TILE * HD / 8; i += N) {
		int r = i / (HD / 8), c = i % (HD / 8) * 8;
		uint4 x = {0, 0, 0, 0};
		if (row + r < n)
			x = *(const uint4 *)(from + ((size_t)(row + r) * (size_t)heads + (size_t)head) * HD + c);
		*(uint4 *)(to + r * wide<HD>::H + c) = x;
	}
}

/* The trunk keys that 64 query rows see; rows past the end see none. */
struct bounds {
	int lo[TILE], hi[TILE];
};

/* By all threads, which have met afterwards; whether a row of the tile sees any of [ret_lo, ret_hi] */
static __device__ inline void find_bounds(struct bounds *b, const struct ck_ttt *t, int t0, int *ret_lo, int *ret_hi)
{
	int r = (int)threadIdx.x;
	if (r < TILE) {
		bool in = t0 + r < t->n;
		b->lo[r] = in ? first_key(t, t0 + r) : INT_MAX;
		b->hi[r] = in ? last_key(t, t0 + r) : -1;
	}
	__syncthreads();
	*ret_lo = INT_MAX;
	*ret_hi = -1;
	UNROLL_BY(1)
	for (int i = 0; i < TILE; i++)
		if (b->lo[i] <= b->hi[i]) {
			*ret_lo = min_int(*ret_lo, b->lo[i]);
			*ret_hi = max_int(*ret_hi, b->hi[i]);
		}
}

/* ---- forward ---- */

/* Later rows have more keys: they begin first. */
static __device__ inline int heavy_first(void)
{
	return (int)(gridDim.x - 1 - blockIdx.x) * TILE;
}

template <int HD> struct forward_memory {
	struct tensor_memory<HD> m;
	struct bounds b;
};

/* What the warp summed up, a row at a time */
template <int HD> static __device__ inline void finish_tile(const struct ck_ttt *t, sums o[HD / SUB], const struct online *x, float *rows, int t0, int head)
{
	lay_rows<HD>(rows, o);
	UNROLL_BY(1)
	for (int r = 0; r < SUB; r++) {
		struct softmax_row st = take_row<HD>(rows, x, r);
		if (t0 + r < t->n)
			finish_row(t, t0 + r, head, &st, t->q + head_at(t, t0 + r, head, t->nh), t->scale);
	}
}

template <int HD> static __global__ void __launch_bounds__(FWD_THREADS, 3) tensor_forward_kernel(struct ck_ttt t)
{
	DYNAMIC_SHARED(mem);
	struct forward_memory<HD> *f = (struct forward_memory<HD> *)mem;
	struct tensor_memory<HD> *m = &f->m;
	enum { H = wide<HD>::H };
	int warp = (int)threadIdx.x / WARP, t0 = heavy_first(), head = (int)blockIdx.y, kv_head = head / (t.nh / t.nkv), lo, hi, mine = warp * SUB + (int)threadIdx.x % SUB;
	bf16 *K = m->kv, *V = K + TILE * H;
	find_bounds(&f->b, &t, t0, &lo, &hi);
	UNROLL_BY(8)
	for (int i = (int)threadIdx.x; i < TILE * HD; i += FWD_THREADS)
		K[i / HD * H + i % HD] = __float2bfloat16_rn(t0 + i / HD < t.n ? t.q[head_at(&t, t0 + i / HD, head, t.nh) + (size_t)(i % HD)] : 0);
	__syncthreads();
	factor_a q[HD / SUB];
	sums o[HD / SUB];
	begin_rows<HD>(q, o, K + warp * SUB * H);
	struct places at = find_places(m->S[warp], LD_S);
	struct online x = {-INFINITY, 0};
	for (int first = lo / TILE * TILE; first <= hi; first += TILE) {
		__syncthreads();
		load_tile<HD, FWD_THREADS>(K, t.kb, first, t.nk, kv_head, t.nkv);
		load_tile<HD, FWD_THREADS>(V, t.vb, first, t.nk, kv_head, t.nkv);
		__syncthreads();
		attend_tile<HD>(o, &x, q, &at, K, V, m->S[warp], m->P[warp], m->keep[warp], f->b.lo[mine] - first, f->b.hi[mine] - first, t.scale * 1.44269504f /* log2 e */);
	}
	__syncthreads();
	finish_tile<HD>(&t, o, &x, (float *)m->kv + warp * SUB * wide<HD>::F, t0 + warp * SUB, head);
}

static unsigned tiles(int n)
{
	return (unsigned)((n + TILE - 1) / TILE);
}

template <int HD> static cudaError_t forward(cudaStream_t s, const struct ck_ttt *t)
{
	cudaError_t e = allow((const void *)tensor_forward_kernel<HD>, sizeof(struct forward_memory<HD>));
	if (e != cudaSuccess)
		return e;
	LAUNCH(tensor_forward_kernel<HD>, dim3(tiles(t->n), (unsigned)t->nh), FWD_THREADS, sizeof(struct forward_memory<HD>), s, *t);
	return cudaGetLastError();
}

cudaError_t ck_ttt_tensor_forward(cudaStream_t s, const struct ck_ttt *t)
{
	return t->hd == 64 ? forward<64>(s, t) : forward<128>(s, t);
}

/* ---- backward ---- */

template <int HD> struct back_memory {
	bf16 own[wide<HD>::TILES]; /* of dq: q and dO; of dk and dv: k and v */
	bf16 other[wide<HD>::TILES];
	bf16 P[TILE * LD_P], dS[TILE * LD_P]; /* [own row][other row] */
	float lse[TILE], delta[TILE];         /* of the query rows; lse in powers of 2 */
	struct bounds b;
};

/* P and dS of 64 own rows against the 64 others, two of the 16x16 a warp. `keys` says that the own ones are keys, of which the first is key0. */
template <int HD, bool KEYS> static __device__ inline void scores(struct back_memory<HD> *m, const struct places *at, int key0, float scale)
{
	enum { H = wide<HD>::H, V = TILE * wide<HD>::H /* from q to dO, from k to v */ };
	int warp = (int)threadIdx.x / WARP, r0 = warp % SUBS * SUB;
	UNROLL_BY(1) /* one after the other: registers decide how many blocks an SM holds */
	for (int c0 = warp / SUBS * 2 * SUB, end = c0 + 2 * SUB; c0 < end; c0 += SUB) {
		sums s, dp;
		wmma::fill_fragment(s, 0.0f);
		wmma::fill_fragment(dp, 0.0f);
		shared_at own = at_shared(m->own + r0 * H), other = at_shared(m->other + c0 * H);
		UNROLL_BY(2)
		for (int k = 0; k < HD / SUB; k++) {
			factor_a a;
			factor_bt b;
			load_factor<H>(a, own, k * SUB);
			load_factor<H>(b, other, k * SUB);
			wmma::mma_sync(s, a, b, s);
			load_factor<H>(a, own, V + k * SUB);
			load_factor<H>(b, other, V + k * SUB);
			wmma::mma_sync(dp, a, b, dp);
		}
		UNROLL
		for (int i = 0; i < EACH; i++) {
			int r = r0 + place_row(at, i), c = c0 + place_column(at, i), query = KEYS ? c : r, key = key0 + (KEYS ? r : c);
			bool sees = key >= m->b.lo[query] && key <= m->b.hi[query];
			float p = exp2f(sees ? s.x[i] * scale - m->lse[query] : -INFINITY), ds = sees ? dp.x[i] - m->delta[query] : 0;
			if (KEYS)
				m->P[r * LD_P + c] = __float2bfloat16_rn(p);
			m->dS[r * LD_P + c] = __float2bfloat16_rn(p * ds);
		}
	}
}

/* acc [16][HD/2] of the warp += its 16 own rows of w times its half of x's channels */
template <int HD> static __device__ inline void add_product(sums acc[HD / SUB / 2], const bf16 *w, const bf16 *x)
{
	int warp = (int)threadIdx.x / WARP;
	shared_at w_at = at_shared(w + warp % SUBS * SUB * LD_P), x_at = at_shared(x + warp / SUBS * (HD / 2));
	UNROLL_BY(1)
	for (int k = 0; k < SUBS; k++) {
		factor_a a;
		load_factor<LD_P>(a, w_at, k * SUB);
		UNROLL
		for (int n = 0; n < HD / SUB / 2; n++) {
			factor_b b;
			load_factor<wide<HD>::H>(b, x_at, k * SUB * wide<HD>::H + n * SUB);
			wmma::mma_sync(acc[n], a, b, acc[n]);
		}
	}
}

/* All warps' sums, [64][HD] f32, in shared memory; all threads have met before and after. */
template <int HD> static __device__ inline void lay_out(float *to, sums acc[HD / SUB / 2])
{
	int warp = (int)threadIdx.x / WARP;
	__syncthreads();
	UNROLL
	for (int n = 0; n < HD / SUB / 2; n++)
		wmma::store_matrix_sync(to + warp % SUBS * SUB * wide<HD>::F + warp / SUBS * (HD / 2) + n * SUB, acc[n], wide<HD>::F, wmma::mem_row_major);
	__syncthreads();
}

template <int HD> static __global__ void __launch_bounds__(BACK_THREADS, 2) tensor_dq_kernel(struct ck_ttt t)
{
	DYNAMIC_SHARED(mem);
	struct back_memory<HD> *m = (struct back_memory<HD> *)mem;
	enum { H = wide<HD>::H, PER = TILE / (BACK_THREADS / WARP) };
	int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, t0 = heavy_first(), head = (int)blockIdx.y, kv_head = head / (t.nh / t.nkv), lo, hi;
	struct places at = find_places((float *)m->own + warp * SUB * SUB, SUB);
	sums dq[HD / SUB / 2];
	UNROLL
	for (int n = 0; n < HD / SUB / 2; n++)
		wmma::fill_fragment(dq[n], 0.0f);
	find_bounds(&m->b, &t, t0, &lo, &hi);
	UNROLL_BY(1)
	for (int r = warp * PER; r < (warp + 1) * PER && t0 + r < t.n; r++) {
		size_t row = (size_t)(t0 + r) * (size_t)t.nh + (size_t)head;
		float delta = warp_dot(t.dout + row * HD, t.out + row * HD, HD);
		if (lane == 0) {
			m->delta[r] = delta;
			m->lse[r] = t.lse[row] * 1.44269504f;
		}
	}
	load_tile<HD, BACK_THREADS>(m->own, t.qb, t0, t.n, head, t.nh);
	load_tile<HD, BACK_THREADS>(m->own + TILE * H, t.dob, t0, t.n, head, t.nh);
	for (int first = lo / TILE * TILE; first <= hi; first += TILE) {
		__syncthreads();
		load_tile<HD, BACK_THREADS>(m->other, t.kb, first, t.nk, kv_head, t.nkv);
		load_tile<HD, BACK_THREADS>(m->other + TILE * H, t.vb, first, t.nk, kv_head, t.nkv);
		__syncthreads();
		scores<HD, false>(m, &at, first, t.scale * 1.44269504f);
		__syncthreads();
		add_product<HD>(dq, m->dS, m->other);
	}
	float *rows = (float *)m->other;
	lay_out<HD>(rows, dq);
	UNROLL_BY(1)
	for (int r = warp * PER; r < (warp + 1) * PER && t0 + r < t.n; r++) {
		size_t row = (size_t)(t0 + r) * (size_t)t.nh + (size_t)head;
		float acc[CHANNELS];
		UNROLL
		for (int i = 0; i < CHANNELS; i++)
			acc[i] = lane + i * WARP < HD ? rows[r * wide<HD>::F + lane + i * WARP] : 0;
		finish_dq(&t, t0 + r, head, acc, t.q + row * HD, t.scale, t.dout + row * HD, t.lse[row], m->delta[r]);
	}
}

/* to [rows of one head] += a times what was laid out */
template <int HD> static __device__ inline void add_rows(const struct ck_ttt *t, float *to, const float *rows, int key0, int kv_head, float a)
{
	UNROLL_BY(2)
	for (int i = (int)threadIdx.x; i < TILE * HD; i += BACK_THREADS)
		if (key0 + i / HD < t->nk)
			to[head_at(t, key0 + i / HD, kv_head, t->nkv) + (size_t)(i % HD)] += a * rows[i / HD * wide<HD>::F + i % HD];
}

template <int HD> static __global__ void __launch_bounds__(BACK_THREADS, 2) tensor_dkv_kernel(struct ck_ttt t, int group /* an argument: a register less */)
{
	DYNAMIC_SHARED(mem);
	struct back_memory<HD> *m = (struct back_memory<HD> *)mem;
	enum { H = wide<HD>::H };
	int warp = (int)threadIdx.x / WARP, key0 = (int)blockIdx.x * TILE, kv_head = (int)blockIdx.y, lo, hi;
	struct places at = find_places((float *)m->own + warp * SUB * SUB, SUB);
	sums dk[HD / SUB / 2], dv[HD / SUB / 2];
	UNROLL
	for (int n = 0; n < HD / SUB / 2; n++) {
		wmma::fill_fragment(dk[n], 0.0f);
		wmma::fill_fragment(dv[n], 0.0f);
	}
	__syncthreads();
	load_tile<HD, BACK_THREADS>(m->own, t.kb, key0, t.nk, kv_head, t.nkv);
	load_tile<HD, BACK_THREADS>(m->own + TILE * H, t.vb, key0, t.nk, kv_head, t.nkv);
	for (int t0 = t.lo ? 0 : key0; t0 < t.n; t0 += TILE) {
		__syncthreads(); /* the tile before is through */
		find_bounds(&m->b, &t, t0, &lo, &hi);
		if (lo >= key0 + TILE || hi < key0)
			continue; /* rows of later runs, or of other blocks */
		for (int h = 0, head = kv_head * group; h < group; h++, head++) {
			__syncthreads();
			int r = (int)threadIdx.x;
			if (r < TILE && t0 + r < t.n) {
				size_t row = (size_t)(t0 + r) * (size_t)t.nh + (size_t)head;
				m->lse[r] = t.lse[row] * 1.44269504f;
				m->delta[r] = t.delta[row];
			}
			load_tile<HD, BACK_THREADS>(m->other, t.qb, t0, t.n, head, t.nh);
			load_tile<HD, BACK_THREADS>(m->other + TILE * H, t.dob, t0, t.n, head, t.nh);
			__syncthreads();
			scores<HD, true>(m, &at, key0, t.scale * 1.44269504f);
			__syncthreads();
			add_product<HD>(dv, m->P, m->other + TILE * H);
			add_product<HD>(dk, m->dS, m->other);
		}
	}
	float *rows = (float *)m->other;
	lay_out<HD>(rows, dv);
	add_rows<HD>(&t, t.dv[0], rows, key0, kv_head, 1);
	lay_out<HD>(rows, dk);
	add_rows<HD>(&t, t.dk[0], rows, key0, kv_head, t.scale);
}

template <int HD> static cudaError_t backward(cudaStream_t s, const struct ck_ttt *t)
{
	const size_t bytes = sizeof(struct back_memory<HD>);
	cudaError_t e = allow((const void *)tensor_dq_kernel<HD>, bytes);
	if (e == cudaSuccess)
		e = allow((const void *)tensor_dkv_kernel<HD>, bytes);
	if (e != cudaSuccess)
		return e;
	LAUNCH(tensor_dq_kernel<HD>, dim3(tiles(t->n), (unsigned)t->nh), BACK_THREADS, bytes, s, *t);
	LAUNCH(tensor_dkv_kernel<HD>, dim3(tiles(t->nk), (unsigned)t->nkv), BACK_THREADS, bytes, s, *t, t->nh / t->nkv);
	return cudaGetLastError();
}

cudaError_t ck_ttt_tensor_backward(cudaStream_t s, const struct ck_ttt *t)
{
	return t->hd == 64 ? backward<64>(s, t) : backward<128>(s, t);
}
