/* The daemon whole, over its sockets, with a server and a learner that keep books:
 * submit, gate, load, compare, activate; rollback at any moment; restarts and crashes
 * on the way converge; nobody has to be there. A stop or a full disk while a submission
 * is looked at refuses nothing: a sync is held, or meets the full disk, by the file's folder. What goes by what is served is in test_act_served.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include "tests/unit/daemon/act_drive.h"

static atomic_bool sync_held, in_sync;
static const char *_Atomic full; /* the disk, for what lies below this dot or is this folder; NULL: for nothing */

int fsync(int fd)
{
	char link[64], path[PATH_MAX] = "";
	const char *f = full, *at;

	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	if (readlink(link, path, sizeof path - 1) < 0)
		return -1;
	while (sync_held && strstr(path, "/.take-")) {
		in_sync = true;
		usleep(1000);
	}
	at = f ? strstr(path, f) : NULL;
	errno = ENOSPC;
	return at && (f[1] == '.' || !at[strlen(f)]) ? -1 : (int)syscall(SYS_fsync, fd);
}

static int begin(void **state)
{
	full = NULL; /* whatever a test before this one left */
	sync_held = false;
	return setup(state);
}

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
	pthread_mutex_lock(&peers.lock);
	peers.pairs = -2; /* cannot be replayed, and there is no canary that could judge it instead */
	pthread_mutex_unlock(&peers.lock);
	submit("other", 0.7f, 3);
	WAIT_FOR(state_is(4, "rejected"));
	assert_int_equal(field("live"), 3);
}

/* Better on what is asked, surely worse on what was: asked for once all else is well, and refused. A learner that knows no pinned
 * requests is understood: what it answers is the whole verdict (every other test here). */
static void a_candidate_that_forgets_is_rejected(void **state)
{
	json_t *out, *said;

	(void)state;
	both_on();
	daemon_start();
	live_up_to(1);
	assert_int_equal(peers.n_pinned, 0); /* nothing was live that could have been forgotten */
	pthread_mutex_lock(&peers.lock);
	peers.pinned = 40;
	peers.pinned_gain = -0.2;
	pthread_mutex_unlock(&peers.lock);
	submit("forgets", 0.9f, 1);
	WAIT_FOR(state_is(2, "rejected"));
	assert_int_equal(peers.n_pinned, 1);
	WAIT_FOR(access(fixture_path("store/versions/2/verdict.json"), F_OK) == 0);
	out = must("Show", json_pack("{s:i}", "version", 2));
	said = json_object_get(out, "verdict");
	assert_string_equal(json_string_value(json_object_get(said, "verdict")), "rejected");
	assert_non_null(strstr(json_string_value(json_object_get(said, "reason")), "older requests of domain chat"));
	said = json_object_get(json_object_get(said, "pinned"), "chat");
	assert_int_equal(json_integer_value(json_object_get(said, "requests")), 40);
	json_decref(out);
	out = must("Explain", json_pack("{s:i}", "version", 2));
	assert_non_null(strstr(json_string_value(json_object_get(out, "text")), "On 40 pinned older requests of domain chat it has 1.200 against 1.400"));
	json_decref(out);
	pthread_mutex_lock(&peers.lock);
	peers.pinned_gain = 0.05;
	pthread_mutex_unlock(&peers.lock);
	submit("remembers", 0.8f, 1);
	WAIT_FOR(field("live") == 3);
	assert_int_equal(peers.n_pinned, 2);
	assert_string_equal(peers.references, "{}"); /* live was judged on all that is asked */
	/* tools are asked no more: the last that was judged on them stays the one to be compared with */
	pthread_mutex_lock(&peers.lock);
	peers.asked = "code";
	pthread_mutex_unlock(&peers.lock);
	submit("first without", 0.7f, 3);
	WAIT_FOR(field("live") == 4);
	assert_string_equal(peers.references, "{}");
	submit("second without", 0.6f, 4);
	WAIT_FOR(field("live") == 5);
	assert_string_equal(peers.references, "{\"tools\":3}");
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
	assert_string_equal(peers.request, "r1"); /* so the server knows it too, should we be gone when it is asked again */
}

