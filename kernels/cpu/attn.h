/* The attention core that serving and the training trunk share. */
#pragma once
#include "kernels/cpu/cpu.h"

enum { ATTN_ROWS = 48 /* query rows of one call; a multiple of every mr */ };

/* A block of query rows of one kv head. Row r sees keys lo[r]..hi[r] of the
 * sequence whose pages are given. q is already times the softmax scale. */
struct attn_block {
	const struct kv_pool *pool;
	const uint32_t *pages; /* NULL: page i is page i */
	char *tail;    /* NULL, or: pages from tail_page on are read here, keys of one, values of it, keys of the next */
	int tail_page;
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

/* ---- trees (attn_tree.c) ---- */

/* The rows of a tree in the order they are worked on: rows that share a path are neighbours. */
struct attn_paths {
	int16_t row[ATTN_TREE_MAX + 1]; /* of the sequence */
	int16_t end[ATTN_TREE_MAX + 1]; /* last node of the path it is read along */
	int hi[ATTN_TREE_MAX + 1];      /* its position */
};
/* 0, or -1: no tree that ops.h allows */
int attn_paths_make(struct attn_paths *t, const struct attn_seq *s);
size_t attn_tail_bytes(const struct cpu_kernels *k, const struct kv_pool *p);
/* Let b, whose pages, layer and head are set, read the path that ends in node `end` as a chain, where needed out of mem. */
void attn_tail(const struct cpu_kernels *k, struct attn_block *b, const struct attn_seq *s, int end, char *mem);
const char *attn_tail_page(const struct cpu_kernels *k, const struct attn_block *b, int page, bool v);
