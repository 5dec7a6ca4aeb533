/* Log-probabilities of the tokens a round emitted, for requests that ask: the model's own
 * distribution, at temperature 1, before penalties, bias and filters. Engine thread.
 */
#pragma once
#include "kernels/dev.h"
#include "serve/engine.h"

/* logits: [n,V], one row a token, together also where a tree was verified (round.c); calls r->on_logprobs once. A row whose distribution cannot be told (not finite) gives NaN. */
void logprobs_tell(struct dev *d, const real *logits, int V, const uint32_t *ids, int n, const struct engine_request *r);
