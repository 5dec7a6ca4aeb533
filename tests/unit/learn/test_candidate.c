/* A candidate does not stop training: its weights are those of its entry's place in the journal, whatever is trained while they are written. Killed
 * meanwhile it is written again, once it is there it is not; a checkpoint, a Rebase, a withdrawal and the end wait for it. One that cannot be written is said
 * and counted, and changes nothing of what is trained.
 *
 * What its weights must hash to is taken from a folder written by the test before the entry. */
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include "tests/unit/learn/held_writer.h"

static void expect(struct learner *l, char ret_sha[static 65])
{
	char dir[400];
	struct errtext e = {""};
	json_t *nothing = json_object();
	(void)snprintf(dir, sizeof dir, "%s/expected", w.dir);
	assert_int_equal(publish_write_folder(dir, &l->file, l->d2t, learner_draft(l), &w.fz, nothing, ret_sha, &e), 0);
	json_decref(nothing);
}

/* Begins one and returns when its writer is held. */
static void publish_held(struct learner *l, char ret_sha[static 65])
{
	struct errtext e = {""};
	expect(l, ret_sha);
	hold = true;
	assert_int_equal(learner_publish(l, &e), 0);
	assert_true(l->pending.writing && l->saving);
	for (bool there = false; !there; (void)usleep(1000)) {
		pthread_mutex_lock(&lock);
		there = held;
		pthread_mutex_unlock(&lock);
	}
	assert_int_equal(learner_write_end(l, false, &e), LEARNER_E_WRITING);
}

static void incoming(const char *name, const char *file, char ret[static 512])
{
	(void)snprintf(ret, 512, "%s/incoming/%s/%s", w.store, name, file);
}

/* submit.json of incoming/<name>; NULL: it is not there. */
static json_t *submission(const char *name)
{
	char path[512];
	incoming(name, "submit.json", path);
	return json_load_file(path, 0, NULL);
}

/* Its folder is whole and says so, of that step. */
static void there(const char *name, const char *sha, int64_t step)
{
	char dir[512], is[65];
	struct draft_files *f = NULL;
	struct errtext e = {""};
	json_t *j = submission(name);
	assert_non_null(j);
	assert_string_equal(json_string_value(json_object_get(j, "weights_sha")), sha);
	assert_int_equal(json_integer_value(json_object_get(json_object_get(j, "training"), "step")), step);
	json_decref(j);
	incoming(name, "", dir);
	assert_int_equal(draft_open(dir, w.fz.n_layer, &f, &e), 0);
	assert_int_equal(draft_weights_sha(f, is), 0);
	draft_close(f);
	assert_string_equal(is, sha);
}

static void test_steps_go_on(void **s)
{
	for (int average = 0; average < 2; average++) {
		struct errtext e = {""};
		char sha[65], name[96];
		assert_int_equal(held_setup(s), 0);
		w.muon = average;
		struct learner *l = begun();
		publish_held(l, sha);
		memcpy(name, l->pending.name, sizeof name);
		assert_true(learner_copy_bytes(l) >= l->o.kind->n_params(l->t) * sizeof(real));
		steps(l, 4);
		assert_int_equal(entry(l, J_DRIFT, 0, ""), 0);
		assert_true(held); /* all the while */
		assert_null(submission(name));
		assert_string_equal(l->pending.sha, "");
		assert_int_equal(learner_write_end(l, true, &e), 0);
		assert_false(l->pending.writing);
		assert_string_equal(l->pending.sha, sha);
		assert_int_equal(l->candidate.step, 3);
		assert_int_equal(learner_copy_bytes(l), 0);
		there(name, sha, 3);
		char now[65];
		expect(l, now);
		assert_string_not_equal(now, sha); /* those steps did train */
		learner_close(l);
		assert_int_equal(held_teardown(s), 0);
	}
}

/* A checkpoint behind the entry is of a state in which the folder is there: that entry is not applied again. */
static void test_checkpoint_waits(void **s)
{
	struct learner *l = begun();
	struct errtext e = {""};
	char sha[65], name[96];
	(void)s;
	publish_held(l, sha);
	memcpy(name, l->pending.name, sizeof name);
	steps(l, 1);
	assert_int_equal(learner_checkpoint(l, &e), 0);
	there(name, sha, 3);
	assert_string_equal(l->pending.sha, sha);
	learner_close(l);
	l = opened();
	assert_string_equal(l->pending.name, name);
	assert_string_equal(l->pending.sha, sha);
	assert_false(l->pending.writing);
	learner_close(l);
}

/* A publish while a checkpoint is being made comes behind it. */
static void test_waits_for_checkpoint(void **s)
{
	struct learner *l = begun();
	struct errtext e = {""};
	char sha[65];
	int64_t serial = l->serial;
	(void)s;
	assert_int_equal(learner_checkpoint_begin(l, &e), 0);
	expect(l, sha);
	assert_int_equal(learner_publish(l, &e), 0);
	assert_int_equal(l->serial, serial + 1);
	learner_close(l);
	l = opened(); /* from that checkpoint, which is before the entry */
	assert_int_equal(learner_write_end(l, true, &e), 0);
	assert_string_equal(l->pending.sha, sha);
	learner_close(l);
}

