/* What paged attention's two ways share (attn.cu on FP32 units, prompt.cu on tensor cores): where a key lies, and what a row leaves. */
#pragma once
#include "kernels/cuda/attn.cuh"

/* Element of the first channel of a place */
static __device__ inline size_t place_at(const struct ck_kv *kv, uint32_t page, int tok, int head)
{
	return (((size_t)page * (size_t)kv->n_kv + (size_t)head) * (size_t)kv->page_tok + (size_t)tok) * (size_t)kv->d;
}

/* By a warp, of a batch row and query head in one split: its output, or where it has more splits a partial result */
static __device__ inline void leave(const struct ck_attn *a, int row, int head, int split, const struct softmax_row *st)
{
	int d = a->kv.d, lane = (int)threadIdx.x % WARP;
	const struct ck_row *r = &a->rows[row];
	if (split >= r->splits) /* the tile's other rows reach further */
		return;
	float *part = a->parts + ((size_t)r->part + (size_t)(split * a->nh + head)) * (size_t)(d + 2);
	float *out = a->out + (size_t)row * (size_t)a->ldo + (size_t)(head * d);
	UNROLL
	for (int i = 0; i < CHANNELS; i++) {
		int c = lane + i * WARP;
		if (c < d && r->splits == 1)
			out[c] = st->acc[i] / st->sum;
		else if (c < d)
			part[2 + c] = st->acc[i];
	}
	if (lane == 0 && r->splits > 1) {
		part[0] = st->max;
		part[1] = st->sum;
	}
}
