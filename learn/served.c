/* Served against replayed (learn/served.h). */
#include "learn/served.h"

#include <math.h>
#include <stdlib.h>

#include "learn/history.h"

/* What a request gives: rounds, accepted proposals of both, and rounds in which these are not the same number. */
struct counts { double rounds, served, replayed, differ; };

struct sums {
	int requests;
	struct counts all;
	double rr, rd, dd, rx, xx; /* products over requests: r rounds, d replayed - served, x differ */
};

/* The rounds of one request under one version. */
struct rounds {
	int n;
	uint32_t *start;
	uint8_t *len, *served, *replayed;
};

static int rounds_new(struct rounds *x, int most)
{
	size_t n = (size_t)most + 1;
	*x = (struct rounds){.start = malloc(n * sizeof *x->start), .len = malloc(n), .served = malloc(n), .replayed = malloc(n)};
	return x->start && x->len && x->served && x->replayed ? 0 : -ENOMEM;
}

static void rounds_done(struct rounds *x)
{
	free(x->start);
	free(x->len);
	free(x->served);
	free(x->replayed);
}

static void rounds_of(const struct joined *j, uint32_t version, struct rounds *x)
{
	for (int i = 0; i < j->n_rounds; i++) {
		if (j->round_version[i] != version || !j->round_len[i] || (int)j->round_start[i] >= j->n - 1)
			continue;
		x->start[x->n] = j->round_start[i];
		x->len[x->n] = j->round_len[i];
		x->served[x->n++] = j->round_accepted[i];
	}
}

static int replay_rounds(struct learner *l, const struct draft *d, const struct joined *j, const struct rounds *x)
{
	size_t values = (size_t)j->n * (size_t)j->H3;
	real *f = malloc(values * sizeof *f);
	if (!f)
		return -ENOMEM;
	for (size_t i = 0; i < values; i++)
		f[i] = (real)bf16_to_f32(j->features[i]);
	struct replay_request q = {.n = j->n, .ids = j->ids, .pos = j->pos, .features = f, .round_start = x->start, .round_len = x->len, .n_rounds = x->n,
				   .round_accepted = x->replayed};
	struct replay_result res;
	int r = replay_accept_length(l->d, &d->c, d->w, d->d2t, l->fz->embedding, &q, TTT_MAX_STEPS, &res);
	free(f);
	return r;
}

static void enter(struct sums *s, const struct rounds *x)
{
	struct counts c = {.rounds = x->n};
	for (int i = 0; i < x->n; i++) {
		c.served += x->served[i];
		c.replayed += x->replayed[i];
		c.differ += x->served[i] != x->replayed[i];
	}
	double d = c.replayed - c.served;
	s->requests++;
	s->all.rounds += c.rounds;
	s->all.served += c.served;
	s->all.replayed += c.replayed;
	s->all.differ += c.differ;
	s->rr += c.rounds * c.rounds;
	s->rd += c.rounds * d;
	s->dd += d * d;
	s->rx += c.rounds * c.differ;
	s->xx += c.differ * c.differ;
}

/* Standard error of a ratio of sums over requests, `ratio` to the rounds. */
static double ratio_se(const struct sums *s, double ratio, double squares, double with_rounds)
{
	double n = s->requests, spread = n > 1 ? (squares - 2 * ratio * with_rounds + ratio * ratio * s->rr) * n / (n - 1) : 0;
	return sqrt(spread > 0 ? spread : 0) / s->all.rounds;
}

/* One run into the sums; one that is damaged or holds none of these rounds changes nothing. */
static int one_run(struct learner *l, const struct run *run, const struct draft *d, uint32_t version, struct sums *s)
{
	struct joined j = {0};
	struct rounds x;
	struct history h;
	history_find(&l->runs, &l->join, run, &h);
	if (h.kind != HISTORY_WHOLE || h.total + run->n > HISTORY_MAX_ROWS || joined_load_after(l->pool, &h, h.total, run, (uint32_t)l->fz->V, &j))
		return 0; /* a chain whose history is missing is no fair one */
	int r = rounds_new(&x, j.n_rounds);
	if (!r)
		rounds_of(&j, version, &x);
	if (x.n)
		r = replay_rounds(l, d, &j, &x);
	if (!r && x.n)
		enter(s, &x);
	rounds_done(&x);
	joined_done(&j);
	return r;
}

int served_compare(struct learner *l, uint32_t version, int max_requests, json_t **ret, struct errtext *e)
{
	struct draft d = {0};
	struct sums s = {0};
	int r = publish_read_version(l->o.store, version, l->fz, &d, e);
	for (int i = l->runs.n - 1; i >= 0 && s.requests < max_requests && !r; i--)
		r = one_run(l, &l->runs.v[i], &d, version, &s);
	draft_done(&d);
	if (r)
		return r;
	if (!s.requests)
		return SERVED_E_NOT_ENOUGH;
	const struct counts *c = &s.all;
	double gap = (c->replayed - c->served) / c->rounds, differ = c->differ / c->rounds;
	*ret = json_pack("{s:I,s:i,s:I,s:f,s:f,s:f,s:f,s:f}", "version", (json_int_t)version, "requests", s.requests, "rounds", (json_int_t)c->rounds, "served_al",
			 1 + c->served / c->rounds, "replayed_al", 1 + c->replayed / c->rounds, "gap_se", ratio_se(&s, gap, s.dd, s.rd), "differ", differ,
			 "differ_se", ratio_se(&s, differ, s.xx, s.rx));
	return *ret ? 0 : -ENOMEM;
}
