/* Who is served when, and who gives way.
 *
 * One seat: a client's second request comes before another's seventh; a higher priority takes the seat and
 * the one that lost it answers as if nothing had happened. A short prompt overtakes a long one. Requests past
 * their deadline end so, waiting or running; a drain lets what was taken end, waiting or running, until its limit, and
 * refuses new ones. With memory for one long request four of them end, the first first, each with
 * its plain tokens; without need nobody's memory is reserved. A draw of clients, priorities, sizes and cancels
 * ends with every page free. The row budget keeps a mixed round under its bound whatever a row costs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "daemon/base/clock.h"
#include "serve/budget.h"
#include "serve/told.h"
#include "tests/unit/serve/harness.h"

static struct { struct dev *d[2]; struct llama *target[2]; char dir[64]; } toy;

static int setup(void **state)
{
	(void)state;
	struct errtext e = {0};
	for (int i = 0; i < 2; i++) {
		if (dev_cpu_new(1, ISA_AUTO, &toy.d[i]))
			return -1;
		toy.target[i] = toy_target(toy.d[i], 0.05f, DT_F32);
	}
	snprintf(toy.dir, sizeof toy.dir, "/tmp/redraft-admit-%d", (int)getpid());
	return toy_draft(toy.dir, TOY_AGREES, 5, 2, &e);
}

static int teardown(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		llama_free(toy.target[i]);
		dev_free(toy.d[i]);
	}
	return fs_remove_tree(toy.dir);
}

static struct engine *make(int side, int seqs, int kv_tokens, int chunk, enum prefix_sharing prefix)
{
	struct engine_options o = {.dev = toy.d[side], .target = toy.target[side], .f32_kv = true, .max_seqs = seqs, .max_queue = 64,
				   .max_context = 160, .kv_tokens = kv_tokens, .prefix = prefix, .prefill_chunk = chunk, .draft_k = 3,
				   .eog_ids = {2}, .n_eog = 1};
	struct engine *g = NULL;
	struct errtext e = {0};
	char sha[65];
	if (engine_new(&o, &g, &e) || (side == 0 && (engine_load(g, 1, toy.dir, sha, &e) || engine_activate(g, 1, false, 0, &e))))
		fail_msg("engine: %s", e.text);
	return g;
}

static void check_plain(struct job *jobs, int n)
{
	struct engine *plain = make(1, 1, 160, 64, PREFIX_OFF);
	static struct job ref;
	for (int i = 0; i < n; i++) {
		ref = jobs[i];
		ref.hold = NULL;
		ref.deadline_us = 0;
		assert_int_equal(job_submit(plain, &ref), 0);
		job_wait(&ref);
		int at = 0;
		while (at < ref.n_out && at < jobs[i].n_out && ref.out[at] == jobs[i].out[at])
			at++;
		if (!job_same(&ref, &jobs[i]))
			fail_msg("job %d: %d tokens (end %d) for %d (end %d), differ at %d", i, jobs[i].n_out, jobs[i].why, ref.n_out, ref.why, at);
	}
	engine_free(plain);
}

static atomic_int hold;

/* Has the seat and keeps the engine at its first tokens until hold is 0, so that others can be queued behind it. */
static void occupy(struct engine *g, struct job *j, int max_tokens)
{
	atomic_store(&hold, 1);
	job_random(j, 1, 8, max_tokens);
	j->hold = &hold;
	j->ignore_eos = true;
	j->client = 9;
	assert_int_equal(job_submit(g, j), 0);
	for (struct engine_status s = {0}; !s.running; engine_status(g, &s))
		usleep(200);
}

static void test_clients(void **state)
{
	(void)state;
	struct engine *g = make(0, 1, 160, 32, PREFIX_TENANT);
	static struct job jobs[9];
	int before = 0;
	occupy(g, &jobs[0], 120);
	for (int i = 1; i < 9; i++) {
		job_random(&jobs[i], (uint64_t)i, 12, 10);
		jobs[i].client = i < 7 ? 1 : 2;
		jobs[i].ignore_eos = true;
		assert_int_equal(job_submit(g, &jobs[i]), 0);
	}
	atomic_store(&hold, 0);
	for (int i = 0; i < 9; i++)
		job_wait(&jobs[i]);
	for (int i = 1; i < 7; i++)
		before += jobs[i].done_at < jobs[8].done_at;
	assert_true(before <= 2); /* the last of client 2 waited for at most two of client 1's six */
	for (int i = 2; i < 7; i++)
		assert_true(jobs[i].done_at > jobs[i - 1].done_at); /* of one client: as they came */
	engine_free(g);
	check_plain(jobs, 9);
}

