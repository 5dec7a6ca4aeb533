/* Features kept with their pages: what a sampled conversation may still have to tell,
 * and what another version's draft KV is rebuilt from.
 *
 * One place a KV position, bf16 as in a record. Memory is taken once, touched as it is used. Only rows of
 * traced requests are put here, so those of one that opted out never can be told for somebody else.
 * Threads: the engine's.
 */
#pragma once
#include "kernels/dev.h"

struct keep {
	int W, H;           /* features and hidden state of a row; W 0 = nothing is kept */
	uint16_t *features; /* [positions,W] */
	uint16_t *hidden;   /* [positions,H] or NULL */
};

int MUSTCHECK keep_init(struct keep *k, int positions, int W, int H /* 0 = no hidden states */);
void keep_done(struct keep *k);
void keep_put(struct keep *k, uint32_t at, const uint16_t *features, const uint16_t *hidden);
/* n rows from `at` on, widened. */
void keep_get(const struct keep *k, uint32_t at, int n, real *features);
