/* Top-k and log-sum-exp of a row: against a sort, with ties (lower index first),
 * infinities and NaN, K from 0 to N; and the same with the names that a draft's tokens have in its target.
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

/* Names and log-probabilities are those of topk; a row with a NaN or an infinity above has none, and its neighbours do. */
static void named(void **state)
{
	enum { M = 70, N = 37, K = 4, BAD = 5, WORSE = 66 };
	struct dev *d = kt_dev(state, KT_MAX_THREADS);
	kt_seed(41);
	real *x = kt_reals(M * N, 10);
	uint32_t names[N], ids[M * K];
	float vals[M * K], lse[M];
	uint32_t *on_dev = d->ops->alloc(d, sizeof names), *first = d->ops->alloc(d, M * sizeof *first), *got = d->ops->alloc_shared(d, sizeof ids), back[M];
	float *logp = d->ops->alloc_shared(d, sizeof vals);
	assert_true(on_dev && first && got && logp);
	for (uint32_t i = 0; i < N; i++)
		names[i] = 1000 + 3 * i;
	assert_int_equal(d->ops->upload(d, on_dev, names, sizeof names), 0);
	assert_int_equal(d->ops->topk(d, ids, vals, lse, x, N, M, N, K), 0);
	x[BAD * N + 3] = (real)NAN;
	x[WORSE * N] = (real)INFINITY;
	assert_int_equal(d->ops->topk_named(d, got, logp, first, x, N, M, N, K, on_dev), 0);
	assert_int_equal(d->ops->download(d, back, first, sizeof back), 0);
	for (int m = 0; m < M; m++)
		for (int i = 0; i < K; i++) {
			bool none = m == BAD || m == WORSE;
			assert_int_equal(got[m * K + i], none ? OP_NO_NAME : names[ids[m * K + i]]);
			assert_true(none || logp[m * K + i] == vals[m * K + i] - lse[m]);
			assert_int_equal(back[m], none ? 0 : names[ids[m * K]]);
		}
	x[0] = -(real)INFINITY; /* a token that cannot be drawn is no fault */
	assert_int_equal(d->ops->topk_named(d, got, logp, NULL, x, N, 1, N, 1, on_dev), 0);
	assert_int_equal(d->ops->sync(d), 0);
	assert_int_not_equal(got[0], OP_NO_NAME);
	assert_int_equal(d->ops->topk_named(d, got, logp, NULL, x, N, 1, N, 0, on_dev), -EINVAL);
	d->ops->free(d, on_dev), d->ops->free(d, first), d->ops->free(d, got), d->ops->free(d, logp);
	kt_free(x);
	dev_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {KT_TESTS(against_sort), KT_TESTS(strange_values), KT_TESTS(named)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
