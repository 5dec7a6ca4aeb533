/* Served against replayed: what an honest engine recorded agrees exactly, what a broken one recorded does not,
 * and rounds that prove nothing are left out.
 */
#include <math.h>
#include "toyworld.h"
#include "learn/learner.h"
#include "learn/served.h"
#include "schemas/manifest.h"

enum { REQUESTS = 24 };

static char dir[256], store[300];
static struct frozen fz;
static struct dev *dev;

static int up(void **state)
{
	struct errtext e = {""};
	(void)state;
	tw_temp_dir(dir);
	(void)snprintf(store, sizeof store, "%s/store", dir);
	tw_store(store);
	assert_int_equal(frozen_open(store, "", &fz, &e), 0);
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &dev), 0);
	return 0;
}

static int down(void **state)
{
	(void)state;
	dev_free(dev);
	frozen_close(&fz);
	return fs_remove_tree(dir);
}

/* A learner that has read REQUESTS requests whose one round had claims[i] accepted. */
static struct learner *read_claims(const char *name, struct tw_source *src, uint32_t version, const uint8_t *claims, uint8_t flags)
{
	static char state[400];
	struct learner_options o = {
		.state_dir = state, .store = store, .kind = &trainer_eagle3, .seed = 3,
		.train = {.ttt_steps = 3, .decay = (real)0.8, .lr = (real)1e-2, .beta1 = (real)0.9, .beta2 = (real)0.999, .eps = (real)1e-8, .clip = (real)0.5},
		.draft_vocab = 48, .max_rows = 64, .max_epochs = 60, .queue_max = 100, .heldout_max = 4, .heldout_domain_max = 4, .prompt_rows = true,
		.auto_init = true, .init_min_tokens = 100, .pool_bytes = 100 << 20, .segment_bytes = 1 << 20, .replay_wait_ms = 1};
	struct learner *l = NULL;
	struct errtext e = {""};
	struct buf b = BUF_INIT(0);
	int n;
	(void)snprintf(state, sizeof state, "%s/%s", dir, name);
	tw_source_init(src);
	for (int i = 0; i < REQUESTS; i++) {
		struct tw_record q = {.T = 24, .n_prompt = 10, .last = true, .seq = (uint64_t)i + 1, .seed = 900 + (uint64_t)i % 4, .round_version = version,
				      .round_accepted = claims[i], .round_flags = flags};
		(void)snprintf(q.request, sizeof q.request, "req-%d", i);
		(void)snprintf(q.domain, sizeof q.domain, "tools");
		buf_clear(&b);
		tw_encode(&q, &b);
		tw_add(src, 0, b.data, b.len);
	}
	buf_done(&b);
	src->visible = src->n;
	assert_int_equal(learner_open(&o, dev, &src->base, &fz, &l, &e), 0);
	do
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	while (n);
	assert_int_equal(l->runs.n, REQUESTS);
	return l;
}

/* Version 1 of the store: a first draft, trained a little so that it is right now and then. */
static void make_version(void)
{
	static const uint8_t none[REQUESTS];
	struct tw_source src;
	struct errtext e = {""};
	bool done;
	struct learner *l = read_claims("maker", &src, 0, none, 0);
	char from[600], to[400];
	struct manifest m = {.number = 1};
	assert_int_equal(learner_begin(l, NULL, &done, &e), 0);
	for (int i = 0; i < 48 && learner_can_step(l); i++)
		assert_int_equal(learner_step(l, &e), 0);
	assert_int_equal(learner_publish(l, &e), 0);
	assert_int_equal(learner_write_end(l, true, &e), 0);
	(void)snprintf(from, sizeof from, "%s/incoming/%s", store, l->pending.name);
	(void)snprintf(to, sizeof to, "%s/versions", store);
	assert_int_equal(fs_mkdirs(to), 0);
	(void)snprintf(to, sizeof to, "%s/versions/1", store);
	assert_int_equal(rename(from, to), 0);
	memcpy(m.target_fp, TW_FP, 65);
	memcpy(m.draft_fp, TW_FP, 65);
	memcpy(m.weights_sha, TW_FP, 65);
	memcpy(m.model_sha, TW_FP, 65);
	memcpy(m.config_sha, TW_FP, 65);
	(void)snprintf(m.created, sizeof m.created, "2026-01-01T00:00:00.000Z");
	assert_int_equal(manifest_write(to, &m, &e), 0);
	learner_close(l);
	tw_source_done(&src);
}

