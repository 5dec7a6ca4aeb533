/* Paired replay (learn/evaluate.h). */
#include "learn/evaluate.h"

#include <stdlib.h>
#include <string.h>

#include "learn/history.h"
#include "schemas/round.h"

enum { MAX_DOMAINS = 32, FULL_AFTER = 16 };

struct version { uint32_t number; const struct draft *d; };

struct tally {
	char domain[32];
	int requests;
	uint64_t rounds[2], accepted[2];
};

int evaluate_run(struct dev *dev, const struct frozen *fz, const struct joined *j, int first, const struct draft *d, int k, struct replay_result *ret)
{
	first += j->history;
	memset(ret, 0, sizeof *ret);
	while (first < j->n && !j->mask[first])
		first++;
	if (first == 0 || first >= j->n) /* the row before the first generated token starts the first round */
		return 0;
	size_t n = (size_t)j->n * (size_t)j->H3;
	real *f = malloc(n * sizeof *f);
	if (!f)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		f[i] = (real)bf16_to_f32(j->features[i]);
	struct replay_request q = {.n = j->n, .ids = j->ids, .pos = j->pos, .features = f, .first_round_row = first - 1};
	int r = replay_accept_length(dev, &d->c, d->w, d->d2t, fz->embedding, &q, k, ret);
	free(f);
	return r;
}

static double accept_length(uint64_t rounds, uint64_t accepted)
{
	return rounds ? 1 + (double)accepted / (double)rounds : 1;
}

static struct tally *tally_of(struct tally *t, int *n, const char *domain)
{
	for (int i = 0; i < *n; i++)
		if (strcmp(t[i].domain, domain) == 0)
			return &t[i];
	if (*n == MAX_DOMAINS)
		return &t[MAX_DOMAINS - 1];
	(void)snprintf(t[*n].domain, sizeof t->domain, "%s", domain);
	return &t[(*n)++];
}

static bool known(const struct learner *l, uint64_t run, uint32_t version, int k, struct replay_result *ret)
{
	const struct replayed *m = l->replayed;
	for (uint64_t i = 0; m && i < m->n && i < REPLAYED_KEPT; i++)
		if (m->v[i].run == run && m->v[i].version == version && m->v[i].k == k) {
			ret->rounds = m->v[i].rounds;
			ret->accepted = m->v[i].accepted;
			return true;
		}
	return false;
}

static void remember(struct learner *l, uint64_t run, uint32_t version, int k, const struct replay_result *r)
{
	struct replayed *m = l->replayed = l->replayed ? l->replayed : calloc(1, sizeof *l->replayed);
	if (!m)
		return;
	uint64_t at = m->n++ % REPLAYED_KEPT;
	m->v[at].run = run;
	m->v[at].version = version;
	m->v[at].k = k;
	m->v[at].rounds = r->rounds;
	m->v[at].accepted = r->accepted;
}

enum { CANDIDATE, LIVE, REFERENCE, VERSIONS };

/* One run under those versions that are not known yet (d NULL: not at all). */
static int replay_all(struct learner *l, const struct run *run, const struct version v[VERSIONS], int k, struct replay_result res[VERSIONS])
{
	struct joined j = {0};
	struct history h;
	int r = 0;
	bool ask[VERSIONS], any = false;
	for (int i = 0; i < VERSIONS; i++)
		any |= ask[i] = v[i].d && !known(l, run->id, v[i].number, k, &res[i]);
	history_find(&l->runs, &l->join, run, &h);
	if (h.kind != HISTORY_WHOLE)
		return -ENOENT;
	if (any)
		r = joined_load_after(l->pool, &h, h.total, run, (uint32_t)l->fz->V, &j);
	for (int i = 0; i < VERSIONS && !r; i++) {
		if (ask[i])
			r = evaluate_run(l->d, l->fz, &j, run->first, v[i].d, k, &res[i]);
		if (ask[i] && !r)
			remember(l, run->id, v[i].number, k, &res[i]);
	}
	joined_done(&j);
	return r;
}

/* One request under both, into its domain's tally and the list of pairs. */
static int pair(struct learner *l, const struct run *run, const struct version v[VERSIONS], int k, struct tally *t, int *n_t, json_t *pairs)
{
	struct replay_result res[VERSIONS] = {0};
	int r = replay_all(l, run, v, k, res);
	if (r || !res[CANDIDATE].rounds) /* damaged on disk, or too large for now: left out, as it is from training */
		return 0;
	struct tally *x = tally_of(t, n_t, run->domain);
	x->requests++;
	for (int i = 0; i < 2; i++) {
		x->rounds[i] += res[i].rounds;
		x->accepted[i] += res[i].accepted;
	}
	json_t *j = json_pack("{s:s,s:i,s:I,s:f,s:f}", "domain", run->domain, "context", round_bucket((int64_t)run->pos0 + run->n), "rounds", (json_int_t)res[CANDIDATE].rounds, "live_al",
			      accept_length(res[LIVE].rounds, res[LIVE].accepted), "candidate_al", accept_length(res[CANDIDATE].rounds, res[CANDIDATE].accepted));
	if (j && v[REFERENCE].d) {
		(void)json_object_set_new(j, "reference", json_integer((json_int_t)v[REFERENCE].number));
		(void)json_object_set_new(j, "reference_al", json_real(accept_length(res[REFERENCE].rounds, res[REFERENCE].accepted)));
	}
	return json_array_append_new(pairs, j) ? -ENOMEM : 0;
}

