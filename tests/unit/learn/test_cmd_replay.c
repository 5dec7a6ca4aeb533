/* redraft-learn replay prints what replaying each request by hand adds up to, per domain and in all; against itself a
 * draft differs by nothing, with an interval of no width; a range is that range; what cannot be done is said. */
#include <fcntl.h>
#include <unistd.h>
#include "tests/unit/learn/toyworld.h"
#include "learn/cmd.h"
#include "learn/corpus.h"
#include "learn/evaluate.h"
#include "learn/init.h"
#include "learn/publish.h"

enum { RUNS = 14, ROWS = 40, K = 3, VD = 80 };

struct world { char dir[256], store[300], pool[300], draft[300], out[300]; struct frozen fz; };

static void fill(const char *dir)
{
	struct pool_options po = {.dir = dir, .segment_bytes = 1 << 18, .max_bytes = 64 << 20};
	struct pool *p = NULL;
	struct errtext e = {""};
	struct pool_ref ref;
	struct buf b = BUF_INIT(0);
	assert_int_equal(pool_open(&po, &p, &e), 0);
	for (int i = 0; i < RUNS; i++) {
		struct tw_record q = {.T = ROWS, .n_prompt = 12, .last = true, .seq = (uint64_t)i + 1, .seed = 5 + (uint64_t)i % 3};
		(void)snprintf(q.request, sizeof q.request, "r%d", i);
		(void)snprintf(q.domain, sizeof q.domain, "%s", i % 3 ? "code" : "tools");
		buf_clear(&b);
		tw_encode(&q, &b);
		assert_int_equal(pool_append(p, 0, i, 0, b.data, (uint32_t)b.len, &ref), 0);
	}
	assert_int_equal(pool_sync(p), 0);
	pool_close(p);
	buf_done(&b);
}

/* A random draft's folder. */
static void write_draft(struct world *w)
{
	struct draft_config c = {0};
	struct eagle3_config ec;
	struct errtext e = {""};
	int64_t d2t[VD] = {0};
	char sha[65];
	c = (struct draft_config){.hidden_size = TW_H, .target_hidden_size = TW_H, .intermediate_size = 48, .n_head = 2, .n_kv_head = 1, .head_dim = 16, .vocab_size = TW_V,
				  .draft_vocab_size = VD, .max_position = 512, .rms_eps = 1e-5, .rope_theta = 10000, .boundaries = {2, 4, 5}};
	draft_eagle3_config(&c, &ec);
	real *x = calloc(draft_params(&ec), sizeof *x);
	assert_non_null(x);
	draft_init_random(&ec, 3, x);
	json_t *facts = json_object();
	assert_int_equal(publish_write_folder(w->draft, &c, d2t, x, &w->fz, facts, sha, &e), 0);
	json_decref(facts);
	free(x);
}

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof *w);
	struct errtext e = {""};
	tw_temp_dir(w->dir);
	(void)snprintf(w->store, sizeof w->store, "%s/store", w->dir);
	(void)snprintf(w->pool, sizeof w->pool, "%s/pool", w->dir);
	(void)snprintf(w->draft, sizeof w->draft, "%s/draft", w->dir);
	(void)snprintf(w->out, sizeof w->out, "%s/out", w->dir);
	tw_store(w->store);
	assert_int_equal(frozen_open(w->store, TW_FP, &w->fz, &e), 0);
	fill(w->pool);
	write_draft(w);
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;
	frozen_close(&w->fz);
	assert_int_equal(fs_remove_tree(w->dir), 0);
	free(w);
	return 0;
}

/* The command, its standard output to a file; what it printed. */
static int say(struct world *w, char **ret, const char *a, const char *b, const char *c, const char *d)
{
	const char *argv[] = {"replay", "--store", w->store, "--from_pool", w->pool, "--draft", w->draft, "--k", "3", "--threads", "1", "--csv", "on", a, b, c, d, NULL};
	int argc = 13;
	while (argv[argc])
		argc++;
	(void)fflush(stdout);
	int keep = dup(1), fd = open(w->out, O_CREAT | O_TRUNC | O_WRONLY, 0600);
	assert_true(keep >= 0 && fd >= 0 && dup2(fd, 1) == 1);
	int rc = cmd_replay(argc, (char **)(uintptr_t)argv);
	(void)fflush(stdout);
	assert_int_equal(dup2(keep, 1), 1);
	close(keep), close(fd);
	*ret = NULL;
	if (fs_read_text(w->out, 1 << 16, ret))
		*ret = NULL;
	return rc;
}

