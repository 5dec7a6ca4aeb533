/* Features on their way to the tap, without the decoding stream waiting.
 *
 * They are packed in the decoding stream, which costs a pass over a few megabytes of device
 * memory, into one of four slots; a stream of the tap's own waits for that and carries the slot
 * to pinned host memory. Host memory is thus never in the way of decoding: when all four
 * slots are still to be carried, the rows are refused. A slot's memory is taken and
 * given back in the decoding stream, and only while nothing is carried from it.
 */
#include <stdlib.h>
#include "kernels/cuda/cuda.h"

enum { SLOTS = 4, SLOT_UNIT = 1 << 20 };

struct tap {
	cudaStream_t stream, decoding;
	struct {
		char *mem; /* device, `bytes` of it */
		size_t bytes;
		cudaEvent_t packed, carried;
	} slot[SLOTS];
	uint64_t next; /* ticket */
};

struct tap *cuda_tap_free(struct tap *t)
{
	if (!t)
		return NULL;
	if (t->stream)
		(void)cudaStreamSynchronize(t->stream);
	for (int i = 0; i < SLOTS; i++) {
		if (t->slot[i].packed)
			(void)cudaEventDestroy(t->slot[i].packed);
		if (t->slot[i].carried)
			(void)cudaEventDestroy(t->slot[i].carried);
		if (t->slot[i].mem)
			(void)cudaFreeAsync(t->slot[i].mem, t->decoding);
	}
	if (t->stream)
		(void)cudaStreamDestroy(t->stream);
	free(t);
	return NULL;
}

static int tap_new(struct dev *d, struct tap **ret)
{
	struct tap *t = calloc(1, sizeof *t);
	int least = 0, greatest = 0;
	if (!t) {
		(void)cuda_done(d, cudaErrorMemoryAllocation, "the tap's slots in host memory");
		return -ENOMEM;
	}
	t->decoding = cuda_of(d)->stream;
	cudaError_t e = cudaDeviceGetStreamPriorityRange(&least, &greatest);
	if (e == cudaSuccess)
		e = cudaStreamCreateWithPriority(&t->stream, cudaStreamNonBlocking, least);
	for (int i = 0; i < SLOTS && e == cudaSuccess; i++) {
		e = cudaEventCreateWithFlags(&t->slot[i].packed, cudaEventDisableTiming);
		if (e == cudaSuccess)
			e = cudaEventCreateWithFlags(&t->slot[i].carried, cudaEventDisableTiming);
	}
	int r = cuda_done(d, e, "the tap's stream");
	if (r) {
		cuda_tap_free(t);
		return r;
	}
	*ret = t;
	return 0;
}

static size_t packed_bytes(enum pack_kind kind, int M, int H)
{
	size_t n = (size_t)M * (size_t)H;
	return kind == PACK_BF16 ? 2 * n : cuda_round_up(n, 4) + (size_t)M * sizeof(float);
}

static cudaError_t pack_into(cudaStream_t s, char *to, enum pack_kind kind, const float *x, int M, int H)
{
	size_t n = (size_t)M * (size_t)H;
	if (kind == PACK_BF16)
		return ck_pack_bf16(s, (uint16_t *)(void *)to, x, n);
	return ck_pack_8bit(s, (uint8_t *)to, (float *)(void *)(to + cuda_round_up(n, 4)), x, M, H, kind == PACK_INT8);
}

/* Room for `bytes` in slot i, from which nothing is being carried. */
static int fit_slot(struct dev *d, struct tap *t, int i, size_t bytes)
{
	size_t want = cuda_round_up(bytes, SLOT_UNIT);
	void *p = NULL;
	if (bytes <= t->slot[i].bytes)
		return 0;
	int r = cuda_take(d, want, "a slot of the tap", &p);
	if (r)
		return r;
	if (t->slot[i].mem)
		(void)cudaFreeAsync(t->slot[i].mem, t->decoding);
	t->slot[i].mem = p;
	t->slot[i].bytes = want;
	return 0;
}

int cuda_pack(struct dev *d, void *to, enum pack_kind kind, const real *x, int M, int H, uint64_t *ret_ticket)
{
	struct cuda *c = cuda_of(d);
	if (M < 1 || H < 1)
		return cuda_bad(d, "pack");
	int r = c->tap ? 0 : tap_new(d, &c->tap);
	if (r)
		return r;
	struct tap *t = c->tap;
	int i = (int)(t->next % SLOTS);
	size_t bytes = packed_bytes(kind, M, H);
	if (t->next >= SLOTS && !cuda_packed(d, t->next - SLOTS))
		return 1;
	r = fit_slot(d, t, i, bytes);
	if (r)
		return r;
	cudaError_t e = pack_into(c->stream, t->slot[i].mem, kind, x, M, H);
	if (e == cudaSuccess)
		e = cudaEventRecord(t->slot[i].packed, c->stream);
	if (e == cudaSuccess)
		e = cudaStreamWaitEvent(t->stream, t->slot[i].packed, 0);
	if (e == cudaSuccess)
		e = cudaMemcpyAsync(to, t->slot[i].mem, bytes, cudaMemcpyDeviceToHost, t->stream);
	if (e == cudaSuccess)
		e = cudaEventRecord(t->slot[i].carried, t->stream);
	r = cuda_done(d, e, "pack");
	if (!r)
		*ret_ticket = t->next++;
	return r;
}

bool cuda_packed(struct dev *d, uint64_t ticket)
{
	const struct tap *t = cuda_of(d)->tap;
	if (!t || ticket >= t->next)
		return false;
	bool there = ticket + SLOTS < t->next || cudaEventQuery(t->slot[ticket % SLOTS].carried) == cudaSuccess;
	if (!there)
		(void)cudaGetLastError(); /* "not ready" would be taken for the next launch's error */
	return there;
}
