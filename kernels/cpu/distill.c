/* The losses a draft learns by (ops.h, enum distill_kind), and softmax: row by row.
 *
 * All but reverse KL come down to one gradient. With q = softmax(x), r = mass*Q and
 * A = sum_v q_v [q_v < r_v],
 *
 *     d(-Q.log q)/dx_v = q_v - Q_v        d(1 - alpha)/dx_v = q_v (A - [q_v < r_v])
 *
 * so a row's gradient is (a + b A) q - a Q - b [q < r] q: a = kl, b = 1 - kl for the
 * mix; a = 0, b = 1/alpha for -log alpha; a = 1 and a one-hot Q for the hard label. With
 * a sparse teacher the two last terms touch its few columns alone, and the first is one
 * pass over the logits, as for the plain cross-entropy.
 *
 * Sums are in double, in column order or as cpu.h's kernels sum: a row is one thread's.
 */
#include "kernels/cpu/cpu.h"
#include <math.h>

struct job {
	const struct cpu_kernels *k;
	real *logits, *loss, *alpha;
	uint32_t *argmax;
	const struct teacher *q;
	const real *w;
	double *s; /* sparse: [m,K] q at the teacher's columns */
	struct distill to;
	int r0, m, Vd;
	_Atomic int next; /* row that no thread has */
};

/* One row: its teacher, and what is known of its logits. */
struct row {
	real *x;
	const real *p;
	const uint32_t *ids; /* NULL: dense */
	double mass, lse;
	real max, w;
	int K;
	uint32_t hard;       /* the teacher's likeliest token */
};

/* sum b in double, eight chains */
static double row_sum(const real *b, int n)
{
	double acc[8] = {0};
	int i = 0;
	for (; i + 8 <= n; i += 8)
		for (int c = 0; c < 8; c++)
			acc[c] += (double)b[i + c];
	for (int c = 0; i < n; i++, c++)
		acc[c] += (double)b[i];
	return ((acc[0] + acc[4]) + (acc[2] + acc[6])) + ((acc[1] + acc[5]) + (acc[3] + acc[7]));
}

/* sum min(a, mass b), the same */
static double min_sum(const real *a, const real *b, double mass, int n)
{
	double acc[8] = {0};
	int i = 0;
	for (; i + 8 <= n; i += 8)
		for (int c = 0; c < 8; c++) {
			double r = mass * (double)b[i + c];
			acc[c] += (double)a[i + c] < r ? (double)a[i + c] : r;
		}
	for (int c = 0; i < n; i++, c++) {
		double r = mass * (double)b[i];
		acc[c] += (double)a[i] < r ? (double)a[i] : r;
	}
	return ((acc[0] + acc[4]) + (acc[2] + acc[6])) + ((acc[1] + acc[5]) + (acc[3] + acc[7]));
}

/* sum q [q < mass p] */
static double below_sum(const real *q, const real *p, double mass, int n)
{
	double acc[8] = {0};
	for (int i = 0; i < n; i++)
		acc[i % 8] += (double)q[i] < mass * (double)p[i] ? (double)q[i] : 0;
	return ((acc[0] + acc[4]) + (acc[2] + acc[6])) + ((acc[1] + acc[5]) + (acc[3] + acc[7]));
}

/* The weights of the two gradients above; needs alpha where the loss is its logarithm. */
static void weights_of(struct distill to, double alpha, double *ret_a, double *ret_b)
{
	*ret_a = to.kind == DISTILL_MIX ? (double)to.kl : to.kind == DISTILL_HARD;
	*ret_b = to.kind == DISTILL_MIX ? 1 - (double)to.kl : to.kind == DISTILL_LOG_ALPHA ? 1 / fmax(alpha, 1e-30) : 0;
}

static double loss_of(struct distill to, double ce, double alpha)
{
	if (to.kind == DISTILL_LOG_ALPHA)
		return -log(fmax(alpha, 1e-30));
	return to.kind == DISTILL_MIX ? (double)to.kl * ce + (1 - (double)to.kl) * (1 - alpha) : ce;
}

