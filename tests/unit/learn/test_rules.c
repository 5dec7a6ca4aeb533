/* Who is not learned from: records whose features are not of this target's scale, whatever the records before tried;
 * rounds of a quarantined version; tenants above their share; and all of it through the learner: counted by reason,
 * never trained, and what is past its age is in no run, no checkpoint and no byte of the pool. */
#include <math.h>
#include "tests/unit/learn/toyworld.h"
#include "learn/learner.h"

static void scaled(struct trace_record *r, uint16_t *f, uint64_t *s, float scale)
{
	for (int i = 0; i < r->T * 3 * TW_H; i++)
		f[i] = tw_scaled(tw_bf16(s), scale);
}

static bool offer(struct scale *x, struct trace_record *r)
{
	struct errtext why = {""};
	int k;
	bool fits = scale_fits(x, r, 8, &k, &why);
	assert_int_equal(k, 0);
	assert_true(fits || strstr(why.text, "boundary"));
	return fits;
}

static void test_scale(void **unused)
{
	enum { T = 20 };
	static uint16_t f[T * 3 * TW_H];
	struct trace_record r = {.T = T, .H_t = TW_H, .features = f};
	struct scale x = {0}, before;
	uint64_t s = 3;
	(void)unused;
	for (int i = 0; i < 100; i++) {
		scaled(&r, f, &s, 1);
		for (int k = 0; k < 3 * TW_H; k++) /* a first token that sticks out, as they do */
			f[k] = tw_scaled(f[k], 500);
		assert_true(offer(&x, &r));
	}
	before = x;
	scaled(&r, f, &s, 100);
	assert_false(offer(&x, &r));
	scaled(&r, f, &s, 0.01f);
	assert_false(offer(&x, &r));
	scaled(&r, f, &s, 1); /* one row far beyond any sink */
	for (int k = 0; k < 3 * TW_H; k++)
		f[5 * 3 * TW_H + k] = tw_scaled(f[5 * 3 * TW_H + k], 1e6f);
	assert_false(offer(&x, &r));
	memset(f, 0, sizeof f);
	assert_false(offer(&x, &r));
	assert_memory_equal(&x, &before, sizeof x); /* what is refused leaves no mark */
	/* creeping up within the limit moves it by little a record */
	for (int i = 0; i < 10; i++) {
		scaled(&r, f, &s, 7);
		(void)offer(&x, &r);
	}
	assert_true(fabs(x.median[1] - before.median[1]) < 0.5);
}

static void test_quarantine(void **unused)
{
	struct rules x = {0}, y = {0};
	uint32_t versions[2] = {0, 7}, which = 0;
	struct trace_record r = {.S = 2, .round_version = versions};
	(void)unused;
	assert_false(rules_quarantined(&x, &r, &which));
	rules_verdict(&x, 7, true);
	rules_verdict(&x, 8, true);
	assert_true(rules_quarantined(&x, &r, &which));
	assert_int_equal(which, 7);
	json_t *j = rules_to_json(&x);
	assert_int_equal(rules_from_json(&y, j), 0);
	json_decref(j);
	assert_memory_equal(&x, &y, sizeof x);
	rules_verdict(&x, 7, false); /* an operator let it out */
	assert_false(rules_quarantined(&x, &r, &which));
	for (uint32_t v = 100; v < 300; v++)
		rules_verdict(&x, v, true);
	assert_int_equal(x.n_quarantined, RULES_QUARANTINED);
	versions[0] = 299;
	assert_true(rules_quarantined(&x, &r, &which));
}

/* Over any stretch as long as the window a tenant has about its share; the others lose nothing. */
static void test_tenants(void **unused)
{
	struct rules x = {0};
	int64_t loud = 0, quiet = 0;
	(void)unused;
	for (int i = 0; i < 5000; i++) {
		if (rules_tenant(&x, 1, 100, 0.5, 10000))
			loud += i > 1000 ? 100 : 0;
		if (i % 4 == 0) {
			assert_true(rules_tenant(&x, 2 + (uint64_t)(i / 4) % 3, 100, 0.5, 10000));
			quiet += i > 1000 ? 100 : 0;
		}
	}
	assert_true(loud > quiet * 8 / 10 && loud < quiet * 12 / 10);
	for (int i = 0; i < 100; i++)
		assert_true(rules_tenant(&x, 1, 1000, 1, 10000)); /* no rule */
	for (uint64_t t = 100; t < 400; t++)
		(void)rules_tenant(&x, t, 1, 0.5, 10000);
	assert_int_equal(x.n_tenants, RULES_TENANTS);
}

/* ---- through the learner ---- */

struct world { char dir[256], store[300], state[300]; struct frozen fz; struct tw_source src; struct dev *d; uint64_t seq; };