static void rollback_while_loading(void **state)
{
	json_t *out;

	(void)state;
	both_on();
	daemon_start();
	live_up_to(2);
	knob(&peers.hold_loads, true);
	submit("slow", 0.9f, 2);
	WAIT_FOR(peers.held);
	out = must("Rollback", NULL); /* answered while the load is out */
	assert_true(peers.held);
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
	assert_memory_equal(e.text, "io.redraft.Daemon.PermissionDenied", 34);
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

/* Version 2 is live; redraftd is away, somebody goes back to 1 at the server; redraftd returns and takes that over. left: what the server
 * tells that it was moved back from; 0: it is one that does not tell. */
static void gone_back_meanwhile(const char *source, uint32_t left, bool held)
{
	json_t *out;

	both_on();
	daemon_start();
	live_up_to(2);
	daemon_stop();
	pthread_mutex_lock(&peers.lock);
	peers.live = 1;
	peers.previous = 0;
	peers.generation++;
	snprintf(peers.source, sizeof peers.source, "%s", source);
	peers.tells_left = left != 0;
	peers.left = left;
	pthread_mutex_unlock(&peers.lock);
	daemon_start();
	WAIT_FOR(field("live") == 1);
	assert_true(state_is(2, "quarantined"));
	out = must("Status", NULL);
	assert_int_equal(json_is_true(json_object_get(out, "hold")), held);
	json_decref(out);
	WAIT_FOR(peers_was_told(&peers, "2 quarantined") && peers.rebased == 1);
	assert_int_equal(peers.n_activations, 2); /* the server was left as it was */
}

static void an_override_is_taken_over(void **state)
{
	(void)state;
	gone_back_meanwhile("operator", 0, true);
	submit("next", 0.9f, 1);
	WAIT_FOR(state_is(3, "gated"));
	usleep(150000);
	assert_int_equal(field("live"), 1); /* held */
	json_decref(must("Unpin", NULL));
	WAIT_FOR(field("live") == 3);
}

/* redraftd went back by itself and died before it wrote that down: what it left does not come back, and nothing is held for it. */
static void its_own_way_back_is_taken_over(void **state)
{
	(void)state;
	gone_back_meanwhile("daemon", 2, false);
	submit("next", 0.9f, 1);
	WAIT_FOR(field("live") == 3);
}

/* redraftd wrote a rollback down and died before the learner heard of it. */
static void the_learner_hears_of_a_rollback_later(void **state)
{
	(void)state;
	both_on();
	daemon_start();
	live_up_to(2);
	json_decref(must("Rollback", NULL));
	WAIT_FOR(peers.rebased == 1);
	daemon_stop();
	pthread_mutex_lock(&peers.lock);
	peers.rebased = 0; /* as if it had not */
	peers.n_verdicts = 0;
	peers.base = 2;
	pthread_mutex_unlock(&peers.lock);
	daemon_start();
	WAIT_FOR(peers.rebased == 1);
	assert_true(peers_was_told(&peers, "2 quarantined"));
}

/* A verdict that finds the learner ending (its disk is full) is said again, and what comes after it keeps its turn. */
static void a_busy_learner_is_told_again(void **state)
{
	(void)state;
	both_on();
	daemon_start();
	live_up_to(2);
	WAIT_FOR(peers_was_told(&peers, "2 accepted"));
	pthread_mutex_lock(&peers.lock);
	peers.busy = 2;
	pthread_mutex_unlock(&peers.lock);
	json_decref(must("Rollback", NULL));
	WAIT_FOR(peers.rebased == 1);
	assert_true(peers_was_told(&peers, "2 quarantined"));
	assert_int_equal(peers.busy, 0);
}

struct asked {
	char path[PATH_MAX];
	struct errtext e;
	int r;
};

static void *asks(void *arg)
{
	struct asked *q = arg;
	json_t *out = NULL;

	q->r = rpc_call_sync(fixture_path("daemon/control.sock"), "io.redraft.Daemon.Submit", json_pack("{s:s}", "path", q->path), 60000, &out, &q->e);
	json_decref(out);
	return NULL;
}

static void *lets_go(void *arg)
{
	usleep(100000);
	sync_held = false;
	return arg;
}

/* Busy, so that who handed it in keeps it; the next daemon finds it in incoming, and takes it. */
static void a_stop_while_it_is_verified_refuses_nothing(void **state)
{
	struct asked q = {.e.text = ""};
	pthread_t asking, letting;

	(void)state;
	snprintf(q.path, sizeof q.path, "%s", fixture_submission("cand", 0.5f, 0, NULL, NULL));
	daemon_start();
	in_sync = false;
	sync_held = true;
	assert_int_equal(pthread_create(&asking, NULL, asks, &q), 0);
	WAIT_FOR(in_sync);
	assert_int_equal(pthread_create(&letting, NULL, lets_go, NULL), 0);
	daemon_stop();
	pthread_join(letting, NULL);
	pthread_join(asking, NULL);
	assert_int_equal(q.r, RPC_E_REMOTE);
	assert_string_equal(q.e.text, "io.redraft.Daemon.Busy: redraftd is stopping");
	daemon_start();
	json_decref(must("Submit", json_pack("{s:s}", "path", q.path)));
	assert_true(state_is(1, "candidate"));
}

/* Wherever it is noticed, its own trouble is no word on what was handed in; and what was refused stays refused. */
static void a_full_disk_refuses_nothing(void **state)
{
	static const char *const where[] = {"/.take-", "/versions"};
	char path[PATH_MAX];

	(void)state;
	snprintf(path, sizeof path, "%s", fixture_submission("cand", 0.5f, 0, NULL, NULL));
	daemon_start();
	for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
		full = where[i];
		must_fail("Submit", json_pack("{s:s}", "path", path), "io.redraft.Busy");
		must_fail("Submit", json_pack("{s:s}", "path", fixture_path("store/incoming/none")), "io.redraft.BadVersion");
		full = NULL;
		assert_int_equal(access(fixture_path("store/incoming/cand/submit.json"), F_OK), 0);
		assert_int_equal(access(fixture_path("store/versions/1"), F_OK), -1);
	}
	json_decref(must("Submit", json_pack("{s:s}", "path", path)));
	assert_true(state_is(1, "candidate"));
	assert_int_equal(access(fixture_path("store/versions/1/submit.json"), F_OK), -1);
}

