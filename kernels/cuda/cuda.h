/* What the host files of the CUDA back end share.
 *
 * One device struct is one stream and the memory its operations borrow: scratch
 * that grows and is reused in stream order; a ring of pinned memory through which the host's small
 * arrays (ids, positions, page tables) travel; pinned room for results. Operations return
 * as soon as they are queued; only those with host outputs wait. Device 0 of
 * CUDA_VISIBLE_DEVICES is used. Errors: cuda_done says what failed and in which operation
 * it was noticed; after one that spoils the device's context d->lost is set.
 */
#pragma once
#include <cuda_runtime_api.h>
#include "kernels/cuda/abi.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/kern.h"

struct blas; /* a cuBLAS handle, made with the first product */

enum { STAGE_HALF = 2 << 20, STAGE_KEPT = 16 };

struct stage {
	char *host, *dev; /* [2][STAGE_HALF] */
	size_t at;        /* within the half */
	int half;
	cudaEvent_t read[2]; /* all copies out of that half were made */
	struct { size_t at, bytes; } kept[STAGE_KEPT]; /* of this half: what lies there, for arrays that come again */
	int n_kept;
};

struct tap; /* pack.c */

struct cuda {
	struct cuda_request q;
	struct tap *tap;
	cudaStream_t stream;
	struct blas *blas;
	void *scratch, *back;
	size_t scratch_bytes, back_bytes;
	struct stage stage;
	struct graphs graphs;
	cudaEvent_t stamps[OP_STAMPS]; /* made with the first use of each */
	bool stamped[OP_STAMPS];
	char *plan; /* host: attention's tables while they are made */
	size_t plan_bytes;
};

static inline struct cuda *cuda_of(struct dev *d)
{
	return d->impl;
}

/* ---- open.c ---- */
int cuda_done(struct dev *d, cudaError_t e, const char *what); /* 0, or -EIO or -ENOMEM with d->error set */
int cuda_bad(struct dev *d, const char *what); /* -EINVAL */
int cuda_wait(struct dev *d, const char *what);
void cuda_stamp(struct dev *d, int i);
double cuda_lapse(struct dev *d, int a, int b);
struct cuda_symbol {
	void **to;
	const char *name;
};
/* Of a library that is opened by its soname: NULL, or the first name that it lacks; the rest is not looked for. */
const char *cuda_symbols(void *lib, const struct cuda_symbol *all, size_t n);

/* ---- memory.c ---- */
/* Device memory in stream order, within the budget: 0, or -ENOMEM or -EIO with d->error set. All of ours comes from here. */
int cuda_take(struct dev *d, size_t bytes, const char *what, void **ret);
void *cuda_alloc(struct dev *d, size_t bytes);
void *cuda_alloc_shared(struct dev *d, size_t bytes);
void cuda_free(struct dev *d, void *p);
int cuda_zero(struct dev *d, void *p, size_t bytes);
int cuda_upload(struct dev *d, void *dst, const void *host, size_t bytes);
int cuda_download(struct dev *d, void *host, const void *src, size_t bytes);
int cuda_sync(struct dev *d);
int cuda_scratch(struct dev *d, size_t bytes, void **ret); /* of this operation, device */
/* A host array on the device until the ring comes round: long enough for the operation at hand */
int cuda_stage(struct dev *d, const void *host, size_t bytes, const void **ret);
int cuda_send(struct dev *d, const void *host, size_t bytes, const void **ret); /* the same, whatever is made of the operation (graph.c) */
cudaError_t cuda_ring(struct dev *d, size_t bytes, char **ret); /* pinned room of the ring alone, for one copy; bytes <= STAGE_HALF */
int cuda_stage_ids(struct dev *d, const uint32_t *host, int n, const uint32_t **ret);
int cuda_back(struct dev *d, size_t bytes, void **ret); /* pinned, host */
void cuda_memory_done(struct dev *d);

/* ---- products.c ---- */
int cuda_weight_pack(struct dev *d, struct weight *ret, enum dtype type, int N, int K, const void *src, enum dtype src_type);
int cuda_weight_unpack(struct dev *d, void *host_dst, const struct weight *w);
void cuda_weight_free(struct dev *d, struct weight *w);
int cuda_embed(struct dev *d, real *y, const struct weight *w, const uint32_t *ids, const uint32_t *given, int M);
int cuda_linear(struct dev *d, real *y, int ldy, const struct weight *w, const real *x, int ldx, int M, bool add);
int cuda_gemm(struct dev *d, real *C, int ldc, bool tA, const real *A, int lda, bool tB, const real *B, int ldb, int M, int N, int K, bool add);
/* ---- blas.c ---- */
/* C [M,N] = op(A) op(B) + beta C, row-major as in ops.h; type is A's and B's */
int cuda_blas(struct dev *d, float *C, int ldc, bool tA, const void *A, int lda, bool tB, const void *B, int ldb, int M, int N, int K, float beta, enum dtype type,
	      bool fast);