static void test_priority(void **state)
{
	(void)state;
	struct engine *g = make(0, 1, 320, 32, PREFIX_TENANT);
	static struct job jobs[5];
	struct engine_status s;
	occupy(g, &jobs[0], 140);
	const int priorities[5] = {0, -2, 0, 2, 99};
	for (int i = 1; i < 5; i++) {
		job_random(&jobs[i], (uint64_t)i, 12, 10);
		jobs[i].client = 1;
		jobs[i].priority = priorities[i];
		assert_int_equal(job_submit(g, &jobs[i]), 0);
	}
	atomic_store(&hold, 0);
	for (int i = 0; i < 5; i++)
		job_wait(&jobs[i]);
	assert_true(jobs[3].done_at < jobs[4].done_at); /* 99 is cut to the highest, and first come is first served */
	assert_true(jobs[4].done_at < jobs[0].done_at); /* which had the seat, rested, and has it before the others */
	assert_true(jobs[0].done_at < jobs[2].done_at);
	assert_true(jobs[2].done_at < jobs[1].done_at);
	engine_status(g, &s);
	assert_true(s.preemptions >= 1);
	engine_free(g);
	check_plain(jobs, 5);
}

static void test_short_prompt(void **state)
{
	(void)state;
	struct engine *g = make(0, 4, 640, 8, PREFIX_OFF);
	static struct job jobs[3];
	occupy(g, &jobs[0], 2);
	job_random(&jobs[1], 5, 140, 4);
	job_random(&jobs[2], 6, 10, 4);
	assert_int_equal(job_submit(g, &jobs[1]), 0);
	assert_int_equal(job_submit(g, &jobs[2]), 0);
	atomic_store(&hold, 0);
	for (int i = 0; i < 3; i++)
		job_wait(&jobs[i]);
	assert_true(jobs[2].first_at < jobs[1].first_at);
	engine_free(g);
	check_plain(jobs, 3);
}

static void test_deadline(void **state)
{
	(void)state;
	struct engine *g = make(0, 1, 160, 32, PREFIX_OFF);
	static struct job jobs[3];
	struct engine_status s;
	occupy(g, &jobs[0], 20);
	for (int i = 1; i < 3; i++) {
		job_random(&jobs[i], (uint64_t)i, 12, 10);
		jobs[i].deadline_us = i == 1 ? 1 : 0;
		assert_int_equal(job_submit(g, &jobs[i]), 0);
	}
	atomic_store(&hold, 0);
	for (int i = 0; i < 3; i++)
		job_wait(&jobs[i]);
	assert_int_equal(jobs[1].why, FINISH_DEADLINE);
	assert_int_equal(jobs[1].n_out, 0);
	assert_true(jobs[2].why == FINISH_LENGTH || jobs[2].why == FINISH_STOP);
	job_random(&jobs[0], 1, 8, 150); /* running past it: held until it is over */
	jobs[0].hold = &hold;
	jobs[0].ignore_eos = true;
	jobs[0].deadline_us = clock_us() + 20000;
	atomic_store(&hold, 1);
	assert_int_equal(job_submit(g, &jobs[0]), 0);
	usleep(25000);
	atomic_store(&hold, 0);
	job_wait(&jobs[0]);
	assert_int_equal(jobs[0].why, FINISH_DEADLINE);
	assert_true(jobs[0].n_out < 150);
	engine_status(g, &s);
	assert_int_equal(s.pages_free, s.pages);
	engine_free(g);
}

