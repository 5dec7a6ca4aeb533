/* What the CPU back end's files share: its state, the table of inner kernels that
 * one ISA path fills, the packed layouts, and how work is split.
 *
 * Inner kernels come from one source, kern.inc, compiled once a path. They are
 * given as a table so that everything above them (blocking, threads, packing) is
 * written once. Layout: a "panel" is nr outputs of a matrix, k-major: element
 * (k, j) of an f32 panel lies at k*nr + j. In a bf16 panel the two halves of a
 * row of nr are interleaved (0, nr/2, 1, nr/2+1, ...): one load of 32-bit lanes
 * then widens with one shift and one mask. The avx512-bf16 path packs bf16 *weights*
 * in pairs of k instead, for vdpbf16ps (`dot_pairs`), but not its KV pages.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/cpu/pool.h"
#include "kernels/ops.h"

enum {
	CPU_KC = 384, /* longest chain of a dot product before it is added to the total */
	CPU_ATTN_BLOCK = 128, /* keys of one softmax step, at absolute positions */
	CPU_PAGE = 32, /* kv page must be a multiple */
	CPU_MAX_MR = 12,
	CPU_MAX_NR = 32,
	CPU_HUGE = 2 << 20,
	CPU_STREAMS = 4, /* places in memory that are fetched from at a time */
};

/* One product of a few rows with a run of panels: C [R, cols] (ldc) = or += A B.
 * A(r,k) = A[r*as_m + k*as_k], one of as_m, as_k being 1; panel p of B starts at
 * B + p*ps and has rows bs apart (bs = nr for packed, more for plain row-major
 * matrices whose width is a multiple of nr). R <= mr. */
struct cpu_product {
	int R, cols, K;
	bool add;
	real *C;
	size_t ldc;
	const real *A;
	size_t as_m, as_k;
	const void *B;
	size_t bs, ps;
	/* hint for bf16: places wanted later, a quarter of a panel's row of each per k (pairs: of the first two); some may be the same; first NULL: none */
	const char *ahead[CPU_STREAMS];
};

/* Panels that a tile of R rows takes side by side in product_f32 and product_bf16: one row needs more chains in
 * flight. (product_pairs: as many as the caller gives, two at most.) */
#define CPU_PANELS(R) ((R) == 1 ? 4 : 1)

struct cpu_softmax {
	real max, sum, scale; /* scale: what the caller's accumulators must be multiplied by */
};

struct cpu_kernels {
	int nr, mr;
	bool dot_pairs;
	void (*product_f32)(const struct cpu_product *p);
	void (*product_bf16)(const struct cpu_product *p);
	/* bf16 on both sides, B in the layout of dot_pairs; the pair (k, k+1) of row r of A lies at A + r*as_m + k*as_k (rows as they are:
	 * as_k 1; strips of pairs: as_m 2). NULL elsewhere */
	void (*product_pairs)(const struct cpu_product *p);
	/* as cpu_pack, rounded to bf16 in pairs of k: strip i at dst + i*w*kc, [kc/2][w][2], an odd kc filled up with 0. NULL elsewhere */
	void (*pack_pairs)(uint16_t *dst, int w, const real *src, size_t ks, size_t js, int n, int kc);
	real (*dot)(const real *a, const real *b, int n);
	void (*axpy)(real *y, real a, const real *x, int n); /* y += a x */
	void (*axpby)(real *y, real a, const real *x, real b, size_t n); /* y = a x + b y */
	void (*scale)(real *y, real a, int n);
	real (*row_max)(const real *x, int n);
	void (*round_bf16)(uint16_t *y, const real *x, int n);
	real (*exp_sum)(const real *x, real shift, int n); /* sum exp(x - shift) */
	void (*exp_scaled)(real *y, const real *x, real shift, real a, int n); /* y = a exp(x - shift) */
	/* one online-softmax step: s (n, a multiple of 32) becomes exp(s - max) */
	void (*softmax_step)(real *s, int n, struct cpu_softmax *st);
	/* p = exp(s - shift), ds = p * (dp - delta); p may be s, ds may be dp */
	void (*softmax_back)(real *p, real *ds, const real *s, const real *dp, real shift, real delta, int n);
	real (*rmsnorm)(real *y, const real *x, const real *g, real eps, int H);
	void (*rmsnorm_back)(real *dx, const real *dy, const real *x, const real *g, real rstd, int H);
	void (*mul_axpy)(real *y, real a, const real *x, const real *z, int n); /* y += a x z */
	void (*silu_gate)(real *y, const real *g, const real *u, int n);
	void (*silu_gate_back)(real *dg, real *du, const real *dy, const real *g, const real *u, int n);
	void (*rope)(real *x0, real *x1, const real *c, const real *s, int half);
	void (*adamw)(real *w, real *m, real *v, const real *g, size_t n, const real *coef); /* coef: see train.c */
};