/* What the weights really would have had accepted in each request's round. */
static int truth(struct learner *l, uint8_t *ret)
{
	struct draft d = {0};
	struct errtext e = {""};
	int all = 0;
	assert_int_equal(publish_read_version(store, 1, &fz, &d, &e), 0);
	for (int i = 0; i < l->runs.n; i++) {
		struct joined j = {0};
		struct replay_result res;
		assert_int_equal(joined_load(l->pool, &l->runs.v[i], TW_V, &j), 0);
		real *f = malloc((size_t)j.n * (size_t)j.H3 * sizeof *f);
		assert_non_null(f);
		for (int k = 0; k < j.n * j.H3; k++)
			f[k] = (real)bf16_to_f32(j.features[k]);
		struct replay_request q = {.n = j.n, .ids = j.ids, .pos = j.pos, .features = f, .round_start = j.round_start, .round_len = j.round_len, .n_rounds = 1};
		assert_int_equal(replay_accept_length(dev, &d.c, d.w, d.d2t, fz.embedding, &q, 2, &res), 0);
		ret[i] = (uint8_t)res.accepted;
		all += (int)res.accepted;
		free(f);
		joined_done(&j);
	}
	draft_done(&d);
	return all;
}

static double field(const json_t *j, const char *key)
{
	return json_number_value(json_object_get(j, key));
}

static void honest_broken_and_void(void **state)
{
	static const uint8_t none[REQUESTS];
	uint8_t real_ones[REQUESTS], broken[REQUESTS];
	struct tw_source src;
	struct errtext e = {""};
	json_t *j = NULL;
	(void)state;
	make_version();
	struct learner *l = read_claims("a", &src, 1, none, 0);
	int all = truth(l, real_ones);
	print_message("%d of %d proposals accepted in truth\n", all, 2 * REQUESTS);
	assert_true(all > 0 && all < 2 * REQUESTS);
	assert_int_equal(served_compare(l, 1, 100, &j, &e), 0); /* an engine whose draft does nothing */
	assert_true(field(j, "served_al") == 1 && fabs(field(j, "replayed_al") - (1 + all / (double)REQUESTS)) < 1e-12);
	assert_true(field(j, "replayed_al") - field(j, "served_al") > 2 * field(j, "gap_se"));
	json_decref(j);
	assert_int_equal(served_compare(l, 9, 100, &j, &e) < 0, 1); /* no such version */
	learner_close(l);
	tw_source_done(&src);
	l = read_claims("b", &src, 1, real_ones, 0);
	assert_int_equal(served_compare(l, 1, 100, &j, &e), 0);
	assert_true(field(j, "served_al") == field(j, "replayed_al") && field(j, "gap_se") == 0);
	assert_true(field(j, "differ") == 0 && field(j, "differ_se") == 0);
	assert_int_equal(field(j, "requests"), REQUESTS);
	json_decref(j);
	assert_int_equal(served_compare(l, 1, 5, &j, &e), 0);
	assert_int_equal(field(j, "requests"), 5);
	json_decref(j);
	learner_close(l);
	tw_source_done(&src);
	int differ = 0;
	for (int i = 0; i < REQUESTS; i++) { /* as many as in truth, elsewhere: another draft, as good */
		broken[i] = real_ones[REQUESTS - 1 - i];
		differ += broken[i] != real_ones[i];
	}
	assert_true(differ > REQUESTS / 10);
	l = read_claims("e", &src, 1, broken, 0);
	assert_int_equal(served_compare(l, 1, 100, &j, &e), 0);
	assert_true(field(j, "served_al") == field(j, "replayed_al"));
	double share = differ / (double)REQUESTS;
	assert_true(fabs(field(j, "differ") - share) < 1e-12);
	assert_true(fabs(field(j, "differ_se") - sqrt(share * (1 - share) / (REQUESTS - 1))) < 1e-12); /* one round a request: a coin's */
	json_decref(j);
	learner_close(l);
	tw_source_done(&src);
	for (int i = 0; i < REQUESTS; i++) /* more accepted than the weights can explain: another draft is loaded */
		broken[i] = 2;
	l = read_claims("c", &src, 1, broken, 0);
	assert_int_equal(served_compare(l, 1, 100, &j, &e), 0);
	assert_true(field(j, "served_al") - field(j, "replayed_al") > 4 * field(j, "gap_se"));
	json_decref(j);
	learner_close(l);
	tw_source_done(&src);
	l = read_claims("d", &src, 1, broken, 1); /* flagged: KV of two versions */
	assert_int_equal(served_compare(l, 1, 100, &j, &e), SERVED_E_NOT_ENOUGH);
	learner_close(l);
	tw_source_done(&src);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(honest_broken_and_void)};
	return cmocka_run_group_tests(tests, up, down);
}
