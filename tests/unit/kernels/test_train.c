/* The soft cross-entropy, the sum of squares and AdamW: against double
 * references, dense and sparse teachers, weight 0, extreme logits; finite
 * differences of the loss in the double build; same bits for any threads.
 */
#include "kt.h"

struct ce {
	int n, K, m, r0, Vd;
	bool dense;
	struct teacher q;
	uint32_t *ids;
	real *p, *logits, *w;
};

static void ce_new(struct ce *c, int m, int r0, int Vd, int K, bool dense)
{
	*c = (struct ce){.n = m + r0 + 1, .K = dense ? Vd : K, .m = m, .r0 = r0, .Vd = Vd, .dense = dense};
	size_t pn = (size_t)c->n * (size_t)c->K;
	c->ids = malloc(pn * sizeof *c->ids);
	assert_non_null(c->ids);
	c->p = kt_reals(pn, 1);
	c->w = kt_reals((size_t)m, 0.1);
	c->logits = kt_reals((size_t)(m * Vd), 8);
	for (int t = 0; t < c->n; t++) {
		double sum = 0;
		int used = dense ? Vd : K - 1; /* fewer than K: pad with p = 0 and an id of no meaning */
		for (int i = 0; i < c->K; i++) {
			size_t at = (size_t)t * (size_t)c->K + (size_t)i;
			c->p[at] = i < used ? (real)fabs((double)c->p[at]) : 0;
			c->ids[at] = i < used ? (uint32_t)((t * 5 + i * 3) % Vd) : 0xffffffffu;
			sum += (double)c->p[at];
		}
		for (int i = 0; i < c->K; i++)
			c->p[(size_t)t * (size_t)c->K + (size_t)i] /= (real)sum;
	}
	for (int i = 0; i < m; i++)
		c->w[i] = i == 2 ? 0 : (real)fabs((double)c->w[i]);
	c->logits[0] = 60;
	c->logits[1] = -60;
	c->q = (struct teacher){.n = c->n, .K = c->K, .ids = dense ? NULL : c->ids, .p = c->p};
}

static void ce_done(struct ce *c)
{
	free(c->ids), free(c->p), free(c->logits), free(c->w);
}

static void ce_check(struct dev *d, int m, int r0, int Vd, int K, bool dense)
{
	struct ce c;
	ce_new(&c, m, r0, Vd, K, dense);
	size_t n = (size_t)(m * Vd);
	double *ref = kt_doubles(n), *loss = kt_doubles((size_t)m), *alpha = kt_doubles((size_t)m);
	real *rl = kt_reals((size_t)m, 1), *ra = kt_reals((size_t)m, 1), *first = NULL;
	uint32_t *arg = malloc((size_t)m * sizeof *arg), *best = calloc((size_t)m, sizeof *best);
	assert_true(arg && best);
	for (int i = 0; i < m; i++) {
		const real *x = c.logits + i * Vd;
		double max = -1e300, sum = 0;
		for (int v = 0; v < Vd; v++)
			if ((double)x[v] > max)
				max = (double)x[v], best[i] = (uint32_t)v;
		for (int v = 0; v < Vd; v++)
			sum += exp((double)x[v] - max);
		for (int v = 0; v < Vd; v++)
			ref[i * Vd + v] = (double)c.w[i] * exp((double)x[v] - max) / sum;
		for (int k = 0; k < c.K; k++) {
			double p = (double)c.p[(r0 + i) * c.K + k];
			uint32_t v = dense ? (uint32_t)k : c.ids[(r0 + i) * c.K + k];
			if (p == 0)
				continue;
			double lp = (double)x[v] - max - log(sum);
			loss[i] -= p * lp;
			alpha[i] += fmin(p, exp(lp));
			ref[i * Vd + (int)v] -= (double)c.w[i] * p;
		}
	}
	for (int t = 1; t <= KT_MAX_THREADS; t++) {
		real *x = kt_copy(c.logits, n);
		dev_set_threads(d, t);
		assert_int_equal(d->ops->soft_ce(d, x, rl, arg, ra, &c.q, r0, c.w, m, Vd), 0);
		kt_close(x, ref, n, KT_TOL(2e-6));
		kt_close(rl, loss, (size_t)m, KT_TOL(2e-6));
		kt_close(ra, alpha, (size_t)m, KT_TOL(2e-6));
		for (int i = 0; i < m; i++)
			assert_int_equal(arg[i], best[i]);
		if (first)
			kt_same_bits(x, first, n);
		else
			first = kt_copy(x, n);
		free(x);
	}
	assert_int_equal(d->ops->soft_ce(d, c.logits, NULL, NULL, NULL, &c.q, r0, c.w, m, Vd), 0);
	kt_same_bits(c.logits, first, n);
	free(ref), free(loss), free(alpha), free(rl), free(ra), free(first), free(arg), free(best);
	ce_done(&c);
}

