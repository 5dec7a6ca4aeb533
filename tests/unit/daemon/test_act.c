/* The daemon whole, over its sockets, with a server and a learner that keep books:
 * submit, gate, load, compare, activate; rollback at any moment; restarts and crashes
 * on the way converge; nobody has to be there. A canary is begun, judged by round records, promoted or taken back, and a crash
 * in it converges too; an alarm holds and pauses until a release, over a restart.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <cmocka.h>
#include "daemon/act_canary.h"
#include "daemon/act_collapse.h"
#include "daemon/act_inside.h"
#include "daemon/act_probe.h"
#include "daemon/admin.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/metrics.h"
#include "tests/unit/daemon/books.h"
#include "daemon/watch.h"
#include "schemas/round.h"
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
	struct act_options o;
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
	loop_timer_set(d.second, 20000);
}

static void *daemon_run(void *arg)
{
	(void)arg;
	(void)loop_run(d.loop);
	return NULL;
}

static void daemon_start(void)
{
	daemon_build();
	assert_int_equal(pthread_create(&d.thread, NULL, daemon_run, NULL), 0);
	d.running = true;
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

static int ask(const char *method, json_t *params, json_t **ret, struct errtext *e)
{
	char full[80];

	snprintf(full, sizeof full, "io.redraft.Daemon.%s", method);
	*ret = NULL;
	return rpc_call_sync(fixture_path("daemon/control.sock"), full, params, 10000, ret, e);
}

static json_t *must(const char *method, json_t *params)
{
	struct errtext e = {.text = ""};
	json_t *out;

	if (ask(method, params, &out, &e))
		fail_msg("%s: %s", method, e.text);
	return out;
}

static void must_fail(const char *method, json_t *params, const char *error)
{
	struct errtext e = {.text = ""};
	json_t *out;

	assert_int_equal(ask(method, params, &out, &e), RPC_E_REMOTE);
	if (strncmp(e.text, error, strlen(error)))
		fail_msg("%s: %s, expected %s", method, e.text, error);
}

static json_int_t field(const char *key)
{
	json_t *out = must("Status", NULL);
	json_int_t v = json_integer_value(json_object_get(out, key));

	json_decref(out);
	return v;
}

static bool state_is(uint32_t version, const char *want)
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
		uint64_t until = clock_us() + 8000000; \
		while (!(what)) { \
			if (clock_us() > until) \
				fail_msg("waited in vain for %s", #what); \
			usleep(5000); \
		} \
	} while (0)

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

static void knob(bool *which, bool on)
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

/* ---- what is shown ---- */

static void the_whole_way(void **state)
{
	json_t *out, *v;

	(void)state;
	both_on();
	daemon_start();
	live_up_to(2);
	assert_int_equal(peers.live, 2);
	assert_int_equal(peers.generation, 2);
	assert_int_equal(field("previous"), 1);
	assert_int_equal(field("base"), 1);
	assert_int_equal(field("generation"), 2);
	WAIT_FOR(peers_was_told(&peers, "1 accepted") && peers_was_told(&peers, "2 accepted"));
	out = must("Show", json_pack("{s:i}", "version", 2));
	v = json_object_get(out, "version");
	assert_string_equal(json_string_value(json_object_get(v, "state")), "live");
	assert_int_equal(json_integer_value(json_object_get(v, "parent")), 1);
	assert_string_equal(json_string_value(json_object_get(json_object_get(out, "manifest"), "target_fp")), FIXTURE_TARGET);
	v = json_object_get(out, "verdict");
	assert_string_equal(json_string_value(json_object_get(v, "verdict")), "accepted");
	assert_int_equal(json_integer_value(json_object_get(v, "against")), 1);
	assert_int_equal(json_integer_value(json_object_get(v, "k")), 5);
	json_decref(out);
	out = must("Status", NULL);
	assert_true(json_is_true(json_object_get(json_object_get(out, "serve"), "up")));
	assert_int_equal(json_integer_value(json_object_get(json_object_get(out, "learn"), "step")), 12);
	assert_string_equal(json_string_value(json_object_get(out, "target_fp")), FIXTURE_TARGET);
	json_decref(out);
}

