/* Pinned requests: no step ever trains one (a trainer that looks at each batch says so), what is asked no more keeps its members when the
 * pool has gone round, they are the same after every kind of restart, they are evaluated when asked for, and they leave by purge,
 * age, quarantine and settings. (That kills change nothing: test_learner.c, whose learners pin too.) */
#include "tests/unit/learn/learner_world.h"
#include "learn/evaluate.h"
#include "learn/pinned.h"
#include "learn/purge.h"

enum { EARLY = 60, ALL = 260, ROWS = 24, EACH = 3, BORN = 1000 /* of the first record; one a request, one second apart */ };

static bool kept[ALL]; /* who may not be in the next step */
static struct trainer_kind spy;
static int seen;

static uint64_t seed_of(int i)
{
	return 9000 + (uint64_t)i;
}

static struct run *run_of(struct learner *l, int i)
{
	for (int k = 0; k < l->runs.n; k++)
		if (l->runs.v[k].born == BORN + i)
			return &l->runs.v[k];
	return NULL;
}

static void note_kept(struct learner *l)
{
	for (int i = 0; i < ALL; i++) {
		const struct run *r = run_of(l, i);
		kept[i] = r && (r->state == RUN_PINNED || r->state == RUN_HELD_OUT);
		assert_true(!kept[i] || r->epochs == 0); /* nor was before */
	}
}

/* The law: whoever is in a batch was neither pinned nor held out when the step began. Each request's text is its own. */
static int step(struct trainer *t, const struct train_batch *b, struct train_result *ret)
{
	for (int at = 0; at + ROWS <= b->n; at++) {
		int i = 0, k = 0;
		for (; i < ALL && b->pos[at] == 0; i++) {
			for (k = 0; k < ROWS && b->ids[at + k] == tw_token(seed_of(i), k);)
				k++;
			if (k == ROWS)
				break;
		}
		if (k < ROWS)
			continue;
		assert_true(!kept[i]);
		seen++;
	}
	return trainer_eagle3.step(t, b, ret);
}

/* Tools and chat turn about; then code alone. Every fifth is the leaver's; versions 7 and 8 draft for some. */
static void world(struct world *w)
{
	struct errtext e = {""};
	struct buf b = BUF_INIT(0);
	memset(w, 0, sizeof *w);
	tw_temp_dir(w->dir);
	(void)snprintf(w->store, sizeof w->store, "%s/store", w->dir);
	tw_store(w->store);
	assert_int_equal(frozen_open(w->store, "", &w->fz, &e), 0);
	tw_source_init(&w->src);
	for (int i = 0; i < ALL; i++) {
		struct tw_record q = {.T = ROWS, .n_prompt = 8, .last = true, .seq = (uint64_t)i + 1, .seed = seed_of(i), .round_version = i % 7 == 3 ? 7 : 8};
		(void)snprintf(q.request, sizeof q.request, "req-%d", i);
		(void)snprintf(q.domain, sizeof q.domain, "%s", i >= EARLY ? "code" : i % 2 ? "tools" : "chat");
		(void)snprintf(q.tenant, sizeof q.tenant, i % 5 ? "stays" : "leaves");
		buf_clear(&b);
		tw_encode(&q, &b);
		tw_add(&w->src, 0, b.data, b.len);
	}
	buf_done(&b);
	spy = trainer_eagle3;
	spy.step = step;
}

static struct learner_options pinning(const struct world *w, const char *state)
{
	struct learner_options o = options(w, state);
	o.kind = &spy;
	o.heldout_pinned = EACH;
	o.heldout_max = 8;
	o.heldout_domain_max = 4;
	o.pool_bytes = 700000;
	return o;
}

/* What a worker and a daemon do, in an order that is always the same. */
static void live(struct world *w, struct learner *l)
{
	struct errtext e = {""};
	bool done;
	int n = 1;
	for (int pass = 0; w->src.visible < w->src.n || n; pass++) {
		w->src.visible += w->src.visible < w->src.n ? 2 : 0;
		assert_int_equal(learner_consume(l, 4, &n, &e), 0);
		assert_int_equal(learner_begin(l, NULL, &done, &e), 0);
		for (int i = 0; i < 3 && learner_can_step(l); i++) {
			note_kept(l);
			assert_int_equal(learner_step(l, &e), 0);
		}
		if (l->t && pass % 8 == 0 && !*l->pending.name) {
			publish(l);
			assert_int_equal(entry(l, J_SUBMITTED, accept_candidate(w, l->pending.name, (uint32_t)pass + 100), ""), 0);
		} else if (pass % 8 == 7 && l->pending.version)
			assert_int_equal(entry(l, J_VERDICT, l->pending.version, pass % 16 == 7 ? "accepted: test" : "rejected: test"), 0);
	}
	memset(kept, 0, sizeof kept); /* who repeats a journal is not watched: it is the same journal */
}

