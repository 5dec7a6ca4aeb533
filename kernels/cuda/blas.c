/* cuBLAS, opened by its soname when the first product is wanted.
 *
 * cublasGemmEx chooses its algorithm from types, operations and sizes alone and gives
 * the same bits for the same call on the same kind of GPU; reductions in less than
 * f32 are forbidden. Workspace is ours, so that a captured graph keeps its address and
 * two streams never share one.
 */
#include <cublas_v2.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include "kernels/cuda/cuda.h"

static struct {
	void *lib;
	cublasStatus_t (*create)(cublasHandle_t *);
	cublasStatus_t (*destroy)(cublasHandle_t);
	cublasStatus_t (*set_stream)(cublasHandle_t, cudaStream_t);
	cublasStatus_t (*set_workspace)(cublasHandle_t, void *, size_t);
	cublasStatus_t (*set_math)(cublasHandle_t, cublasMath_t);
	cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void *, const void *, cudaDataType, int, const void *,
			       cudaDataType, int, const void *, void *, cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);
} lib;

struct blas {
	cublasHandle_t h;
	void *workspace;
	cudaStream_t stream;
};

enum { WORKSPACE = 32 << 20 };

static void open_library(void)
{
	static const char *const names[] = {"libcublas.so.13", "libcublas.so.12"};
	for (size_t i = 0; i < sizeof names / sizeof *names && !lib.lib; i++)
		lib.lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	if (!lib.lib)
		return;
	const struct cuda_symbol symbols[] = {
		{(void **)(void *)&lib.create, "cublasCreate_v2"},
		{(void **)(void *)&lib.destroy, "cublasDestroy_v2"},
		{(void **)(void *)&lib.set_stream, "cublasSetStream_v2"},
		{(void **)(void *)&lib.set_workspace, "cublasSetWorkspace_v2"},
		{(void **)(void *)&lib.set_math, "cublasSetMathMode"},
		{(void **)(void *)&lib.gemm, "cublasGemmEx"},
	};
	if (cuda_symbols(lib.lib, symbols, sizeof symbols / sizeof *symbols))
		lib.gemm = NULL;
}

static int blas_failed(struct dev *d, const char *what, int status)
{
	size_t a, b;
	d->lost = d->lost || (cuda_of(d)->graphs.mode != GRAPH_CAPTURING && cudaMemGetInfo(&a, &b) != cudaSuccess);
	(void)snprintf(d->error, sizeof d->error, "%s: cuBLAS status %d%s", what, status, d->lost ? "; the device is lost to this process" : "");
	return status == CUBLAS_STATUS_ALLOC_FAILED ? -ENOMEM : -EIO;
}

static int blas_new(struct dev *d, struct blas **ret)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct cuda *c = cuda_of(d);
	(void)pthread_once(&once, open_library);
	if (!lib.gemm) {
		(void)snprintf(d->error, sizeof d->error, "libcublas.so.13 or .12 cannot be loaded: install cuBLAS or add its folder to the loader's path");
		return -EIO;
	}
	struct blas *b = calloc(1, sizeof *b);
	if (!b) {
		(void)cuda_done(d, cudaErrorMemoryAllocation, "cuBLAS' handle in host memory");
		return -ENOMEM;
	}
	b->stream = c->stream;
	int r = cuda_take(d, WORKSPACE, "cuBLAS workspace", &b->workspace);
	int status = r ? CUBLAS_STATUS_SUCCESS : (int)lib.create(&b->h);
	if (!r && !status)
		status = (int)lib.set_stream(b->h, c->stream);
	if (!r && !status) /* after the stream, which would take it away again */
		status = (int)lib.set_workspace(b->h, b->workspace, WORKSPACE);
	if (!r && !status)
		status = (int)lib.set_math(b->h, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
	if (!r && status)
		r = blas_failed(d, "cuBLAS cannot begin", status);
	if (r) {
		cuda_blas_free(b);
		return r;
	}
	*ret = b;
	return 0;
}

struct blas *cuda_blas_free(struct blas *b)
{
	if (!b)
		return NULL;
	if (b->h)
		(void)lib.destroy(b->h);
	if (b->workspace)
		(void)cudaFreeAsync(b->workspace, b->stream);
	free(b);
	return NULL;
}

int cuda_blas(struct dev *d, float *C, int ldc, bool tA, const void *A, int lda, bool tB, const void *B, int ldb, int M, int N, int K, float beta, enum dtype type,
	      bool fast)
{
	struct cuda *c = cuda_of(d);
	const float one = 1;
	cudaDataType t = type == DT_BF16 ? CUDA_R_16BF : CUDA_R_32F;
	cublasComputeType_t compute = fast && type == DT_F32 ? CUBLAS_COMPUTE_32F_FAST_16BF : CUBLAS_COMPUTE_32F;
	int r = c->blas ? 0 : blas_new(d, &c->blas);
	if (r)
		return r;
	/* cuBLAS counts by columns: C' [N,M] = op(B)' op(A)' */
	cublasStatus_t s = lib.gemm(c->blas->h, tB ? CUBLAS_OP_T : CUBLAS_OP_N, tA ? CUBLAS_OP_T : CUBLAS_OP_N, N, M, K, &one, B, t, ldb, A, t, lda, &beta, C, CUDA_R_32F,
				    ldc, compute, CUBLAS_GEMM_DEFAULT);
	return s == CUBLAS_STATUS_SUCCESS ? cuda_done(d, cudaSuccess, "product") : blas_failed(d, "product", (int)s);
}
