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

/* What is old enough to go must not go because the clock jumps; nor stay for ever because it was set right. */
static void a_jump_is_not_believed_at_once(void **state)
{
	enum { H = 3600 * 1000 };
	const int64_t t0 = 1800000000000, day = 24ll * H;
	struct clock_sure c = {0};
	int64_t jump = 1;

	(void)state;
	assert_int_equal(clock_sure_at(&c, t0, 5000000, &jump), t0);
	assert_int_equal(jump, 0);
	assert_int_equal(clock_sure_at(&c, t0 + 1030, 6000000, &jump), t0 + 1030); /* slewed: followed */
	assert_int_equal(jump, 0);
	assert_int_equal(clock_sure_at(&c, t0 + 2030 + 5 * H, 7000000, &jump), t0 + 2030); /* five hours forward */
	assert_int_equal(jump, 5 * H);
	assert_int_equal(clock_sure_at(&c, t0 + 3030 + 5 * H, 8000000, &jump), t0 + 3030);
	assert_int_equal(jump, 0); /* said once */
	assert_int_equal(clock_sure_at(&c, t0 + 4030 - H, 9000000, &jump), t0 + 4030); /* six back */
	assert_int_equal(jump, -6 * H);
	assert_int_equal(clock_sure_at(&c, t0 + 5030, 10000000, &jump), t0 + 5030); /* and right again */
	assert_int_equal(jump, H);
	assert_int_equal(clock_sure_at(&c, t0 + 6030 + 5 * H, 11000000, NULL), t0 + 6030);
	assert_int_equal(clock_sure_at(&c, t0 + 6030 + 5 * H + day - 1, 11000000 + (uint64_t)(day - 1) * 1000, &jump), t0 + 6030 + day - 1);
	assert_int_equal(clock_sure_at(&c, t0 + 6030 + 5 * H + day, 11000000 + (uint64_t)day * 1000, &jump), t0 + 6030 + 5 * H + day); /* it has lasted */
	assert_int_equal(jump, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(monotonic), cmocka_unit_test(iso8601), cmocka_unit_test(a_jump_is_not_believed_at_once)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
