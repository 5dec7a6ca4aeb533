/* The engine around its rounds: what is refused, what waits, what is cancelled, and
 * drafts that misbehave.
 *
 * Requests over the limits are refused by name; a full queue says so; requests whose
 * pages are not free wait and then give the right tokens; cancelled ones (running or
 * waiting) end once, and their pages and seats are free for the next; a draft that produces NaN costs its
 * proposals only; a rollback under load marks requests and changes no token; switches under load fail nothing.
 * Numbers add up. engine_free ends what still runs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <semaphore.h>
#include <cmocka.h>
#include "tests/unit/serve/harness.h"

static struct { struct dev *d[2]; struct llama *target[2]; char dir[4][64]; } toy;

static struct engine *make(int side, int seqs, int kv_tokens, int queue)
{
	struct engine_options o = {.dev = toy.d[side], .target = toy.target[side], .f32_kv = true, .max_seqs = seqs, .max_queue = queue,
				   .max_context = 160, .kv_tokens = kv_tokens, .prefill_chunk = 32, .draft_k = 3, .eog_ids = {2}, .n_eog = 1};
	struct engine *g = NULL;
	struct errtext e = {0};
	if (engine_new(&o, &g, &e))
		fail_msg("engine: %s", e.text);
	return g;
}

static int setup(void **state)
{
	(void)state;
	const enum toy_kind kinds[4] = {TOY_AGREES, TOY_RANDOM, TOY_OVERFLOW, TOY_RANDOM};
	struct errtext e = {0};
	for (int i = 0; i < 2; i++) {
		if (dev_cpu_new(1, ISA_AUTO, &toy.d[i]))
			return -1;
		toy.target[i] = toy_target(toy.d[i], 0.05f, DT_F32);
	}
	for (int i = 0; i < 4; i++) {
		snprintf(toy.dir[i], sizeof toy.dir[i], "/tmp/redraft-engine-%d-%d", (int)getpid(), i);
		if (toy_draft(toy.dir[i], kinds[i], 5 + (uint64_t)i, i == 3 ? 4 : 2, &e)) {
			fprintf(stderr, "%s\n", e.text);
			return -1;
		}
	}
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	int r = 0;
	for (int i = 0; i < 4; i++)
		r |= fs_remove_tree(toy.dir[i]);
	for (int i = 0; i < 2; i++) {
		llama_free(toy.target[i]);
		dev_free(toy.d[i]);
	}
	return r;
}

static void load(struct engine *g, uint32_t version, int dir, bool activate)
{
	char sha[65];
	struct errtext e = {0};
	if (engine_load(g, version, toy.dir[dir], sha, &e) || (activate && engine_activate(g, version, false, 0, &e)))
		fail_msg("%s", e.text);
}

/* ---- what a watchdog sees ---- */

static sem_t stuck, go_on;

static void stuck_tokens(void *arg, const uint32_t *ids, int n)
{
	(void)arg, (void)ids, (void)n;
	sem_post(&stuck);
	sem_wait(&go_on);
}

/* Beats grow through a prompt of several chunks; while the thread is stuck they stand still with work waiting. */
static void beats_tell_work_from_a_stuck_thread(void **state)
{
	(void)state;
	static struct job j;
	struct engine *g = make(0, 1, 160, 4);
	struct engine_request r = {.prompt = j.prompt, .n_prompt = 100, .max_tokens = 1, .request_id = "r", .conversation = "c", .domain = "other",
				   .on_tokens = stuck_tokens, .on_done = job_done, .arg = &j};
	bool busy;
	uint64_t before = engine_beats(g, &busy), at;
	assert_false(busy);
	sem_init(&stuck, 0, 0);
	sem_init(&go_on, 0, 0);
	assert_int_equal(engine_submit(g, &r, &j.handle), 0);
	sem_wait(&stuck);
	at = engine_beats(g, &busy);
	assert_true(busy);
	assert_true(at >= before + 4 * 10); /* four chunks of many operations each */
	usleep(20000);
	assert_int_equal(engine_beats(g, &busy), at);
	assert_true(busy);
	sem_post(&go_on);
	job_wait(&j);
	(void)engine_beats(g, &busy);
	assert_false(busy);
	engine_free(g);
	sem_destroy(&stuck);
	sem_destroy(&go_on);
}

