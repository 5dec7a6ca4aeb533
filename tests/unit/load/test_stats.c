/* Quantiles are those of the definition; a bootstrap interval covers what it should, draws whole owners, and
 * a ratio cancels what both arms of a pair share; nothing is said where there is nothing to say. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>
#include "tests/bench/load/arrivals.h"
#include "tests/bench/load/stats.h"

static void test_quantiles(void **state)
{
	struct series s = {0};

	(void)state;
	for (int i = 100; i >= 1; i--)
		assert_int_equal(series_add(&s, i, 0), 0);
	assert_true(fabs(series_stat(&s, STAT_MEAN) - 50.5) <= 1e-9);
	assert_true(series_stat(&s, STAT_P50) == 50);
	assert_true(series_stat(&s, STAT_P95) == 95);
	assert_true(series_stat(&s, STAT_P99) == 99);
	assert_true(fabs(series_stat(&s, STAT_TAIL) - 1.98) <= 1e-9);
	series_done(&s);
}

static void test_empty(void **state)
{
	struct series s = {0};
	struct estimate e[N_STATS];

	(void)state;
	series_estimate(&s, 0, 1, e);
	for (int k = 0; k < N_STATS; k++)
		assert_true(isnan(e[k].v) && isnan(e[k].low));
	assert_int_equal(series_add(&s, 3, 0), 0);
	series_estimate(&s, 1, 1, e); /* one owner: a value, no interval */
	assert_true(e[STAT_P99].v == 3 && isnan(e[STAT_P99].high));
	series_done(&s);
}

/* Of 200 experiments with a known mean, about 95 % of the intervals hold it. */
static void test_coverage(void **state)
{
	struct rng rng = {7};
	int held = 0;

	(void)state;
	for (int t = 0; t < 200; t++) {
		struct series s = {0};
		struct estimate e[N_STATS];
		for (uint32_t o = 0; o < 40; o++)
			assert_int_equal(series_add(&s, rng_unit(&rng), o), 0);
		series_estimate(&s, 40, (uint64_t)t + 1, e);
		held += e[STAT_MEAN].low <= .5 && .5 <= e[STAT_MEAN].high;
		series_done(&s);
	}
	assert_in_range(held, 176, 200);
}

/* Samples of one owner move together: the interval must be as wide as for one sample an owner. */
static void test_owners_are_drawn_whole(void **state)
{
	struct rng rng = {9};
	struct series one = {0}, many = {0};
	struct estimate a[N_STATS], b[N_STATS];

	(void)state;
	for (uint32_t o = 0; o < 30; o++) {
		double v = rng_unit(&rng);
		assert_int_equal(series_add(&one, v, o), 0);
		for (int i = 0; i < 50; i++)
			assert_int_equal(series_add(&many, v, o), 0);
	}
	series_estimate(&one, 30, 3, a);
	series_estimate(&many, 30, 3, b);
	assert_true(fabs((a[STAT_MEAN].high - a[STAT_MEAN].low) - (b[STAT_MEAN].high - b[STAT_MEAN].low)) <= 1e-5);
	series_done(&one);
	series_done(&many);
}

/* The machine is three times slower in some slices; the arms differ by 2 %: the pairs see it. */
static void test_pairs_cancel_the_machine(void **state)
{
	struct rng rng = {11};
	struct series a = {0}, b = {0};
	struct estimate e[N_STATS], alone[N_STATS];

	(void)state;
	for (uint32_t slice = 0; slice < 24; slice++) {
		double machine = 1 + 2 * rng_unit(&rng);
		for (int i = 0; i < 100; i++) {
			assert_int_equal(series_add(&a, 10.2 * machine * (1 + .01 * rng_unit(&rng)), slice), 0);
			assert_int_equal(series_add(&b, 10.0 * machine * (1 + .01 * rng_unit(&rng)), slice), 0);
		}
	}
	series_ratio(&a, &b, 24, 5, e);
	series_estimate(&b, 24, 5, alone);
	assert_true(fabs(e[STAT_MEAN].v - 1.02) <= .002);
	assert_true(e[STAT_MEAN].low > 1.015 && e[STAT_MEAN].high < 1.025);
	assert_true(alone[STAT_MEAN].high / alone[STAT_MEAN].low > 1.1); /* without pairs nothing could be said */
	series_done(&a);
	series_done(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_quantiles),
		cmocka_unit_test(test_empty),
		cmocka_unit_test(test_coverage),
		cmocka_unit_test(test_owners_are_drawn_whole),
		cmocka_unit_test(test_pairs_cancel_the_machine),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