extern const struct cpu_kernels cpu_kernels_portable, cpu_kernels_avx2, cpu_kernels_avx512;
void cpu_kernels_add_pairs(struct cpu_kernels *k); /* to avx512: avx512-bf16 */

struct rope_cache;
struct chunk;

struct cpu {
	struct pool *pool;
	struct cpu_kernels kernels; /* of the path */
	const struct cpu_kernels *k; /* them */
	int max_threads;
	void *scratch; /* grows, never shrinks; one op at a time uses it */
	size_t scratch_bytes;
	struct rope_cache *rope;
	struct chunk *chunk; /* where the next weight goes; NULL at first */
	double stamps[OP_STAMPS]; /* ms */
};

static inline struct cpu *cpu_of(struct dev *d)
{
	return d->impl;
}

static inline int cpu_min(int a, int b)
{
	return a < b ? a : b;
}

static inline int cpu_max(int a, int b)
{
	return a > b ? a : b;
}

static inline size_t cpu_round_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

/* k as pairs take it */
static inline int cpu_even(int k)
{
	return k + k % 2;
}

/* Part t of n of [0, total), cut at multiples of unit. */
static inline void cpu_split(int total, int unit, int t, int n, int *ret_from, int *ret_to)
{
	int64_t units = (total + unit - 1) / unit;
	*ret_from = cpu_min(total, (int)(units * t / n) * unit);
	*ret_to = cpu_min(total, (int)(units * (t + 1) / n) * unit);
}

/* The next piece of [0, total) that no thread has: at most `most`, towards the end less, but `least` (which cuts it into
 * whole units) at least, so that the threads end together. False: all is taken. *next begins at 0. */
static inline bool cpu_next(_Atomic int *next, int total, int least, int most, int threads, int *ret_from, int *ret_to)
{
	int at = atomic_load_explicit(next, memory_order_relaxed), n;
	do {
		if (at >= total)
			return false;
		n = threads > 1 ? (total - at) / (2 * threads) / least * least : most;
		n = cpu_min(cpu_min(most, cpu_max(least, n)), total - at);
	} while (!atomic_compare_exchange_weak_explicit(next, &at, at + n, memory_order_relaxed, memory_order_relaxed));
	*ret_from = at;
	*ret_to = at + n;
	return true;
}

/* The k-blocks of every matrix product: a function of K alone (the law of order). */
static inline int cpu_kblock(int K)
{
	int blocks = (K + CPU_KC - 1) / CPU_KC;
	return (int)cpu_round_up((size_t)((K + blocks - 1) / blocks), 8);
}

/* Where element j of a row of nr lies in a bf16 panel. */
static inline int cpu_lane(int j, int nr)
{
	int h = nr / 2;
	return j < h ? 2 * j : 2 * (j - h) + 1;
}

/* cpu/mem.c */
void *cpu_alloc_bytes(size_t bytes); /* zeroed; 64-byte or, when large, huge-page aligned; free() */
void *cpu_scratch(struct dev *d, size_t bytes); /* valid until the next call; NULL: -ENOMEM was noted */
int cpu_fail_memory(struct dev *d, const char *what, size_t bytes); /* -ENOMEM */
int cpu_bad(struct dev *d, const char *what); /* -EINVAL */
/* Run over the pool with as many threads as `work` (about one per flop) is worth. */
void cpu_run(struct dev *d, double work, void (*fn)(void *ctx, int t, int n), void *ctx);
/* How many threads cpu_run would use */
int cpu_threads_for(const struct dev *d, double work);

/* cpu/arena.c: zeroed memory for weights; free with the same size, from any thread */
void *cpu_arena_alloc(struct chunk **open, size_t bytes);
void cpu_arena_free(void *p, size_t bytes);
void cpu_arena_close(struct chunk *open);

/* cpu/weight.c */
int cpu_weight_pack(struct dev *d, struct weight *ret, enum dtype type, int N, int K, const void *src, enum dtype src_type);
int cpu_weight_unpack(struct dev *d, void *host_dst, const struct weight *w);
void cpu_weight_free(struct dev *d, struct weight *w);
int cpu_embed(struct dev *d, real *y, const struct weight *w, const uint32_t *ids, const uint32_t *given, int M);
/* cpu/pack.c: columns [0, n) of a kc-row block whose (k, j) lies at src[k*ks + j*js],
 * ks or js being 1, into strips of w columns: strip i at dst + i*w*kc, [kc][w] */
