/* What a round proposes: a tree grown level by level where the draft is surest.
 *
 * A candidate's score is the sum of its path's log-probabilities, as the draft gives them. Each
 * level runs the best `width` candidates of the one before and notes `width` continuations of each;
 * in the end the best `nodes` of all are kept (EAGLE-2, eagle3.md §2.4). A score is never
 * above its parent's and ties go to who was noted first, so what is kept is closed under parents. A chain
 * is the tree of width 1. Pure: no model, no memory of its own; ties and order are fixed, so the same numbers give
 * the same tree.
 */
#pragma once
#include <stdbool.h>
#include "serve/engine.h"

enum { TREE_WIDTH = 4, TREE_CANDS = TREE_WIDTH + (ENGINE_MAX_K - 1) * TREE_WIDTH * TREE_WIDTH };

struct draft_shape { int width, depth, nodes; }; /* depth 0: propose nothing; a chain of k: {1, k, k} */

struct tree_cand {
	uint32_t id;
	float score;
	int16_t parent; /* candidate, -1 = the root */
	int16_t run;    /* how many the draft had run before it; -1 = not run */
	int8_t depth;   /* 1 = next to the root */
};

struct tree {
	struct draft_shape shape;
	struct tree_cand c[TREE_CANDS];
	int n, level;                       /* level: depth of the last ones noted */
	int live[TREE_WIDTH], n_live;       /* run next */
	int16_t run_parent[TREE_CANDS];     /* of the nodes run, as ops.h wants it */
	int n_run, level_run, above_run;    /* run so far; before this level; before the one above */
};

/* ids and logp [shape.width]: what may follow the root; ends with the first id that is DRAFT_NONE. */
void tree_start(struct tree *t, struct draft_shape shape, const uint32_t *ids, const float *logp);
/* Choose whom to run next, at most `room` of them: into live; 0 = the tree is grown. Candidates that `ends` says
 * end the text, or that no continuation could make it through, are not run. */
int tree_next(struct tree *t, int room, bool (*ends)(const void *arg, uint32_t id), const void *arg);
/* The continuations of live[i]; ends as tree_start's. */
void tree_note(struct tree *t, int i, const uint32_t *ids, const float *logp);
/* The tree: at most ENGINE_MAX_NODES nodes, parents first and the surest child first below each, so that the
 * surest path comes first. parent: node or -1. rank: how many of the nodes have a better score. Returns how many. */
int tree_pick(const struct tree *t, int nodes, uint32_t *ids, int16_t *parent, uint8_t *rank);