/* How many lines of this file have the word. */
static int said(const char *path, const char *word)
{
	char *text = NULL;
	int n = 0;

	assert_int_equal(fs_read_text(path, 1 << 20, &text), 0);
	for (const char *at = text; (at = strstr(at, word)); at++)
		n++;
	free(text);
	return n;
}

/* Who is told Busy asks again every few seconds, for as long as the disk is full: that is no line each. */
static void a_full_disk_is_said_once(void **state)
{
	char path[PATH_MAX], log[PATH_MAX];
	int saved = dup(2), fd;

	(void)state;
	snprintf(path, sizeof path, "%s", fixture_submission("cand", 0.5f, 0, NULL, NULL));
	snprintf(log, sizeof log, "%s", fixture_path("log"));
	daemon_start();
	fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
	assert_true(fd >= 0);
	dup2(fd, 2);
	log_init("test", LOG_WARN);
	full = "/.take-";
	for (int i = 0; i < 5; i++)
		must_fail("Submit", json_pack("{s:s}", "path", path), "io.redraft.Busy");
	full = NULL;
	json_decref(must("Submit", json_pack("{s:s}", "path", path)));
	dup2(saved, 2);
	log_init("test", LOG_ERROR);
	close(fd);
	close(saved);
	assert_int_equal(said(log, "not taken"), 1);
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
#define T(fn) cmocka_unit_test_setup_teardown(fn, begin, teardown)
	const struct CMUnitTest tests[] = {
		T(the_whole_way), T(a_worse_candidate_is_rejected), T(a_candidate_that_forgets_is_rejected), T(wrong_weights_never_go_live), T(rollback_and_again),
		T(children_of_what_was_rolled_back), T(a_retry_is_harmless), T(rollback_while_loading), T(rollback_loads_what_is_not_there),
		T(a_full_disk_does_not_stop_rollback), T(nobody_is_there), T(status_socket_only_reads), T(pin_and_promote),
		T(a_restart_goes_on), T(an_override_is_taken_over), T(its_own_way_back_is_taken_over), T(the_learner_hears_of_a_rollback_later), T(a_busy_learner_is_told_again),
		T(a_stop_while_it_is_verified_refuses_nothing), T(a_full_disk_refuses_nothing), T(a_full_disk_is_said_once), T(crashes_converge),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
