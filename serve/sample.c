/* The sampling rule of sample.h.
 *
 * Filters are thresholds, not marks: ranking is by (logit descending, id
 * ascending), so the kept set is everything ranked at or above one (logit, id)
 * pair, and the CDF walk tests that pair. Finding the pair pops a heap only as
 * deep as the filter reaches.
 */
#include <math.h>
#include <stdlib.h>
#include "serve/sample.h"

struct sampler {
	int V;
	double *p;      /* [V] unnormalised probabilities */
	uint32_t *heap; /* [V] ids, largest on top */
};

struct sampler *sampler_new(int V)
{
	struct sampler *s = calloc(1, sizeof *s);
	if (!s)
		return NULL;
	s->V = V;
	s->p = malloc((size_t)V * sizeof *s->p);
	s->heap = malloc((size_t)V * sizeof *s->heap);
	return s->p && s->heap ? s : sampler_free(s);
}

struct sampler *sampler_free(struct sampler *s)
{
	if (!s)
		return NULL;
	free(s->p);
	free(s->heap);
	free(s);
	return NULL;
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

static void sift(uint32_t *heap, int n, int i, const real *l)
{
	uint32_t x = heap[i];
	for (;;) {
		int child = 2 * i + 1;
		if (child >= n)
			break;
		if (child + 1 < n && ranks_above(l, heap[child + 1], heap[child]))
			child++;
		if (!ranks_above(l, heap[child], x))
			break;
		heap[i] = heap[child];
		i = child;
	}
	heap[i] = x;
}

/* The last kept id under top_k and top_p. Popped ids gather at the heap's tail in
 * rank order from the end, which is where top_p reads them again when top_k bounds the sum. */
static uint32_t last_kept(struct sampler *s, const real *l, const struct sampling *how, double total)
{
	int n = 0, popped = 0;
	for (int i = 0; i < s->V; i++)
		if (s->p[i] > 0)
			s->heap[n++] = (uint32_t)i;
	int size = n;
	for (int i = n / 2 - 1; i >= 0; i--)
		sift(s->heap, n, i, l);
	int limit = how->top_k > 0 && how->top_k < size ? how->top_k : size;
	bool by_k = limit < size, by_p = how->top_p < 1;
	double want = by_p && !by_k ? (double)how->top_p * total : INFINITY, sum = 0;
	while (popped < limit && (popped == 0 || sum < want)) { /* the best one is always kept */
		uint32_t top = s->heap[0];
		s->heap[0] = s->heap[--n];
		sift(s->heap, n, 0, l);
		s->heap[n] = top;
		sum += s->p[top];
		popped++;
	}
	if (by_p && by_k) {
		double target = (double)how->top_p * sum;
		int i = 0;
		for (sum = 0; i < popped && (i == 0 || sum < target); i++)
			sum += s->p[s->heap[size - 1 - i]];
		popped = i;
	}
	return s->heap[size - popped];
}

uint32_t sample_token(struct sampler *s, const real *l, const struct sampling *how, uint32_t position)
{
	uint32_t best = argmax(l, s->V);
	double max = (double)l[best];
	if (!(how->temperature > 0) || !isfinite(max))
		return best;
	double inv_t = 1 / (double)how->temperature, total = 0;
	for (int i = 0; i < s->V; i++) {
		double x = ((double)l[i] - max) * inv_t;
		s->p[i] = x > -60 ? exp(x) : 0; /* e^-60 is far below what 53 bits of u resolve */
		total += s->p[i];
	}
	bool filtered = (how->top_k > 0 && how->top_k < s->V) || how->top_p < 1 || how->min_p > 0;
	if (filtered) {
		uint32_t last = best;
		if ((how->top_k > 0 && how->top_k < s->V) || how->top_p < 1)
			last = last_kept(s, l, how, total);
		else
			for (int i = 0; i < s->V; i++) /* min_p alone: keep all by rank */
				if (ranks_above(l, last, (uint32_t)i))
					last = (uint32_t)i;
		total = 0;
		for (int i = 0; i < s->V; i++) {
			bool keep = !ranks_above(l, last, (uint32_t)i) && s->p[i] >= (double)how->min_p;
			s->p[i] = keep ? s->p[i] : 0;
			total += s->p[i];
		}
	}
	double want = sample_uniform(how->seed, how->choice, position) * total, sum = 0;
	for (int i = 0; i < s->V; i++) {
		sum += s->p[i];
		if (sum > want)
			return (uint32_t)i;
	}
	return best; /* rounding left the walk short */
}
