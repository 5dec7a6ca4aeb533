/* Probes: a pinned set of prompts, served by the live engine with one draft, to see whether the target side is
 * what it was.
 *
 * Two things of a probe are told: how many of its chain's proposals were accepted, and its prompt's features as
 * numbers small enough to store: per boundary the root mean square, and PROBE_SIGNS projections on fixed vectors of random signs, one sign a
 * (row, dimension), divided by the root of their number. Rows have signs of their own, so that features which are shifted by a
 * row, of another boundary, or of another prompt give other numbers; rounding (another ISA, another order of sums) moves them
 * by parts in ten thousand of the root mean square.
 *
 * A probe is greedy, of a fixed length, of the lowest priority, always a chain; it uses no kept prefix and leaves
 * none, is neither traced nor counted in any number that users are shown, and teaches the controller nothing. Threads: the engine's, while it runs.
 */
#pragma once
#include "kernels/ops.h"
#include "schemas/draft_config.h"

enum { PROBE_SIGNS = 4, PROBE_BOUNDARIES = 3 };

struct probe {
	double square[PROBE_BOUNDARIES], sum[PROBE_BOUNDARIES][PROBE_SIGNS];
	int64_t values; /* of each boundary: rows times H */
	int next;       /* position not seen yet: who gave way to others reads its prompt again, and is told once */
};

/* Features of n prompt rows, [n, 3 H], the first at position pos0. */
void probe_rows(struct probe *p, int pos0, int n, const real *features, int H);
double probe_rms(const struct probe *p, int boundary);
double probe_projection(const struct probe *p, int boundary, int sign);
