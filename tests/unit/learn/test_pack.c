/* A step of several runs: no run twice, none longer than fits, new ones mixed with old, for several groups of ranks so many times as much; one that cannot be read is left out
 * of its step and spoils no other; a step that is far off is taken apart, and each window judged alone. That such a learner
 * resumes bit for bit is in test_learner (its Muon worlds pack), that a packed gradient is its runs' in test_ttt. */
#include "tests/unit/learn/learner_world.h"

struct packed { struct world w; char state[300]; struct dev *d; struct learner *l; };

static void open_groups(struct packed *p, int pack_rows, int groups)
{
	struct errtext e = {""};
	bool done;
	int n = 1;
	world_init(&p->w, 24);
	(void)snprintf(p->state, sizeof p->state, "%s/s", p->w.dir);
	struct learner_options o = options(&p->w, p->state);
	o.pool_bytes = 100 << 20;
	o.max_rows = 96;
	o.pack_rows = pack_rows;
	o.train.data = groups;
	o.max_epochs = 1;
	o.queue_max = 200;
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &p->d), 0);
	p->l = open_ok(&o, p->d, &p->w, 0);
	while (n)
		assert_int_equal(learner_consume(p->l, 64, &n, &e), 0);
	assert_int_equal(learner_begin(p->l, NULL, &done, &e), 0);
	assert_true(done);
}

static void open_packed(struct packed *p, int pack_rows)
{
	open_groups(p, pack_rows, 0);
}

static void close_packed(struct packed *p)
{
	learner_close(p->l);
	dev_free(p->d);
	world_done(&p->w);
}

static int trained(const struct learner *l)
{
	int n = 0;
	for (int i = 0; i < l->runs.n; i++)
		n += l->runs.v[i].epochs;
	return n;
}

/* Steps until nothing is left; the most runs that one step took. */
static int all_steps(struct learner *l, int *ret_steps)
{
	struct errtext e = {""};
	int most = 0, steps = 0;
	while (learner_can_step(l)) {
		int before = trained(l), rows = 0, groups = l->o.train.data > 1 ? l->o.train.data : 1;
		int most_rows = groups * (l->o.pack_rows > 0 ? l->o.pack_rows : l->o.max_rows);
		uint8_t had[512];
		assert_true(l->runs.n < 512);
		for (int i = 0; i < l->runs.n; i++)
			had[i] = (uint8_t)l->runs.v[i].epochs;
		assert_int_equal(learner_step(l, &e), 0);
		for (int i = 0; i < l->runs.n; i++) {
			const struct run *r = &l->runs.v[i];
			assert_true(r->epochs - had[i] <= 1);
			if (r->epochs > had[i])
				rows += r->n - r->first < l->o.max_rows ? r->n - r->first : l->o.max_rows;
		}
		int n = trained(l) - before;
		assert_true(n <= 1 || rows <= most_rows);
		most = n > most ? n : most;
		steps++;
	}
	*ret_steps = steps;
	return most;
}

static void test_several(void **unused)
{
	struct packed p;
	int alone, together;
	(void)unused;
	open_packed(&p, 0);
	assert_int_equal(all_steps(p.l, &alone), 1);
	int runs = trained(p.l);
	int64_t rows = p.l->n.trained_tokens;
	close_packed(&p);
	open_packed(&p, 96);
	int most = all_steps(p.l, &together);
	print_message("%d runs in %d steps, %d at most in one\n", runs, together, most);
	assert_int_equal(trained(p.l), runs);
	assert_true(most > 1 && together < alone);
	assert_true(rows > 0 && p.l->n.trained_tokens == rows); /* none is lost to its neighbours */
	assert_int_equal(p.l->n.steps_bad, 0);
	close_packed(&p);
}

/* Two groups of ranks: half as many steps, each of what two would have taken, nothing left out. (The groups themselves: test_seqpar.) */
static void test_groups(void **unused)
{
	struct packed p;
	int alone, both;
	(void)unused;
	for (int pack = 0; pack <= 96; pack += 96) {
		open_packed(&p, pack);
		(void)all_steps(p.l, &alone);
		int runs = trained(p.l);
		int64_t rows = p.l->n.trained_tokens;
		close_packed(&p);
		open_groups(&p, pack, 2);
		int most = all_steps(p.l, &both);
		print_message("room for %d: %d steps, for two groups %d\n", pack, alone, both);
		assert_true(most >= 2 && 2 * both >= alone && 3 * both < 2 * alone);
		assert_int_equal(trained(p.l), runs);
		assert_true(rows > 0 && p.l->n.trained_tokens == rows);
		assert_int_equal(p.l->n.steps_bad, 0);
		close_packed(&p);
	}
}

