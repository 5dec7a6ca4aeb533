/* Log-probabilities of the tokens a round emitted, for requests that ask: the model's own
 * distribution, at temperature 1, before penalties, bias and filters. Engine thread.
 */
#pragma once
#include "serve/verify.h"

/* rows [n]: which row of `from` each token was drawn from; K is at least top_logprobs. Calls r->on_logprobs once. A row whose distribution cannot be
 * told (not finite) gives NaN. */
void logprobs_tell(const struct drawn_from *from, const int *rows, const uint32_t *ids, int n, const struct engine_request *r);
