/* Device memory, pinned memory, and how host arrays get across.
 *
 * Memory is taken and given back in stream order (cudaMallocAsync), so that loading and
 * unloading a draft never stops the decoding stream. Small host arrays are copied into a
 * pinned ring before the call returns; the ring has two halves, and a half is used again
 * only after an event says that its copies were made. The same array often comes once a layer: what lies in
 * the half already is found by its content and not sent again.
 */
#include <string.h>
#include "kernels/cuda/cuda.h"

/* What the process holds, of all its streams: frees that are queued count as made once the stream has come that far. */
static cudaError_t used(uint64_t *ret)
{
	cudaMemPool_t pool;
	cudaError_t e = cudaDeviceGetDefaultMemPool(&pool, 0);
	return e == cudaSuccess ? cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, ret) : e;
}

static int within_budget(struct dev *d, size_t bytes, const char *what)
{
	uint64_t most = cuda_of(d)->q.memory_bytes, now = 0;
	cudaError_t e = used(&now);
	if (e == cudaSuccess && now + bytes > most) {
		e = cudaStreamSynchronize(cuda_of(d)->stream);
		e = e == cudaSuccess ? used(&now) : e;
	}
	if (e != cudaSuccess)
		return cuda_done(d, e, what);
	if (now + bytes <= most)
		return 0;
	(void)snprintf(d->error, sizeof d->error, "%s: %.1f MiB more would pass this process's %.0f MiB of device memory; %.1f are taken", what, (double)bytes / 0x1p20,
		       (double)most / 0x1p20, (double)now / 0x1p20);
	return -ENOMEM;
}

int cuda_take(struct dev *d, size_t bytes, const char *what, void **ret)
{
	struct cuda *c = cuda_of(d);
	void *p = NULL;
	if (c->graphs.mode == GRAPH_CAPTURING) { /* it would be the graph's */
		(void)snprintf(d->error, sizeof d->error, "%s, %zu bytes, inside a capture", what, bytes);
		return -ENOMEM;
	}
	int r = c->q.memory_bytes ? within_budget(d, bytes, what) : 0;
	if (r)
		return r;
	cudaError_t e = cudaMallocAsync(&p, bytes ? bytes : 1, c->stream);
	r = cuda_done(d, e, what);
	if (e == cudaErrorMemoryAllocation && !d->lost)
		(void)snprintf(d->error, sizeof d->error, "out of memory: %s, %zu bytes (%s)", what, bytes, cudaGetErrorName(e));
	if (!r)
		*ret = p;
	return r;
}

void *cuda_alloc(struct dev *d, size_t bytes)
{
	void *p;
	if (cuda_take(d, bytes, "device memory", &p))
		return NULL;
	if (!bytes || cuda_zero(d, p, bytes) == 0)
		return p;
	(void)cudaFreeAsync(p, cuda_of(d)->stream);
	return NULL;
}

void *cuda_alloc_shared(struct dev *d, size_t bytes)
{
	void *p = NULL;
	if (cuda_done(d, cudaHostAlloc(&p, bytes ? bytes : 1, cudaHostAllocPortable | cudaHostAllocMapped), "pinned memory"))
		return NULL;
	memset(p, 0, bytes);
	return p;
}

void cuda_free(struct dev *d, void *p)
{
	struct cudaPointerAttributes a;
	if (!p)
		return;
	if (cudaPointerGetAttributes(&a, p) == cudaSuccess && a.type == cudaMemoryTypeHost)
		(void)cuda_done(d, cudaFreeHost(p), "free");
	else
		(void)cuda_done(d, cudaFreeAsync(p, cuda_of(d)->stream), "free");
}

int cuda_zero(struct dev *d, void *p, size_t bytes)
{
	return bytes ? cuda_done(d, cudaMemsetAsync(p, 0, bytes, cuda_of(d)->stream), "zero") : 0;
}

int cuda_upload(struct dev *d, void *dst, const void *host, size_t bytes)
{
	return bytes ? cuda_done(d, cudaMemcpyAsync(dst, host, bytes, cudaMemcpyDefault, cuda_of(d)->stream), "upload") : 0;
}

int cuda_download(struct dev *d, void *host, const void *src, size_t bytes)
{
	int r = bytes ? cuda_done(d, cudaMemcpyAsync(host, src, bytes, cudaMemcpyDefault, cuda_of(d)->stream), "download") : 0;
	return r ? r : cuda_wait(d, "download");
}

int cuda_sync(struct dev *d)
{
	return cuda_wait(d, "waiting for the device");
}

int cuda_scratch(struct dev *d, size_t bytes, void **ret)
{
	struct cuda *c = cuda_of(d);
	if (bytes > c->scratch_bytes) {
		size_t want = cuda_round_up(bytes + bytes / 4, 1 << 20);
		void *p = NULL;
		int r = cuda_take(d, want, "scratch", &p);
		if (r)
			return r;
		if (c->scratch)
			(void)cudaFreeAsync(c->scratch, c->stream);
		c->scratch = p;
		c->scratch_bytes = want;
	}
	*ret = c->scratch;
	return 0;
}

