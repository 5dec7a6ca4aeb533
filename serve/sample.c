/* The sampling rule of sample.h.
 *
 * Filters are thresholds, not marks: ranking is by (logit descending, id
 * ascending), so the kept set is everything ranked at or above one (logit, id)
 * pair. top_p finds the pair without putting more in order than a small part of the row;
 * with top_k only the k best are ever weighed. Penalties and bias work on a copy of the row, as the tap and the
 * log-probabilities want the model's own.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "serve/sample.h"

enum { FAR = -60 /* e^-60 is far below what the 53 bits of u resolve */, BUCKETS = 32 * -FAR };

struct sampler {
	int V;
	double *p;      /* [V] unnormalised probabilities */
	uint32_t *heap; /* [V] ids, largest on top */
	real *row;      /* [V] logits after bias and penalties */
	double mass[BUCKETS]; /* of weights */
	/* the open history: counts of generated tokens, IN_PROMPT for those of the prompt */
	uint32_t *count; /* [V], zero when closed */
	uint32_t *seen;  /* [V] ids with a count */
	int n_seen;
	bool open;
};

#define IN_PROMPT 0x80000000u

struct sampler *sampler_new(int V)
{
	struct sampler *s = calloc(1, sizeof *s);
	if (!s)
		return NULL;
	s->V = V;
	s->p = malloc((size_t)V * sizeof *s->p);
	s->heap = malloc((size_t)V * sizeof *s->heap);
	s->row = malloc((size_t)V * sizeof *s->row);
	s->count = calloc((size_t)V, sizeof *s->count);
	s->seen = malloc((size_t)V * sizeof *s->seen);
	return s->p && s->heap && s->row && s->count && s->seen ? s : sampler_free(s);
}

struct sampler *sampler_free(struct sampler *s)
{
	if (!s)
		return NULL;
	free(s->p);
	free(s->heap);
	free(s->row);
	free(s->count);
	free(s->seen);
	free(s);
	return NULL;
}

/* ---- bias and penalties ---- */

static bool repeats(const struct sampling *how)
{
	return how->repetition > 0 && (how->repetition < 1 || how->repetition > 1);
}

static bool counts(const struct sampling *how)
{
	return repeats(how) || how->presence < 0 || how->presence > 0 || how->frequency < 0 || how->frequency > 0;
}

static uint32_t *counter(struct sampler *s, uint32_t id)
{
	if (!s->count[id])
		s->seen[s->n_seen++] = id;
	return &s->count[id];
}

void sampler_open(struct sampler *s, const struct sampling *how, const struct history *h)
{
	s->open = counts(how);
	if (!s->open)
		return;
	for (int i = 0; i < h->n_prompt; i++)
		*counter(s, h->tokens[i]) |= IN_PROMPT;
	for (int i = h->n_prompt; i < h->n; i++)
		++*counter(s, h->tokens[i]);
}

void sampler_saw(struct sampler *s, uint32_t id)
{
	if (s->open)
		++*counter(s, id);
}

void sampler_close(struct sampler *s)
{
	for (int i = 0; i < s->n_seen; i++)
		s->count[s->seen[i]] = 0;
	s->n_seen = 0;
	s->open = false;
}

/* The row that is drawn from: l itself when nothing changes it. */
static const real *shape(struct sampler *s, const real *l, const struct sampling *how, uint32_t position)
{
	bool repeat = repeats(how), hold = how->n_held && position < how->held_until;

	if (!how->n_bias && !s->open && !hold)
		return l;
	memcpy(s->row, l, (size_t)s->V * sizeof *l);
	for (int i = 0; i < how->n_bias; i++)
		s->row[how->bias[i].id] += (real)how->bias[i].bias;
	for (int i = 0; i < s->n_seen; i++) {
		real *x = &s->row[s->seen[i]];
		uint32_t n = s->count[s->seen[i]] & ~IN_PROMPT;
		if (repeat)
			*x = *x > 0 ? *x / (real)how->repetition : *x * (real)how->repetition;
		if (n)
			*x -= (real)how->frequency * (real)n + (real)how->presence;
	}
	for (int i = 0; hold && i < how->n_held; i++)
		if (how->held[i] < (uint32_t)s->V) /* a model may name an end of text that it lacks */
			s->row[how->held[i]] = -(real)INFINITY;
	return s->row;
}

/* Philox4x32-10 (Salmon et al. 2011). */
static void philox(uint32_t c[4], uint32_t k0, uint32_t k1)
{
	for (int i = 0; i < 10; i++) {
		uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
		uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a};
		for (int j = 0; j < 4; j++)
			c[j] = next[j];
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
}

