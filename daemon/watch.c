/* The watcher. Each record is a request's proposals and acceptances for one version.
 * Two views are kept: an exponential mean weighted by rounds (follows a drift within
 * some hundred rounds whatever the traffic) and the exact mean over the last 64
 * requests (what a person expects when they count). A round record that does not
 * decode is counted and skipped. Every record also goes into its drift stream (drift.h).
 */
#include "daemon/base/credential.h"
#include "daemon/watch.h"
#include <ctype.h>
#include <librdkafka/rdkafka.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "schemas/round.h"

enum { WATCH_DOMAINS = 17, WATCH_VERSIONS = 8, WATCH_RECENT = 64, WATCH_POLL_MS = 200, WATCH_LOOK_MS = 1000 };
static const double watch_memory_rounds = 200;

struct watch_cell {
	uint32_t version; /* 0 with used false = free; version 0 = plain decoding */
	bool used;
	uint64_t requests, rounds, proposed, accepted, seen; /* seen: stamp of the last record */
	double ema;                                         /* NaN until something was proposed */
	uint32_t ring_rounds[WATCH_RECENT], ring_accepted[WATCH_RECENT];
	int at;
};

struct watch_domain {
	char name[32];
	uint64_t requests, rounds;
	struct watch_cell cell[WATCH_VERSIONS];
};

struct watch {
	pthread_mutex_t lock; /* guards domains .. said */
	struct watch_domain domain[WATCH_DOMAINS];
	int n_domains;
	uint64_t bad, stamp;
	struct drift *drift;  /* owned */
	char said[DRIFT_TEXT]; /* by drift, not yet fetched */
	rd_kafka_t *rk;       /* owned; NULL = off */
	char *topic;          /* owned */
	pthread_t thread;
	bool started;
	atomic_bool stop;
	int n_partitions;     /* assigned */
	bool was_absent;      /* the broker said there is no such topic: what comes is all new */
};

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

void watch_take(struct watch *w, const struct round_record *r)
{
	double al = round_accept_length(r), share;
	struct watch_domain *d;
	struct watch_cell *c;
	uint64_t accepted = 0;

	for (int i = 0; i < ROUND_MAX_K; i++)
		accepted += r->accepted[i];
	pthread_mutex_lock(&w->lock);
	d = watch_find_domain(w, r->domain[0] ? r->domain : "other");
	c = watch_find_cell(d, r->version);
	c->seen = ++w->stamp;
	c->requests++;
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
		r = drift_print(w->drift, out);
	pthread_mutex_unlock(&w->lock);
	return r;
}

/* ---- reading ---- */

/* Assign all partitions when there are more than we have; 0 also when nothing is there. */
static void watch_assign(struct watch *w)
{
	rd_kafka_topic_t *t = rd_kafka_topic_new(w->rk, w->topic, NULL);
	const struct rd_kafka_metadata *md = NULL;
	rd_kafka_topic_partition_list_t *list, *old = NULL;
	int n = 0;

	if (!t)
		return;
	if (rd_kafka_metadata(w->rk, 0, t, &md, WATCH_LOOK_MS) == RD_KAFKA_RESP_ERR_NO_ERROR && md->topic_cnt == 1) {
		n = md->topics[0].err ? 0 : md->topics[0].partition_cnt;
		if (!n)
			w->was_absent = true;
	}
	if (md)
		rd_kafka_metadata_destroy(md);
	rd_kafka_topic_destroy(t);
	if (n <= w->n_partitions)
		return;
	list = rd_kafka_topic_partition_list_new(n);
	for (int i = 0; i < n; i++)
		rd_kafka_topic_partition_list_add(list, w->topic, i)->offset =
			w->was_absent || w->n_partitions ? RD_KAFKA_OFFSET_BEGINNING : RD_KAFKA_OFFSET_END;
	if (w->n_partitions && rd_kafka_assignment(w->rk, &old) == RD_KAFKA_RESP_ERR_NO_ERROR) {
		(void)rd_kafka_position(w->rk, old); /* those we read go on where they are */
		for (int i = 0; i < old->cnt; i++)
			if (old->elems[i].partition < n)
				list->elems[old->elems[i].partition].offset =
					old->elems[i].offset >= 0 ? old->elems[i].offset : RD_KAFKA_OFFSET_END;
		rd_kafka_topic_partition_list_destroy(old);
	}
	if (rd_kafka_assign(w->rk, list) == RD_KAFKA_RESP_ERR_NO_ERROR)
		w->n_partitions = n;
	rd_kafka_topic_partition_list_destroy(list);
}

