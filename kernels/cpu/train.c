/* Loss, reductions and the optimizer's inner loop.
 *
 * Order: sumsq adds squares in double, eight chains in blocks of 4,096 elements,
 * then the blocks in order; so the number of threads does not matter, and here
 * not even the ISA path. Everything else works element by element or row by row.
 */
#include "kernels/cpu/cpu.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct ce_job {
	const struct cpu_kernels *k;
	real *logits, *loss, *alpha;
	uint32_t *argmax;
	const struct teacher *q;
	const real *w;
	int r0, m, Vd;
};

static uint32_t ce_argmax(const real *x, int n, real max)
{
	for (int i = 0; i < n; i++)
		if (x[i] == max)
			return (uint32_t)i;
	return 0;
}

/* sum min(a, b) in double, eight chains */
static double min_sum(const real *a, const real *b, int n)
{
	double acc[8] = {0};
	for (int i = 0; i < n; i++)
		acc[i % 8] += (double)(a[i] < b[i] ? a[i] : b[i]);
	return ((acc[0] + acc[4]) + (acc[2] + acc[6])) + ((acc[1] + acc[5]) + (acc[3] + acc[7]));
}

/* loss = sum_v Q_v (lse - x_v);  dx = w (softmax - Q) */
static void ce_dense(const struct ce_job *j, int i, real *x, const real *p, real max, double lse)
{
	double mass = 0;
	for (int v = 0; v < j->Vd; v++)
		mass += (double)p[v];
	if (j->loss)
		j->loss[i] = (real)(lse * mass - (double)j->k->dot(p, x, j->Vd));
	j->k->exp_scaled(x, x, max, (real)exp((double)max - lse), j->Vd);
	if (j->alpha)
		j->alpha[i] = (real)min_sum(p, x, j->Vd);
	j->k->axpby(x, -j->w[i], p, j->w[i], (size_t)j->Vd);
}

static void ce_sparse(const struct ce_job *j, int i, real *x, const real *p, const uint32_t *ids, real max, double lse)
{
	double loss = 0, alpha = 0;
	for (int c = 0; c < j->q->K; c++) {
		if (p[c] == 0)
			continue;
		double lp = (double)x[ids[c]] - lse, s = exp(lp);
		loss -= (double)p[c] * lp;
		alpha += s < (double)p[c] ? s : (double)p[c];
	}
	if (j->loss)
		j->loss[i] = (real)loss;
	if (j->alpha)
		j->alpha[i] = (real)alpha;
	j->k->exp_scaled(x, x, max, (real)(exp((double)max - lse) * (double)j->w[i]), j->Vd);
	for (int c = 0; c < j->q->K; c++)
		if (p[c] != 0)
			x[ids[c]] -= j->w[i] * p[c];
}

static void ce_row(const struct ce_job *j, int i)
{
	real *x = j->logits + (size_t)i * (size_t)j->Vd;
	const struct teacher *q = j->q;
	size_t at = (size_t)(j->r0 + i) * (size_t)q->K;
	real mx = j->k->row_max(x, j->Vd);
	double lse = (double)mx + log((double)j->k->exp_sum(x, mx, j->Vd));

	if (j->argmax)
		j->argmax[i] = ce_argmax(x, j->Vd, mx);
	if (q->ids)
		ce_sparse(j, i, x, q->p + at, q->ids + at, mx, lse);
	else
		ce_dense(j, i, x, q->p + at, mx, lse);
}

static void ce_part(void *ctx, int t, int n)
{
	const struct ce_job *j = ctx;
	int from, to;
	cpu_split(j->m, 1, t, n, &from, &to);
	for (int i = from; i < to; i++)
		ce_row(j, i);
}

