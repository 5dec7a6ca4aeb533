/* The attention core that serving and the training trunk share. */
#pragma once
#include "kernels/cpu/cpu.h"

enum { ATTN_ROWS = 48 /* query rows of one call; a multiple of every mr */ };

/* A block of query rows of one kv head. Row r sees keys lo[r]..hi[r] of the
 * sequence whose pages are given. q is already times the softmax scale. */
struct attn_block {
	const struct kv_pool *pool;
	const uint32_t *pages; /* NULL: page i is page i */
	int layer, head, R;
	int lo[ATTN_ROWS], hi[ATTN_ROWS];
	real *q; /* [R][d] */
	real *out; /* [R][dp], dp = d rounded up to nr; not yet divided by sum */
	real *s; /* [R][CPU_ATTN_BLOCK] working memory */
	struct cpu_softmax st[ATTN_ROWS];
};

size_t attn_block_reals(const struct cpu_kernels *k, int d); /* memory for q, out and s */
void attn_block_memory(struct attn_block *b, const struct cpu_kernels *k, int d, real *mem);
void attn_block_run(const struct cpu_kernels *k, struct attn_block *b);
