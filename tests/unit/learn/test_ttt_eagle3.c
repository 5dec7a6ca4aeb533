/* The trainer as its caller sees it: it learns (loss falls, accuracy rises, with
 * both optimizers), a batch that makes NaN changes nothing, bad batches and
 * options are refused, short batches and batches without weight are fine, and a
 * step is one function of weights, state and batch whatever came before.
 */
#include "tests/unit/learn/vectors.h"

static void overfit(enum optimizer_kind kind)
{
	struct ttt_case k;
	struct train_result first = {0}, last = {0};
	struct dev *d = dev_or_null(2, ISA_AUTO);
	ttt_case_open(&k, "plain");
	k.opt.optimizer = kind;
	k.opt.lr = (real)1e-2;
	struct trainer *t = ttt_case_trainer(&k, d);
	trainer_eagle3.init_random(t, 1);
	/* a teacher sure of y, where y is in the vocabulary */
	for (int i = 0; i < k.b.n; i++)
		for (int j = 0; j < k.c.V_d; j++)
			k.p[i * k.c.V_d + j] = k.d2t[j] + j == (int64_t)k.b.y[i] ? 1 : 0;
	for (int i = 0; i < 30; i++)
		assert_int_equal(trainer_eagle3.step(t, &k.b, i ? &last : &first), 0);
	print_message("%s: loss %.4f -> %.4f, first accuracy %.3f -> %.3f\n", kind == OPT_MUON ? "muon" : "adamw", first.loss, last.loss,
		      first.step_acc[0], last.step_acc[0]);
	assert_true(last.loss < 0.5 * first.loss);
	assert_true(last.step_acc[0] > first.step_acc[0] && last.step_acc[0] >= 0.5);
	assert_true(last.step_acc[1] > first.step_acc[1]);
	assert_true(last.step_alpha[0] > 0.5);
	trainer_eagle3.free(t);
	ttt_case_close(&k);
	dev_free(d);
}

static void test_learns(void **state)
{
	(void)state;
	overfit(OPT_ADAMW);
	overfit(OPT_MUON);
}

/* Infinity among the features: step says 1 and weights, moments, counter stay. */
static void test_non_finite_changes_nothing(void **state)
{
	(void)state;
	struct ttt_case k;
	struct train_result res;
	struct dev *d = dev_or_null(1, ISA_AUTO);
	ttt_case_open(&k, "plain");
	struct trainer *t = ttt_case_trainer(&k, d);
	size_t n = trainer_eagle3.n_params(t), m = trainer_eagle3.n_state(t);
	real *w = malloc(n * sizeof *w), *s = malloc(m * sizeof *s), *after = malloc(m * sizeof *after);
	int64_t step, step_after;
	assert_int_equal(trainer_eagle3.step(t, &k.b, &res), 0);
	memcpy(w, trainer_eagle3.params(t), n * sizeof *w);
	assert_int_equal(trainer_eagle3.save_state(t, s, &step), 0);
	assert_int_equal(step, 1);
	real keep = k.features[5];
	k.features[5] = (real)INFINITY;
	assert_int_equal(trainer_eagle3.step(t, &k.b, &res), 1);
	assert_memory_equal(trainer_eagle3.params(t), w, n * sizeof *w);
	assert_int_equal(trainer_eagle3.save_state(t, after, &step_after), 0);
	assert_int_equal(step_after, step);
	assert_memory_equal(after, s, m * sizeof *s);
	/* and the next good batch trains as if nothing had been */
	k.features[5] = keep;
	assert_int_equal(trainer_eagle3.step(t, &k.b, &res), 0);
	struct trainer *other = ttt_case_trainer(&k, d);
	assert_int_equal(trainer_eagle3.step(other, &k.b, &res), 0);
	assert_int_equal(trainer_eagle3.step(other, &k.b, &res), 0);
	assert_memory_equal(trainer_eagle3.params(t), trainer_eagle3.params(other), n * sizeof *w);
	trainer_eagle3.free(other);
	trainer_eagle3.free(t);
	free(w);
	free(s);
	free(after);
	ttt_case_close(&k);
	dev_free(d);
}

/* A batch that grows the arena, then the first again: same bits as before. */
static void test_step_has_no_memory(void **state)
{
	(void)state;
	struct ttt_case k;
	struct train_result a, b;
	struct dev *d = dev_or_null(1, ISA_AUTO);
	ttt_case_open(&k, "packed");
	struct trainer *t = ttt_case_trainer(&k, d);
	size_t n = trainer_eagle3.n_params(t);
	real *g = malloc(n * sizeof *g);
	struct train_batch small = k.b;
	small.n = 9; /* within the first run */
	assert_int_equal(trainer_eagle3.forward_backward(t, &small, &a), 0);
	memcpy(g, trainer_eagle3.grads(t), n * sizeof *g);
	assert_int_equal(trainer_eagle3.forward_backward(t, &k.b, &b), 0);
	assert_int_equal(trainer_eagle3.forward_backward(t, &small, &b), 0);
	assert_memory_equal(g, trainer_eagle3.grads(t), n * sizeof *g);
	assert_true(a.loss == b.loss && a.grad_norm == b.grad_norm);
	free(g);
	trainer_eagle3.free(t);
	ttt_case_close(&k);
	dev_free(d);
}