/* Every pinned run, domain by domain, since each may have a version of its own to be compared with. */
static int pair_pinned(struct learner *l, const struct evaluate_older *older, const struct version both[VERSIONS], int k, json_t *pairs)
{
	struct tally t[MAX_DOMAINS] = {0};
	int r = pairs ? 0 : -ENOMEM, n_t = 0;
	for (int at = -1; at < older->n && !r; at++) { /* -1: those of domains that are not named */
		struct version v[VERSIONS] = {both[0], both[1], {0}};
		struct draft d = {0};
		struct errtext gone;
		if (at >= 0 && !publish_read_version(l->o.store, older->v[at].version, l->fz, &d, &gone))
			v[REFERENCE] = (struct version){older->v[at].version, &d};
		for (int i = 0; i < l->runs.n && !r; i++) {
			const struct run *run = &l->runs.v[i];
			int named = 0;
			if (run->state != RUN_PINNED)
				continue;
			while (named < older->n && strcmp(older->v[named].domain, run->domain) != 0)
				named++;
			if (named == (at < 0 ? older->n : at))
				r = pair(l, run, v, k, t, &n_t, pairs);
		}
		draft_done(&d);
	}
	return r;
}

/* Every run that is held out. */
static int pair_held_out(struct learner *l, const struct version v[VERSIONS], int k, struct tally *t, int *n_t, json_t *pairs)
{
	int r = pairs ? 0 : -ENOMEM;
	for (int i = 0; i < l->runs.n && !r; i++)
		if (l->runs.v[i].state == RUN_HELD_OUT)
			r = pair(l, &l->runs.v[i], v, k, t, n_t, pairs);
	return r;
}

static json_t *table(const struct tally *t, int n, const struct version version[VERSIONS])
{
	json_t *a = json_array();
	for (int i = 0; i < n; i++)
		for (int v = 0; v < 2; v++)
			(void)json_array_append_new(a, json_pack("{s:I,s:s,s:i,s:I,s:f}", "version", (json_int_t)version[v].number, "domain", t[i].domain,
								 "requests", t[i].requests, "rounds", (json_int_t)t[i].rounds[v], "accept_length",
								 accept_length(t[i].rounds[v], t[i].accepted[v])));
	return a;
}

int evaluate(struct learner *l, uint32_t candidate, uint32_t live, int k, const struct evaluate_older *older, json_t **ret, struct errtext *e)
{
	struct draft d[2] = {0};
	const struct version v[VERSIONS] = {{candidate, &d[0]}, {live, live ? &d[1] : NULL}, {0}};
	struct tally t[MAX_DOMAINS] = {0};
	json_t *pairs = json_array(), *pinned = NULL;
	int n_t = 0;
	int r = pairs ? publish_read_version(l->o.store, candidate, l->fz, &d[0], e) : -ENOMEM;
	if (!r && live)
		r = publish_read_version(l->o.store, live, l->fz, &d[1], e);
	if (!r)
		r = pair_held_out(l, v, k, t, &n_t, pairs);
	if (!r && !json_array_size(pairs))
		r = EVALUATE_E_NOT_ENOUGH;
	if (!r && older && live)
		r = pair_pinned(l, older, v, k, pinned = json_array());
	draft_done(&d[0]);
	draft_done(&d[1]);
	bool full = learner_count(l, RUN_HELD_OUT) >= l->o.heldout_max || l->turned_away >= FULL_AFTER;
	if (!r)
		r = (*ret = json_pack("{s:i,s:b,s:O,s:O*,s:o}", "requests", (int)json_array_size(pairs), "full", full, "pairs", pairs, "pinned", pinned,
				      "table", table(t, n_t, v))) ? 0 : -ENOMEM;
	json_decref(pairs);
	json_decref(pinned);
	return r;
}

int evaluate_newest(struct learner *l, uint32_t version, int most, int k, json_t **ret, struct errtext *e)
{
	struct draft d = {0};
	const struct version v[VERSIONS] = {{version, &d}, {0}, {0}};
	struct tally t[MAX_DOMAINS] = {0};
	json_t *pairs = json_array(), *a = json_array();
	int n_t = 0, r = pairs && a ? publish_read_version(l->o.store, version, l->fz, &d, e) : -ENOMEM;
	for (int i = l->runs.n - 1; i >= 0 && (int)json_array_size(pairs) < most && !r; i--)
		r = pair(l, &l->runs.v[i], v, k, t, &n_t, pairs);
	draft_done(&d);
	int requests = (int)json_array_size(pairs);
	json_decref(pairs);
	if (!r && !requests)
		r = EVALUATE_E_NOT_ENOUGH;
	for (int i = 0; i < n_t && !r; i++)
		r = json_array_append_new(a, json_pack("{s:I,s:s,s:i,s:I,s:f}", "version", (json_int_t)version, "domain", t[i].domain, "requests",
						       t[i].requests, "rounds", (json_int_t)t[i].rounds[0], "accept_length",
						       accept_length(t[i].rounds[0], t[i].accepted[0]))) ? -ENOMEM : 0;
	if (!r)
		r = (*ret = json_pack("{s:I,s:i,s:i,s:O}", "version", (json_int_t)version, "k", k, "requests", requests, "table", a)) ? 0 : -ENOMEM;
	json_decref(a);
	return r;
}
