/* A row's likeliest tokens and its normaliser are there already (reads.c); so is the drawn token's logit: the device's, which drew it;
 * or among them; or in the row, where a draw went by the whole of it.
 */
#include "serve/logprobs.h"
#include <math.h>

static float logit_of(const struct drawn_from *from, int row, uint32_t id)
{
	size_t at = (size_t)row, K = (size_t)from->K;
	if (from->drawn)
		return from->drawn_vals[at];
	if (from->rows)
		return (float)from->rows[at * (size_t)from->V + id];
	for (size_t i = at * K; i < (at + 1) * K; i++)
		if (from->ids[i] == id)
			return from->vals[i];
	return NAN;
}

void logprobs_tell(const struct drawn_from *from, const int *rows, const uint32_t *ids, int n, const struct engine_request *r)
{
	struct token_logprob out[(ENGINE_MAX_K + 1) * (ENGINE_MAX_LOGPROBS + 1)];
	int width = r->top_logprobs + 1;

	for (int i = 0; i < n; i++) {
		size_t at = (size_t)rows[i] * (size_t)from->K;
		struct token_logprob *o = out + i * width;
		float lse = from->lse[rows[i]];
		o[0] = (struct token_logprob){ids[i], logit_of(from, rows[i], ids[i]) - lse};
		for (int j = 0; j < r->top_logprobs; j++)
			o[j + 1] = (struct token_logprob){j < from->K ? from->ids[at + (size_t)j] : 0, j < from->K ? from->vals[at + (size_t)j] - lse : NAN};
	}
	r->on_logprobs(r->arg, out, n);
}