/* Fewer rows than steps: the steps that have no row have no loss. */
static void test_short_batches(void **state)
{
	(void)state;
	struct ttt_case k;
	struct train_result res;
	struct dev *d = dev_or_null(1, ISA_AUTO);
	ttt_case_open(&k, "plain");
	struct trainer *t = ttt_case_trainer(&k, d);
	uint8_t ones[16], none[16] = {0};
	memset(ones, 1, sizeof ones);
	k.b.mask = k.b.in_vocab = ones;
	for (int n = 1; n <= 3; n++) {
		struct train_batch b = k.b;
		b.n = n;
		assert_int_equal(trainer_eagle3.forward_backward(t, &b, &res), 0);
		for (int i = 0; i < 7; i++)
			assert_true(i < n ? res.step_loss[i] > 0 : res.step_loss[i] == 0);
		assert_int_equal(res.tokens, n);
		assert_true(isfinite(res.grad_norm));
	}
	k.b.mask = none;
	assert_int_equal(trainer_eagle3.step(t, &k.b, &res), 0);
	assert_true(res.loss == 0 && res.grad_norm == 0 && res.tokens == 0);
	trainer_eagle3.free(t);
	ttt_case_close(&k);
	dev_free(d);
}

static void test_refuses(void **state)
{
	(void)state;
	struct ttt_case k;
	struct train_result res;
	struct errtext e;
	struct trainer *t = NULL;
	struct dev *d = dev_or_null(1, ISA_AUTO);
	ttt_case_open(&k, "packed");
	struct trainer *good = ttt_case_trainer(&k, d);
	struct train_batch b = k.b;
	uint32_t ids[64], seg[64], tids[64 * 6];
	memcpy(ids, k.b.ids, ((size_t)b.n + 1) * sizeof *ids);
	memcpy(seg, k.b.seg, (size_t)b.n * sizeof *seg);
	memcpy(tids, k.b.teacher.ids, (size_t)(b.n * b.teacher.K) * sizeof *tids);
	ids[b.n] = (uint32_t)k.c.V;
	b.ids = ids;
	assert_int_equal(trainer_eagle3.step(good, &b, &res), -EINVAL);
	b = k.b;
	seg[3] = 4;
	b.seg = seg;
	assert_int_equal(trainer_eagle3.step(good, &b, &res), -EINVAL);
	b = k.b;
	tids[7] = (uint32_t)k.c.V_d;
	b.teacher.ids = tids;
	assert_int_equal(trainer_eagle3.step(good, &b, &res), -EINVAL);
	b = k.b;
	b.n = 0;
	assert_int_equal(trainer_eagle3.step(good, &b, &res), -EINVAL);
	trainer_eagle3.free(good);

	struct train_options o = k.opt;
	o.ttt_steps = TTT_MAX_STEPS + 1;
	assert_int_equal(trainer_eagle3.new(d, &k.c, &o, k.d2t, k.embedding, &t, &e), -EINVAL);
	assert_non_null(strstr(e.text, "ttt_steps"));
	o = k.opt;
	o.lr = (real)NAN;
	assert_int_equal(trainer_eagle3.new(d, &k.c, &o, k.d2t, k.embedding, &t, &e), -EINVAL);
	struct eagle3_config c = k.c;
	c.fc_norm = c.norm_before_fc = true;
	assert_int_equal(trainer_eagle3.new(d, &c, &k.opt, k.d2t, k.embedding, &t, &e), -EINVAL);
	assert_non_null(strstr(e.text, "norm_before_fc"));
	c = k.c;
	c.n_kv = 4;
	assert_int_equal(trainer_eagle3.new(d, &c, &k.opt, k.d2t, k.embedding, &t, &e), -EINVAL);
	int64_t d2t[64];
	memcpy(d2t, k.d2t, (size_t)k.c.V_d * sizeof *d2t);
	d2t[k.c.V_d - 1] = k.c.V;
	assert_int_equal(trainer_eagle3.new(d, &k.c, &k.opt, d2t, k.embedding, &t, &e), -EINVAL);
	assert_null(t);
	ttt_case_close(&k);
	dev_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_learns),
		cmocka_unit_test(test_non_finite_changes_nothing),
		cmocka_unit_test(test_step_has_no_memory),
		cmocka_unit_test(test_short_batches),
		cmocka_unit_test(test_refuses),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