/* Killed between the copy and the folder: the next start writes the same bits. Killed when it is there: it is found. Numbered, it is not offered again. */
static void test_killed(void **s)
{
	struct errtext e = {""};
	char *sha = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), path[512];
	(void)s;
	pid_t pid = fork();
	if (!pid) {
		struct learner *l = begun();
		publish_held(l, sha);
		steps(l, 3);
		_exit(137);
	}
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 137);
	for (int i = 0; i < 2; i++) {
		struct learner *l = opened();
		assert_int_equal(l->pending.writing, i == 0);
		assert_int_equal(l->step, 6);
		assert_int_equal(learner_write_end(l, true, &e), 0);
		assert_string_equal(l->pending.sha, sha);
		there(l->pending.name, sha, 3);
		learner_close(l);
	}
	struct learner *l = opened();
	char name[96];
	memcpy(name, l->pending.name, sizeof name);
	assert_int_equal(entry(l, J_SUBMITTED, accept_candidate(&w, name, 7), ""), 0);
	learner_close(l);
	l = opened(); /* from before the entry still */
	assert_int_equal(l->pending.version, 7);
	assert_false(l->pending.writing);
	incoming(name, "", path);
	assert_int_not_equal(access(path, F_OK), 0);
	learner_close(l);
	assert_int_equal(entries(state, J_PUBLISH), 1);
	assert_int_equal(entries(state, J_SUBMITTED), 1);
	munmap(sha, 4096);
}

static void test_end_waits(void **s)
{
	struct learner *l = begun();
	char sha[65], name[96];
	(void)s;
	publish_held(l, sha);
	memcpy(name, l->pending.name, sizeof name);
	learner_close(l);
	there(name, sha, 3);
}

/* What the daemon asks meanwhile: a Rebase waits, and the candidate keeps its weights; a withdrawal waits and leaves nothing behind. */
static void test_commands(void **s)
{
	struct learner *l = begun();
	struct errtext e = {""};
	char sha[65], name[96], path[512];
	(void)s;
	publish(l);
	assert_int_equal(entry(l, J_SUBMITTED, accept_candidate(&w, l->pending.name, 1), ""), 0);
	assert_int_equal(entry(l, J_VERDICT, 1, "rejected: test"), 0);
	steps(l, 1);
	publish_held(l, sha);
	memcpy(name, l->pending.name, sizeof name);
	steps(l, 1);
	assert_int_equal(entry(l, J_PAUSE, 0, ""), 0);
	assert_int_equal(entry(l, J_RESUME, 0, ""), 0);
	assert_true(held);
	assert_int_equal(learner_rebase(l, 1, &e), 0);
	there(name, sha, 4);
	assert_true(l->pending.left && !l->pending.writing);
	assert_string_equal(l->pending.sha, sha);
	assert_int_equal(l->base, 1);
	assert_int_equal(entry(l, J_SUBMITTED, accept_candidate(&w, name, 2), ""), 0);
	assert_int_equal(l->base, 1);
	assert_int_equal(entry(l, J_VERDICT, 2, "superseded"), 0);
	steps(l, 1);
	publish_held(l, sha);
	memcpy(name, l->pending.name, sizeof name);
	assert_int_equal(entry(l, J_WITHDRAW, 0, ""), 0);
	incoming(name, "", path);
	assert_int_not_equal(access(path, F_OK), 0);
	assert_string_equal(l->pending.name, "");
	assert_null(l->saving);
	learner_close(l);
}

/* A full disk: steps go on, and come to the weights that they would have come to. */
static void test_not_written(void **s)
{
	struct errtext e = {""};
	char sha[65], name[96], path[512], was[65], is[65];
	struct learner *l = begun();
	(void)s;
	full = true;
	publish_held(l, sha);
	memcpy(name, l->pending.name, sizeof name);
	steps(l, 2);
	let_go();
	assert_int_equal(learner_write_end(l, true, &e), 0); /* no checkpoint failed */
	full = false;
	assert_false(l->pending.writing);
	assert_string_equal(l->pending.name, name);
	assert_string_equal(l->pending.sha, "");
	assert_int_equal(l->candidate.failed, 1);
	assert_non_null(strstr(l->candidate.error, "No space left"));
	assert_null(submission(name));
	steps(l, 1);
	assert_int_equal(learner_checkpoint(l, &e), 0);
	learner_weights_sha(l, was);
	learner_close(l);
	l = opened(); /* it still says so */
	learner_weights_sha(l, is);
	assert_string_equal(was, is);
	assert_string_equal(l->pending.name, name);
	assert_string_equal(l->pending.sha, "");
	assert_false(l->pending.writing);
	assert_int_equal(entry(l, J_WITHDRAW, 0, ""), 0);
	incoming(name, "", path);
	assert_int_not_equal(access(path, F_OK), 0);
	publish(l);
	there(l->pending.name, l->pending.sha, 6);
	assert_string_equal(l->candidate.error, "");
	learner_close(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_steps_go_on), cmocka_unit_test_setup_teardown(test_checkpoint_waits, held_setup, held_teardown),
		cmocka_unit_test_setup_teardown(test_waits_for_checkpoint, held_setup, held_teardown), cmocka_unit_test_setup_teardown(test_killed, held_setup, held_teardown),
		cmocka_unit_test_setup_teardown(test_end_waits, held_setup, held_teardown), cmocka_unit_test_setup_teardown(test_commands, held_setup, held_teardown),
		cmocka_unit_test_setup_teardown(test_not_written, held_setup, held_teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