/* Runs from..to of a domain (NULL: any) by hand. */
static void by_hand(struct world *w, const char *domain, int from, int to, int *requests, double *rounds, double *accepted)
{
	struct corpus c;
	struct draft d;
	struct dev *dev;
	struct errtext e = {""};
	assert_int_equal(corpus_open(w->pool, &w->fz, &c, &e), 0);
	assert_int_equal(publish_read_folder(w->draft, &w->fz, &d, &e), 0);
	assert_int_equal(dev_cpu_new(1, ISA_AUTO, &dev), 0);
	*requests = 0, *rounds = *accepted = 0;
	for (int i = from - 1; i < to; i++) {
		struct joined j;
		struct replay_result r;
		if (domain && strcmp(c.runs.v[i].domain, domain) != 0)
			continue;
		assert_int_equal(corpus_load(&c, i, 0, &j), 0);
		assert_int_equal(evaluate_run(dev, &w->fz, &j, c.runs.v[i].first, &d, K, &r), 0);
		*requests += r.rounds > 0, *rounds += r.rounds, *accepted += r.accepted;
		joined_done(&j);
	}
	dev_free(dev);
	draft_done(&d);
	corpus_close(&c);
}

static void check_line(struct world *w, const char *text, const char *line, const char *domain, int from, int to)
{
	int requests, got_requests;
	double rounds, accepted, got_rounds, al, low, high;
	const char *at = text ? strstr(text, line) : NULL;
	assert_non_null(at);
	assert_int_equal(sscanf(at + strlen(line), ",%d,%lf,%lf,%lf,%lf", &got_requests, &got_rounds, &al, &low, &high), 5);
	by_hand(w, domain, from, to, &requests, &rounds, &accepted);
	assert_int_equal(got_requests, requests);
	assert_true(got_rounds == rounds && rounds > 0);
	assert_false(!(al - (1 + accepted / rounds) <= 1e-4 && al - (1 + accepted / rounds) >= -1e-4));
	assert_true(low >= 1 && low <= al && al <= high);
}

static void test_sums(void **state)
{
	struct world *w = *state;
	char *text;
	assert_int_equal(say(w, &text, NULL, NULL, NULL, NULL), 0);
	check_line(w, text, "\ncode,any", "code", 1, RUNS);
	check_line(w, text, "\ntools,any", "tools", 1, RUNS);
	check_line(w, text, "\nall,any", NULL, 1, RUNS);
	check_line(w, text, "\nall,..255", NULL, 1, RUNS);
	free(text);
	assert_int_equal(say(w, &text, "--from", "4", "--to", "9"), 0);
	check_line(w, text, "\nall,any", NULL, 4, 9);
	free(text);
}

static void test_against_itself(void **state)
{
	struct world *w = *state;
	char *text;
	double al, against, diff, low, high;
	assert_int_equal(say(w, &text, "--against_draft", w->draft, NULL, NULL), 0);
	const char *at = text ? strstr(text, "\nall,any") : NULL;
	assert_non_null(at);
	assert_int_equal(sscanf(at, "\nall,any,%*d,%*f,%lf,%*f,%*f,%lf,%lf,%lf,%lf", &al, &against, &diff, &low, &high), 5);
	assert_true(al == against && diff == 0 && low == 0 && high == 0);
	free(text);
}

static void test_refusals(void **state)
{
	struct world *w = *state;
	char *text;
	assert_int_equal(say(w, &text, "--from", "90", NULL, NULL), 2);
	free(text);
	assert_int_equal(say(w, &text, "--against", "7", NULL, NULL), 2);
	free(text);
}

int main(void)
{
#define TEST(x) cmocka_unit_test_setup_teardown(x, setup, teardown)
	const struct CMUnitTest tests[] = {TEST(test_sums), TEST(test_against_itself), TEST(test_refusals)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
