/* The sampling rule: ties, filters, the counter-based draw.
 *
 * Philox against the published known answer; the lowest id wins greedy ties, NaN
 * never wins; a draw follows the inverse CDF in id order exactly; top_k, top_p and min_p keep
 * exactly the set that a sort of the row keeps (checked against a plain sort on
 * random rows with many ties); frequencies follow the probabilities; the same
 * (seed, choice, position) gives the same token and each of the three matters; bias and penalties move
 * exactly the logits they name, by the documented sums, and leave row and sampler as they were.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/draw.h"
#include "serve/sample.h"
#include "tests/unit/serve/toy.h"

static const struct sampling greedy = {.top_p = 1};

static void test_philox(void **state)
{
	(void)state;
	/* Random123 kat_vectors, philox4x32-10: counter 0, key 0 -> 6627e8d5 e169c58d ... */
	uint64_t bits = (0x6627e8d5ull << 32 | 0xe169c58dull) >> 11;
	assert_true(sample_uniform(0, 0, 0) == (double)bits * 0x1p-53);
	/* counter all ones is not reachable; key all ones, counter (all ones, all ones, 0, 0) only has to be another number */
	assert_true(sample_uniform(~0ull, ~0u, ~0u) != sample_uniform(0, 0, 0));
	double sum = 0;
	for (uint32_t i = 0; i < 20000; i++) {
		double u = sample_uniform(42, 1, i);
		assert_true(u >= 0 && u < 1);
		sum += u;
	}
	assert_true(fabs(sum / 20000 - 0.5) < 0.01);
}

static void test_greedy(void **state)
{
	(void)state;
	struct sampler *s = sampler_new(5);
	real tie[5] = {1, 3, 3, 2, 3}, nan[5] = {(real)NAN, 1, (real)NAN, 2, 0}, all[5], inf[5] = {0, (real)-INFINITY, 5, (real)INFINITY, 1};
	for (int i = 0; i < 5; i++)
		all[i] = (real)NAN;
	assert_int_equal(sample_token(s, tie, &greedy, 0), 1);
	assert_int_equal(sample_token(s, nan, &greedy, 0), 3);
	assert_int_equal(sample_token(s, inf, &greedy, 0), 3);
	assert_int_equal(sample_token(s, all, &greedy, 0), 0);
	struct sampling hot = {.temperature = 1, .top_p = 1};
	assert_int_equal(sample_token(s, all, &hot, 0), 0);
	assert_int_equal(sample_token(s, inf, &hot, 0), 3);
	sampler_free(s);
}

static void test_inverse_cdf(void **state)
{
	(void)state;
	struct sampler *s = sampler_new(4);
	real l[4] = {(real)log(0.1), (real)log(0.4), (real)log(0.2), (real)log(0.3)};
	struct sampling how = {.temperature = 1, .top_p = 1, .seed = 99};
	int n[4] = {0};
	for (uint32_t pos = 0; pos < 20000; pos++) {
		double u = sample_uniform(99, 0, pos);
		uint32_t want = u < 0.1 ? 0 : u < 0.5 ? 1 : u < 0.7 ? 2 : 3, got = sample_token(s, l, &how, pos);
		if (fabs(u - 0.1) > 1e-6 && fabs(u - 0.5) > 1e-6 && fabs(u - 0.7) > 1e-6)
			assert_int_equal(got, want);
		n[got]++;
	}
	for (int i = 0; i < 4; i++)
		assert_true(fabs(n[i] / 20000.0 - exp((double)l[i])) < 0.015);
	sampler_free(s);
}

enum { V = 300 };

struct ranked { double l; uint64_t w; int id; };

static int by_rank(const void *a, const void *b)
{
	const struct ranked *x = a, *y = b;
	if (x->l != y->l)
		return x->l < y->l ? 1 : -1;
	return x->id - y->id;
}

/* The least whole number that is not below x of n, or the greatest that is not above it; x in 0..1. */
static uint64_t of(double x, uint64_t n, bool up)
{
	unsigned __int128 product = (unsigned __int128)(uint64_t)(x * 0x1p53) * n;
	return (uint64_t)(product >> 53) + (up && (uint64_t)product << 11);
}

