/* What the forward and backward halves of TTT attention share. */
#pragma once
#include "kernels/cpu/attn.h"

struct ttt_job {
	const struct cpu_kernels *k;
	const struct ttt_kv *kv;
	real *out, *lse, *dq;
	const real *q, *dout, *o, *l; /* o, l: the forward's out and lse */
	const uint32_t *seg;
	int n, nh, nkv, hd;
	real scale;
	struct kv_pool pool; /* forward: trunk keys and values as pages */
	real *mem; /* threads' working memory */
	size_t reals; /* of one thread */
	real *part_k, *part_v; /* backward: [nh * splits][n rounded up][dp] */
};

static inline int ttt_first_key(const struct ttt_job *j, int t)
{
	return j->seg ? (int)j->seg[t] : 0;
}

bool ttt_bad(const struct ttt_kv *kv, const uint32_t *seg, int n, int nh, int nkv, int hd); /* sizes out of range */
