/* The target: a Llama-type decoder over ops.h, with boundary features tapped.
 *
 * Source: Hugging Face semantics of Llama, Qwen2 (biases on q, k, v) and Qwen3 (q and k of
 * each head normalised before RoPE). Weights are packed once at load, qkv and
 * gate/up fused. A forward runs any mix of sequences' rows (decode, verify,
 * prefill chunks) as one batch; a row's result never depends on its neighbours.
 * Threads: one at a time, the dev's owner.
 */
#pragma once
#include "kernels/model/model.h"

struct llama_config {
	int n_layer, H, I, n_head, n_kv, hd, V;
	real rms_eps;
	struct rope_config rope;
	int max_ctx;
	bool tied;                    /* lm_head is the embedding */
	bool qkv_bias;                /* Qwen2 */
	bool qk_norm;                 /* Qwen3 */
	int boundaries[N_BOUNDARIES]; /* strictly increasing, in 0..n_layer */
};

struct llama;

/* type: how weights are kept (DT_BF16 to serve, DT_F32 for exactness tests). */
int MUSTCHECK llama_load(struct dev *d, const struct llama_config *c, const struct tensor_source *s,
			 enum dtype type, struct llama **ret, struct errtext *e);
struct llama *llama_free(struct llama *m);
const struct llama_config *llama_cfg(const struct llama *m);
const struct weight *llama_embedding(const struct llama *m); /* [V,H], borrowed; shared by drafts */

struct llama_batch {
	int M;                       /* rows */
	const uint32_t *ids, *pos;   /* [M] */
	const uint32_t *given;       /* ops.h embed; NULL = no ids of that kind */
	const uint32_t *slots;       /* [M] KV slot of each row */
	const struct attn_seq *seqs; /* n_seqs, covering the rows */
	int n_seqs;
	int n_out;                   /* rows with an output; the others leave keys, values and features, and skip most of the last block */
	const uint32_t *out_rows;    /* [n_out] which; NULL = all M (n_out and out_seqs are not read) */
	const struct attn_seq *out_seqs; /* n_out_seqs, covering the rows with an output, in their order */
	int n_out_seqs;
	const uint32_t *logit_rows;  /* [n_logits] which of the rows with an output have logits wanted */
	int n_logits;
	int (*featured)(void *arg);  /* called when the operations that fill features are queued, the rest is not; NULL = no; its failure is the forward's */
	void *arg;
};

/* Outputs are device arrays of the caller: features [M,3,H] (NULL = not wanted),
 * hidden [n_out,H] after the final norm (NULL = not wanted), logits [n_logits,V]. A row's bits do not depend on which others have an output. */
int MUSTCHECK llama_forward(struct llama *m, struct kv_pool *kv, const struct llama_batch *b,
			    real *features, real *hidden, real *logits);