static void setup(struct world *w)
{
	struct errtext e = {""};
	memset(w, 0, sizeof *w);
	tw_temp_dir(w->dir);
	(void)snprintf(w->store, sizeof w->store, "%s/store", w->dir);
	(void)snprintf(w->state, sizeof w->state, "%s/s", w->dir);
	tw_store(w->store);
	assert_int_equal(frozen_open(w->store, "", &w->fz, &e), 0);
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &w->d), 0);
	tw_source_init(&w->src);
}

static void done(struct world *w)
{
	dev_free(w->d);
	frozen_close(&w->fz);
	tw_source_done(&w->src);
	assert_int_equal(fs_remove_tree(w->dir), 0);
}

static struct tw_record request(struct world *w, const char *name)
{
	struct tw_record q = {.T = 20, .n_prompt = 8, .last = true, .seq = ++w->seq, .seed = w->seq};
	(void)snprintf(q.request, sizeof q.request, "%s-%llu", name, (unsigned long long)w->seq);
	(void)snprintf(q.domain, sizeof q.domain, "code");
	return q;
}

static void ask(struct world *w, const struct tw_record *q)
{
	struct buf b = BUF_INIT(0);
	tw_encode(q, &b);
	tw_add(&w->src, 0, b.data, b.len);
	buf_done(&b);
	w->src.visible = w->src.n;
}

static struct learner *open_learner(struct world *w, double spike)
{
	struct learner *l = NULL;
	struct errtext e = {""};
	struct learner_options o = {
		.state_dir = w->state, .store = w->store, .kind = &trainer_eagle3, .seed = 9,
		.train = {.ttt_steps = 2, .decay = 1, .optimizer = OPT_ADAMW, .lr = (real)1e-3, .beta1 = (real)0.9, .beta2 = (real)0.999, .eps = (real)1e-8},
		.draft_vocab = 48, .max_rows = 64, .history_rows = 16, .max_epochs = 1, .queue_max = 500, .heldout_max = 4, .heldout_domain_max = 3, .dedup = true,
		.prompt_rows = true, .auto_init = true, .init_min_tokens = 100, .pool_bytes = 30 << 20, .segment_bytes = 1 << 20, .replay_wait_ms = 1,
		.max_scale = 8, .tenant_share = 0.5, .tenant_window = 2000, .request_rows = 50, .spike = spike,
	};
	int r = learner_open(&o, w->d, &w->src.base, &w->fz, &l, &e);
	if (r)
		print_message("%s\n", e.text);
	assert_int_equal(r, 0);
	return l;
}

static void take_all(struct learner *l)
{
	struct errtext e = {""};
	bool begun;
	for (int n = 1; n;)
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_int_equal(learner_begin(l, NULL, &begun, &e), 0);
}

static void test_left_out(void **unused)
{
	struct world w;
	struct errtext e = {""};
	(void)unused;
	setup(&w);
	for (int i = 0; i < 40; i++) {
		struct tw_record q = request(&w, "good");
		ask(&w, &q);
	}
	struct learner *l = open_learner(&w, 0);
	take_all(l);
	int good = l->runs.n;
	assert_int_equal(good, 40);
	struct tw_record q = request(&w, "loud");
	q.scale = 1000;
	ask(&w, &q);
	take_all(l);
	assert_int_equal(l->n.out[OUT_SCALE], 1);
	assert_non_null(strstr(l->last_bad, "times as large"));
	struct journal_entry x = {.kind = J_VERDICT, .version = 5, .text = "quarantined: test"};
	assert_int_equal(learner_do(l, &x, &e), 0);
	q = request(&w, "bad-version");
	q.round_version = 5;
	ask(&w, &q);
	take_all(l);
	assert_int_equal(l->n.out[OUT_QUARANTINED], 1);
	q = request(&w, "said");
	q.T = 40;
	(void)snprintf(q.conversation, sizeof q.conversation, "talk");
	ask(&w, &q);
	q.seq = ++w.seq; /* again, by another request of the conversation */
	q.T = 38;
	(void)snprintf(q.request, sizeof q.request, "again");
	ask(&w, &q);
	take_all(l);
	assert_int_equal(l->n.out[OUT_REPEATED], 1);
	for (int i = 0; i < 100; i++) {
		q = request(&w, "tenant");
		(void)snprintf(q.tenant, sizeof q.tenant, "one");
		ask(&w, &q);
	}
	take_all(l);
	print_message("%llu of 100 requests of one tenant left out\n", (unsigned long long)l->n.out[OUT_TENANT]);
	assert_true(l->n.out[OUT_TENANT] > 30 && l->n.out[OUT_TENANT] < 70);
	assert_int_equal(l->n.set_aside, 0);
	/* all of it again in another life */
	struct learner_counts n = l->n;
	int runs = l->runs.n;
	learner_close(l);
	l = open_learner(&w, 0);
	take_all(l); /* what was taken behind the last entry that is on disk */
	assert_memory_equal(&n, &l->n, sizeof n);
	assert_int_equal(l->runs.n, runs);
	assert_int_equal(learner_checkpoint(l, &e), 0);
	learner_close(l);
	l = open_learner(&w, 0);
	assert_memory_equal(&n, &l->n, sizeof n);
	assert_int_equal(l->rules.n_quarantined, 1);
	learner_close(l);
	done(&w);
}