/* The kept set by a full sort, and the draw from it. */
static uint32_t reference(const real *l, const struct sampling *how, uint32_t pos)
{
	struct ranked r[V];
	uint64_t keep[V] = {0}, total = 0, sum = 0;
	double max = -INFINITY;
	for (int i = 0; i < V; i++)
		max = (double)l[i] > max ? (double)l[i] : max;
	for (int i = 0; i < V; i++) {
		double x = ((double)l[i] - max) * (1 / (double)how->temperature);
		r[i] = (struct ranked){(double)l[i], x > -60 ? (uint64_t)nearbyint(draw_exp(x) * 0x1p40) : 0, i};
	}
	qsort(r, V, sizeof *r, by_rank);
	int n = how->top_k > 0 && how->top_k < V ? how->top_k : V;
	for (int i = 0; i < n; i++)
		total += r[i].w;
	for (int i = 0; i < n && (i == 0 || sum < of((double)how->top_p, total, true)); i++) {
		sum += r[i].w;
		keep[r[i].id] = (double)r[i].w >= (double)how->min_p * 0x1p40 ? r[i].w : 0;
	}
	total = sum = 0;
	for (int i = 0; i < V; i++)
		total += keep[i];
	uint64_t want = of(sample_uniform(how->seed, how->choice, pos), total, false);
	for (int i = 0; i < V; i++) {
		sum += keep[i];
		if (sum > want)
			return (uint32_t)i;
	}
	return UINT32_MAX;
}

static void test_filters(void **state)
{
	(void)state;
	struct sampler *s = sampler_new(V);
	real l[V];
	print_message("seed 5\n");
	for (int trial = 0; trial < 1000; trial++) {
		uint64_t x = toy_mix(5 + (uint64_t)trial);
		for (int i = 0; i < V; i++) /* rounded, so that ranks are full of ties */
			l[i] = (real)(roundf(toy_noise(x, (uint64_t)i) * 6) / (trial % 2 ? 2.0f : 16.0f));
		struct sampling how = {.temperature = 0.3f + (float)(x % 20) / 10, .top_p = 1, .seed = x, .choice = (uint32_t)trial % 4};
		if (trial % 8 & 1)
			how.top_k = 1 + (int)(x % 50);
		if (trial % 8 & 2)
			how.top_p = (float)(x % 97) / 100;
		if (trial % 8 & 4)
			how.min_p = (float)(x % 13) / 40;
		for (uint32_t pos = 0; pos < 5; pos++)
			assert_int_equal(sample_token(s, l, &how, pos), reference(l, &how, pos));
	}
	sampler_free(s);
}

/* Where the likeliest tokens are said to suffice, they draw what the row draws; they are said to wherever nothing else of the row counts. */
static void test_best(void **state)
{
	(void)state;
	struct sampler *s = sampler_new(V);
	int drawn = 0;
	print_message("seed 9\n");
	for (int trial = 0; trial < 600; trial++) {
		uint64_t x = toy_mix(9 + (uint64_t)trial);
		real l[V];
		uint32_t ids[V], t;
		float vals[V];
		for (int i = 0; i < V; i++)
			l[i] = (real)(roundf(toy_noise(x, (uint64_t)i) * 6) / (trial % 2 ? 2.0f : 16.0f));
		if (trial % 50 == 7)
			l[x % V] = (real)INFINITY;
		for (int i = 0; (trial % 50 == 9 || trial % 11 == 4) && i < V; i++) /* all, or all but a few: fewer than top_k */
			l[i] = trial % 50 == 9 || i % 16 ? -(real)INFINITY : l[i];
		for (int i = 0; i < V; i++) /* insertion: best first, ties by lower id */
			for (int j = i; (ids[j] = (uint32_t)i, j > 0) && l[ids[j - 1]] < l[i]; j--)
				t = ids[j - 1], ids[j - 1] = (uint32_t)i, ids[j] = t;
		struct sampling how = {.temperature = trial % 3 ? 0.2f + (float)(x % 20) / 10 : 0, .top_p = trial % 4 ? 1 : (float)(x % 97) / 100, .seed = x,
				       .min_p = trial % 5 ? 0 : (float)(x % 13) / 40, .top_k = 1 + (int)(x % 50)};
		int n = sample_needs(&how, V, 3);
		assert_int_equal(n, how.temperature > 0 ? how.top_k : 1);
		for (int i = 0; i < V; i++)
			vals[i] = i < n ? (float)l[ids[i]] : NAN; /* nothing beyond is looked at */
		for (uint32_t pos = 0; pos < 5; pos++, drawn++)
			assert_int_equal(sample_best(s, ids, vals, &how, pos), sample_token(s, l, &how, pos));
	}
	assert_int_equal(drawn, 3000);
	const struct token_bias bias = {1, 2};
	const uint32_t held = 3;
	const struct sampling whole[] = {
		{.temperature = 1, .top_p = 1}, {.temperature = 1, .top_p = 1, .top_k = V}, {.temperature = 2, .top_p = 0.9f, .min_p = 0.1f},
		{.top_p = 1, .bias = &bias, .n_bias = 1}, {.top_p = 1, .presence = 1}, {.top_p = 1, .frequency = -1}, {.top_p = 1, .repetition = 1.1f},
		{.temperature = 1, .top_p = 1, .top_k = 257}, {.temperature = 1, .top_p = 1, .top_k = 5, .held = &held, .n_held = 1, .held_until = 4},
		{.temperature = 1, .top_p = 1, .held = &held, .n_held = 1, .held_until = 4},
	};
	for (int i = 0; i < (int)(sizeof whole / sizeof *whole); i++)
		assert_int_equal(sample_needs(&whole[i], V, 3), i < 3 ? SAMPLE_DRAW : SAMPLE_ROW);
	assert_int_equal(sample_needs(&whole[8], V, 4), 5);
	assert_int_equal(sample_needs(&whole[9], V, 4), SAMPLE_DRAW);
	sampler_free(s);
}

