/* The compute thread trains and obeys while a candidate is being written, and ends with it written; one that cannot be written is said and counted. One
 * that waits goes only when the next is begun, which a checkpoint that is being written may put off, and no end in between loses both.
 *
 * A candidate that the daemon is too busy for is asked about again, seconds later, and one that it refuses goes.
 */
#include <sys/wait.h>
#include "tests/unit/learn/worker_kit.h"
#include "daemon/base/rpc.h"
#include "tests/unit/learn/run_for.h"

/* Steps are taken and commands obeyed while it is written; a stop meanwhile ends with its folder and a checkpoint that knows of it, so the next start
 * has nothing to write again. */
static void test_candidate(void **unused)
{
	struct world w;
	struct heard h;
	struct answer a;
	pthread_t other;
	char state[300], path[512];
	(void)unused;
	world_init(&w, 4);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	struct worker *x = begin(&w, state, script(), &h);
	until(x, NULL, "step", 3);
	hold = true;
	a.loop = h.loop;
	ask(x, CMD_PUBLISH, &a);
	until_held();
	int64_t step = number(x, NULL, "step");
	until(x, NULL, "step", step + 3);
	obeyed(x, CMD_DRIFT, h.loop);
	obeyed(x, CMD_PAUSE, h.loop);
	obeyed(x, CMD_RESUME, h.loop);
	obeyed(x, CMD_PACE, h.loop); /* what is due waits for it */
	step = number(x, NULL, "step");
	until(x, NULL, "step", step + 3);
	until(x, "pending", "writing", 1);
	assert_true(held);
	assert_int_equal(a.n, 0);
	assert_int_equal(number(x, "candidate", "step"), -1);
	assert_int_equal(pthread_create(&other, NULL, let_go, NULL), 0);
	worker_stop(x);
	assert_int_equal(pthread_join(other, NULL), 0);
	assert_int_equal(h.n, 0);
	loop_free(h.loop);

	struct dev *d = NULL;
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
	struct learner_options o = options(&w, state);
	struct source *src = script();
	struct learner *l = NULL;
	struct errtext e = {""};
	assert_int_equal(learner_open(&o, d, src, &w.fz, &l, &e), 0);
	assert_true(*l->pending.name && !l->pending.writing && !l->pending.version);
	(void)snprintf(path, sizeof path, "%s/incoming/%s/submit.json", w.store, l->pending.name);
	json_t *j = json_load_file(path, 0, NULL);
	assert_string_equal(json_string_value(json_object_get(j, "weights_sha")), l->pending.sha);
	json_decref(j);
	learner_close(l);
	src->free(src);
	dev_free(d);
	assert_int_equal(entries(state, J_PUBLISH), 1);
	assert_int_equal(entries(state, J_WITHDRAW) + entries(state, J_SUBMITTED), 0);
	world_done(&w);
}

/* The candidate of a daemon that is away waits; Publish() has to wait for a checkpoint. An end, or a journal that cannot be written, before the new one is
 * begun: the first is as it was, and who asked is told of the journal. Then it goes, and the new one takes its place. */
