/* The EAGLE-3 TTT computation: layout, memory, forward, head, backward.
 *
 * Inside learn/ only: ttt_eagle3.c makes the trainer table of it, replay.c walks
 * rounds with its forward half. One struct ttt is one draft's masters plus the
 * activations of one batch; everything lives in device memory of `d`.
 *
 * Shape letters: n rows of the batch, n_k = n-k rows of step k, H hidden, Q =
 * n_head*hd, KV = n_kv*hd, QKV = Q+2KV, I FFN width, V_d draft vocabulary.
 *
 * Rows t >= n-k of step k would embed tokens beyond the end; no loss reaches
 * them and nobody else reads them, so step k simply has n-k rows.
 *
 * The token half of step k at row t is norm(embed[x_{t+1+k}]): a function of t+k
 * alone. So its product with the token half of q/k/v is taken once (ew) and read
 * shifted by k rows at step k; backward gathers the same way (dew).
 *
 * A sequence may be shared by ranks (learn/seqpar.h). n is then this rank's rows, and
 * attention works on A rows of Qa = Q/U and KVa = KV/U columns: those of its group, for its
 * share of the heads. With one rank A = n, Qa = Q, KVa = KV and the arrays are the same ones.
 */
#pragma once
#include "learn/seqpar.h"

/* pass a failure of an op up unchanged */
#define TRY(x)                            \
	do {                              \
		int try_r = (x);          \
		if (try_r < 0)            \
			return try_r;     \
	} while (0)

/* Where each tensor lies in the flat parameter array (order of enum eagle3_tensor). */
struct draft_layout {
	size_t off[E3_N_ALL];
	int rows[E3_N_ALL], cols[E3_N_ALL];
	size_t total;
};
void draft_layout_init(const struct eagle3_config *c, struct draft_layout *ret);

/* What one step keeps for its backward pass. */
struct ttt_step {
	real *g;             /* [n_k,H] feature that went in: fc(f) at k = 0, else the step before's h2, or with norm_output norm(h2) */
	real *h2;            /* [n_k,H] what came out: the next step's g, or with norm_output an array of its own (TTT_TRAIN) */
	real *q, *k, *v;     /* [A_k,Qa] [A_k,KVa] [A_k,KVa], RoPE applied */
	real *attn;          /* [n_k,Q] */
	real *lse;           /* [A_k,Qa/hd] */
	real *h1;            /* [n_k,H] after attention */
	real *gu;            /* [n_k,2I] gate and up before SiLU; backward: then their gradient */
	real *dk, *dv;       /* [A_k,KVa] backward only */
};

enum ttt_mode {
	TTT_TRAIN,   /* every step's activations are kept */
	TTT_FORWARD, /* only keys and values are; the rest is scratch of one step, and only step 0 has g */
};

struct ttt {
	struct dev *d;
	struct eagle3_config c;
	struct draft_layout lay;
	const uint16_t *embedding; /* [V,H] host bf16, borrowed */
	int64_t *d2t;              /* [V_d] host, owned */
	real *w;                   /* flat masters */
	real *dw;                  /* flat gradients; NULL in TTT_FORWARD */
	real *inv_freq, mscale;    /* [hd/2] */
	int head_chunk;            /* rows of logits at a time */
	struct seqpar *sp;         /* owned; NULL in TTT_FORWARD, which is never shared */

	/* one allocation for the activations, cut for cap_rows x cap_steps */
	enum ttt_mode mode;
	int cap_rows, cap_att, cap_steps, n, n_steps;
	int lead;                  /* rows from the first on of which only step 0's keys and values count (ttt_lead) */
	real *arena;
	struct ttt_step step[TTT_MAX_STEPS + 1]; /* [n_steps].g is the last feedback */
	real *f;         /* [n,3H_t] */
	real *fn, *dfn;  /* [n,3H_t] normalised; NULL: fc takes f as it is. dfn: TTT_TRAIN */
	real *frstd;     /* [3,n] of its one norm or its three */
	real *nx;        /* [n,H] with norm_output and TTT_TRAIN: a normalised stream nobody reads */
	real *e, *en;    /* [n,H] embed[x_{j+1}], normalised */
	real *ew, *dew;  /* [n,QKV] */
	real *norm;      /* [n,H] a normalised stream, recomputed where needed */
	real *rstd;      /* [n] */
	real *qkv;       /* [n,QKV] */
	real *act;       /* [n,I]; backward: then its gradient */
	real *dh;        /* [n,H] gradient of the residual stream, walks from the last step to fc */
	real *dq;        /* [A,Qa] */
	real *dattn;     /* [n,Q] */
	real *mix, *dmix;/* [A,Qa] attn and dattn as attention has them; NULL with one rank, where they are the same */
	real *dhead;     /* [n+1,H] head's gradient of its gathered rows; the last row stays 0 */
	real *hrows, *hnorm, *dhnorm; /* [head_chunk,H] */
	real *hrstd;     /* [head_chunk] */
	real *logits;    /* [head_chunk,V_d] */
	real *tz, *tp;   /* dense teachers of a chunk: [head_chunk,H_t] final states, [head_chunk,V_d]; made at first use */