static void a_worse_candidate_is_rejected(void **state)
{
	json_t *out;

	(void)state;
	both_on();
	daemon_start();
	live_up_to(1);
	peers.gain = -0.3;
	submit("worse", 0.9f, 1);
	WAIT_FOR(state_is(2, "rejected"));
	WAIT_FOR(peers_was_told(&peers, "2 rejected"));
	assert_int_equal(peers.live, 1);
	WAIT_FOR(access(fixture_path("store/versions/2/verdict.json"), F_OK) == 0);
	out = must("Show", json_pack("{s:i}", "version", 2));
	assert_string_equal(json_string_value(json_object_get(json_object_get(out, "verdict"), "verdict")), "rejected");
	json_decref(out);
	/* undecided: asked again until there is enough */
	pthread_mutex_lock(&peers.lock);
	peers.pairs = -1;
	peers.gain = 0.3;
	peers.n_evaluations = 0;
	pthread_mutex_unlock(&peers.lock);
	submit("later", 0.8f, 1);
	WAIT_FOR(peers.n_evaluations >= 3);
	assert_true(state_is(3, "candidate"));
	pthread_mutex_lock(&peers.lock);
	peers.pairs = 20;
	pthread_mutex_unlock(&peers.lock);
	WAIT_FOR(field("live") == 3);
}

static void wrong_weights_never_go_live(void **state)
{
	(void)state;
	both_on();
	daemon_start();
	live_up_to(1);
	knob(&peers.wrong_sha, true);
	submit("bad", 0.9f, 1);
	WAIT_FOR(state_is(2, "rejected"));
	WAIT_FOR(peers_was_told(&peers, "2 rejected"));
	assert_int_equal(peers.live, 1);
	assert_int_equal(peers.n_activations, 1);
}

static void rollback_and_again(void **state)
{
	json_t *out;

	(void)state;
	both_on();
	daemon_start();
	live_up_to(3);
	for (uint32_t left = 3; left > 0; left--) {
		out = must("Rollback", NULL);
		assert_int_equal(json_integer_value(json_object_get(out, "live")), left - 1);
		assert_int_equal(json_integer_value(json_object_get(out, "quarantined")), left);
		json_decref(out);
		assert_int_equal(peers.live, left - 1);
		assert_true(state_is(left, "quarantined"));
	}
	WAIT_FOR(peers_was_told(&peers, "3 quarantined") && peers.rebased == 1);
	json_decref(must("Promote", json_pack("{s:i}", "version", 3))); /* an operator may think better of it */
	assert_int_equal(peers.live, 3);
}

/* A learner that missed a rollback goes on from what was rejected, which was made from what was rolled back. */
static void children_of_what_was_rolled_back(void **state)
{
	(void)state;
	both_on();
	daemon_start();
	live_up_to(2);
	pthread_mutex_lock(&peers.lock);
	peers.gain = -0.3;
	pthread_mutex_unlock(&peers.lock);
	assert_int_equal(submit("worse", 0.91f, 2), 3);
	WAIT_FOR(state_is(3, "rejected"));
	json_decref(must("Rollback", NULL));
	pthread_mutex_lock(&peers.lock);
	peers.gain = 0.3;
	pthread_mutex_unlock(&peers.lock);
	assert_int_equal(submit("grandchild", 0.92f, 3), 4);
	assert_true(state_is(4, "rejected"));
	WAIT_FOR(peers_was_told(&peers, "4 superseded"));
	assert_int_equal(submit("sound", 0.93f, 1), 5);
	WAIT_FOR(peers.live == 5);
}

/* the same request id is the same rollback */
static void a_retry_is_harmless(void **state)
{
	json_t *a, *b;

	(void)state;
	both_on();
	daemon_start();
	live_up_to(3);
	a = must("Rollback", json_pack("{s:s}", "request_id", "r1"));
	b = must("Rollback", json_pack("{s:s}", "request_id", "r1"));
	assert_true(json_equal(a, b));
	json_decref(a);
	json_decref(b);
	assert_int_equal(field("live"), 2);
}

