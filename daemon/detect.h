/* Change detectors over one stream of numbers: ADWIN, Page-Hinkley, KSWIN.
 *
 * Each takes one value at a time and answers 1 when it believes that the stream has
 * changed, else 0; after a 1 it starts anew by itself. A value that is not finite is
 * refused (-EINVAL) and leaves the detector as it was: the caller counts those. They are
 * diagnostics of equal standing; which one may raise an alarm, and how it is set, is
 * drift.h's business.
 *
 * Sources: Bifet & Gavalda, "Learning from time-changing data with adaptive windowing"
 * (2007), all buckets tried as cuts; Page (1954) with the forgetting factor common in
 * stream libraries; Raab, Heusinger & Schleif, "Reactive soft prototype computing"
 * (2020) for KSWIN. No allocation, no locks: one owner.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/err.h"

/* ---- ADWIN: the longest window whose halves do not differ ---- */

enum { ADWIN_ROWS = 40, ADWIN_BUCKETS = 5 };

struct adwin {
	double delta;                 /* 0.002 */
	int clock, grace, min_window; /* look every `clock` values (32), not before `grace` (10); halves of at least 5 */
	int n_rows;
	struct adwin_row { int n; double total[ADWIN_BUCKETS + 1], variance[ADWIN_BUCKETS + 1]; } row[ADWIN_ROWS]; /* oldest first */
	double total, variance;       /* of the window; variance = sum of squared distances from the mean */
	int64_t width, ticks;
	bool restart;
};
void adwin_init(struct adwin *a);
int adwin_take(struct adwin *a, double x);
static inline double adwin_mean(const struct adwin *a)
{
	return a->width ? a->total / (double)a->width : 0;
}

/* ---- Page-Hinkley: the mean has risen ---- */

struct page_hinkley {
	double delta, lambda, alpha; /* 0.005, 50, 0.9999: rises below delta are ignored, alarm from lambda, forgetting */
	int64_t min;                 /* 30: no alarm before */
	double mean, sum;
	int64_t n;
};
void page_hinkley_init(struct page_hinkley *p);
int page_hinkley_take(struct page_hinkley *p, double x); /* increases only: feed -x for falls */

/* ---- KSWIN: the newest values are not drawn from the older ones ---- */

enum { KSWIN_WINDOW = 100, KSWIN_RECENT = 30 };

struct kswin {
	double alpha; /* 0.0001: level of the two-sample Kolmogorov-Smirnov test; the distance must exceed 0.1 too */
	/* A number in [0, n): which of the older values to compare with. */
	uint32_t (*draw)(void *arg, uint32_t n);
	void *arg;
	double window[KSWIN_WINDOW]; /* ring */
	int n, at;
};
/* draw NULL: a generator of its own, seeded */
void kswin_init(struct kswin *k, uint32_t (*draw)(void *arg, uint32_t n), void *arg);
int kswin_take(struct kswin *k, double x);
/* Two samples of n values each: the largest distance of their distribution functions, and the exact
 * probability of at least that distance when both come from one continuous distribution. Sorts both. */
double ks_two_sample(double *x, double *y, int n, double *ret_distance);
