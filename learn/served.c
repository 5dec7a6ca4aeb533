/* Served against replayed (learn/served.h). */
#include "learn/served.h"

#include <math.h>
#include <stdlib.h>

#include "learn/history.h"

struct sums {
	int requests;
	double rounds, served, replayed;    /* accepted proposals */
	double rr, rd, dd;                  /* of rounds and of replayed - served, over requests */
};

static int rounds_of(const struct joined *j, uint32_t version, uint32_t *start, uint8_t *len, double *ret_accepted)
{
	int n = 0;
	*ret_accepted = 0;
	for (int i = 0; i < j->n_rounds; i++) {
		if (j->round_version[i] != version || !j->round_len[i] || (int)j->round_start[i] >= j->n - 1)
			continue;
		start[n] = j->round_start[i];
		len[n++] = j->round_len[i];
		*ret_accepted += j->round_accepted[i];
	}
	return n;
}

static int replay_rounds(struct learner *l, const struct draft *d, const struct joined *j, const uint32_t *start, const uint8_t *len, int n, struct replay_result *ret)
{
	size_t values = (size_t)j->n * (size_t)j->H3;
	real *f = malloc(values * sizeof *f);
	if (!f)
		return -ENOMEM;
	for (size_t i = 0; i < values; i++)
		f[i] = (real)bf16_to_f32(j->features[i]);
	struct replay_request q = {.n = j->n, .ids = j->ids, .pos = j->pos, .features = f, .round_start = start, .round_len = len, .n_rounds = n};
	int r = replay_accept_length(l->d, &d->c, d->w, d->d2t, l->fz->embedding, &q, TTT_MAX_STEPS, ret);
	free(f);
	return r;
}

static void enter(struct sums *s, double rounds, double served, double replayed)
{
	double d = replayed - served;
	s->requests++;
	s->rounds += rounds;
	s->served += served;
	s->replayed += replayed;
	s->rr += rounds * rounds;
	s->rd += rounds * d;
	s->dd += d * d;
}

/* One run into the sums; one that is damaged or holds none of these rounds changes nothing. */
static int one_run(struct learner *l, const struct run *run, const struct draft *d, uint32_t version, struct sums *s)
{
	struct joined j = {0};
	struct history h;
	history_find(&l->runs, &l->join, run, &h);
	if (h.kind != HISTORY_WHOLE || joined_load_after(l->pool, &h, h.total, run, (uint32_t)l->fz->V, &j))
		return 0; /* a chain whose history is missing is no fair one */
	uint32_t *start = malloc(((size_t)j.n_rounds + 1) * sizeof *start);
	uint8_t *len = malloc((size_t)j.n_rounds + 1);
	struct replay_result res = {0};
	double accepted = 0;
	int r = start && len ? 0 : -ENOMEM;
	int n = r ? 0 : rounds_of(&j, version, start, len, &accepted);
	if (n)
		r = replay_rounds(l, d, &j, start, len, n, &res);
	if (!r && res.rounds)
		enter(s, res.rounds, accepted, res.accepted);
	free(start);
	free(len);
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
	double n = s.requests, gap = (s.replayed - s.served) / s.rounds;
	double spread = n > 1 ? (s.dd - 2 * gap * s.rd + gap * gap * s.rr) * n / (n - 1) : 0;
	*ret = json_pack("{s:I,s:i,s:I,s:f,s:f,s:f}", "version", (json_int_t)version, "requests", s.requests, "rounds", (json_int_t)s.rounds, "served_al",
			 1 + s.served / s.rounds, "replayed_al", 1 + s.replayed / s.rounds, "gap_se", sqrt(spread > 0 ? spread : 0) / s.rounds);
	return *ret ? 0 : -ENOMEM;
}