static void rollback_while_loading(void **state)
{
	uint64_t t0;
	json_t *out;

	(void)state;
	both_on();
	daemon_start();
	live_up_to(2);
	knob(&peers.hold_loads, true);
	submit("slow", 0.9f, 2);
	WAIT_FOR(peers.held);
	t0 = clock_us();
	out = must("Rollback", NULL);
	assert_true(clock_us() - t0 < 2000000);
	assert_int_equal(json_integer_value(json_object_get(out, "live")), 1);
	json_decref(out);
	assert_int_equal(peers.live, 1);
	peers_post(&peers, peers_release_load);
	WAIT_FOR(!peers_has(&peers, 3)); /* unloaded again, never activated */
	WAIT_FOR(peers_was_told(&peers, "3 superseded"));
	usleep(200000);
	assert_int_equal(peers.live, 1);
	assert_true(state_is(3, "rejected"));
}

static void rollback_loads_what_is_not_there(void **state)
{
	json_t *out;

	(void)state;
	both_on();
	daemon_start();
	live_up_to(2);
	pthread_mutex_lock(&peers.lock);
	peers.n_loaded = 1; /* only one of them is left in a slot */
	peers.loaded[0] = 2;
	pthread_mutex_unlock(&peers.lock);
	out = must("Rollback", NULL);
	assert_int_equal(json_integer_value(json_object_get(out, "live")), 1);
	json_decref(out);
	assert_int_equal(peers.live, 1);
}

static void a_full_disk_does_not_stop_rollback(void **state)
{
	struct store_state s;
	struct errtext e;
	json_t *out;

	(void)state;
	both_on();
	daemon_start();
	live_up_to(2);
	/* a folder with something in it stands where the state goes: every write fails */
	assert_int_equal(unlink(fixture_path("store/state.json")), 0);
	assert_int_equal(fs_mkdirs(fixture_path("store/state.json/x")), 0);
	out = must("Rollback", NULL);
	assert_int_equal(json_integer_value(json_object_get(out, "live")), 1);
	json_decref(out);
	assert_int_equal(peers.live, 1);
	assert_int_equal(fs_remove_tree(fixture_path("store/state.json")), 0);
	WAIT_FOR(access(fixture_path("store/state.json"), F_OK) == 0); /* written as soon as it can be */
	assert_int_equal(store_state_read(fixture_path("store"), &s, &e), 0);
	assert_int_equal(s.live, 1);
	store_state_done(&s);
}

static void nobody_is_there(void **state)
{
	json_t *out;

	(void)state;
	daemon_start();
	assert_int_equal(submit("a", 0.5f, 0), 1);
	must_fail("Promote", json_pack("{s:i}", "version", 1), "io.redraft.ServerAbsent");
	must_fail("Promote", json_pack("{s:i}", "version", 9), "io.redraft.BadVersion");
	must_fail("Pin", NULL, "io.redraft.BadVersion");
	must_fail("Show", json_pack("{s:s}", "version", "x"), "org.varlink.service.InvalidParameter");
	must_fail("Submit", json_pack("{s:s}", "path", "/etc"), "io.redraft.BadVersion");
	out = must("Rollback", NULL);
	json_decref(out);
	peers_post(&peers, peers_learn_on);
	WAIT_FOR(state_is(1, "gated"));
	usleep(100000);
	assert_int_equal(field("live"), 0);
	peers_post(&peers, peers_serve_on);
	WAIT_FOR(field("live") == 1);
	/* the server dies and comes back empty: it is brought back to where it was */
	peers_post(&peers, peers_serve_off);
	usleep(100000);
	pthread_mutex_lock(&peers.lock);
	peers.live = 0;
	peers.n_loaded = 0;
	peers.generation = 0;
	snprintf(peers.source, sizeof peers.source, "store");
	pthread_mutex_unlock(&peers.lock);
	peers_post(&peers, peers_serve_on);
	WAIT_FOR(peers.live == 1);
}

static void status_socket_only_reads(void **state)
{
	struct errtext e;
	json_t *out = NULL;

	(void)state;
	daemon_start();
	assert_int_equal(rpc_call_sync(fixture_path("daemon/status.sock"), "io.redraft.Daemon.Rollback", NULL, 5000, &out, &e), RPC_E_REMOTE);
	assert_memory_equal(e.text, "io.redraft.PermissionDenied", 27);
	assert_int_equal(rpc_call_sync(fixture_path("daemon/status.sock"), "io.redraft.Daemon.Status", NULL, 5000, &out, &e), 0);
	json_decref(out);
}

