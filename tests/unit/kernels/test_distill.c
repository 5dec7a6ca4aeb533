/* The losses of enum distill_kind and softmax: each kind's value and gradient against its definition in
 * double, dense and sparse teachers, with and without mass outside the draft vocabulary, weight 0,
 * extreme logits; finite differences of every kind in the double build; same bits for any threads.
 */
#include "kt.h"

static const struct distill kinds[] = {
	{DISTILL_MIX, 1}, {DISTILL_MIX, 0}, {DISTILL_MIX, (real)0.3}, {DISTILL_LOG_ALPHA, 0}, {DISTILL_REVERSE_KL, 0}, {DISTILL_HARD, 0},
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

struct ce {
	int n, K, m, r0, Vd;
	bool dense;
	struct teacher q;
	uint32_t *ids;
	real *p, *mass, *logits, *w;
};

static void ce_new(struct ce *c, int m, int r0, int Vd, int K, bool dense, bool with_mass)
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
	c->mass = kt_reals((size_t)c->n, 1);
	for (int i = 0; i < c->n; i++)
		c->mass[i] = (real)fabs((double)c->mass[i]);
	c->logits[0] = 60;
	c->logits[1] = -60;
	c->q = (struct teacher){.n = c->n, .K = c->K, .ids = dense ? NULL : c->ids, .p = c->p, .mass = with_mass ? c->mass : NULL};
}

static void ce_done(struct ce *c)
{
	kt_free(c->ids), kt_free(c->p), kt_free(c->mass), kt_free(c->logits), kt_free(c->w);
}

/* Row i's loss, alpha and gradient (by x, without w) by the definition. Q and grad [Vd]. */
static void by_definition(const struct ce *c, struct distill to, int i, double *grad, double *ret_loss, double *ret_alpha)
{
	const real *x = c->logits + i * c->Vd;
	int V = c->Vd, t = c->r0 + i, hard = 0;
	double mass = c->q.mass ? (double)c->q.mass[t] : 1, max = -1e300, sum = 0, best = -1, loss = 0, alpha = 0;
	double *Q = kt_doubles((size_t)V), *q = kt_doubles((size_t)V);
	for (int k = 0; k < c->K; k++) {
		double p = (double)c->p[t * c->K + k];
		int v = c->dense ? k : (int)c->ids[t * c->K + k];
		if (p == 0)
			continue;
		Q[v] = p;
		if (p > best)
			best = p, hard = v;
	}
	for (int v = 0; v < V; v++)
		max = fmax(max, (double)x[v]);
	for (int v = 0; v < V; v++)
		sum += q[v] = exp((double)x[v] - max);
	for (int v = 0; v < V; v++)
		q[v] /= sum, alpha += fmin(q[v], mass * Q[v]);
	double A = 0, ce = 0, rkl = 0;
	for (int v = 0; v < V; v++) {
		double lq = (double)x[v] - max - log(sum);
		A += q[v] < mass * Q[v] ? q[v] : 0;
		ce -= Q[v] * lq;
		rkl += q[v] * (lq - log(fmax(Q[v], DISTILL_FLOOR)));
	}
	for (int v = 0; v < V; v++) {
		double lq = (double)x[v] - max - log(sum), tv = q[v] * (A - (q[v] < mass * Q[v])), soft = q[v] - Q[v];
		grad[v] = to.kind == DISTILL_MIX	 ? (double)to.kl * soft + (1 - (double)to.kl) * tv
			  : to.kind == DISTILL_LOG_ALPHA ? tv / alpha
			  : to.kind == DISTILL_HARD	 ? q[v] - (v == hard)
							 : q[v] * (lq - log(fmax(Q[v], DISTILL_FLOOR)) - rkl);
	}
	loss = to.kind == DISTILL_MIX	      ? (double)to.kl * ce + (1 - (double)to.kl) * (1 - alpha)
	       : to.kind == DISTILL_LOG_ALPHA ? -log(alpha)
	       : to.kind == DISTILL_HARD      ? -((double)x[hard] - max - log(sum))
					      : rkl;
	*ret_loss = loss;
	*ret_alpha = alpha;
	kt_free(Q), kt_free(q);
}