static void sparse_row(const struct job *j, int i, const struct row *r)
{
	double ce = 0, alpha = 0, A = 0, a, b, *s = j->s + (size_t)i * (size_t)r->K;
	for (int c = 0; c < r->K; c++) {
		if (r->p[c] == 0)
			continue;
		double lp = (double)r->x[r->ids[c]] - r->lse, t = r->mass * (double)r->p[c];
		s[c] = exp(lp);
		ce -= (double)r->p[c] * lp;
		alpha += s[c] < t ? s[c] : t;
		A += s[c] < t ? s[c] : 0;
	}
	if (j->to.kind == DISTILL_HARD)
		ce = r->lse - (double)r->x[r->hard];
	weights_of(j->to, alpha, &a, &b);
	if (j->loss)
		j->loss[i] = (real)loss_of(j->to, ce, alpha);
	if (j->alpha)
		j->alpha[i] = (real)alpha;
	j->k->exp_scaled(r->x, r->x, r->max, (real)(exp((double)r->max - r->lse) * (double)r->w * (a + b * A)), j->Vd);
	if (j->to.kind == DISTILL_HARD) {
		r->x[r->hard] -= r->w;
		return;
	}
	for (int c = 0; c < r->K; c++) {
		double p = (double)r->p[c];
		if (p != 0)
			r->x[r->ids[c]] -= (real)((double)r->w * (a * p + (s[c] < r->mass * p ? b * s[c] : 0)));
	}
}

static void dense_row(const struct job *j, int i, const struct row *r)
{
	int V = j->Vd;
	double ce = 0, alpha, A = 0, a, b;
	if (j->to.kind == DISTILL_HARD) {
		ce = r->lse - (double)r->x[r->hard];
	} else if (j->loss) {
		ce = r->lse * row_sum(r->p, V) - (double)j->k->dot(r->p, r->x, V);
	}
	j->k->exp_scaled(r->x, r->x, r->max, (real)exp((double)r->max - r->lse), V); /* q */
	alpha = j->alpha || j->to.kind == DISTILL_LOG_ALPHA || j->to.kl != 1 ? min_sum(r->x, r->p, r->mass, V) : 0;
	weights_of(j->to, alpha, &a, &b);
	if (j->loss)
		j->loss[i] = (real)loss_of(j->to, ce, alpha);
	if (j->alpha)
		j->alpha[i] = (real)alpha;
	if (j->to.kind == DISTILL_HARD) {
		j->k->scale(r->x, r->w, V);
		r->x[r->hard] -= r->w;
		return;
	}
	if (b == 0) {
		j->k->axpby(r->x, -r->w, r->p, r->w, (size_t)V);
		return;
	}
	A = below_sum(r->x, r->p, r->mass, V);
	real f = (real)((double)r->w * (a + b * A)), wa = (real)((double)r->w * a), wb = (real)((double)r->w * b);
	for (int v = 0; v < V; v++) {
		bool below = (double)r->x[v] < r->mass * (double)r->p[v];
		r->x[v] = (f - (below ? wb : 0)) * r->x[v] - wa * r->p[v];
	}
}

/* sum_v q_v (log q_v - log P_v), P = max(Q, floor); gradient q_v (log q_v - log P_v - loss). First as if P were
 * the floor everywhere, then corrected at the teacher's columns above it. */
static void reverse_row(const struct job *j, int i, const struct row *r)
{
	double log_floor = log(DISTILL_FLOOR), loss = -log_floor, alpha = 0, *s = j->s + (size_t)i * (size_t)r->K;
	for (int v = 0; v < j->Vd; v++) {
		double lq = (double)r->x[v] - r->lse;
		loss += exp(lq) * lq;
	}
	for (int c = 0; c < r->K; c++) {
		double p = (double)r->p[c];
		if (p == 0)
			continue;
		s[c] = exp((double)r->x[r->ids ? r->ids[c] : (uint32_t)c] - r->lse);
		alpha += fmin(s[c], r->mass * p);
		loss -= p > DISTILL_FLOOR ? s[c] * (log(p) - log_floor) : 0;
	}
	if (j->loss)
		j->loss[i] = (real)loss;
	if (j->alpha)
		j->alpha[i] = (real)alpha;
	for (int v = 0; v < j->Vd; v++) {
		double lq = (double)r->x[v] - r->lse;
		r->x[v] = (real)((double)r->w * exp(lq) * (lq - log_floor - loss));
	}
	for (int c = 0; c < r->K; c++)
		if ((double)r->p[c] > DISTILL_FLOOR)
			r->x[r->ids ? r->ids[c] : (uint32_t)c] -= (real)((double)r->w * s[c] * (log((double)r->p[c]) - log_floor));
}

