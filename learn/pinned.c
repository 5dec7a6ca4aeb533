/* Who is pinned (learn/pinned.h).
 *
 * A domain fills at every second request that a verdict frees; then every sixteenth takes the place of its oldest. So what is asked all the
 * time is sampled from its last days, and what is asked no more keeps the members it had. A member begins at position 0, so that it
 * needs no other run to be replayed. Their number is bounded, their rows (each is replayed under two versions, once a candidate that would
 * be accepted), and their bytes: an eighth of the pool, shared alike by the domains that have members.
 */
#include "learn/pinned.h"

#include <string.h>

#include "daemon/base/mix.h"

enum { ROWS_EACH = 512, FILLING = 2, FULL = 16 }; /* rows: of a member, on average; one of so many is drawn */

struct sum { int n; int64_t rows; uint64_t bytes; };

static struct sum of(const struct run *r)
{
	struct sum s = {1, r->n, 0};
	for (int i = 0; i < r->n_refs; i++)
		s.bytes += r->refs[i].len;
	return s;
}

/* Of a domain's members, those behind the first `from` runs. */
static struct sum members(const struct learner *l, const char *domain, int from)
{
	struct sum s = {0};
	for (int i = from; i < l->runs.n; i++) {
		const struct run *r = &l->runs.v[i];
		if (r->state != RUN_PINNED || strcmp(r->domain, domain) != 0)
			continue;
		struct sum x = of(r);
		s = (struct sum){s.n + 1, s.rows + x.rows, s.bytes + x.bytes};
	}
	return s;
}

static int domains(const struct learner *l)
{
	int n = 0;
	for (int i = 0; i < l->runs.n; i++)
		n += l->runs.v[i].state == RUN_PINNED && members(l, l->runs.v[i].domain, i + 1).n == 0; /* its last one */
	return n;
}

static bool fits(const struct learner *l, struct sum s, const struct run *r, int n_domains)
{
	struct sum x = of(r);
	int most = l->o.heldout_pinned;
	return s.n < most && s.rows + x.rows <= (int64_t)most * ROWS_EACH && s.bytes + x.bytes <= l->o.pool_bytes / 8 / (uint64_t)n_domains;
}

/* A counter random number of (seed, run), from another stream than the sample that is kept to be replayed. */
static uint64_t chance(const struct learner *l, const struct run *r)
{
	return mix64(~l->o.seed * MIX_OTHER + r->id);
}

static bool drawn(const struct learner *l, const struct run *r)
{
	struct sum s = members(l, r->domain, 0);
	int n = domains(l) + (s.n == 0);
	if (r->pos0 || r->bad || n > PINNED_DOMAINS || !fits(l, (struct sum){0}, r, n))
		return false;
	return chance(l, r) % (fits(l, s, r, n) ? FILLING : FULL) == 0;
}

void pinned_draw(struct learner *l)
{
	for (int i = 0; i < l->runs.n; i++)
		if (l->runs.v[i].state == RUN_HELD_OUT && drawn(l, &l->runs.v[i]))
			l->runs.v[i].state = RUN_PINNED;
	int n = domains(l);
	for (int i = l->runs.n - 1; i >= 0; i--) { /* the newest stay */
		struct run *r = &l->runs.v[i];
		if (r->state == RUN_PINNED && !fits(l, members(l, r->domain, i + 1), r, n))
			r->state = RUN_TRAINED; /* free: to be replayed, as others of its time are */
	}
}

void pinned_quarantine(struct learner *l, uint32_t version)
{
	for (int i = 0; i < l->runs.n; i++) {
		struct run *r = &l->runs.v[i];
		if (r->state != RUN_PINNED || version < r->drafted[0] || version > r->drafted[1])
			continue;
		r->state = RUN_TRAINED;
		r->bad = true;
	}
}

json_t *pinned_count(const struct learner *l)
{
	json_t *j = json_object();
	for (int i = 0; j && i < l->runs.n; i++)
		if (l->runs.v[i].state == RUN_PINNED && !json_object_get(j, l->runs.v[i].domain))
			(void)json_object_set_new(j, l->runs.v[i].domain, json_integer(members(l, l->runs.v[i].domain, i).n));
	return j;
}