static void ce_check(struct dev *d, struct distill to, int m, int r0, int Vd, int K, bool dense, bool with_mass)
{
	struct ce c;
	ce_new(&c, m, r0, Vd, K, dense, with_mass);
	size_t n = (size_t)(m * Vd);
	double *ref = kt_doubles(n), *loss = kt_doubles((size_t)m), *alpha = kt_doubles((size_t)m);
	real *rl = kt_reals((size_t)m, 1), *ra = kt_reals((size_t)m, 1), *first = NULL;
	uint32_t *arg = malloc((size_t)m * sizeof *arg);
	assert_non_null(arg);
	for (int i = 0; i < m; i++) {
		by_definition(&c, to, i, ref + i * Vd, loss + i, alpha + i);
		for (int v = 0; v < Vd; v++)
			ref[i * Vd + v] *= (double)c.w[i];
	}
	for (int t = 1; t <= kt_threads(d); t++) {
		real *x = kt_copy(c.logits, n);
		dev_set_threads(d, t);
		assert_int_equal(d->ops->distill(d, x, rl, arg, ra, &c.q, r0, c.w, m, Vd, to), 0);
		kt_close(x, ref, n, KT_TOL(2e-6));
		kt_close(rl, loss, (size_t)m, KT_TOL(2e-6));
		kt_close(ra, alpha, (size_t)m, KT_TOL(2e-6));
		for (int i = 0; i < m; i++)
			for (int v = 0; v < Vd; v++) {
				real best = c.logits[i * Vd + (int)arg[i]], other = c.logits[i * Vd + v];
				assert_true(v < (int)arg[i] ? other < best : other <= best);
			}
		if (first)
			kt_same_bits(x, first, n);
		else
			first = kt_copy(x, n);
		kt_free(x);
	}
	assert_int_equal(d->ops->distill(d, c.logits, NULL, NULL, NULL, &c.q, r0, c.w, m, Vd, to), 0);
	kt_same_bits(c.logits, first, n);
	kt_free(ref), kt_free(loss), kt_free(alpha), kt_free(rl), kt_free(ra), kt_free(first), kt_free(arg);
	ce_done(&c);
}

static void distill(void **state)
{
	struct dev *d = kt_dev(state, KT_MAX_THREADS);
	for (int k = 0; k < 2 * N_KINDS; k++) {
		kt_seed(30);
		ce_check(d, kinds[k / 2], 9, 4, 7, 3, false, k % 2);
		ce_check(d, kinds[k / 2], 33, 0, 1000, 64, false, k % 2);
		ce_check(d, kinds[k / 2], 5, 2, 131, 0, true, k % 2);
		ce_check(d, kinds[k / 2], 40, 1, 515, 1 + 8, false, k % 2);
	}
	dev_free(d);
}

static void distill_bad(void **state)
{
	struct dev *d = kt_dev(state, 1);
	struct ce c;
	kt_seed(31);
	ce_new(&c, 3, 0, 10, 4, false, false);
	assert_int_equal(d->ops->distill(d, c.logits, NULL, NULL, NULL, &c.q, 2, c.w, 3, 10, kinds[0]), -EINVAL); /* past the teacher */
	c.ids[0] = 10;
	assert_int_equal(d->ops->distill(d, c.logits, NULL, NULL, NULL, &c.q, 0, c.w, 3, 10, kinds[0]), -EINVAL);
	c.q.ids = NULL; /* dense needs K == Vd */
	assert_int_equal(d->ops->distill(d, c.logits, NULL, NULL, NULL, &c.q, 0, c.w, 3, 10, kinds[0]), -EINVAL);
	ce_done(&c);
	dev_free(d);
}

