/* The compute thread says how it ended, whoever ended it: a stop that goes well is no news and leaves a checkpoint; a last
 * checkpoint that cannot be written is said by worker_stop, as the loop runs no more; bad state is said through the loop. Each once. A version that
 * cannot be read ends nothing. What becomes of a candidate: test_worker_candidate.c.
 */
#include "tests/unit/learn/worker_kit.h"

static void test_stop(void **unused)
{
	struct world w;
	struct heard h;
	char state[300], dir[400];
	(void)unused;
	world_init(&w, 4);
	(void)snprintf(state, sizeof state, "%s/well", w.dir);
	(void)snprintf(dir, sizeof dir, "%s/checkpoint", state);
	struct worker *x = begin(&w, state, no_source(), &h);
	until_it_turns(x);
	worker_stop(x);
	assert_int_equal(h.n, 0);
	assert_int_equal(access(dir, F_OK), 0);
	loop_free(h.loop);

	x = begin(&w, state, no_source(), &h);
	until_it_turns(x);
	assert_int_equal(fs_remove_tree(dir), 0);
	assert_int_equal(fs_write_atomic(dir, "in the way", 10), 0);
	worker_stop(x);
	assert_int_equal(h.n, 1);
	assert_int_equal(h.code, 1);
	assert_non_null(strstr(h.text, "checkpoint"));
	loop_free(h.loop);
	world_done(&w);
}

static void test_bad_state(void **unused)
{
	struct world w;
	struct heard h;
	char state[300];
	(void)unused;
	world_init(&w, 4);
	(void)snprintf(state, sizeof state, "%s/bad", w.dir);
	assert_int_equal(fs_write_atomic(state, "no folder", 9), 0);
	struct worker *x = begin(&w, state, no_source(), &h);
	assert_int_equal(loop_run(h.loop), 0); /* until it has said so */
	worker_stop(x);
	assert_int_equal(h.n, 1);
	assert_int_equal(h.code, 2);
	assert_true(h.text[0] != 0);
	loop_free(h.loop);
	world_done(&w);
}

/* A version whose files are not what they should be is no reason to end: who asked is told, and asks no more. */
static void test_rebase_to_what_cannot_be_read(void **unused)
{
	static const char zeros[4096];
	struct world w;
	struct heard h;
	struct answer a;
	char state[300], path[512];
	(void)unused;
	world_init(&w, 4);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	(void)snprintf(path, sizeof path, "%s/versions/7", w.store);
	assert_int_equal(fs_mkdirs(path), 0);
	(void)snprintf(path, sizeof path, "%s/versions/7/manifest.json", w.store);
	struct worker *x = begin(&w, state, script(), &h);
	until(x, NULL, "step", 3);
	for (int i = 0; i < 3; i++) {
		if (i < 2)
			assert_int_equal(fs_write_atomic(path, i ? zeros : "{", i ? sizeof zeros : 1), 0);
		else /* it can be opened, and not read */
			assert_true(unlink(path) == 0 && mkdir(path, 0700) == 0);
		struct command c = {.kind = CMD_REBASE, .version = 7, .done = on_answer, .arg = &a, .pace = quiet};
		a = (struct answer){.loop = h.loop};
		assert_int_equal(worker_post(x, &c), 0);
		assert_int_equal(loop_run(h.loop), 0);
		assert_string_equal(a.error, "io.redraft.BadVersion");
	}
	until(x, NULL, "step", number(x, NULL, "step") + 2);
	worker_stop(x);
	assert_int_equal(h.n, 0);
	loop_free(h.loop);
	world_done(&w);
}

/* Questions about a version that is not there are answered, and end nothing. */
static void test_questions_about_what_is_not_there(void **unused)
{
	static const enum command_kind asked[] = {CMD_EVALUATE, CMD_COMPARE, CMD_REPLAY};
	struct world w;
	struct heard h;
	struct answer a;
	char state[300];
	(void)unused;
	world_init(&w, 4);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	struct worker *x = begin(&w, state, script(), &h);
	until(x, NULL, "step", 3);
	a.loop = h.loop;
	for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
		ask(x, asked[i], &a);
		assert_int_equal(loop_run(h.loop), 0);
		assert_int_equal(a.n, 1);
		assert_string_equal(a.error, "io.redraft.BadVersion");
		assert_true(a.text[0] != 0);
	}
	until(x, NULL, "step", number(x, NULL, "step") + 2);
	worker_stop(x);
	assert_int_equal(h.n, 0);
	loop_free(h.loop);
	world_done(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_stop), cmocka_unit_test(test_bad_state), cmocka_unit_test(test_rebase_to_what_cannot_be_read),
					   cmocka_unit_test(test_questions_about_what_is_not_there)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
