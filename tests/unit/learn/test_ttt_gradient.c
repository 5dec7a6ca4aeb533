/* Every tensor's gradient against central differences of the loss, in the double
 * build (V=double): 24 random entries a tensor (5 for the kinds of loss that are not the default), 1e-6 of the tensor's largest.
 * This knows nothing of PyTorch or of the derivation. In the float build the
 * differences would drown in rounding, so it skips there.
 */
#include "tests/unit/learn/vectors.h"

#ifdef REDRAFT_DOUBLE
static double loss_at(struct trainer *t, const struct train_batch *b, size_t i, double delta)
{
	struct train_result res;
	real *p = trainer_eagle3.params(t), keep = p[i];
	p[i] = (real)((double)keep + delta);
	trainer_eagle3.params_changed(t);
	assert_int_equal(trainer_eagle3.forward_backward(t, b, &res), 0);
	p = trainer_eagle3.params(t);
	p[i] = keep;
	trainer_eagle3.params_changed(t);
	return res.loss;
}

/* lead: so many rows in front are context */
static void check_case(const char *name, enum loss_kind kind, int lead, uint64_t seed)
{
	struct ttt_case k;
	struct train_result res;
	struct draft_layout lay;
	struct dev *d = dev_or_null(1, ISA_PORTABLE);
	ttt_case_open(&k, name);
	real weight[64], mass[64];
	for (int i = 0; i < k.b.n && i < 64; i++) {
		weight[i] = 1 + (i % 3 == 1);
		mass[i] = (real)(0.4 + 0.6 * (i % 7) / 7);
	}
	if (kind != LOSS_KL) {
		k.opt.loss = kind;
		k.b.weight = weight;
		k.b.teacher.mass = mass;
	}
	uint8_t mask[64];
	for (int i = 0; i < k.b.n && i < 64; i++)
		mask[i] = i >= lead && k.b.mask[i];
	k.b.mask = mask;
	if (lead)
		k.opt.ttt_steps = 3;
	struct trainer *t = ttt_case_trainer(&k, d);
	draft_layout_init(&k.c, &lay);
	assert_int_equal(trainer_eagle3.forward_backward(t, &k.b, &res), 0);
	real *g = malloc(lay.total * sizeof *g);
	memcpy(g, trainer_eagle3.grads(t), lay.total * sizeof *g);
	print_message("%s, loss %d: seed %llu\n", name, (int)kind, (unsigned long long)seed);
	for (int i = 0; i < E3_N_ALL; i++) {
		size_t n = (size_t)lay.rows[i] * (size_t)lay.cols[i];
		if (!n)
			continue;
		double top = 0, off = 0;
		for (size_t j = 0; j < n; j++)
			top = fmax(top, fabs((double)g[lay.off[i] + j]));
		for (int trial = 0; trial < (kind == LOSS_KL ? 24 : 5); trial++) {
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			size_t at = lay.off[i] + (size_t)(seed >> 33) % n;
			/* fourth order, so that a step large enough for rounding is still exact */
			double h = 1e-3, want = (8 * (loss_at(t, &k.b, at, h) - loss_at(t, &k.b, at, -h)) -
						 (loss_at(t, &k.b, at, 2 * h) - loss_at(t, &k.b, at, -2 * h))) / (12 * h);
			double diff = fabs(want - (double)g[at]);
			if (!(diff <= off))
				off = diff;
		}
		if (!(off <= 1e-6 * top))
			fail_msg("%s: %s differs from finite differences by %.3g of its largest (%.3g)", name,
				 eagle3_tensor_name((enum eagle3_tensor)i), off / top, top);
	}
	free(g);
	trainer_eagle3.free(t);
	ttt_case_close(&k);
	dev_free(d);
}

static void test_finite_differences(void **state)
{
	(void)state;
	check_case("plain", LOSS_KL, 0, 11);
	check_case("packed", LOSS_KL, 0, 12);
	check_case("yarn", LOSS_KL, 0, 13);
	check_case("norms", LOSS_KL, 0, 18);
	check_case("norms_fc", LOSS_KL, 0, 19);
	check_case("plain", LOSS_KL, 7, 20);
	check_case("packed", LOSS_KL, 7, 21);
	check_case("norms", LOSS_KL, 7, 22);
	/* the other kinds, on weighted rows and with mass outside the draft vocabulary; of lk-lambda the mix has no
	 * gradient by definition, so its differences are not its gradient: test_peer.c has it */
	const enum loss_kind kinds[] = {LOSS_REVERSE_KL, LOSS_TV, LOSS_CE, LOSS_LK_ALPHA};
	for (int i = 0; i < 4; i++)
		check_case("packed", kinds[i], 0, 14 + (uint64_t)i);
}
#else
static void test_finite_differences(void **state)
{
	(void)state;
	print_message("skipped: finite differences need the double build (make unit V=double)\n");
	skip();
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_finite_differences)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
