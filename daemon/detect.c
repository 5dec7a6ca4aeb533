/* Page-Hinkley and KSWIN (detect.h). */
#include "daemon/detect.h"
#include <math.h>
#include <stdlib.h>

/* ---- Page-Hinkley ---- */

void page_hinkley_init(struct page_hinkley *p)
{
	*p = (struct page_hinkley){.delta = 0.005, .lambda = 50, .alpha = 0.9999, .min = 30};
}

int page_hinkley_take(struct page_hinkley *p, double x)
{
	if (!isfinite(x))
		return -EINVAL;
	p->mean += (x - p->mean) / (double)++p->n;
	p->sum = fmax(0, p->alpha * p->sum + (x - p->mean - p->delta));
	if (p->n < p->min || p->sum < p->lambda)
		return 0;
	p->mean = p->sum = 0;
	p->n = 0;
	return 1;
}

/* ---- KSWIN ---- */

static int compare(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* P(D >= h/n) of two samples of n = 2 sum_{j>=1} (-1)^(j-1) C(2n, n-jh) / C(2n, n): the paths from
 * (0,0) to (n,n) that leave the strip, by reflection. */
static double ks_probability(int n, int h)
{
	double p = 0, sign = 1;

	if (h == 0)
		return 1;
	for (int j = 1; j * h <= n; j++, sign = -sign) {
		double ratio = 1; /* C(2n, n-jh) / C(2n, n) */

		for (int i = 0; i < j * h; i++)
			ratio *= (double)(n - i) / (double)(n + j * h - i);
		p += sign * 2 * ratio;
	}
	return p > 1 ? 1 : p;
}

double ks_two_sample(double *x, double *y, int n, double *ret_distance)
{
	int i = 0, j = 0, most = 0;

	qsort(x, (size_t)n, sizeof *x, compare);
	qsort(y, (size_t)n, sizeof *y, compare);
	while (i < n && j < n) { /* equal values step together */
		double v = x[i] < y[j] ? x[i] : y[j];

		while (i < n && x[i] <= v)
			i++;
		while (j < n && y[j] <= v)
			j++;
		most = abs(i - j) > most ? abs(i - j) : most;
	}
	*ret_distance = (double)most / n;
	return ks_probability(n, most);
}

static uint32_t own_draw(void *arg, uint32_t n)
{
	uint64_t *s = arg;

	*s = *s * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(((*s >> 33) * n) >> 31);
}

void kswin_init(struct kswin *k, uint32_t (*draw)(void *arg, uint32_t n), void *arg)
{
	*k = (struct kswin){.alpha = 0.0001, .draw = draw, .arg = arg};
}

/* KSWIN_RECENT different ones of the older values: a partial shuffle of their indices. */
static void sample_older(struct kswin *k, double *ret)
{
	enum { OLDER = KSWIN_WINDOW - KSWIN_RECENT };
	uint64_t own = 0x9e3779b97f4a7c15u ^ (uint64_t)k->at;
	int pool[OLDER];

	for (int i = 0; i < OLDER; i++)
		pool[i] = i;
	for (int i = 0; i < KSWIN_RECENT; i++) {
		uint32_t left = (uint32_t)(OLDER - i), j = k->draw ? k->draw(k->arg, left) : own_draw(&own, left);

		ret[i] = k->window[(k->at + pool[j]) % KSWIN_WINDOW];
		pool[j] = pool[left - 1];
	}
}

int kswin_take(struct kswin *k, double x)
{
	double older[KSWIN_RECENT], recent[KSWIN_RECENT], keep[KSWIN_RECENT], distance;

	if (!isfinite(x))
		return -EINVAL;
	if (k->n < KSWIN_WINDOW) {
		k->window[k->n++] = x;
	} else {
		k->window[k->at] = x;
		k->at = (k->at + 1) % KSWIN_WINDOW;
	}
	if (k->n < KSWIN_WINDOW)
		return 0;
	sample_older(k, older);
	for (int i = 0; i < KSWIN_RECENT; i++)
		recent[i] = keep[i] = k->window[(k->at + KSWIN_WINDOW - KSWIN_RECENT + i) % KSWIN_WINDOW];
	if (!(ks_two_sample(older, recent, KSWIN_RECENT, &distance) <= k->alpha && distance > 0.1))
		return 0;
	for (int i = 0; i < KSWIN_RECENT; i++) /* in order of arrival */
		k->window[i] = keep[i];
	k->n = KSWIN_RECENT;
	k->at = 0;
	return 1;
}
