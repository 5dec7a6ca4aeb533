/* A bound that stays valid however often one looks, by betting.
 *
 * To doubt "the mean is at most m", bet: start with capital 1 and multiply it, for
 * each x in [-1, 1], by 1 + c (x - m) / (1 + m) with a fixed 0 < c < 1. The factor is
 * never negative, and if the mean (given the past) is at most m the capital is a
 * supermartingale, so by Ville's inequality it ever reaches 1/alpha with probability
 * at most alpha. An average over a few c is one too, which saves guessing the right
 * stake. The lower bound is the largest m that has been doubted away; the factor
 * falls in m, so bisection finds it. The upper bound is the same on -x. The capital
 * does not depend on the order of the requests. (Waudby-Smith and Ramdas,
 * "Estimating means of bounded random variables by betting".)
 *
 * A domain or context length that is worse beyond doubt vetoes: its bound is taken at alpha divided by
 * their number.
 *
 * Pinned requests are a fixed sample: looked at again they say the same, so of all that a sequence allows for only their number is left, and
 * they are few. Hence a level of their own (a twentieth of the candidates that are no worse may be refused for their sake, at most), shared by
 * their domains, and a tighter clip, which lets a bet on few requests grow. What no level can allow for: candidates after one
 * another are judged on the same members, so a sample that is unlucky once is so until its members change. A domain that is measured
 * against a reference as well counts twice.
 */
#include "daemon/gate.h"
#include <stdbool.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const struct gate_rules gate_defaults = {.min_requests = GATE_MIN_REQUESTS, .alpha = GATE_ALPHA, .clip = GATE_CLIP, .margin = GATE_MARGIN,
					.first_min_al = GATE_FIRST_MIN_AL, .min_gain = GATE_MIN_GAIN, .pinned_margin = GATE_PINNED_MARGIN};

static const double gate_stakes[] = {0.3, 0.6, 0.9};
static const double gate_looks_worse = 0.05; /* of live's accept length */
static const double gate_pinned_alpha = 0.05, gate_pinned_clip = 0.5; /* the second: of the rules' clip */
enum { GATE_N_STAKES = sizeof gate_stakes / sizeof *gate_stakes };

double gate_evidence(const double *x, int n, double m)
{
	double best = -HUGE_VAL, log_of[GATE_N_STAKES], sum = 0;

	for (int k = 0; k < GATE_N_STAKES; k++) {
		double c = gate_stakes[k], log_capital = 0;

		for (int i = 0; i < n; i++)
			log_capital += log1p(c * ((x[i] + 1) / (1 + m) - 1));
		log_of[k] = log_capital;
		best = fmax(best, log_capital);
	}
	for (int k = 0; k < GATE_N_STAKES; k++)
		sum += exp(log_of[k] - best);
	return best + log(sum / GATE_N_STAKES);
}

double gate_lower(const double *x, int n, double alpha)
{
	double lo = -1, hi = 1, need = -log(alpha);

	for (int i = 0; i < 50; i++) {
		double m = lo + (hi - lo) / 2;

		if (gate_evidence(x, n, m) >= need)
			lo = m;
		else
			hi = m;
	}
	return lo;
}

/* Of a pinned request, where there is one. */
static void gate_read_reference(const json_t *p, struct gate_pair *g)
{
	double al = json_number_value(json_object_get(p, "reference_al"));
	json_int_t version = json_integer_value(json_object_get(p, "reference"));
	bool good = version > 0 && version <= UINT32_MAX && al >= 1 && al <= 64;

	g->reference = good ? (uint32_t)version : 0;
	g->reference_al = good ? al : 0;
}

int gate_read_pairs(const json_t *pairs, struct gate_pair *ret, int max, struct errtext *e)
{
	size_t n = json_array_size(pairs);

	if (!json_is_array(pairs))
		return errtext_set(e, -EINVAL, "pairs is not a list");
	if (n > (size_t)max)
		n = (size_t)max;
	for (size_t i = 0; i < n; i++) {
		const json_t *p = json_array_get(pairs, i), *rounds = json_object_get(p, "rounds");
		const json_t *live = json_object_get(p, "live_al"), *candidate = json_object_get(p, "candidate_al");
		const char *domain = json_string_value(json_object_get(p, "domain"));
		struct gate_pair *g = &ret[i];

		if (!domain || strlen(domain) >= sizeof g->domain || !json_is_number(rounds) || !json_is_number(live) ||
		    !json_is_number(candidate))
			return errtext_set(e, -EINVAL, "pair %zu lacks domain, rounds, live_al or candidate_al", i);
		snprintf(g->domain, sizeof g->domain, "%s", domain);
		g->rounds = json_number_value(rounds);
		g->length = -1;
		if (json_is_integer(json_object_get(p, "context")) && json_integer_value(json_object_get(p, "context")) >= 0)
			g->length = (int)(json_integer_value(json_object_get(p, "context")) % GATE_LENGTHS);
		g->live_al = json_number_value(live);
		g->candidate_al = json_number_value(candidate);
		if (!(g->live_al >= 1 && g->live_al <= 64) || !(g->candidate_al >= 1 && g->candidate_al <= 64) ||
		    !(g->rounds > 0 && g->rounds < 1e9))
			return errtext_set(e, -EINVAL, "pair %zu: accept lengths are 1 to 64 and rounds above 0", i);
		gate_read_reference(p, g);
	}
	return (int)n;
}

