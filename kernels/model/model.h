/* What the two models share: where weights come from, RoPE tables, batches.
 *
 * Callers: serve/ (target and drafts), learn/ (draft layout, replay). A model
 * asks for tensors by their Hugging Face name, un-permuted, and never knows
 * the file format (schemas/ does).
 */
#pragma once
#include "kernels/ops.h"

struct tensor_view {
	enum dtype type;  /* DT_F32 or DT_BF16 */
	int rows, cols;   /* vectors: rows = 1 */
	const void *data; /* borrowed from the source until the load returns */
};

struct tensor_source {
	/* 0; -ENOENT when there is no such tensor; other -errno with e filled */
	int (*get)(void *ctx, const char *name, struct tensor_view *ret, struct errtext *e);
	void *ctx;
};

enum { N_BOUNDARIES = 3 };
enum { MODEL_REPEAT_ROWS = 256 }; /* a forward of more rows is not worth remembering (ops.h repeat) */
/* Default boundaries {2, L/2, L-3} (residual stream after b blocks). */
static inline void default_boundaries(int n_layer, int ret[N_BOUNDARIES])
{
	ret[0] = 2;
	ret[1] = n_layer / 2;
	ret[2] = n_layer - 3;
}

enum { ROPE_MAX_FACTORS = 256 }; /* widest head / 2 */
struct rope_config {
	double theta;
	enum { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_FACTORS } kind;
	double factor, low_freq_factor, high_freq_factor, orig_max; /* llama3, linear, yarn */
	double beta_fast, beta_slow, mscale, mscale_all_dim;        /* yarn */
	float factors[ROPE_MAX_FACTORS];                            /* [hd/2], each frequency's divisor (GGUF's rope_freqs) */
};
/* inv_freq [hd/2] and the factor on cos and sin (eagle3.md §1.5) */
void rope_table(const struct rope_config *c, int hd, real *ret_inv_freq, real *ret_mscale);
