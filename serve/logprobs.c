/* The device's top-k gives the likeliest tokens and the normaliser of a row; the token
 * itself, which need not be among them, comes from its logit.
 */
#include "serve/logprobs.h"
#include <math.h>
#include "kernels/ops.h"

void logprobs_tell(struct dev *d, const real *logits, int V, const uint32_t *ids, int n, const struct engine_request *r)
{
	struct token_logprob out[(ENGINE_MAX_K + 1) * (ENGINE_MAX_LOGPROBS + 1)];
	uint32_t top[ENGINE_MAX_LOGPROBS + 1];
	float val[ENGINE_MAX_LOGPROBS + 1], lse;
	int k = r->top_logprobs < V ? r->top_logprobs : V, width = r->top_logprobs + 1, at_least = k > 0 ? k : 1;

	for (int i = 0; i < n; i++) {
		const real *l = logits + (size_t)i * (size_t)V;
		struct token_logprob *o = out + i * width;
		bool bad = d->ops->topk(d, top, val, &lse, l, V, 1, V, at_least) != 0;
		o[0] = (struct token_logprob){ids[i], bad ? NAN : (float)l[ids[i]] - lse};
		for (int j = 0; j < r->top_logprobs; j++)
			o[j + 1] = (struct token_logprob){bad || j >= k ? 0 : top[j], bad || j >= k ? NAN : val[j] - lse};
	}
	r->on_logprobs(r->arg, out, n);
}