/* Means and bounds over the pairs of one domain (NULL = all) or one length (-1 = all). x: room for n. */
static void gate_measure(const struct gate_rules *g, const struct gate_pair *p, int n, const char *domain, int length, double alpha,
			 double *x, struct gate_domain *ret)
{
	double live = 0, candidate = 0, sum = 0;
	int k = 0;

	for (int i = 0; i < n; i++) {
		double d = (p[i].candidate_al - p[i].live_al) / g->clip;

		if ((domain && strcmp(domain, p[i].domain)) || (length >= 0 && length != p[i].length))
			continue;
		live += p[i].live_al;
		candidate += p[i].candidate_al;
		x[k] = d < -1 ? -1 : d > 1 ? 1 : d;
		sum += x[k++];
	}
	*ret = (struct gate_domain){.requests = k};
	if (length >= 0)
		snprintf(ret->domain, sizeof ret->domain, "context %d", length);
	else
		snprintf(ret->domain, sizeof ret->domain, "%s", domain ? domain : "");
	if (!k)
		return;
	ret->live_al = live / k;
	ret->candidate_al = candidate / k;
	ret->difference = g->clip * sum / k;
	ret->lower = g->clip * gate_lower(x, k, alpha);
	for (int i = 0; i < k; i++)
		x[i] = -x[i];
	ret->upper = -g->clip * gate_lower(x, k, alpha);
}

static int gate_domains(const struct gate_pair *p, int n, char names[GATE_MAX_DOMAINS][32])
{
	int k = 0;

	for (int i = 0; i < n; i++) {
		int j = 0;

		while (j < k && strcmp(names[j], p[i].domain))
			j++;
		if (j == k && k < GATE_MAX_DOMAINS)
			memcpy(names[k++], p[i].domain, sizeof names[0]);
	}
	return k;
}

/* The sentence goes through JSON, the journal and a terminal: keep it plain. */
static void PRINTF(3, 4) gate_say(struct gate_verdict *v, enum gate_outcome outcome, const char *fmt, ...)
{
	va_list ap;

	v->outcome = outcome;
	va_start(ap, fmt);
	vsnprintf(v->reason, sizeof v->reason, fmt, ap);
	va_end(ap);
	for (char *c = v->reason; *c; c++)
		if ((unsigned char)*c < 32 || (unsigned char)*c > 126)
			*c = '?';
}

static void gate_first(const struct gate_rules *g, struct gate_verdict *v)
{
	if (v->all.candidate_al >= g->first_min_al)
		gate_say(v, GATE_ACCEPT, "first version: accept length %.3f on %d requests, at least %.2f pays",
			 v->all.candidate_al, v->all.requests, g->first_min_al);
	else
		gate_say(v, GATE_REJECT, "first version: accept length %.3f on %d requests is below the %.2f that pays",
			 v->all.candidate_al, v->all.requests, g->first_min_al);
}

static int gate_count_lengths(const struct gate_pair *p, int n, int lengths[static GATE_LENGTHS])
{
	bool seen[GATE_LENGTHS] = {false};
	int k = 0;

	for (int i = 0; i < n; i++)
		if (p[i].length >= 0)
			seen[p[i].length] = true;
	for (int i = 0; i < GATE_LENGTHS; i++)
		if (seen[i])
			lengths[k++] = i;
	return k;
}

static void gate_measure_all(const struct gate_rules *g, const struct gate_pair *p, int n, double *x, struct gate_verdict *v)
{
	char names[GATE_MAX_DOMAINS][32];
	int lengths[GATE_LENGTHS];
	double alpha;

	v->n_domains = gate_domains(p, n, names);
	v->n_lengths = gate_count_lengths(p, n, lengths);
	alpha = g->alpha / (v->n_domains + v->n_lengths);
	gate_measure(g, p, n, NULL, -1, g->alpha, x, &v->all);
	for (int i = 0; i < v->n_domains; i++)
		gate_measure(g, p, n, names[i], -1, alpha, x, &v->domains[i]);
	for (int i = 0; i < v->n_lengths; i++)
		gate_measure(g, p, n, NULL, lengths[i], alpha, x, &v->lengths[i]);
}