/* A proposal that can never be accepted: alpha underflows, loss and gradient stay finite. */
static void distill_hopeless(void **state)
{
	struct dev *d = kt_dev(state, 1);
	for (int k = 0; k < N_KINDS; k++) {
		real *x = kt_reals(4, 0), p[1] = {1}, w[1] = {1}, loss[1], alpha[1];
		x[1] = 200;
		uint32_t ids[1] = {0};
		struct teacher q = {.n = 1, .K = 1, .ids = ids, .p = p};
		assert_int_equal(d->ops->distill(d, x, loss, NULL, alpha, &q, 0, w, 1, 4, kinds[k]), 0);
		assert_true(isfinite((double)loss[0]) && (double)loss[0] >= 0);
		for (int v = 0; v < 4; v++)
			assert_true(isfinite((double)x[v]) && fabs((double)x[v]) <= 250);
		kt_free(x);
	}
	dev_free(d);
}

static void softmax(void **state)
{
	struct dev *d = kt_dev(state, KT_MAX_THREADS);
	enum { M = 37, N = 131, LD = 140 };
	kt_seed(33);
	real *x = kt_reals(M * LD, 9), *y = kt_reals(M * N, 1), *again = kt_copy(x, M * LD);
	double *ref = kt_doubles(M * N);
	x[3] = 80, x[4] = -80;
	memcpy(again, x, M * LD * sizeof *x);
	for (int i = 0; i < M; i++) {
		double sum = 0;
		for (int v = 0; v < N; v++)
			sum += exp((double)x[i * LD + v]);
		for (int v = 0; v < N; v++)
			ref[i * N + v] = exp((double)x[i * LD + v]) / sum;
	}
	dev_set_threads(d, 1);
	assert_int_equal(d->ops->softmax(d, y, N, x, LD, M, N), 0);
	kt_close(y, ref, M * N, KT_TOL(2e-6));
	dev_set_threads(d, KT_MAX_THREADS);
	assert_int_equal(d->ops->softmax(d, again, LD, again, LD, M, N), 0);
	for (int i = 0; i < M; i++)
		kt_same_bits(again + i * LD, y + i * N, N);
	assert_int_equal(d->ops->softmax(d, y, N - 1, x, LD, M, N), -EINVAL);
	kt_free(x), kt_free(y), kt_free(again), kt_free(ref);
	dev_free(d);
}

#ifdef REDRAFT_DOUBLE
/* the gradient of each kind is the gradient of its loss */
static void distill_differences(void **state)
{
	struct dev *d = kt_dev(state, 1);
	for (int k = 0; k < 4 * N_KINDS; k++) {
		struct distill to = kinds[k / 4];
		struct ce c;
		bool dense = k & 2;
		kt_seed(32);
		ce_new(&c, 4, 1, 30, 6, dense, k & 1);
		real loss[4], *g = kt_copy(c.logits, 120);
		for (int i = 0; i < 120; i++)
			g[i] = c.logits[i] /= 4;
		assert_int_equal(d->ops->distill(d, g, NULL, NULL, NULL, &c.q, 1, c.w, 4, 30, to), 0);
		for (int i = 0; i < 120; i++) {
			double f[2], eps = 1e-6;
			for (int s = 0; s < 2; s++) {
				real *x = kt_copy(c.logits, 120);
				x[i] += s ? -eps : eps;
				assert_int_equal(d->ops->distill(d, x, loss, NULL, NULL, &c.q, 1, c.w, 4, 30, to), 0);
				f[s] = loss[i / 30];
				kt_free(x);
			}
			assert_false(!(fabs((f[0] - f[1]) / (2 * eps) * c.w[i / 30] - g[i]) <= 1e-7));
		}
		kt_free(g);
		ce_done(&c);
	}
	dev_free(d);
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		KT_TESTS(distill), KT_TESTS(distill_bad), KT_TESTS(distill_hopeless), KT_TESTS(softmax),
#ifdef REDRAFT_DOUBLE
		KT_TESTS(distill_differences),
#endif
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
