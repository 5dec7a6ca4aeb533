/* Growing and picking (tree.h). The sizes are tiny: everything is done by looking at everything. */
#include <math.h>
#include <string.h>
#include "serve/draft.h"
#include "serve/tree.h"

/* Notes candidates below `parent`, keeping room in the table. */
static void note(struct tree *t, int parent, const uint32_t *ids, const float *logp)
{
	for (int i = 0; i < t->shape.width && t->n < TREE_CANDS && ids[i] != DRAFT_NONE; i++) {
		float lp = logp[i] < 0 ? logp[i] : 0; /* rounding may leave a hair above 0 */
		if (!isfinite(lp))
			return;
		t->c[t->n++] = (struct tree_cand){.id = ids[i], .score = (parent < 0 ? 0 : t->c[parent].score) + lp, .parent = (int16_t)parent, .run = -1,
						  .depth = (int8_t)(parent < 0 ? 1 : t->c[parent].depth + 1)};
	}
}

void tree_start(struct tree *t, struct draft_shape shape, const uint32_t *ids, const float *logp)
{
	t->shape = shape;
	t->n = t->n_live = t->n_run = t->level_run = t->above_run = 0;
	t->level = 1;
	if (shape.depth > 0)
		note(t, -1, ids, logp);
}

/* Does a come before b? By score, then by when it was noted. */
static bool better(const struct tree *t, int a, int b)
{
	return t->c[a].score > t->c[b].score || (t->c[a].score == t->c[b].score && a < b);
}

static int rank_of(const struct tree *t, int i)
{
	int rank = 0;
	for (int j = 0; j < t->n; j++)
		rank += better(t, j, i);
	return rank;
}

/* The best candidate of this level that is not run yet, out of those at idx; -1 when there is none */
static int best_of(const struct tree *t, const int *idx, int n)
{
	int best = -1;
	for (int i = 0; i < n; i++)
		if (t->c[idx[i]].run < 0 && (best < 0 || better(t, idx[i], best)))
			best = idx[i];
	return best;
}

int tree_next(struct tree *t, int room, bool (*ends)(const void *arg, uint32_t id), const void *arg)
{
	int idx[TREE_CANDS], n = 0;
	t->n_live = 0;
	t->above_run = t->level_run;
	t->level_run = t->n_run;
	if (t->level >= t->shape.depth)
		return 0;
	for (int i = 0; i < t->n; i++) /* a continuation is worse than what it follows: it must leave a place */
		if (t->c[i].depth == t->level && !ends(arg, t->c[i].id) && (t->shape.width == 1 || rank_of(t, i) < t->shape.nodes - 1))
			idx[n++] = i;
	while (t->n_live < t->shape.width && t->n_live < room) {
		int best = best_of(t, idx, n);
		if (best < 0)
			break;
		int up = t->c[best].parent;
		t->run_parent[t->n_run] = up < 0 ? -1 : t->c[up].run;
		t->c[best].run = (int16_t)t->n_run++;
		t->live[t->n_live++] = best;
	}
	t->level++;
	return t->n_live;
}

void tree_note(struct tree *t, int i, const uint32_t *ids, const float *logp)
{
	note(t, t->live[i], ids, logp);
}

/* Kept candidates below `parent`, depth first, best first. */
static int place(const struct tree *t, const bool *kept, int parent, int n, int16_t *at)
{
	bool done[TREE_CANDS] = {false};
	for (;;) {
		int best = -1;
		for (int i = 0; i < t->n; i++)
			if (kept[i] && t->c[i].parent == parent && !done[i] && (best < 0 || better(t, i, best)))
				best = i;
		if (best < 0)
			return n;
		done[best] = true;
		at[n] = (int16_t)best;
		n = place(t, kept, best, n + 1, at);
	}
}

int tree_pick(const struct tree *t, int nodes, uint32_t *ids, int16_t *parent, uint8_t *rank)
{
	bool kept[TREE_CANDS];
	int16_t at[TREE_CANDS], node_of[TREE_CANDS];
	nodes = nodes < t->shape.nodes ? nodes : t->shape.nodes;
	nodes = nodes < ENGINE_MAX_NODES ? nodes : ENGINE_MAX_NODES;
	for (int i = 0; i < t->n; i++)
		kept[i] = rank_of(t, i) < nodes;
	int n = place(t, kept, -1, 0, at);
	for (int i = 0; i < n; i++) {
		const struct tree_cand *c = &t->c[at[i]];
		node_of[at[i]] = (int16_t)i;
		ids[i] = c->id;
		parent[i] = c->parent < 0 ? -1 : node_of[c->parent];
		rank[i] = (uint8_t)rank_of(t, at[i]);
	}
	return n;
}
