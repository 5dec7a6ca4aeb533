/* Optimizers and schedule against torch (tests/reference/ttt adamw and muon): 40
 * steps from the same gradients, some clipped and some not, warm-up then cosine.
 * And: saved state continues to the same bits; loading NULL forgets.
 */
#include "tests/unit/learn/vectors.h"
#include "learn/optimizers.h"
#include "learn/schedule.h"

static struct train_options read_options(const struct vectors *v, enum optimizer_kind kind)
{
	struct train_options o = options_default();
	o.optimizer = kind;
	o.lr = (real)vectors_number(v, "lr");
	o.muon_lr = (real)vectors_number(v, "muon_lr");
	o.clip = (real)vectors_number(v, "clip");
	o.warmup_steps = (int64_t)vectors_number(v, "warmup");
	o.total_steps = (int64_t)vectors_number(v, "total");
	return o;
}

static double norm_of(struct dev *d, const real *g, size_t n)
{
	double sum;
	assert_int_equal(d->ops->sumsq(d, &sum, g, n), 0);
	return sqrt(sum);
}

static void compare(const char *name, enum optimizer_kind kind, double tolerance)
{
	struct dev *d = dev_or_null(2, ISA_AUTO);
	struct vectors *v = vectors_open(name);
	struct eagle3_config c = vectors_config(v);
	struct draft_layout lay;
	struct optimizer *o;
	struct train_options opt = read_options(v, kind);
	draft_layout_init(&c, &lay);
	assert_int_equal(optimizer_new(d, &lay, &opt, &o), 0);
	size_t n, size = lay.total * sizeof(real);
	real *w0 = vectors_reals(v, "w0", &n), *grads = vectors_reals(v, "grads", NULL);
	real *first = vectors_reals(v, "w_first", NULL), *last = vectors_reals(v, "w_last", NULL);
	assert_int_equal(n, lay.total);
	real *w = d->ops->alloc(d, size), *g = d->ops->alloc(d, size);
	assert_int_equal(d->ops->upload(d, w, w0, size), 0);
	int steps = (int)vectors_number(v, "steps");
	for (int i = 0; i < steps; i++) {
		assert_int_equal(d->ops->upload(d, g, grads + (size_t)i * n, size), 0);
		assert_int_equal(optimizer_step(o, w, g, norm_of(d, g, n)), 0);
		const real *want = i == 0 ? first : last;
		if (i != 0 && i != steps - 1)
			continue;
		for (int j = 0; j < E3_N_TENSORS; j++) {
			double diff = worst(w + lay.off[j], want + lay.off[j], (size_t)lay.rows[j] * (size_t)lay.cols[j]);
			if (!(diff <= tolerance))
				fail_msg("%s step %d: %s off by %.3g", name, i, eagle3_tensor_name((enum eagle3_tensor)j), diff);
		}
	}
	d->ops->free(d, w);
	d->ops->free(d, g);
	free(w0);
	free(grads);
	free(first);
	free(last);
	optimizer_free(o);
	vectors_close(v);
	dev_free(d);
}

static void test_adamw(void **state)
{
	(void)state;
	compare("adamw", OPT_ADAMW, 1e-6);
}

static void test_muon(void **state)
{
	(void)state;
	compare("muon", OPT_MUON, 1e-5);
}

static void test_schedule(void **state)
{
	(void)state;
	struct vectors *v = vectors_open("adamw");
	for (int i = 0; i < (int)vectors_number(v, "steps"); i++) {
		char name[32];
		snprintf(name, sizeof name, "factor_%d", i);
		assert_true(fabs(schedule_factor(i, 5, 60, 0) - vectors_number(v, name)) <= 1e-12);
	}
	vectors_close(v);
	assert_true(schedule_factor(0, 0, 0, 0) == 1.0);
	assert_true(schedule_factor(1000000, 10, 0, 0) == 1.0);
	assert_true(schedule_factor(3, 8, 0, 0) == 0.5);
	assert_true(schedule_factor(60, 5, 60, 0) == 0.0);
	assert_true(schedule_factor(99, 5, 60, 0) == 0.0);
	assert_true(schedule_factor(0, 0, 0, 3) == 3.0);
	assert_true(schedule_factor(0, 2, 0, 3) == 1.5);
	assert_true(fabs(schedule_factor(300, 10, 0, 3) - 1.5) <= 1e-12);
	assert_true(schedule_factor(100000, 10, 0, 3) == 1.0);
}

/* Ten steps in one go, or five, save, load into another optimizer, five more. */
static void resumes(enum optimizer_kind kind)
{
	struct dev *d = dev_or_null(1, ISA_AUTO);
	struct vectors *v = vectors_open("muon");
	struct eagle3_config c = vectors_config(v);
	struct draft_layout lay;
	struct optimizer *o[3];
	struct train_options opt = read_options(v, kind);
	draft_layout_init(&c, &lay);
	size_t n = lay.total, size = n * sizeof(real);
	real *w0 = vectors_reals(v, "w0", NULL), *grads = vectors_reals(v, "grads", NULL);
	real *w[3], *saved = malloc(2 * size);
	int64_t step;
	for (int i = 0; i < 3; i++) {
		assert_int_equal(optimizer_new(d, &lay, &opt, &o[i]), 0);
		w[i] = d->ops->alloc(d, size);
		memcpy(w[i], w0, size);
	}
	for (int i = 0; i < 10; i++) {
		const real *g = grads + (size_t)i * n;
		assert_int_equal(optimizer_step(o[0], w[0], g, norm_of(d, g, n)), 0);
		assert_int_equal(optimizer_step(o[i < 5 ? 1 : 2], w[1], g, norm_of(d, g, n)), 0);
		if (i == 4) {
			assert_int_equal(optimizer_n_state(o[1]), 2 * n);
			assert_int_equal(optimizer_save(o[1], saved, &step), 0);
			assert_int_equal(step, 5);
			assert_int_equal(optimizer_load(o[2], saved, step), 0);
		}
	}
	assert_memory_equal(w[0], w[1], size);
	/* moments forgotten: as a new optimizer at that step */
	assert_int_equal(optimizer_load(o[0], NULL, 0), 0);
	optimizer_free(o[1]);
	assert_int_equal(optimizer_new(d, &lay, &opt, &o[1]), 0);
	assert_int_equal(optimizer_step(o[0], w[0], grads, norm_of(d, grads, n)), 0);
	assert_int_equal(optimizer_step(o[1], w[1], grads, norm_of(d, grads, n)), 0);
	assert_memory_equal(w[0], w[1], size);
	for (int i = 0; i < 3; i++) {
		optimizer_free(o[i]);
		d->ops->free(d, w[i]);
	}
	free(saved);
	free(w0);
	free(grads);
	vectors_close(v);
	dev_free(d);
}

static void test_state_resumes(void **state)
{
	(void)state;
	resumes(OPT_ADAMW);
	resumes(OPT_MUON);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_schedule),
		cmocka_unit_test(test_adamw),
		cmocka_unit_test(test_muon),
		cmocka_unit_test(test_state_resumes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
