/* The draft interface, serving half: one table per family.
 *
 * The engine keeps one draft state per (sequence, slot) through KV pages it owns;
 * a family turns features and tokens into proposals. EAGLE-3 is the first row;
 * adding a family touches its own file and the table in serve/slots.c.
 * All calls run on the engine's thread with batch arrays. */
#pragma once
#include "kernels/ops.h"

struct draft; /* one loaded version of one family */
#define DRAFT_NONE 0xFFFFFFFFu /* no usable proposal */

struct draft_rows { /* M rows of several sequences; pairs (f_t, x_{t+1}) at position t */
	int M;
	const uint32_t *ids, *pos, *slots;
	const struct attn_seq *seqs; int n_seqs;
	const real *features;        /* [M,3*H_t] device, target's */
	const uint32_t *last_rows;   /* [n_seqs] row of each sequence that continues into a proposal, or UINT32_MAX */
};

struct draft_kind {
	const char *name; /* "eagle3" */
	/* dir: version folder; embedding: the target's */
	int (*load)(struct dev *d, const char *dir, const struct weight *embedding, int n_target_layers, const int *boundaries,
		    enum dtype type, struct draft **ret, struct errtext *e);
	struct draft *(*free)(struct draft *x);
	/* Scratch for batches of up to M rows and n sequences, taken on the loading thread. */
	int (*warm)(struct draft *x, int M, int n);
	/* From the dev it was loaded on to the one it runs on (same back end and ISA). */
	void (*bind)(struct draft *x, struct dev *d);
	int (*weights_sha)(const struct draft *x, char ret_hex[static 65]); /* of what is held */
	int (*kv_shape)(const struct draft *x, struct kv_pool *ret); /* n_layer, n_kv, d */
	/* Write KV for rows with real features; for sequence i with a last row, row i of ret_ids and ret_logp [n_seqs,width] are
	 * its likeliest first proposals (target ids, log-probabilities over the draft's vocabulary, best first; all DRAFT_NONE when
	 * the logits are not finite) and row i of ret_feedback [n_seqs,H] its feedback. Rows of sequences without a last row are left alone. */
	int (*extend)(struct draft *x, struct kv_pool *kv, const struct draft_rows *r, int width, uint32_t *ret_ids, float *ret_logp, real *ret_feedback);
	/* One level more: M proposals from the feedback [M,H] that led to them; overwrites feedback; ret_ids, ret_logp [M,width] what may follow each. */
	int (*step)(struct draft *x, struct kv_pool *kv, const struct draft_rows *r, int width, real *feedback, uint32_t *ret_ids, float *ret_logp);
	int (*hidden)(const struct draft *x); /* H, width of feedback */
};
extern const struct draft_kind draft_eagle3;