static void check_plain(struct job *jobs, int n)
{
	struct engine *plain = make(1, 1, 160, 64);
	static struct job ref;
	for (int i = 0; i < n; i++) {
		ref = jobs[i];
		ref.ticks = NULL;
		assert_int_equal(job_submit(plain, &ref), 0);
		job_wait(&ref);
		assert_true(job_same(&ref, &jobs[i]));
	}
	engine_free(plain);
}

static void test_refused(void **state)
{
	(void)state;
	struct engine *g = make(0, 2, 64, 4);
	static struct job j;
	job_random(&j, 1, 100, 61);
	assert_int_equal(job_submit(g, &j), ENGINE_E_TOO_LONG); /* over max_context */
	job_random(&j, 1, 40, 25);
	assert_int_equal(job_submit(g, &j), ENGINE_E_TOO_LONG); /* over all the pages there are */
	job_random(&j, 1, 10, 0);
	assert_int_equal(job_submit(g, &j), -EINVAL);
	job_random(&j, 1, 0, 5);
	assert_int_equal(job_submit(g, &j), -EINVAL);
	job_random(&j, 1, 10, 5);
	j.prompt[3] = TOY_V; /* no such token: it must never reach the embedding */
	assert_int_equal(job_submit(g, &j), -EINVAL);
	j.prompt[3] = TOY_V - 1;
	assert_int_equal(job_submit(g, &j), 0);
	job_wait(&j);
	engine_cancel(g, 12345); /* unknown: nothing happens */
	engine_free(g);
}

static void test_queue_full(void **state)
{
	(void)state;
	struct engine *g = make(0, 1, 160, 3);
	static struct job jobs[12];
	int accepted = 0, full = 0;
	atomic_int ticks = 0;
	job_random(&jobs[0], 0, 8, 140);
	jobs[0].ticks = &ticks;
	jobs[0].stall_at = 0;
	jobs[0].ignore_eos = true;
	assert_int_equal(job_submit(g, &jobs[0]), 0);
	ticks_wait(&ticks, 0, jobs, 1);
	for (int i = 1; i < 12; i++) {
		job_random(&jobs[i], (uint64_t)i, 8, 100);
		int r = job_submit(g, &jobs[i]);
		assert_true(r == 0 || r == ENGINE_E_FULL);
		accepted += r == 0;
		full += r == ENGINE_E_FULL;
		if (r)
			jobs[i].max_tokens = 0;
	}
	assert_true(accepted >= 3);
	assert_true(full > 0);
	for (int i = 0; i < 12; i++)
		if (jobs[i].max_tokens)
			job_wait(&jobs[i]);
	engine_free(g);
}

/* Pages for two of the requests at a time, seats for eight: the rest waits for pages. */
static void test_pages_wait(void **state)
{
	(void)state;
	struct engine *g = make(0, 8, 128, 32);
	static struct job jobs[16];
	load(g, 1, 0, true);
	for (int i = 0; i < 16; i++) {
		job_random(&jobs[i], 100 + (uint64_t)i, 20 + i, 28);
		jobs[i].how = (struct sampling){.temperature = i % 2 ? 0.8f : 0, .top_p = 1, .seed = (uint64_t)i};
		assert_int_equal(job_submit(g, &jobs[i]), 0);
	}
	struct engine_status s;
	for (int i = 0; i < 16; i++) {
		job_wait(&jobs[i]);
		engine_status(g, &s);
		assert_true(s.running <= 2);
	}
	engine_free(g);
	check_plain(jobs, 16);
}