double sample_uniform(uint64_t seed, uint32_t choice, uint32_t position)
{
	uint32_t c[4] = {position, choice, 0, 0};
	philox(c, (uint32_t)seed, (uint32_t)(seed >> 32));
	uint64_t bits = ((uint64_t)c[0] << 32 | c[1]) >> 11;
	return (double)bits * 0x1p-53;
}

/* NaN never wins a comparison, so it never wins the row. */
static uint32_t argmax(const real *l, int V)
{
	uint32_t best = 0;
	real max = -(real)INFINITY;
	for (int i = 0; i < V; i++)
		if (l[i] > max) {
			max = l[i];
			best = (uint32_t)i;
		}
	return best;
}

static bool ranks_above(const real *l, uint32_t a, uint32_t b)
{
	return l[a] > l[b] || (l[a] == l[b] && a < b);
}

static void swap(uint32_t *a, uint32_t *b)
{
	uint32_t x = *a;
	*a = *b;
	*b = x;
}

/* Let heap[i] sink: the best id on top, or the worst. */
static void sift(uint32_t *heap, int n, int i, const real *l, bool worst)
{
	uint32_t x = heap[i];
	for (;;) {
		int child = 2 * i + 1;
		if (child >= n)
			break;
		if (child + 1 < n && ranks_above(l, heap[child + 1], heap[child]) != worst)
			child++;
		if (ranks_above(l, heap[child], x) == worst)
			break;
		heap[i] = heap[child];
		i = child;
	}
	heap[i] = x;
}

/* ---- exponentials ---- */

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

double sample_exp(double x)
{
	v2 v = {x, x};
	return exp2lanes(v)[0];
}

static double weigh(struct sampler *s, const real *l, double max, double inv_t)
{
	double total = 0;
	int i = 0;
	for (; i + 2 <= s->V; i += 2) {
		v2 x = {(double)l[i], (double)l[i + 1]};
		x = (x - max) * inv_t;
		i2 near = x > (double)FAR; /* false for NaN and -inf */
		v2 y = (v2)((i2)exp2lanes((v2)((i2)x & near)) & near);
		memcpy(s->p + i, &y, sizeof y);
	}
	for (; i < s->V; i++) {
		double x = ((double)l[i] - max) * inv_t;
		s->p[i] = x > FAR ? sample_exp(x) : 0;
	}
	for (i = 0; i < s->V; i++)
		total += s->p[i];
	return total;
}

/* ---- filters ---- */

/* Smaller for better ranks, the same only for ids near each other; of ids that have a weight. */
static inline int bucket(real l, double max, double inv_t)
{
	int b = (int)((max - (double)l) * inv_t * (BUCKETS / -FAR));
	return b < BUCKETS ? b : BUCKETS - 1;
}

/* The k best ids in rank order into heap[0..n); n returned. A heap with the worst of them on top
 * turns most of the row away with one comparison. Ids further than FAR below the best have no weight. */
static int best_k(struct sampler *s, const real *l, int k, double max, double inv_t)
{
	uint32_t *h = s->heap;
	int n = 0;
	for (int i = 0; i < s->V; i++) {
		uint32_t id = (uint32_t)i;
		if ((n == k && !ranks_above(l, id, h[0])) || !(((double)l[i] - max) * inv_t > FAR))
			continue;
		int at = n < k ? n++ : 0;
		h[at] = id;
		if (at)
			for (; at && ranks_above(l, h[(at - 1) / 2], h[at]); at = (at - 1) / 2)
				swap(&h[at], &h[(at - 1) / 2]);
		else
			sift(h, n, 0, l, true);
	}
	for (int m = n - 1; m > 0; m--) { /* the worst goes to the end, again and again */
		swap(&h[0], &h[m]);
		sift(h, m, 0, l, true);
	}
	return n;
}

