/* Draw, then compare (eagle3.md §2.5): what a round keeps of a chain.
 *
 * At each position the target's token is drawn from its own logits; a proposed token is
 * accepted when it equals the draw. The tokens served are therefore the draws
 * themselves, whatever was proposed.
 */
#pragma once
#include "serve/sample.h"

struct verdict {
	int n;        /* tokens emitted, 1..len+1 */
	int accepted; /* proposals among them, 0..len */
	uint32_t ids[ENGINE_MAX_K + 1];
};

/* logits: len+1 rows of V: the root's, then one per proposal. h: what stands before the first
 * token drawn; position: its place. A drawn token that `ends` says ends the text is the last one. */
struct verdict verify_chain(struct sampler *s, const real *logits, int V, const struct sampling *how,
			    const struct history *h, uint32_t position, const uint32_t *proposed, int len,
			    bool (*ends)(const void *arg, uint32_t id), const void *arg);