static void pin_and_promote(void **state)
{
	(void)state;
	both_on();
	daemon_start();
	live_up_to(2);
	json_decref(must("Pin", NULL));
	assert_int_equal(field("pin"), 2);
	submit("c", 0.9f, 2);
	WAIT_FOR(state_is(3, "gated"));
	usleep(150000);
	assert_int_equal(field("live"), 2);
	must_fail("Promote", json_pack("{s:i}", "version", 1), "io.redraft.BadVersion");
	json_decref(must("Unpin", NULL));
	WAIT_FOR(field("live") == 3);
	must_fail("Promote", json_pack("{s:i, s:i}", "version", 1, "expected_generation", 99), "io.redraft.GenerationMismatch");
	json_decref(must("Promote", json_pack("{s:i, s:i}", "version", 1, "expected_generation", 3)));
	assert_int_equal(peers.live, 1);
	assert_int_equal(field("previous"), 3);
}

static void a_restart_goes_on(void **state)
{
	(void)state;
	both_on();
	daemon_start();
	live_up_to(2);
	daemon_stop();
	daemon_start();
	assert_int_equal(field("live"), 2);
	assert_int_equal(field("previous"), 1);
	usleep(150000);
	assert_int_equal(peers.n_activations, 2); /* nothing was moved */
	assert_int_equal(submit("third", 0.9f, 2), 3);
	WAIT_FOR(field("live") == 3);
}

/* redraftd is away; an operator rolls back at the server; redraftd returns */
static void an_override_is_taken_over(void **state)
{
	json_t *out;

	(void)state;
	both_on();
	daemon_start();
	live_up_to(2);
	daemon_stop();
	pthread_mutex_lock(&peers.lock);
	peers.live = 1;
	peers.previous = 0;
	peers.generation++;
	snprintf(peers.source, sizeof peers.source, "operator");
	pthread_mutex_unlock(&peers.lock);
	daemon_start();
	WAIT_FOR(field("live") == 1);
	assert_true(state_is(2, "quarantined"));
	out = must("Status", NULL);
	assert_true(json_is_true(json_object_get(out, "hold")));
	json_decref(out);
	WAIT_FOR(peers_was_told(&peers, "2 quarantined") && peers.rebased == 1);
	assert_int_equal(peers.n_activations, 2); /* the server was left as it was */
	submit("next", 0.9f, 1);
	WAIT_FOR(state_is(3, "gated"));
	usleep(150000);
	assert_int_equal(field("live"), 1); /* held */
	json_decref(must("Unpin", NULL));
	WAIT_FOR(field("live") == 3);
}

/* In a child, killed between the server's answer and our journal, or between a version's
 * name and the state; then a new daemon on the same store. */
static void crash_at(const char *point)
{
	int status;
	pid_t pid = fork();

	if (!pid) {
		setenv("REDRAFT_CRASH_AT", point, 1);
		daemon_build();
		(void)loop_run(d.loop);
		_exit(1);
	}
	WAIT_FOR(access(fixture_path("daemon/control.sock"), F_OK) == 0);
	usleep(200000);
	{
		struct errtext e;
		json_t *out = NULL;
		const char *path = fixture_submission("crash", 0.77f, 0, NULL, NULL);

		(void)!rpc_call_sync(fixture_path("daemon/control.sock"), "io.redraft.Daemon.Submit", json_pack("{s:s}", "path", path),
				     5000, &out, &e);
		json_decref(out);
	}
	for (int i = 0; i < 800 && waitpid(pid, &status, WNOHANG) == 0; i++)
		usleep(10000);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 137) {
		kill(pid, SIGKILL);
		fail_msg("%s was not reached", point);
	}
	daemon_start();
}

static void served(uint32_t version, uint32_t accepted, int n)
{
	struct round_record r = {.version = version, .last = true, .k = 1, .rounds = 10, .proposed = {10}, .accepted = {accepted}};

	usleep(60000); /* the counting begins with the second after the canary did */
	for (int i = 0; i < n; i++)
		watch_take(d.watch, &r);
}

static void with_steps(uint64_t step_us)
{
	d.o.rules.n_steps = 2;
	d.o.rules.permille[0] = 50;
	d.o.rules.permille[1] = 250;
	d.o.rules.step_us = step_us;
	d.o.canary = canary_defaults;
	d.o.canary.requests = 40;
}

static json_int_t of_canary(const char *key)
{
	json_t *out = must("Status", NULL);
	json_int_t v = json_integer_value(json_object_get(json_object_get(out, "canary"), key));

	json_decref(out);
	return v;
}

