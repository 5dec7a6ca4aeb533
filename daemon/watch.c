/* The watcher. Each record is a request's proposals and acceptances for one version.
 * Two views are kept: an exponential mean weighted by rounds (follows a drift within
 * some hundred rounds whatever the traffic) and the exact mean over the last 64
 * requests (what a person expects when they count). A round record that does not
 * decode is counted and skipped. Every record also goes into its drift stream (drift.h).
 */
#include "daemon/watch.h"
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/base/clock.h"
#include "daemon/watch_inside.h"
#include "schemas/round.h"

static const double watch_memory_rounds = 200;

/* ---- counting ---- */

static struct watch_domain *watch_find_domain(struct watch *w, const char *label)
{
	struct watch_domain *d;
	char name[sizeof d->name];

	snprintf(name, sizeof name, "%s", label);
	for (char *c = name; *c; c++) /* it becomes a label */
		if (!isalnum((unsigned char)*c) && !strchr("_-.", *c))
			*c = '_';
	for (int i = 0; i < w->n_domains; i++)
		if (!strcmp(w->domain[i].name, name))
			return &w->domain[i];
	if (w->n_domains >= WATCH_DOMAINS - 1 && strcmp(name, "other"))
		return watch_find_domain(w, "other"); /* the last place is kept for it */
	d = &w->domain[w->n_domains++];
	memcpy(d->name, name, sizeof d->name);
	return d;
}

/* The cell of a version; a new one takes the place of the one longest unseen. */
static struct watch_cell *watch_find_cell(struct watch_domain *d, uint32_t version)
{
	struct watch_cell *oldest = &d->cell[0];

	for (int i = 0; i < WATCH_VERSIONS; i++) {
		struct watch_cell *c = &d->cell[i];

		if (c->used && c->version == version)
			return c;
		if (!c->used ? oldest->used : oldest->used && c->seen < oldest->seen)
			oldest = c;
	}
	*oldest = (struct watch_cell){.used = true, .version = version, .ema = NAN};
	return oldest;
}

void watch_target(struct watch *w, const char *target_fp)
{
	pthread_mutex_lock(&w->lock);
	snprintf(w->target_fp, sizeof w->target_fp, "%s", target_fp);
	pthread_mutex_unlock(&w->lock);
}

void watch_take(struct watch *w, const struct round_record *r)
{
	double al = round_accept_length(r), share;
	struct watch_domain *d;
	struct watch_cell *c;
	uint64_t accepted = 0;

	for (int i = 0; i < ROUND_MAX_K; i++)
		accepted += r->accepted[i];
	pthread_mutex_lock(&w->lock);
	if (w->target_fp[0] && strcmp(w->target_fp, r->target_fp) != 0) { /* its versions are numbered by another store */
		w->foreign++;
		pthread_mutex_unlock(&w->lock);
		return;
	}
	d = watch_find_domain(w, r->domain[0] ? r->domain : "other");
	c = watch_find_cell(d, r->version);
	c->seen = ++w->stamp;
	c->requests++;
	if (r->part == 0) {
		c->lost = c->lost << 1 | !r->last;
		c->n_first += c->n_first < WATCH_RECENT;
	}
	d->requests++;
	c->rounds += r->rounds;
	d->rounds += r->rounds;
	if (r->proposed[0] && isfinite(al)) {
		share = 1 - exp(-(double)r->proposed[0] / watch_memory_rounds);
		c->ema = isnan(c->ema) ? al : c->ema + share * (al - c->ema);
		c->proposed += r->proposed[0];
		c->accepted += accepted;
		c->ring_rounds[c->at] = r->proposed[0];
		c->ring_accepted[c->at] = (uint32_t)accepted;
		c->at = (c->at + 1) % WATCH_RECENT;
	}
	(void)drift_take(w->drift, r, w->said);
	canary_take(&w->canary, r);
	pthread_mutex_unlock(&w->lock);
}

static double watch_recent(const struct watch_cell *c)
{
	double rounds = 0, accepted = 0;

	for (int i = 0; i < WATCH_RECENT; i++) {
		rounds += c->ring_rounds[i];
		accepted += c->ring_accepted[i];
	}
	return rounds > 0 ? 1 + accepted / rounds : NAN;
}

static json_t *watch_number(double v)
{
	return isfinite(v) ? json_real(v) : json_null();
}

static json_t *watch_domain_json(const struct watch_domain *d)
{
	const struct watch_cell *newest = NULL;
	json_t *versions = json_object();
	char key[16];

	for (int i = 0; versions && i < WATCH_VERSIONS; i++) {
		const struct watch_cell *c = &d->cell[i];

		if (!c->used)
			continue;
		if (c->version && (!newest || c->version > newest->version))
			newest = c;
		snprintf(key, sizeof key, "%u", c->version);
		(void)json_object_set_new(versions, key,
					  json_pack("{s:I, s:I, s:o, s:o}", "requests", (json_int_t)c->requests, "rounds",
						    (json_int_t)c->rounds, "accept_length", watch_number(c->ema), "recent",
						    watch_number(watch_recent(c))));
	}
	return json_pack("{s:I, s:I, s:o, s:o, s:o}", "requests", (json_int_t)d->requests, "rounds", (json_int_t)d->rounds,
			 "accept_length", watch_number(newest ? newest->ema : NAN), "recent",
			 watch_number(newest ? watch_recent(newest) : NAN), "versions", versions);
}

