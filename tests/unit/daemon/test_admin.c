/* The control socket's promises. A change that is answered stands in the audit log, with where things stood before and after; when the
 * log cannot be written, the answer says so and the change is done all the same. What the learner refuses comes back as an
 * error that this interface declares. Who listens and hangs up leaves nothing behind.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>
#include "daemon/admin_inside.h"
#include "daemon/base/clock.h"
#include "schemas/audit.h"
#include "tests/unit/daemon/ask.h"
#include "tests/unit/daemon/whole.h"

/* The log's last record of that name; new reference. */
static json_t *last_of(const char *what)
{
	struct errtext e = {.text = ""};
	struct audit_seen s;
	json_t *records, *found = NULL, *r;
	size_t i;

	assert_int_equal(audit_last(fixture_path("audit"), 100, &s, &records, &e), 0);
	json_array_foreach(records, i, r)
		if (!strcmp(json_string_value(json_object_get(r, "what")), what))
			found = r;
	json_incref(found);
	json_decref(records);
	return found;
}

static bool was(const json_t *record, const char *place, const char *key)
{
	const json_t *v = json_object_get(json_object_get(record, place), key);

	assert_true(json_is_boolean(v));
	return json_is_true(v);
}

static void what_is_answered_is_in_the_log(void **state)
{
	static const char *const verbs[][3] = {{"PauseRollout", "paused", "1"}, {"ResumeRollout", "paused", ""}, {"Hold", "hold", "1"}, {"Release", "hold", ""}};
	json_t *out, *r;

	(void)state;
	whole_run();
	for (int i = 0; i < 4; i++) {
		bool after = verbs[i][2][0];

		out = must(verbs[i][0], json_pack("{s:s}", "reason", "a test"));
		assert_true(json_is_true(json_object_get(out, "audited")));
		json_decref(out);
		r = last_of(verbs[i][0]);
		assert_non_null(r);
		assert_int_equal(was(r, "from", verbs[i][1]), !after);
		assert_int_equal(was(r, "to", verbs[i][1]), after);
		json_decref(r);
	}
}

static void a_log_that_cannot_be_written_is_owned_up_to(void **state)
{
	json_t *out;

	(void)state;
	whole_run();
	json_decref(must("Hold", NULL));
	assert_int_equal(fs_remove_tree(fixture_path("audit")), 0);
	assert_int_equal(fs_write_atomic(fixture_path("audit"), "x", 1), 0); /* a file where the folder was: also root cannot write there */
	out = must("PauseRollout", NULL);
	assert_true(json_is_false(json_object_get(out, "audited")));
	json_decref(out);
	out = must("Status", NULL);
	assert_true(json_is_true(json_object_get(out, "paused")));
	json_decref(out);
	out = must("ResumeRollout", NULL); /* it waits behind the other */
	assert_true(json_is_false(json_object_get(out, "audited")));
	json_decref(out);
}

static void what_the_learner_refuses_is_declared(void **state)
{
	static const char *const said[][2] = {
		{"io.redraft.Busy", "io.redraft.Daemon.Busy: said"},
		{"io.redraft.NotEnough", "io.redraft.Daemon.NotEnough: said"},
		{"io.redraft.NotReplayable", "io.redraft.Daemon.Failed: io.redraft.Learn.NotReplayable: said"},
		{"io.redraft.Whatever", "io.redraft.Daemon.Failed: io.redraft.Learn.Whatever: said"},
		{"org.varlink.service.InvalidParameter", "org.varlink.service.InvalidParameter: said"},
		{"org.varlink.service.MethodNotFound", "io.redraft.Daemon.Failed: org.varlink.service.MethodNotFound: said"},
	};
	json_t *out;
	char *idl;

	(void)state;
	assert_int_equal(fs_read_text("schemas/admin/io.redraft.Daemon.varlink", 1 << 20, &idl), 0);
	peers_post(&peers, peers_learn_on);
	whole_run();
	for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
		struct errtext e = {.text = ""};
		uint64_t until = clock_us() + 60000000;
		char declared[80];
		int r;

		pthread_mutex_lock(&peers.lock);
		peers.purge_error = said[i][0];
		pthread_mutex_unlock(&peers.lock);
		do /* the learner may be on its way up */
			r = ask("Purge", json_pack("{s:s}", "tenant", "0123456789abcdef"), &out, &e);
		while (r == RPC_E_REMOTE && strstr(e.text, "LearnerAbsent") && clock_us() < until);
		assert_int_equal(r, RPC_E_REMOTE);
		if (strncmp(e.text, said[i][1], strlen(said[i][1])) != 0)
			fail_msg("%s became %s", said[i][0], e.text);
		if (sscanf(e.text, "io.redraft.Daemon.%70[A-Za-z]", declared + sprintf(declared, "error ")) == 1 && !strstr(idl, declared))
			fail_msg("%s is not declared", declared);
	}
	pthread_mutex_lock(&peers.lock);
	peers.purge_error = NULL;
	pthread_mutex_unlock(&peers.lock);
	free(idl);
	out = must("Purge", json_pack("{s:s}", "tenant", "0123456789abcdef"));
	assert_int_equal(json_integer_value(json_object_get(out, "records")), 2);
	assert_true(json_is_true(json_object_get(out, "audited")));
	json_decref(out);
}

