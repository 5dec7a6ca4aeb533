/* The draft interface, serving half: one table per family.
 *
 * The engine keeps one draft state per (sequence, slot) through KV pages it owns;
 * a family turns features and tokens into proposals. EAGLE-3 is the first row;
 * adding a family touches its own file and the table in serve/slots.c.
 * All calls run on the engine's thread with batch arrays. */
#pragma once
#include "kernels/ops.h"

struct draft; /* one loaded version of one family */
#define DRAFT_NONE OP_NO_NAME /* no usable proposal */

struct draft_rows { /* M rows of several sequences; pairs (f_t, x_{t+1}) at position t */
	int M;
	const uint32_t *ids, *pos, *slots;
	const struct attn_seq *seqs; int n_seqs; /* step: of all rows; extend: of each sequence that continues into a proposal its last row alone */
	const uint32_t *given;       /* ops.h embed: what ids may stand for */
	const real *features;        /* [M,3*H_t] device, target's */
	const uint32_t *last_rows;   /* extend: [n_seqs] which rows those are */
};

/* What a draft proposes, n rows of it: ops.h topk_named says what and when it is there. */
struct draft_word {
	int width;       /* of ids and logp [n,width], alloc_shared: target ids, log-probabilities over the draft's vocabulary, best first; all DRAFT_NONE when the logits are not finite */
	uint32_t *ids;
	float *logp;
	uint32_t *first; /* [n] alloc: the best of each for the device's own use; NULL = not wanted */
};

struct draft_kind {
	const char *name; /* "eagle3" */
	/* dir: version folder; embedding: the target's */
	int (*load)(struct dev *d, const char *dir, const struct weight *embedding, int n_target_layers, const int *boundaries,
		    enum dtype type, struct draft **ret, struct errtext *e);
	struct draft *(*free)(struct draft *x);
	/* Scratch for batches of up to M rows, n of which may continue, taken on the loading thread. */
	int (*warm)(struct draft *x, int M, int n);
	/* From the dev it was loaded on to the one it runs on (same back end and ISA). */
	void (*bind)(struct draft *x, struct dev *d);
	/* All that from holds comes to where `into` has it; both are bound to one dev. -EINVAL, nothing touched: they are not of one shape.
	 * Another failure leaves `into` good for free only. */
	int (*adopt)(struct draft *into, const struct draft *from);
	int (*weights_sha)(const struct draft *x, char ret_hex[static 65]); /* of what is held */
	int (*kv_shape)(const struct draft *x, struct kv_pool *ret); /* n_layer, n_kv, d */
	/* Write KV for rows with real features; row i of w and of ret_feedback [n_seqs,H] is what may follow row last_rows[i], and its
	 * feedback. w NULL: none continues, and n_seqs is 0. */
	int (*extend)(struct draft *x, struct kv_pool *kv, const struct draft_rows *r, const struct draft_word *w, real *ret_feedback);
	/* One level more: M rows from the feedback [M,H] that led to them; overwrites feedback; row i of w is what may follow row i. */
	int (*step)(struct draft *x, struct kv_pool *kv, const struct draft_rows *r, const struct draft_word *w, real *feedback);
	int (*hidden)(const struct draft *x); /* H, width of feedback */
};
extern const struct draft_kind draft_eagle3;
