/* The CUDA kernels as C sees them: one launcher a kernel, asynchronous on its stream.
 *
 * Pointers are device memory, shapes as in kernels/ops.h. A launcher returns what
 * cudaGetLastError says of the launch. Whoever calls has checked the sizes. No
 * kernel uses atomics on floats: every sum has one order, which for a serving
 * kernel is a function of the row's own shape alone (the law of ops.h).
 */
#pragma once
#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
	CK_BLOCK = 32,       /* keys of one softmax step, at absolute positions */
	CK_SPLIT = 256,      /* positions that one block of threads goes over in decoding; a multiple of CK_BLOCK */
	CK_PROMPT_SPLIT = 1024, /* the same of a prompt's rows on tensor cores; a multiple of CK_PROMPT_TILE */
	CK_PROMPT_TILE = 64, /* keys of one of their softmax steps, and query rows of one block of threads */
	CK_WARPS = 8,        /* of one block of threads */
	CK_TILE = 32,        /* query rows of one block of threads at most */
	CK_MAX_D = 128,      /* widest head */
	CK_MAX_STEPS = 16,   /* TTT_MAX_STEPS */
	CK_TOPK_MAX = 1024,
	CK_SUM_BLOCK = 4096, /* elements of one partial sum of squares */
	CK_NORM_ROWS = 64,   /* rows of one partial sum of a norm's gradient */
};

/* ---- rows.cu ---- */
cudaError_t ck_rmsnorm(cudaStream_t s, float *y, int ldy, float *rstd, const float *x, int ldx, const float *g, float eps, int M, int H);
cudaError_t ck_rmsnorm_dx(cudaStream_t s, float *dx, int lddx, const float *dy, int lddy, const float *x, int ldx, const float *g, const float *rstd, int M, int H);
/* dg += ; part holds ceil(M/CK_NORM_ROWS)*H floats */
cudaError_t ck_rmsnorm_dg(cudaStream_t s, float *dg, float *part, const float *dy, int lddy, const float *x, int ldx, const float *rstd, int M, int H);
cudaError_t ck_rope(cudaStream_t s, float *x, int ldx, int nh, int hd, const uint32_t *pos, const float *inv_freq, float mscale, int M, int inverse);
cudaError_t ck_silu_gate(cudaStream_t s, float *y, const float *gu, int M, int I);
cudaError_t ck_silu_gate_back(cudaStream_t s, float *dgu, const float *dy, const float *gu, int M, int I);
cudaError_t ck_axpby(cudaStream_t s, float *y, float a, const float *x, float b, size_t n);
cudaError_t ck_copy_rows(cudaStream_t s, float *y, int ldy, const float *x, int ldx, const uint32_t *rows, int M, int n);
/* y[m] = w[ids[m]]: w is bf16 (wide 0) or f32 (wide 1), [N,K]; an id of CK_GIVEN | i is given[i] */
#define CK_GIVEN 0x80000000u
#define CK_NO_NAME 0xFFFFFFFFu /* ck_name: no usable proposal */
cudaError_t ck_embed(cudaStream_t s, float *y, const void *w, int wide, const uint32_t *ids, const uint32_t *given, int M, int K);
/* y [rows,K] bf16 (wide 0) or f32 (wide 1) from x [M,K]; rows from M on are zero */
cudaError_t ck_pad_rows(cudaStream_t s, void *y, int wide, const float *x, int ldx, int M, int rows, int K);
cudaError_t ck_unpad_rows(cudaStream_t s, float *y, int ldy, const float *x, int M, int N, int add); /* x [M,N]; y = or += */

/* ---- topk.cu ---- */
/* K <= CK_TOPK_MAX; ids and vals [M,K], lse [M]; any may be NULL */
cudaError_t ck_topk(cudaStream_t s, uint32_t *ids, float *vals, float *lse, const float *x, int ldx, int M, int N, int K);
/* What ck_topk left (all three of it), as names and log-probabilities: ops.h topk_named */
cudaError_t ck_name(cudaStream_t s, uint32_t *ids, float *logp, uint32_t *first, const uint32_t *best, const float *vals, const float *lse, const uint32_t *names,
		    int M, int N, int K);

/* ---- draw.cu ---- */
struct ck_draw { /* as struct draw */
	double inv_t;
	uint64_t u, top, least;
	uint32_t row;
};
enum { CK_DRAW_FAR = -29, CK_DRAW_ONE_BITS = 40, CK_DRAW_ALL_BITS = 53 }; /* as kernels/cpu/draw.c */
cudaError_t ck_draw(cudaStream_t s, uint32_t *ids, float *vals, const float *x, int ldx, const struct ck_draw *how, int M, int N);

/* ---- attn.cu, prompt.cu: pages are [layer][page][kv head][page_tok][d] ---- */
struct ck_kv {
	void *k, *v; /* of the layer */
	int wide;    /* 1: f32, 0: bf16 */
	int n_kv, d, page_tok;
};
cudaError_t ck_kv_write(cudaStream_t s, const struct ck_kv *kv, const float *k, const float *v, int ld, const uint32_t *slots, int M);
/* all layers; rows of `from` are read before any row of `to` is written: tmp holds n*n_layer*n_kv*d elements */
cudaError_t ck_kv_copy(cudaStream_t s, void *pages, void *tmp, int wide, int n_layer, size_t layer_elems, int n_kv, int d, int page_tok,
		       const uint32_t *to, const uint32_t *from, int n);

