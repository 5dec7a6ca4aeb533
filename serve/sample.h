/* Drawing one token from a row of logits: the sampling rule, frozen.
 *
 * The logits first get their bias, then the penalties of what stands before the token, in this
 * order: repetition (a logit above 0 divided, else multiplied, once for each token of prompt or answer),
 * frequency (for each time it was generated), presence (once when it was generated). Ids that are held back at the
 * position (min_tokens) become -inf.
 *
 * Greedy (temperature 0): the largest logit, the lowest id on ties.
 * Sampled: ids weigh e^((l - max) / T), in whole numbers of 2^-40 of the best one's, so that what they come to has no order of
 * summation and a GPU draws what the CPU draws (kernels/ops.h, struct draw); top_k, then top_p over what is left, then min_p, against the
 * best; the inverse CDF in token-id order: the first kept id whose running sum exceeds u * total. u in [0,1) is Philox4x32-10 with key =
 * seed and counter = (position, choice, 0, 0), its first two words as 53 bits:
 * a draw is a pure function of the row, the tokens before it, the options and the position, so plain
 * and speculative decoding draw alike. Ranks among equal logits go by lower id.
 *
 * Threads: a sampler is one thread's. No allocation after sampler_new.
 */
#pragma once
#include "kernels/ops.h"
#include "serve/engine.h"

struct sampler;

struct sampler *sampler_new(int V); /* NULL when out of memory */
struct sampler *sampler_free(struct sampler *s);
/* What stands before the first token to be drawn. */
struct history { const uint32_t *tokens; int n_prompt, n; /* prompt and answer so far */ };
/* Draws along one history: open, then sample_token and sampler_saw by turns, then close. Costs a walk over
 * the history where a penalty asks for it, else nothing. Without it a draw has no history. */
void sampler_open(struct sampler *s, const struct sampling *how, const struct history *h);
void sampler_saw(struct sampler *s, uint32_t id); /* it is now part of the answer */
void sampler_close(struct sampler *s);
/* What a draw goes by. Above 0: so many of the row's likeliest tokens, in rank order (ops.h topk). SAMPLE_DRAW: the row as it is, which ops.h `draw` may
 * do with sample_draw. SAMPLE_ROW: the row, changed, or more of its likeliest than SAMPLE_BEST. position: the first that is drawn for; min_tokens may hold ids back there. */
enum { SAMPLE_BEST = 256, SAMPLE_ROW = 0, SAMPLE_DRAW = -1 };
int sample_needs(const struct sampling *how, int V, uint32_t position);
struct draw sample_draw(const struct sampling *how, uint32_t position); /* row 0 */
uint32_t sample_best(struct sampler *s, const uint32_t *ids, const float *vals, const struct sampling *how, uint32_t position);
/* position: that of the token being drawn. The row stays as it is. A row without any finite maximum gives token 0. */
uint32_t sample_token(struct sampler *s, const real *logits, const struct sampling *how, uint32_t position);
/* The uniform number of the rule, for tests and for anybody who must reproduce a draw. */
double sample_uniform(uint64_t seed, uint32_t choice, uint32_t position);
