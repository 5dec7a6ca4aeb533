/* Top-k and log-sum-exp of a row: against a sort, with ties (lower index first),
 * infinities and NaN, K from 0 to N.
 */
#include "kt.h"

struct entry {
	real v;
	uint32_t id;
};

static int by_value(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;
	if (x->v != y->v)
		return x->v > y->v ? -1 : 1;
	return x->id < y->id ? -1 : 1;
}

static void check(struct dev *d, int M, int N, int K, double levels)
{
	int ld = N + 1;
	real *x = kt_reals((size_t)(M * ld), 10);
	uint32_t *ids = malloc((size_t)(M * K + 1) * sizeof *ids);
	float *vals = kt_floats((size_t)(M * K), 1), *lse = kt_floats((size_t)M, 1);
	struct entry *e = malloc((size_t)N * sizeof *e);
	assert_true(ids && e);
	for (int i = 0; levels > 0 && i < M * ld; i++)
		x[i] = (real)(round((double)x[i] * levels) / levels); /* many ties */
	assert_int_equal(d->ops->topk(d, ids, vals, lse, x, ld, M, N, K), 0);
	for (int m = 0; m < M; m++) {
		double sum = 0;
		for (int i = 0; i < N; i++) {
			e[i] = (struct entry){x[m * ld + i], (uint32_t)i};
			sum += exp((double)x[m * ld + i]);
		}
		qsort(e, (size_t)N, sizeof *e, by_value);
		for (int i = 0; i < K; i++) {
			assert_int_equal(ids[m * K + i], e[i].id);
			assert_true(vals[m * K + i] == (float)e[i].v);
		}
		assert_false(!(fabs((double)lse[m] - log(sum)) <= 2e-6 * fabs(log(sum)) + 1e-6));
	}
	kt_free(x), kt_free(ids), kt_free(vals), kt_free(lse), kt_free(e);
}

static void against_sort(void **state)
{
	struct dev *d = kt_dev(state, KT_MAX_THREADS);
	kt_seed(40);
	check(d, 1, 1, 1, 0);
	check(d, 3, 9, 9, 0);
	check(d, 3, 300, 0, 0);
	check(d, 5, 1000, 64, 0);
	check(d, 5, 1000, 64, 1);
	check(d, 2, 49152, 64, 0);
	check(d, 2, 49152, 64, 2);
	check(d, 9, 130, 5, 0.2);
	dev_free(d);
}

static void strange_values(void **state)
{
	struct dev *d = kt_dev(state, 1);
	const real values[6] = {-(real)INFINITY, 1, (real)NAN, (real)INFINITY, 1, -5};
	real *x = kt_copy(values, 6);
	uint32_t ids[6];
	float vals[6];
	assert_int_equal(d->ops->topk(d, ids, vals, NULL, x, 6, 1, 6, 6), 0);
	const uint32_t want[6] = {3, 1, 4, 5, 0, 2};
	assert_memory_equal(ids, want, sizeof want);
	assert_int_equal(d->ops->topk(d, ids, vals, NULL, x, 6, 1, 6, 7), -EINVAL);
	assert_int_equal(d->ops->topk(d, ids, vals, NULL, x, 5, 1, 6, 1), -EINVAL);
	assert_int_equal(d->ops->topk(d, NULL, NULL, NULL, x, 6, 0, 6, 1), 0);
	kt_free(x);
	dev_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {KT_TESTS(against_sort), KT_TESTS(strange_values)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