static void test_candidate_put_off(void **unused)
{
	enum { END, JOURNAL, GOES_ON };
	(void)unused;
	for (int how = END; how <= GOES_ON; how++) {
		struct world w;
		struct heard h;
		struct answer a;
		pthread_t other;
		char state[300], first[512];
		world_init(&w, 4);
		(void)snprintf(state, sizeof state, "%s/s", w.dir);
		struct worker *x = begin(&w, state, script(), &h);
		until(x, NULL, "step", 3);
		a.loop = h.loop;
		ask(x, CMD_PUBLISH, &a);
		assert_int_equal(loop_run(h.loop), 0);
		assert_non_null(strstr(a.text, "the candidate is written"));
		until(x, "candidate", "step", 3);
		json_t *s = worker_status(x);
		(void)snprintf(first, sizeof first, "%s/incoming/%s/submit.json", w.store, json_string_value(json_object_get(json_object_get(s, "pending"), "name")));
		json_decref(s);
		assert_int_equal(access(first, F_OK), 0);

		whose = "/checkpoint/";
		hold = true;
		obeyed(x, CMD_PACE, h.loop);
		until_held();
		obeyed(x, CMD_PAUSE, h.loop);
		ask(x, CMD_PUBLISH, &a);
		struct answer later = {.loop = h.loop};
		ask(x, CMD_DRIFT, &later);
		assert_int_equal(loop_run(h.loop), 0);
		assert_int_equal(later.n, 1); /* so the other was taken too */
		assert_int_equal(a.n, 0);
		assert_int_equal(access(first, F_OK), 0);
		if (how == END)
			assert_int_equal(pthread_create(&other, NULL, let_go, NULL), 0);
		else {
			journal_full = how == JOURNAL;
			hold = false;
			assert_int_equal(loop_run(h.loop), 0); /* until it is answered */
			assert_string_equal(a.error, "io.redraft.Busy");
			assert_non_null(strstr(a.text, how == JOURNAL ? "the learner is ending" : "the candidate is written"));
		}
		worker_stop(x);
		if (how == END)
			assert_int_equal(pthread_join(other, NULL), 0);
		assert_int_equal(h.n, how == JOURNAL);
		journal_full = false;
		whose = "/incoming/";
		assert_int_equal(access(first, F_OK) == 0, how != GOES_ON);
		if (how != JOURNAL) /* what could not be synced may be there or not */
			assert_int_equal(entries(state, J_PUBLISH), how == GOES_ON ? 2 : 1);
		assert_int_equal(entries(state, J_WITHDRAW), 0); /* giving way needs no entry of its own */
		loop_free(h.loop);
		world_done(&w);
	}
}

/* A candidate waits for its number, and Publish() asks for the next; the process ends at the so manyth sync of the journal from there on. */
static void give_way(const struct world *w, const char *state, int at)
{
	struct heard h;
	struct answer a;
	struct worker *x = begin(w, state, script(), &h);
	until(x, NULL, "step", 3);
	a.loop = h.loop;
	ask(x, CMD_PUBLISH, &a);
	assert_int_equal(loop_run(h.loop), 0);
	until(x, "candidate", "step", 3);
	obeyed(x, CMD_PAUSE, h.loop);
	dies = at;
	ask(x, CMD_PUBLISH, &a);
	assert_int_equal(loop_run(h.loop), 0);
	_exit(0); /* so many there were not */
}

/* Whenever it ends, one of the two is there, or is written at the next start. */
static void test_end_loses_no_candidate(void **unused)
{
	int killed = 0;
	(void)unused;
	for (int at = 1; at <= 3; at++) {
		struct world w;
		struct errtext e = {""};
		char state[300], path[512];
		int status;
		world_init(&w, 4);
		(void)snprintf(state, sizeof state, "%s/s", w.dir);
		pid_t pid = fork();
		if (!pid)
			give_way(&w, state, at);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 137 || WEXITSTATUS(status) == 0));
		killed += WEXITSTATUS(status) == 137;
		struct dev *d = NULL;
		assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
		struct learner_options o = options(&w, state);
		struct source *src = script();
		struct learner *l = NULL;
		assert_int_equal(learner_open(&o, d, src, &w.fz, &l, &e), 0);
		assert_int_equal(learner_write_end(l, true, &e), 0);
		assert_true(*l->pending.name && *l->pending.sha);
		(void)snprintf(path, sizeof path, "%s/incoming/%s/submit.json", w.store, l->pending.name);
		assert_int_equal(access(path, F_OK), 0);
		learner_close(l);
		src->free(src);
		dev_free(d);
		world_done(&w);
	}
	assert_true(killed > 0);
}

