/* redraftd: keeps the version store, judges candidates, switches the server, rolls
 * back at one word. Needs nobody: learner, server and broker may come and go.
 *
 * This file is the configuration table and the order in which things start and end.
 */
#include <stdlib.h>
#include <string.h>
#include "daemon/act_canary.h"
#include "daemon/act_collapse.h"
#include "daemon/act_probe.h"
#include "daemon/admin.h"
#include "daemon/audit.h"
#include "daemon/base/clock.h"
#include "daemon/base/conf.h"
#include "daemon/base/log.h"
#include "daemon/base/loop.h"
#include "daemon/base/metrics.h"
#include "daemon/base/notify.h"
#include "daemon/base/reload.h"
#include "daemon/base/service.h"
#include "daemon/fleet.h"
#include "daemon/news.h"
#include "daemon/report.h"
#include "daemon/policy.h"
#include "daemon/watch.h"
#include "daemon/watch_audit.h"
#include "daemon/watch_topics.h"
#include "daemon/web.h"

struct redraftd_conf {
	char *store, *run_dir, *serve_socket, *learn_socket, *brokers, *watch_topic, *watch_conf, *listen_metrics, *web_host, *web_token_file;
	char *traces, *audit_dir, *audit_topic, *fleet_topic, *fleet_versions;
	int fleet_role;
	int64_t audit_mb, audit_keep, partitions, replication;
	double traces_h, rounds_h;
	double drift_ignore, drift_alarm;
	int64_t drift_warm;
	double interval_s, first_min_al, alpha, clip, margin, max_wait_s, retry_s;
	int64_t min_requests, gate_k, keep, rejects, canary_requests;
	char *canary_steps, *freeze;
	double compare_s, probe_s, probe_features, probe_al, min_gain, pinned_margin, max_age_s, step_s, canary_alpha, canary_drop, canary_tail, canary_lost, store_max_age_s, store_min_free;
	int log_level;
};