static uint32_t first_equal(const real *x, int n, real max)
{
	int i = 0;
	for (; i + 64 <= n; i += 64) { /* without a branch each, so that the compiler may take several at a time */
		int found = 0;
		for (int c = 0; c < 64; c++)
			found |= x[i + c] == max;
		if (found)
			break;
	}
	for (; i < n; i++)
		if (x[i] == max)
			return (uint32_t)i;
	return 0;
}

static void one_row(const struct job *j, int i)
{
	const struct teacher *q = j->q;
	size_t t = (size_t)(j->r0 + i), at = t * (size_t)q->K;
	struct row r = {.x = j->logits + (size_t)i * (size_t)j->Vd, .p = q->p + at, .ids = q->ids ? q->ids + at : NULL, .K = q->K, .w = j->w[i]};
	r.mass = q->mass ? (double)q->mass[t] : 1;
	r.max = j->k->row_max(r.x, j->Vd);
	r.lse = (double)r.max + log((double)j->k->exp_sum(r.x, r.max, j->Vd));
	if (j->argmax)
		j->argmax[i] = first_equal(r.x, j->Vd, r.max);
	if (j->to.kind == DISTILL_HARD) {
		uint32_t c = 0;
		for (int v = 1; v < r.K; v++)
			c = r.p[v] > r.p[c] ? (uint32_t)v : c;
		r.hard = r.ids ? r.ids[c] : c;
	}
	if (j->to.kind == DISTILL_REVERSE_KL)
		reverse_row(j, i, &r);
	else if (r.ids)
		sparse_row(j, i, &r);
	else
		dense_row(j, i, &r);
}

static void part(void *ctx, int t, int n)
{
	struct job *j = ctx;
	(void)t;
	for (int i, end; cpu_next(&j->next, j->m, 1, 16, n, &i, &end);)
		for (; i < end; i++)
			one_row(j, i);
}

int cpu_distill(struct dev *d, real *logits, real *loss, uint32_t *argmax, real *alpha, const struct teacher *q, int r0, const real *w,
		int m, int Vd, struct distill to)
{
	if (m < 0 || Vd <= 0 || r0 < 0 || r0 + m > q->n || q->K <= 0 || (!q->ids && q->K != Vd))
		return cpu_bad(d, "distill");
	for (size_t i = 0; q->ids && i < (size_t)m * (size_t)q->K; i++) {
		size_t at = (size_t)r0 * (size_t)q->K + i;
		if (q->ids[at] >= (uint32_t)Vd && q->p[at] != 0)
			return cpu_bad(d, "distill: teacher id past the draft vocabulary");
	}
	struct job j = {.k = cpu_of(d)->k, .logits = logits, .loss = loss, .alpha = alpha, .argmax = argmax, .q = q, .w = w, .to = to, .r0 = r0, .m = m, .Vd = Vd};
	if (q->ids || to.kind == DISTILL_REVERSE_KL) {
		j.s = cpu_scratch(d, (size_t)m * (size_t)q->K * sizeof *j.s + 1);
		if (!j.s)
			return -ENOMEM;
	}
	cpu_run(d, 50.0 * m * Vd, part, &j);
	return 0;
}

struct softmax_job {
	const struct cpu_kernels *k;
	real *y;
	const real *x;
	size_t ldy, ldx;
	int M, N;
};

static void softmax_part(void *ctx, int t, int n)
{
	const struct softmax_job *j = ctx;
	int from, to;
	cpu_split(j->M, 1, t, n, &from, &to);
	for (int i = from; i < to; i++) {
		const real *x = j->x + (size_t)i * j->ldx;
		real max = j->k->row_max(x, j->N);
		j->k->exp_scaled(j->y + (size_t)i * j->ldy, x, max, (real)(1 / (double)j->k->exp_sum(x, max, j->N)), j->N);
	}
}

int cpu_softmax(struct dev *d, real *y, int ldy, const real *x, int ldx, int M, int N)
{
	if (M < 0 || N <= 0 || ldy < N || ldx < N)
		return cpu_bad(d, "softmax");
	struct softmax_job j = {.k = cpu_of(d)->k, .y = y, .x = x, .ldy = (size_t)ldy, .ldx = (size_t)ldx, .M = M, .N = N};
	cpu_run(d, 30.0 * M * N, softmax_part, &j);
	return 0;
}
