/* What single entries and records do to a learner: a topic made anew is read from its start, a copy is known for one, junk is
 * set aside within bounds, what closes behind a candidate is held out until its verdict, a start without a checkpoint finds its
 * version, a rebase takes a version's weights and leaves the rest, steps of a program that added in another order are said to be repeated otherwise. (That all of it is exact: test_learner.c.) */
#include "tests/unit/learn/learner_world.h"
#include "learn/evaluate.h"

/* A topic made anew under the same name: the cursor goes back to its start, nothing is compared by offset alone. */
static void test_topic_anew(void **unused)
{
	struct world w;
	char state[300];
	struct dev *d = NULL;
	struct errtext e = {""};
	int n;
	(void)unused;
	world_init(&w, 8);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	struct learner_options o = options(&w, state);
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
	struct learner *l = open_ok(&o, d, &w, 0);
	for (int i = 0; i < 40; i++)
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	uint64_t before = l->n.records;
	assert_int_equal(before, (uint64_t)w.src.n);
	assert_int_equal(learner_checkpoint(l, &e), 0);
	learner_close(l);
	/* the same log: verified, nothing read twice */
	l = open_ok(&o, d, &w, 0);
	assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_int_equal(n, 0);
	assert_int_equal(l->n.offset_gaps, 0);
	learner_close(l);
	/* another log under the same offsets */
	tw_source_done(&w.src);
	tw_source_init(&w.src);
	tw_script(&w.src, 9, 777);
	w.src.visible = w.src.n;
	for (int i = 0; i < w.src.n; i++) /* another producer wrote it */
		for (uint8_t *p = w.src.v[i].blob.data; (p = memmem(p, w.src.v[i].blob.len - (size_t)(p - w.src.v[i].blob.data), "toy-producer", 12));)
			memcpy(p, "new-producer", 12);
	l = open_ok(&o, d, &w, 0);
	for (int i = 0; i < 40; i++)
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_true(l->n.offset_gaps >= 1);
	assert_true(l->n.records - before > (uint64_t)w.src.n / 2);
	learner_close(l);
	dev_free(d);
	world_done(&w);
}

/* The same while the learner runs, and the new log is longer than what was read of the old one, so that no offset is out of place:
 * noticed at the next look back, and a checkpoint then bars the way back to where the old log is needed. */
static void test_topic_anew_and_longer(void **unused)
{
	struct world w;
	char state[300];
	struct dev *d = NULL;
	struct errtext e = {""};
	int n;
	(void)unused;
	world_init(&w, 8);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	struct learner_options o = options(&w, state);
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
	struct learner *l = open_ok(&o, d, &w, 0);
	w.src.visible = w.src.n / 2;
	for (int i = 0; i < 40; i++)
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	learner_look_back(l);
	w.src.visible = w.src.n;
	for (int i = 0; i < 40; i++) /* the same log, grown: looked back, read on */
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_int_equal(l->n.records, (uint64_t)w.src.n);
	assert_int_equal(l->n.offset_gaps, 0);
	uint64_t before = l->n.records;
	int64_t serial = l->serial;
	tw_source_done(&w.src);
	tw_source_init(&w.src);
	tw_script(&w.src, 24, 777);
	w.src.visible = w.src.n;
	assert_true((uint64_t)w.src.n > 2 * before);
	for (int i = 0; i < w.src.n; i++)
		for (uint8_t *p = w.src.v[i].blob.data; (p = memmem(p, w.src.v[i].blob.len - (size_t)(p - w.src.v[i].blob.data), "toy-producer", 12));)
			memcpy(p, "new-producer", 12);
	for (int i = 0; i < 40; i++) /* read on as if nothing had been */
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_int_equal(l->n.offset_gaps, 0);
	assert_true(l->n.records > before && l->n.records < before + (uint64_t)w.src.n);
	learner_look_back(l);
	for (int i = 0; i < 40; i++)
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_true(l->n.offset_gaps >= 1);
	assert_non_null(strstr(l->last_gap, "made anew"));
	assert_true(l->serial > serial);
	assert_true(l->n.records >= before + (uint64_t)w.src.n); /* all of the new one, what was taken of it before among them */
	uint64_t all = l->n.records, gaps = l->n.offset_gaps;
	learner_close(l);
	l = open_ok(&o, d, &w, 0); /* what was not synced is taken again, from the new log */
	for (int i = 0; i < 40; i++)
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_int_equal(l->n.records, all);
	assert_int_equal(l->n.offset_gaps, gaps);
	learner_close(l);
	dev_free(d);
	world_done(&w);
}

