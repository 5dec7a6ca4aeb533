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

static uint32_t draw(struct sampler *s, const struct drawn_from *from, int row, const struct sampling *how, uint32_t position)
{
	size_t at = (size_t)row;
	if (from->drawn)
		return from->drawn[at];
	if (from->rows)
		return sample_token(s, from->rows + at * (size_t)from->V, how, position);
	return sample_best(s, from->ids + at * (size_t)from->K, from->vals + at * (size_t)from->K, how, position);
}

struct verdict verify_tree(struct sampler *s, const struct drawn_from *from, const struct sampling *how, const struct history *h, uint32_t position,
			   const uint32_t *proposed, const int16_t *parent, int len, bool (*ends)(const void *arg, uint32_t id), const void *arg)
{
	struct verdict v = {0};
	int at = -1;
	sampler_open(s, how, h);
	for (;;) {
		uint32_t y = draw(s, from, at + 1, how, position + (uint32_t)v.n);
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
