/* RoPE tables: default and linear against the formula; llama3 keeps short wavelengths,
 * divides long ones and is monotonic between; yarn ends at both plain values and carries its
 * factor on cos and sin. (tests/reference/llama compares all four against PyTorch.)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include "kernels/model/model.h"

enum { HD = 128 };

static void near(double got, double want)
{
	if (!(fabs(got - want) <= 1e-6 * fabs(want)))
		fail_msg("%g is not %g", got, want);
}

static void test_plain(void **state)
{
	(void)state;
	real f[HD / 2], m = 0;
	for (int linear = 0; linear < 2; linear++) {
		struct rope_config c = {.theta = 10000, .kind = linear ? ROPE_LINEAR : ROPE_DEFAULT, .factor = 8};
		rope_table(&c, HD, f, &m);
		near((double)m, 1);
		for (int i = 0; i < HD / 2; i++)
			near((double)f[i], pow(10000, -2.0 * i / HD) / (linear ? 8 : 1));
	}
}

static void test_llama3(void **state)
{
	(void)state;
	/* Llama 3.1's own numbers */
	struct rope_config c = {.theta = 500000, .kind = ROPE_LLAMA3, .factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .orig_max = 8192};
	real f[HD / 2], m;
	int kept = 0, divided = 0, between = 0;
	rope_table(&c, HD, f, &m);
	for (int i = 0; i < HD / 2; i++) {
		double plain = pow(500000, -2.0 * i / HD), wavelength = 2 * M_PI / plain;
		assert_true(i == 0 || f[i] < f[i - 1]);
		if (wavelength < 8192 / 4.0) {
			near((double)f[i], plain);
			kept++;
		} else if (wavelength > 8192) {
			near((double)f[i], plain / 8);
			divided++;
		} else {
			assert_true((double)f[i] < plain && (double)f[i] > plain / 8);
			between++;
		}
	}
	assert_true(kept > 20 && divided > 20 && between > 3);
}

static void test_yarn(void **state)
{
	(void)state;
	struct rope_config c = {.theta = 10000, .kind = ROPE_YARN, .factor = 4, .orig_max = 2048, .beta_fast = 32, .beta_slow = 1, .mscale = 1};
	real f[HD / 2], m;
	rope_table(&c, HD, f, &m);
	near((double)m, 0.1 * log(4) + 1);
	near((double)f[0], 1);
	near((double)f[HD / 2 - 1], pow(10000, -2.0 * (HD / 2 - 1) / HD) / 4);
	for (int i = 1; i < HD / 2; i++)
		assert_true(f[i] < f[i - 1]);
	c.mscale_all_dim = 1;
	rope_table(&c, HD, f, &m);
	near((double)m, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_plain), cmocka_unit_test(test_llama3), cmocka_unit_test(test_yarn)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
