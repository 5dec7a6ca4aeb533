/* Walk a chain: the draws are served, the proposals only decide how many draws
 * one target forward was good for.
 */
#include "serve/verify.h"

struct verdict verify_chain(struct sampler *s, const real *logits, int V, const struct sampling *how,
			    const struct history *h, uint32_t position, const uint32_t *proposed, int len,
			    bool (*ends)(const void *arg, uint32_t id), const void *arg)
{
	struct verdict v = {0};
	sampler_open(s, how, h);
	for (int i = 0; i <= len; i++) {
		uint32_t y = sample_token(s, logits + (size_t)i * (size_t)V, how, position + (uint32_t)i);
		v.ids[v.n++] = y;
		sampler_saw(s, y); /* a proposal that agrees is y: the history goes along the chain */
		bool agreed = i < len && y == proposed[i];
		v.accepted += agreed;
		if (!agreed || ends(arg, y))
			break;
	}
	sampler_close(s);
	return v;
}