/* The part of the traffic that is surely worse, and the one that looks worst; NULL: none. */
static void gate_worst(const struct gate_verdict *v, const struct gate_domain **ret_worse, const struct gate_domain **ret_looks)
{
	*ret_worse = *ret_looks = NULL;
	for (int i = 0; i < v->n_domains + v->n_lengths; i++) {
		const struct gate_domain *d = i < v->n_domains ? &v->domains[i] : &v->lengths[i - v->n_domains];

		if (d->requests < GATE_DOMAIN_MIN)
			continue;
		if (d->upper < 0 && (!*ret_worse || d->difference < (*ret_worse)->difference))
			*ret_worse = d;
		if (d->difference < -gate_looks_worse * d->live_al && (!*ret_looks || d->difference < (*ret_looks)->difference))
			*ret_looks = d;
	}
}

void gate_decide(const struct gate_rules *g, const struct gate_pair *p, int n, uint32_t live, struct gate_verdict *ret)
{
	const struct gate_domain *worse, *looks, *d = &ret->all;
	double *x = n ? malloc((size_t)n * sizeof *x) : NULL;

	*ret = (struct gate_verdict){.outcome = GATE_UNDECIDED};
	if (!x) {
		gate_say(ret, GATE_UNDECIDED, "no held-out requests yet");
		return;
	}
	gate_measure_all(g, p, n, x, ret);
	free(x);
	gate_worst(ret, &worse, &looks);
	if (n < g->min_requests)
		gate_say(ret, GATE_UNDECIDED, "%d held-out requests of the %lld needed", n, (long long)g->min_requests);
	else if (!live)
		gate_first(g, ret);
	else if (d->upper < 0)
		gate_say(ret, GATE_REJECT, "accept length %.3f against %.3f on %d requests: worse by at least %.3f",
			 d->candidate_al, d->live_al, n, -d->upper);
	else if (worse)
		gate_say(ret, GATE_REJECT, "domain %s worse: accept length %.3f against %.3f on %d requests", worse->domain,
			 worse->candidate_al, worse->live_al, worse->requests);
	else if (g->min_gain > 0 && d->upper < g->min_gain)
		gate_say(ret, GATE_REJECT, "accept length %.3f against %.3f on %d requests: better by at most %.3f, not worth a switch",
			 d->candidate_al, d->live_al, n, d->upper);
	else if (looks)
		gate_say(ret, GATE_UNDECIDED, "domain %s looks worse: accept length %.3f against %.3f on %d requests", looks->domain,
			 looks->candidate_al, looks->live_al, looks->requests);
	else if (d->lower > -g->margin && d->difference >= g->min_gain)
		gate_say(ret, GATE_ACCEPT, "accept length %.3f against %.3f on %d requests: %s %.3f", d->candidate_al, d->live_al, n,
			 d->lower > 0 ? "better by at least" : "worse by at most", fabs(d->lower));
	else
		gate_say(ret, GATE_UNDECIDED, "accept length %.3f against %.3f on %d requests: between %+.3f and %+.3f",
			 d->candidate_al, d->live_al, n, d->lower, d->upper);
}

/* The same requests with the reference in live's place: how many of the domain have one. all: room for n. */
static int gate_referred(const struct gate_pair *p, int n, const char *domain, struct gate_pair *all, uint32_t *ret_version)
{
	int k = 0;

	for (int i = 0; i < n; i++)
		if (p[i].reference && !strcmp(p[i].domain, domain)) {
			*ret_version = p[i].reference;
			all[k] = p[i];
			all[k++].live_al = p[i].reference_al;
		}
	return k;
}

/* Domain i measured against live and, where it has one, against its reference; tests: how many there are to share the level. */
static void gate_measure_pinned(const struct gate_rules *g, const struct gate_pair *p, int n, int i, const char *name, int tests, struct gate_pair *room, double *x,
				struct gate_verdict *v)
{
	int k = gate_referred(p, n, name, room, &v->reference[i]);

	gate_measure(g, p, n, name, -1, gate_pinned_alpha / tests, x, &v->pinned[i]);
	gate_measure(g, room, k, name, -1, gate_pinned_alpha / tests, x, &v->before[i]);
}

