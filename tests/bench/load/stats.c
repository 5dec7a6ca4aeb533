/* Samples are sorted once; a resample is a weight for each owner (how often it was drawn), and
 * one walk over the sorted samples finds every quantile under those weights. So a resample costs
 * one pass, not a sort.
 */
#include "tests/bench/load/stats.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/bench/load/arrivals.h"

enum { RESAMPLES = 1000, MAX_SAMPLES = 1 << 26 };

const char *const stat_names[N_STATS] = {"mean", "p50", "p95", "p99", "p99/p50"};
static const double shares[] = {0, .50, .95, .99};

void series_done(struct series *s)
{
	free(s->s);
	*s = (struct series){0};
}

int series_add(struct series *s, double v, uint32_t owner)
{
	if (s->n == s->cap) {
		size_t cap = s->cap ? 2 * s->cap : 256;
		struct sample *grown = cap <= MAX_SAMPLES ? realloc(s->s, cap * sizeof *grown) : NULL;
		if (!grown)
			return -ENOMEM;
		s->s = grown;
		s->cap = cap;
	}
	s->s[s->n++] = (struct sample){(float)v, owner};
	s->sorted = false;
	return 0;
}

static int by_value(const void *a, const void *b)
{
	float x = ((const struct sample *)a)->v, y = ((const struct sample *)b)->v;

	return (x > y) - (x < y);
}

static void sort(struct series *s)
{
	if (!s->sorted && s->n)
		qsort(s->s, s->n, sizeof *s->s, by_value);
	s->sorted = true;
}

/* All statistics under the owners' weights; NULL weighs each sample once. */
static void weighted(const struct series *s, const uint32_t *weight, double ret[static N_STATS])
{
	uint64_t total = 0, seen = 0;
	double sum = 0;
	int next = STAT_P50;

	for (size_t i = 0; i < s->n; i++) {
		uint32_t w = weight ? weight[s->s[i].owner] : 1;
		total += w;
		sum += w * (double)s->s[i].v;
	}
	for (int k = 0; k < N_STATS; k++)
		ret[k] = (double)NAN;
	if (total == 0)
		return;
	ret[STAT_MEAN] = sum / (double)total;
	for (size_t i = 0; i < s->n && next <= STAT_P99; i++) {
		seen += weight ? weight[s->s[i].owner] : 1;
		while (next <= STAT_P99 && (double)seen >= shares[next] * (double)total && seen > 0)
			ret[next++] = (double)s->s[i].v;
	}
	ret[STAT_TAIL] = ret[STAT_P99] / ret[STAT_P50];
}

double series_stat(struct series *s, enum stat which)
{
	double all[N_STATS];

	sort(s);
	weighted(s, NULL, all);
	return all[which];
}

static int by_double(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* draws (unsorted, n of them, some perhaps NAN) to the two ends of the interval. */
static void interval(double *draws, size_t n, struct estimate *ret)
{
	size_t kept = 0;

	for (size_t i = 0; i < n; i++)
		if (isfinite(draws[i]))
			draws[kept++] = draws[i];
	ret->low = ret->high = (double)NAN;
	if (kept == 0)
		return;
	qsort(draws, kept, sizeof *draws, by_double);
	ret->low = draws[(size_t)(.025 * (double)(kept - 1))];
	ret->high = draws[(size_t)(.975 * (double)(kept - 1))];
}

static void draw(uint32_t *weight, uint32_t n, struct rng *rng)
{
	memset(weight, 0, n * sizeof *weight);
	for (uint32_t i = 0; i < n; i++)
		weight[rng_below(rng, n)]++;
}

/* b NULL: the statistics of a. */
static void estimate(struct series *a, struct series *b, uint32_t n_owners, uint64_t seed, struct estimate ret[static N_STATS])
{
	uint32_t *weight = calloc(n_owners ? n_owners : 1, sizeof *weight);
	double *draws = calloc((size_t)N_STATS * RESAMPLES, sizeof *draws), x[N_STATS], y[N_STATS];
	struct rng rng = {seed};

	sort(a);
	if (b)
		sort(b);
	weighted(a, NULL, x);
	if (b)
		weighted(b, NULL, y);
	for (int k = 0; k < N_STATS; k++)
		ret[k] = (struct estimate){b ? x[k] / y[k] : x[k], (double)NAN, (double)NAN};
	for (int i = 0; weight && draws && n_owners > 1 && i < RESAMPLES; i++) {
		draw(weight, n_owners, &rng);
		weighted(a, weight, x);
		if (b)
			weighted(b, weight, y);
		for (int k = 0; k < N_STATS; k++)
			draws[k * RESAMPLES + i] = b ? x[k] / y[k] : x[k];
	}
	for (int k = 0; draws && n_owners > 1 && k < N_STATS; k++)
		interval(draws + (size_t)k * RESAMPLES, RESAMPLES, &ret[k]);
	free(weight);
	free(draws);
}

void series_estimate(struct series *s, uint32_t n_owners, uint64_t seed, struct estimate ret[static N_STATS])
{
	estimate(s, NULL, n_owners, seed, ret);
}

void series_ratio(struct series *a, struct series *b, uint32_t n_owners, uint64_t seed, struct estimate ret[static N_STATS])
{
	estimate(a, b, n_owners, seed, ret);
}

struct estimate mean_estimate(const double *v, size_t n, uint64_t seed)
{
	struct series s = {0};
	struct estimate all[N_STATS] = {{(double)NAN, (double)NAN, (double)NAN}};

	for (size_t i = 0; i < n; i++)
		if (series_add(&s, v[i], (uint32_t)i) < 0)
			break;
	if (s.n == n)
		series_estimate(&s, (uint32_t)n, seed, all);
	series_done(&s);
	return all[STAT_MEAN];
}