static bool tail_enough(void *arg, const json_t *params)
{
	*(int *)arg += json_is_array(json_object_get(params, "events"));
	return false;
}

/* Listeners that hang up while nothing happens keep no place from those who come later, nor a connection. */
static void listeners_come_and_go(void **state)
{
	struct errtext e = {.text = ""};
	int heard = 0;

	(void)state;
	whole_run();
	for (int i = 0; i < 5 * ADMIN_TAILS; i++)
		if (rpc_call_stream(fixture_path("daemon/control.sock"), "io.redraft.Daemon.Tail", json_pack("{s:i}", "last", 0), 60000, tail_enough, &heard, &e))
			fail_msg("listener %d: %s", i, e.text);
	assert_int_equal(heard, 5 * ADMIN_TAILS);
}

/* The same of those who first shut the half they write, and some time later the other. */
static void listeners_go_by_halves(void **state)
{
	static const char ask_for_more[] = "{\"method\":\"io.redraft.Daemon.Tail\",\"parameters\":{\"last\":0},\"more\":true}";
	struct errtext e = {.text = ""};
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	char answer[4096];
	int heard = 0;

	(void)state;
	whole_run();
	assert_true(snprintf(a.sun_path, sizeof a.sun_path, "%s", fixture_path("daemon/control.sock")) < (int)sizeof a.sun_path);
	for (int i = 0; i < ADMIN_TAILS + 1; i++) {
		int fd = socket(AF_UNIX, SOCK_STREAM, 0);
		assert_int_equal(connect(fd, (void *)&a, sizeof a), 0);
		assert_int_equal(write(fd, ask_for_more, sizeof ask_for_more), sizeof ask_for_more);
		assert_int_equal(shutdown(fd, SHUT_WR), 0);
		ssize_t n = read(fd, answer, sizeof answer - 1);
		assert_true(n > 0);
		answer[n] = '\0';
		assert_non_null(strstr(answer, "\"continues\""));
		(void)usleep(20000); /* the end of his half has been seen by then */
		close(fd);
	}
	if (rpc_call_stream(fixture_path("daemon/control.sock"), "io.redraft.Daemon.Tail", json_pack("{s:i}", "last", 0), 60000, tail_enough, &heard, &e))
		fail_msg("%s", e.text);
	assert_int_equal(heard, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(what_is_answered_is_in_the_log, whole_setup, whole_teardown),
		cmocka_unit_test_setup_teardown(a_log_that_cannot_be_written_is_owned_up_to, whole_setup, whole_teardown),
		cmocka_unit_test_setup_teardown(listeners_come_and_go, whole_setup, whole_teardown),
		cmocka_unit_test_setup_teardown(listeners_go_by_halves, whole_setup, whole_teardown),
		cmocka_unit_test_setup_teardown(what_the_learner_refuses_is_declared, whole_setup, whole_teardown),
	};

	return cmocka_run_group_tests_name("admin", tests, NULL, NULL);
}