static void test_cancel(void **state)
{
	(void)state;
	struct engine *g = make(0, 4, 4 * 160, 64);
	static struct job jobs[24];
	load(g, 1, 0, true);
	for (int round = 0; round < 3; round++) {
		atomic_int ticks = 0;
		for (int i = 0; i < 24; i++) {
			job_random(&jobs[i], (uint64_t)(round * 24 + i), 10 + i, 70);
			jobs[i].ignore_eos = true;
			jobs[i].ticks = &ticks;
			jobs[i].stall_at = 5;
			assert_int_equal(job_submit(g, &jobs[i]), 0);
		}
		ticks_wait(&ticks, 5, jobs, 24);
		for (int i = 0; i < 24; i++)
			if (i % 3)
				engine_cancel(g, jobs[i].handle);
		int cancelled = 0;
		for (int i = 0; i < 24; i++) {
			job_wait(&jobs[i]);
			cancelled += jobs[i].why == FINISH_CANCELLED;
			assert_true(i % 3 || jobs[i].why == FINISH_LENGTH);
			assert_true(jobs[i].why == FINISH_LENGTH || jobs[i].n_out < 70);
		}
		assert_true(cancelled >= 14); /* 16 asked; one or two may have been through already */
	}
	struct engine_status s;
	engine_status(g, &s);
	assert_int_equal(s.running, 0);
	assert_int_equal(s.waiting, 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(s.slots[i].requests, 0);
	for (int i = 0; i < 24; i += 3) /* those that ran through are the last round's: right after all the coming and going */
		check_plain(&jobs[i], 1);
	engine_free(g);
}

static void test_overflowing_draft(void **state)
{
	(void)state;
	struct engine *g = make(0, 4, 4 * 160, 64);
	static struct job jobs[8];
	load(g, 9, 2, true);
	for (int i = 0; i < 8; i++) {
		job_random(&jobs[i], 500 + (uint64_t)i, 12 + i, 30);
		assert_int_equal(job_submit(g, &jobs[i]), 0);
	}
	for (int i = 0; i < 8; i++) {
		job_wait(&jobs[i]);
		assert_true(jobs[i].why != FINISH_ERROR);
		assert_int_equal(jobs[i].stats.proposed, 0);
		assert_int_equal(jobs[i].stats.proposing_rounds, 0);
		assert_true(jobs[i].stats.rounds > 0 || jobs[i].n_out == 1);
	}
	engine_free(g);
	check_plain(jobs, 8);
}

static void test_switch_under_load(void **state)
{
	(void)state;
	struct engine *g = make(0, 8, 8 * 160, 64);
	static struct job jobs[32];
	struct errtext e = {0};
	load(g, 1, 0, true);
	load(g, 2, 1, false);
	for (int i = 0; i < 32; i++) {
		job_random(&jobs[i], 900 + (uint64_t)i, 6 + i, 60);
		jobs[i].how = (struct sampling){.temperature = i % 2 ? 0.7f : 0, .top_p = 1, .seed = (uint64_t)i};
		jobs[i].no_draft = i % 8 == 7;
		assert_int_equal(job_submit(g, &jobs[i]), 0);
	}
	for (int n = 0; n < 20; n++) {
		usleep(1500);
		assert_int_equal(engine_activate(g, n % 5 == 4 ? 0 : 1 + (uint32_t)(n % 2), n % 3 != 0, n % 3 ? 0 : 1, &e), 0);
	}
	int moved = 0;
	for (int i = 0; i < 32; i++) {
		job_wait(&jobs[i]);
		moved += jobs[i].stats.n_versions > 1;
		assert_true(jobs[i].stats.accepted <= jobs[i].stats.proposed);
		if (jobs[i].no_draft) {
			assert_int_equal(jobs[i].stats.proposed, 0);
			assert_int_equal(jobs[i].stats.versions[0], 0);
		}
	}
	assert_true(moved > 0);
	engine_free(g);
	check_plain(jobs, 32);
}

static void test_numbers(void **state)
{
	(void)state;
	struct engine *g = make(0, 2, 320, 8);
	static struct job jobs[6];
	uint64_t out = 0, in = 0, rounds = 0, proposed = 0, accepted = 0, proposing = 0;
	load(g, 3, 0, true);
	for (int i = 0; i < 6; i++) {
		job_random(&jobs[i], 40 + (uint64_t)i, 15, 25);
		assert_int_equal(job_submit(g, &jobs[i]), 0);
	}
	for (int i = 0; i < 6; i++) {
		job_wait(&jobs[i]);
		const struct request_stats *s = &jobs[i].stats;
		out += (uint64_t)jobs[i].n_out;
		in += 15;
		rounds += s->rounds;
		proposed += s->proposed;
		accepted += s->accepted;
		proposing += s->proposing_rounds;
		assert_int_equal(jobs[i].groups, (int)s->rounds + 1); /* the prompt's own token comes alone */
		if (jobs[i].why == FINISH_LENGTH)
			assert_int_equal(jobs[i].n_out, 1 + (int)s->rounds + (int)s->accepted);
	}
	struct engine_status s;
	engine_status(g, &s);
	assert_int_equal(s.tokens_generated, out);
	assert_int_equal(s.tokens_prompt, in);
	assert_int_equal(s.rounds, rounds);
	assert_int_equal(s.proposed, proposed);
	assert_int_equal(s.accepted, accepted);
	assert_int_equal(s.proposing_rounds, proposing);
	assert_int_equal(s.proposed_at[0], proposing);
	uint64_t at = 0, p_at = 0;
	for (int i = 0; i < ENGINE_MAX_K; i++) {
		at += s.accepted_at[i];
		p_at += s.proposed_at[i];
		assert_true(i == 0 || s.accepted_at[i] <= s.accepted_at[i - 1]);
	}
	assert_int_equal(at, accepted);
	assert_int_equal(p_at, proposed);
	assert_true(accepted > 0);
	assert_true(s.round_ms_p95 >= s.round_ms_p50 && s.round_ms_p50 > 0 && s.max_gap_ms > 0);
	assert_int_equal(s.live, 3);
	engine_free(g);
}

static void test_free_ends_all(void **state)
{
	(void)state;
	struct engine *g = make(0, 2, 320, 8);
	static struct job jobs[8];
	load(g, 1, 0, true);
	for (int i = 0; i < 8; i++) {
		job_random(&jobs[i], 70 + (uint64_t)i, 15, 140);
		jobs[i].ignore_eos = true;
		assert_int_equal(job_submit(g, &jobs[i]), 0);
	}
	engine_free(g);
	for (int i = 0; i < 8; i++) {
		assert_int_equal(atomic_load(&jobs[i].done), 1);
		assert_true(jobs[i].why == FINISH_CANCELLED || jobs[i].why == FINISH_LENGTH);
	}
}

static void test_bad_options(void **state)
{
	(void)state;
	struct engine_options good = {.dev = toy.d[0], .target = toy.target[0], .max_seqs = 1, .max_queue = 1, .max_context = 64, .kv_tokens = 64,
				      .prefill_chunk = 8, .draft_k = 1}, bad[5];
	for (int i = 0; i < 5; i++)
		bad[i] = good;
	bad[0].max_seqs = ENGINE_MAX_SEQS + 1;
	bad[1].draft_k = ENGINE_MAX_K + 1;
	bad[2].prefill_chunk = 0;
	bad[3].kv_tokens = 8;
	bad[4].n_eog = 9;
	for (int i = 0; i < 5; i++) {
		struct engine *g = NULL;
		struct errtext e = {0};
		assert_int_equal(engine_new(&bad[i], &g, &e), -EINVAL);
		assert_null(g);
		assert_true(strlen(e.text) > 10);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(beats_tell_work_from_a_stuck_thread), cmocka_unit_test(test_refused), cmocka_unit_test(test_queue_full), cmocka_unit_test(test_pages_wait), cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_overflowing_draft), cmocka_unit_test(test_switch_under_load), cmocka_unit_test(test_numbers),
		cmocka_unit_test(test_free_ends_all), cmocka_unit_test(test_bad_options),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