/* Do any bytes of the text in the state folder's pool? */
static bool on_disk(struct world *w, const char *text)
{
	char cmd[600];
	(void)snprintf(cmd, sizeof cmd, "grep -rqa '%s' %s/pool", text, w->state);
	return system(cmd) == 0;
}

static void test_age(void **unused)
{
	struct world w;
	struct errtext e = {""};
	char sha[65], again[65];
	(void)unused;
	setup(&w);
	for (int i = 0; i < 20; i++) {
		struct tw_record q = request(&w, i < 10 ? "oldreq" : "newreq");
		ask(&w, &q);
	}
	struct tw_record q = request(&w, "oldopen");
	q.last = false;
	ask(&w, &q);
	w.src.v[w.src.n - 1].time_s = 1005;
	struct learner *l = open_learner(&w, 0);
	take_all(l);
	assert_true(on_disk(&w, "oldreq") && on_disk(&w, "oldopen"));
	for (int i = 0; i < 5; i++)
		assert_int_equal(learner_step(l, &e), 0);
	int64_t oldest = 0;
	assert_int_equal(pool_oldest(l->pool, &oldest), 0);
	assert_int_equal(oldest, 1000);
	assert_int_equal(learner_expire(l, 1010, &e), 0); /* message i was written at 1000 + i */
	assert_int_equal(l->runs.n, 10);
	assert_int_equal(l->join.n, 0);
	assert_int_equal(l->n.out[OUT_EXPIRED], 10);
	assert_false(on_disk(&w, "oldreq") || on_disk(&w, "oldopen"));
	assert_true(on_disk(&w, "newreq"));
	assert_int_equal(pool_oldest(l->pool, &oldest), 0);
	assert_int_equal(oldest, 1010);
	while (learner_can_step(l))
		assert_int_equal(learner_step(l, &e), 0);
	assert_int_equal(l->n.steps_bad, 0);
	learner_weights_sha(l, sha);
	learner_close(l); /* killed: exact without what is gone */
	l = open_learner(&w, 0);
	learner_weights_sha(l, again);
	assert_string_equal(sha, again);
	assert_int_equal(l->runs.n, 10);
	learner_close(l);
	done(&w);
}

/* A loss far above the usual is no step: the weights stay, it is counted, the run is not condemned; one that lasts is
 * let through in the end. */
static void test_spike(void **unused)
{
	struct world w;
	struct errtext e = {""};
	char before[65], after[65];
	(void)unused;
	setup(&w);
	for (int i = 0; i < 60; i++) {
		struct tw_record q = request(&w, "r");
		ask(&w, &q);
	}
	struct learner *l = open_learner(&w, 3);
	take_all(l);
	for (int i = 0; i < 30; i++)
		assert_int_equal(learner_step(l, &e), 0);
	assert_int_equal(l->n.steps_spike, 0);
	assert_true(l->usual_loss > 0);
	double usual = l->usual_loss;
	l->usual_loss /= 100; /* what comes next is a hundred times what was usual */
	learner_weights_sha(l, before);
	assert_int_equal(learner_step(l, &e), 0);
	learner_weights_sha(l, after);
	assert_string_equal(before, after);
	assert_int_equal(l->n.steps_spike, 1);
	assert_int_equal(l->n.steps_bad, 0);
	for (int i = 0; i < l->runs.n; i++)
		assert_false(l->runs.v[i].bad);
	while (learner_can_step(l))
		assert_int_equal(learner_step(l, &e), 0);
	l->usual_loss = usual / 4; /* four times, for good */
	l->losses = 50;
	for (int i = 0; i < 60; i++) {
		struct tw_record q = request(&w, "s");
		ask(&w, &q);
	}
	take_all(l);
	uint64_t spikes = l->n.steps_spike;
	for (int i = 0; i < 60; i++)
		assert_int_equal(learner_step(l, &e), 0);
	spikes = l->n.steps_spike - spikes;
	print_message("a loss four times the usual for good: %llu of 60 steps left out\n", (unsigned long long)spikes);
	assert_true(spikes > 0 && spikes < 30);
	learner_close(l);
	done(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_scale), cmocka_unit_test(test_quarantine), cmocka_unit_test(test_tenants),
					   cmocka_unit_test(test_left_out), cmocka_unit_test(test_age), cmocka_unit_test(test_spike)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
