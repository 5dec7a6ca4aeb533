/* Arms of a canary: sticky, of the size that was asked for, growing without letting anybody go, and
 * chosen anew by another salt.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>
#include "serve/arm.h"

enum { N = 100000 };

static bool in(const char *salt, uint32_t permille, int i)
{
	char name[24];

	snprintf(name, sizeof name, "conversation-%d", i);
	return arm_is_canary(salt, permille, name, "r");
}

static void test_share_and_growth(void **state)
{
	static const uint32_t steps[] = {0, 10, 50, 250, 999, 1000};
	int n[6] = {0};

	(void)state;
	for (int i = 0; i < N; i++) {
		bool was = false;

		for (int s = 0; s < 6; s++) {
			bool is = in("salt", steps[s], i);

			assert_true(is || !was); /* who is in stays in */
			assert_true(is == in("salt", steps[s], i));
			n[s] += is;
			was = is;
		}
	}
	for (int s = 0; s < 6; s++) { /* five standard deviations */
		double p = steps[s] / 1000.0, off = n[s] / (double)N - p;

		assert_true(off * off <= 25 * p * (1 - p) / N);
	}
}

static void test_salts_are_independent(void **state)
{
	int both = 0;

	(void)state;
	for (int i = 0; i < N; i++)
		both += in("a", 250, i) && in("b", 250, i);
	assert_in_range(both, N / 16 - 400, N / 16 + 400);
}

static void test_without_a_conversation(void **state)
{
	int n = 0;

	(void)state;
	for (int i = 0; i < N; i++) {
		char name[24];

		snprintf(name, sizeof name, "%d", i);
		n += arm_is_canary("s", 100, "", name);
		assert_true(arm_is_canary("s", 100, "c", name) == arm_is_canary("s", 100, "c", "other")); /* the conversation decides */
	}
	assert_in_range(n, N / 10 - 500, N / 10 + 500);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_share_and_growth), cmocka_unit_test(test_salts_are_independent),
					   cmocka_unit_test(test_without_a_conversation)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