/* The domain that is surely worse and most so; *ret_reference: against which version, 0 = live. */
static const struct gate_domain *gate_forgotten(const struct gate_rules *g, const struct gate_verdict *v, uint32_t *ret_reference)
{
	const struct gate_domain *worst = NULL;

	for (int i = 0; i < 2 * v->n_pinned; i++) {
		const struct gate_domain *live = &v->pinned[i / 2], *d = i % 2 ? &v->before[i / 2] : live;
		bool sure = d->requests >= GATE_DOMAIN_MIN && d->upper < -g->pinned_margin;

		if (!sure || (i % 2 && live->difference >= 0) || (worst && d->difference >= worst->difference))
			continue;
		worst = d;
		*ret_reference = i % 2 ? v->reference[i / 2] : 0;
	}
	return worst;
}

void gate_guard(const struct gate_rules *g, const struct gate_pair *pinned, int n, struct gate_verdict *v)
{
	struct gate_rules rules = *g;
	char names[GATE_MAX_DOMAINS][32], of[32] = "";
	double *x = n ? malloc((size_t)n * sizeof *x) : NULL;
	struct gate_pair *room = n ? malloc((size_t)n * sizeof *room) : NULL;
	const struct gate_domain *worst;
	uint32_t reference = 0;
	int tests;

	if (n && (!x || !room)) {
		free(room);
		free(x);
		if (v->outcome == GATE_ACCEPT) /* nobody is let in unheard */
			gate_say(v, GATE_UNDECIDED, "out of memory for the pinned requests");
		return;
	}
	tests = v->n_pinned = gate_domains(pinned, n, names);
	rules.clip *= gate_pinned_clip;
	for (int i = 0; i < v->n_pinned; i++)
		tests += gate_referred(pinned, n, names[i], room, &reference) > 0;
	for (int i = 0; i < v->n_pinned; i++)
		gate_measure_pinned(&rules, pinned, n, i, names[i], tests, room, x, v);
	free(room);
	free(x);
	worst = gate_forgotten(g, v, &reference);
	if (!worst || v->outcome == GATE_REJECT)
		return;
	if (reference)
		snprintf(of, sizeof of, " of version %u", reference);
	gate_say(v, GATE_REJECT, "older requests of domain %s: accept length %.3f against %.3f%s on %d pinned: worse by at least %.3f", worst->domain,
		 worst->candidate_al, worst->live_al, of, worst->requests, -worst->upper);
}

static json_t *gate_domain_json(const struct gate_domain *d)
{
	return json_pack("{s:i, s:f, s:f, s:f, s:f, s:f}", "requests", d->requests, "live_al", d->live_al, "candidate_al",
			 d->candidate_al, "difference", d->difference, "lower", d->lower, "upper", d->upper);
}

/* By name; one that is not UTF-8 cannot come out of JSON. */
static json_t *gate_parts_json(const struct gate_domain *d, int n)
{
	json_t *parts = json_object();

	for (int i = 0; parts && i < n; i++)
		(void)json_object_set_new(parts, d[i].domain, gate_domain_json(&d[i]));
	return parts;
}

static json_t *gate_pinned_json(const struct gate_verdict *v)
{
	json_t *parts = gate_parts_json(v->pinned, v->n_pinned);

	for (int i = 0; i < v->n_pinned; i++) {
		const struct gate_domain *d = &v->before[i];

		if (d->requests) /* the object is borrowed, and there unless the name or memory would not have it */
			(void)json_object_set_new(json_object_get(parts, d->domain), "before",
						  json_pack("{s:I, s:i, s:f, s:f, s:f, s:f}", "version", (json_int_t)v->reference[i], "requests", d->requests, "accept_length", d->live_al,
							    "difference", d->difference, "lower", d->lower, "upper", d->upper));
	}
	return parts;
}

json_t *gate_json(const struct gate_rules *g, const struct gate_verdict *v)
{
	static const char *const names[] = {"accepted", "rejected", "undecided"};
	json_t *j = gate_domain_json(&v->all);

	if (!j || json_object_set_new(j, "verdict", json_string(names[v->outcome])) < 0 ||
	    json_object_set_new(j, "reason", json_string(v->reason)) < 0 ||
	    json_object_set_new(j, "alpha", json_real(g->alpha)) < 0 ||
	    json_object_set_new(j, "clip", json_real(g->clip)) < 0 ||
	    json_object_set_new(j, "margin", json_real(g->margin)) < 0 || json_object_set_new(j, "domains", gate_parts_json(v->domains, v->n_domains)) < 0 ||
	    json_object_set_new(j, "lengths", gate_parts_json(v->lengths, v->n_lengths)) < 0 ||
	    json_object_set_new(j, "pinned", gate_pinned_json(v)) < 0) {
		json_decref(j);
		return NULL;
	}
	return j;
}