static void a_canary_is_judged_by_what_it_serves(void **state)
{
	char salt[33];

	(void)state;
	with_steps(10000000);
	both_on();
	daemon_start();
	submit("s1", 0.1f, 0);
	WAIT_FOR(of_canary("permille") == 50);
	served(1, 5, 40);
	served(0, 0, 40);
	WAIT_FOR(of_canary("permille") == 250);
	assert_int_equal(peers.live, 0);
	served(1, 5, 40);
	served(0, 0, 40);
	WAIT_FOR(field("live") == 1);
	assert_int_equal(of_canary("version"), 0);
	submit("s2", 0.2f, 1);
	WAIT_FOR(peers.canary == 2);
	memcpy(salt, peers.salt, sizeof salt);
	/* the server dies and comes back without it */
	peers_post(&peers, peers_serve_off);
	usleep(100000);
	pthread_mutex_lock(&peers.lock);
	peers.canary = peers.permille = 0;
	peers.n_loaded = 1;
	peers.loaded[0] = 1;
	pthread_mutex_unlock(&peers.lock);
	peers_post(&peers, peers_serve_on);
	WAIT_FOR(peers.canary == 2);
	assert_string_equal(peers.salt, salt);
	served(2, 0, 40); /* it gives nothing */
	served(1, 5, 40);
	WAIT_FOR(state_is(2, "quarantined"));
	WAIT_FOR(peers.canary == 0);
	WAIT_FOR(peers_was_told(&peers, "2 quarantined") && peers.rebased == 1);
	assert_int_equal(peers.live, 1);
}

/* The first run records; later ones compare; moved twice running is an alarm, once is not; --record makes it the truth. */
static void probes_raise_an_alarm(void **state)
{
	json_t *out;

	(void)state;
	d.o.probe.features = 0.02;
	d.o.probe.al = 0.1;
	peers.probe_accepted = 20;
	both_on();
	daemon_start();
	live_up_to(1);
	out = must("Probe", NULL);
	assert_true(json_is_true(json_object_get(out, "recorded")));
	json_decref(out);
	assert_int_equal(access(fixture_path("store/probe.json"), F_OK), 0);
	out = must("Probe", NULL);
	assert_false(json_is_true(json_object_get(out, "moved")) || json_is_true(json_object_get(out, "recorded")));
	json_decref(out);
	peers.probe_accepted = 5;
	out = must("Probe", NULL);
	assert_true(json_is_true(json_object_get(out, "moved")));
	json_decref(out);
	assert_int_equal(peers.n_pauses, 0);
	json_decref(must("Probe", NULL));
	WAIT_FOR(peers.n_pauses == 1);
	assert_non_null(strstr(act_decay(d.act), "probes"));
	json_decref(must("Release", NULL));
	out = must("Probe", json_pack("{s:b}", "record", 1));
	assert_true(json_is_true(json_object_get(out, "recorded")));
	json_decref(out);
	out = must("Probe", NULL);
	assert_false(json_is_true(json_object_get(out, "moved")));
	json_decref(out);
	daemon_stop();
	d.o.probe.every_us = 50000; /* by itself */
	peers.n_probes = 0;
	peers.n_pauses = 0;
	peers.probe_accepted = 20;
	daemon_start();
	WAIT_FOR(peers.n_probes >= 2 && peers.n_pauses == 1);
}

static void an_alarm_holds_until_release(void **state)
{
	(void)state;
	both_on();
	daemon_start();
	live_up_to(1);
	daemon_stop();
	daemon_build();
	act_alarm(d.act, "decay: it is not what it was");
	assert_int_equal(pthread_create(&d.thread, NULL, daemon_run, NULL), 0);
	d.running = true;
	WAIT_FOR(peers.n_pauses == 1);
	submit("s2", 0.2f, 1);
	WAIT_FOR(state_is(2, "gated"));
	daemon_stop();
	daemon_start(); /* it is remembered */
	assert_string_equal(act_decay(d.act), "decay: it is not what it was");
	usleep(150000);
	assert_int_equal(field("live"), 1);
	json_decref(must("Release", NULL));
	WAIT_FOR(peers.n_resumes == 1);
	WAIT_FOR(field("live") == 2);
	assert_string_equal(act_decay(d.act), "");
}