static int of_domain(const struct learner *l, const char *domain)
{
	json_t *j = pinned_count(l);
	int n = (int)json_integer_value(json_object_get(j, domain));
	json_decref(j);
	return n;
}

static void over(struct world *w, struct learner *l, struct dev *d)
{
	learner_close(l);
	dev_free(d);
	world_done(w);
}

static void test_never_trained(void **unused)
{
	struct world w;
	char state[300], journal[400], again[300], sha[65], sha2[65];
	struct dev *d = NULL;
	struct errtext e = {""};
	(void)unused;
	world(&w);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	(void)snprintf(again, sizeof again, "%s/again", w.dir);
	(void)snprintf(journal, sizeof journal, "%s/journal", state);
	struct learner_options o = pinning(&w, state);
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
	struct learner *l = open_ok(&o, d, &w, 0);
	live(&w, l);
	print_message("%d windows trained, pinned: %d tools, %d chat, %d code\n", seen, of_domain(l, "tools"), of_domain(l, "chat"), of_domain(l, "code"));
	assert_true(seen > ALL / 2);
	assert_true(pool_where(l->pool).first > 2); /* what was asked at first is long past its retention */
	assert_true(of_domain(l, "tools") >= 2 && of_domain(l, "chat") >= 2 && of_domain(l, "code") >= 2);
	assert_true(of_domain(l, "tools") <= EACH && of_domain(l, "chat") <= EACH && of_domain(l, "code") <= EACH);
	for (int i = 0; i < l->runs.n; i++) {
		struct joined j = {0};
		if (l->runs.v[i].state != RUN_PINNED)
			continue;
		assert_int_equal(l->runs.v[i].epochs, 0);
		assert_int_equal(joined_load(l->pool, &l->runs.v[i], TW_V, &j), 0);
		assert_int_equal(j.n, ROWS);
		joined_done(&j);
	}
	/* the same in every other life: from an early checkpoint, from a late one, from nothing */
	uint64_t who = pinned_members(l);
	learner_weights_sha(l, sha);
	learner_close(l);
	l = open_ok(&o, d, &w, 0);
	assert_true(pinned_members(l) == who);
	assert_int_equal(learner_checkpoint(l, &e), 0);
	learner_close(l);
	l = open_ok(&o, d, &w, 0);
	assert_true(pinned_members(l) == who);
	learner_close(l);
	struct learner_options f = pinning(&w, again);
	f.follow = true;
	l = open_ok(&f, d, &w, 0);
	assert_int_equal(learner_follow(l, journal, NULL, NULL, &e), 0);
	learner_weights_sha(l, sha2);
	assert_string_equal(sha, sha2);
	assert_true(pinned_members(l) == who);
	over(&w, l, d);
}

static uint32_t first_version(const struct world *w)
{
	char path[400];
	for (uint32_t v = 100; v < 2000; v++) {
		(void)snprintf(path, sizeof path, "%s/versions/%u", w->store, v);
		if (!access(path, F_OK))
			return v;
	}
	fail();
	return 0;
}

