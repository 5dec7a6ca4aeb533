/* Draw, then compare (eagle3.md §2.5): what a round keeps of a tree.
 *
 * At each position the target's token is drawn from its own logits; where a child of the node reached
 * proposes that token, it is accepted and the walk goes on from there. The tokens served are therefore the draws
 * themselves, whatever was proposed.
 */
#pragma once
#include "serve/sample.h"

struct verdict {
	int n;        /* tokens emitted, 1..accepted+1 */
	int accepted; /* proposals among them */
	uint32_t ids[ENGINE_MAX_K + 1];
	int path[ENGINE_MAX_K]; /* the nodes accepted */
};

/* What is drawn from: for each row what the device drew already; or the row; or else its K likeliest tokens (ops.h topk). Which of them suffices sample.h says. */
struct drawn_from {
	const uint32_t *drawn;   /* [n] or NULL */
	const float *drawn_vals; /* [n] their logits */
	const real *rows;        /* [n,V] or NULL */
	const uint32_t *ids;
	const float *vals; /* [n,K] */
	const float *lse;  /* [n]; what logprobs.c needs */
	int K, V;
};

/* from: len+1 rows: the root's, then one per node. parent[i] < i, -1 the root; no path longer than ENGINE_MAX_K. h: what
 * stands before the first token drawn; position: its place. A drawn token that `ends` says ends the text is the last one. */
struct verdict verify_tree(struct sampler *s, const struct drawn_from *from, const struct sampling *how, const struct history *h, uint32_t position,
			   const uint32_t *proposed, const int16_t *parent, int len, bool (*ends)(const void *arg, uint32_t id), const void *arg);
