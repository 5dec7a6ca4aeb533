/* Poisson arrivals are sums of exponential gaps, drawn by inverse CDF. */
#include "tests/bench/load/arrivals.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TIMES = 1000000 };

uint64_t rng_next(struct rng *r)
{
	uint64_t z = (r->state += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

double rng_unit(struct rng *r)
{
	return (double)(rng_next(r) >> 11) * 0x1p-53;
}

size_t rng_below(struct rng *r, size_t n)
{
	return (size_t)(rng_unit(r) * (double)n);
}

int arrivals_init(struct arrivals *a, double rate, bool even, uint64_t seed, struct errtext *e)
{
	if (!(rate > 0))
		return errtext_set(e, -EINVAL, "an open loop needs a rate above 0 (or a file of times)");
	*a = (struct arrivals){.kind = even ? ARRIVAL_EVEN : ARRIVAL_POISSON, .rate = rate, .rng = {seed}};
	return 0;
}

int arrivals_replay(struct arrivals *a, const char *path, struct errtext *e)
{
	FILE *f = fopen(path, "re");
	struct arrivals b = {.kind = ARRIVAL_REPLAY};
	double t;
	int r = 0;

	if (!f)
		return errtext_set(e, -errno, "%s cannot be opened: %s", path, strerror(errno));
	while (r == 0 && fscanf(f, "%lf", &t) == 1) {
		double *grown = b.n < MAX_TIMES ? realloc(b.times, (b.n + 1) * sizeof *grown) : NULL;
		if (!grown) {
			r = errtext_set(e, -E2BIG, "%s holds more than %d times", path, MAX_TIMES);
			break;
		}
		b.times = grown;
		if (!(t >= (b.n ? b.times[b.n - 1] : 0)) || !isfinite(t))
			r = errtext_set(e, -EINVAL, "%s, time %zu: times are seconds from 0 on that never fall", path, b.n + 1);
		b.times[b.n++] = t;
	}
	if (r == 0 && (!feof(f) || b.n == 0))
		r = errtext_set(e, -EINVAL, "%s: after %zu times something that is no number", path, b.n);
	(void)fclose(f);
	if (r < 0)
		free(b.times);
	else
		*a = b;
	return r;
}

void arrivals_done(struct arrivals *a)
{
	free(a->times);
	*a = (struct arrivals){0};
}

double arrivals_next(struct arrivals *a)
{
	switch (a->kind) {
	case ARRIVAL_POISSON:
		a->last -= log(1 - rng_unit(&a->rng)) / a->rate;
		return a->last;
	case ARRIVAL_EVEN:
		return a->last = (double)++a->at / a->rate;
	case ARRIVAL_REPLAY:
		break;
	}
	return a->at < a->n ? a->times[a->at++] : (double)INFINITY;
}