	/* host scratch, cap_rows each */
	uint32_t *pos_k, *rows, *inverse, *argmax, *seg;
	real *weight, *row_loss, *row_alpha, *host_e;
};

static inline real *ttt_w(const struct ttt *t, enum eagle3_tensor i)
{
	return t->w + t->lay.off[i];
}
static inline real *ttt_dw(const struct ttt *t, enum eagle3_tensor i)
{
	return t->dw + t->lay.off[i];
}
static inline int ttt_width_q(const struct ttt *t)
{
	return t->c.n_head * t->c.hd;
}
static inline int ttt_width_kv(const struct ttt *t)
{
	return t->c.n_kv * t->c.hd;
}
static inline int ttt_att_q(const struct ttt *t)
{
	return t->sp ? t->sp->q_heads * t->c.hd : ttt_width_q(t);
}
static inline int ttt_att_kv(const struct ttt *t)
{
	return t->sp ? t->sp->kv_heads * t->c.hd : ttt_width_kv(t);
}
static inline int ttt_width_qkv(const struct ttt *t)
{
	return ttt_width_q(t) + 2 * ttt_width_kv(t);
}

/* ttt_memory.c */
int MUSTCHECK ttt_new(struct dev *d, const struct eagle3_config *c, const int64_t *d2t, const uint16_t *embedding, enum ttt_mode mode,
		      struct ttt **ret, struct errtext *e);
struct ttt *ttt_free(struct ttt *t);
/* Share batches with the ranks of c, in `data` groups, of each U by Ulysses; before the first batch. */
int MUSTCHECK ttt_set_ranks(struct ttt *t, struct comm *c, int data, int ulysses, struct errtext *e);
/* Room for n rows (and the plan's rows of attention) and n_steps steps; keeps what is there when it is enough. */
int MUSTCHECK ttt_reserve(struct ttt *t, int n, int n_steps);
int MUSTCHECK ttt_zero(const struct ttt *t, real *p, size_t n);

/* ttt_forward.c */
/* Features and embedded tokens in, step 0's feature and the shared token half out.
 * ids [n+1] host, features [n,3H_t] host. -EINVAL: an id >= V. */
int MUSTCHECK ttt_begin(struct ttt *t, int n, int n_steps, const uint32_t *ids, const real *features);
/* Rows in front that have no weight at any step are context: later rows see their keys and values of step 0, and nothing else of theirs is asked
 * for. So the steps leave them out: of theirs only what leads to those keys and values is computed, forth and back. Between ttt_begin, which
 * says 0, and ttt_forward; 0 where ranks share the sequence. What is computed of the other rows is the same, bit for bit; sums over rows begin later. */
void ttt_lead(struct ttt *t, const struct train_batch *b);
/* One step on the m rows `rows` (NULL: rows first..first+m-1) from their features g [m,H]: qkv [m,QKV] (NULL: rows first.. of it)
 * with RoPE applied at pos[row]+k. pos [n] host. */
int MUSTCHECK ttt_project(struct ttt *t, int k, const real *g, const uint32_t *rows, int first, int m, const uint32_t *pos);
/* h1 = g + attn Wo^T; h2 = h1 + mlp(h1), all [m,.] */
int MUSTCHECK ttt_block(struct ttt *t, const real *g, const real *attn, real *h1, real *gu, real *h2, int m);
/* norm_output: g = norm(h2) [m,H], the next step's feature; g may be h2. */
int MUSTCHECK ttt_feed_back(struct ttt *t, real *g, const real *h2, int m);
/* Keys and values of steps 0..k as the attention ops take them. */
void ttt_kv_of(const struct ttt *t, int k, struct ttt_kv *ret);
/* Keys, values and queries out of qkv into what attention reads, and its rows of step k done: s->attn. (TTT_TRAIN) */
int MUSTCHECK ttt_attend(struct ttt *t, int k);
/* All steps of a batch (TTT_TRAIN). */
int MUSTCHECK ttt_forward(struct ttt *t, const uint32_t *pos, const uint32_t *seg);
/* Logits [m,V_d] of step k at m rows (at most head_chunk; rows NULL: the first m), into t->logits. */
int MUSTCHECK ttt_logits(struct ttt *t, const real *h2, const uint32_t *rows, int m);

/* ttt_loss.c: loss, accuracy, and the head's share of the backward pass of step
 * k: dW of head and final norm += , t->dh rows 0..n_k-1 += . Fills ret's step k. */
int MUSTCHECK ttt_head_backward(struct ttt *t, int k, real decay_k, enum loss_kind kind, const struct train_batch *b, struct train_result *ret);

/* ttt_backward.c: all steps, last to first; gradients are overwritten. */
int MUSTCHECK ttt_backward(struct ttt *t, real decay, enum loss_kind kind, const struct train_batch *b, struct train_result *ret);
