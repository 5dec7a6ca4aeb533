/* Weights, and the products of serving and training.
 *
 * A weight is [N,K] as it came, bf16 or f32. bf16 weights meet activations rounded to bf16,
 * sums are f32 (as on the CPU's avx512-bf16 path).
 *
 * Strict arithmetic holds the law of ops.h: rows are padded to blocks of 64 and each
 * block is one call of one shape, so that cuBLAS takes the same algorithm and the same order of summation for a
 * row whether it is decoded alone, verified among proposals or prefilled among hundreds. A block costs about
 * what one row costs, as reading the weight does; prefill pays. Fast arithmetic
 * makes one call of the true size, and lets training's f32 products run as bf16.
 */
#include <string.h>
#include "kernels/cuda/cuda.h"

enum { STRICT_ROWS = 64, PACK_BYTES = 4 << 20 };

/* n elements of src from `at` on, as type */
static void convert(void *to, enum dtype type, const void *src, enum dtype src_type, size_t at, size_t n)
{
	if (type == src_type)
		memcpy(to, (const char *)src + at * dtype_size(type), n * dtype_size(type));
	else if (type == DT_BF16)
		for (size_t i = 0; i < n; i++)
			((uint16_t *)to)[i] = f32_to_bf16(((const float *)src)[at + i]);
	else
		for (size_t i = 0; i < n; i++)
			((float *)to)[i] = bf16_to_f32(((const uint16_t *)src)[at + i]);
}

int cuda_weight_pack(struct dev *d, struct weight *ret, enum dtype type, int N, int K, const void *src, enum dtype src_type)
{
	if (N <= 0 || K <= 0 || !src)
		return cuda_bad(d, "weight_pack");
	size_t n = (size_t)N * (size_t)K, step = PACK_BYTES / dtype_size(type);
	struct weight w = {.N = N, .K = K, .type = type, .bytes = n * dtype_size(type)};
	w.packed = cuda_alloc(d, w.bytes);
	if (!w.packed)
		return d->lost ? -EIO : -ENOMEM;
	void *pinned = NULL;
	int r = cuda_back(d, PACK_BYTES, &pinned);
	for (size_t at = 0; at < n && !r; at += step) {
		size_t part = n - at < step ? n - at : step;
		convert(pinned, type, src, src_type, at, part);
		r = cuda_upload(d, (char *)w.packed + at * dtype_size(type), pinned, part * dtype_size(type));
		r = r ? r : cuda_wait(d, "weight_pack"); /* the pinned room is used again */
	}
	if (r) {
		cuda_free(d, w.packed);
		return r;
	}
	*ret = w;
	return 0;
}

int cuda_weight_unpack(struct dev *d, void *host_dst, const struct weight *w)
{
	if (!w->packed)
		return cuda_bad(d, "weight_unpack of an empty weight");
	return cuda_download(d, host_dst, w->packed, w->bytes);
}

void cuda_weight_free(struct dev *d, struct weight *w)
{
	cuda_free(d, w->packed);
	*w = (struct weight){0};
}

_Static_assert(CK_GIVEN == OP_GIVEN && CK_NO_NAME == OP_NO_NAME, "the kernels say what ops.h says");
int cuda_embed(struct dev *d, real *y, const struct weight *w, const uint32_t *ids, const uint32_t *given, int M)
{
	const uint32_t *on_dev;
	for (int m = 0; m < M; m++)
		if (ids[m] & OP_GIVEN ? !given : ids[m] >= (uint32_t)w->N)
			return cuda_bad(d, "embed: token id past the vocabulary");
	if (M < 1)
		return 0;
	int r = cuda_stage_ids(d, ids, M, &on_dev);
	if (!r && cuda_of(d)->graphs.mode == GRAPH_NOTING)
		graph_note_ids(d, ids, M, (uint32_t)w->N, given != NULL);
	return r ? r : cuda_done(d, ck_embed(cuda_of(d)->stream, y, w->packed, w->type == DT_F32, on_dev, given, M, w->K), "embed");
}

/* x padded to whole blocks, one product a block, and the real rows out of the result */
static int linear_strict(struct dev *d, real *y, int ldy, const struct weight *w, const real *x, int ldx, int M, bool add)
{
	cudaStream_t s = cuda_of(d)->stream;
	int rows = (M + STRICT_ROWS - 1) / STRICT_ROWS * STRICT_ROWS;
	size_t wide = dtype_size(w->type), x_bytes = cuda_round_up((size_t)rows * (size_t)w->K * wide, 256);
	void *mem;
	int r = cuda_scratch(d, x_bytes + (size_t)rows * (size_t)w->N * sizeof(float), &mem);
	if (r)
		return r;
	char *px = mem;
	float *py = (float *)(void *)(px + x_bytes);
	r = cuda_done(d, ck_pad_rows(s, px, w->type == DT_F32, x, ldx, M, rows, w->K), "linear");
	for (int m = 0; m < rows && !r; m += STRICT_ROWS)
		r = cuda_blas(d, py + (size_t)m * (size_t)w->N, w->N, false, px + (size_t)m * (size_t)w->K * wide, w->K, true, w->packed, w->K, STRICT_ROWS, w->N, w->K, 0,
			      w->type, false);
	return r ? r : cuda_done(d, ck_unpad_rows(s, y, ldy, py, M, w->N, add), "linear");
}

static int linear_fast(struct dev *d, real *y, int ldy, const struct weight *w, const real *x, int ldx, int M, bool add)
{
	if (w->type == DT_F32)
		return cuda_blas(d, y, ldy, false, x, ldx, true, w->packed, w->K, M, w->N, w->K, add ? 1 : 0, DT_F32, false);
	void *x16;
	int r = cuda_scratch(d, (size_t)M * (size_t)w->K * sizeof(uint16_t), &x16);
	r = r ? r : cuda_done(d, ck_pad_rows(cuda_of(d)->stream, x16, 0, x, ldx, M, M, w->K), "linear");
	return r ? r : cuda_blas(d, y, ldy, false, x16, w->K, true, w->packed, w->K, M, w->N, w->K, add ? 1 : 0, DT_BF16, false);
}

int cuda_linear(struct dev *d, real *y, int ldy, const struct weight *w, const real *x, int ldx, int M, bool add)
{
	if (M < 0 || !w->packed || ldy < w->N || ldx < w->K)
		return cuda_bad(d, "linear");
	if (M == 0)
		return 0;
	return cuda_of(d)->q.math == MATH_STRICT ? linear_strict(d, y, ldy, w, x, ldx, M, add) : linear_fast(d, y, ldy, w, x, ldx, M, add);
}

int cuda_gemm(struct dev *d, real *C, int ldc, bool tA, const real *A, int lda, bool tB, const real *B, int ldb, int M, int N, int K, bool add)
{
	if (M < 0 || N < 0 || K < 0 || ldc < N || lda < (tA ? M : K) || ldb < (tB ? K : N))
		return cuda_bad(d, "gemm");
	if (!M || !N)
		return 0;
	if (K)
		return cuda_blas(d, C, ldc, tA, A, lda, tB, B, ldb, M, N, K, add ? 1 : 0, DT_F32, cuda_of(d)->q.math == MATH_FAST);
	int r = 0;
	for (int m = 0; m < M && !add && !r; m++)
		r = cuda_zero(d, C + (size_t)m * (size_t)ldc, (size_t)N * sizeof *C);
	return r;
}