void cpu_pack(real *dst, int w, const real *src, size_t ks, size_t js, int n, int kc);
/* cpu/linear.c */
int cpu_linear(struct dev *d, real *y, int ldy, const struct weight *w, const real *x, int ldx, int M, bool add);
/* cpu/rows.c */
int cpu_rmsnorm(struct dev *d, real *y, int ldy, real *rstd, const real *x, int ldx, const real *g, real eps, int M, int H);
int cpu_silu_gate(struct dev *d, real *y, const real *gu, int M, int I);
int cpu_add(struct dev *d, real *y, const real *x, size_t n);
int cpu_axpby(struct dev *d, real *y, real a, const real *x, real b, size_t n);
int cpu_copy_rows(struct dev *d, real *y, int ldy, const real *x, int ldx, const uint32_t *rows, int M, int n);
int cpu_rmsnorm_backward(struct dev *d, real *dx, int lddx, real *dg, const real *dy, int lddy, const real *x, int ldx, const real *g,
			 const real *rstd, int M, int H);
int cpu_silu_gate_backward(struct dev *d, real *dgu, const real *dy, const real *gu, int M, int I);
int cpu_tap_pack(struct dev *d, void *to, enum pack_kind kind, const real *x, int M, int H, uint64_t *ret_ticket);
bool cpu_tap_packed(struct dev *d, uint64_t ticket);
/* cpu/rope.c */
int cpu_rope(struct dev *d, real *x, int ldx, int nh, int hd, const uint32_t *pos, const real *inv_freq, real mscale, int M, bool inverse);
void cpu_rope_free(struct rope_cache *c);
/* cpu/topk.c */
int cpu_topk(struct dev *d, uint32_t *ids, float *vals, float *lse, const real *x, int ldx, int M, int N, int K);
int cpu_topk_named(struct dev *d, uint32_t *ids, float *logp, uint32_t *first, const real *x, int ldx, int M, int N, int K, const uint32_t *names);
int cpu_draw(struct dev *d, uint32_t *ids, float *vals, const real *x, int ldx, const struct draw *how, int M, int N);
/* cpu/kv.c */
int cpu_kv_new(struct dev *d, struct kv_pool *p);
void cpu_kv_free(struct dev *d, struct kv_pool *p);
int cpu_kv_write(struct dev *d, struct kv_pool *p, int layer, const real *k, const real *v, int ld, const uint32_t *slots, int M);
int cpu_kv_copy(struct dev *d, struct kv_pool *p, const uint32_t *dst_slots, const uint32_t *src_slots, int n);
size_t cpu_kv_head_elems(const struct cpu_kernels *k, const struct kv_pool *p); /* of V, the wider one, per page and head */
void *cpu_kv_head(const struct cpu_kernels *kn, const struct kv_pool *p, int layer, uint32_t page, int head, bool v);
/* One position of one head, between pages laid out as the pool's are */
void cpu_kv_move(const struct cpu_kernels *kn, const struct kv_pool *p, void *k, void *v, int to, const void *from_k, const void *from_v, int from);
void cpu_kv_put(const struct cpu_kernels *kn, struct kv_pool *p, int layer, uint32_t slot, const real *k, const real *v);
/* cpu/attn.c */
int cpu_attn(struct dev *d, real *out, int ldo, const real *q, int ldq, const struct kv_pool *p, int layer, const struct attn_seq *seqs,
	     int n_seqs, int nh, real scale);
/* cpu/gemm.c */
int cpu_gemm(struct dev *d, real *C, int ldc, bool tA, const real *A, int lda, bool tB, const real *B, int ldb, int M, int N, int K,
	     bool add);
/* cpu/ttt_attn.c */
int cpu_ttt_attn(struct dev *d, real *out, real *lse, const real *q, const struct ttt_kv *kv, const uint32_t *seg, int n, int nh, int nkv,
		 int hd, real scale);
int cpu_ttt_attn_backward(struct dev *d, real *dq, const struct ttt_kv *kv, const real *dout, const real *out, const real *lse,
			  const real *q, const uint32_t *seg, int n, int nh, int nkv, int hd, real scale);
int cpu_ttt_attn_more(struct dev *d, real *out, real *lse, const real *q, const struct ttt_block *b, int n, int nh, int nkv, int hd, real scale);
int cpu_ttt_attn_more_backward(struct dev *d, real *dq, const struct ttt_block *b, const real *dout, const real *out, const real *lse,
			       const real *q, int n, int nh, int nkv, int hd, real scale);
/* cpu/distill.c */
int cpu_softmax(struct dev *d, real *y, int ldy, const real *x, int ldx, int M, int N);
int cpu_distill(struct dev *d, real *logits, real *loss, uint32_t *argmax, real *alpha, const struct teacher *q, int r0, const real *w,
		int m, int Vd, struct distill to);
/* cpu/train.c */
int cpu_sumsq(struct dev *d, double *ret, const real *x, size_t n);
int cpu_adamw(struct dev *d, real *w, real *m, real *v, const real *g, size_t n, real lr, real beta1, real beta2, real eps, real wd,
	      real gscale, int64_t step);
