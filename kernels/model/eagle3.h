/* The EAGLE-3 draft layer (eagle3.md §1), as served.
 *
 * One layer: e = embed[a]; g = fc(f) or the previous step's feedback;
 * x = [norm_in(e), norm_hidden(g)]; attention over 2H-wide input; h = g + o(attn);
 * h += mlp(norm_post(h)); logits = head(norm(h)) over the draft vocabulary;
 * feedback = h before the final norm.
 *
 * Four flags of later drafts change one line each (eagle3.md §1.4): norm_before_fc, g = fc(norm_fc(f)); fc_norm, the same with
 * each of the three features normalised by itself; norm_before_residual, h = norm_hidden(g) + o(attn); norm_output, feedback =
 * norm(h).
 */
#pragma once
#include "kernels/model/model.h"

struct eagle3_config {
	int H, H_t, I, n_head, n_kv, hd, V, V_d;
	real rms_eps;
	struct rope_config rope;
	int max_ctx;
	int boundaries[N_BOUNDARIES];
	bool norm_before_residual, norm_before_fc, fc_norm, norm_output; /* all false = plain EAGLE-3; the two of fc exclude each other */
};

/* Names, shapes and order of a draft's own tensors: the one table both the server
 * and the learner walk. rows/cols as stored ([out,in]; vectors rows = 1). */
enum eagle3_tensor {
	E3_FC, E3_NORM_IN, E3_NORM_HIDDEN, E3_Q, E3_K, E3_V, E3_O, E3_NORM_POST,
	E3_GATE, E3_UP, E3_DOWN, E3_NORM, E3_HEAD, E3_N_TENSORS, /* every draft has these */
	E3_NORM_FC = E3_N_TENSORS, E3_N_ALL                      /* [3 H_t] with norm_before_fc or fc_norm; else it has no columns */
};
const char *eagle3_tensor_name(enum eagle3_tensor t); /* "fc.weight", "midlayer.self_attn.q_proj.weight", ... */
void eagle3_tensor_shape(const struct eagle3_config *c, enum eagle3_tensor t, int *ret_rows, int *ret_cols);
/* As how many tensors a checkpoint holds it: 1, or 3 for fc_norm's, or 0. They are parts of its columns, end to end. */
int eagle3_tensor_parts(const struct eagle3_config *c, enum eagle3_tensor t);
const char *eagle3_part_name(const struct eagle3_config *c, enum eagle3_tensor t, int part);

struct eagle3;

/* d2t [V_d]: offsets as in the file (target id = draft id + d2t); copied.
 * embedding: the target's, borrowed for the draft's life. */
int MUSTCHECK eagle3_load(struct dev *d, const struct eagle3_config *c, const struct tensor_source *s,
			  const int64_t *d2t, const struct weight *embedding, enum dtype type,
			  struct eagle3 **ret, struct errtext *e);
struct eagle3 *eagle3_free(struct eagle3 *m);
const struct eagle3_config *eagle3_cfg(const struct eagle3 *m);
enum dtype eagle3_type(const struct eagle3 *m);
/* Load on one dev, run on another of the same back end and ISA: packing needs no dev of
 * its own, so a version is loaded on a thread that does not hold the engine's. */
void eagle3_set_dev(struct eagle3 *m, struct dev *d);
/* Copy all that from holds to where `into` has it, so that its addresses stay (ops.h repeat); both run on the same dev. -EINVAL, nothing
 * touched: they are not of one shape. Another failure leaves `into` good for eagle3_free only. */
int MUSTCHECK eagle3_adopt(struct eagle3 *into, const struct eagle3 *from);
/* Take scratch for batches of up to M rows, n_out of them with an output, now rather than at first use. */
int MUSTCHECK eagle3_reserve(struct eagle3 *m, int M, int n_out);
/* A number that no other draft has, and that changes when addresses do that a forward uses of it: for keys of ops.h repeat. 0 before
 * the first eagle3_reserve. */
uint64_t eagle3_version(const struct eagle3 *m);
uint32_t eagle3_target_id(const struct eagle3 *m, uint32_t draft_id);
/* Unpack one tensor back to canonical order in the kept dtype, for the hash of what is held. */
int MUSTCHECK eagle3_unpack(const struct eagle3 *m, enum eagle3_tensor t, void *ret_host, size_t bytes);

struct eagle3_batch {
	int M; /* rows whose keys and values are written */
	const uint32_t *ids, *pos, *slots;
	const uint32_t *given; /* ops.h embed; NULL = no ids of that kind */
	int n_out;                 /* rows with an output */
	const uint32_t *out_rows;  /* [n_out] which; NULL = all M, or none where n_out is 0 */
	const uint32_t *out_pos;   /* [n_out] their positions; not read where out_rows is NULL */
	const struct attn_seq *seqs; /* of the rows with an output, in their order */
	int n_seqs;
};

/* features [M,3*H_t] device: rows from the target (fc applied); or NULL and
 * feedback_in [M,H]: rows of a running chain. Outputs: feedback_out [n_out,H] (h; may be feedback_in where all rows have one),
 * logits [n_out,V_d]; either may be NULL. A row's bits do not depend on which others have an output. KV pool: n_layer 1. */
int MUSTCHECK eagle3_forward(struct eagle3 *m, struct kv_pool *kv, const struct eagle3_batch *b,
			     const real *features, const real *feedback_in, real *feedback_out, real *logits);
