/* libcublas.so.13 of a machine without one: plain products, an element's sum in the order
 * of k whatever the other sizes are. Queued on the stream as the real one's.
 */
#include <cublas_v2.h>
#include "tests/cuemu/runtime.h"
#include <vector>

struct cuemu_blas {
	cudaStream_t stream;
};

static float bf16(uint16_t h)
{
	uint32_t u = (uint32_t)h << 16;
	float f;
	memcpy(&f, &u, sizeof f);
	return f;
}

static float rounded(float f)
{
	uint32_t u;
	memcpy(&u, &f, sizeof u);
	u = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
	memcpy(&f, &u, sizeof f);
	return f;
}

/* op(X) [rows, k], column-major with distance ld, as row-major floats */
static std::vector<float> rows_of(const void *x, cudaDataType type, bool transposed, int rows, int k, int ld, bool round)
{
	std::vector<float> to((size_t)rows * (size_t)k);
	for (int i = 0; i < rows; i++)
		for (int j = 0; j < k; j++) {
			size_t at = transposed ? (size_t)j + (size_t)i * (size_t)ld : (size_t)i + (size_t)j * (size_t)ld;
			float v = type == CUDA_R_16BF ? bf16(((const uint16_t *)x)[at]) : ((const float *)x)[at];
			to[(size_t)i * (size_t)k + (size_t)j] = round ? rounded(v) : v;
		}
	return to;
}

static float dot(const float *a, const float *b, int k)
{
	float s[8] = {0};
	int i = 0;
	for (; i + 8 <= k; i += 8)
		for (int j = 0; j < 8; j++)
			s[j] += a[i + j] * b[i + j];
	for (int j = 0; i < k; i++, j++)
		s[j] += a[i] * b[i];
	return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

extern "C" {
cublasStatus_t cublasCreate_v2(cublasHandle_t *ret)
{
	if (cuemu::fault("cublasCreate") != cudaSuccess)
		return CUBLAS_STATUS_NOT_INITIALIZED;
	*ret = new cuemu_blas{};
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t h)
{
	delete h;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t h, cudaStream_t s)
{
	h->stream = s;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void *, size_t)
{
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t)
{
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void *alpha, const void *A, cudaDataType at, int lda,
			    const void *B, cudaDataType bt, int ldb, const void *beta, void *C, cudaDataType ct, int ldc, cublasComputeType_t compute, cublasGemmAlgo_t)
{
	float al = *(const float *)alpha, be = *(const float *)beta;
	bool round = compute == CUBLAS_COMPUTE_32F_FAST_16BF;
	if (ct != CUDA_R_32F || lda < (ta == CUBLAS_OP_N ? m : k) || ldb < (tb == CUBLAS_OP_N ? k : n) || ldc < m)
		return CUBLAS_STATUS_INVALID_VALUE;
	if (cuemu::fault("cublasGemmEx") != cudaSuccess)
		return CUBLAS_STATUS_EXECUTION_FAILED;
	cudaError_t e = cuemu::enqueue(h->stream, [=]() {
		/* C[i + j*ldc], i of m, j of n */
		std::vector<float> a = rows_of(A, at, ta == CUBLAS_OP_T, m, k, lda, round), b = rows_of(B, bt, tb == CUBLAS_OP_N, n, k, ldb, round);
		for (int j = 0; j < n; j++)
			for (int i = 0; i < m; i++) {
				float *c = (float *)C + (size_t)i + (size_t)j * (size_t)ldc;
				float v = al * dot(&a[(size_t)i * (size_t)k], &b[(size_t)j * (size_t)k], k);
				*c = be == 0 ? v : v + be * *c;
			}
	});
	return e == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
}