#define F(field) offsetof(struct redraftd_conf, field)
static const struct conf_entry redraftd_entries[] = {
	{"store", CONF_STRING, F(store), "/var/lib/redraft/store", 0, 0, NULL, false, "", "Folder of the version store."},
	{"run_dir", CONF_STRING, F(run_dir), "/run/redraft/daemon", 0, 0, NULL, false, "", "Folder for control.sock and status.sock."},
	{"serve_socket", CONF_STRING, F(serve_socket), "/run/redraft/serve/control.sock", 0, 0, NULL, false, "", "The server's control socket."},
	{"learn_socket", CONF_STRING, F(learn_socket), "/run/redraft/learn/control.sock", 0, 0, NULL, false, "", "The learner's control socket."},
	{"brokers", CONF_STRING, F(brokers), "", 0, 0, NULL, false, "", "Kafka brokers for the round records; none: accept length is not watched."},
	{"watch.topic", CONF_STRING, F(watch_topic), "redraft.rounds", 0, 0, NULL, false, "", "Topic of the round records."},
	{"watch.conf", CONF_STRING, F(watch_conf), "", 0, 0, NULL, false, "", "More librdkafka settings, k=v,k=v."},
	{"topics.traces", CONF_STRING, F(traces), "redraft.traces", 0, 0, NULL, false, "", "Topic of the trace records, for `redraftctl topics`; server and learner name it themselves."},
	{"topics.partitions", CONF_INT, F(partitions), "8", 1, 1024, NULL, false, "", "Partitions that traces and rounds should have."},
	{"topics.replication", CONF_INT, F(replication), "0", 0, 32, NULL, false, "", "Copies of a topic that is made; 0: as many as the broker makes by itself."},
	{"topics.traces_h", CONF_REAL, F(traces_h), "24", 0.1, 87600, NULL, false, "h", "Retention that the trace topic should have at least; users' text is in it."},
	{"topics.rounds_h", CONF_REAL, F(rounds_h), "168", 0.1, 87600, NULL, false, "h", "Retention that the topic of round records should have at least."},
	{"fleet.role", CONF_ENUM, F(fleet_role), "alone", 0, 0, "alone|leader|follower", false, "",
	 "Several servers, one learner: the daemon that has the learner is the leader, those of the other servers follow it."},
	{"fleet.topic", CONF_STRING, F(fleet_topic), "redraft.events", 0, 0, NULL, false, "", "Topic in which a fleet's leader says what is live (compacted, one partition)."},
	{"fleet.versions", CONF_STRING, F(fleet_versions), "", 0, 0, NULL, false, "", "Follower: the folder versions/ of the leader's store as it is seen here, mounted or copied."},
	{"audit.dir", CONF_STRING, F(audit_dir), "", 0, 0, NULL, false, "", "Folder of the audit log; empty: audit in the store."},
	{"audit.max_mb", CONF_INT, F(audit_mb), "8", 1, 1024, NULL, false, "MiB", "Size past which the audit log goes on in a new file."},
	{"audit.keep", CONF_INT, F(audit_keep), "16", 1, 64, NULL, false, "", "Older files of the audit log that are kept."},
	{"audit.topic", CONF_STRING, F(audit_topic), "redraft.audit", 0, 0, NULL, false, "", "Topic that audit lines go to as well, where there are brokers; empty: to none."},
	{"drift.ignore", CONF_REAL, F(drift_ignore), CONF_TEXT(DRIFT_IGNORE), 0, 4, NULL, false, "", "Falls of accept length below this many standard deviations between requests are no drift."},
	{"drift.alarm", CONF_REAL, F(drift_alarm), CONF_TEXT(DRIFT_ALARM), 1, 1e6, NULL, false, "", "Evidence of a fall, summed in standard deviations, that raises an alarm; 30: no false one in 20 simulated weeks."},
	{"drift.warm", CONF_INT, F(drift_warm), CONF_TEXT(DRIFT_WARM), 10, 1e6, NULL, false, "", "Requests from which the level and spread of a stream are learnt."},
	{"drift.compare_s", CONF_REAL, F(compare_s), "3600", 1, 604800, NULL, true, "s", "Between two comparisons of what was served with what the live version's weights say; one is made as well when a fall begins."},
	{"probe.interval_s", CONF_REAL, F(probe_s), "600", 0, 604800, NULL, true, "s", "Between two runs of the pinned probe prompts with the base draft; 0: only when asked."},
	{"probe.features", CONF_REAL, F(probe_features), "0.02", 0.000001, 1, NULL, true, "", "Share of their size by which the probes' features may move before it is an alarm."},
	{"probe.accept_length", CONF_REAL, F(probe_al), "0.1", 0.001, 1, NULL, true, "", "Share of itself by which the probes' accept length may move before it is an alarm."},
	{"rollout.interval_s", CONF_REAL, F(interval_s), "3600", 0, 604800, NULL, true, "s", "Promotions at most this often, from the monotonic clock, +-5 %."},
	{"rollout.first_min_al", CONF_REAL, F(first_min_al), CONF_TEXT(GATE_FIRST_MIN_AL), 1, 64, NULL, true, "tok", "Accept length from which a first version is accepted."},
	{"rollout.rejects_to_rebase", CONF_INT, F(rejects), "3", 1, 1000, NULL, true, "", "Rejections running that send the learner back to the live version."},
	{"rollout.freeze", CONF_STRING, F(freeze), "", 0, 0, NULL, true, "",
	 "Windows, in UTC, in which nothing is promoted and no canary starts or grows: fri 16:00-mon 08:00, daily 02:00-03:30, 2026-12-24..2027-01-02."},
	{"rollout.max_age_s", CONF_REAL, F(max_age_s), "86400", 0, 31536000, NULL, true, "s", "An accepted version that waits longer to go live is superseded; 0: never."},
	{"canary.steps", CONF_STRING, F(canary_steps), "50,250", 0, 0, NULL, true, "",
	 "Conversations of 1000 that an accepted version drafts for before it goes live, step by step; empty, or without brokers: none."},
	{"canary.requests", CONF_INT, F(canary_requests), CONF_TEXT(CANARY_REQUESTS), 1, 1e9, NULL, true, "", "Requests of the canary that a step lasts."},
	{"canary.step_s", CONF_REAL, F(step_s), "300", 0, 604800, NULL, true, "s", "A step with fewer requests and no harm seen has passed after this."},
	{"canary.drop", CONF_REAL, F(canary_drop), CONF_TEXT(CANARY_DROP), 0, 1, NULL, true, "", "Share of live's tokens a round that may be lost before the canary is taken back."},
	{"canary.tail", CONF_REAL, F(canary_tail), CONF_TEXT(CANARY_TAIL), 0, 1, NULL, true, "", "Share of tokens, or first tokens, that may move beyond a latency edge."},
	{"canary.lost", CONF_REAL, F(canary_lost), CONF_TEXT(CANARY_LOST), 0, 1, NULL, true, "", "Share of requests, beyond live's, that may lose their draft half-way."},
	{"canary.alpha", CONF_REAL, F(canary_alpha), CONF_TEXT(CANARY_ALPHA), 0.000001, 0.5, NULL, true, "", "How often a version that does no harm may be taken back, however often it is looked at."},
	{"gate.min_requests", CONF_INT, F(min_requests), CONF_TEXT(GATE_MIN_REQUESTS), 1, 4096, NULL, true, "", "Held-out requests a verdict needs."},
	{"gate.alpha", CONF_REAL, F(alpha), CONF_TEXT(GATE_ALPHA), 0.000001, 0.5, NULL, true, "", "How often a candidate that is no better may pass, however often the gate looks."},
	{"gate.clip", CONF_REAL, F(clip), CONF_TEXT(GATE_CLIP), 0.01, 16, NULL, true, "tok", "Differences of one request beyond this count as this much."},
	{"gate.margin", CONF_REAL, F(margin), CONF_TEXT(GATE_MARGIN), 0, 16, NULL, true, "tok", "0: a candidate must be better; above: surely not worse by more than this is enough, though one surely worse is refused."},
	{"gate.min_gain", CONF_REAL, F(min_gain), CONF_TEXT(GATE_MIN_GAIN), 0, 16, NULL, true, "tok", "Accept length that a candidate must gain to be worth a switch."},
	{"gate.pinned_margin", CONF_REAL, F(pinned_margin), CONF_TEXT(GATE_PINNED_MARGIN), 0, 16, NULL, true, "tok", "A candidate surely worse by more than this on a domain's pinned older requests is refused."},
	{"gate.max_wait_s", CONF_REAL, F(max_wait_s), "0", 0, 604800, NULL, true, "s", "A candidate undecided for longer is superseded; 0: rollout.interval_s, at least 20."},
	{"gate.retry_s", CONF_REAL, F(retry_s), "5", 0.05, 3600, NULL, true, "s",
	 "Time between two looks at an undecided candidate; never more than a quarter of the learner's time."},
	{"gate.k", CONF_INT, F(gate_k), "5", 1, 16, NULL, false, "", "Chain length at which both versions are replayed."},
	{"store.keep", CONF_INT, F(keep), "8", 0, 100000, NULL, true, "",
	 "Versions that served, and as many that were refused, kept besides live, previous, base, pinned and those being judged."},
	{"store.max_age_s", CONF_REAL, F(store_max_age_s), "0", 0, 315360000, NULL, true, "s", "Versions made longer ago are removed too, but for those held; 0: never for their age."},
	{"store.min_free", CONF_REAL, F(store_min_free), "0.05", 0, 0.9, NULL, true, "",
	 "Share of the store's file system to keep free: the oldest versions go until it is, but for those held; 0: not looked at."},
	{"listen_metrics", CONF_STRING, F(listen_metrics), "127.0.0.1:9464", 0, 0, NULL, false, "", "Address of the page, /metrics and /health; empty: off."},
	{"web.host", CONF_STRING, F(web_host), "", 0, 0, NULL, false, "", "Name that the page is asked for by, besides addresses, localhost and that of listen_metrics."},
	{"web.token_file", CONF_STRING, F(web_token_file), "", 0, 0, NULL, false, "",
	 "Secret with which the page may roll back, hold and release; empty takes the credential web_token, else nothing is changed from there."},
	{"log_level", CONF_ENUM, F(log_level), "info", 0, 0, "error|warn|info|debug", true, "", "What is logged."},
	{0},
};
static int redraftd_check(const void *conf, struct errtext *e);