/* The disk is full: said to who asked for it, counted, withdrawn; steps go on, and the next is written and waits for the daemon. */
static void not_written(const char *store)
{
	struct world w;
	struct heard h;
	struct answer a;
	char state[300];
	world_init(&w, 4);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	(void)snprintf(w.store, sizeof w.store, "%.120s/%.170s", w.dir, store);
	struct worker *x = begin(&w, state, script(), &h);
	until(x, NULL, "step", 3);
	full = true;
	a.loop = h.loop;
	ask(x, CMD_PUBLISH, &a);
	assert_int_equal(loop_run(h.loop), 0);
	assert_string_equal(a.error, "io.redraft.Busy");
	assert_non_null(strstr(a.text, "No space left"));
	int64_t step = number(x, NULL, "step");
	until(x, NULL, "step", step + 3);
	until(x, "candidate", "failed", 1);
	assert_int_equal(number(x, "pending", "writing"), 0);
	full = false;
	ask(x, CMD_PUBLISH, &a);
	assert_int_equal(loop_run(h.loop), 0);
	assert_string_equal(a.error, "io.redraft.Busy");
	assert_non_null(strstr(a.text, "the candidate is written"));
	until(x, "candidate", "step", step);
	worker_stop(x);
	assert_int_equal(h.n, 0);
	loop_free(h.loop);
	assert_int_equal(entries(state, J_PUBLISH), 2);
	assert_int_equal(entries(state, J_WITHDRAW), 1);
	world_done(&w);
}

#define SOME "\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4"
#define MUCH SOME SOME SOME SOME /* 80 bytes, of two a character */

/* A path that is long and not ASCII is cut inside a character, in one of two: the reason is said all the same, and the status is no older. */
static void test_candidate_not_written(void **unused)
{
	(void)unused;
	not_written("store");
	not_written(MUCH MUCH);
	not_written("x" MUCH MUCH);
}

/* ---- what the daemon says of it ---- */

static struct { int n; uint64_t at[2]; char path[512]; } handed;

/* Busy at first; then no, by a sentence that has the other word in it. */
static void on_submit(void *ctx, struct rpc_call *call, json_t *params)
{
	(void)ctx;
	if (handed.n < 2)
		handed.at[handed.n] = clock_us();
	(void)snprintf(handed.path, sizeof handed.path, "%s", json_string_value(json_object_get(params, "path")));
	if (!handed.n++)
		rpc_error(call, "io.redraft.Busy", "model.safetensors: No space left on device");
	else
		rpc_error(call, "io.redraft.BadVersion", "Busy/model.safetensors is not a file");
}

static void test_daemon_says_no(void **unused)
{
	static const struct rpc_method methods[] = {{"io.redraft.Daemon.Submit", RPC_CONTROL, on_submit}, {NULL, RPC_STATUS, NULL}};
	struct world w;
	struct heard h;
	struct answer a;
	struct rpc_server *s;
	struct errtext e = {""};
	char state[300];
	(void)unused;
	world_init(&w, 4);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	(void)snprintf(daemon_socket, sizeof daemon_socket, "%s/control.sock", w.dir);
	struct worker *x = begin(&w, state, script(), &h);
	assert_int_equal(rpc_server_new(h.loop, w.dir, methods, "interface io.redraft.Daemon\n", NULL, &s, &e), 0);
	until(x, NULL, "step", 3);
	a.loop = h.loop;
	ask(x, CMD_PUBLISH, &a);
	assert_int_equal(loop_run(h.loop), 0);
	assert_string_equal(a.error, "io.redraft.Busy");
	assert_non_null(strstr(a.text, "No space left"));
	assert_int_equal(handed.n, 1);
	for (int i = 0; i < 6000 && handed.n < 2; i++) {
		assert_int_equal(access(handed.path, F_OK), 0);
		run_for(h.loop, 10000);
	}
	assert_int_equal(handed.n, 2);
	assert_true(handed.at[1] - handed.at[0] >= 4000000);
	for (int i = 0; i < 6000 && access(handed.path, F_OK) == 0; i++)
		run_for(h.loop, 10000);
	assert_int_equal(access(handed.path, F_OK), -1);
	worker_stop(x);
	rpc_server_free(s);
	assert_int_equal(h.n, 0);
	loop_free(h.loop);
	daemon_socket[0] = 0;
	assert_int_equal(handed.n, 2);
	assert_int_equal(entries(state, J_PUBLISH), 1);
	assert_int_equal(entries(state, J_WITHDRAW), 1);
	world_done(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_candidate), cmocka_unit_test(test_candidate_put_off), cmocka_unit_test(test_end_loses_no_candidate),
					   cmocka_unit_test(test_candidate_not_written), cmocka_unit_test(test_daemon_says_no)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