/* A copy that comes after a restart is known for one. */
static void test_copy_after_restart(void **unused)
{
	struct world w;
	char state[300];
	struct dev *d = NULL;
	struct errtext e = {""};
	struct buf b = BUF_INIT(0);
	int n;
	(void)unused;
	world_init(&w, 0);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	struct tw_record q = {.request = "a", .domain = "code", .T = 12, .n_prompt = 6, .seed = 1, .seq = 41};
	tw_encode(&q, &b);
	tw_add(&w.src, 1, b.data, b.len);
	tw_add(&w.src, 1, b.data, b.len);
	w.src.visible = 1;
	struct learner_options o = options(&w, state);
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
	struct learner *l = open_ok(&o, d, &w, 0);
	assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_int_equal(learner_checkpoint(l, &e), 0);
	learner_close(l);
	l = open_ok(&o, d, &w, 0);
	w.src.visible = 2;
	assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_int_equal(n, 1);
	assert_int_equal(l->n.duplicates, 1);
	assert_int_equal(l->n.rows, 12);
	learner_close(l);
	dev_free(d);
	buf_done(&b);
	world_done(&w);
}

/* Junk of every kind: set aside with its reason within bounds, counted past them, and the cursor moves on. */
static void test_set_aside(void **unused)
{
	struct world w;
	char state[300], path[400], *reason = NULL;
	struct dev *d = NULL;
	struct errtext e = {""};
	struct buf b = BUF_INIT(0);
	int n;
	(void)unused;
	world_init(&w, 0);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	struct tw_record q = {.request = "a", .domain = "code", .T = 12, .n_prompt = 6, .seed = 1, .seq = 1};
	tw_add(&w.src, 0, "", 0);
	buf_done(&w.src.v[0].blob); /* no value at all */
	tw_add(&w.src, 0, "junk", 4);
	tw_encode(&q, &b);
	for (uint8_t *p = b.data; (p = memmem(p, b.len - (size_t)(p - b.data), "abab", 4));) /* another target */
		memcpy(p, "cdcd", 4);
	tw_add(&w.src, 0, b.data, b.len);
	for (int i = 0; i < 300; i++)
		tw_add(&w.src, 0, "x\xff\xff", 3);
	buf_clear(&b);
	tw_encode(&q, &b);
	tw_add(&w.src, 0, b.data, b.len);
	w.src.visible = w.src.n;
	struct learner_options o = options(&w, state);
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
	struct learner *l = open_ok(&o, d, &w, 0);
	for (int i = 0; i < 60; i++)
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_int_equal(l->n.set_aside, 303);
	assert_int_equal(l->n.records, 304);
	assert_int_equal(l->n.rows, 12);
	assert_int_equal(l->at[0].next, 304);
	assert_true(l->aside_files <= 200);
	(void)snprintf(path, sizeof path, "%s/set-aside/0-2.reason", state);
	assert_int_equal(fs_read_text(path, 1000, &reason), 0);
	assert_non_null(strstr(reason, "target_fp"));
	free(reason);
	assert_int_equal(learner_checkpoint(l, &e), 0);
	learner_close(l);
	dev_free(d);
	buf_done(&b);
	world_done(&w);
}

