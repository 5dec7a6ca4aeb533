/* Clocks: monotonic does not go back; ISO 8601 text against known instants. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>
#include "daemon/base/clock.h"

static void monotonic(void **state)
{
	uint64_t a = clock_us();

	(void)state;
	for (int i = 0; i < 1000; i++) {
		uint64_t b = clock_us();

		assert_true(b >= a);
		a = b;
	}
	assert_true(clock_wall_ms() > 1700000000000);
}

static void iso8601(void **state)
{
	char t[32];

	(void)state;
	clock_iso8601(0, t);
	assert_string_equal(t, "1970-01-01T00:00:00.000Z");
	clock_iso8601(951782399999, t); /* 28 February of a leap year's last millisecond */
	assert_string_equal(t, "2000-02-28T23:59:59.999Z");
	clock_iso8601(1769860800123, t);
	assert_string_equal(t, "2026-01-31T12:00:00.123Z");
	clock_iso8601(-1, t);
	assert_string_equal(t, "1969-12-31T23:59:59.999Z");
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(monotonic), cmocka_unit_test(iso8601)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
