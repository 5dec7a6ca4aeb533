/* Drawing a token from a row of logits: ops.h `draw` on the CPU.
 *
 * Filters are thresholds, not marks: ranking is by (logit descending, id ascending), so the kept set is everything
 * ranked at or above one (logit, id) pair. top_p finds the pair without putting more in order than a small part of the
 * row; with top_k only the k best are ever weighed. Weights are whole numbers, so that any way of adding them up
 * gives what a GPU's gives (kernels/cuda/draw.cu). This file is compiled without contraction: a product and a sum
 * that were fused would be another exponential.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/cpu/cpu.h"
#include "kernels/draw.h"

typedef unsigned __int128 u128;

/* ---- weights ---- */

typedef double v2 __attribute__((vector_size(16)));
typedef int64_t i2 __attribute__((vector_size(16)));

/* 2^n e^r with |r| <= ln2/2; a plain Taylor sum of degree 11 is good to 1e-14 there. Two at a time,
 * because a sampled token costs a vocabulary of these. */
static inline v2 exp2lanes(v2 x)
{
	const double shift = 0x1.8p52; /* adding it rounds to whole numbers and leaves them in the low bits */
	static const double c[] = {1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
				   1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1, 1};
	v2 t = x * 1.4426950408889634 + shift, n = t - shift;
	v2 r = (x - n * 0x1.62e42fee00000p-1) - n * 0x1.a39ef35793c76p-33; /* ln2 in two parts */
	v2 y = r * c[0] + c[1];
	for (int i = 2; i < 12; i++)
		y = y * r + c[i];
	return (v2)((i2)y + ((i2)t << 52));
}

double draw_exp(double x)
{
	v2 v = {x, x};
	return exp2lanes(v)[0];
}

/* Of logits that lie x below the best; 0 for NaN and -inf. */
static inline i2 weights(v2 x)
{
	const v2 shift = {0x1.8p52, 0x1.8p52};
	i2 near = x > (double)DRAW_FAR;
	v2 y = exp2lanes((v2)((i2)x & near)) * (double)DRAW_ONE + shift;
	return ((i2)y - (i2)shift) & near;
}

static uint64_t weight(double x)
{
	v2 v = {x, x};
	return (uint64_t)weights(v)[0];
}

/* What they come to in all is returned. */
static uint64_t weigh(uint64_t *w, const real *x, int N, double max, double inv_t)
{
	i2 sum = {0, 0};
	int i = 0;
	for (; i + 2 <= N; i += 2) {
		v2 v = {(double)x[i], (double)x[i + 1]};
		i2 y = weights((v - max) * inv_t);
		memcpy(w + i, &y, sizeof y);
		sum += y;
	}
	if (i < N)
		w[i] = weight(((double)x[i] - max) * inv_t);
	return (uint64_t)sum[0] + (uint64_t)sum[1] + (i < N ? w[i] : 0);
}

/* The mass that ranks have to reach; the best one is always kept. */
static uint64_t needed(uint64_t top, uint64_t total)
{
	uint64_t need = (uint64_t)(((u128)top * total + (DRAW_ALL - 1)) / DRAW_ALL);
	return need ? need : 1;
}

/* The first running sum above this is the draw. */
static uint64_t wanted(uint64_t u, uint64_t total)
{
	return (uint64_t)((u128)u * total / DRAW_ALL);
}

/* ---- ranks ---- */

static bool ranks_above(const real *x, uint32_t a, uint32_t b)
{
	return x[a] > x[b] || (x[a] == x[b] && a < b);
}

static void swap(uint32_t *a, uint32_t *b)
{
	uint32_t x = *a;
	*a = *b;
	*b = x;
}

/* Let heap[i] sink: the best id on top, or the worst. */
static void sift(uint32_t *heap, int n, int i, const real *x, bool worst)
{
	uint32_t id = heap[i];
	for (;;) {
		int child = 2 * i + 1;
		if (child >= n)
			break;
		if (child + 1 < n && ranks_above(x, heap[child + 1], heap[child]) != worst)
			child++;
		if (ranks_above(x, heap[child], id) == worst)
			break;
		heap[i] = heap[child];
		i = child;
	}
	heap[i] = id;
}

/* NaN never wins a comparison, so it never wins the row. */
uint32_t draw_greedy(const real *x, int N)
{
	uint32_t best = 0;
	real max = -(real)INFINITY;
	for (int i = 0; i < N; i++)
		if (x[i] > max) {
			max = x[i];
			best = (uint32_t)i;
		}
	return best;
}

/* ---- a whole row ---- */

/* Smaller for better ranks, the same only for ids near each other; of ids that have a weight. */
static inline int bucket(real x, double max, double inv_t)
{
	int b = (int)((max - (double)x) * inv_t * (DRAW_BUCKETS / -DRAW_FAR));
	return b < DRAW_BUCKETS ? b : DRAW_BUCKETS - 1;
}

/* The last id that ranks keep. Weights are added up by how far their logits lie below the best, in buckets; only
 * the bucket in which the needed mass is reached is put in order. */
static uint32_t last_of_mass(struct draw_room *r, const real *x, int N, double max, double inv_t, uint64_t need)
{
	uint32_t *h = r->heap, last = 0;
	uint64_t sum = 0;
	int n = 0, edge = 0;
	memset(r->mass, 0, sizeof r->mass);
	for (int i = 0; i < N; i++)
		if (r->w[i])
			r->mass[bucket(x[i], max, inv_t)] += r->w[i];
	while (sum + r->mass[edge] < need)
		sum += r->mass[edge++];
	for (int i = 0; i < N; i++)
		if (r->w[i] && bucket(x[i], max, inv_t) == edge)
			h[n++] = (uint32_t)i;
	for (int i = n / 2 - 1; i >= 0; i--)
		sift(h, n, i, x, false);
	while (sum < need) {
		last = h[0];
		sum += r->w[last];
		h[0] = h[--n];
		sift(h, n, 0, x, false);
	}
	return last;
}

