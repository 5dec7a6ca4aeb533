/* Packing is lossless: unpack gives back, bit for bit, what was packed, for every
 * layout and odd size; embed reads the same numbers; f32 to bf16 rounds to even.
 * Weights share chunks of memory: neither a neighbour's end nor the packing dev's touches them.
 */
#include "kt.h"

static const int sizes[][2] = {{1, 1}, {3, 5}, {16, 16}, {17, 33}, {100, 576}, {333, 7}};

static void round_trip(void **state)
{
	struct dev *d = kt_dev(state, KT_MAX_THREADS);
	kt_seed(50);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		int N = sizes[i][0], K = sizes[i][1];
		size_t n = (size_t)(N * K);
		float *f = kt_floats(n, 3), *f2 = kt_floats(n, 1);
		uint16_t *h = malloc(n * 2), *h2 = malloc(n * 2);
		assert_true(h && h2);
		for (size_t j = 0; j < n; j++)
			h[j] = j % 7 == 0 ? 0x7fc1 : f32_to_bf16(f[j]); /* NaN payloads too */
		struct weight w = {0};
		uint32_t ids[3] = {(uint32_t)N - 1, 0, (uint32_t)(N / 2)};
		real *rows = kt_reals((size_t)(3 * K), 1);

		assert_int_equal(d->ops->weight_pack(d, &w, DT_F32, N, K, f, DT_F32), 0);
		assert_int_equal(d->ops->weight_unpack(d, f2, &w), 0);
		assert_memory_equal(f, f2, n * sizeof *f);
		assert_int_equal(d->ops->embed(d, rows, &w, ids, NULL, 3), 0);
		for (int m = 0; m < 3; m++)
			for (int k = 0; k < K; k++)
				assert_true(rows[m * K + k] == (real)f[(int)ids[m] * K + k]);
		d->ops->weight_free(d, &w);

		assert_int_equal(d->ops->weight_pack(d, &w, DT_BF16, N, K, h, DT_BF16), 0);
		assert_int_equal(d->ops->weight_unpack(d, h2, &w), 0);
		assert_memory_equal(h, h2, n * 2);
		d->ops->weight_free(d, &w);

		assert_int_equal(d->ops->weight_pack(d, &w, DT_BF16, N, K, f, DT_F32), 0);
		assert_int_equal(d->ops->weight_unpack(d, h2, &w), 0);
		for (size_t j = 0; j < n; j++)
			assert_int_equal(h2[j], f32_to_bf16(f[j]));
		assert_int_equal(d->ops->embed(d, rows, &w, ids, NULL, 3), 0);
		assert_true(rows[0] == (real)bf16_to_f32(h2[(N - 1) * K]));
		uint32_t *given = d->ops->alloc(d, 2 * sizeof *given);
		assert_non_null(given);
		assert_int_equal(d->ops->upload(d, given, (uint32_t[2]){0, (uint32_t)N - 1}, 2 * sizeof *given), 0);
		ids[0] = 0, ids[2] = OP_GIVEN | 1;
		assert_int_equal(d->ops->embed(d, rows, &w, ids, given, 3), 0);
		for (int k = 0; k < K; k++)
			assert_true(rows[k] == rows[K + k] && rows[2 * K + k] == (real)bf16_to_f32(h2[(N - 1) * K + k]));
		assert_int_equal(d->ops->embed(d, rows, &w, ids, NULL, 3), -EINVAL);
		d->ops->free(d, given);
		ids[1] = (uint32_t)N, ids[2] = 0;
		assert_int_equal(d->ops->embed(d, rows, &w, ids, NULL, 3), -EINVAL);
		d->ops->weight_free(d, &w);
		kt_free(f), kt_free(f2), kt_free(h), kt_free(h2), kt_free(rows);
	}
	struct weight none = {0};
	float x;
	assert_int_equal(d->ops->weight_unpack(d, &x, &none), -EINVAL);
	dev_free(d);
}

/* More weights than a chunk holds; every other one freed, and the dev that packed them */
static void outlives_its_dev(void **state)
{
	enum { COUNT = 24, N = 512, K = 1024 };
	struct dev *d = kt_dev(state, 1), *d2 = kt_dev(state, 1);
	struct weight w[COUNT] = {0};
	uint16_t *h = malloc(N * K * 2), *h2 = malloc(N * K * 2);
	assert_true(h && h2);
	for (int i = 0; i < COUNT; i++) {
		for (int j = 0; j < N * K; j++)
			h[j] = (uint16_t)(j * 7 + i);
		assert_int_equal(d->ops->weight_pack(d, &w[i], DT_BF16, N, K, h, DT_BF16), 0);
	}
	dev_free(d);
	for (int i = 0; i < COUNT; i += 2)
		d2->ops->weight_free(d2, &w[i]);
	for (int i = 1; i < COUNT; i += 2) {
		for (int j = 0; j < N * K; j++)
			h[j] = (uint16_t)(j * 7 + i);
		assert_int_equal(d2->ops->weight_unpack(d2, h2, &w[i]), 0);
		assert_memory_equal(h, h2, N * K * 2);
		d2->ops->weight_free(d2, &w[i]);
	}
	kt_free(h), kt_free(h2);
	dev_free(d2);
}

static void rounding(void **state)
{
	(void)state;
	assert_int_equal(f32_to_bf16(1.00390625f), 0x3f80);  /* half way: to even, down */
	assert_int_equal(f32_to_bf16(1.01171875f), 0x3f82);  /* half way: to even, up */
	assert_int_equal(f32_to_bf16(1.0039064f), 0x3f81);
	assert_int_equal(f32_to_bf16(INFINITY), 0x7f80);
	assert_int_equal(f32_to_bf16(3.4e38f), 0x7f80);      /* rounds past the largest */
	assert_true(isnan(bf16_to_f32(f32_to_bf16(NAN))));
	assert_int_equal(f32_to_bf16(-0.0f), 0x8000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {KT_TESTS(round_trip), KT_TESTS(outlives_its_dev), cmocka_unit_test(rounding)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
