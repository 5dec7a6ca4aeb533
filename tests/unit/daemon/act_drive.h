/* The daemon whole, in this process and over its sockets, beside peers that keep books: started, stopped, crashed, asked. Header
 * only, so that each test binary stays one file.
 */
#pragma once
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include "daemon/act_canary.h"
#include "daemon/act_collapse.h"
#include "daemon/act_inside.h"
#include "daemon/act_probe.h"
#include "daemon/admin.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/metrics.h"
#include "daemon/fleet.h"
#include "daemon/watch.h"
#include "tests/unit/daemon/ask.h"
#include "tests/unit/daemon/books.h"
#include "tests/unit/daemon/peers.h"

struct daemon {
	pthread_t thread;
	struct loop *loop;
	struct metrics *metrics;
	struct act *act;
	struct admin *admin;
	struct books books;
	struct watch *watch;       /* without a broker: the test brings the records */
	struct loop_timer *second; /* a short one */
	atomic_int seconds;        /* how many have passed */
	struct fleet *fleet;
	struct act_options o;
	struct fleet_options fo;   /* role: alone, unless the test says other */
	char serve[PATH_MAX], learn[PATH_MAX], store[PATH_MAX];
	bool running;
};

static struct peers peers;
static struct daemon d;

static void daemon_second(void *arg)
{
	(void)arg;
	act_canary(d.act, d.watch);
	act_collapse(d.act, d.watch);
	act_probe(d.act);
	fleet_tick(d.fleet);
	d.seconds++;
	loop_timer_set(d.second, 20000);
}

static void daemon_build(void)
{
	const struct watch_options wo = {.brokers = ""};
	struct errtext e = {.text = ""};

	snprintf(d.serve, sizeof d.serve, "%s/serve/control.sock", fixture_dir);
	snprintf(d.learn, sizeof d.learn, "%s/learn/control.sock", fixture_dir);
	snprintf(d.store, sizeof d.store, "%s/store", fixture_dir);
	d.o.store = d.store;
	d.o.serve_socket = d.serve;
	d.o.learn_socket = d.learn;
	assert_int_equal(loop_new(&d.loop), 0);
	d.metrics = metrics_new();
	if (act_new(d.loop, &d.o, d.metrics, &d.act, &e) || books_open(&d.books, d.loop, d.metrics) ||
	    admin_new(&(struct admin_options){.loop = d.loop, .run_dir = fixture_path("daemon"), .learn_socket = d.learn, .act = d.act,
					      .audit = d.books.audit, .news = d.books.news}, &d.admin, &e))
		fail_msg("%s", e.text);
	if (watch_new(&wo, &d.watch, &e) || loop_timer_new(d.loop, daemon_second, NULL, &d.second))
		fail_msg("%s", e.text);
	d.fo.loop = d.loop;
	d.fo.act = d.act;
	if (fleet_new(&d.fo, &d.fleet, &e))
		fail_msg("%s", e.text);
	loop_timer_set(d.second, 20000);
}

static void *daemon_run(void *arg)
{
	(void)arg;
	(void)loop_run(d.loop);
	return NULL;
}

static void daemon_go(void)
{
	assert_int_equal(pthread_create(&d.thread, NULL, daemon_run, NULL), 0);
	d.running = true;
}

static void daemon_start(void)
{
	daemon_build();
	daemon_go();
}

static void daemon_stop_now(void *arg)
{
	loop_stop(arg);
}

static void daemon_stop(void)
{
	if (!d.running)
		return;
	assert_int_equal(loop_post(d.loop, daemon_stop_now, d.loop), 0);
	pthread_join(d.thread, NULL);
	loop_timer_free(d.second);
	act_free(d.act);
	admin_free(d.admin);
	fleet_free(d.fleet);
	watch_free(d.watch);
	books_close(&d.books);
	loop_free(d.loop);
	metrics_free(d.metrics);
	d.running = false;
}

static int setup(void **state)
{
	(void)state;
	log_init("test", LOG_ERROR);
	fixture_make();
	d = (struct daemon){.o = {.gate = {.min_requests = 8, .alpha = 0.05, .clip = 0.5, .first_min_al = 1.2},
				  .rules = {.interval_us = 0, .max_wait_us = 3600000000u, .retry_us = 50000, .rejects_to_rebase = 3},
				  .gate_k = 5, .limits = {.keep = 8}, .poll_us = 30000}};
	peers_start(&peers);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	daemon_stop();
	peers_end(&peers);
	fixture_remove();
	return 0;
}

