/* The online softmax on tensor cores that TTT attention's forward and prompts' paged attention share.
 *
 * A block of four warps holds 64 query rows, 16 a warp, and meets 64 keys at a time, at absolute positions: scores go through shared
 * memory to a softmax by two lanes a row and come back as the factor P. A row of a product depends on no other row of it, and keys
 * that a row does not see have the score -inf and the factor 0: so what a row sums up does not depend on the rows beside it, nor on blocks that it sees nothing of.
 */
#pragma once
#include "kernels/cuda/attn.cuh"
#include "kernels/cuda/tensor.cuh"

enum { TILE = 64, FWD_THREADS = 128, SUBS = TILE / SUB, LD_S = TILE + 4, LD_P = TILE + 8 };

/* Elements between two rows of 16 bits, [64][hd], and of 32 bits: 16 bytes more, so that rows begin in different banks */
template <int HD> struct wide {
	enum { H = HD + 8, F = HD + 4, TILES = 2 * TILE * H /* of two tiles; they take 64 rows of f32, too */ };
};

template <int HD> struct tensor_memory {
	bf16 kv[wide<HD>::TILES]; /* q before, the sums after */
	float S[FWD_THREADS / WARP][SUB * LD_S];
	bf16 P[FWD_THREADS / WARP][SUB * LD_P];
	float keep[FWD_THREADS / WARP][SUB];
};

/* One of a warp's 16 rows, held by lanes r and r+16, in powers of 2 */
struct online {
	float max, sum;
};

/* Scores S [16][68] of 64 keys, of which the row sees lo to hi, become P [16][72]; keep [16]: what was summed before counts that much. */
static __device__ inline void soften(struct online *x, bf16 *P, float *keep, const float *S, int lo, int hi, float scale)
{
	enum { HALF = TILE / 2 };
	int r = (int)threadIdx.x % SUB, c0 = (int)threadIdx.x % WARP / SUB * HALF;
	float s[HALF], top = -INFINITY, sum = 0;
	UNROLL
	for (int i = 0; i < HALF; i += 4) {
		float4 v = *(const float4 *)(S + r * LD_S + c0 + i);
		s[i] = v.x, s[i + 1] = v.y, s[i + 2] = v.z, s[i + 3] = v.w;
	}
	UNROLL
	for (int i = 0; i < HALF; i++) {
		s[i] = c0 + i >= lo && c0 + i <= hi ? s[i] * scale : -INFINITY;
		top = fmaxf(top, s[i]);
	}
	top = fmaxf(x->max, fmaxf(top, __shfl_xor_sync(FULL, top, SUB)));
	float base = top == -INFINITY ? 0 : top; /* of a row that has seen no key all is 0, of NaN alone NaN */
	UNROLL
	for (int i = 0; i < HALF; i++) {
		s[i] = exp2f(s[i] - base);
		sum += s[i];
	}
	UNROLL
	for (int i = 0; i < HALF; i += 8) {
		uint4 v = {two_bf16(s[i], s[i + 1]), two_bf16(s[i + 2], s[i + 3]), two_bf16(s[i + 4], s[i + 5]), two_bf16(s[i + 6], s[i + 7])};
		*(uint4 *)(P + r * LD_P + c0 + i) = v;
	}
	float had = exp2f(x->max - base);
	x->sum = x->sum * had + sum + __shfl_xor_sync(FULL, sum, SUB);
	x->max = top;
	if (c0 == 0)
		keep[r] = had;
}

/* The warp's 16 query rows [16][hd] as factors, and their sums, 0 */
template <int HD> static __device__ inline void begin_rows(factor_a q[HD / SUB], sums o[HD / SUB], const bf16 *rows)
{
	UNROLL
	for (int k = 0; k < HD / SUB; k++) {
		load_factor<wide<HD>::H>(q[k], at_shared(rows), k * SUB);
		wmma::fill_fragment(o[k], 0.0f);
	}
}

/* A block of keys against the warp's 16 query rows */
template <int HD>
static __device__ inline void attend_tile(sums o[HD / SUB], struct online *x, const factor_a q[HD / SUB], const struct places *at, const bf16 *K, const bf16 *V, float *S, bf16 *P, float *keep,
					  int lo, int hi, float scale)
{
	shared_at k_at = at_shared(K), v_at = at_shared(V), p_at = at_shared(P);
	UNROLL_BY(1)
	for (int n = 0; n < SUBS; n++) {
		sums s;
		wmma::fill_fragment(s, 0.0f);
		UNROLL
		for (int k = 0; k < HD / SUB; k++) {
			factor_bt b;
			load_factor<wide<HD>::H>(b, k_at, n * SUB * wide<HD>::H + k * SUB);
			wmma::mma_sync(s, q[k], b, s);
		}
		wmma::store_matrix_sync(S + n * SUB, s, LD_S, wmma::mem_row_major);
	}
	__syncwarp();
	soften(x, P, keep, S, lo, hi, scale);
	__syncwarp();
	float had[EACH];
	UNROLL
	for (int i = 0; i < EACH; i++)
		had[i] = keep[place_row(at, i)];
	UNROLL
	for (int n = 0; n < HD / SUB; n++)
		UNROLL
		for (int i = 0; i < EACH; i++)
			o[n].x[i] *= had[i];
	UNROLL_BY(1)
	for (int k = 0; k < SUBS; k++) {
		factor_a p;
		load_factor<LD_P>(p, p_at, k * SUB);
		UNROLL
		for (int n = 0; n < HD / SUB; n++) {
			factor_b b;
			load_factor<wide<HD>::H>(b, v_at, k * SUB * wide<HD>::H + n * SUB);
			wmma::mma_sync(o[n], p, b, o[n]);
		}
	}
}

/* The warp's sums in shared memory, [16][F] */
template <int HD> static __device__ inline void lay_rows(float *rows, sums o[HD / SUB])
{
	UNROLL
	for (int n = 0; n < HD / SUB; n++)
		wmma::store_matrix_sync(rows + n * SUB, o[n], wide<HD>::F, wmma::mem_row_major);
	__syncwarp();
}

/* Row r of them, as the FP32 units' softmax leaves one */
template <int HD> static __device__ inline struct softmax_row take_row(const float *rows, const struct online *x, int r)
{
	struct softmax_row st;
	int lane = (int)threadIdx.x % WARP;
	st.max = __shfl_sync(FULL, x->max, r) * 0.69314718f; /* ln 2 */
	st.sum = __shfl_sync(FULL, x->sum, r);
	UNROLL
	for (int i = 0; i < CHANNELS; i++)
		st.acc[i] = lane + i * WARP < HD ? rows[r * wide<HD>::F + lane + i * WARP] : 0;
	return st;
}

/* Shared memory that a kernel needs, asked for */
static inline cudaError_t allow(const void *kernel, size_t bytes)
{
	return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}
