/* What is drawn by counter must be the same in every version: mix64 against splitmix64's published outputs for the state 1234567, and its
 * constants, since journals and stores hold what was drawn by them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "daemon/base/mix.h"

static void published_outputs(void **state)
{
	static const uint64_t want[] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u, 4593380528125082431u, 16408922859458223821u};
	uint64_t s = 1234567;

	(void)state;
	for (int i = 0; i < 5; i++)
		assert_true(mix64(s += MIX_GOLDEN) == want[i]);
	assert_true(mix64(0) == 0);
	assert_true(MIX_OTHER == 15074714826142052245u);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(published_outputs)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