static int by_id(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

/* With top_k the rest of the row is never weighed: the same sums over the ids that are kept. heap: n ids in rank order, p: their weights. */
static uint32_t draw_ranked(struct sampler *s, int n, const struct sampling *how, double u)
{
	double total = 0, sum = 0;
	uint32_t *h = s->heap;
	int kept = 0;
	for (int i = 0; i < n; i++)
		total += s->p[h[i]];
	if (how->top_p < 1)
		for (double want = total * (double)how->top_p; kept < n && (kept == 0 || sum < want); kept++)
			sum += s->p[h[kept]];
	else
		kept = n;
	n = 0;
	for (int i = 0; i < kept; i++)
		if (s->p[h[i]] >= (double)how->min_p)
			h[n++] = h[i];
	uint32_t best = h[0];
	qsort(h, (size_t)n, sizeof *h, by_id);
	total = sum = 0;
	for (int i = 0; i < n; i++)
		total += s->p[h[i]];
	for (int i = 0; i < n; i++) {
		sum += s->p[h[i]];
		if (sum > u * total)
			return h[i];
	}
	return best; /* rounding left the walk short */
}

static uint32_t draw_top_k(struct sampler *s, const real *l, const struct sampling *how, double max, double u)
{
	double inv_t = 1 / (double)how->temperature;
	int n = best_k(s, l, how->top_k, max, inv_t);
	for (int i = 0; i < n; i++)
		s->p[s->heap[i]] = sample_exp(((double)l[s->heap[i]] - max) * inv_t);
	return draw_ranked(s, n, how, u);
}

/* The last kept id under top_p alone. Weights are added up by how far their logits lie below the best, in buckets; only
 * the bucket in which the wanted mass is reached is put in order. */
static uint32_t last_of_mass(struct sampler *s, const real *l, double max, double inv_t, double want)
{
	uint32_t *h = s->heap, last = 0;
	double sum;
	int n = 0, edge = 0;
	memset(s->mass, 0, sizeof s->mass);
	for (int i = 0; i < s->V; i++)
		if (s->p[i] > 0)
			s->mass[bucket(l[i], max, inv_t)] += s->p[i];
	sum = s->mass[0]; /* there is the best one */
	for (int b = 1; b < BUCKETS && sum < want; b++)
		if (s->mass[b] > 0) {
			sum += s->mass[b];
			edge = b;
		}
	sum -= s->mass[edge];
	for (int i = 0; i < s->V; i++)
		if (s->p[i] > 0 && bucket(l[i], max, inv_t) == edge)
			h[n++] = (uint32_t)i;
	for (int i = n / 2 - 1; i >= 0; i--)
		sift(h, n, i, l, false);
	do { /* the best one is always kept */
		last = h[0];
		sum += s->p[last];
		h[0] = h[--n];
		sift(h, n, 0, l, false);
	} while (n > 0 && sum < want);
	return last;
}

/* Weights that top_p and min_p leave out become 0; what is left, in all. */
static double filter(struct sampler *s, const real *l, const struct sampling *how, double max, double total)
{
	double min_p = (double)how->min_p, left = 0;
	if (how->top_p < 1) {
		uint32_t last = last_of_mass(s, l, max, 1 / (double)how->temperature, (double)how->top_p * total);
		real worst = l[last];
		for (int i = 0; i < s->V; i++)
			s->p[i] = l[i] > worst || (!(l[i] < worst) && (uint32_t)i <= last) ? s->p[i] : 0;
	}
	for (int i = 0; i < s->V; i++) {
		s->p[i] = s->p[i] >= min_p ? s->p[i] : 0;
		left += s->p[i];
	}
	return left;
}

int sample_needs(const struct sampling *how, int V, uint32_t position)
{
	if (how->n_bias || counts(how) || (how->n_held && position < how->held_until))
		return 0;
	if (!(how->temperature > 0))
		return 1;
	return how->top_k > 0 && how->top_k <= SAMPLE_BEST && how->top_k < V ? how->top_k : 0;
}

uint32_t sample_best(struct sampler *s, const uint32_t *ids, const float *vals, const struct sampling *how, uint32_t position)
{
	double max = (double)vals[0];
	int n = 0;
	if (!(how->temperature > 0) || !isfinite(max))
		return ids[0];
	double inv_t = 1 / (double)how->temperature;
	for (; n < how->top_k; n++) {
		double x = ((double)vals[n] - max) * inv_t;
		if (!(x > FAR))
			break;
		s->heap[n] = ids[n];
		s->p[ids[n]] = sample_exp(x);
	}
	return draw_ranked(s, n, how, sample_uniform(how->seed, how->choice, position));
}

uint32_t sample_token(struct sampler *s, const real *logits, const struct sampling *how, uint32_t position)
{
	const real *l = shape(s, logits, how, position);
	uint32_t best = argmax(l, s->V);
	double max = (double)l[best];
	if (!(how->temperature > 0) || !isfinite(max))
		return best;
	double u = sample_uniform(how->seed, how->choice, position);
	if (how->top_k > 0 && how->top_k < s->V)
		return draw_top_k(s, l, how, max, u);
	double total = weigh(s, l, max, 1 / (double)how->temperature);
	if (how->top_p < 1 || how->min_p > 0)
		total = filter(s, l, how, max, total);
	double want = u * total, sum = 0;
	for (int i = 0; i < s->V; i++) {
		sum += s->p[i];
		if (sum > want)
			return (uint32_t)i;
	}
	return best; /* rounding left the walk short */
}
