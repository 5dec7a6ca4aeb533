/* What each conversation has recorded already.
 *
 * A sampled conversation records its whole prefix once (contracts.md): a later request of it that reuses
 * pages says which earlier request has their rows (`parent`) and goes on from there. Remembered are the
 * last request of each of the newest conversations and the hashes of the paths to the full pages it has
 * told, from position 0 on; a hash covers all tokens before (prefix.h).
 * Threads: the engine's.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/err.h"

enum { TOLD_MAX = 1024 };

struct told_one {
	uint64_t conversation, stamp; /* stamp 0 = unused */
	char request[64];
	uint64_t *path; /* [n], owned */
	int n;
};

struct told {
	struct told_one *all; /* [TOLD_MAX], owned */
	uint64_t clock;
	size_t n_paths, max_paths; /* of all together */
};

int MUSTCHECK told_init(struct told *t, size_t max_paths);
void told_done(struct told *t);
uint64_t told_hash(const char *text); /* of a conversation, a client, a tenant */
const struct told_one *told_find(const struct told *t, uint64_t conversation); /* or NULL */
/* `request` of it has told the rows of these pages. Short of memory it is forgotten: told twice is not wrong. */
void told_note(struct told *t, uint64_t conversation, const char *request, const uint64_t *path, int n);
