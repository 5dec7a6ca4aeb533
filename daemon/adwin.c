/* ADWIN (detect.h): an exponential histogram. Row i holds up to five buckets of 2^i values; a sixth
 * makes the two oldest one bucket of the next row. Looking, every border between two buckets is tried as
 * a cut, oldest first; where the means on both sides differ by more than chance allows, the
 * oldest bucket goes, and the rest is looked at again. */
#include <math.h>
#include <string.h>
#include "daemon/detect.h"

void adwin_init(struct adwin *a)
{
	*a = (struct adwin){.delta = 0.002, .clock = 32, .grace = 10, .min_window = 5, .n_rows = 1};
}

static void restart(struct adwin *a)
{
	struct adwin fresh = {.delta = a->delta, .clock = a->clock, .grace = a->grace, .min_window = a->min_window, .n_rows = 1};

	*a = fresh;
}

static void push(struct adwin_row *r, double total, double variance)
{
	r->total[r->n] = total;
	r->variance[r->n++] = variance;
}

static void shift(struct adwin_row *r, int n)
{
	memmove(r->total, r->total + n, (size_t)(r->n - n) * sizeof *r->total);
	memmove(r->variance, r->variance + n, (size_t)(r->n - n) * sizeof *r->variance);
	r->n -= n;
}

/* What joining two groups adds to the sum of their variances. */
static double between(double n0, double u0, double n1, double u1)
{
	double d = u0 / n0 - u1 / n1;

	return n0 * n1 * d * d / (n0 + n1);
}

static void compress(struct adwin *a)
{
	for (int i = 0; i < a->n_rows && a->row[i].n > ADWIN_BUCKETS; i++) {
		struct adwin_row *r = &a->row[i];
		double n = ldexp(1, i);

		if (i + 1 == ADWIN_ROWS) { /* 2^40 values: the oldest go */
			a->width -= (int64_t)n;
			a->total -= r->total[0];
			shift(r, 1);
			return;
		}
		if (i + 1 == a->n_rows)
			a->row[a->n_rows++] = (struct adwin_row){0};
		push(&a->row[i + 1], r->total[0] + r->total[1],
		     r->variance[0] + r->variance[1] + between(n, r->total[0], n, r->total[1]));
		shift(r, 2);
	}
}

static void drop_oldest(struct adwin *a)
{
	struct adwin_row *r = &a->row[a->n_rows - 1];
	double n = ldexp(1, a->n_rows - 1), u = r->total[0], v = r->variance[0];

	a->width -= (int64_t)n;
	a->total -= u;
	if (a->width > 0)
		a->variance -= v + between(n, u, (double)a->width, a->total);
	a->variance = a->variance > 0 && a->width > 0 ? a->variance : 0; /* removal cancels: rounding may leave it below zero */
	shift(r, 1);
	while (a->n_rows > 1 && a->row[a->n_rows - 1].n == 0)
		a->n_rows--;
}

static bool differ(const struct adwin *a, double n0, double u0)
{
	double n1 = (double)a->width - n0, least = a->min_window;

	if (n0 < least || n1 < least)
		return false;
	double gap = fabs(u0 / n0 - (a->total - u0) / n1);
	double d = log(2 * log((double)a->width) / a->delta);
	double m = 1 / (n0 - least + 1) + 1 / (n1 - least + 1);

	return gap > sqrt(2 * m * a->variance / (double)a->width * d) + 2.0 / 3 * d * m;
}

static bool cut_found(const struct adwin *a)
{
	double n0 = 0, u0 = 0;

	for (int i = a->n_rows - 1; i >= 0; i--)
		for (int k = 0; k < a->row[i].n; k++) {
			if (i == 0 && k == a->row[0].n - 1)
				return false; /* nothing newer is left to compare with */
			n0 += ldexp(1, i);
			u0 += a->row[i].total[k];
			if (differ(a, n0, u0))
				return true;
		}
	return false;
}

int adwin_take(struct adwin *a, double x)
{
	bool changed = false;

	if (!isfinite(x))
		return -EINVAL;
	if (a->restart)
		restart(a);
	if (a->width)
		a->variance += between((double)a->width, a->total, 1, x);
	a->width++;
	a->total += x;
	push(&a->row[0], x, 0);
	compress(a);
	if (++a->ticks % a->clock || a->width <= a->grace)
		return 0;
	while (cut_found(a)) {
		drop_oldest(a);
		changed = true;
	}
	a->restart = changed;
	return changed;
}
