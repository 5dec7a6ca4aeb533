/* Row operations and their backward halves, against double references at odd
 * sizes and row distances; finite differences in the double build; the same bits
 * for any number of threads and for a row alone.
 */
#include "kt.h"

static const int widths[] = {1, 3, 8, 17, 64, 100, 576};

static void rmsnorm_both_ways(void **state)
{
	struct dev *d = kt_dev(state, KT_MAX_THREADS);
	kt_seed(20);
	for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
		int H = widths[i], M = 37, ld = H + 2;
		size_t n = (size_t)(M * ld);
		real *x = kt_reals(n, 3), *g = kt_reals((size_t)H, 1), *y = kt_reals(n, 1), *dy = kt_reals(n, 1), *rstd = kt_reals((size_t)M, 1);
		real *dx = kt_reals(n, 1), *dg = kt_reals((size_t)H, 1);
		double *ry = kt_doubles(n), *rdx = kt_doubles(n), *rdg = kt_doubles((size_t)H);
		for (size_t j = 0; j < n; j++)
			ry[j] = (double)y[j], rdx[j] = (double)dx[j];
		for (int h = 0; h < H; h++)
			rdg[h] = (double)dg[h];
		for (int m = 0; m < M; m++) {
			double s = 0, dot = 0;
			for (int h = 0; h < H; h++)
				s += (double)x[m * ld + h] * (double)x[m * ld + h];
			double r = 1 / sqrt(s / H + 1e-5);
			for (int h = 0; h < H; h++) {
				ry[m * ld + h] = (double)x[m * ld + h] * r * (double)g[h];
				rdg[h] += (double)dy[m * ld + h] * (double)x[m * ld + h] * r;
				dot += (double)dy[m * ld + h] * (double)g[h] * (double)x[m * ld + h];
			}
			for (int h = 0; h < H; h++)
				rdx[m * ld + h] += (double)g[h] * (double)dy[m * ld + h] * r - (double)x[m * ld + h] * r * r * r / H * dot;
		}
		assert_int_equal(d->ops->rmsnorm(d, y, ld, rstd, x, ld, g, (real)1e-5, M, H), 0);
		kt_close(y, ry, n, KT_TOL(1e-6));
		assert_int_equal(d->ops->rmsnorm_backward(d, dx, ld, dg, dy, ld, x, ld, g, rstd, M, H), 0);
		kt_close(dx, rdx, n, KT_TOL(2e-6));
		kt_close(dg, rdg, (size_t)H, KT_TOL(2e-6));
		/* in place, one row alone: same bits */
		assert_int_equal(d->ops->rmsnorm(d, x + 5 * ld, ld, NULL, x + 5 * ld, ld, g, (real)1e-5, 1, H), 0);
		kt_same_bits(x + 5 * ld, y + 5 * ld, (size_t)H);
		kt_free(x), kt_free(g), kt_free(y), kt_free(dy), kt_free(rstd), kt_free(dx), kt_free(dg), kt_free(ry), kt_free(rdx), kt_free(rdg);
	}
	dev_free(d);
}

static void silu_both_ways(void **state)
{
	struct dev *d = kt_dev(state, KT_MAX_THREADS);
	kt_seed(21);
	for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
		int I = widths[i], M = 300;
		size_t n = (size_t)(M * I);
		real *gu = kt_reals(2 * n, 12), *y = kt_reals(n, 1), *dy = kt_reals(n, 1), *dgu = kt_reals(2 * n, 1), *again = kt_reals(n, 1);
		double *ry = kt_doubles(n), *rd = kt_doubles(2 * n);
		gu[0] = 100;
		gu[(size_t)I * 2] = -100; /* the sigmoid's ends */
		for (int m = 0; m < M; m++)
			for (int c = 0; c < I; c++) {
				size_t a = (size_t)(2 * m * I + c), b = a + (size_t)I, o = (size_t)(m * I + c);
				double s = 1 / (1 + exp(-(double)gu[a])), g = (double)gu[a], u = (double)gu[b];
				ry[o] = g * s * u;
				rd[a] = (double)dy[o] * u * (s + g * s * (1 - s));
				rd[b] = (double)dy[o] * g * s;
			}
		assert_int_equal(d->ops->silu_gate(d, y, gu, M, I), 0);
		kt_close(y, ry, n, KT_TOL(1e-6));
		dev_set_threads(d, 1);
		assert_int_equal(d->ops->silu_gate(d, again, gu, M, I), 0);
		kt_same_bits(again, y, n);
		dev_set_threads(d, KT_MAX_THREADS);
		assert_int_equal(d->ops->silu_gate_backward(d, dgu, dy, gu, M, I), 0);
		kt_close(dgu, rd, 2 * n, KT_TOL(1e-6));
		kt_free(gu), kt_free(y), kt_free(dy), kt_free(dgu), kt_free(again), kt_free(ry), kt_free(rd);
	}
	dev_free(d);
}

