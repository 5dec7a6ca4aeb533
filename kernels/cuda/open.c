/* Opening a CUDA device, closing it, and what its errors mean. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/cuda/cuda.h"

static struct dev *cuda_close(struct dev *d)
{
	struct cuda *c = cuda_of(d);
	if (c->stream)
		(void)cudaStreamSynchronize(c->stream); /* nothing may run that still uses what goes now */
	cuda_graphs_done(d);
	cuda_tap_free(c->tap);
	cuda_blas_free(c->blas);
	cuda_memory_done(d);
	for (int i = 0; i < OP_STAMPS; i++)
		if (c->stamps[i])
			(void)cudaEventDestroy(c->stamps[i]);
	if (c->stream)
		(void)cudaStreamDestroy(c->stream);
	free(c->plan);
	free(c);
	free(d);
	return NULL;
}

int cuda_bad(struct dev *d, const char *what)
{
	(void)snprintf(d->error, sizeof d->error, "bad sizes: %s", what);
	return -EINVAL;
}

static int failed(struct dev *d, cudaError_t e, const char *what)
{
	const struct cuda *c = cuda_of(d);
	size_t a, b;
	(void)cudaGetLastError(); /* an error that does not last is over with this */
	d->lost = d->lost || (c->graphs.mode != GRAPH_CAPTURING && cudaMemGetInfo(&a, &b) != cudaSuccess); /* one that does comes back from every call */
	(void)snprintf(d->error, sizeof d->error, "%s: %s%s", what, cudaGetErrorName(e), d->lost ? "; the device is lost to this process" : "");
	return e == cudaErrorMemoryAllocation ? -ENOMEM : -EIO;
}

int cuda_done(struct dev *d, cudaError_t e, const char *what)
{
	struct cuda *c = cuda_of(d);
	if (d->between)
		d->between(d->between_arg);
	atomic_store_explicit(&d->beats, atomic_load_explicit(&d->beats, memory_order_relaxed) + 1, memory_order_relaxed);
	if (e == cudaSuccess && c->q.wait)
		e = cudaStreamSynchronize(c->stream);
	return e == cudaSuccess ? 0 : failed(d, e, what);
}

int cuda_wait(struct dev *d, const char *what)
{
	return cuda_done(d, cudaStreamSynchronize(cuda_of(d)->stream), what);
}

/* Times are for who weighs costs: one that cannot be taken is left out, and nothing fails. */
void cuda_stamp(struct dev *d, int i)
{
	struct cuda *c = cuda_of(d);
	cudaError_t e = c->stamps[i] ? cudaSuccess : cudaEventCreateWithFlags(&c->stamps[i], cudaEventDefault);
	if (e == cudaSuccess)
		e = cudaEventRecord(c->stamps[i], c->stream);
	c->stamped[i] = e == cudaSuccess;
	if (e != cudaSuccess)
		(void)cudaGetLastError();
}

double cuda_lapse(struct dev *d, int a, int b)
{
	struct cuda *c = cuda_of(d);
	float ms = -1;
	if (!c->stamped[a] || !c->stamped[b] || cudaEventElapsedTime(&ms, c->stamps[a], c->stamps[b]) == cudaSuccess)
		return (double)ms;
	(void)cudaGetLastError();
	return -1;
}

const char *cuda_symbols(void *lib, const struct cuda_symbol *all, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!(*all[i].to = dlsym(lib, all[i].name)))
			return all[i].name;
	return NULL;
}

static int cuda_again(struct dev *d, struct dev **ret);

static int make(const struct cuda_request *q, const char *about, struct dev **ret, cudaError_t *ret_error)
{
	struct dev *d = calloc(1, sizeof *d);
	struct cuda *c = calloc(1, sizeof *c);
	int least = 0, greatest = 0;
	if (!d || !c) {
		free(d);
		free(c);
		return -ENOMEM;
	}
	c->q = *q;
	*d = (struct dev){.ops = &ops_cuda, .impl = c, .n_threads = 1, .kind = DEV_CUDA, .math = q->math, .own_memory = true, .remembers = q->graphs && !q->wait, .close = cuda_close, .again = cuda_again,
			  .link = &cuda_link_ops};
	(void)snprintf(d->about, sizeof d->about, "%s", about);
	cudaError_t e = cudaDeviceGetStreamPriorityRange(&least, &greatest);
	if (e == cudaSuccess)
		e = cudaStreamCreateWithPriority(&c->stream, cudaStreamNonBlocking, q->background ? least : greatest);
	for (int i = 0; i < 2 && e == cudaSuccess; i++)
		e = cudaEventCreateWithFlags(&c->stage.read[i], cudaEventDisableTiming);
	void *host = NULL, *dev = NULL;
	if (e == cudaSuccess)
		e = cudaHostAlloc(&host, 2 * (size_t)STAGE_HALF, cudaHostAllocPortable);
	c->stage.host = host;
	if (e == cudaSuccess)
		e = cudaMallocAsync(&dev, 2 * (size_t)STAGE_HALF, c->stream);
	c->stage.dev = dev;
	if (e == cudaSuccess) {
		*ret = d;
		return 0;
	}
	*ret_error = e;
	(void)cudaGetLastError();
	cuda_close(d);
	return e == cudaErrorMemoryAllocation ? -ENOMEM : -EIO;
}

static int cuda_again(struct dev *d, struct dev **ret)
{
	cudaError_t e = cudaSuccess;
	return make(&cuda_of(d)->q, d->about, ret, &e); /* d is another thread's: nothing of it is written */
}

__attribute__((visibility("default"))) int redraft_cuda_open(unsigned key, const struct cuda_request *q, struct dev **ret, struct errtext *e);

int redraft_cuda_open(unsigned key, const struct cuda_request *q, struct dev **ret, struct errtext *e)
{
	struct cudaDeviceProp p;
	char about[sizeof (*ret)->about];
	int n = 0;
	if (key != CUDA_ABI_KEY)
		return errtext_set(e, -EINVAL, CUDA_LIBRARY " is of another build than this program: build both again");
	cudaError_t err = cudaGetDeviceCount(&n);
	if (err == cudaSuccess && n < 1)
		err = cudaErrorNoDevice;
	if (err == cudaSuccess)
		err = cudaSetDevice(0);
	if (err == cudaSuccess)
		err = cudaGetDeviceProperties(&p, 0);
	if (err != cudaSuccess)
		return errtext_set(e, -ENODEV, "CUDA answers %s", cudaGetErrorName(err));
	if (p.major < 8)
		return errtext_set(e, -ENODEV, "%.100s has compute capability %d.%d and this build needs 8.0", p.name, p.major, p.minor);
	int at = snprintf(about, sizeof about, "cuda %.80s, %.1f GB, %s%s", p.name, (double)p.totalGlobalMem / 1e9, q->math == MATH_STRICT ? "strict" : "fast",
			  q->background ? ", lowest priority" : "");
	if (q->memory_bytes)
		(void)snprintf(about + at, sizeof about - (size_t)at, ", at most %.0f MiB", (double)q->memory_bytes / 0x1p20);
	int r = make(q, about, ret, &err);
	return r ? errtext_set(e, r, "%.100s cannot be used: %s", p.name, err == cudaSuccess ? strerror(-r) : cudaGetErrorName(err)) : 0;
}