static void soft_ce(void **state)
{
	struct dev *d = kt_dev(state, KT_MAX_THREADS);
	kt_seed(30);
	ce_check(d, 9, 4, 7, 3, false);
	ce_check(d, 33, 0, 1000, 64, false);
	ce_check(d, 5, 2, 131, 0, true);
	ce_check(d, 40, 1, 515, 1 + 8, false);
	dev_free(d);
}

static void soft_ce_bad(void **state)
{
	struct dev *d = kt_dev(state, 1);
	struct ce c;
	kt_seed(31);
	ce_new(&c, 3, 0, 10, 4, false);
	assert_int_equal(d->ops->soft_ce(d, c.logits, NULL, NULL, NULL, &c.q, 2, c.w, 3, 10), -EINVAL); /* past the teacher */
	c.ids[0] = 10;
	assert_int_equal(d->ops->soft_ce(d, c.logits, NULL, NULL, NULL, &c.q, 0, c.w, 3, 10), -EINVAL);
	c.q.ids = NULL; /* dense needs K == Vd */
	assert_int_equal(d->ops->soft_ce(d, c.logits, NULL, NULL, NULL, &c.q, 0, c.w, 3, 10), -EINVAL);
	ce_done(&c);
	dev_free(d);
}

#ifdef REDRAFT_DOUBLE
/* dlogits / w is the gradient of the row's loss */
static void soft_ce_differences(void **state)
{
	struct dev *d = kt_dev(state, 1);
	struct ce c;
	kt_seed(32);
	ce_new(&c, 4, 1, 30, 6, false);
	real loss[4], *g = kt_copy(c.logits, 120);
	assert_int_equal(d->ops->soft_ce(d, g, NULL, NULL, NULL, &c.q, 1, c.w, 4, 30), 0);
	for (int i = 0; i < 120; i++) {
		double f[2], eps = 1e-5;
		for (int s = 0; s < 2; s++) {
			real *x = kt_copy(c.logits, 120);
			x[i] += s ? -eps : eps;
			assert_int_equal(d->ops->soft_ce(d, x, loss, NULL, NULL, &c.q, 1, c.w, 4, 30), 0);
			f[s] = loss[i / 30];
			free(x);
		}
		assert_false(!(fabs((f[0] - f[1]) / (2 * eps) * c.w[i / 30] - g[i]) <= 1e-8));
	}
	free(g);
	ce_done(&c);
	dev_free(d);
}

static double norm_loss(struct dev *d, const real *x, const real *g, const real *dy, int M, int H)
{
	real *y = kt_reals((size_t)(M * H), 1);
	double s = 0;
	assert_int_equal(d->ops->rmsnorm(d, y, H, NULL, x, H, g, 1e-5, M, H), 0);
	for (int i = 0; i < M * H; i++)
		s += y[i] * dy[i];
	free(y);
	return s;
}

static double silu_loss(struct dev *d, const real *gu, const real *dy, int M, int I)
{
	real *y = kt_reals((size_t)(M * I), 1);
	double s = 0;
	assert_int_equal(d->ops->silu_gate(d, y, gu, M, I), 0);
	for (int i = 0; i < M * I; i++)
		s += y[i] * dy[i];
	free(y);
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
	free(x), free(g), free(dy), free(gu);
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
		for (int t = 1; t <= KT_MAX_THREADS; t++) {
			dev_set_threads(d, t);
			assert_int_equal(d->ops->sumsq(d, &got[t - 1], x, n), 0);
			assert_false(!(fabs(got[t - 1] - ref) <= 1e-12 * ref));
			assert_memory_equal(&got[t - 1], &got[0], sizeof(double));
		}
		free(x);
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
		free(g);
	}
	kt_close(w, rw, N, KT_TOL(1e-6));
	kt_close(m, rm, N, KT_TOL(1e-6));
	kt_close(v, rv, N, KT_TOL(2e-5)); /* 1 - beta2 is known to 6e-5 of itself in float */
	kt_same_bits(w, w1, N);
	kt_same_bits(m, m1, N);
	kt_same_bits(v, v1, N);
	assert_int_equal(d->ops->adamw(d, w, m, v, w1, N, (real)lr, (real)b1, (real)b2, (real)eps, 0, 1, 0), -EINVAL);
	free(w), free(m), free(v), free(w1), free(m1), free(v1), free(rw), free(rm), free(rv);
	dev_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		KT_TESTS(soft_ce), KT_TESTS(soft_ce_bad), KT_TESTS(sum_of_squares), KT_TESTS(adamw),
#ifdef REDRAFT_DOUBLE
		KT_TESTS(soft_ce_differences), KT_TESTS(row_differences),
#endif
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
