/* A ring of messages between two threads, in memory that is there from the start.
 *
 * One producer, one consumer, no locks and no system calls: the producer
 * reserves room (or is told at once that there is none), fills it and publishes it;
 * the consumer looks at the oldest message and gives its room back. A message
 * is contiguous; the end of the ring is skipped when one does not fit there.
 */
#pragma once
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include "daemon/base/err.h"

struct tap_ring {
	uint8_t *data; /* owned */
	size_t cap;
	_Alignas(64) _Atomic uint64_t head; /* written by the producer */
	uint64_t reserved; /* producer's own: where head goes on commit */
	_Alignas(64) _Atomic uint64_t tail; /* written by the consumer */
};

int MUSTCHECK tap_ring_init(struct tap_ring *r, size_t bytes); /* touches every page now, so that no push does */
void tap_ring_done(struct tap_ring *r);
/* Producer. 16-byte aligned, or NULL when there is no room. Commit publishes the last reservation. */
void *tap_ring_reserve(struct tap_ring *r, size_t size);
void tap_ring_commit(struct tap_ring *r);
/* Consumer. NULL when empty; valid until tap_ring_pop. */
const void *tap_ring_peek(struct tap_ring *r, size_t *ret_size);
void tap_ring_pop(struct tap_ring *r);
