/* The feature scale (learn/scale.h). */
#include "learn/scale.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/ops.h"

static const double row_limit = 4096; /* of the usual, for a single row */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double log_rms(const uint16_t *row, int H)
{
	double sum = 0;
	for (int i = 0; i < H; i++) {
		double v = (double)bf16_to_f32(row[i]);
		sum += v * v;
	}
	return 0.5 * log2(sum / H + 1e-30);
}

/* Moves a median by bounded steps, large at first: no single record can pull it away. */
static void follow(double *median, double x, int64_t seen)
{
	double step = seen == 0 ? INFINITY : seen < SCALE_LEARNING ? 1.0 / (double)seen : 1.0 / SCALE_LEARNING, d = x - *median;
	*median += fabs(d) <= step ? d : d > 0 ? step : -step;
}

bool scale_fits(struct scale *s, const struct trace_record *r, double limit, int *ret_r, struct errtext *why)
{
	double *v = malloc((size_t)r->T * sizeof *v), of[SCALE_BOUNDARIES];
	bool fits = v, learning = s->records < SCALE_LEARNING;
	*ret_r = v ? 0 : -ENOMEM;
	for (int b = 0; b < SCALE_BOUNDARIES && fits; b++) {
		for (int t = 0; t < r->T; t++)
			v[t] = log_rms(r->features + ((size_t)t * SCALE_BOUNDARIES + (size_t)b) * (size_t)r->H_t, r->H_t);
		qsort(v, (size_t)r->T, sizeof *v, by_value);
		of[b] = v[r->T / 2];
		double off = of[b] - s->median[b], most = v[r->T - 1] - s->median[b];
		if (learning || (fabs(off) <= log2(limit) && most <= log2(row_limit)))
			continue;
		fits = false;
		if (fabs(off) <= log2(limit))
			off = most;
		(void)errtext_set(why, 0, "features of boundary %d are %.3g times as large as this target's usually are", b, exp2(off));
	}
	free(v);
	for (int b = 0; b < SCALE_BOUNDARIES && fits; b++)
		follow(&s->median[b], of[b], s->records);
	s->records += fits;
	return fits;
}