/* A long run is several windows, which groups take side by side. */
static void test_long_run(void **unused)
{
	struct step_room room = {.groups = 3, .rows = 10};
	(void)unused;
	assert_true(step_takes(&room, 20) && step_takes(&room, 6) && step_takes(&room, 4) && step_takes(&room, 5) && step_takes(&room, 5));
	assert_false(step_takes(&room, 1));
	room = (struct step_room){0};
	assert_true(step_takes(&room, 7));
	assert_false(step_takes(&room, 1));

	struct packed p;
	int alone, three;
	open_groups(&p, 0, 1);
	p.l->o.max_rows = 16;
	(void)all_steps(p.l, &alone);
	int runs = trained(p.l);
	close_packed(&p);
	open_groups(&p, 0, 3);
	p.l->o.max_rows = 16;
	(void)all_steps(p.l, &three);
	print_message("%d windows of %d runs in %d steps\n", alone, runs, three);
	assert_true(alone > runs + 5 && trained(p.l) == runs && three == (alone + 2) / 3);
	close_packed(&p);
}

static void test_unreadable(void **unused)
{
	struct packed p;
	char path[400];
	int steps;
	(void)unused;
	open_packed(&p, 96);
	struct pool_ref at = {0};
	for (int i = 0; i < p.l->runs.n && !at.len; i++)
		if (p.l->runs.v[i].state == RUN_QUEUED)
			at = p.l->runs.v[i].refs[0];
	assert_true(at.len > 100);
	(void)snprintf(path, sizeof path, "%s/pool/%08u.seg", p.state, at.segment);
	FILE *f = fopen(path, "r+b");
	assert_non_null(f);
	assert_int_equal(fseek(f, (long)at.offset + 90, SEEK_SET), 0);
	int c = fgetc(f);
	assert_int_equal(fseek(f, (long)at.offset + 90, SEEK_SET), 0);
	assert_int_not_equal(fputc(c ^ 0x55, f), EOF);
	assert_int_equal(fclose(f), 0);
	assert_true(all_steps(p.l, &steps) > 1);
	int bad = 0;
	for (int i = 0; i < p.l->runs.n; i++)
		bad += p.l->runs.v[i].bad;
	assert_true(bad >= 1 && bad <= 2); /* a record may hold a run and the history of the next */
	assert_int_equal(p.l->n.steps_bad, bad);
	assert_true(p.l->n.trained_tokens > 0);
	close_packed(&p);
}

/* A hundred times above what was usual: no window of the step is trained, each is counted, none is condemned. */
static void test_far_off(void **unused)
{
	struct packed p;
	struct errtext e = {""};
	char before[65], after[65];
	int n = 0;
	(void)unused;
	open_packed(&p, 96);
	for (int i = 0; i < 4; i++)
		assert_int_equal(learner_step(p.l, &e), 0);
	p.l->usual_loss /= 100;
	p.l->losses = 50;
	learner_weights_sha(p.l, before);
	while (n < 2 && learner_can_step(p.l)) {
		int was = trained(p.l);
		uint64_t spikes = p.l->n.steps_spike;
		assert_int_equal(learner_step(p.l, &e), 0);
		n = trained(p.l) - was;
		assert_int_equal(p.l->n.steps_spike - spikes, n);
	}
	assert_true(n >= 2);
	learner_weights_sha(p.l, after);
	assert_string_equal(before, after);
	assert_int_equal(p.l->n.steps_bad, 0);
	for (int i = 0; i < p.l->runs.n; i++)
		assert_false(p.l->runs.v[i].bad);
	close_packed(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_several), cmocka_unit_test(test_groups), cmocka_unit_test(test_long_run), cmocka_unit_test(test_unreadable), cmocka_unit_test(test_far_off)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