int cuda_back(struct dev *d, size_t bytes, void **ret)
{
	struct cuda *c = cuda_of(d);
	if (bytes > c->back_bytes) {
		size_t want = cuda_round_up(bytes + bytes / 4, 1 << 16);
		void *p = NULL;
		int r = cuda_done(d, cudaHostAlloc(&p, want, cudaHostAllocPortable | cudaHostAllocMapped), "pinned results");
		if (r)
			return r;
		if (c->back)
			(void)cudaFreeHost(c->back);
		c->back = p;
		c->back_bytes = want;
	}
	*ret = c->back;
	return 0;
}

/* ---- the ring ---- */

static const char *find_kept(const struct stage *g, const void *host, size_t bytes)
{
	const char *base = g->host + (size_t)g->half * STAGE_HALF;
	for (int i = 0; i < g->n_kept; i++)
		if (g->kept[i].bytes == bytes && memcmp(base + g->kept[i].at, host, bytes) == 0)
			return g->dev + (size_t)g->half * STAGE_HALF + g->kept[i].at;
	return NULL;
}

static cudaError_t next_half(struct cuda *c)
{
	struct stage *g = &c->stage;
	cudaError_t e = cudaEventRecord(g->read[g->half], c->stream);
	if (e == cudaSuccess)
		e = cudaEventSynchronize(g->read[!g->half]);
	if (e != cudaSuccess)
		return e;
	g->half ^= 1;
	g->at = 0;
	g->n_kept = 0;
	return e;
}

/* `room` bytes of the ring, at *ret_at of both its sides */
static cudaError_t ring_room(struct cuda *c, size_t room, size_t *ret_at)
{
	struct stage *g = &c->stage;
	cudaError_t e = g->at + room > STAGE_HALF ? next_half(c) : cudaSuccess;
	*ret_at = (size_t)g->half * STAGE_HALF + g->at;
	g->at += e == cudaSuccess ? room : 0;
	return e;
}

cudaError_t cuda_ring(struct dev *d, size_t bytes, char **ret)
{
	size_t at;
	cudaError_t e = ring_room(cuda_of(d), cuda_round_up(bytes, 256), &at);
	*ret = cuda_of(d)->stage.host + at;
	return e;
}

int cuda_send(struct dev *d, const void *host, size_t bytes, const void **ret)
{
	struct cuda *c = cuda_of(d);
	struct stage *g = &c->stage;
	size_t room = cuda_round_up(bytes, 256), at;
	const char *have = bytes ? find_kept(g, host, bytes) : g->dev;
	if (have) {
		*ret = have;
		return 0;
	}
	if (room > STAGE_HALF)
		return cuda_bad(d, "more index data than one operation may bring");
	cudaError_t e = ring_room(c, room, &at);
	if (e == cudaSuccess) {
		memcpy(g->host + at, host, bytes);
		e = cudaMemcpyAsync(g->dev + at, g->host + at, bytes, cudaMemcpyHostToDevice, c->stream);
	}
	if (e != cudaSuccess) /* not kept: it would be taken for sent */
		return cuda_done(d, e, "index data");
	if (g->n_kept == STAGE_KEPT) { /* the oldest goes: what repeats does so within a layer */
		memmove(&g->kept[0], &g->kept[1], (STAGE_KEPT - 1) * sizeof g->kept[0]);
		g->n_kept--;
	}
	g->kept[g->n_kept].at = at - (size_t)g->half * STAGE_HALF;
	g->kept[g->n_kept++].bytes = bytes;
	*ret = g->dev + at;
	return 0;
}

int cuda_stage(struct dev *d, const void *host, size_t bytes, const void **ret)
{
	enum graph_mode mode = cuda_of(d)->graphs.mode;
	if (mode == GRAPH_CAPTURING)
		return graph_index(d, host, bytes, ret);
	if (mode == GRAPH_NOTING)
		graph_note(d, host, bytes);
	return cuda_send(d, host, bytes, ret);
}

int cuda_stage_ids(struct dev *d, const uint32_t *host, int n, const uint32_t **ret)
{
	const void *p = NULL;
	int r = cuda_stage(d, host, (size_t)n * sizeof *host, &p);
	*ret = p;
	return r;
}

void cuda_memory_done(struct dev *d)
{
	struct cuda *c = cuda_of(d);
	if (c->scratch)
		(void)cudaFreeAsync(c->scratch, c->stream);
	if (c->stage.dev)
		(void)cudaFreeAsync(c->stage.dev, c->stream);
	if (c->stream)
		(void)cudaStreamSynchronize(c->stream);
	if (c->back)
		(void)cudaFreeHost(c->back);
	if (c->stage.host)
		(void)cudaFreeHost(c->stage.host);
	for (int i = 0; i < 2; i++)
		if (c->stage.read[i])
			(void)cudaEventDestroy(c->stage.read[i]);
}