/* What closes after a candidate is written is kept from training until the verdict, within its bounds. */
static void test_held_out(void **unused)
{
	struct world w;
	char state[300];
	struct dev *d = NULL;
	struct errtext e = {""};
	bool done;
	int n;
	(void)unused;
	world_init(&w, 24);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	struct learner_options o = options(&w, state);
	o.pool_bytes = 100 << 20;
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
	struct learner *l = open_ok(&o, d, &w, 0);
	w.src.visible = w.src.n / 3;
	for (int i = 0; i < 40; i++)
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_int_equal(learner_begin(l, NULL, &done, &e), 0);
	assert_true(done);
	assert_int_equal(learner_count(l, RUN_HELD_OUT), 0);
	publish(l);
	assert_int_equal(entry(l, J_SUBMITTED, accept_candidate(&w, l->pending.name, 1), ""), 0);
	w.src.visible = w.src.n;
	for (int i = 0; i < 40; i++)
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_int_equal(learner_count(l, RUN_HELD_OUT), o.heldout_max);
	while (learner_can_step(l))
		assert_int_equal(learner_step(l, &e), 0);
	for (int i = 0; i < l->runs.n; i++)
		if (l->runs.v[i].state == RUN_HELD_OUT)
			assert_int_equal(l->runs.v[i].epochs, 0);
	/* judged on them, both ways */
	json_t *j = NULL;
	assert_int_equal(evaluate(l, 1, 0, 3, NULL, &j, &e), 0);
	assert_int_equal(json_integer_value(json_object_get(j, "requests")), o.heldout_max);
	assert_true(json_is_true(json_object_get(j, "full")));
	json_t *pair = json_array_get(json_object_get(j, "pairs"), 0);
	assert_true(json_real_value(json_object_get(pair, "live_al")) == 1.0);
	assert_true(json_real_value(json_object_get(pair, "candidate_al")) >= 1.0);
	json_decref(j);
	assert_int_equal(evaluate(l, 1, 1, 3, NULL, &j, &e), 0);
	pair = json_array_get(json_object_get(j, "pairs"), 0);
	assert_true(json_real_value(json_object_get(pair, "live_al")) == json_real_value(json_object_get(pair, "candidate_al")));
	json_decref(j);
	assert_int_equal(evaluate(l, 7, 1, 3, NULL, &j, &e) < 0, 1);
	/* another version's verdict frees nothing, this one's does */
	assert_int_equal(entry(l, J_VERDICT, 2, "accepted"), 0);
	assert_int_equal(learner_count(l, RUN_HELD_OUT), o.heldout_max);
	assert_int_equal(entry(l, J_VERDICT, 1, "accepted"), 0);
	assert_int_equal(learner_count(l, RUN_HELD_OUT), 0);
	assert_true(learner_can_step(l));
	assert_int_equal(evaluate(l, 1, 0, 3, NULL, &j, &e), EVALUATE_E_NOT_ENOUGH);
	learner_close(l);
	dev_free(d);
	world_done(&w);
}

/* Where a learner without a checkpoint goes on: live, the base though it was refused, the newest not refused. */
static void test_start(void **unused)
{
	static const struct { uint32_t live, base, want; enum version_state of[3]; } cases[] = {
		{3, 1, 3, {VS_RETIRED, VS_PREVIOUS, VS_LIVE}}, {2, 1, 2, {VS_RETIRED, VS_LIVE, VS_CANDIDATE}},
		{0, 1, 1, {VS_REJECTED, VS_REJECTED, VS_REJECTED}}, {0, 1, 1, {VS_REJECTED, VS_REJECTED, VS_CANDIDATE}},
		{0, 1, 2, {VS_QUARANTINED, VS_GATED, VS_REJECTED}}, {0, 1, 0, {VS_QUARANTINED, VS_REJECTED, VS_QUARANTINED}},
		{0, 0, 3, {VS_RETIRED, VS_RETIRED, VS_RETIRED}},
	};
	char dir[256];
	(void)unused;
	tw_temp_dir(dir);
	assert_int_equal(publish_newest(dir), 0);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct version_entry v[3] = {{.number = 1, .state = cases[i].of[0]}, {.number = 2, .state = cases[i].of[1]}, {.number = 3, .state = cases[i].of[2]}};
		struct store_state s = {.next_number = 4, .live = cases[i].live, .base = cases[i].base, .n_versions = 3, .versions = v};
		assert_int_equal(store_state_write(dir, &s, NULL), 0);
		assert_int_equal(publish_newest(dir), cases[i].want);
	}
	assert_int_equal(fs_remove_tree(dir), 0);
}