static const struct conf_program redraftd_program = {
	.name = "redraftd", .summary = "the version store, the gate, rollout and rollback of draft models", .entries = redraftd_entries,
	.struct_size = sizeof(struct redraftd_conf), .check = redraftd_check,
};
static const enum log_level redraftd_levels[] = {LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG};

struct redraftd {
	struct redraftd_conf conf;
	struct loop *loop;
	struct metrics *metrics;
	struct act *act;
	struct watch *watch;
	struct web *web;
	struct admin *admin;
	struct news *news;
	struct audit *audit;
	struct watch_audit *audit_topic;
	struct fleet *fleet;
	struct service *service;
	struct reload reload;
	struct loop_timer *second;
	struct clock_sure sure;
	char audit_dir[512];
	json_t *place; /* where the rollout stood when last heard */
};

static uint64_t redraftd_us(double s)
{
	return (uint64_t)(s * 1e6);
}

static int redraftd_options(const struct redraftd_conf *c, struct act_options *ret, struct errtext *e)
{
	/* A newer candidate is due by then, and this one holds records back from training. */
	double wait_s = c->max_wait_s > 0 ? c->max_wait_s : c->interval_s > 20 ? c->interval_s : 20;

	*ret = (struct act_options){
		.store = c->store,
		.serve_socket = c->serve_socket,
		.learn_socket = c->learn_socket,
		.gate = {.min_requests = c->min_requests, .alpha = c->alpha, .clip = c->clip, .margin = c->margin, .first_min_al = c->first_min_al,
			 .min_gain = c->min_gain, .pinned_margin = c->pinned_margin},
		.rules = {.interval_us = redraftd_us(c->interval_s), .max_wait_us = redraftd_us(wait_s),
			  .retry_us = redraftd_us(c->retry_s), .rejects_to_rebase = (int)c->rejects,
			  .max_age_us = redraftd_us(c->max_age_s), .follows = c->fleet_role == FLEET_FOLLOWER, .step_us = redraftd_us(c->step_s)},
		.canary = {.alpha = c->canary_alpha, .drop = c->canary_drop, .tail = c->canary_tail, .lost = c->canary_lost,
			   .requests = c->canary_requests},
		.limits = {.keep = (int)c->keep, .max_age_s = (int64_t)c->store_max_age_s},
		.min_free = c->store_min_free,
		.compare_us = redraftd_us(c->compare_s),
		.probe = {.every_us = redraftd_us(c->probe_s), .features = c->probe_features, .al = c->probe_al},
		.gate_k = (int)c->gate_k,
		.poll_us = 1000000,
	};
	int r = policy_steps(c->canary_steps, &ret->rules, e);

	if (!c->brokers[0])
		ret->rules.n_steps = 0; /* nothing is seen of what it serves */
	return r ? r : freeze_parse(c->freeze, &ret->freeze, e);
}

