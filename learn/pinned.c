/* Who is pinned (learn/pinned.h).
 *
 * A domain fills at every second request that a verdict frees; then every sixteenth takes the place of its oldest. So what is asked all the
 * time is sampled from its last days, and what is asked no more keeps the members it had. A member begins at position 0, so that it
 * needs no other run to be replayed. Their number is bounded, their rows (each is replayed under two versions, once a candidate that would
 * be accepted), and their bytes: an eighth of the pool, shared alike by the domains that have members.
 */
#include "learn/pinned.h"

#include <stdio.h>
#include <string.h>

#include "daemon/base/mix.h"

enum { ROWS_EACH = 512, FILLING = 2, FULL = 16 }; /* rows: of a member, on average; one of so many is drawn */

struct sum { int n; int64_t rows; uint64_t bytes; };
struct share { char domain[32]; struct sum of; };
struct shares { int n; struct share v[PINNED_DOMAINS]; };

static struct sum plus(struct sum s, const struct run *r)
{
	for (int i = 0; i < r->n_refs; i++)
		s.bytes += r->refs[i].len;
	s.n++;
	s.rows += r->n;
	return s;
}

/* A domain's entry, a new one where there is none yet; NULL: there are too many. */
static struct share *share_of(struct shares *t, const char *domain)
{
	for (int i = 0; i < t->n; i++)
		if (!strcmp(t->v[i].domain, domain))
			return &t->v[i];
	if (t->n == PINNED_DOMAINS)
		return NULL;
	(void)snprintf(t->v[t->n].domain, sizeof t->v->domain, "%s", domain);
	return &t->v[t->n++];
}

static void count(const struct learner *l, struct shares *t)
{
	*t = (struct shares){0};
	for (int i = 0; i < l->runs.n; i++) {
		struct share *h = l->runs.v[i].state == RUN_PINNED ? share_of(t, l->runs.v[i].domain) : NULL;
		if (h)
			h->of = plus(h->of, &l->runs.v[i]);
	}
}

static bool fits(const struct learner *l, struct sum s, const struct run *r, int n_domains)
{
	struct sum x = plus(s, r);
	int most = l->o.heldout_pinned;
	return x.n <= most && x.rows <= (int64_t)most * ROWS_EACH && x.bytes <= l->o.pool_bytes / 8 / (uint64_t)n_domains;
}

/* A counter random number of (seed, run), from another stream than the sample that is kept to be replayed. */
static uint64_t chance(const struct learner *l, const struct run *r)
{
	return mix64(~l->o.seed * MIX_OTHER + r->id);
}

/* A held-out run joins the members of its domain, or not. */
static void draw(const struct learner *l, struct shares *t, struct run *r)
{
	struct share *h = r->pos0 || r->bad ? NULL : share_of(t, r->domain);
	if (!h)
		return;
	if (fits(l, (struct sum){0}, r, t->n) && chance(l, r) % (fits(l, h->of, r, t->n) ? FILLING : FULL) == 0) {
		r->state = RUN_PINNED;
		h->of = plus(h->of, r);
	}
	if (!h->of.n)
		t->n--; /* a domain without a member takes no share: it was the newest entry */
}

void pinned_draw(struct learner *l)
{
	struct shares t, stay = {0};
	count(l, &t);
	for (int i = 0; i < l->runs.n; i++)
		if (l->runs.v[i].state == RUN_HELD_OUT)
			draw(l, &t, &l->runs.v[i]);
	for (int i = l->runs.n - 1; i >= 0; i--) { /* the newest stay */
		struct run *r = &l->runs.v[i];
		struct share *h = r->state == RUN_PINNED ? share_of(&stay, r->domain) : NULL;
		if (h && fits(l, h->of, r, t.n))
			h->of = plus(h->of, r);
		else if (r->state == RUN_PINNED)
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
	struct shares t;
	json_t *j = json_object();
	count(l, &t);
	for (int i = 0; j && i < t.n; i++)
		(void)json_object_set_new(j, t.v[i].domain, json_integer(t.v[i].of.n));
	return j;
}