static void test_evaluated(void **unused)
{
	struct world w;
	char state[300];
	struct dev *d = NULL;
	struct errtext e = {""};
	json_t *j = NULL, *k = NULL, *x;
	size_t i;
	int n[2] = {0};
	(void)unused;
	world(&w);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	struct learner_options o = pinning(&w, state);
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
	struct learner *l = open_ok(&o, d, &w, 0);
	w.src.n -= 8; /* kept for a candidate's own held-out requests */
	live(&w, l);
	if (*l->pending.name)
		assert_int_equal(entry(l, J_VERDICT, l->pending.version, "rejected: test"), 0);
	publish(l);
	assert_int_equal(entry(l, J_SUBMITTED, accept_candidate(&w, l->pending.name, 2), ""), 0);
	w.src.n += 8;
	w.src.visible = w.src.n;
	int got = 1;
	while (got)
		assert_int_equal(learner_consume(l, 64, &got, &e), 0);
	uint32_t live = first_version(&w);
	struct evaluate_older older = {2, {{"tools", live}, {"code", 99999}}}; /* the second is gone */
	assert_int_equal(evaluate(l, 2, live, 3, NULL, &j, &e), 0);
	assert_null(json_object_get(j, "pinned"));
	assert_int_equal(evaluate(l, 2, 0, 3, &older, &k, &e), 0);
	assert_null(json_object_get(k, "pinned")); /* against plain decoding nothing can have been forgotten */
	json_decref(k);
	assert_int_equal(evaluate(l, 2, live, 3, &older, &k, &e), 0);
	assert_true(json_equal(json_object_get(j, "pairs"), json_object_get(k, "pairs")));
	assert_true(json_equal(json_object_get(j, "table"), json_object_get(k, "table")));
	json_array_foreach(json_object_get(k, "pinned"), i, x) {
		const char *domain = json_string_value(json_object_get(x, "domain"));
		assert_true(json_number_value(json_object_get(x, "live_al")) >= 1 && json_number_value(json_object_get(x, "candidate_al")) >= 1);
		assert_true(!json_object_get(x, "reference") == (strcmp(domain, "tools") != 0));
		if (json_object_get(x, "reference")) { /* it is live itself here */
			assert_int_equal(json_integer_value(json_object_get(x, "reference")), live);
			assert_true(json_equal(json_object_get(x, "reference_al"), json_object_get(x, "live_al")));
		}
		n[0] += strcmp(domain, "tools") == 0;
		n[1] += strcmp(domain, "chat") == 0;
	}
	assert_int_equal(n[0], of_domain(l, "tools"));
	assert_int_equal(n[1], of_domain(l, "chat"));
	/* asked again: said again, without a replay */
	uint64_t replays = l->replayed->n;
	json_decref(j);
	assert_int_equal(evaluate(l, 2, live, 3, &older, &j, &e), 0);
	assert_true(json_equal(j, k));
	assert_true(l->replayed->n == replays);
	json_decref(j);
	json_decref(k);
	over(&w, l, d);
}

static bool pinned_tenant(const struct learner *l, const char *tenant)
{
	for (int i = 0; i < l->runs.n; i++)
		if (l->runs.v[i].state == RUN_PINNED && l->runs.v[i].tenant == run_text_hash(tenant))
			return true;
	return false;
}

static void test_leaves(void **unused)
{
	struct world w;
	char state[300];
	struct dev *d = NULL;
	struct errtext e = {""};
	struct purged p;
	(void)unused;
	world(&w);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	struct learner_options o = pinning(&w, state);
	o.heldout_pinned = 12; /* enough for some of every kind */
	o.pool_bytes = 4 << 20;
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
	struct learner *l = open_ok(&o, d, &w, 0);
	live(&w, l);
	/* a run in a checkpoint: an older program takes it for one that is held out */
	struct run *r = l->runs.v, back;
	while (r->state != RUN_PINNED)
		r++;
	json_t *j = run_to_json(r);
	assert_int_equal(json_integer_value(json_object_get(j, "state")), RUN_HELD_OUT);
	assert_int_equal(run_from_json(j, &back), 0);
	assert_int_equal(back.state, RUN_PINNED);
	assert_memory_equal(back.drafted, r->drafted, sizeof back.drafted);
	run_done(&back);
	json_decref(j);
	/* with their tenant */
	assert_true(pinned_tenant(l, "leaves") && pinned_tenant(l, "stays"));
	assert_int_equal(purge_tenant(l, "leaves", &p, &e), 0);
	assert_true(!pinned_tenant(l, "leaves") && pinned_tenant(l, "stays"));
	/* with the version that drafted for them: out of the set, and not trained either */
	int sevens = 0;
	for (int i = 0; i < ALL; i++)
		sevens += (r = run_of(l, i)) && r->state == RUN_PINNED && r->drafted[0] == 7;
	assert_true(sevens > 0);
	assert_int_equal(entry(l, J_VERDICT, 7, "quarantined"), 0);
	for (int i = 0; i < ALL; i++) {
		r = run_of(l, i);
		assert_true(!r || r->drafted[0] != 7 || r->state != RUN_PINNED);
		sevens -= r && r->drafted[0] == 7 && r->bad;
	}
	assert_int_equal(sevens, 0);
	/* by age */
	assert_true(of_domain(l, "tools") > 0);
	assert_int_equal(learner_expire(l, BORN + EARLY, &e), 0);
	assert_int_equal(of_domain(l, "tools"), 0);
	assert_true(of_domain(l, "code") > 0);
	/* nobody is wanted any more: with the next that are freed */
	learner_close(l);
	o.heldout_pinned = 0;
	l = open_ok(&o, d, &w, 0);
	learner_release(l);
	assert_int_equal(of_domain(l, "code"), 0);
	over(&w, l, d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_never_trained), cmocka_unit_test(test_evaluated), cmocka_unit_test(test_leaves)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