/* Accepted at under a quarter of its gate: rolled back when the one before does better on the same requests, or under an alarm; the traffic's
 * fall alone moves nothing. */
static void a_collapse_goes_back_where_that_helps(void **state)
{
	(void)state;
	for (int alarm = 0; alarm < 2; alarm++) {
		teardown(state);
		setup(state);
		peers.back_gain = alarm ? -0.1 : 0.3; /* gate: 1.7 */
		both_on();
		daemon_start();
		live_up_to(2);
		WAIT_FOR(access(fixture_path("store/versions/2/verdict.json"), F_OK) == 0);
		served(2, 3, 64);
		usleep(150000);
		assert_int_equal(field("live"), 2);
		if (alarm) {
			daemon_stop();
			daemon_build();
			act_alarm(d.act, "decay");
			assert_int_equal(pthread_create(&d.thread, NULL, daemon_run, NULL), 0);
			d.running = true;
			WAIT_FOR(peers.n_pauses == 1);
		}
		served(2, 0, 64);
		WAIT_FOR(field("live") == 1);
		assert_int_equal(peers.live, 1);
		assert_string_equal(peers.source, "daemon");
		assert_true(state_is(2, "quarantined"));
		WAIT_FOR(peers.rebased == 1);
	}
	teardown(state);
	setup(state);
	peers.back_gain = -0.1;
	both_on();
	daemon_start();
	live_up_to(2);
	WAIT_FOR(access(fixture_path("store/versions/2/verdict.json"), F_OK) == 0);
	int n = peers.n_evaluations;
	served(2, 0, 64);
	WAIT_FOR(peers.n_evaluations > n);
	usleep(150000);
	assert_int_equal(field("live"), 2); /* the one before is no better: it is the traffic */
}

/* The learner answers minutes later, and an operator was faster: what it says of the version that was left is no word on the one that is live. */
static void a_late_replay_moves_nobody(void **state)
{
	json_t *out;

	(void)state;
	both_on();
	daemon_start();
	live_up_to(2);
	WAIT_FOR(access(fixture_path("store/versions/2/verdict.json"), F_OK) == 0);
	knob(&peers.hold_back, true);
	served(2, 0, 64);
	WAIT_FOR(peers.back);
	out = must("Rollback", NULL);
	json_decref(out);
	assert_int_equal(field("live"), 1);
	usleep(200000); /* the daemon has looked at version 1 by then */
	peers_post(&peers, peers_release_back);
	usleep(300000);
	assert_int_equal(field("live"), 1);
	assert_false(state_is(1, "quarantined"));
}

/* Killed when a share of the traffic has moved and the state does not know: it is ended, and begun anew. */
static void a_crash_in_a_canary_converges(void **state)
{
	(void)state;
	with_steps(50000);
	both_on();
	crash_at("act-canaried");
	assert_int_equal(peers.canary, 1);
	WAIT_FOR(field("live") == 1);
	assert_int_equal(peers.n_canaries, 4); /* before the crash, none, 50, 250 */
	assert_int_equal(peers.canary, 0);
	WAIT_FOR(peers_was_told(&peers, "1 accepted"));
}

static void crashes_converge(void **state)
{
	static const char *const points[] = {"act-activated", "store-named", "store-saved"};

	for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
		teardown(state);
		setup(state);
		both_on();
		crash_at(points[i]);
		WAIT_FOR(field("live") == 1);
		assert_int_equal(peers.live, 1);
		WAIT_FOR(peers_was_told(&peers, "1 accepted"));
		assert_int_equal(peers.n_activations, 1);
	}
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(the_whole_way), T(a_worse_candidate_is_rejected), T(wrong_weights_never_go_live), T(rollback_and_again),
		T(children_of_what_was_rolled_back),
		T(a_retry_is_harmless), T(rollback_while_loading), T(rollback_loads_what_is_not_there),
		T(a_full_disk_does_not_stop_rollback), T(nobody_is_there), T(status_socket_only_reads), T(pin_and_promote),
		T(a_restart_goes_on), T(an_override_is_taken_over), T(crashes_converge),
		T(a_canary_is_judged_by_what_it_serves), T(an_alarm_holds_until_release), T(probes_raise_an_alarm), T(a_crash_in_a_canary_converges), T(a_collapse_goes_back_where_that_helps),
		T(a_late_replay_moves_nobody),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