/* Rows [row, row+n) of the batch, of one sequence, times `heads` query heads of each group: n*heads <= CK_TILE.
 * Of a prompt on tensor cores: n*heads <= CK_PROMPT_TILE, positions from one multiple of CK_PROMPT_TILE / min(group, CK_PROMPT_TILE) to the next at most. */
struct ck_tile {
	int32_t row, n, head0, heads; /* n 0: nothing to do */
	int32_t split; /* positions [split*CK_SPLIT, +CK_SPLIT), or of CK_PROMPT_SPLIT */
};
/* Of one row of the batch */
struct ck_row {
	int32_t hi;     /* its position: it sees 0..hi */
	int32_t tree0;  /* positions below lie in their places; from here on in path's. INT32_MAX: no tree */
	int32_t path;   /* into paths: places of positions tree0.., relative to tree0 */
	int32_t pages;  /* into pages */
	int32_t splits; /* hi / CK_SPLIT + 1, or of CK_PROMPT_SPLIT */
	int32_t part;   /* when splits > 1: its partial results, [splits][nh] from there on */
};
struct ck_attn {
	struct ck_kv kv;
	const struct ck_tile *tiles, *prompt; /* on FP32 units, on tensor cores */
	const struct ck_row *rows;
	const uint32_t *pages;
	const int16_t *paths;
	const float *q;
	float *out, *parts; /* parts [n][2+d]: max, sum, accumulators; NULL: every row has one split */
	int ldq, ldo, nh, n_tiles, n_prompt, M;
	float scale;
};
cudaError_t ck_attn(cudaStream_t s, const struct ck_attn *a);
cudaError_t ck_attn_prompt(cudaStream_t s, const struct ck_attn *a); /* the tiles of `prompt` alone, without the merge */
/* Heads that the tensor cores' kernels know */
static inline int ck_tensor(int hd)
{
	return hd == 64 || hd == 128;
}

/* ---- ttt.cu ---- */
struct ck_ttt {
	const float *k[CK_MAX_STEPS], *v[CK_MAX_STEPS];
	float *dk[CK_MAX_STEPS], *dv[CK_MAX_STEPS];
	const float *q, *out, *lse, *dout;
	float *o, *l, *dq, *delta; /* delta [n,nh] scratch */
	const uint32_t *seg;      /* or NULL: row t sees trunk keys seg[t]..t */
	const uint16_t *kb, *vb, *qb, *dob; /* bf16 of k[0], v[0], q, dout: the trunk goes over tensor cores (hd as ck_tensor says); NULL: f32.
					     * qb and dob backward only */
	const uint32_t *lo, *hi;  /* or: keys [lo[t], hi[t]) of a further block, merged into o, l and dq as they are */
	int n_steps, n, nk, nh, nkv, hd; /* n query rows, nk keys */
	float scale;
};
cudaError_t ck_ttt_forward(cudaStream_t s, const struct ck_ttt *t);
cudaError_t ck_ttt_backward(cudaStream_t s, const struct ck_ttt *t);

/* ---- ttt_tensor.cu ---- */
cudaError_t ck_ttt_tensor_forward(cudaStream_t s, const struct ck_ttt *t);
cudaError_t ck_ttt_tensor_backward(cudaStream_t s, const struct ck_ttt *t); /* dq, dk[0], dv[0] and delta */

/* ---- distill.cu ---- */
enum ck_distill_kind { CK_MIX, CK_LOG_ALPHA, CK_REVERSE_KL, CK_HARD }; /* as enum distill_kind */
struct ck_distill {
	float *logits;       /* [m,Vd] */
	float *loss, *alpha; /* [m] */
	uint32_t *argmax;    /* [m] */
	float *off;          /* [m,K] scratch */
	const uint32_t *ids; /* [m,K], or NULL: dense */
	const float *p, *w, *mass; /* mass NULL: 1 */
	double floor;
	enum ck_distill_kind kind;
	float kl;
	int m, K, Vd;
};
cudaError_t ck_distill(cudaStream_t s, const struct ck_distill *j);
cudaError_t ck_softmax(cudaStream_t s, float *y, int ldy, const float *x, int ldx, int M, int N);

/* ---- optim.cu ---- */
cudaError_t ck_sumsq(cudaStream_t s, double *part, const float *x, size_t n); /* part: one a CK_SUM_BLOCK */
struct ck_adamw {
	float gscale, beta1, beta2, lr, ic2, eps, decay; /* as kernels/cpu/train.c works them out */
};
cudaError_t ck_adamw(cudaStream_t s, float *w, float *m, float *v, const float *g, size_t n, struct ck_adamw c);

/* ---- pack.cu: what the tap sends ---- */
cudaError_t ck_pack_bf16(cudaStream_t s, uint16_t *y, const float *x, size_t n);
/* e4m3, or with `whole` integers: y [M,H] and a scale for each row */
cudaError_t ck_pack_8bit(cudaStream_t s, uint8_t *y, float *scales, const float *x, int M, int H, int whole);

#ifdef __cplusplus
}
#endif
