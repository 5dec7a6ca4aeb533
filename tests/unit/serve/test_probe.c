/* Probes: what is told of features moves when they are shifted, swapped or of another prompt, and not for rounding; a probe is
 * drafted by the version that was named, whatever is live and whoever shares the batch, gives the same numbers each time, and is in no
 * count that users see.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "serve/probe.h"
#include "tests/unit/serve/harness.h"

enum { ROWS = 20, H = 64, W = 3 * H };

static double distance(const struct probe *a, const struct probe *b, int boundary)
{
	double sum = 0;

	for (int k = 0; k < PROBE_SIGNS; k++) {
		double d = probe_projection(a, boundary, k) - probe_projection(b, boundary, k);
		sum += d * d;
	}
	return sqrt(sum / PROBE_SIGNS) / probe_rms(a, boundary);
}

static void statistics(void **state)
{
	static real f[(ROWS + 1) * W], g[(ROWS + 1) * W];
	struct probe was = {.values = 0}, same = {.values = 0}, shifted = {.values = 0}, swapped = {.values = 0}, rounded = {.values = 0};

	(void)state;
	for (int i = 0; i < (ROWS + 1) * W; i++)
		f[i] = (real)toy_noise(5, (uint64_t)i);
	probe_rows(&was, 0, ROWS, f + W, H);
	probe_rows(&same, 0, 7, f + W, H); /* in two chunks */
	probe_rows(&same, 7, ROWS - 7, f + 8 * W, H);
	probe_rows(&same, 5, 6, f + 6 * W, H); /* read again after it gave way: counted once */
	probe_rows(&shifted, 0, ROWS, f, H);
	for (int i = 0; i < (ROWS + 1) * W; i++)
		g[i] = i % W >= 2 * H ? f[i - 2 * H] : f[i];
	probe_rows(&swapped, 0, ROWS, g + W, H);
	for (int i = 0; i < (ROWS + 1) * W; i++)
		g[i] = f[i] * (1 + (real)1e-4 * (real)toy_noise(6, (uint64_t)i));
	probe_rows(&rounded, 0, ROWS, g + W, H);
	for (int b = 0; b < 3; b++) {
		assert_true(!(fabs(probe_rms(&was, b) - 1) > 0.1));
		assert_true(!(distance(&was, &same, b) > 1e-9));
		assert_true(!(distance(&was, &rounded, b) > 1e-3));
		assert_true(distance(&was, &shifted, b) > 0.3);
	}
	assert_true(!(distance(&was, &swapped, 0) > 1e-9));
	assert_true(distance(&was, &swapped, 2) > 0.3);
}

static struct { struct dev *d; struct llama *target; char dir[2][64]; } toy;

static int setup(void **state)
{
	struct errtext e = {0};

	(void)state;
	if (dev_cpu_new(1, ISA_AUTO, &toy.d))
		return -1;
	toy.target = toy_target(toy.d, 0.05f, DT_BF16);
	for (int i = 0; i < 2; i++) {
		snprintf(toy.dir[i], sizeof toy.dir[i], "/tmp/redraft-probe-%d-%d", (int)getpid(), i);
		if (toy_draft(toy.dir[i], i ? TOY_RANDOM : TOY_AGREES, 40 + (uint64_t)i, 2, &e))
			return -1;
	}
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	llama_free(toy.target);
	dev_free(toy.d);
	return fs_remove_tree(toy.dir[0]) | fs_remove_tree(toy.dir[1]);
}

static struct probe ask(struct engine *g, struct job *j, uint32_t version)
{
	static struct probe p;

	p = (struct probe){.values = 0};
	job_random(j, 9, 40, 24);
	j->ignore_eos = true;
	j->probe = &p;
	j->probe_version = version;
	assert_int_equal(job_submit(g, j), 0);
	job_wait(j);
	assert_int_equal(j->why, FINISH_LENGTH);
	return p;
}

static void served(void **state)
{
	struct engine_options o = {.dev = toy.d, .target = toy.target, .max_seqs = 4, .max_queue = 8, .max_context = 160, .kv_tokens = 640, .prefill_chunk = 16, .draft_k = 3,
				   .draft_mode = DRAFT_AUTO, .prefix = PREFIX_ALL};
	struct engine_status before, after;
	struct engine *g = NULL;
	struct errtext e = {0};
	static struct job j, other, plain;
	struct probe first, again;
	char sha[65];

	(void)state;
	assert_int_equal(engine_new(&o, &g, &e), 0);
	for (uint32_t v = 1; v <= 2; v++)
		assert_int_equal(engine_load(g, v, toy.dir[v - 1], sha, &e), 0);
	assert_int_equal(engine_activate(g, 2, false, 0, &e), 0);
	engine_status(g, &before);
	first = ask(g, &j, 1);
	assert_int_equal(first.values, 40 * TOY_H);
	assert_int_equal(j.stats.n_versions, 1);
	assert_int_equal(j.stats.versions[0], 1);
	assert_true(j.stats.proposing_rounds > 0 && j.stats.accepted > 0);
	uint32_t accepted = j.stats.accepted, rounds = j.stats.proposing_rounds;
	engine_status(g, &after);
	assert_int_equal(before.tokens_generated + before.tokens_prompt + before.rounds + before.proposed, after.tokens_generated + after.tokens_prompt + after.rounds + after.proposed);
	assert_int_equal(after.pages_cached, 0); /* it leaves no prefix */
	/* beside others, and with its own prompt in the tree */
	job_random(&plain, 9, 40, 24);
	plain.ignore_eos = true;
	assert_int_equal(job_submit(g, &plain), 0);
	job_wait(&plain);
	job_random(&other, 10, 60, 80);
	other.ignore_eos = true;
	assert_int_equal(job_submit(g, &other), 0);
	again = ask(g, &j, 1);
	assert_memory_equal(&first, &again, sizeof first);
	assert_int_equal(j.stats.accepted, accepted);
	assert_int_equal(j.stats.proposing_rounds, rounds);
	assert_true(job_same(&j, &plain));
	/* it keeps its version when that one's canary ends, or something is activated, under it */
	for (int way = 0; way < 2; way++) {
		static struct probe p;
		static atomic_int ticks;

		p = (struct probe){.values = 0};
		atomic_store(&ticks, 0);
		assert_int_equal(engine_canary(g, 1, 1000, "salt", &e), 0);
		job_random(&j, 9, 40, 24);
		j.ignore_eos = true;
		j.probe = &p;
		j.probe_version = 1;
		j.ticks = &ticks;
		j.stall_at = 1;
		assert_int_equal(job_submit(g, &j), 0);
		ticks_wait(&ticks, 1, &j, 1);
		assert_int_equal(way ? engine_activate(g, 2, true, 0, &e) : engine_canary(g, 0, 0, NULL, &e), 0);
		job_wait(&j);
		assert_memory_equal(&first, &p, sizeof first);
		assert_int_equal(j.stats.n_versions, 1);
		assert_int_equal(j.stats.versions[0], 1);
		assert_int_equal(j.stats.accepted, accepted);
	}
	(void)ask(g, &j, 7); /* not loaded: decoded plainly, and said so */
	assert_int_equal(j.stats.versions[0], 0);
	job_wait(&other);
	engine_free(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(statistics), cmocka_unit_test(served)};
	return cmocka_run_group_tests(tests, setup, teardown);
}
