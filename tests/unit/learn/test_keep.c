/* What is no longer asked is still there to be replayed: after traffic many times the pool's size, a domain from before
 * keeps a sample within its share, whole and readable; the pool stays bounded; and it is all the same in another life. */
#include "tests/unit/learn/toyworld.h"
#include "learn/keep.h"

enum { OLD = 30, NEW = 200, ROWS = 24 };

struct world { char dir[256], store[300], state[300]; struct frozen fz; struct tw_source src; struct dev *d; };

static void ask(struct world *w, const char *domain, int i, uint64_t seed)
{
	struct buf b = BUF_INIT(0);
	for (int part = 0; part < 2; part++) {
		struct tw_record q = {.at = part * ROWS / 2, .T = ROWS / 2, .n_prompt = 8, .run = (uint32_t)part, .last = part == 1, .seq = (uint64_t)(2 * i + part + 1), .seed = seed};
		(void)snprintf(q.request, sizeof q.request, "%s-%d", domain, i);
		(void)snprintf(q.domain, sizeof q.domain, "%s", domain);
		buf_clear(&b);
		tw_encode(&q, &b);
		tw_add(&w->src, 0, b.data, b.len);
	}
	buf_done(&b);
}

static void setup(struct world *w, const char *state)
{
	struct errtext e = {""};
	memset(w, 0, sizeof *w);
	tw_temp_dir(w->dir);
	(void)snprintf(w->store, sizeof w->store, "%s/store", w->dir);
	(void)snprintf(w->state, sizeof w->state, "%s/%s", w->dir, state);
	tw_store(w->store);
	assert_int_equal(frozen_open(w->store, "", &w->fz, &e), 0);
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &w->d), 0);
	tw_source_init(&w->src);
	for (int i = 0; i < OLD; i++)
		ask(w, "tools", i, 5 + (uint64_t)i % 4);
	for (int i = 0; i < NEW; i++)
		ask(w, "code", OLD + i, 50 + (uint64_t)i % 4);
	w->src.visible = w->src.n;
}

static struct learner *open(struct world *w, int max_epochs)
{
	struct learner *l = NULL;
	struct errtext e = {""};
	struct learner_options o = {
		.state_dir = w->state, .store = w->store, .kind = &trainer_eagle3, .seed = 9,
		.train = {.ttt_steps = 1, .decay = 1, .optimizer = OPT_ADAMW, .lr = (real)1e-3, .beta1 = (real)0.9, .beta2 = (real)0.999, .eps = (real)1e-8},
		.draft_vocab = 48, .max_rows = 64, .max_epochs = max_epochs, .queue_max = 8, .heldout_max = 4, .heldout_domain_max = 3,
		.prompt_rows = true, .auto_init = true, .replay_share = 0.2, .init_min_tokens = 100, .pool_bytes = 300000, .segment_bytes = 40000, .replay_wait_ms = 1,
	};
	assert_int_equal(learner_open(&o, w->d, &w->src.base, &w->fz, &l, &e), 0);
	return l;
}

static void live(struct learner *l, bool train)
{
	struct errtext e = {""};
	bool done;
	int n;
	do {
		assert_int_equal(learner_consume(l, 4, &n, &e), 0);
		assert_int_equal(learner_begin(l, NULL, &done, &e), 0);
		if (train && learner_can_step(l))
			assert_int_equal(learner_step(l, &e), 0);
		assert_true(pool_bytes(l->pool) <= 300000 + 40000);
	} while (n);
}

static int readable(struct learner *l, const char *domain, uint64_t *ret_bytes)
{
	int n = 0;
	*ret_bytes = 0;
	for (int i = 0; i < l->runs.n; i++) {
		struct run *r = &l->runs.v[i];
		struct joined j = {0};
		if (strcmp(r->domain, domain) != 0)
			continue;
		assert_int_equal(joined_load(l->pool, r, TW_V, &j), 0);
		assert_int_equal(j.n, ROWS);
		joined_done(&j);
		for (int k = 0; k < r->n_refs; k++)
			*ret_bytes += r->refs[k].len;
		n++;
	}
	return n;
}

static void over(struct world *w)
{
	dev_free(w->d);
	frozen_close(&w->fz);
	tw_source_done(&w->src);
	assert_int_equal(fs_remove_tree(w->dir), 0);
}

static void test_kept(void **state)
{
	struct world w;
	uint64_t bytes, all;
	char sha[65], again[65];
	struct errtext e = {""};
	(void)state;
	setup(&w, "a");
	struct learner *l = open(&w, 1000);
	live(l, true);
	int tools = readable(l, "tools", &bytes), code = readable(l, "code", &all);
	print_message("%d of %d old runs kept in %llu bytes, %d new in %llu\n", tools, OLD, (unsigned long long)bytes, code, (unsigned long long)all);
	assert_true(tools >= 5);                 /* first in, first out would have left none */
	assert_true(bytes <= 300000 / 4 + 20000); /* half the pool, two domains; and what lies in the newest segments */
	assert_true(code >= 10);
	learner_weights_sha(l, sha);
	learner_close(l); /* without a checkpoint but the first: everything is applied again */
	l = open(&w, 1000);
	learner_weights_sha(l, again);
	assert_string_equal(sha, again);
	uint64_t b2;
	assert_int_equal(readable(l, "tools", &b2), tools);
	assert_true(b2 == bytes);
	assert_int_equal(learner_checkpoint(l, &e), 0);
	learner_close(l);
	over(&w);
}

/* What may not be replayed any more is not kept. */
static void test_used_up(void **state)
{
	struct world w;
	uint64_t bytes;
	(void)state;
	setup(&w, "b");
	struct learner *l = open(&w, 1);
	live(l, true);
	assert_int_equal(readable(l, "tools", &bytes), 0);
	learner_close(l);
	over(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_kept), cmocka_unit_test(test_used_up)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