int cpu_soft_ce(struct dev *d, real *logits, real *loss, uint32_t *argmax, real *alpha, const struct teacher *q, int r0, const real *w,
		int m, int Vd)
{
	if (m < 0 || Vd <= 0 || r0 < 0 || r0 + m > q->n || q->K <= 0 || (!q->ids && q->K != Vd))
		return cpu_bad(d, "soft_ce");
	for (size_t i = 0; q->ids && i < (size_t)m * (size_t)q->K; i++) {
		size_t at = (size_t)r0 * (size_t)q->K + i;
		if (q->ids[at] >= (uint32_t)Vd && q->p[at] != 0)
			return cpu_bad(d, "soft_ce: teacher id past the draft vocabulary");
	}
	struct ce_job j = {.k = cpu_of(d)->k,
			   .logits = logits,
			   .loss = loss,
			   .alpha = alpha,
			   .argmax = argmax,
			   .q = q,
			   .w = w,
			   .r0 = r0,
			   .m = m,
			   .Vd = Vd};
	cpu_run(d, 50.0 * m * Vd, ce_part, &j);
	return 0;
}

enum { SUMSQ_BLOCK = 4096 };

struct sumsq_job {
	const real *x;
	size_t n;
	double *part;
};

static void sumsq_part(void *ctx, int t, int n)
{
	const struct sumsq_job *j = ctx;
	size_t blocks = (j->n + SUMSQ_BLOCK - 1) / SUMSQ_BLOCK;

	for (size_t b = blocks * (size_t)t / (size_t)n; b < blocks * ((size_t)t + 1) / (size_t)n; b++) {
		double acc[8] = {0};
		size_t at = b * SUMSQ_BLOCK, len = j->n - at < SUMSQ_BLOCK ? j->n - at : SUMSQ_BLOCK, i = 0;
		for (; i + 8 <= len; i += 8)
			for (int c = 0; c < 8; c++)
				acc[c] += (double)j->x[at + i + (size_t)c] * (double)j->x[at + i + (size_t)c];
		for (int c = 0; i < len; i++, c++)
			acc[c] += (double)j->x[at + i] * (double)j->x[at + i];
		j->part[b] = ((acc[0] + acc[4]) + (acc[2] + acc[6])) + ((acc[1] + acc[5]) + (acc[3] + acc[7]));
	}
}

int cpu_sumsq(struct dev *d, double *ret, const real *x, size_t n)
{
	size_t blocks = (n + SUMSQ_BLOCK - 1) / SUMSQ_BLOCK;
	struct sumsq_job j = {.x = x, .n = n, .part = cpu_scratch(d, blocks * sizeof(double) + 1)};
	double sum = 0;

	if (!j.part)
		return -ENOMEM;
	cpu_run(d, 2.0 * (double)n, sumsq_part, &j);
	for (size_t b = 0; b < blocks; b++)
		sum += j.part[b];
	*ret = sum;
	return 0;
}

struct adamw_job {
	const struct cpu_kernels *k;
	real *w, *m, *v;
	const real *g;
	size_t n;
	real coef[7];
};

static void adamw_part(void *ctx, int t, int n)
{
	const struct adamw_job *j = ctx;
	size_t units = (j->n + 63) / 64, from = units * (size_t)t / (size_t)n * 64, to = units * ((size_t)t + 1) / (size_t)n * 64;
	to = to < j->n ? to : j->n;
	if (from < to)
		j->k->adamw(j->w + from, j->m + from, j->v + from, j->g + from, to - from, j->coef);
}

int cpu_adamw(struct dev *d, real *w, real *m, real *v, const real *g, size_t n, real lr, real beta1, real beta2, real eps, real wd,
	      real gscale, int64_t step)
{
	if (step < 1)
		return cpu_bad(d, "adamw: steps count from 1");
	double c1 = 1 - pow((double)beta1, (double)step), c2 = 1 - pow((double)beta2, (double)step);
	struct adamw_job j = {
		.k = cpu_of(d)->k,
		.w = w,
		.m = m,
		.v = v,
		.g = g,
		.n = n,
		.coef = {gscale, beta1, beta2, (real)((double)lr / c1), (real)(1 / c2), eps, (real)(1 - (double)lr * (double)wd)},
	};
	cpu_run(d, 12.0 * (double)n, adamw_part, &j);
	return 0;
}
