/* What TTT attention's two ways share (ttt.cu on FP32 units, ttt_tensor.cu on tensor cores): which trunk keys a row
 * sees, and what is done a row at a time once it is through with them: its diagonal keys, in f32, and what it leaves.
 */
#pragma once
#include "kernels/cuda/attn.cuh"

static __device__ inline int first_key(const struct ck_ttt *t, int row)
{
	return t->lo ? (int)t->lo[row] : t->seg ? (int)t->seg[row] : 0;
}

static __device__ inline int last_key(const struct ck_ttt *t, int row)
{
	return t->hi ? (int)t->hi[row] - 1 : row;
}

/* Element of channel 0 of (row, head) in an array of nh heads a row */
static __device__ inline size_t head_at(const struct ck_ttt *t, int row, int head, int heads)
{
	return ((size_t)row * (size_t)heads + (size_t)head) * (size_t)t->hd;
}

/* One diagonal key more for a row, of score s */
static __device__ inline void attend_one(struct softmax_row *r, float s, const float *v, int d)
{
	float mx = fmaxf(r->max, s), keep = expf(r->max - mx), w = expf(s - mx);
	r->sum = r->sum * keep + w;
	r->max = mx;
	UNROLL
	for (int i = 0; i < CHANNELS; i++) {
		int c = (int)threadIdx.x % WARP + i * WARP;
		if (c < d)
			r->acc[i] = r->acc[i] * keep + w * v[c];
	}
}

/* Out and its log-sum-exp become those over the keys of before and of this block. */
static __device__ inline void merge_row(const struct ck_ttt *t, const struct softmax_row *r, float *o, float *l)
{
	if (r->sum == 0)
		return; /* it sees nothing of this block */
	float had = *l;
	double m = (double)r->max + log((double)r->sum), top = (double)had > m ? (double)had : m, both = top + log(exp((double)had - top) + exp(m - top));
	float keep = (float)exp((double)had - both), take = (float)(exp(m - both) / (double)r->sum);
	UNROLL
	for (int i = 0; i < CHANNELS; i++) {
		int c = (int)threadIdx.x % WARP + i * WARP;
		if (c < t->hd)
			o[c] = o[c] * keep + r->acc[i] * take;
	}
	__syncwarp(); /* every lane has read *l */
	if (threadIdx.x % WARP == 0)
		*l = (float)both;
}

/* One row of one head is through with the trunk: its diagonals, and what it leaves. q is times what qscale lacks of the scale. */
static __device__ inline void finish_row(const struct ck_ttt *t, int row, int head, struct softmax_row *r, const float *q, float qscale)
{
	int kv_head = head / (t->nh / t->nkv), lane = (int)threadIdx.x % WARP;
	if (t->lo) {
		merge_row(t, r, t->o + head_at(t, row, head, t->nh), t->l + (size_t)row * (size_t)t->nh + (size_t)head);
		return;
	}
	size_t kv_at = head_at(t, row, kv_head, t->nkv);
	UNROLL_BY(1)
	for (int i = 1; i < t->n_steps; i++)
		attend_one(r, warp_dot(q, t->k[i] + kv_at, t->hd) * qscale, t->v[i] + kv_at, t->hd);
	UNROLL
	for (int i = 0; i < CHANNELS; i++)
		if (lane + i * WARP < t->hd)
			t->o[head_at(t, row, head, t->nh) + (size_t)(lane + i * WARP)] = r->acc[i] / r->sum;
	if (t->l && lane == 0)
		t->l[(size_t)row * (size_t)t->nh + (size_t)head] = (float)((double)r->max + log((double)r->sum));
}

/* The same backward: acc is dq of the trunk without the scale. */
static __device__ inline void finish_dq(const struct ck_ttt *t, int row, int head, float acc[CHANNELS], const float *q, float qscale, const float *dO, float lse, float delta)
{
	int kv_head = head / (t->nh / t->nkv), lane = (int)threadIdx.x % WARP;
	size_t kv_at = head_at(t, row, kv_head, t->nkv);
	UNROLL_BY(1)
	for (int j = 1; j < t->n_steps; j++) {
		const float *k = t->k[j] + kv_at;
		float ds = expf(warp_dot(q, k, t->hd) * qscale - lse) * (warp_dot(dO, t->v[j] + kv_at, t->hd) - delta);
		UNROLL
		for (int i = 0; i < CHANNELS; i++)
			if (lane + i * WARP < t->hd)
				acc[i] += ds * k[lane + i * WARP];
	}
	UNROLL
	for (int i = 0; i < CHANNELS; i++)
		if (lane + i * WARP < t->hd) {
			float *to = t->dq + head_at(t, row, head, t->nh) + (size_t)(lane + i * WARP);
			*to = (t->lo ? *to : 0) + acc[i] * t->scale;
		}
	if (lane == 0)
		t->delta[(size_t)row * (size_t)t->nh + (size_t)head] = delta;
}
