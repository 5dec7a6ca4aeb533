/* Reductions and the optimizer's inner loop.
 *
 * Order: sumsq adds squares in double, eight chains in blocks of 4,096 elements,
 * then the blocks in order; so the number of threads does not matter, and here
 * not even the ISA path. AdamW works element by element.
 */
#include "kernels/cpu/cpu.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