static int redraftd_check(const void *conf, struct errtext *e)
{
	const struct redraftd_conf *c = conf;
	struct act_options o;
	int r = redraftd_options(c, &o, e);

	if (!r)
		r = web_check(c->listen_metrics, e);
	return r ? r : watch_check(c->watch_conf, e);
}

/* The wall clock was set: what that changes, and what not. */
static void redraftd_clock(struct redraftd *d)
{
	char now[32], text[NEWS_TEXT];
	int64_t jump = 0;

	(void)clock_sure_ms(&d->sure, &jump);
	if (!jump)
		return;
	clock_iso8601(clock_wall_ms(), now);
	snprintf(text, sizeof text, "the clock was set %s by %lld min, to %.19sZ: freeze windows and the times of records go by it; nothing that waits or runs does, and nothing is "
		 "removed for its age by it within a day", jump > 0 ? "forward" : "back", (long long)((llabs(jump) + 30000) / 60000), now);
	log_fields(LOG_WARN, "REDRAFT_EVENT=clock\n", "%s", text);
	news_say(d->news, "daemon", act_rollout(d->act)->s.live, "%s", text);
	audit_note(d->audit, "Clock", NULL, NULL, "%s", text);
}

/* Once a second: what the watcher and Kafka have to say, what the metrics show of others. */
static void redraftd_second(void *arg)
{
	struct redraftd *d = arg;
	char text[NEWS_TEXT], drift[DRIFT_TEXT];
	int level = watch_drift(d->watch, drift);

	watch_target(d->watch, act_target_fp(d->act));
	act_drift(d->act, level, drift);
	act_canary(d->act, d->watch);
	act_collapse(d->act, d->watch);
	act_probe(d->act);
	redraftd_clock(d);
	fleet_tick(d->fleet);
	metric_set(metrics_gauge(d->metrics, "redraft_fleet_behind", NULL, "1 while a follower is not where the leader of its fleet is."), fleet_behind(d->fleet));
	watch_audit_tick(d->audit_topic);
	while (watch_said(d->watch, text, sizeof text) || watch_audit_said(d->audit_topic, text, sizeof text) || fleet_said(d->fleet, text, sizeof text)) {
		log_fields(LOG_WARN, "REDRAFT_EVENT=kafka\n", "%s", text);
		news_say(d->news, "kafka", act_rollout(d->act)->s.live, "%s", text);
	}
	report_metrics(d->metrics, d->act);
	loop_timer_set(d->second, 1000000);
}