/* Weights that are not kept become 0; what is left, in all. */
static uint64_t filter(struct draw_room *r, const real *x, int N, const struct draw *how, double max, uint64_t total)
{
	uint64_t left = 0;
	if (how->top < DRAW_ALL) {
		uint32_t last = last_of_mass(r, x, N, max, how->inv_t, needed(how->top, total));
		real worst = x[last];
		for (int i = 0; i < N; i++)
			r->w[i] = x[i] > worst || (!(x[i] < worst) && (uint32_t)i <= last) ? r->w[i] : 0;
	}
	for (int i = 0; i < N; i++) {
		r->w[i] = r->w[i] >= how->least ? r->w[i] : 0;
		left += r->w[i];
	}
	return left;
}

uint32_t draw_row(struct draw_room *r, const real *x, int N, const struct draw *how)
{
	uint32_t best = draw_greedy(x, N);
	double max = (double)x[best];
	if (!isfinite(max))
		return best;
	uint64_t total = weigh(r->w, x, N, max, how->inv_t), sum = 0;
	if (how->top < DRAW_ALL || how->least > 1)
		total = filter(r, x, N, how, max, total);
	uint64_t want = wanted(how->u, total);
	for (int i = 0; i < N; i++) {
		sum += r->w[i];
		if (sum > want)
			return (uint32_t)i;
	}
	return best; /* not reached: the best one is always kept */
}

/* ---- the likeliest alone ---- */

/* The k best ids in rank order into heap[0..n); n returned. A heap with the worst of them on top
 * turns most of the row away with one comparison. Ids without a weight do not count. */
static int best_k(uint32_t *h, const real *x, int N, int k, double max, double inv_t)
{
	int n = 0;
	for (int i = 0; i < N; i++) {
		uint32_t id = (uint32_t)i;
		if ((n == k && !ranks_above(x, id, h[0])) || !(((double)x[i] - max) * inv_t > DRAW_FAR))
			continue;
		int at = n < k ? n++ : 0;
		h[at] = id;
		if (at)
			for (; at && ranks_above(x, h[(at - 1) / 2], h[at]); at = (at - 1) / 2)
				swap(&h[at], &h[(at - 1) / 2]);
		else
			sift(h, n, 0, x, true);
	}
	for (int m = n - 1; m > 0; m--) { /* the worst goes to the end, again and again */
		swap(&h[0], &h[m]);
		sift(h, m, 0, x, true);
	}
	return n;
}

static int by_id(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

/* heap: n ids in rank order, w: their weights. */
static uint32_t draw_ranked(struct draw_room *r, int n, const struct draw *how)
{
	uint64_t total = 0, sum = 0;
	uint32_t *h = r->heap;
	int kept = 0;
	for (int i = 0; i < n; i++)
		total += r->w[h[i]];
	uint64_t need = how->top < DRAW_ALL ? needed(how->top, total) : UINT64_MAX;
	for (; kept < n && sum < need; kept++)
		sum += r->w[h[kept]];
	n = 0;
	total = sum = 0;
	for (int i = 0; i < kept; i++)
		if (r->w[h[i]] >= how->least) {
			total += r->w[h[i]];
			h[n++] = h[i];
		}
	uint32_t best = h[0];
	uint64_t want = wanted(how->u, total);
	qsort(h, (size_t)n, sizeof *h, by_id);
	for (int i = 0; i < n; i++) {
		sum += r->w[h[i]];
		if (sum > want)
			return h[i];
	}
	return best; /* not reached, as above */
}

uint32_t draw_top(struct draw_room *r, const real *x, int N, int k, const struct draw *how)
{
	uint32_t best = draw_greedy(x, N);
	double max = (double)x[best];
	if (!isfinite(max))
		return best;
	int n = best_k(r->heap, x, N, k, max, how->inv_t);
	for (int i = 0; i < n; i++)
		r->w[r->heap[i]] = weight(((double)x[r->heap[i]] - max) * how->inv_t);
	return draw_ranked(r, n, how);
}

uint32_t draw_listed(struct draw_room *r, const uint32_t *ids, const float *vals, int n, const struct draw *how)
{
	double max = (double)vals[0];
	int m = 0;
	if (!isfinite(max))
		return ids[0];
	for (; m < n; m++) {
		double x = ((double)vals[m] - max) * how->inv_t;
		if (!(x > DRAW_FAR))
			break;
		r->heap[m] = ids[m];
		r->w[ids[m]] = weight(x);
	}
	return draw_ranked(r, m, how);
}

/* ---- the slot ---- */

int cpu_draw(struct dev *d, uint32_t *ids, float *vals, const real *x, int ldx, const struct draw *how, int M, int N)
{
	struct draw_room r;
	if (M < 0 || N <= 0 || N > DRAW_MOST || ldx < N)
		return cpu_bad(d, "draw");
	r.w = cpu_scratch(d, (size_t)N * (sizeof *r.w + sizeof *r.heap));
	if (!r.w)
		return -ENOMEM;
	r.heap = (uint32_t *)(r.w + N);
	for (int m = 0; m < M; m++) {
		const real *row = x + (size_t)how[m].row * (size_t)ldx;
		ids[m] = draw_row(&r, row, N, &how[m]);
		vals[m] = (float)row[ids[m]];
	}
	return 0;
}
