/* The canary's test (canary.h). */
#include "daemon/canary.h"
#include <math.h>
#include <stdio.h>

const struct canary_rules canary_defaults = {.alpha = CANARY_ALPHA, .drop = CANARY_DROP, .tail = CANARY_TAIL, .lost = CANARY_LOST,
					      .requests = CANARY_REQUESTS};
static const double ttft_edge_ms[CANARY_TTFT_EDGES] = {10, 20, 50, 100, 200, 350, 500, 750, 1000, 2000, 5000, 10000};
enum { COMPARISONS = 1 + ROUND_TPOT_EDGES + CANARY_TTFT_EDGES /* besides the yield */, TIGHTEST = 300 };

void canary_start(struct canary *c, uint32_t version, uint32_t live)
{
	*c = (struct canary){.version = version, .live = live};
}

static void enter(struct canary_mean *m, double x)
{
	double off = x - m->mean;

	m->mean += off / (double)++m->n;
	m->m2 += off * (x - m->mean);
}

/* What a round gave: proposals or not, so that a draft which is asked no longer counts as one that gives nothing. */
static double yield_of(const struct round_record *r)
{
	double accepted = 0;

	for (int i = 0; i < r->k; i++)
		accepted += r->accepted[i];
	return 1 + accepted / r->rounds;
}

static void enter_latency(struct canary_arm *a, const struct round_record *r)
{
	double all = 0, above = 0;

	for (int i = 0; i <= ROUND_TPOT_EDGES; i++)
		all += r->tpot_ms[i];
	for (int i = ROUND_TPOT_EDGES - 1; i >= 0 && all > 0; i--) {
		above += r->tpot_ms[i + 1];
		enter(&a->tpot[i], above / all);
	}
	for (int i = 0; i < CANARY_TTFT_EDGES; i++)
		enter(&a->ttft[i], r->ttft_ms > ttft_edge_ms[i]);
}

void canary_take(struct canary *c, const struct round_record *r)
{
	struct canary_arm *a = &c->arm[r->version == c->version];

	if (!c->version || r->part != 0 || (r->version != c->version && r->version != c->live))
		return;
	a->requests++;
	enter(&a->lost, !r->last);
	enter_latency(a, r);
	if (r->rounds)
		enter(&a->yield, yield_of(r));
}

/* Half the width of the mean's interval. best, worst: the invented requests. */
static double width(const struct canary_mean *m, double best, double worst, double alpha)
{
	double n = (double)m->n, l = -2 * log(alpha), r2 = (l + log(l + 1)) / TIGHTEST;
	double mid = (m->mean * n + best + worst) / (n + 2);
	double var = (m->m2 + n * (m->mean - mid) * (m->mean - mid) + (best - mid) * (best - mid) + (worst - mid) * (worst - mid)) / (n + 2);

	return sqrt(var * 2 * (n * r2 + 1) / (n * n * r2) * log(sqrt(n * r2 + 1) / alpha));
}

struct look { const struct canary_mean *live, *canary; double best, worst, allowed, alpha; };

/* How far the canary surely lies on the bad side (worse than best), beyond what is allowed; at most 0: not surely. */
static double surely_worse(const struct look *x)
{
	double sign = x->worst > x->best ? 1 : -1;

	if (x->live->n < CANARY_LEAST || x->canary->n < CANARY_LEAST)
		return -1;
	return sign * (x->canary->mean - x->live->mean) - x->allowed - width(x->live, x->best, x->worst, x->alpha) -
	       width(x->canary, x->best, x->worst, x->alpha);
}

static bool surely_no_worse(const struct look *x)
{
	double sign = x->worst > x->best ? 1 : -1;

	return x->live->n >= CANARY_LEAST && x->canary->n >= CANARY_LEAST &&
	       sign * (x->canary->mean - x->live->mean) + width(x->live, x->best, x->worst, x->alpha) +
			       width(x->canary, x->best, x->worst, x->alpha) < x->allowed;
}

static struct look yield_look(const struct canary_rules *k, const struct canary *c, double alpha)
{
	const struct canary_mean *live = &c->arm[0].yield;
	double most = 2 * live->mean > 2 ? 2 * live->mean : 2;

	return (struct look){live, &c->arm[1].yield, most, 1, k->drop * live->mean, alpha};
}

static bool harm(const struct canary_rules *k, const struct canary *c, double alpha, char *text)
{
	const struct canary_arm *live = &c->arm[0], *on = &c->arm[1];
	const struct look yield = yield_look(k, c, k->alpha / 4), lost = {&live->lost, &on->lost, 0, 1, k->lost, alpha};

	if (surely_worse(&yield) > 0) {
		snprintf(text, CANARY_TEXT, "a round gives %.3f tokens, %.3f under version %u (%lld and %lld requests)", on->yield.mean,
			 live->yield.mean, c->live, (long long)on->yield.n, (long long)live->yield.n);
		return true;
	}
	if (surely_worse(&lost) > 0) {
		snprintf(text, CANARY_TEXT, "%.1f %% of its requests lost their draft, %.1f %% under version %u", 100 * on->lost.mean,
			 100 * live->lost.mean, c->live);
		return true;
	}
	for (int i = 0; i < ROUND_TPOT_EDGES; i++) {
		const struct look x = {&live->tpot[i], &on->tpot[i], 0, 1, k->tail, alpha};

		if (surely_worse(&x) > 0) {
			snprintf(text, CANARY_TEXT, "%.1f %% of its tokens took over %g ms, %.1f %% under version %u", 100 * on->tpot[i].mean,
				 round_tpot_edges_ms[i], 100 * live->tpot[i].mean, c->live);
			return true;
		}
	}
	for (int i = 0; i < CANARY_TTFT_EDGES; i++) {
		const struct look x = {&live->ttft[i], &on->ttft[i], 0, 1, k->tail, alpha};

		if (surely_worse(&x) > 0) {
			snprintf(text, CANARY_TEXT, "%.1f %% of its first tokens took over %g ms, %.1f %% under version %u",
				 100 * on->ttft[i].mean, ttft_edge_ms[i], 100 * live->ttft[i].mean, c->live);
			return true;
		}
	}
	return false;
}

enum canary_outcome canary_judge(const struct canary_rules *k, const struct canary *c, bool proven, char ret_text[static CANARY_TEXT])
{
	double alpha = k->alpha / (4 * COMPARISONS);
	const struct canary_arm *live = &c->arm[0], *on = &c->arm[1];
	const struct look yield = yield_look(k, c, k->alpha / 4);
	bool enough = on->requests >= k->requests && (!proven || surely_no_worse(&yield));

	if (harm(k, c, alpha, ret_text))
		return CANARY_HARM;
	snprintf(ret_text, CANARY_TEXT, "a round gives %.3f tokens, %.3f under version %u (%lld and %lld requests); no harm seen", on->yield.mean,
		 live->yield.mean, c->live, (long long)on->requests, (long long)live->requests);
	return enough ? CANARY_ENOUGH : CANARY_GOES_ON;
}
