/* Reservoirs by domain (learn/keep.h).
 *
 * Each run has a key, a counter random number of (seed, id). Of each domain the runs with the highest keys are kept,
 * up to an equal share of half the pool: a uniform sample of the domain's past that needs no state of its own, so
 * it is the same after a crash. The other half of the pool is the recent traffic as it came. Copying is bounded: a run
 * moves once each time the pool has gone round.
 */
#include "learn/keep.h"

#include <string.h>

#include "daemon/base/mix.h"

static uint64_t key(const struct learner *l, const struct run *r)
{
	return mix64(l->o.seed * MIX_OTHER + r->id);
}

static uint64_t bytes(const struct run *r)
{
	uint64_t n = 0;
	for (int i = 0; i < r->n_refs; i++)
		n += r->refs[i].len;
	return n;
}

bool keep_replayable(const struct learner *l, const struct run *r)
{
	return r->state == RUN_TRAINED && !r->bad && r->epochs < l->o.max_epochs && r->n - r->first >= JOIN_MIN_ROWS;
}

static int domains(const struct learner *l)
{
	int n = 0;
	for (int i = 0; i < l->runs.n; i++) {
		int k = 0;
		while (k < i && !(keep_replayable(l, &l->runs.v[k]) && strcmp(l->runs.v[k].domain, l->runs.v[i].domain) == 0))
			k++;
		n += k == i && keep_replayable(l, &l->runs.v[i]);
	}
	return n;
}

/* Is there room for r in its domain's share beside the runs with higher keys? */
static bool chosen(const struct learner *l, const struct run *r, uint64_t share)
{
	uint64_t mine = key(l, r), sum = bytes(r);
	for (int i = 0; i < l->runs.n && sum <= share; i++) {
		const struct run *x = &l->runs.v[i];
		if (x != r && keep_replayable(l, x) && strcmp(x->domain, r->domain) == 0 && key(l, x) > mine)
			sum += bytes(x);
	}
	return sum <= share;
}

/* All of a run's records at the end of the pool. Damaged: as it was, and it goes with its segment. */
static int move(struct learner *l, struct run *r)
{
	struct pool_ref to[RUN_MAX_RECORDS] = {0};
	for (int i = 0; i < r->n_refs; i++) {
		int k = pool_copy(l->pool, r->refs[i], &to[i]);
		if (k == -EIO || k == -ENOENT)
			return 0;
		if (k)
			return k;
	}
	memcpy(r->refs, to, (size_t)r->n_refs * sizeof *to);
	return 0;
}

int keep_sample(struct learner *l, uint32_t first)
{
	int n = domains(l);
	uint64_t share = n ? l->o.pool_bytes / 2 / (uint64_t)n : 0;
	for (int i = 0; i < l->runs.n; i++) {
		struct run *r = &l->runs.v[i];
		bool keep = r->state == RUN_PINNED || (keep_replayable(l, r) && chosen(l, r, share));
		if (r->refs[0].segment >= first || !keep)
			continue;
		int k = move(l, r);
		if (k)
			return k;
	}
	return 0;
}