static void watch_message(struct watch *w, const rd_kafka_message_t *m)
{
	struct round_record r;
	struct errtext e;

	if (m->err)
		return; /* the library retries by itself */
	if (round_decode(m->payload, m->len, &r, &e) == 0) {
		watch_take(w, &r);
		return;
	}
	pthread_mutex_lock(&w->lock);
	w->bad++;
	pthread_mutex_unlock(&w->lock);
}

static void *watch_run(void *arg)
{
	struct watch *w = arg;
	int until_look = 0;

	while (!atomic_load(&w->stop)) {
		rd_kafka_message_t *m;

		if (until_look-- <= 0) {
			watch_assign(w);
			until_look = (w->n_partitions ? 30000 : 1000) / WATCH_POLL_MS;
		}
		m = rd_kafka_consumer_poll(w->rk, WATCH_POLL_MS);
		if (!m)
			continue;
		until_look++; /* looks are paced by idle polls only */
		watch_message(w, m);
		rd_kafka_message_destroy(m);
	}
	return NULL;
}

/* ---- life ---- */

static int watch_set(void *c, const char *key, const char *value, struct errtext *e)
{
	char why[160];

	if (rd_kafka_conf_set(c, key, value, why, sizeof why) == RD_KAFKA_CONF_OK)
		return 0;
	return errtext_set(e, -EINVAL, "watch.conf: %.100s", why);
}

static void watch_silent(const rd_kafka_t *rk, int level, const char *fac, const char *text)
{
	(void)rk;
	(void)level;
	(void)fac;
	(void)text; /* an absent broker is no news; what matters is in the metrics */
}

static int watch_connect(struct watch *w, const struct watch_options *o, struct errtext *e)
{
	rd_kafka_conf_t *c = rd_kafka_conf_new();
	char why[160];
	int r = watch_set(c, "bootstrap.servers", o->brokers, e);

	rd_kafka_conf_set_log_cb(c, watch_silent);
	if (!r)
		r = watch_set(c, "group.id", "redraftd-watch", e); /* named, never joined: we assign */
	if (!r)
		r = watch_set(c, "enable.auto.commit", "false", e);
	if (!r)
		r = watch_set(c, "auto.offset.reset", "latest", e);
	if (!r)
		r = kafka_settings(o->conf, "watch.conf", watch_set, c, e);
	if (!r) {
		w->rk = rd_kafka_new(RD_KAFKA_CONSUMER, c, why, sizeof why);
		if (w->rk)
			c = NULL; /* taken */
		else
			r = errtext_set(e, -EINVAL, "brokers: %.150s", why);
	}
	if (c)
		rd_kafka_conf_destroy(c);
	return r;
}

int watch_new(const struct watch_options *o, struct watch **ret, struct errtext *e)
{
	struct watch *w = calloc(1, sizeof *w);
	int r = 0;

	if (!w)
		return -ENOMEM;
	pthread_mutex_init(&w->lock, NULL);
	r = drift_new(o->drift.alarm > 0 ? &o->drift : &drift_defaults, &w->drift);
	if (!r && o->brokers && o->brokers[0]) {
		w->topic = strdup(o->topic);
		r = w->topic ? watch_connect(w, o, e) : -ENOMEM;
		if (!r && pthread_create(&w->thread, NULL, watch_run, w) != 0)
			r = -ENOMEM;
		w->started = !r;
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
	atomic_store(&w->stop, true);
	if (w->started)
		pthread_join(w->thread, NULL);
	if (w->rk) {
		(void)rd_kafka_consumer_close(w->rk);
		rd_kafka_destroy(w->rk);
	}
	free(w->topic);
	drift_free(w->drift);
	pthread_mutex_destroy(&w->lock);
	free(w);
	return NULL;
}
