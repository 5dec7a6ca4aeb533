/* The TTT trainer against an independent PyTorch model (tests/reference/ttt): every
 * step's loss and accuracy, every tensor's gradient, for five: plain; packed
 * runs with a sparse teacher, llama3 RoPE and n_head*hd != H; yarn with V_d = V; and the four norm flags in two drafts.
 * Also: the packing law (a run alone gives what it gives in company), and that one
 * and two threads make the same bits. With products in bf16 the same, at the tolerance of their rounding.
 */
#include "tests/unit/learn/vectors.h"

static const char *const cases[] = {"plain", "packed", "yarn", "norms", "norms_fc"};

/* Of losses (relative), alphas and gradients (of a tensor's largest); an accuracy may move by so many rows */
struct tolerance {
	double loss, alpha, gradient;
	int rows;
};
static const struct tolerance in_f32 = {1e-5, 1e-5, 1e-5, 0}, in_bf16 = {5e-3, 5e-3, 0.1, 1};

/* Steps, total, accuracies and the gradient of each tensor, on one device. */
static void compare(const struct ttt_case *k, struct dev *d, struct tolerance tol)
{
	struct train_result res;
	struct draft_layout lay;
	char name[32];
	struct trainer *t = ttt_case_trainer(k, d);
	assert_int_equal(trainer_eagle3.forward_backward(t, &k->b, &res), 0);
	for (int i = 0; i < k->opt.ttt_steps; i++) {
		snprintf(name, sizeof name, "loss_%d", i);
		double want = vectors_number(k->v, name);
		if (!(fabs(res.step_loss[i] - want) <= tol.loss * fabs(want)))
			fail_msg("%s is %.9g, reference %.9g", name, res.step_loss[i], want);
		snprintf(name, sizeof name, "acc_%d", i);
		if (!(fabs(res.step_acc[i] - vectors_number(k->v, name)) <= 1e-12 + (double)tol.rows / (k->b.n - i)))
			fail_msg("%s is %.9g, reference %.9g", name, res.step_acc[i], vectors_number(k->v, name));
		snprintf(name, sizeof name, "alpha_%d", i);
		assert_true(fabs(res.step_alpha[i] - vectors_number(k->v, name)) <= tol.alpha);
	}
	assert_true(fabs(res.loss - vectors_number(k->v, "total")) <= tol.loss * fabs(res.loss));
	assert_true(fabs(res.grad_norm - vectors_number(k->v, "grad_norm")) <= tol.gradient * res.grad_norm);
	size_t n;
	real *want = vectors_reals(k->v, "grads", &n);
	const real *got = trainer_eagle3.grads(t);
	draft_layout_init(&k->c, &lay);
	assert_int_equal(n, lay.total);
	for (int i = 0; i < E3_N_ALL; i++) {
		double diff = worst(got + lay.off[i], want + lay.off[i], (size_t)lay.rows[i] * (size_t)lay.cols[i]);
		if (!(diff <= tol.gradient))
			fail_msg("gradient of %s is off by %.3g of its largest", eagle3_tensor_name((enum eagle3_tensor)i), diff);
	}
	free(want);
	trainer_eagle3.free(t);
}

static void test_equals_torch(void **state)
{
	(void)state;
	const enum dev_isa isa[] = {ISA_PORTABLE, ISA_AVX2, ISA_AVX512, ISA_AVX512_BF16, ISA_AVX512_BF16};
	enum { STRICT = 4, ALL };
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (size_t j = 0; j < ALL; j++) {
			struct ttt_case k;
			struct dev *d = j < STRICT ? dev_or_null(2, isa[j]) : fast_or_null(2, isa[j]);
			if (!d)
				continue;
			ttt_case_open(&k, cases[i]);
			compare(&k, d, j < STRICT ? in_f32 : in_bf16);
			ttt_case_close(&k);
			dev_free(d);
		}
}

static const struct ops *ops_of_device;
static int64_t multiplied; /* in products */

static int counted_gemm(struct dev *d, real *C, int ldc, bool tA, const real *A, int lda, bool tB, const real *B, int ldb, int M, int N, int K, bool add)
{
	multiplied += (int64_t)M * N * K;
	return ops_of_device->gemm(d, C, ldc, tA, A, lda, tB, B, ldb, M, N, K, add);
}

/* Rows without weight in front are left out of the steps (ttt_lead): same losses, and the gradient to rounding, as when their first one has
 * a weight of 0 and they are not. Left out they are: at each step one row less in the three products of the MLP, forth and twice back. */
