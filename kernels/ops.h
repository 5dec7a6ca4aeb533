/* The operations a model needs, one slot each, with its contract.
 *
 * Shape letters: M rows of a batch, H hidden, I FFN width, N outputs, K inputs,
 * V vocabulary, d head width, nh query heads, nkv key/value heads, n rows of a
 * training sequence. Matrices are row-major; ld is the distance between rows in
 * elements. Argument order: device, outputs, inputs, sizes. `real` is float.
 *
 * The law of summation order: every output element is summed in an order fixed
 * by the shape of ONE ROW (K, d, the row's own context length) and the ISA
 * path alone. M, neighbours, chunking and thread count never change a bit. (On a GPU: in strict
 * mode, and not for gemm and the training ops, which give the same bits for the same call.)
 * Accumulation is in f32 at least. On the avx512-bf16 path bf16 weights meet
 * activations rounded to bf16 (vdpbf16ps); on the others bf16 weights are
 * widened and multiplied with f32 activations.
 *
 * "=" overwrites its output, "+=" adds to it. All return 0 or -errno (-ENOMEM,
 * -EIO with dev->error set). Inputs may not alias outputs unless said.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/dev.h"

enum dtype { DT_F32, DT_BF16 };

static inline size_t dtype_size(enum dtype t)
{
	return t == DT_BF16 ? sizeof(uint16_t) : sizeof(real);
}

/* A weight matrix [N outputs, K inputs], repacked once for the back end. */
struct weight {
	int N, K;
	enum dtype type;
	void *packed; /* owned; layout belongs to the back end */
	size_t bytes;
};

/* Paged keys and values of one model: layer l, page p, position within the page.
 * A slot number is page * page_tok + offset; pages are handed out by the caller. */
struct kv_pool {
	int n_layer, n_kv, d;
	int page_tok; /* positions a page: 32 */
	int n_pages;
	enum dtype type;
	void *k, *v;  /* owned device memory; layout belongs to the back end */
	size_t bytes;
};

/* One sequence's part of a batch for paged attention: rows [row0, row0+n_rows)
 * of q are its tokens in places [n_past, n_past+n_rows) of its page table; their keys are already written.
 *
 * parent NULL: a chain. Place is position; row j sees 0..n_past+j.
 * Else the places from tree0 on are a tree of proposals: node i lies in place tree0+i, follows node parent[i] < i
 * (-1: place tree0-1), and its position is tree0 + its depth (0 under -1). A node sees the places before
 * tree0, its ancestors and itself, summed by position: the same bits as if its own path lay there as a chain.
 *
 * prompt: the chain's tokens were given, not generated. A GPU in fast mode computes such rows in bf16, each the same however its prompt
 * is cut into sequences of batches; nothing else looks at it. */
enum { ATTN_TREE_MAX = 64 /* nodes: n_past + n_rows - tree0 */ };
struct attn_seq {
	const uint32_t *pages; /* host; covers n_past+n_rows places */
	int n_past, row0, n_rows;
	const int16_t *parent; /* host, [n_past+n_rows-tree0] or NULL */
	int tree0;
	bool prompt;
};

/* What the target says at n rows, restricted to the draft vocabulary and
 * renormalised there. ids NULL: dense, K == V_d, column = draft id, p in device memory.
 * Otherwise K draft ids a row, p 0 where fewer; all of it in host memory, as mass always is. */
struct teacher {
	int n, K;
	const uint32_t *ids; /* [n,K] draft ids, or NULL */
	const real *p;       /* [n,K] */
	const real *mass;    /* [n] the target's probability of the draft vocabulary, so that mass*p is not renormalised; NULL: 1 */
};

/* What a row of logits is drawn towards. Q the teacher's row, q = softmax(logits), r = mass*Q,
 * alpha = sum_v min(r_v, q_v): how often a proposal drawn from q is accepted. */
enum distill_kind {
	DISTILL_MIX,        /* kl * -Q.log q + (1-kl) * (1 - alpha): cross-entropy at kl 1, total variation at kl 0 */
	DISTILL_LOG_ALPHA,  /* -log alpha; its gradient is bounded by 2 in the 1-norm, whatever alpha */
	DISTILL_REVERSE_KL, /* sum_v q_v (log q_v - log max(Q_v, DISTILL_FLOOR)) */
	DISTILL_HARD,       /* -log q of the teacher's likeliest token (ties: the first column) */
};
#define DISTILL_FLOOR 1e-6
struct distill {
	enum distill_kind kind;
	real kl; /* DISTILL_MIX */
};