json_t *watch_domains(struct watch *w)
{
	json_t *all = json_object();

	pthread_mutex_lock(&w->lock);
	for (int i = 0; all && i < w->n_domains; i++)
		(void)json_object_set_new(all, w->domain[i].name, watch_domain_json(&w->domain[i]));
	pthread_mutex_unlock(&w->lock);
	return all;
}

json_t *watch_streams(struct watch *w)
{
	json_t *all;

	pthread_mutex_lock(&w->lock);
	all = drift_streams(w->drift);
	pthread_mutex_unlock(&w->lock);
	return all;
}

int watch_drift(struct watch *w, char ret_text[static DRIFT_TEXT])
{
	int level;

	pthread_mutex_lock(&w->lock);
	level = drift_level(w->drift);
	memcpy(ret_text, w->said, sizeof w->said);
	w->said[0] = '\0';
	pthread_mutex_unlock(&w->lock);
	return level;
}

/* ---- Kafka's side, as others see it ---- */

static double watch_lag_s(const struct watch_kafka *k)
{
	int64_t s = clock_wall_ms() - k->seen_ms;

	return k->lag > 0 && k->seen_ms ? (double)(s > 0 ? s : 0) / 1000 : 0;
}

json_t *watch_kafka(struct watch *w)
{
	const struct watch_kafka *k = &w->kafka;
	json_t *j;

	pthread_mutex_lock(&w->lock);
	j = json_pack("{s:b, s:b, s:s, s:i, s:I, s:f, s:I, s:I, s:I, s:I, s:s}", "on", (int)w->started, "up", (int)k->up, "topic", w->topic ? w->topic : "",
		      "partitions", k->partitions, "lag", (json_int_t)k->lag, "lag_s", watch_lag_s(k), "gaps", (json_int_t)k->gaps, "lost",
		      (json_int_t)k->lost, "bad", (json_int_t)w->bad, "foreign", (json_int_t)w->foreign, "trouble", k->trouble);
	pthread_mutex_unlock(&w->lock);
	return j ? j : json_object();
}

bool watch_said(struct watch *w, char *ret, size_t size)
{
	struct watch_kafka *k = &w->kafka;
	bool some;

	pthread_mutex_lock(&w->lock);
	some = k->n_said > 0;
	if (some) {
		snprintf(ret, size, "%s", k->said[0]);
		memmove(k->said[0], k->said[1], (size_t)--k->n_said * sizeof k->said[0]);
	}
	pthread_mutex_unlock(&w->lock);
	return some;
}

static int watch_print_kafka(struct watch *w, struct buf *out)
{
	const struct watch_kafka *k = &w->kafka;

	if (!w->started)
		return 0;
	return buf_printf(out,
			  "# HELP redraft_kafka_up 1 while the broker answers the daemon.\n# TYPE redraft_kafka_up gauge\nredraft_kafka_up %d\n"
			  "# HELP redraft_watch_lag Round records that wait to be read; -1 = not known.\n# TYPE redraft_watch_lag gauge\nredraft_watch_lag %lld\n"
			  "# HELP redraft_watch_lag_seconds Age of the newest round record read, while others wait.\n"
			  "# TYPE redraft_watch_lag_seconds gauge\nredraft_watch_lag_seconds %.3f\n"
			  "# HELP redraft_watch_lost_total Round records gone from the log before they were read.\n"
			  "# TYPE redraft_watch_lost_total counter\nredraft_watch_lost_total %llu\n",
			  (int)k->up, (long long)k->lag, watch_lag_s(k), (unsigned long long)k->lost);
}

enum canary_outcome watch_canary(struct watch *w, uint32_t version, uint32_t live, const struct canary_rules *rules, bool proven,
				 char ret_text[static CANARY_TEXT])
{
	enum canary_outcome out;

	pthread_mutex_lock(&w->lock);
	if (w->canary.version != version || w->canary.live != live)
		canary_start(&w->canary, version, live);
	out = canary_judge(rules, &w->canary, proven, ret_text);
	pthread_mutex_unlock(&w->lock);
	return out;
}

int watch_lost(struct watch *w, uint32_t version, int *ret_requests)
{
	int lost = 0;

	*ret_requests = 0;
	pthread_mutex_lock(&w->lock);
	for (int i = 0; i < w->n_domains; i++)
		for (int j = 0; j < WATCH_VERSIONS; j++) {
			const struct watch_cell *c = &w->domain[i].cell[j];

			if (!c->used || c->version != version)
				continue;
			lost += __builtin_popcountll(c->lost);
			*ret_requests += c->n_first;
		}
	pthread_mutex_unlock(&w->lock);
	return lost;
}