/* Rebase: the version's weights (bf16 widened) with fresh moments; a bad number changes and journals nothing. */
static void test_rebase(void **unused)
{
	struct world w;
	char state[300], before[65], after[65];
	struct dev *d = NULL;
	struct errtext e = {""};
	bool done;
	int n;
	(void)unused;
	world_init(&w, 12);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	struct learner_options o = options(&w, state);
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
	struct learner *l = open_ok(&o, d, &w, 0);
	for (int i = 0; i < 40; i++)
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_int_equal(learner_begin(l, NULL, &done, &e), 0);
	publish(l);
	assert_int_equal(entry(l, J_SUBMITTED, accept_candidate(&w, l->pending.name, 1), ""), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(learner_step(l, &e), 0);
	learner_weights_sha(l, before);
	int64_t end = journal_end(l->journal);
	assert_true(learner_rebase(l, 5, &e) < 0);
	assert_int_equal(journal_end(l->journal), end);
	learner_weights_sha(l, after);
	assert_string_equal(before, after);
	assert_int_equal(learner_rebase(l, 1, &e), 0);
	learner_weights_sha(l, after);
	assert_string_not_equal(before, after);
	struct draft v;
	assert_int_equal(publish_read_version(w.store, 1, &w.fz, &v, &e), 0);
	assert_memory_equal(v.w, trainer_eagle3.params(l->t), v.n * sizeof *v.w);
	draft_done(&v);
	/* one that overtakes the answer to Submit: the candidate is numbered, what is trained descends from 1 */
	assert_int_equal(entry(l, J_VERDICT, 1, "rejected"), 0);
	assert_int_equal(learner_step(l, &e), 0);
	assert_int_equal(learner_publish(l, &e), 0);
	assert_int_equal(learner_rebase(l, 1, &e), 0);
	learner_close(l);
	l = open_ok(&o, d, &w, 0);
	assert_int_equal(entry(l, J_SUBMITTED, accept_candidate(&w, l->pending.name, 2), ""), 0);
	assert_int_equal(l->pending.version, 2);
	assert_int_equal(l->base, 1);
	learner_close(l);
	dev_free(d);
	world_done(&w);
}

/* A step that a program took which named its device and no order of sums, or neither: its journal opens, and it is said and counted once. */
static void test_other_sums(void **unused)
{
	static const char *const taken_on[] = {"cpu portable", "", "cpu portable, sums 1"};
	struct dev *d = NULL;
	(void)unused;
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
	for (size_t i = 0; i < sizeof taken_on / sizeof *taken_on; i++) {
		struct world w;
		char state[300], text[JOURNAL_TEXT], said[400];
		struct errtext e = {""};
		struct learner *l = NULL;
		int n;
		world_init(&w, 8);
		(void)snprintf(state, sizeof state, "%s/s", w.dir);
		struct learner_options o = options(&w, state);
		l = open_ok(&o, d, &w, 0);
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
		bool done = false;
		assert_int_equal(learner_begin(l, "", &done, &e), 0);
		assert_true(done);
		assert_int_equal(learner_step(l, &e), 0);
		learner_close(l);
		l = open_ok(&o, d, &w, 0); /* ours */
		assert_int_equal(l->step, 1);
		o = l->o;
		(void)snprintf(o.device, sizeof o.device, "%s", taken_on[i]);
		assert_int_equal(learner_print_config(&o, text, sizeof text), 0);
		assert_int_equal(entry(l, J_CONFIG, 0, text), 0);
		assert_int_equal(learner_step(l, &e), 0);
		learner_close(l);
		o = options(&w, state);
		assert_int_equal(learner_open(&o, d, &w.src.base, &w.fz, &l, &e), LEARNER_E_INEXACT);
		(void)snprintf(said, sizeof said, "1 steps of the journal were taken on %s and repeated on cpu portable, sums 2,", *taken_on[i] ? taken_on[i] : "a device that it does not name");
		assert_non_null(strstr(e.text, said));
		assert_int_equal(l->step, 2);
		assert_int_equal(l->n.inexact, 1);
		assert_int_equal(learner_checkpoint(l, &e), 0);
		learner_close(l);
		l = open_ok(&o, d, &w, 0);
		assert_int_equal(l->n.inexact, 1);
		learner_close(l);
		world_done(&w);
	}
	dev_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_topic_anew), cmocka_unit_test(test_topic_anew_and_longer),
		cmocka_unit_test(test_copy_after_restart), cmocka_unit_test(test_set_aside), cmocka_unit_test(test_held_out), cmocka_unit_test(test_start),
		cmocka_unit_test(test_rebase), cmocka_unit_test(test_other_sums),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