static void rope_and_inverse(void **state)
{
	enum { M = 70, NH = 3 };
	struct dev *d = kt_dev(state, KT_MAX_THREADS);
	kt_seed(22);
	for (int hd = 2; hd <= 130; hd += 32) {
		int ld = NH * hd + 1;
		size_t n = (size_t)(M * ld);
		real inv_freq[65], mscale = (real)1.1, *x = kt_reals(n, 1), *keep = kt_copy(x, n);
		uint32_t pos[M];
		double *ref = kt_doubles(n);
		for (int i = 0; i < hd / 2; i++)
			inv_freq[i] = (real)pow(10000, -2.0 * i / hd);
		for (int m = 0; m < M; m++)
			pos[m] = m == 3 ? 200000 : kt_u32() % 3000;
		for (size_t i = 0; i < n; i++)
			ref[i] = (double)x[i];
		for (int m = 0; m < M; m++)
			for (int h = 0; h < NH; h++)
				for (int i = 0; i < hd / 2; i++) {
					double a = (double)((real)pos[m] * inv_freq[i]), c = cos(a) * 1.1, s = sin(a) * 1.1;
					double *p = ref + m * ld + h * hd + i, x0 = p[0], x1 = p[hd / 2];
					p[0] = x0 * c - x1 * s;
					p[hd / 2] = x1 * c + x0 * s;
				}
		assert_int_equal(d->ops->rope(d, x, ld, NH, hd, pos, inv_freq, mscale, M, false), 0);
		kt_close(x, ref, n, KT_TOL(1e-6));
		/* the inverse of a rotation by mscale 1 gives the input back */
		memcpy(x, keep, n * sizeof *x);
		for (size_t i = 0; i < n; i++)
			ref[i] = (double)x[i];
		assert_int_equal(d->ops->rope(d, x, ld, NH, hd, pos, inv_freq, 1, M, false), 0);
		assert_int_equal(d->ops->rope(d, x, ld, NH, hd, pos, inv_freq, 1, M, true), 0);
		kt_close(x, ref, n, KT_TOL(1e-6));
		/* one row alone: same bits (the table is now longer) */
		real *row = kt_copy(keep + 7 * ld, (size_t)ld);
		assert_int_equal(d->ops->rope(d, keep, ld, NH, hd, pos, inv_freq, mscale, M, false), 0);
		assert_int_equal(d->ops->rope(d, row, ld, NH, hd, pos + 7, inv_freq, mscale, 1, false), 0);
		kt_same_bits(row, keep + 7 * ld, (size_t)ld);
		kt_free(x), kt_free(keep), kt_free(ref), kt_free(row);
	}
	real x[4] = {0};
	uint32_t pos = 0;
	assert_int_equal(d->ops->rope(d, x, 4, 1, 3, &pos, x, 1, 1, false), -EINVAL); /* odd width */
	assert_int_equal(d->ops->rope(d, x, 3, 1, 4, &pos, x, 1, 1, false), -EINVAL);
	dev_free(d);
}

static void sums_and_copies(void **state)
{
	struct dev *d = kt_dev(state, KT_MAX_THREADS);
	kt_seed(23);
	for (size_t n = 1; n < 200000; n = n * 3 + 1) {
		real *x = kt_reals(n, 1), *y = kt_reals(n, 1), *z = kt_copy(y, n);
		double *ref = kt_doubles(n);
		for (size_t i = 0; i < n; i++)
			ref[i] = (double)y[i] + (double)x[i];
		assert_int_equal(d->ops->add(d, y, x, n), 0);
		kt_close(y, ref, n, KT_TOL(2e-7));
		for (size_t i = 0; i < n; i++)
			ref[i] = -1.5 * (double)x[i] + 0.25 * (double)z[i];
		assert_int_equal(d->ops->axpby(d, z, (real)-1.5, x, (real)0.25, n), 0);
		kt_close(z, ref, n, KT_TOL(2e-7));
		kt_free(x), kt_free(y), kt_free(z), kt_free(ref);
	}
	real *x = kt_reals(12, 0), *y = kt_reals(6, 0);
	for (int i = 0; i < 12; i++)
		x[i] = (real)i;
	for (int i = 0; i < 6; i++)
		y[i] = -1;
	uint32_t rows[2] = {3, 0};
	assert_int_equal(d->ops->copy_rows(d, y, 3, x, 3, rows, 2, 2), 0);
	real want[6] = {9, 10, -1, 0, 1, -1};
	kt_same_bits(y, want, 6);
	assert_int_equal(d->ops->copy_rows(d, y, 3, x, 4, NULL, 2, 3), 0);
	real identity[6] = {0, 1, 2, 4, 5, 6};
	kt_same_bits(y, identity, 6);
	assert_int_equal(d->ops->copy_rows(d, y, 3, x, 2, NULL, 2, 3), -EINVAL);
	kt_free(x), kt_free(y);
	dev_free(d);
}

/* exp inside silu: relative accuracy over the whole range */
static void exp_accuracy(void **state)
{
	enum { N = 20000 };
	struct dev *d = kt_dev(state, 1);
	real *gu = kt_reals(2 * N, 1), *y = kt_reals(N, 1);
	for (int i = 0; i < N; i++) {
		gu[i] = (real)(-80 + 160.0 * i / N);
		gu[N + i] = 1;
	}
	assert_int_equal(d->ops->silu_gate(d, y, gu, 1, N), 0);
	for (int i = 0; i < N; i++) {
		double g = (double)gu[i], want = g / (1 + exp(-g));
		assert_false(!(fabs((double)y[i] - want) <= 1e-6 * fabs(want) + 1e-37));
	}
	kt_free(gu);
	kt_free(y);
	dev_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		KT_TESTS(rmsnorm_both_ways), KT_TESTS(silu_both_ways), KT_TESTS(rope_and_inverse), KT_TESTS(sums_and_copies), KT_TESTS(exp_accuracy),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