struct blas *cuda_blas_free(struct blas *b);

/* ---- rows.c ---- */
int cuda_rmsnorm(struct dev *d, real *y, int ldy, real *rstd, const real *x, int ldx, const real *g, real eps, int M, int H);
int cuda_rope(struct dev *d, real *x, int ldx, int nh, int hd, const uint32_t *pos, const real *inv_freq, real mscale, int M, bool inverse);
int cuda_silu_gate(struct dev *d, real *y, const real *gu, int M, int I);
int cuda_add(struct dev *d, real *y, const real *x, size_t n);
int cuda_axpby(struct dev *d, real *y, real a, const real *x, real b, size_t n);
int cuda_copy_rows(struct dev *d, real *y, int ldy, const real *x, int ldx, const uint32_t *rows, int M, int n);
int cuda_topk(struct dev *d, uint32_t *ids, float *vals, float *lse, const real *x, int ldx, int M, int N, int K);
int cuda_topk_async(struct dev *d, uint32_t *ids, float *vals, float *lse, const real *x, int ldx, int M, int N, int K);
int cuda_topk_named(struct dev *d, uint32_t *ids, float *logp, uint32_t *first, const real *x, int ldx, int M, int N, int K, const uint32_t *names);
int cuda_draw(struct dev *d, uint32_t *ids, float *vals, const real *x, int ldx, const struct draw *how, int M, int N);
int cuda_rmsnorm_backward(struct dev *d, real *dx, int lddx, real *dg, const real *dy, int lddy, const real *x, int ldx, const real *g, const real *rstd, int M, int H);
int cuda_silu_gate_backward(struct dev *d, real *dgu, const real *dy, const real *gu, int M, int I);

/* ---- attn.c ---- */
int cuda_kv_new(struct dev *d, struct kv_pool *p);
void cuda_kv_free(struct dev *d, struct kv_pool *p);
int cuda_kv_write(struct dev *d, struct kv_pool *p, int layer, const real *k, const real *v, int ld, const uint32_t *slots, int M);
int cuda_kv_copy(struct dev *d, struct kv_pool *p, const uint32_t *dst_slots, const uint32_t *src_slots, int n);
int cuda_attn(struct dev *d, real *out, int ldo, const real *q, int ldq, const struct kv_pool *p, int layer, const struct attn_seq *seqs, int n_seqs, int nh, real scale);

/* ---- train.c ---- */
int cuda_ttt_attn(struct dev *d, real *out, real *lse, const real *q, const struct ttt_kv *kv, const uint32_t *seg, int n, int nh, int nkv, int hd, real scale);
int cuda_ttt_attn_backward(struct dev *d, real *dq, const struct ttt_kv *kv, const real *dout, const real *out, const real *lse, const real *q, const uint32_t *seg, int n,
			   int nh, int nkv, int hd, real scale);
int cuda_ttt_attn_more(struct dev *d, real *out, real *lse, const real *q, const struct ttt_block *b, int n, int nh, int nkv, int hd, real scale);
int cuda_ttt_attn_more_backward(struct dev *d, real *dq, const struct ttt_block *b, const real *dout, const real *out, const real *lse, const real *q, int n, int nh,
				int nkv, int hd, real scale);
int cuda_softmax(struct dev *d, real *y, int ldy, const real *x, int ldx, int M, int N);
int cuda_distill(struct dev *d, real *logits, real *loss, uint32_t *argmax, real *alpha, const struct teacher *q, int r0, const real *w, int m, int Vd, struct distill how);
int cuda_sumsq(struct dev *d, double *ret, const real *x, size_t n);
int cuda_adamw(struct dev *d, real *w, real *m, real *v, const real *g, size_t n, real lr, real beta1, real beta2, real eps, real wd, real gscale, int64_t step);

/* ---- pack.c ---- */
int cuda_pack(struct dev *d, void *to, enum pack_kind kind, const real *x, int M, int H, uint64_t *ret_ticket);
bool cuda_packed(struct dev *d, uint64_t ticket);
struct tap *cuda_tap_free(struct tap *t);

extern const struct ops ops_cuda;
extern const struct link_ops cuda_link_ops; /* link.c */

static inline size_t cuda_round_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

static inline int cuda_min(int a, int b)
{
	return a < b ? a : b;
}
