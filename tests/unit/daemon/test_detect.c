/* The change detectors against what other implementations of them say.
 *
 * The streams are those of the river library's documentation, which are made by Python's `random`
 * module; its generator (MT19937, Matsumoto & Nishimura) is written out here, so that the streams
 * and KSWIN's draws come from a seed instead of a file. Alarms must fall on the very values where
 * river reports them. The exact Kolmogorov-Smirnov probability is checked against values of
 * scipy.stats.ks_2samp and by counting all orderings of small samples.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "daemon/detect.h"

/* ---- Python's random ---- */

struct mt { uint32_t s[624]; int at; };

static void mt_seed(struct mt *m, uint32_t key)
{
	uint32_t *s = m->s;

	s[0] = 19650218;
	for (uint32_t i = 1; i < 624; i++)
		s[i] = 1812433253u * (s[i - 1] ^ (s[i - 1] >> 30)) + i;
	uint32_t i = 1;
	for (int k = 0; k < 624; k++) {
		s[i] = (s[i] ^ ((s[i - 1] ^ (s[i - 1] >> 30)) * 1664525u)) + key;
		if (++i == 624)
			s[0] = s[623], i = 1;
	}
	for (int k = 0; k < 623; k++) {
		s[i] = (s[i] ^ ((s[i - 1] ^ (s[i - 1] >> 30)) * 1566083941u)) - i;
		if (++i == 624)
			s[0] = s[623], i = 1;
	}
	s[0] = 0x80000000u;
	m->at = 624;
}

static uint32_t mt_next(struct mt *m)
{
	uint32_t *s = m->s, y;

	if (m->at == 624) {
		for (int i = 0; i < 624; i++) {
			y = (s[i] & 0x80000000u) | (s[(i + 1) % 624] & 0x7fffffffu);
			s[i] = s[(i + 397) % 624] ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
		}
		m->at = 0;
	}
	y = s[m->at++];
	y ^= y >> 11;
	y ^= (y << 7) & 0x9d2c5680u;
	y ^= (y << 15) & 0xefc60000u;
	return y ^ (y >> 18);
}

static double mt_random(struct mt *m)
{
	uint32_t a = mt_next(m) >> 5, b = mt_next(m) >> 6;

	return (a * 67108864.0 + b) / 9007199254740992.0;
}

/* random._randbelow: as many top bits as n has, until they are below it */
static uint32_t mt_below(void *arg, uint32_t n)
{
	int bits = 0;
	uint32_t r;

	for (uint32_t x = n; x; x >>= 1)
		bits++;
	do
		r = mt_next(arg) >> (32 - bits);
	while (r >= n);
	return r;
}

static int choices(struct mt *m, double *out, int k, int low, int n)
{
	for (int i = 0; i < k; i++)
		out[i] = low + (int)(mt_random(m) * n);
	return k;
}

static void bits_4to7(double x[2000])
{
	struct mt m = {.at = 624};

	mt_seed(&m, 12345);
	choices(&m, x, 1000, 0, 2);
	choices(&m, x + 1000, 1000, 4, 4);
}

static void generator(void **state)
{
	struct mt m = {.at = 624};

	(void)state;
	mt_seed(&m, 12345);
	assert_true(fabs(mt_random(&m) - 0.41661987254534116) < 1e-16); /* python3 -c 'import random; print(random.Random(12345).random())' */
}

/* ---- alarms ---- */

static void adwin_river(void **state)
{
	static const int expected[] = {1023, 2015, 3007};
	double x[4000];
	struct adwin a;
	struct mt m = {.at = 624};
	int n = 0;

	(void)state;
	bits_4to7(x);
	adwin_init(&a);
	for (int i = 0; i < 2000; i++)
		if (adwin_take(&a, x[i]) == 1) {
			assert_int_equal(i, 1023);
			n++;
		}
	assert_int_equal(n, 1);
	mt_seed(&m, 42);
	for (int part = 0; part < 4; part++)
		choices(&m, x + 1000 * part, 1000, part % 2 ? 4 : 0, part % 2 ? 4 : 2);
	adwin_init(&a);
	n = 0;
	for (int i = 0; i < 4000; i++)
		if (adwin_take(&a, x[i]) == 1) {
			assert_true(n < 3);
			assert_int_equal(i, expected[n++]);
		}
	assert_int_equal(n, 3);
}

