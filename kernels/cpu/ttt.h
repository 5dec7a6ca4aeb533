/* What the forward and backward halves of TTT attention share. */
#pragma once
#include "kernels/cpu/attn.h"

struct ttt_job {
	const struct cpu_kernels *k;
	const struct ttt_kv *kv;
	real *out, *lse, *dq;
	const real *q, *dout, *o, *l; /* o, l: the forward's out and lse */
	const uint32_t *seg;
	const uint32_t *lo, *hi; /* a block of other rows' keys: row t sees [lo[t], hi[t]); NULL: its own past */
	int n, nk, nh, nkv, hd; /* query rows, trunk keys */
	real scale;
	bool pairs; /* backward: products in bf16 */
	struct kv_pool pool; /* forward: trunk keys and values as pages */
	_Atomic int next; /* piece of work that no thread has */
	real *mem; /* threads' working memory */
	size_t reals; /* of one thread */
	real *part_k, *part_v; /* backward: [nh * splits][nk rounded up][dp] */
};

/* Row t sees trunk keys first..last; last < first: none. */
static inline int ttt_first_key(const struct ttt_job *j, int t)
{
	return j->lo ? (int)j->lo[t] : j->seg ? (int)j->seg[t] : 0;
}
static inline int ttt_last_key(const struct ttt_job *j, int t)
{
	return j->hi ? (int)j->hi[t] - 1 : t;
}

bool ttt_bad_block(const struct ttt_block *b, int n, int nh, int nkv, int hd);
bool ttt_bad(const struct ttt_kv *kv, const uint32_t *seg, int n, int nh, int nkv, int hd); /* sizes out of range */