/* All that the daemon does by itself passes here: it is news, and where it moved the server it is audited. */
static void redraftd_heard(void *arg, enum act_news kind, const char *text)
{
	struct redraftd *d = arg;
	const struct store_state *s = &act_rollout(d->act)->s;
	bool moved = json_integer_value(json_object_get(d->place, "live")) != s->live;

	static const char *const kinds[] = {[ACT_NEWS_ROLLOUT] = "rollout", [ACT_NEWS_DRIFT] = "drift", [ACT_NEWS_DECAY] = "decay", [ACT_NEWS_KAFKA] = "kafka",
					    [ACT_NEWS_LEARNER] = "learner"};

	news_say(d->news, kind == ACT_NEWS_ROLLOUT && moved ? "switch" : kinds[kind], s->live, "%s", text);
	if (moved)
		audit_note(d->audit, "Switch", json_incref(d->place), audit_place(s), "%s", text);
	json_decref(d->place);
	d->place = audit_place(s);
}

static void redraftd_sealed(void *arg, const json_t *record, const char *line, size_t len)
{
	struct redraftd *d = arg;

	(void)record;
	watch_audit_send(d->audit_topic, line, len);
}

static json_t *redraftd_topics(void *arg, bool create, struct errtext *e)
{
	const struct redraftd_conf *c = &((struct redraftd *)arg)->conf;

	return topics_check(&(struct topics_options){.brokers = c->brokers, .conf = c->watch_conf, .traces = c->traces, .rounds = c->watch_topic,
						     .audit = c->audit_topic, .events = c->fleet_role == FLEET_ALONE ? "" : c->fleet_topic, .partitions = (int)c->partitions, .replication = (int)c->replication,
						     .traces_h = c->traces_h, .rounds_h = c->rounds_h}, create, e);
}

static json_t *redraftd_config(void *arg)
{
	return conf_show(&redraftd_program, &((struct redraftd *)arg)->conf);
}

/* The books before the business: whatever happens from the first moment on is news and is audited. */
static int redraftd_books(struct redraftd *d, struct errtext *e)
{
	const struct redraftd_conf *c = &d->conf;
	int r = news_new(&d->news);

	snprintf(d->audit_dir, sizeof d->audit_dir, "%s%s", c->audit_dir[0] ? c->audit_dir : c->store, c->audit_dir[0] ? "" : "/audit");
	if (!r)
		r = audit_new(d->loop, &(struct audit_options){.dir = d->audit_dir, .max_bytes = c->audit_mb << 20, .keep = (int)c->audit_keep,
							       .metrics = d->metrics}, &d->audit);
	if (!r)
		r = watch_audit_new(c->brokers, c->audit_topic, c->watch_conf, d->metrics, &d->audit_topic, e);
	if (!r)
		audit_on_line(d->audit, redraftd_sealed, d);
	return r;
}

static int redraftd_doors(struct redraftd *d, struct errtext *e)
{
	const struct redraftd_conf *c = &d->conf;
	int r = web_new(d->loop, &(struct web_options){.listen = c->listen_metrics, .host = c->web_host, .token_file = c->web_token_file,
						       .metrics = d->metrics, .act = d->act, .watch = d->watch, .news = d->news,
						       .audit = d->audit}, &d->web, e);

	if (!r)
		r = admin_new(&(struct admin_options){.loop = d->loop, .run_dir = c->run_dir, .learn_socket = c->learn_socket, .act = d->act,
						      .watch = d->watch, .audit = d->audit, .news = d->news, .fleet = d->fleet,
						      .topics = c->brokers[0] ? redraftd_topics : NULL, .topics_arg = d,
						      .config = redraftd_config, .config_arg = d}, &d->admin, e);
	return r;
}

/* act first: it answers who waits, through admin, and that is audited. Every one of them takes NULL. */
static void redraftd_end(struct redraftd *d)
{
	loop_timer_free(d->second);
	service_free(d->service);
	act_free(d->act);
	admin_free(d->admin);
	web_free(d->web);
	fleet_free(d->fleet);
	audit_free(d->audit);
	watch_audit_free(d->audit_topic);
	watch_free(d->watch);
	loop_free(d->loop);
	news_free(d->news);
	metrics_free(d->metrics);
	json_decref(d->place);
	conf_done(&redraftd_program, &d->conf);
}