static void test_drain(void **state)
{
	(void)state;
	for (int late = 0; late < 2; late++) {
		struct engine *g = make(0, 1, 160, 32, PREFIX_TENANT);
		static struct job jobs[4];
		occupy(g, &jobs[0], 150);
		for (int i = 1; i < 3; i++) {
			job_random(&jobs[i], (uint64_t)i, 12, 10);
			assert_int_equal(job_submit(g, &jobs[i]), 0);
		}
		engine_drain(g, clock_us() + (late ? 0 : 60000000));
		job_random(&jobs[3], 3, 12, 10);
		assert_int_equal(job_submit(g, &jobs[3]), -ECANCELED);
		atomic_store(&hold, 0);
		for (int i = 0; i < 3; i++)
			job_wait(&jobs[i]);
		for (int i = 0; i < 3; i++)
			assert_int_equal(jobs[i].why, late ? FINISH_CANCELLED : FINISH_LENGTH);
		assert_true(!late || jobs[2].n_out == 0);
		engine_free(g);
	}
}

/* Memory for one of them. */
static void test_no_room(void **state)
{
	(void)state;
	for (int prefix = 0; prefix < 2; prefix++) {
		struct engine *g = make(0, 4, 160, 32, (enum prefix_sharing)prefix);
		static struct job jobs[4];
		struct engine_status s;
		for (int i = 0; i < 4; i++) {
			job_random(&jobs[i], 40 + (uint64_t)i, 20, 140);
			jobs[i].how = (struct sampling){.temperature = i % 2 ? 0.8f : 0, .top_p = 1, .seed = (uint64_t)i};
			jobs[i].ignore_eos = true;
			assert_int_equal(job_submit(g, &jobs[i]), 0);
		}
		for (int i = 0; i < 4; i++) {
			job_wait(&jobs[i]);
			assert_int_equal(jobs[i].why, FINISH_LENGTH);
			assert_true(i == 0 || jobs[i].done_at > jobs[i - 1].done_at);
		}
		engine_status(g, &s);
		assert_true(s.preemptions >= 2);
		assert_int_equal(s.pages_free + s.pages_cached, s.pages);
		engine_free(g);
		check_plain(jobs, 4);
	}
}

/* Eight that may each ask for half of the memory run together as long as they do not. */
static void test_not_reserved(void **state)
{
	(void)state;
	struct engine *g = make(0, 8, 320, 64, PREFIX_OFF);
	static struct job jobs[9];
	atomic_store(&hold, 1);
	for (int i = 0; i < 8; i++) {
		job_random(&jobs[i], (uint64_t)i, 5, 150);
		jobs[i].hold = &hold;
		jobs[i].ignore_eos = true;
		assert_int_equal(job_submit(g, &jobs[i]), 0);
	}
	atomic_store(&hold, 0);
	for (int i = 0; i < 8; i++)
		job_wait(&jobs[i]);
	int began = 0, ended = jobs[0].done_at;
	for (int i = 0; i < 8; i++)
		ended = jobs[i].done_at < ended ? jobs[i].done_at : ended;
	for (int i = 0; i < 8; i++)
		began += jobs[i].first_at < ended;
	assert_true(began >= 5);
	engine_free(g);
	check_plain(jobs, 8);
}

static void test_everything(void **state)
{
	(void)state;
	struct engine *g = make(0, 4, 256, 16, PREFIX_ALL);
	static struct job jobs[64];
	struct engine_status s;
	int cancelled = 0;
	for (int i = 0; i < 64; i++) {
		uint64_t r = toy_mix(99 + (uint64_t)i);
		job_random(&jobs[i], i % 3 ? 7 : (uint64_t)i, 40 + (int)(r % 60), 1 + (int)(r >> 8 & 63)); /* two of three begin alike */
		jobs[i].client = (int)(r >> 16 & 7);
		jobs[i].priority = (int)(r >> 20 & 3) - 2;
		assert_int_equal(job_submit(g, &jobs[i]), 0);
		if (i % 5 == 4)
			engine_cancel(g, jobs[i - (int)(r >> 24 & 3)].handle);
	}
	for (int i = 0; i < 64; i++) {
		job_wait(&jobs[i]);
		cancelled += jobs[i].why == FINISH_CANCELLED;
		if (jobs[i].why != FINISH_CANCELLED && i % 4 == 0)
			check_plain(&jobs[i], 1);
	}
	engine_status(g, &s);
	assert_true(cancelled > 0 && s.prefix_reused > 1000 && s.evictions > 0);
	assert_int_equal(s.running + s.waiting, 0);
	assert_int_equal(s.pages_free + s.pages_cached, s.pages);
	engine_free(g);
}