/* ---- asking ---- */

static inline void must_fail(const char *method, json_t *params, const char *error)
{
	struct errtext e = {.text = ""};
	json_t *out;

	assert_int_equal(ask(method, params, &out, &e), RPC_E_REMOTE);
	bool ours = !strncmp(error, "io.redraft.", 11); /* as it is said inside: the interface's own outside */
	const char *said = ours && !strncmp(e.text, "io.redraft.Daemon.", 18) ? e.text + 18 : e.text;
	if (strncmp(said, error + (ours ? 11 : 0), strlen(error) - (ours ? 11 : 0)))
		fail_msg("%s: %s, expected %s", method, e.text, error);
}

static json_int_t field(const char *key)
{
	json_t *out = must("Status", NULL);
	json_int_t v = json_integer_value(json_object_get(out, key));

	json_decref(out);
	return v;
}

static inline bool state_is(uint32_t version, const char *want)
{
	json_t *out = must("Versions", NULL), *list = json_object_get(out, "versions");
	bool is = false;

	for (size_t i = 0; i < json_array_size(list); i++) {
		json_t *v = json_array_get(list, i);

		if (json_integer_value(json_object_get(v, "version")) == version)
			is = !strcmp(json_string_value(json_object_get(v, "state")), want);
	}
	json_decref(out);
	return is;
}

#define WAIT_FOR(what) \
	do { \
		uint64_t until = clock_us() + 60000000; \
		while (!(what)) { \
			if (clock_us() > until) \
				fail_msg("waited in vain for %s", #what); \
			usleep(5000); \
		} \
	} while (0)

/* The daemon has looked at all that was so before. */
static inline void a_second_passes(void)
{
	int from = d.seconds;

	WAIT_FOR(d.seconds >= from + 2); /* the first may have been under way */
}

static uint32_t submit(const char *name, float value, uint32_t parent)
{
	json_t *out = must("Submit", json_pack("{s:s}", "path", fixture_submission(name, value, parent, NULL, NULL)));
	uint32_t n = (uint32_t)json_integer_value(json_object_get(out, "version"));

	json_decref(out);
	return n;
}

static void both_on(void)
{
	peers_post(&peers, peers_serve_on);
	peers_post(&peers, peers_learn_on);
}

static inline void knob(bool *which, bool on)
{
	pthread_mutex_lock(&peers.lock);
	*which = on;
	pthread_mutex_unlock(&peers.lock);
}

/* n versions live, one after the other */
static void live_up_to(uint32_t n)
{
	char name[16];

	for (uint32_t i = 1; i <= n; i++) {
		snprintf(name, sizeof name, "s%u", i);
		assert_int_equal(submit(name, (float)i / 16, i - 1), i);
		WAIT_FOR(field("live") == i);
	}
}

/* ---- crashing ---- */

/* In a child, killed between the server's answer and our journal, or between a version's
 * name and the state; then a new daemon on the same store. */
static inline void crash_at(const char *point)
{
	int status = 0;
	pid_t pid = fork();

	if (!pid) {
		setenv("REDRAFT_CRASH_AT", point, 1);
		daemon_build();
		(void)loop_run(d.loop);
		_exit(1);
	}
	{
		struct errtext e;
		json_t *out = NULL;
		char path[PATH_MAX];
		int r = 0;

		snprintf(path, sizeof path, "%s", fixture_submission("crash", 0.77f, 0, NULL, NULL)); /* for as many tries as it takes */
		WAIT_FOR((r = rpc_call_sync(fixture_path("daemon/control.sock"), "io.redraft.Daemon.Submit", json_pack("{s:s}", "path", path), 60000, &out, &e)) !=
				 -ENOENT && r != -ECONNREFUSED); /* it listens */
		json_decref(out);
	}
	for (int i = 0; i < 6000 && waitpid(pid, &status, WNOHANG) == 0; i++)
		usleep(10000);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 137) {
		kill(pid, SIGKILL);
		fail_msg("%s was not reached", point);
	}
	daemon_start();
}
