/* The sum of squares, AdamW and the backward row operations: against double
 * references; finite differences in the double build; same bits for any threads.
 */
#include "kt.h"

#ifdef REDRAFT_DOUBLE
static double norm_loss(struct dev *d, const real *x, const real *g, const real *dy, int M, int H)
{
	real *y = kt_reals((size_t)(M * H), 1);
	double s = 0;
	assert_int_equal(d->ops->rmsnorm(d, y, H, NULL, x, H, g, 1e-5, M, H), 0);
	for (int i = 0; i < M * H; i++)
		s += y[i] * dy[i];
	kt_free(y);
	return s;
}

static double silu_loss(struct dev *d, const real *gu, const real *dy, int M, int I)
{
	real *y = kt_reals((size_t)(M * I), 1);
	double s = 0;
	assert_int_equal(d->ops->silu_gate(d, y, gu, M, I), 0);
	for (int i = 0; i < M * I; i++)
		s += y[i] * dy[i];
	kt_free(y);
	return s;
}

static void row_differences(void **state)
{
	enum { M = 3, H = 11 };
	struct dev *d = kt_dev(state, 2);
	kt_seed(33);
	real *x = kt_reals(M * H, 2), *g = kt_reals(H, 1), *dy = kt_reals(M * H, 1), *gu = kt_reals(2 * M * H, 3);
	real dx[M * H] = {0}, dg[H] = {0}, rstd[M], y[M * H], dgu[2 * M * H];
	const double eps = 1e-5;
	assert_int_equal(d->ops->rmsnorm(d, y, H, rstd, x, H, g, 1e-5, M, H), 0);
	assert_int_equal(d->ops->rmsnorm_backward(d, dx, H, dg, dy, H, x, H, g, rstd, M, H), 0);
	assert_int_equal(d->ops->silu_gate_backward(d, dgu, dy, gu, M, H), 0);
	for (int i = 0; i < M * H + H + 2 * M * H; i++) {
		bool norm = i < M * H + H;
		real *at = i < M * H ? &x[i] : norm ? &g[i - M * H] : &gu[i - M * H - H];
		double got = i < M * H ? dx[i] : norm ? dg[i - M * H] : dgu[i - M * H - H], keep = *at;
		*at = keep + eps;
		double up = norm ? norm_loss(d, x, g, dy, M, H) : silu_loss(d, gu, dy, M, H);
		*at = keep - eps;
		double down = norm ? norm_loss(d, x, g, dy, M, H) : silu_loss(d, gu, dy, M, H);
		*at = keep;
		assert_false(!(fabs((up - down) / (2 * eps) - got) <= 1e-8 + 1e-7 * fabs(got)));
	}
	kt_free(x), kt_free(g), kt_free(dy), kt_free(gu);
	dev_free(d);
}
#endif

static void sum_of_squares(void **state)
{
	struct dev *d = kt_dev(state, KT_MAX_THREADS);
	kt_seed(34);
	for (size_t n = 0; n < 300000; n = n * 5 + 3) {
		real *x = kt_reals(n, 1);
		double ref = 0, got[KT_MAX_THREADS];
		for (size_t i = 0; i < n; i++)
			ref += (double)x[i] * (double)x[i];
		for (int t = 1; t <= kt_threads(d); t++) {
			dev_set_threads(d, t);
			assert_int_equal(d->ops->sumsq(d, &got[t - 1], x, n), 0);
			assert_false(!(fabs(got[t - 1] - ref) <= 1e-12 * ref));
			assert_memory_equal(&got[t - 1], &got[0], sizeof(double));
		}
		kt_free(x);
	}
	dev_free(d);
}

static void adamw(void **state)
{
	enum { N = 30011 };
	struct dev *d = kt_dev(state, KT_MAX_THREADS);
	kt_seed(35);
	real *w = kt_reals(N, 1), *m = kt_reals(N, 0), *v = kt_reals(N, 0), *w1 = kt_copy(w, N), *m1 = kt_copy(m, N), *v1 = kt_copy(v, N);
	double *rw = kt_doubles(N), *rm = kt_doubles(N), *rv = kt_doubles(N);
	const double lr = (double)(real)0.01, b1 = (double)(real)0.9, b2 = (double)(real)0.999, eps = (double)(real)1e-8, wd = (double)(real)0.1, gs = 0.5;
	for (int i = 0; i < N; i++)
		rw[i] = (double)w[i];
	for (int step = 1; step <= 5; step++) {
		real *g = kt_reals(N, 1);
		g[0] = 0;
		for (int i = 0; i < N; i++) {
			double gi = (double)g[i] * gs;
			rm[i] = b1 * rm[i] + (1 - b1) * gi;
			rv[i] = b2 * rv[i] + (1 - b2) * gi * gi;
			rw[i] -= lr * (wd * rw[i] + rm[i] / (1 - pow(b1, step)) / (sqrt(rv[i] / (1 - pow(b2, step))) + eps));
		}
		dev_set_threads(d, KT_MAX_THREADS);
		assert_int_equal(d->ops->adamw(d, w, m, v, g, N, (real)lr, (real)b1, (real)b2, (real)eps, (real)wd, (real)gs, step), 0);
		dev_set_threads(d, 1);
		assert_int_equal(d->ops->adamw(d, w1, m1, v1, g, N, (real)lr, (real)b1, (real)b2, (real)eps, (real)wd, (real)gs, step), 0);
		kt_free(g);
	}
	kt_close(w, rw, N, KT_TOL(1e-6));
	kt_close(m, rm, N, KT_TOL(1e-6));
	kt_close(v, rv, N, KT_TOL(2e-5)); /* 1 - beta2 is known to 6e-5 of itself in float */
	kt_same_bits(w, w1, N);
	kt_same_bits(m, m1, N);
	kt_same_bits(v, v1, N);
	assert_int_equal(d->ops->adamw(d, w, m, v, w1, N, (real)lr, (real)b1, (real)b2, (real)eps, 0, 1, 0), -EINVAL);
	kt_free(w), kt_free(m), kt_free(v), kt_free(w1), kt_free(m1), kt_free(v1), kt_free(rw), kt_free(rm), kt_free(rv);
	dev_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		KT_TESTS(sum_of_squares), KT_TESTS(adamw),
#ifdef REDRAFT_DOUBLE
		KT_TESTS(row_differences),
#endif
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
