/* The law that lets a learner train what a server runs: row t of TTT step k is the
 * served draft chain's step k after prefix t. For every row and step of five
 * cases, with f32 weights, within 3e-6 of the largest logit (eagle3.md §0).
 * The served side is kernels/model/eagle3.c over paged attention, the learner's is
 * learn/ttt_forward.c over TTT attention; they share only single ops.
 */
#include "tests/unit/learn/draft_chain.h"

/* logits[k][t] of all steps, host */
static real *ttt_all_logits(const struct ttt_case *k, struct dev *d, int steps)
{
	struct ttt *t;
	struct errtext e;
	size_t row = (size_t)k->c.V_d, n = (size_t)k->b.n;
	real *all = calloc((size_t)steps * n * row, sizeof *all);
	assert_non_null(all);
	assert_int_equal(ttt_new(d, &k->c, k->d2t, k->embedding, TTT_TRAIN, &t, &e), 0);
	assert_int_equal(d->ops->upload(d, t->w, k->params, t->lay.total * sizeof(real)), 0);
	assert_int_equal(ttt_begin(t, k->b.n, steps, k->b.ids, k->b.features), 0);
	assert_int_equal(ttt_forward(t, k->b.pos, NULL), 0);
	for (int i = 0; i < steps; i++) {
		int m = k->b.n - i;
		assert_int_equal(ttt_logits(t, t->step[i].h2, NULL, m), 0);
		assert_int_equal(d->ops->download(d, all + (size_t)i * n * row, t->logits, (size_t)m * row * sizeof(real)), 0);
	}
	ttt_free(t);
	return all;
}

static void check_case(const char *name, int n, enum dev_isa isa)
{
	struct ttt_case k;
	struct chain s;
	struct dev *d = dev_or_null(2, isa);
	if (!d)
		return;
	ttt_case_open(&k, name);
	k.b.n = n; /* one run, nothing packed */
	int steps = k.opt.ttt_steps;
	size_t row = (size_t)k.c.V_d;
	real *ttt = ttt_all_logits(&k, d, steps);
	double top = 0, diff = 0;
	for (size_t i = 0; i < (size_t)steps * (size_t)n * row; i++)
		top = fmax(top, fabs((double)ttt[i]));
	assert_true(top > 0.1);
	chain_open(&s, d, &k.c, k.params, k.d2t, k.embedding);
	for (int t = 0; t < n; t++) {
		chain_extend(&s, k.b.ids, k.b.pos, k.b.features, t, t);
		for (int i = 0; i < steps && t + i < n; i++) {
			if (i)
				chain_step(&s, k.b.pos, t, i, k.b.ids[t + 1 + i]);
			const real *want = ttt + ((size_t)i * (size_t)n + (size_t)t) * row;
			for (size_t j = 0; j < row; j++) {
				double e = fabs((double)s.logits[j] - (double)want[j]);
				if (!(e <= diff))
					diff = e;
			}
		}
	}
	print_message("%s: largest difference %.3g of %.3g\n", name, diff, top);
	assert_true(diff <= 5e-6 * top); /* 3.9e-6 on the avx512-bf16 path */
	chain_close(&s);
	free(ttt);
	ttt_case_close(&k);
	dev_free(d);
}

static void test_chain_equals_ttt(void **state)
{
	(void)state;
	for (enum dev_isa isa = ISA_PORTABLE; isa < ISA_END; isa++) {
		check_case("plain", 13, isa);
		check_case("packed", 11, isa);
		check_case("yarn", 9, isa);
		check_case("norms", 12, isa);
		check_case("norms_fc", 12, isa);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_chain_equals_ttt)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