/* Training keys/values of TTT steps 0..k: step 0 is the trunk, j >= 1 diagonals. */
enum { TTT_MAX_STEPS = 16 };
struct ttt_kv {
	int n_steps;                  /* k+1 */
	const real *k[TTT_MAX_STEPS]; /* each [n, nkv*d], RoPE applied */
	const real *v[TTT_MAX_STEPS];
	real *dk[TTT_MAX_STEPS];      /* backward only, += */
	real *dv[TTT_MAX_STEPS];
};

/* Trunk keys of other rows than the query's, as they come round the ring (learn/seqpar.h). */
struct ttt_block {
	int n;                   /* keys */
	const real *k, *v;       /* [n, nkv*d], RoPE applied */
	real *dk, *dv;           /* backward only, += */
	const uint32_t *lo, *hi; /* host, [query rows]: row t sees keys [lo[t], hi[t]) of this block; equal: none */
};

/* How the tap takes features along (schemas/record.md): bf16 [M,H]; or 8 bits [M,H] and then, at the next multiple of
 * 4, a float a row to multiply them by, both made of the bf16 as schemas/record_payload.c makes them, bit for bit. */
enum pack_kind { PACK_BF16, PACK_FP8, PACK_INT8 };

/* How a token is drawn from a row of N logits x. What the numbers are made of is serving's affair (serve/sample.h).
 *
 * A logit weighs w = DRAW_ONE e^((x - max) inv_t), rounded to a whole number, half to even: so sums have no order, and every back end
 * draws the same token from the same logits. The exponential is the one of kernels/cpu/draw.c, in double, each product and each sum rounded
 * for itself. -inf and NaN weigh nothing. Ranks go by logit, then by lower id: of the best, the fewest are kept whose
 * weights come to `top` of the whole, one at least; of these the ones that weigh `least` or more. The token is the first, by id,
 * whose running sum exceeds `u` of what is kept. Where max is not finite the token is the first id of +inf, or 0. */
#define DRAW_ALL ((uint64_t)1 << 53) /* the whole, for top and u */
#define DRAW_ONE ((uint64_t)1 << 40) /* what the best one weighs */
enum { DRAW_MOST = 1 << 23 /* ids of a row: their sum stays below 2^64 */ };
struct draw {
	double inv_t;   /* 1 / temperature, > 0 */
	uint64_t u;     /* 0..DRAW_ALL-1 */
	uint64_t top;   /* 0..DRAW_ALL; DRAW_ALL: all are kept */
	uint64_t least; /* 0..DRAW_ONE */
	uint32_t row;   /* of x */
};

enum { OP_STAMPS = 128 };
#define OP_GIVEN 0x80000000u
#define OP_NO_NAME 0xFFFFFFFFu

struct ops {
	/* ---- memory ---- */
	void *(*alloc)(struct dev *d, size_t bytes); /* zeroed, 64-byte aligned; NULL = out of memory */
	/* The same that the host may read and write too, after sync: what the device leaves for it */
	void *(*alloc_shared)(struct dev *d, size_t bytes);
	void (*free)(struct dev *d, void *p);        /* of either; NULL is fine */
	int (*upload)(struct dev *d, void *dst, const void *host, size_t bytes); /* from the device's own memory too */
	int (*download)(struct dev *d, void *host, const void *src, size_t bytes); /* waits */
	int (*zero)(struct dev *d, void *p, size_t bytes);
	int (*sync)(struct dev *d); /* wait until all that was asked is done, and say whether it was */
	/* Note the time at which all that was asked so far is done, as stamp i of OP_STAMPS; and, after sync, the ms from
	 * stamp a to stamp b, below 0 where one of them could not be taken. */
	void (*stamp)(struct dev *d, int i);
	double (*lapse)(struct dev *d, int a, int b);

	/* Do run(arg), which queues operations, or what amounts to it: a back end may remember, under the key, what run queued, and queue that
	 * instead of calling it. So the key [n bytes, no padding undefined] holds all that their arguments depend on: sizes, flags, every address of device
	 * memory and of the host arrays (ids, slots, seqs ...) they take along. What lies there may change from run to run;
	 * `pages` and `parent` of a sequence may lie anywhere. run must do nothing that cannot be done twice, take no memory and not wait. */
	int (*repeat)(struct dev *d, const void *key, size_t n, int (*run)(void *arg), void *arg);