static void lead(const char *name, struct dev *d)
{
	struct ttt_case k;
	struct train_result res[2];
	if (!d)
		return;
	struct ops counted = *d->ops;
	ops_of_device = d->ops;
	counted.gemm = counted_gemm;
	d->ops = &counted;
	ttt_case_open(&k, name);
	k.opt.ttt_steps = 3;
	uint8_t mask[64], in_vocab[64];
	real weight[64];
	int n = k.b.n, first = n / 2 + 1;
	int64_t spared = (int64_t)9 * k.c.H * k.c.I * 3 * (first - 2), less = 0;
	assert_true(n <= 64 && first > k.opt.ttt_steps);
	for (int i = 0; i < n; i++) {
		mask[i] = i >= first && k.b.mask[i];
		in_vocab[i] = k.b.in_vocab[i];
		weight[i] = i > 0;
	}
	k.b.mask = mask;
	k.b.in_vocab = in_vocab;
	k.b.weight = weight;
	struct trainer *t = ttt_case_trainer(&k, d);
	size_t N = trainer_eagle3.n_params(t);
	real *g = malloc(N * sizeof *g);
	multiplied = 0;
	assert_int_equal(trainer_eagle3.forward_backward(t, &k.b, &res[0]), 0);
	less -= multiplied;
	memcpy(g, trainer_eagle3.grads(t), N * sizeof *g);
	mask[0] = in_vocab[0] = 1;
	multiplied = 0;
	assert_int_equal(trainer_eagle3.forward_backward(t, &k.b, &res[1]), 0);
	less += multiplied;
	assert_true(less >= spared);
	assert_true(res[0].loss > 0 && res[0].grad_norm > 0);
	for (int i = 0; i < 3; i++)
		assert_true(res[0].step_loss[i] == res[1].step_loss[i] && res[0].step_alpha[i] == res[1].step_alpha[i]);
	double diff = worst(g, trainer_eagle3.grads(t), N);
	if (!(diff <= (sizeof(real) == 8 ? 1e-14 : d->math == MATH_FAST ? 5e-3 : 2e-6)))
		fail_msg("%s: the gradient is off by %.3g of its largest", name, diff);
	free(g);
	trainer_eagle3.free(t);
	ttt_case_close(&k);
	dev_free(d);
}

static void test_lead(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		for (enum dev_isa isa = ISA_PORTABLE; isa < ISA_END; isa++)
			lead(cases[i], dev_or_null(2, isa));
		lead(cases[i], fast_or_null(2, ISA_AVX512_BF16));
	}
}

/* Step k's logits themselves, so that a fault shows where it starts. */
static void test_logits(void **state)
{
	(void)state;
	struct ttt_case k;
	struct ttt *t;
	struct errtext e;
	struct dev *d = dev_or_null(1, ISA_AUTO);
	ttt_case_open(&k, "plain");
	assert_int_equal(ttt_new(d, &k.c, k.d2t, k.embedding, TTT_TRAIN, &t, &e), 0);
	memcpy(t->w, k.params, t->lay.total * sizeof(real));
	assert_int_equal(ttt_begin(t, k.b.n, 7, k.b.ids, k.b.features), 0);
	assert_int_equal(ttt_forward(t, k.b.pos, k.b.seg), 0);
	for (int i = 0; i < 7; i++) {
		char name[32];
		size_t n;
		snprintf(name, sizeof name, "logits_%d", i);
		real *want = vectors_reals(k.v, name, &n);
		assert_int_equal(n, (size_t)((k.b.n - i) * k.c.V_d));
		assert_int_equal(ttt_logits(t, t->step[i].h2, NULL, k.b.n - i), 0);
		double diff = worst(t->logits, want, n);
		if (!(diff <= 1e-5))
			fail_msg("logits of step %d off by %.3g", i, diff);
		free(want);
	}
	ttt_free(t);
	ttt_case_close(&k);
	dev_free(d);
}

/* RoPE tables of the three kinds the cases use. */
static void test_rope_tables(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct ttt_case k;
		size_t n;
		real mscale, got[64];
		ttt_case_open(&k, cases[i]);
		real *want = vectors_reals(k.v, "inv_freq", &n);
		assert_true(n <= 64);
		rope_table(&k.c.rope, k.c.hd, got, &mscale);
		for (size_t j = 0; j < n; j++)
			assert_true(fabs((double)(got[j] - want[j])) <= 1e-6 * fabs((double)want[j]));
		assert_true(fabs((double)mscale - vectors_number(k.v, "rope_mscale_out")) <= 1e-6);
		free(want);
		ttt_case_close(&k);
	}
}

/* One run of the packed case, taken out and trained alone: its gradient times its
 * share of rows, summed over the runs, is the packed gradient. A leak through
 * tokens, teacher or attention would break this. */
