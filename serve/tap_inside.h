/* Shared by the tap's two sides only: tap.c, where the engine copies into the ring, and tap_thread.c, where it is emptied. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "serve/tap.h"
#include "serve/tap_encode.h"
#include "serve/tap_produce.h"
#include "serve/tap_ring.h"

enum { SLOTS = 64, NO_SLOT = -1 };

/* ---- messages in the ring ---- */

enum kind { M_BEGIN, M_ROWS, M_ROUND, M_END };

struct msg {
	uint32_t kind;
	int32_t slot;
	uint64_t gen;
};

struct msg_begin {
	struct msg m;
	struct tap_request r;
};

struct msg_rows { /* then ids, pos, top-k ids (u32), scales where there are codes (f32), hidden or top-k log-probabilities (u16), features or codes */
	struct msg m;
	int32_t n;
	uint32_t next_token;
	uint32_t prompt, has_hidden, coded;
};

struct msg_round {
	struct msg m;
	struct tap_round r;
};

struct msg_end {
	struct msg m;
	int32_t n_parts;
	uint32_t dropped; /* by the engine: the thread may not know */
	struct round_record parts[];
};

/* ---- state ---- */

struct slot { /* engine's side of one traced request */
	bool used, dropped;
	uint64_t gen;
	_Atomic uint64_t lost; /* generation whose records the thread gave up on */
};

struct open { /* the thread's side */
	struct tap_open rec;
	bool ready /* memory is there */, live, dropped;
	uint64_t gen;
};

struct tap {
	struct tap_options o; /* strings are owned copies */
	_Atomic bool enabled;
	_Atomic double sample; /* share of conversations traced */
	struct tap_ring ring;
	struct slot slot[SLOTS];
	uint64_t gen;
	/* thread */
	pthread_t thread;
	bool has_thread;
	int wake; /* eventfd */
	_Atomic bool sleeping, stop;
	struct open open[SLOTS];
	struct open *current; /* of the record being emitted */
	struct tap_producer *producer;
	char uuid[40];
	uint64_t seq_trace, seq_round;
	/* counts */
	_Atomic uint64_t records, bytes, delivered, rounds, dropped_ring, dropped_queue, dropped_broker, dropped_size, traced, skipped;
	_Atomic bool broker_down;
};

static inline void count(_Atomic uint64_t *c)
{
	atomic_fetch_add_explicit(c, 1, memory_order_relaxed);
}

/* tap_thread.c */
void *tap_run(void *tap); /* the thread, until t->stop and an empty ring */
void tap_delivered(void *tap, uint64_t tag); /* what became of a message, as the producer says */
void tap_lost(void *tap, uint64_t tag);