	/* ---- weights ---- */
	/* Pack src [N,K] of type src_type (host memory) as `type`. f32 to bf16 rounds to
	 * nearest even. weight_unpack gives back [N,K] in w->type, bit for bit what was packed. */
	int (*weight_pack)(struct dev *d, struct weight *ret, enum dtype type, int N, int K, const void *src, enum dtype src_type);
	int (*weight_unpack)(struct dev *d, void *host_dst, const struct weight *w);
	void (*weight_free)(struct dev *d, struct weight *w); /* zeroed struct is fine */
	/* y[m,:] = w[ids[m],:]            y [M,K]. An id of OP_GIVEN | i stands for given[i], which the device
	 * holds and the host may not know yet (topk_named's first); given NULL: there are none. */
	int (*embed)(struct dev *d, real *y, const struct weight *w, const uint32_t *ids, const uint32_t *given, int M);
	/* y = x w^T (+ y when add)        y [M,N] ldy, x [M,K] ldx */
	int (*linear)(struct dev *d, real *y, int ldy, const struct weight *w, const real *x, int ldx, int M, bool add);

	/* ---- rows ---- */
	/* y = x * rsqrt(mean(x²)+eps) * g; rstd [M] when not NULL. y may be x. */
	int (*rmsnorm)(struct dev *d, real *y, int ldy, real *rstd, const real *x, int ldx, const real *g, real eps, int M, int H);
	/* rotate-half RoPE in place on nh heads of width hd; angle pos*inv_freq[i];
	 * cos and sin times mscale. Backward = the same with inverse true. */
	int (*rope)(struct dev *d, real *x, int ldx, int nh, int hd, const uint32_t *pos, const real *inv_freq, real mscale, int M, bool inverse);
	/* y[M,I] = silu(gu[:, :I]) * gu[:, I:]    gu [M,2I] */
	int (*silu_gate)(struct dev *d, real *y, const real *gu, int M, int I);
	int (*add)(struct dev *d, real *y, const real *x, size_t n); /* y += x */
	int (*copy_rows)(struct dev *d, real *y, int ldy, const real *x, int ldx, const uint32_t *rows, int M, int n); /* y[m]=x[rows[m]]; rows NULL: identity */
	/* Per row of x [M,N]: the K largest, sorted, ties by lower index, and the
	 * log-sum-exp over all N. Host outputs; any may be NULL. K <= 1024 on a GPU. */
	int (*topk)(struct dev *d, uint32_t *ids, float *vals, float *lse, const real *x, int ldx, int M, int N, int K);
	/* The same into alloc_shared memory, there after sync. */
	int (*topk_async)(struct dev *d, uint32_t *ids, float *vals, float *lse, const real *x, int ldx, int M, int N, int K);

	/* What a draft proposes after each row of its logits x [M,N]: the K best columns as names[column] and their
	 * log-probabilities, best first; in a row whose log-sum-exp is not finite all are OP_NO_NAME. ids and logp [M,K] lie in alloc_shared
	 * memory, there after sync. first [M] (alloc; NULL: not wanted) gets each row's best, or 0 where there is none: embed's `given`. names [N] (alloc). */
	int (*topk_named)(struct dev *d, uint32_t *ids, float *logp, uint32_t *first, const real *x, int ldx, int M, int N, int K, const uint32_t *names);

	/* M draws: ids[m] from row how[m].row of x, and vals[m], its logit. how: host; ids and vals [M] lie in
	 * alloc_shared memory, there after sync. N <= DRAW_MOST. */
	int (*draw)(struct dev *d, uint32_t *ids, float *vals, const real *x, int ldx, const struct draw *how, int M, int N);

	/* ---- paged attention ---- */
	int (*kv_new)(struct dev *d, struct kv_pool *p); /* sizes filled in by the caller */
	void (*kv_free)(struct dev *d, struct kv_pool *p);
	/* rows m of k and v (each [M, nkv*d], row distance ld) to slots[m] of a layer */
	int (*kv_write)(struct dev *d, struct kv_pool *p, int layer, const real *k, const real *v, int ld, const uint32_t *slots, int M);
	/* copy whole positions of all layers: dst_slots[i] = src_slots[i] */
	int (*kv_copy)(struct dev *d, struct kv_pool *p, const uint32_t *dst_slots, const uint32_t *src_slots, int n);
	/* out [M,nh*d] ldo = softmax(q k^T scale) v, q [M,nh*d] ldq, GQA; who sees whom as attn_seq says */
	int (*attn)(struct dev *d, real *out, int ldo, const real *q, int ldq, const struct kv_pool *p, int layer, const struct attn_seq *seqs, int n_seqs, int nh, real scale);