double watch_recent_al(struct watch *w, uint32_t version, int *ret_requests)
{
	double rounds = 0, accepted = 0;

	*ret_requests = 0;
	pthread_mutex_lock(&w->lock);
	for (int i = 0; i < w->n_domains; i++)
		for (int j = 0; j < WATCH_VERSIONS; j++) {
			const struct watch_cell *c = &w->domain[i].cell[j];

			for (int k = 0; c->used && c->version == version && k < WATCH_RECENT; k++) {
				rounds += c->ring_rounds[k];
				accepted += c->ring_accepted[k];
				*ret_requests += c->ring_rounds[k] > 0;
			}
		}
	pthread_mutex_unlock(&w->lock);
	return rounds > 0 ? 1 + accepted / rounds : NAN;
}

void watch_live(struct watch *w, uint32_t left, uint32_t live)
{
	pthread_mutex_lock(&w->lock);
	for (int i = 0; i < w->n_domains; i++)
		for (int j = 0; j < WATCH_VERSIONS; j++) {
			struct watch_cell *c = &w->domain[i].cell[j];

			if (c->used && c->version == live && c->left) {
				memset(c->ring_rounds, 0, sizeof c->ring_rounds);
				memset(c->ring_accepted, 0, sizeof c->ring_accepted);
				c->lost = 0;
				c->at = c->n_first = 0;
			}
			c->left = c->used && c->version != live && (c->left || c->version == left);
		}
	pthread_mutex_unlock(&w->lock);
}

void watch_canary_stop(struct watch *w)
{
	pthread_mutex_lock(&w->lock);
	canary_start(&w->canary, 0, 0);
	pthread_mutex_unlock(&w->lock);
}

struct watch_series {
	const char *name, *kind, *help;
};

static double watch_value(const struct watch_cell *c, int series)
{
	switch (series) {
	case 0: return c->ema;
	case 1: return (double)c->requests;
	case 2: return (double)c->rounds;
	case 3: return (double)c->proposed;
	default: return (double)c->accepted;
	}
}

int watch_print(struct watch *w, struct buf *out)
{
	static const struct watch_series series[] = {
		{"redraft_accept_length", "gauge", "Tokens per target forward of rounds that proposed, bonus included; exponential."},
		{"redraft_requests_total", "counter", "Round records by version."},
		{"redraft_rounds_total", "counter", "Decoding rounds."},
		{"redraft_drafted_rounds_total", "counter", "Decoding rounds that proposed something."},
		{"redraft_accepted_tokens_total", "counter", "Proposed tokens that were accepted."},
	};
	int r = 0;

	pthread_mutex_lock(&w->lock);
	for (int s = 0; !r && s < (int)(sizeof series / sizeof *series); s++) {
		r = buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", series[s].name, series[s].help, series[s].name, series[s].kind);
		for (int i = 0; i < w->n_domains * WATCH_VERSIONS && !r; i++) {
			const struct watch_domain *d = &w->domain[i / WATCH_VERSIONS];
			const struct watch_cell *c = &d->cell[i % WATCH_VERSIONS];

			if (c->used && !isnan(watch_value(c, s)))
				r = buf_printf(out, "%s{domain=\"%s\",version=\"%u\"} %.10g\n", series[s].name, d->name, c->version,
					       watch_value(c, s));
		}
	}
	if (!r)
		r = buf_printf(out, "# HELP redraft_bad_round_records_total Round records that did not decode.\n"
				    "# TYPE redraft_bad_round_records_total counter\nredraft_bad_round_records_total %llu\n",
			       (unsigned long long)w->bad);
	if (!r)
		r = watch_print_kafka(w, out);
	if (!r)
		r = drift_print(w->drift, out);
	pthread_mutex_unlock(&w->lock);
	return r;
}

/* ---- life ---- */

int watch_new(const struct watch_options *o, struct watch **ret, struct errtext *e)
{
	struct watch *w = calloc(1, sizeof *w);
	int r = 0;

	if (!w)
		return -ENOMEM;
	pthread_mutex_init(&w->lock, NULL);
	w->kafka.lag = -1;
	w->wake[0] = w->wake[1] = -1;
	r = drift_new(o->drift.alarm > 0 ? &o->drift : &drift_defaults, &w->drift);
	if (!r && o->brokers && o->brokers[0]) {
		w->topic = strdup(o->topic);
		w->brokers = strdup(o->brokers);
		w->conf = strdup(o->conf ? o->conf : "");
		r = w->topic && w->brokers && w->conf ? watch_connect(w, e) : -ENOMEM;
	}
	if (r < 0) {
		watch_free(w);
		return r;
	}
	*ret = w;
	return 0;
}

struct watch *watch_free(struct watch *w)
{
	if (!w)
		return NULL;
	watch_disconnect(w);
	free(w->brokers);
	free(w->topic);
	free(w->conf);
	drift_free(w->drift);
	pthread_mutex_destroy(&w->lock);
	free(w);
	return NULL;
}
