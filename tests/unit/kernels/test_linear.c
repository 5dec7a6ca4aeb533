/* Linear layers over packed weights: right against a double reference for every
 * path, type, row count and odd size; and the law of order: a row's bits do not
 * depend on how many rows, which neighbours or how many threads there are.
 */
#include "kt.h"

static const int sizes[][2] = {{1, 1}, {5, 3}, {16, 8}, {17, 31}, {33, 64}, {70, 385}, {130, 576}, {48, 1201}}; /* N, K */
static const int row_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 33, 130};

static double rounded(double x, bool to_bf16)
{
	return to_bf16 ? (double)bf16_to_f32(f32_to_bf16((float)x)) : x;
}

static void check_size(struct dev *d, enum dtype type, int N, int K, bool add)
{
	bool x16 = kt_rounds_x(d) && type == DT_BF16;
	float *wf = kt_floats((size_t)N * (size_t)K, 1);
	struct weight w;
	assert_int_equal(d->ops->weight_pack(d, &w, type, N, K, wf, DT_F32), 0);
	for (size_t ri = 0; ri < sizeof row_counts / sizeof *row_counts; ri++) {
		int M = row_counts[ri], ldx = K + 3, ldy = N + 5;
		real *x = kt_reals((size_t)M * (size_t)ldx, 1), *y = kt_reals((size_t)M * (size_t)ldy, 1);
		double *ref = kt_doubles((size_t)M * (size_t)ldy);
		for (int m = 0; m < M; m++)
			for (int i = 0; i < ldy; i++) {
				double s = i >= N || add ? (double)y[m * ldy + i] : 0;
				for (int k = 0; i < N && k < K; k++)
					s += rounded((double)x[m * ldx + k], x16) * rounded((double)wf[(size_t)i * (size_t)K + (size_t)k], type == DT_BF16);
				ref[m * ldy + i] = s;
			}
		assert_int_equal(d->ops->linear(d, y, ldy, &w, x, ldx, M, add), 0);
		kt_close(y, ref, (size_t)M * (size_t)ldy, KT_TOL(1e-6));
		kt_free(x);
		kt_free(y);
		kt_free(ref);
	}
	d->ops->weight_free(d, &w);
	kt_free(wf);
}

static void against_reference(void **state)
{
	struct dev *d = kt_dev(state, KT_MAX_THREADS);
	kt_seed(1);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		for (int type = DT_F32; type <= DT_BF16; type++)
			check_size(d, (enum dtype)type, sizes[i][0], sizes[i][1], i % 2);
	dev_free(d);
}

static void law_of_order(void **state)
{
	enum { N = 200, K = 1000, M = 130 };
	struct dev *d = kt_dev(state, KT_MAX_THREADS);
	kt_seed(2);
	float *wf = kt_floats((size_t)N * K, 1);
	real *x = kt_reals((size_t)M * K, 1);
	real *all = kt_reals((size_t)M * N, 0), *y = kt_reals((size_t)M * N, 0);
	for (int type = DT_F32; type <= DT_BF16; type++) {
		struct weight w;
		assert_int_equal(d->ops->weight_pack(d, &w, (enum dtype)type, N, K, wf, DT_F32), 0);
		dev_set_threads(d, 1);
		for (int m = 0; m < M; m++) /* each row alone */
			assert_int_equal(d->ops->linear(d, all + (size_t)m * N, N, &w, x + (size_t)m * K, K, 1, false), 0);
		for (int t = 1; t <= kt_threads(d); t++) {
			dev_set_threads(d, t);
			for (size_t ri = 0; ri < sizeof row_counts / sizeof *row_counts; ri++)
				for (int m0 = 0; m0 + row_counts[ri] <= M; m0 += 29) {
					int rows = row_counts[ri];
					assert_int_equal(d->ops->linear(d, y, N, &w, x + (size_t)m0 * K, K, rows, false), 0);
					kt_same_bits(y, all + (size_t)m0 * N, (size_t)rows * N);
				}
		}
		d->ops->weight_free(d, &w);
	}
	kt_free(wf);
	kt_free(x);
	kt_free(all);
	kt_free(y);
	dev_free(d);
}

static void bad_sizes(void **state)
{
	struct dev *d = kt_dev(state, 1);
	float wf[6] = {0};
	real x[3] = {0}, y[2] = {1, 2};
	struct weight w = {0};
	assert_int_equal(d->ops->weight_pack(d, &w, DT_F32, 0, 3, wf, DT_F32), -EINVAL);
	assert_int_equal(d->ops->weight_pack(d, &w, DT_F32, 2, -1, wf, DT_F32), -EINVAL);
	assert_null(w.packed);
	assert_int_equal(d->ops->linear(d, y, 2, &w, x, 3, 1, false), -EINVAL); /* nothing packed */
	assert_int_equal(d->ops->weight_pack(d, &w, DT_F32, 2, 3, wf, DT_F32), 0);
	assert_int_equal(d->ops->linear(d, y, 1, &w, x, 3, 1, false), -EINVAL);
	assert_int_equal(d->ops->linear(d, y, 2, &w, x, 2, 1, false), -EINVAL);
	assert_int_equal(d->ops->linear(d, y, 2, &w, x, 3, 0, false), 0);
	assert_true(y[0] == 1 && y[1] == 2);
	d->ops->weight_free(d, &w);
	d->ops->weight_free(d, &w); /* twice is fine */
	dev_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {KT_TESTS(against_reference), KT_TESTS(law_of_order), KT_TESTS(bad_sizes)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