	/* ---- training ---- */
	/* C = op(A) op(B) (+ C when add); op(A) [M,K], op(B) [K,N]; tA: A is stored [K,M] */
	int (*gemm)(struct dev *d, real *C, int ldc, bool tA, const real *A, int lda, bool tB, const real *B, int ldb, int M, int N, int K, bool add);
	/* dx += , dg +=  from dy, with y = x rstd g */
	int (*rmsnorm_backward)(struct dev *d, real *dx, int lddx, real *dg, const real *dy, int lddy, const real *x, int ldx, const real *g, const real *rstd, int M, int H);
	/* dgu = ; dgu may be gu */
	int (*silu_gate_backward)(struct dev *d, real *dgu, const real *dy, const real *gu, int M, int I);
	/* TTT attention (eagle3.md §3.3): query row t of the last step sees trunk rows
	 * seg[t]..t and, of each diagonal, row t. out [n,nh*d], lse [n,nh]. seg [n]: first
	 * row of the run that row t belongs to (packing); NULL = all zeros. Nothing
	 * quadratic is stored. */
	int (*ttt_attn)(struct dev *d, real *out, real *lse, const real *q, const struct ttt_kv *kv, const uint32_t *seg, int n, int nh, int nkv, int hd, real scale);
	/* dq = ; kv->dk, kv->dv += */
	int (*ttt_attn_backward)(struct dev *d, real *dq, const struct ttt_kv *kv, const real *dout, const real *out, const real *lse, const real *q, const uint32_t *seg, int n, int nh, int nkv, int hd, real scale);
	/* The same query rows meet a further block of trunk keys: out and lse, as ttt_attn and earlier blocks left
	 * them, become those over all keys seen. Optional: NULL where the back end cannot share a sequence by ring. */
	int (*ttt_attn_more)(struct dev *d, real *out, real *lse, const real *q, const struct ttt_block *b, int n, int nh, int nkv, int hd, real scale);
	/* dq, b->dk, b->dv += ; out and lse as after the last block */
	int (*ttt_attn_more_backward)(struct dev *d, real *dq, const struct ttt_block *b, const real *dout, const real *out, const real *lse, const real *q, int n, int nh, int nkv, int hd, real scale);
	/* y = softmax(x) of each row; y may be x */
	int (*softmax)(struct dev *d, real *y, int ldy, const real *x, int ldx, int M, int N);
	/* Loss of rows [r0, r0+m) of the teacher against logits [m,Vd], and its gradient: overwrites logits with
	 * w times the gradient of the row's loss by its logits. w [m] (host) holds the row's weight and every
	 * normalisation. Host outputs per row: loss (without w), argmax, alpha; any may be NULL. */
	int (*distill)(struct dev *d, real *logits, real *loss, uint32_t *argmax, real *alpha, const struct teacher *q, int r0, const real *w, int m, int Vd, struct distill to);
	/* Pack x [M,H] into `to` (alloc_shared), which is whole once `packed` says so of the ticket, or of a later one. x may
	 * change as soon as this returns. The caller's stream never waits for the host's memory. 1: too much is
	 * under way already, nothing was done. The CPU packs at once, and bf16 alone (else -ENOTSUP): the tap's thread does the rest. */
	int (*pack)(struct dev *d, void *to, enum pack_kind kind, const real *x, int M, int H, uint64_t *ret_ticket);
	bool (*packed)(struct dev *d, uint64_t ticket);
	/* y = a x + b y */
	int (*axpby)(struct dev *d, real *y, real a, const real *x, real b, size_t n);
	/* host *ret = sum of squares, in double, order fixed by n alone */
	int (*sumsq)(struct dev *d, double *ret, const real *x, size_t n);
	/* AdamW with bias correction, decoupled decay; step counts from 1 */
	int (*adamw)(struct dev *d, real *w, real *m, real *v, const real *g, size_t n, real lr, real beta1, real beta2, real eps, real wd, real gscale, int64_t step);
};

/* bf16 helpers on the host */
static inline float bf16_to_f32(uint16_t h)
{
	union { uint32_t u; float f; } x = {.u = (uint32_t)h << 16};
	return x.f;
}
static inline uint16_t f32_to_bf16(float f) /* nearest even; NaN stays NaN */
{
	union { float f; uint32_t u; } x = {.f = f};
	if ((x.u & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)((x.u >> 16) | 0x40u);
	return (uint16_t)((x.u + 0x7fffu + ((x.u >> 16) & 1u)) >> 16);
}
