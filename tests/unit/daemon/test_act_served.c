/* What the daemon does by what is served, over its sockets with peers that keep books: a canary is begun, judged by round
 * records, promoted or taken back, and a crash in it converges; probes that move raise an alarm; an alarm holds and pauses until a release, over
 * a restart; a collapse goes back where that helps. What the learner could not write is said.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "schemas/round.h"
#include "tests/unit/daemon/act_drive.h"

static void served(uint32_t version, uint32_t accepted, int n)
{
	struct round_record r = {.version = version, .last = true, .k = 1, .rounds = 10, .proposed = {10}, .accepted = {accepted}};

	a_second_passes(); /* the counting begins with the one after the canary did */
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
	WAIT_FOR(of_canary("version") == 2);
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
	json_decref(must("Probe", NULL)); /* it stands: nobody is told again */
	out = must("Status", NULL);
	assert_memory_equal(json_string_value(json_object_get(out, "last_event")), "alarm: ", 7);
	json_decref(out);
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

static void restart_with_alarm(const char *text)
{
	daemon_stop();
	daemon_build();
	act_alarm(d.act, text);
	daemon_go();
	WAIT_FOR(peers.n_pauses == 1);
}

static void an_alarm_holds_until_release(void **state)
{
	(void)state;
	both_on();
	daemon_start();
	live_up_to(1);
	restart_with_alarm("decay: it is not what it was");
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
		a_second_passes();
		assert_int_equal(field("live"), 2);
		if (alarm)
			restart_with_alarm("decay");
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
	a_second_passes(); /* the daemon has looked at version 1 */
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
	WAIT_FOR(field("live") == 1);
	assert_int_equal(peers.n_canaries, 4); /* before the crash, none, 50, 250 */
	assert_int_equal(peers.canary, 0);
	WAIT_FOR(peers_was_told(&peers, "1 accepted"));
}

static _Atomic int n_learner_news;

static void hear_learner(void *arg, enum act_news kind, const char *text)
{
	(void)arg;
	n_learner_news += kind == ACT_NEWS_LEARNER && strstr(text, "No space left");
}

static void a_checkpoint_that_was_not_written_is_news_once(void **state)
{
	(void)state;
	both_on();
	daemon_build();
	act_on_news(d.act, hear_learner, NULL);
	daemon_go();
	a_second_passes();
	assert_int_equal(n_learner_news, 0);
	for (int i = 1; i <= 2; i++) {
		pthread_mutex_lock(&peers.lock);
		peers.not_written = i;
		pthread_mutex_unlock(&peers.lock);
		WAIT_FOR(n_learner_news == i);
		a_second_passes(); /* it was asked again */
		assert_int_equal(n_learner_news, i);
	}
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(a_canary_is_judged_by_what_it_serves), T(a_crash_in_a_canary_converges), T(probes_raise_an_alarm), T(an_alarm_holds_until_release),
		T(a_collapse_goes_back_where_that_helps), T(a_late_replay_moves_nobody), T(a_checkpoint_that_was_not_written_is_news_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
