/* The word of a fleet's leader: one record of the topic redraft.events (compacted, one partition), keyed by target_fp, its value one JSON
 * object {schema 1, target_fp, epoch, run, host, generation, live, weights_sha}. Who says it and who goes by it: daemon/fleet.h.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "daemon/base/err.h"

struct fleet_word {
	char target_fp[65];
	uint64_t epoch;        /* grows with every start of a leader */
	char run[33];          /* of the leader's process */
	char host[64];
	uint64_t generation;   /* of the leader's own state, for people */
	uint32_t live;         /* 0: no draft */
	char weights_sha[65];  /* of live; "" when 0 */
	bool buried;           /* read: one that does not count came after it; the topic keeps the last one only */
};

/* NUL-terminated; -ENOMEM: it does not fit. */
int MUSTCHECK fleet_word_encode(const struct fleet_word *word, char *ret, size_t size);
/* -EINVAL with e: it is none. At most 1,024 bytes, no key twice, every field there and what it should be. */
int MUSTCHECK fleet_word_decode(const void *p, size_t n, struct fleet_word *ret, struct errtext *e);