static void adwin_statistics(void **state)
{
	struct adwin a;
	int alarms = 0;

	(void)state;
	adwin_init(&a);
	a.clock = 1000000;
	for (int i = 0; i < 200; i++)
		assert_int_equal(adwin_take(&a, i % 7), 0);
	assert_int_equal(a.width, 200);
	assert_true(fabs(a.total - 594) < 1e-9);
	assert_true(fabs(a.variance - 797.82) < 1e-6 * 797.82);
	adwin_init(&a);
	for (int i = 0; i < 5000; i++)
		assert_int_equal(adwin_take(&a, 1), 0);
	adwin_init(&a);
	for (int i = 0; i < 2000; i++)
		alarms += adwin_take(&a, i % 2);
	assert_true(alarms <= 1);
	adwin_init(&a);
	for (int i = 0; i < 100; i++)
		(void)adwin_take(&a, 1e15);
	assert_true(fabs(adwin_mean(&a) - 1e15) < 1);
	adwin_init(&a);
	for (int i = 0; i < 64; i++)
		alarms = adwin_take(&a, i < 32 ? 0 : 9);
	assert_int_equal(alarms, 1);
	(void)adwin_take(&a, 9);
	assert_int_equal(a.width, 1); /* a change restarts it */
}

static void page_hinkley_river(void **state)
{
	double x[2000];
	struct page_hinkley p;
	int first = -1;

	(void)state;
	bits_4to7(x);
	page_hinkley_init(&p);
	for (int i = 0; i < 2000 && first < 0; i++)
		if (page_hinkley_take(&p, x[i]) == 1)
			first = i;
	assert_int_equal(first, 1006);
	page_hinkley_init(&p);
	for (int i = 0; i < 3000; i++) /* a fall is not its business */
		assert_int_equal(page_hinkley_take(&p, i < 1000 ? 5 : 0), 0);
}

static void kswin_river(void **state)
{
	double x[2000];
	struct kswin k;
	struct mt m = {.at = 624};
	int first = -1;

	(void)state;
	bits_4to7(x);
	mt_seed(&m, 42);
	kswin_init(&k, mt_below, &m);
	for (int i = 0; i < 2000 && first < 0; i++)
		if (kswin_take(&k, x[i]) == 1)
			first = i;
	assert_int_equal(first, 1016);
	assert_int_equal(k.n, KSWIN_RECENT);
	assert_true(k.window[KSWIN_RECENT - 1] == x[1016] && k.window[0] == x[1016 - KSWIN_RECENT + 1]);
}

/* All C(2n, n) orderings of n + n values are equally likely: how many have at least this distance? */
static double by_counting(int n, int h)
{
	uint64_t all = 0, far = 0;

	for (uint32_t set = 0; set < 1u << 2 * n; set++) {
		int at = 0, most = 0;

		if (__builtin_popcount(set) != n)
			continue;
		for (int i = 0; i < 2 * n; i++) {
			at += set >> i & 1 ? 1 : -1;
			most = abs(at) > most ? abs(at) : most;
		}
		all++;
		far += most >= h;
	}
	return (double)far / (double)all;
}

static void kolmogorov_smirnov(void **state)
{
	double d, p;

	(void)state;
	for (int n = 2; n <= 7; n++)
		for (int h = 1; h <= n; h++) {
			double x[8], y[8];

			for (int i = 0; i < n; i++) { /* y is x moved up by h places */
				x[i] = i;
				y[n - 1 - i] = i + h - 0.5;
			}
			p = ks_two_sample(x, y, n, &d);
			assert_true(fabs(d - (double)h / n) < 1e-12);
			assert_true(fabs(p - by_counting(n, h)) < 1e-12);
		}
	double x[] = {1, 1, 2}, y[] = {1, 1, 2};
	p = ks_two_sample(x, y, 3, &d);
	assert_true(d == 0 && p == 1);
}

static void not_a_number(void **state)
{
	struct page_hinkley p, p0;
	struct adwin *a = malloc(2 * sizeof *a);
	struct kswin k, k0;

	(void)state;
	assert_non_null(a);
	memset(a, 0, 2 * sizeof *a);
	memset(&k, 0, sizeof k);
	adwin_init(a);
	page_hinkley_init(&p);
	kswin_init(&k, NULL, NULL);
	for (int i = 0; i < 150; i++) {
		(void)adwin_take(a, i % 3);
		(void)page_hinkley_take(&p, i % 3);
		(void)kswin_take(&k, i % 3);
	}
	a[1] = a[0];
	p0 = p;
	k0 = k;
	const double bad[] = {NAN, INFINITY, -INFINITY};
	for (int i = 0; i < 3; i++) {
		assert_int_equal(adwin_take(a, bad[i]), -EINVAL);
		assert_int_equal(page_hinkley_take(&p, bad[i]), -EINVAL);
		assert_int_equal(kswin_take(&k, bad[i]), -EINVAL);
	}
	assert_memory_equal(&a[0], &a[1], sizeof *a);
	assert_memory_equal(&p, &p0, sizeof p);
	assert_memory_equal(&k, &k0, sizeof k);
	free(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(generator),	      cmocka_unit_test(adwin_river),	    cmocka_unit_test(adwin_statistics),
		cmocka_unit_test(page_hinkley_river), cmocka_unit_test(kswin_river), cmocka_unit_test(kolmogorov_smirnov),
		cmocka_unit_test(not_a_number),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
