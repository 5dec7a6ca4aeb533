/* How a draft begins: the vocabulary is the most frequent ids in ascending order;
 * random weights are a function of the seed with the stated spread; a warm start
 * passes the high boundary through and takes the target's head rows.
 */
#include "tests/unit/learn/vectors.h"
#include "learn/init.h"

static void test_vocab(void **state)
{
	(void)state;
	const uint64_t counts[10] = {0, 5, 0, 9, 1, 5, 0, 2, 0, 5};
	const int want4[] = {1, 3, 5, 9}, want8[] = {0, 1, 2, 3, 4, 5, 7, 9}, want2[] = {1, 3};
	int64_t d2t[10];
	assert_int_equal(draft_vocab_from_counts(counts, 10, 4, d2t), 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(d2t[i] + i, want4[i]);
	/* six were seen: the two smallest unseen ids fill up */
	assert_int_equal(draft_vocab_from_counts(counts, 10, 8, d2t), 0);
	for (int i = 0; i < 8; i++)
		assert_int_equal(d2t[i] + i, want8[i]);
	/* three ids share a count and one place is left: the lowest */
	assert_int_equal(draft_vocab_from_counts(counts, 10, 2, d2t), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(d2t[i] + i, want2[i]);
	assert_int_equal(draft_vocab_from_counts(counts, 10, 10, d2t), 0);
	for (int i = 0; i < 10; i++)
		assert_int_equal(d2t[i], 0);
	assert_int_equal(draft_vocab_from_counts(counts, 10, 11, d2t), -EINVAL);
}

static struct eagle3_config shape(void)
{
	return (struct eagle3_config){.H = 32, .H_t = 32, .I = 48, .n_head = 4, .n_kv = 2, .hd = 8, .V = 50, .V_d = 20, .rms_eps = (real)1e-5,
				      .rope = {.theta = 10000, .kind = ROPE_DEFAULT}};
}

static void test_random(void **state)
{
	(void)state;
	struct eagle3_config c = shape();
	struct draft_layout lay;
	draft_layout_init(&c, &lay);
	real *a = malloc(lay.total * sizeof *a), *b = malloc(lay.total * sizeof *b);
	draft_init_random(&c, 3, a);
	draft_init_random(&c, 3, b);
	assert_memory_equal(a, b, lay.total * sizeof *a);
	draft_init_random(&c, 4, b);
	assert_true(memcmp(a, b, lay.total * sizeof *a) != 0);
	double sum = 0, squares = 0;
	size_t n = (size_t)lay.rows[E3_FC] * (size_t)lay.cols[E3_FC];
	for (size_t i = 0; i < n; i++) {
		double x = (double)a[lay.off[E3_FC] + i];
		assert_true(fabs(x) <= 0.04 + 1e-9);
		sum += x;
		squares += x * x;
	}
	/* a normal cut at two deviations keeps 0.8796 of its deviation */
	assert_true(fabs(sum / (double)n) <= 0.002);
	assert_true(fabs(sqrt(squares / (double)n) / (0.02 * 0.8796) - 1) <= 0.05);
	for (int i = 0; i < c.H; i++)
		assert_true(a[lay.off[E3_NORM_POST] + (size_t)i] == 1);
	free(a);
	free(b);
}

static void test_warm(void **state)
{
	(void)state;
	struct eagle3_config c = shape();
	struct draft_layout lay;
	draft_layout_init(&c, &lay);
	real *w = malloc(lay.total * sizeof *w), norm[32];
	uint16_t head[50 * 32];
	int64_t d2t[20];
	for (int i = 0; i < 50 * 32; i++)
		head[i] = f32_to_bf16((float)i);
	for (int i = 0; i < 20; i++)
		d2t[i] = i; /* draft id i is token 2i */
	for (int i = 0; i < 32; i++)
		norm[i] = (real)i;
	draft_init_warm(&c, d2t, head, norm, 1, w);
	for (int i = 0; i < 20; i++)
		for (int j = 0; j < 32; j++)
			assert_true(w[lay.off[E3_HEAD] + (size_t)(i * 32 + j)] == (real)bf16_to_f32(head[2 * i * 32 + j]));
	for (int r = 0; r < 32; r++)
		for (int j = 0; j < 96; j++)
			assert_true(fabs((double)w[lay.off[E3_FC] + (size_t)(r * 96 + j)] - 0.1 * (j == 64 + r)) <= 0.0041);
	assert_true(w[lay.off[E3_NORM] + 7] == 7);
	/* widths that differ: no such start, but a valid one */
	c.H_t = 24;
	draft_layout_init(&c, &lay);
	draft_init_warm(&c, d2t, head, NULL, 1, w);
	assert_true(w[lay.off[E3_NORM] + 7] == 1);
	assert_true(fabs((double)w[lay.off[E3_HEAD] + 5]) <= 0.04);
	free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_vocab), cmocka_unit_test(test_random), cmocka_unit_test(test_warm)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