static void redraftd_stop(void *arg)
{
	struct redraftd *d = arg;

	log_info("asked to stop; stopping");
	notify_state("STOPPING=1");
	audit_note(d->audit, "Stop", NULL, NULL, "asked to stop by a signal");
	loop_stop(d->loop);
}

static int redraftd_apply(void *arg, const void *fresh, struct errtext *e)
{
	struct redraftd *d = arg;
	struct redraftd_conf c = *(const struct redraftd_conf *)fresh;
	struct act_options o;
	int r;

	c.brokers = d->conf.brokers; /* as long as we run: what is served is watched, or not */
	r = redraftd_options(&c, &o, e);
	if (r)
		return r;
	act_set_rules(d->act, &o);
	log_set_level(redraftd_levels[c.log_level]);
	return 0;
}

static void redraftd_reload(void *arg)
{
	struct redraftd *d = arg;
	struct errtext e = {.text = ""};
	int r = reload_now(&d->reload, &e);

	log_line(r < 0 ? LOG_ERROR : LOG_INFO, "%s", e.text);
	news_say(d->news, "daemon", act_rollout(d->act)->s.live, "%s", e.text);
	audit_note(d->audit, "Reload", NULL, NULL, "%s", e.text);
}

static int redraftd_start(struct redraftd *d, struct errtext *e)
{
	struct act_options o;
	struct watch_options wo = {.brokers = d->conf.brokers, .topic = d->conf.watch_topic, .conf = d->conf.watch_conf,
				   .drift = {.ignore = d->conf.drift_ignore, .alarm = d->conf.drift_alarm, .warm = d->conf.drift_warm}};
	int r = loop_new(&d->loop);

	d->metrics = metrics_new();
	if (r < 0 || !d->metrics)
		return errtext_set(e, -ENOMEM, "out of memory");
	loop_on_signal(d->loop, redraftd_stop, redraftd_reload, d); /* from here on they wait for the loop: a SIGHUP while a large store is opened ends nothing */
	r = redraftd_options(&d->conf, &o, e);
	if (!r)
		r = act_new(d->loop, &o, d->metrics, &d->act, e); /* first of all: it takes the store's lock */
	if (!r)
		r = redraftd_books(d, e);
	if (!r)
		r = watch_new(&wo, &d->watch, e);
	if (!r)
		r = fleet_new(&(struct fleet_options){.loop = d->loop, .act = d->act, .role = (enum fleet_role)d->conf.fleet_role, .brokers = d->conf.brokers,
						      .topic = d->conf.fleet_topic, .conf = d->conf.watch_conf, .versions = d->conf.fleet_versions}, &d->fleet, e);
	if (!r)
		r = redraftd_doors(d, e);
	if (!r)
		r = loop_timer_new(d->loop, redraftd_second, d, &d->second);
	if (!r)
		r = service_new(&(struct service_options){.loop = d->loop}, &d->service); /* the loop's turning is all there is to watch */
	if (!r) {
		loop_timer_set(d->second, 1000000);
		(void)clock_sure_ms(&d->sure, NULL);
		d->place = audit_place(&act_rollout(d->act)->s);
		act_on_news(d->act, redraftd_heard, d);
		audit_note(d->audit, "Start", NULL, json_incref(d->place), "redraftd " REDRAFT_COMMIT " started");
	}
	return r;
}

int main(int argc, char **argv)
{
	struct redraftd d = {0};
	struct errtext e = {.text = ""};
	int r = conf_load(&redraftd_program, argc, argv, &d.conf, NULL, 0, NULL, &e);

	if (r > 0)
		return 0;
	if (r < 0) {
		fprintf(stderr, "redraftd: %s\n", e.text);
		return 2;
	}
	log_init("redraftd", redraftd_levels[d.conf.log_level]);
	d.reload = (struct reload){.program = &redraftd_program, .argc = argc, .argv = argv, .conf = &d.conf, .apply = redraftd_apply, .arg = &d};
	r = redraftd_start(&d, &e);
	if (r < 0) {
		log_error("cannot start: %s", e.text[0] ? e.text : strerror(-r));
		redraftd_end(&d);
		return 1;
	}
	reload_count(&d.reload, d.metrics);
	log_info("ready: store %s, sockets in %s", d.conf.store, d.conf.run_dir);
	notify_state("READY=1");
	r = loop_run(d.loop);
	redraftd_end(&d);
	return r < 0 ? 1 : 0;
}
