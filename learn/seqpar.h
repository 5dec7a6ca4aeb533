/* A step over ranks, inside the trainer: sequences dealt to groups of ranks (data), and one sequence over
 * the ranks of its group (USP: Ulysses x ring, eagle3.md §4).
 *
 * Data: of D*S ranks each S neighbours are a group. A batch of several packed runs is cut between runs into D parts,
 * one a group, so that the longest part is as short as it can be (with fewer runs than groups some are empty). Runs
 * see only themselves, so the groups share nothing but sums: of the loss, which is over the rows of the whole batch,
 * and of the gradients.
 *
 * Of a part's n rows, each of its S = U*R ranks owns about n/S and does
 * everything for them: fc, norms, projections, MLP, teacher, loss. Only attention
 * looks at others' rows:
 *
 *   Ulysses: U neighbours swap rows for heads (all-to-all), so that each
 *   holds all their rows for 1/U of the heads; and back afterwards.
 *   Ring: the R such teams send their trunk keys and values round; each rank's queries
 *   meet every block in turn, results merged by log-sum-exp in a fixed order. The
 *   diagonals belong to one row and never travel. Backward the same, the gradient
 *   of a block of keys travelling with it until it is home.
 *
 * Rows are dealt so that a causal ring is in balance: the part is cut into 2R
 * blocks of equal length, and ring rank r owns blocks r and 2R-1-r. (R = 1: one
 * block.) Each block is dealt to the U ranks of the team in order, `chunk` rows each.
 *
 * Step k at row t reads the token, teacher and mask of row t+k, so each span of own
 * rows is followed by a halo of n_steps-1 rows that are computed like all others
 * but take part in nothing: no loss, no attention, gradient 0. It costs those rows,
 * and leaves the rest of the trainer with no notion of ranks. Where the part
 * ends, rows vanish as they do on one rank: step k has the rows below n-k.
 *
 * One rank is D = U = R = 1: one span, no halo, no copy, no message.
 *
 * Gradients are summed once a step in the order of ranks, so weights and optimizer
 * state are the same bits on every rank. Against one rank the order of sums
 * differs: equal within rounding, and the grid belongs to what a run is.
 *
 * Needs U | n_head, and U | n_kv or n_kv | U (then U/n_kv ranks hold the same kv head).
 */
#pragma once
#include "kernels/comm.h"
#include "learn/trainer.h"

struct ttt;

enum { SEQ_SPANS = 2 };

struct seq_part { /* of a batch: what one group trains */
	int first, n; /* rows [first, first+n) of the batch, whole runs */
	int chunk;    /* rows of a block that one rank owns */
};

struct seq_span {
	int first; /* row of the batch */
	int own;   /* rows of this rank at step 0 */
	int at;    /* where they lie among the rank's rows */
	int rows;  /* with the halo */
};

struct seqpar {
	struct dev *d;
	struct comm *c;
	struct comm_group heads, ring; /* my Ulysses team, my ring; in order */
	int n_groups, group;           /* D, and mine */
	int n_head, n_kv, hd;
	int q_heads, kv_heads; /* that this rank attends with */

	/* the plan of one batch: seqpar_plan */
	int n, n_steps, n_spans; /* n: rows of the whole batch */
	struct seq_part *part;   /* [D] */
	struct seq_span span[SEQ_SPANS];
	int n_local;    /* this rank's rows, halos included; at least n_steps */
	int att_rows;   /* rows of my team's blocks at step 0 */
	int att_most;   /* the same of the team of my ring that has most */

	const uint32_t *seg;       /* alone: the batch's */
	uint32_t *att_seg;         /* [att_rows] first row of each row's run, of my part; has_seg */
	uint32_t *lo, *hi, *local; /* [att_rows] scratch: what a block shows each row */
	int cap_att;
	bool has_seg;

	/* device buffers */
	real *send, *recv;   /* Ulysses, exchange_cap reals each */
	size_t exchange_cap;
	real *kv[2];         /* ring: a block's k, then its v; one is read, one arrives */
	real *dkv[3];        /* its gradient: mine, on its way, arriving */
	size_t ring_cap;

	struct train_batch batch; /* my rows of the batch under way; arrays owned */
	int cap_rows, cap_k;      /* of those */
	struct teacher_states states; /* of my rows, where the batch has some; arrays owned, the head borrowed */
	int cap_states, cap_z;
	const struct weight *head;    /* set on ranks that make teachers of states, but on 0, where the batch brings it */
};

/* c NULL or one rank: alone. data, ulysses: D, U (0 = 1); R is the rest. -EINVAL with e: the grid does not fit heads or ranks. */
int MUSTCHECK seqpar_new(struct dev *d, struct comm *c, int data, int ulysses, const struct eagle3_config *cfg, struct seqpar **ret, struct errtext *e);
struct seqpar *seqpar_free(struct seqpar *sp);
static inline bool seqpar_alone(const struct seqpar *sp)
{
	return sp->c->size == 1;
}

/* Cuts n rows between runs (seg as in a batch, NULL: one run) into [n_parts], in order: the largest is as small as can be, later ones may be
 * empty. chunk is left alone. */
void seqpar_cut(const uint32_t *seg, int n, int n_parts, struct seq_part *ret);
/* Who owns which of the parts' rows, unrolled n_steps times. first, n: of each part, as seqpar_cut has them. */
int MUSTCHECK seqpar_plan(struct seqpar *sp, const struct seq_part *part /* [D] */, int n_steps);
int seqpar_own(const struct seqpar *sp, int s, int k);  /* rows of my span s at step k; they lie first */
int seqpar_att(const struct seqpar *sp, int k);         /* rows of my team's blocks at step k */

/* Rank 0 has the whole batch, the others pass NULL: plans, and gives each rank its rows. ret points into sp, or is *whole when alone. feature: reals of a row's features. */
int MUSTCHECK seqpar_share(struct seqpar *sp, const struct train_batch *whole, int feature, int steps, struct train_batch *ret);
/* v [n] becomes the sum over ranks, in order. */
int MUSTCHECK seqpar_total(struct seqpar *sp, double *v, int n);

/* ---- attention of step k; all arrays as learn/ttt.h says ---- */

/* One array in its two forms: rows [.., ld] of this rank with all heads from column col on, and `there` [att rows, my heads]. */
struct seq_field {
	real *rows;
	int ld, col;
	bool kv;   /* heads are key/value heads */
	real *there;
};
int MUSTCHECK seqpar_to_heads(struct seqpar *sp, int k, const struct seq_field *f, int n_fields);
int MUSTCHECK seqpar_to_rows(struct seqpar *sp, int k, const struct seq_field *f, int n_fields); /* gradients of one kv head held twice are added */
/* out, lse over all keys; q and the steps' k, v of t as they are `there`. */
int MUSTCHECK seqpar_attend(struct seqpar *sp, const struct ttt *t, int k, real *out, real *lse, const real *q);
/* dq = ; the steps' dk, dv += */
int MUSTCHECK seqpar_attend_backward(struct seqpar *sp, const struct ttt *t, int k, real *dq, const real *dout, const real *out, const real *lse, const real *q);
