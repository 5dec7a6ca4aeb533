/* redraftd: keeps the version store, judges candidates, switches the server, rolls
 * back at one word. Needs nobody: learner, server and broker may come and go.
 *
 * This file is the configuration table and the order in which things start and end.
 */
#include <string.h>
#include "daemon/act.h"
#include "daemon/admin.h"
#include "daemon/base/conf.h"
#include "daemon/base/log.h"
#include "daemon/base/loop.h"
#include "daemon/base/metrics.h"
#include "daemon/base/notify.h"
#include "daemon/base/reload.h"
#include "daemon/base/service.h"
#include "daemon/watch.h"
#include "daemon/web.h"

struct redraftd_conf {
	char *store, *run_dir, *serve_socket, *learn_socket, *brokers, *watch_topic, *watch_conf, *listen_metrics, *web_host, *web_token_file;
	double drift_ignore, drift_alarm;
	int64_t drift_warm;
	double interval_s, first_min_al, alpha, clip, margin, max_wait_s, retry_s;
	int64_t min_requests, gate_k, keep, rejects;
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
	{"drift.ignore", CONF_REAL, F(drift_ignore), "0.25", 0, 4, NULL, false, "", "Falls of accept length below this many standard deviations between requests are no drift."},
	{"drift.alarm", CONF_REAL, F(drift_alarm), "30", 1, 1e6, NULL, false, "", "Evidence of a fall, summed in standard deviations, that raises an alarm; 30: no false one in 20 simulated weeks."},
	{"drift.warm", CONF_INT, F(drift_warm), "200", 10, 1e6, NULL, false, "", "Requests from which the level and spread of a stream are learnt."},
	{"rollout.interval_s", CONF_REAL, F(interval_s), "3600", 0, 604800, NULL, true, "s", "Promotions at most this often, from the monotonic clock, +-5 %."},
	{"rollout.first_min_al", CONF_REAL, F(first_min_al), "1.2", 1, 64, NULL, true, "tok", "Accept length from which a first version is accepted."},
	{"rollout.rejects_to_rebase", CONF_INT, F(rejects), "3", 1, 1000, NULL, true, "", "Rejections running that send the learner back to the live version."},
	{"gate.min_requests", CONF_INT, F(min_requests), "8", 1, 4096, NULL, true, "", "Held-out requests a verdict needs."},
	{"gate.alpha", CONF_REAL, F(alpha), "0.05", 0.000001, 0.5, NULL, true, "", "How often a candidate that is no better may pass, however often the gate looks."},
	{"gate.clip", CONF_REAL, F(clip), "0.5", 0.01, 16, NULL, true, "tok", "Differences of one request beyond this count as this much."},
	{"gate.margin", CONF_REAL, F(margin), "0", 0, 16, NULL, true, "tok", "0: a candidate must be better; above: surely not worse by more than this is enough, though one surely worse is refused."},
	{"gate.max_wait_s", CONF_REAL, F(max_wait_s), "0", 0, 604800, NULL, true, "s", "A candidate undecided for longer is superseded; 0: rollout.interval_s, at least 20."},
	{"gate.retry_s", CONF_REAL, F(retry_s), "5", 0.05, 3600, NULL, true, "s",
	 "Time between two looks at an undecided candidate; never more than a quarter of the learner's time."},
	{"gate.k", CONF_INT, F(gate_k), "5", 1, 16, NULL, false, "", "Chain length at which both versions are replayed."},
	{"store.keep", CONF_INT, F(keep), "8", 0, 100000, NULL, true, "",
	 "Versions that served, and as many that were refused, kept besides live, previous, base, pinned and those being judged."},
	{"listen_metrics", CONF_STRING, F(listen_metrics), "127.0.0.1:9464", 0, 0, NULL, false, "", "Address of the page, /metrics and /health; empty: off."},
	{"web.host", CONF_STRING, F(web_host), "", 0, 0, NULL, false, "", "Name that the page is asked for by, besides addresses, localhost and that of listen_metrics."},
	{"web.token_file", CONF_STRING, F(web_token_file), "", 0, 0, NULL, false, "",
	 "Secret with which the page may roll back, hold and release; empty takes the credential web_token, else nothing is changed from there."},
	{"log_level", CONF_ENUM, F(log_level), "info", 0, 0, "error|warn|info|debug", true, "", "What is logged."},
	{0},
};
static const struct conf_program redraftd_program = {
	.name = "redraftd", .summary = "the version store, the gate, rollout and rollback of draft models", .entries = redraftd_entries,
	.struct_size = sizeof(struct redraftd_conf),
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
	struct service *service;
	struct reload reload;
	struct loop_timer *drift;
};

