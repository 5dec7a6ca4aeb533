/* Drawing a token on the host, by the rule of ops.h `draw`: for rows that the host has anyway, and for the likeliest of a row.
 *
 * Every function returns the token. None fails; none takes memory.
 */
#pragma once
#include "kernels/ops.h"

enum { DRAW_FAR = -29 /* e^-29 of the best one's weight is no whole number any more */, DRAW_BUCKETS = 32 * -DRAW_FAR };

/* The caller's, of one thread at a time; what it holds means nothing between calls. */
struct draw_room {
	uint64_t *w;    /* [N] */
	uint32_t *heap; /* [N] */
	uint64_t mass[DRAW_BUCKETS];
};

uint32_t draw_greedy(const real *x, int N); /* the largest, of equals the lowest; 0 where there is none */
uint32_t draw_row(struct draw_room *room, const real *x, int N, const struct draw *how);
/* The same among the k best ranks alone (0 < k <= N), as if the row had no others. */
uint32_t draw_top(struct draw_room *room, const real *x, int N, int k, const struct draw *how);
/* The same, given them in rank order: n >= 1 distinct ids below the room's N, and their logits. */
uint32_t draw_listed(struct draw_room *room, const uint32_t *ids, const float *vals, int n, const struct draw *how);

/* The rule's exponential, for tests and for anybody who must reproduce a draw: x in [-60, 0]. */
double draw_exp(double x);
