/* Quantiles and means of latencies, with bootstrap intervals.
 *
 * A series holds samples, each with an owner: the unit that is drawn again. Tokens of one
 * request are not independent, so one run draws whole requests; a comparison of two arms that
 * ran in alternating slices draws whole pairs of slices, the same for both arms, so that what the
 * machine did meanwhile cancels. Intervals are percentiles, 95 %. Threads: one owner at a time.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "daemon/base/err.h"

struct sample {
	float v;
	uint32_t owner;
};

struct series {
	struct sample *s; /* owned */
	size_t n, cap;
	bool sorted;
};

enum stat { STAT_MEAN, STAT_P50, STAT_P95, STAT_P99, STAT_TAIL /* P99 over P50 */, N_STATS };
extern const char *const stat_names[N_STATS];

struct estimate {
	double v, low, high; /* NAN where there is nothing to say */
};

void series_done(struct series *s);
int MUSTCHECK series_add(struct series *s, double v, uint32_t owner);
/* Nearest-rank quantiles: the smallest sample that at least the share q does not exceed. */
double series_stat(struct series *s, enum stat which);
/* All statistics, resampling owners 0 .. n_owners-1. */
void series_estimate(struct series *s, uint32_t n_owners, uint64_t seed, struct estimate ret[static N_STATS]);
/* Statistics of a over those of b, resampling owners common to both. */
void series_ratio(struct series *a, struct series *b, uint32_t n_owners, uint64_t seed, struct estimate ret[static N_STATS]);
/* Mean of n values, resampling them one by one. */
struct estimate mean_estimate(const double *v, size_t n, uint64_t seed);