static uint64_t redraftd_us(double s)
{
	return (uint64_t)(s * 1e6);
}

static void redraftd_options(const struct redraftd_conf *c, struct act_options *ret)
{
	/* A newer candidate is due by then, and this one holds records back from training. */
	double wait_s = c->max_wait_s > 0 ? c->max_wait_s : c->interval_s > 20 ? c->interval_s : 20;

	*ret = (struct act_options){
		.store = c->store,
		.serve_socket = c->serve_socket,
		.learn_socket = c->learn_socket,
		.gate = {.min_requests = c->min_requests, .alpha = c->alpha, .clip = c->clip, .margin = c->margin, .first_min_al = c->first_min_al},
		.rules = {.interval_us = redraftd_us(c->interval_s), .max_wait_us = redraftd_us(wait_s),
			  .retry_us = redraftd_us(c->retry_s), .rejects_to_rebase = (int)c->rejects},
		.gate_k = (int)c->gate_k,
		.keep = (int)c->keep,
		.poll_us = 1000000,
	};
}

static void redraftd_drift(void *arg)
{
	struct redraftd *d = arg;
	char text[DRIFT_TEXT];
	int level = watch_drift(d->watch, text);

	act_drift(d->act, level, text);
	loop_timer_set(d->drift, 1000000);
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
	redraftd_options(&d->conf, &o);
	r = act_new(d->loop, &o, d->metrics, &d->act, e);
	if (!r)
		r = watch_new(&wo, &d->watch, e);
	if (!r)
		r = web_new(d->loop, &(struct web_options){.listen = d->conf.listen_metrics, .host = d->conf.web_host,
							   .token_file = d->conf.web_token_file, .metrics = d->metrics, .act = d->act,
							   .watch = d->watch}, &d->web, e);
	if (!r)
		r = admin_new(d->loop, d->conf.run_dir, d->act, d->watch, &d->admin, e);
	if (!r)
		r = loop_timer_new(d->loop, redraftd_drift, d, &d->drift);
	if (!r)
		loop_timer_set(d->drift, 1000000);
	if (!r)
		r = service_new(&(struct service_options){.loop = d->loop}, &d->service); /* the loop's turning is all there is to watch */
	return r;
}

/* act first: it answers who waits, through admin. Every one of them takes NULL. */
static void redraftd_end(struct redraftd *d)
{
	loop_timer_free(d->drift);
	service_free(d->service);
	act_free(d->act);
	admin_free(d->admin);
	web_free(d->web);
	watch_free(d->watch);
	loop_free(d->loop);
	metrics_free(d->metrics);
	conf_done(&redraftd_program, &d->conf);
}

static void redraftd_stop(void *arg)
{
	struct redraftd *d = arg;

	log_info("asked to stop; stopping");
	notify_state("STOPPING=1");
	loop_stop(d->loop);
}

static int redraftd_apply(void *arg, const void *fresh, struct errtext *e)
{
	const struct redraftd_conf *c = fresh;
	struct redraftd *d = arg;
	struct act_options o;

	(void)e;
	redraftd_options(c, &o);
	act_set_rules(d->act, &o.gate, &o.rules, o.keep);
	log_set_level(redraftd_levels[c->log_level]);
	return 0;
}

static void redraftd_reload(void *arg)
{
	struct redraftd *d = arg;
	struct errtext e = {.text = ""};
	int r = reload_now(&d->reload, &e);

	log_line(r < 0 ? LOG_ERROR : LOG_INFO, "%s", e.text);
	metric_add(metrics_counter(d->metrics, "redraft_reloads_total", r < 0 ? "result=\"refused\"" : "result=\"done\"",
				   "Configurations read again, and whether they were taken."), 1);
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
	r = redraftd_start(&d, &e);
	if (r < 0) {
		log_error("cannot start: %s", e.text[0] ? e.text : strerror(-r));
		redraftd_end(&d);
		return 1;
	}
	d.reload = (struct reload){.program = &redraftd_program, .argc = argc, .argv = argv, .conf = &d.conf, .apply = redraftd_apply, .arg = &d};
	loop_on_signal(d.loop, redraftd_stop, redraftd_reload, &d);
	log_info("ready: store %s, sockets in %s", d.conf.store, d.conf.run_dir);
	notify_state("READY=1");
	r = loop_run(d.loop);
	redraftd_end(&d);
	return r < 0 ? 1 : 0;
}