static void test_key(void **state)
{
	(void)state;
	struct sampler *s = sampler_new(V);
	real l[V] = {0};
	struct sampling a = {.temperature = 1, .top_p = 1, .seed = 1}, b = a, c = a;
	b.seed = 2;
	c.choice = 1;
	int same_b = 0, same_c = 0, same_pos = 0;
	for (uint32_t pos = 0; pos < 200; pos++) {
		uint32_t x = sample_token(s, l, &a, pos);
		assert_int_equal(x, sample_token(s, l, &a, pos));
		same_b += x == sample_token(s, l, &b, pos);
		same_c += x == sample_token(s, l, &c, pos);
		same_pos += x == sample_token(s, l, &a, pos + 1);
	}
	assert_true(same_b < 10 && same_c < 10 && same_pos < 10);
	sampler_free(s);
}

static void test_penalties(void **state)
{
	(void)state;
	struct sampler *s = sampler_new(6);
	const real l[6] = {2, (real)1.9, (real)1.75, -1, (real)1.69, 0};
	real row[6];
	const uint32_t before[] = {0, 3, 1, 1, 2}; /* prompt 0 3, answer 1 1 2 */
	struct history h = {before, 2, 5};
	struct token_bias b[2] = {{5, 3}, {0, -100}};
	struct sampling how = {.top_p = 1};
	memcpy(row, l, sizeof row);

	how.repetition = 2; /* 1 .95 .875 -2 1.69 0 */
	sampler_open(s, &how, &h);
	assert_int_equal(sample_token(s, l, &how, 5), 4);
	sampler_saw(s, 4); /* .85: now the prompt's 0 is best, although divided */
	assert_int_equal(sample_token(s, l, &how, 6), 0);
	sampler_close(s);
	how = (struct sampling){.top_p = 1, .frequency = 0.1f}; /* 2 1.7 1.65 -1 1.69 0: the prompt does not count */
	sampler_open(s, &how, &h);
	assert_int_equal(sample_token(s, l, &how, 5), 0);
	for (int i = 0; i < 4; i++)
		sampler_saw(s, 0); /* 1.6 */
	assert_int_equal(sample_token(s, l, &how, 6), 1);
	sampler_close(s);
	how = (struct sampling){.top_p = 1, .presence = 0.15f}; /* once, however often: 2 1.75 1.6 -1 1.69 0 */
	sampler_open(s, &how, &h);
	sampler_saw(s, 0);
	assert_int_equal(sample_token(s, l, &how, 5), 0); /* 1.85 */
	sampler_saw(s, 0);
	assert_int_equal(sample_token(s, l, &how, 5), 0);
	sampler_close(s);
	how = (struct sampling){.top_p = 1, .bias = b, .n_bias = 2};
	assert_int_equal(sample_token(s, l, &how, 5), 5);
	how.n_bias = 0;
	assert_int_equal(sample_token(s, l, &how, 5), 0);
	how = (struct sampling){.top_p = 1, .repetition = 2}; /* closed: no history */
	assert_int_equal(sample_token(s, l, &how, 5), 0);
	const uint32_t held[] = {0, 1};
	for (int i = 0; i < 2; i++) { /* held back until position 7, drawn or picked */
		how = (struct sampling){.temperature = i ? 0.01f : 0, .top_p = 1, .held = held, .n_held = 2, .held_until = 7};
		assert_int_equal(sample_token(s, l, &how, 6), 2);
		assert_int_equal(sample_token(s, l, &how, 7), 0);
	}
	assert_memory_equal(row, l, sizeof row);
	sampler_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_philox), cmocka_unit_test(test_greedy), cmocka_unit_test(test_inverse_cdf),
					   cmocka_unit_test(test_filters), cmocka_unit_test(test_key),
					   cmocka_unit_test(test_best), cmocka_unit_test(test_penalties)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
