/* Drawing one token from a row of logits: the sampling rule, frozen.
 *
 * Greedy (temperature 0): the largest logit, the lowest id on ties.
 * Sampled: probabilities exp((l - max) / T) in double; top_k, then top_p over what is
 * left, then min_p; the inverse CDF in token-id order: the first kept id
 * whose running sum exceeds u * total. u in [0,1) is Philox4x32-10 with key =
 * seed and counter = (position, choice, 0, 0), its first two words as 53 bits:
 * the draw at a position depends on nothing that was drawn before it, so plain
 * and speculative decoding draw alike. Ranks among equal logits go by lower id.
 *
 * Threads: a sampler is one thread's. No allocation after sampler_new.
 */
#pragma once
#include "kernels/dev.h"
#include "serve/engine.h"

struct sampler;

struct sampler *sampler_new(int V); /* NULL when out of memory */
struct sampler *sampler_free(struct sampler *s);
/* position: that of the token being drawn. A row without any finite maximum gives token 0. */
uint32_t sample_token(struct sampler *s, const real *logits, const struct sampling *how, uint32_t position);
/* The rule's exponential: x in [-60, 0], the same bits on every CPU that adds and multiplies doubles. */
double sample_exp(double x);
/* The uniform number of the rule, for tests and for anybody who must reproduce a draw. */
double sample_uniform(uint64_t seed, uint32_t choice, uint32_t position);
