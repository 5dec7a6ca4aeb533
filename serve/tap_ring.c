/* Positions run on for ever in 64 bits and are taken modulo the capacity, so that full
 * and empty differ. Each message starts with a 16-byte header that holds its size;
 * SKIP in place of a size sends the reader to the start of the ring. */
#include "serve/tap_ring.h"

#include <stdlib.h>
#include <string.h>

enum { HEADER = 16 };
static const uint64_t SKIP = UINT64_MAX;

int tap_ring_init(struct tap_ring *r, size_t bytes)
{
	memset(r, 0, sizeof *r);
	r->cap = (bytes < 4096 ? 4096 : bytes) / 64 * 64;
	r->data = aligned_alloc(64, r->cap);
	if (!r->data)
		return -ENOMEM;
	memset(r->data, 0, r->cap);
	return 0;
}

void tap_ring_done(struct tap_ring *r)
{
	free(r->data);
	r->data = NULL;
}

static size_t footprint(size_t size)
{
	return HEADER + (size + HEADER - 1) / HEADER * HEADER;
}

void *tap_ring_reserve(struct tap_ring *r, size_t size)
{
	if (size > r->cap)
		return NULL;
	uint64_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
	uint64_t tail = atomic_load_explicit(&r->tail, memory_order_acquire);
	size_t need = footprint(size), at = (size_t)(head % r->cap), to_end = r->cap - at, skip = need > to_end ? to_end : 0;
	uint64_t n = size;

	if (need + skip > r->cap - (size_t)(head - tail))
		return NULL;
	if (skip) { /* the ring is a multiple of HEADER long, so there is room for this word */
		memcpy(r->data + at, &SKIP, sizeof SKIP);
		at = 0;
	}
	memcpy(r->data + at, &n, sizeof n);
	r->reserved = head + skip + need;
	return r->data + at + HEADER;
}

void tap_ring_commit(struct tap_ring *r)
{
	atomic_store_explicit(&r->head, r->reserved, memory_order_release);
}

const void *tap_ring_peek(struct tap_ring *r, size_t *ret_size)
{
	uint64_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed), n;

	if (tail == atomic_load_explicit(&r->head, memory_order_acquire))
		return NULL;
	memcpy(&n, r->data + tail % r->cap, sizeof n);
	if (n == SKIP) { /* published together with the message that follows it */
		tail += r->cap - tail % r->cap;
		atomic_store_explicit(&r->tail, tail, memory_order_release);
		memcpy(&n, r->data, sizeof n);
	}
	*ret_size = (size_t)n;
	return r->data + tail % r->cap + HEADER;
}

void tap_ring_pop(struct tap_ring *r)
{
	uint64_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed), n;

	memcpy(&n, r->data + tail % r->cap, sizeof n);
	atomic_store_explicit(&r->tail, tail + footprint((size_t)n), memory_order_release);
}