static void test_budget(void **state)
{
	(void)state;
	const double rows_ms[3] = {0.2, 2, 30}; /* what a row costs; and it changes under way */
	struct budget b = {.slowdown = 2};
	assert_int_equal(budget_rows(&b, 0, 0, 128), 128); /* nobody decodes */
	for (int c = 0; c < 3; c++) {
		int over = 0, nothing = 0, most = 0;
		for (int round = 0; round < 400; round++) {
			int rows = budget_rows(&b, 6, 6, 128);
			double ms = 20 + rows * rows_ms[c];
			budget_learn(&b, 6, rows, ms);
			over += ms > 20 * 2.25 && rows > BUDGET_LEAST;
			nothing += rows == 0;
			most = rows > most ? rows : most;
		}
		assert_true(over < 20); /* until it has learned what a row costs now */
		assert_true(nothing >= 10 && nothing <= 14); /* the yardstick is looked at again, seldom */
		assert_true(c != 0 || most >= 90);
	}
	assert_int_equal(budget_rows(&b, 0, 0, 128), 128);
	assert_true(budget_rows(&b, 200, 200, 128) >= BUDGET_LEAST); /* a size not met before */
}

/* One decodes and fifteen read: it may be slowed to twice what it takes when all sixteen decode, and no more than that. */
static void test_budget_fair(void **state)
{
	(void)state;
	struct budget b = {.slowdown = 2};
	for (int i = 0; i < 100; i++) {
		budget_learn(&b, 1, 0, 10);
		budget_learn(&b, 1, 10, 10 + 10 * 2);
	}
	assert_int_equal(budget_rows(&b, 1, 1, 128), 5);
	assert_int_equal(budget_rows(&b, 1, 11, 128), (2 * 30 - 10) / 2); /* eleven never decoded together: one and ten rows more */
	for (int i = 0; i < 100; i++)
		budget_learn(&b, 16, 0, 40);
	assert_int_equal(budget_rows(&b, 1, 16, 128), (2 * 40 - 10) / 2);
	assert_int_equal(budget_rows(&b, 16, 16, 128), 20);
	assert_int_equal(budget_rows(&b, 16, 1, 128), 20);
}

static void test_told(void **state)
{
	(void)state;
	struct told t;
	uint64_t path[8] = {1, 2, 3, 4, 5, 6, 7, 8};
	assert_int_equal(told_init(&t, 20), 0);
	told_note(&t, 5, "a", path, 8);
	told_note(&t, 6, "b", path, 8);
	assert_string_equal(told_find(&t, 5)->request, "a");
	told_note(&t, 5, "c", path, 3); /* the newest of a conversation counts */
	assert_int_equal(told_find(&t, 5)->n, 3);
	told_note(&t, 7, "d", path, 8);
	assert_non_null(told_find(&t, 6));
	told_note(&t, 8, "e", path, 8); /* over the limit: 6 was heard of longest ago */
	assert_null(told_find(&t, 6));
	assert_int_equal(told_find(&t, 8)->path[7], 8);
	told_note(&t, 9, "f", path, 0);
	assert_null(told_find(&t, 9));
	for (uint64_t i = 0; i < 3000; i++)
		told_note(&t, 100 + i, "x", path, 1);
	assert_true(t.n_paths <= 20);
	told_done(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_clients), cmocka_unit_test(test_priority), cmocka_unit_test(test_short_prompt), cmocka_unit_test(test_deadline),
		cmocka_unit_test(test_drain), cmocka_unit_test(test_no_room), cmocka_unit_test(test_not_reserved), cmocka_unit_test(test_everything),
		cmocka_unit_test(test_budget),
		cmocka_unit_test(test_budget_fair), cmocka_unit_test(test_told),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