static void test_packing_is_a_sum(void **state)
{
	(void)state;
	struct ttt_case k;
	struct train_result res;
	struct dev *d = dev_or_null(2, ISA_AUTO);
	ttt_case_open(&k, "packed");
	struct trainer *t = ttt_case_trainer(&k, d);
	size_t total = trainer_eagle3.n_params(t);
	real *sum = calloc(total, sizeof *sum);
	double loss = 0;
	int K = k.b.teacher.K, F = 3 * k.c.H_t;
	for (int r0 = 0, end; r0 < k.b.n; r0 = end) {
		for (end = r0; end < k.b.n && k.b.seg[end] == (uint32_t)r0; end++)
			;
		struct train_batch b = k.b;
		b.n = b.teacher.n = end - r0;
		b.ids += r0;
		b.pos += r0;
		b.seg = NULL;
		b.features += (size_t)r0 * (size_t)F;
		b.mask += r0;
		b.y += r0;
		b.in_vocab += r0;
		b.teacher.ids += r0 * K;
		b.teacher.p += r0 * K;
		assert_int_equal(trainer_eagle3.forward_backward(t, &b, &res), 0);
		const real *g = trainer_eagle3.grads(t);
		real share = (real)b.n / (real)k.b.n;
		loss += (double)share * res.loss;
		for (size_t i = 0; i < total; i++)
			sum[i] += share * g[i];
	}
	assert_int_equal(trainer_eagle3.forward_backward(t, &k.b, &res), 0);
	assert_true(fabs(loss - res.loss) <= 1e-6 * loss);
	assert_true(worst(trainer_eagle3.grads(t), sum, total) <= 2e-6);
	free(sum);
	trainer_eagle3.free(t);
	ttt_case_close(&k);
	dev_free(d);
}

/* Larger than one chunk of logits and one block of anything, with holes in the
 * mask: 1 and 2 threads give the same bits, and so does a second run. */
static void same_bits_for_any_threads(bool fast)
{
	enum { N = 300 };
	struct ttt_case k;
	struct train_result res[3];
	real *grads[3];
	size_t total = 0;
	ttt_case_open(&k, "plain");
	uint32_t ids[N + 1], pos[N], y[N];
	uint8_t mask[N], in_vocab[N];
	real *features = malloc(N * 3 * (size_t)k.c.H_t * sizeof *features), *p = malloc(N * (size_t)k.c.V_d * sizeof *p);
	for (int i = 0; i <= N; i++)
		ids[i] = (uint32_t)(i * 7919 % k.c.V);
	for (int i = 0; i < N; i++) {
		int from = i % k.b.n;
		pos[i] = (uint32_t)i;
		y[i] = k.b.y[from];
		mask[i] = i % 5 != 0;
		in_vocab[i] = i % 11 != 0;
		memcpy(features + i * 3 * k.c.H_t, k.features + (from * 3 * k.c.H_t), 3 * (size_t)k.c.H_t * sizeof *features);
		memcpy(p + i * k.c.V_d, k.p + from * k.c.V_d, (size_t)k.c.V_d * sizeof *p);
	}
	struct train_batch b = {.n = N, .ids = ids, .pos = pos, .features = features, .mask = mask, .y = y, .in_vocab = in_vocab,
				.teacher = {.n = N, .K = k.c.V_d, .p = p}};
	for (int i = 0; i < 3; i++) {
		struct dev *d = (fast ? fast_or_null : dev_or_null)(i == 1 ? 2 : 1, fast ? ISA_AVX512_BF16 : ISA_AUTO);
		struct trainer *t = ttt_case_trainer(&k, d);
		total = trainer_eagle3.n_params(t);
		assert_int_equal(trainer_eagle3.step(t, &b, &res[i]), 0);
		assert_int_equal(trainer_eagle3.step(t, &b, &res[i]), 0);
		grads[i] = malloc(2 * total * sizeof(real));
		memcpy(grads[i], trainer_eagle3.grads(t), total * sizeof(real));
		memcpy(grads[i] + total, trainer_eagle3.params(t), total * sizeof(real));
		trainer_eagle3.free(t);
		dev_free(d);
	}
	for (int i = 1; i < 3; i++) {
		assert_memory_equal(grads[0], grads[i], 2 * total * sizeof(real));
		assert_memory_equal(&res[0].loss, &res[i].loss, sizeof res[0].loss);
		assert_memory_equal(&res[0].grad_norm, &res[i].grad_norm, sizeof res[0].grad_norm);
	}
	for (int i = 0; i < 3; i++)
		free(grads[i]);
	free(features);
	free(p);
	ttt_case_close(&k);
}

static void test_same_bits_for_any_threads(void **state)
{
	(void)state;
	same_bits_for_any_threads(false);
}

static void test_same_bits_in_bf16(void **state)
{
	(void)state;
	struct dev *d = fast_or_null(1, ISA_AVX512_BF16);
	if (!d) {
		print_message("skip: this CPU, or the double build, has no products in bf16\n");
		skip();
	}
	dev_free(d);
	same_bits_for_any_threads(true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rope_tables),
		cmocka_unit_test(test_logits),
		cmocka_unit_test(test_equals_torch), cmocka_unit_test(test_lead),
		cmocka_unit_test(test_packing_is_a_sum),
		cmocka_unit_test(test_same_bits_for_any_threads), cmocka_unit_test(test_same_bits_in_bf16),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
