/* Walk a tree: the draws are served, the proposals only decide how many draws
 * one target forward was good for.
 */
#include "serve/verify.h"

/* The child of `at` that proposes id, or -1. Children come after their parents. */
static int follow(int at, uint32_t id, const uint32_t *proposed, const int16_t *parent, int len)
{
	for (int i = at + 1; i < len; i++)
		if (parent[i] == at && proposed[i] == id)
			return i;
	return -1;
}

struct verdict verify_tree(struct sampler *s, const real *logits, int V, const struct sampling *how, const struct history *h, uint32_t position,
			   const uint32_t *proposed, const int16_t *parent, int len, bool (*ends)(const void *arg, uint32_t id), const void *arg)
{
	struct verdict v = {0};
	int at = -1;
	sampler_open(s, how, h);
	for (;;) {
		uint32_t y = sample_token(s, logits + (size_t)(at + 1) * (size_t)V, how, position + (uint32_t)v.n);
		v.ids[v.n++] = y;
		sampler_saw(s, y); /* a proposal that agrees is y: the history goes along the path */
		at = v.accepted < ENGINE_MAX_K ? follow(at, y, proposed, parent, len) : -1;
		if (at < 0)
			break;
		v.path[v.accepted++] = at;
		if (ends(arg, y))
			break;
	}
	sampler_close(s);
	return v;
}
