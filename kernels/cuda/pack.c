/* Features on their way to the tap, without the decoding stream waiting.
 *
 * They are packed in the decoding stream, which costs a pass over a few megabytes of device
 * memory, into one of four slots; a stream of the tap's own waits for that and carries the slot
 * to pinned host memory. Host memory is thus never in the way of decoding: when all four
 * slots are still to be carried, the rows are refused, and the tap counts them as dropped.
 */
#include <stdlib.h>
#include "kernels/cuda/cuda.h"

enum { SLOTS = 4, SLOT_BYTES = 16 << 20 };

struct tap {
	cudaStream_t stream;
	char *slots; /* [SLOTS][SLOT_BYTES] device */
	cudaEvent_t packed[SLOTS], carried[SLOTS];
	uint64_t next; /* ticket */
};

struct tap *cuda_tap_free(struct tap *t)
{
	if (!t)
		return NULL;
	if (t->stream)
		(void)cudaStreamSynchronize(t->stream);
	for (int i = 0; i < SLOTS; i++) {
		if (t->packed[i])
			(void)cudaEventDestroy(t->packed[i]);
		if (t->carried[i])
			(void)cudaEventDestroy(t->carried[i]);
	}
	if (t->slots)
		(void)cudaFreeAsync(t->slots, t->stream);
	if (t->stream)
		(void)cudaStreamDestroy(t->stream);
	free(t);
	return NULL;
}

static int tap_new(struct dev *d, struct tap **ret)
{
	struct tap *t = calloc(1, sizeof *t);
	void *slots = NULL;
	int least = 0, greatest = 0;
	if (!t) {
		(void)cuda_done(d, cudaErrorMemoryAllocation, "the tap's slots in host memory");
		return -ENOMEM;
	}
	cudaError_t e = cudaDeviceGetStreamPriorityRange(&least, &greatest);
	if (e == cudaSuccess)
		e = cudaStreamCreateWithPriority(&t->stream, cudaStreamNonBlocking, least);
	for (int i = 0; i < SLOTS && e == cudaSuccess; i++) {
		e = cudaEventCreateWithFlags(&t->packed[i], cudaEventDisableTiming);
		if (e == cudaSuccess)
			e = cudaEventCreateWithFlags(&t->carried[i], cudaEventDisableTiming);
	}
	if (e == cudaSuccess)
		e = cudaMallocAsync(&slots, (size_t)SLOTS * SLOT_BYTES, t->stream);
	t->slots = slots;
	if (e == cudaSuccess) /* the decoding stream writes there first: it must be there by then */
		e = cudaStreamSynchronize(t->stream);
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
	return kind == PACK_FP8 ? cuda_round_up(n, 4) + (size_t)M * sizeof(float) : 2 * n;
}

static cudaError_t pack_into(cudaStream_t s, char *to, enum pack_kind kind, const float *x, int M, int H)
{
	size_t n = (size_t)M * (size_t)H;
	uint8_t *bytes = (uint8_t *)to;
	if (kind == PACK_FP8)
		return ck_pack_fp8(s, bytes, (float *)(void *)(to + cuda_round_up(n, 4)), x, M, H);
	return kind == PACK_PLANES ? ck_pack_planes(s, bytes, bytes + n, x, n) : ck_pack_bf16(s, (uint16_t *)(void *)to, x, n);
}

int cuda_pack(struct dev *d, void *to, enum pack_kind kind, const real *x, int M, int H, uint64_t *ret_ticket)
{
	struct cuda *c = cuda_of(d);
	if (M < 1 || H < 1 || packed_bytes(kind, M, H) > SLOT_BYTES)
		return cuda_bad(d, "pack");
	int r = c->tap ? 0 : tap_new(d, &c->tap);
	if (r)
		return r;
	struct tap *t = c->tap;
	int i = (int)(t->next % SLOTS);
	char *slot = t->slots + (size_t)i * SLOT_BYTES;
	if (t->next >= SLOTS && !cuda_packed(d, t->next - SLOTS))
		return 1;
	cudaError_t e = pack_into(c->stream, slot, kind, x, M, H);
	if (e == cudaSuccess)
		e = cudaEventRecord(t->packed[i], c->stream);
	if (e == cudaSuccess)
		e = cudaStreamWaitEvent(t->stream, t->packed[i], 0);
	if (e == cudaSuccess)
		e = cudaMemcpyAsync(to, slot, packed_bytes(kind, M, H), cudaMemcpyDeviceToHost, t->stream);
	if (e == cudaSuccess)
		e = cudaEventRecord(t->carried[i], t->stream);
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
	bool there = ticket + SLOTS < t->next || cudaEventQuery(t->carried[ticket % SLOTS]) == cudaSuccess;
	if (!there)
		(void)cudaGetLastError(); /* "not ready" would be taken for the next launch's error */
	return there;
}
