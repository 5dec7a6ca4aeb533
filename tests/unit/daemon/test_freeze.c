/* Freeze windows: what is in one, to the minute; over midnight, over Sunday, over New Year; what is no window is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>
#include "daemon/freeze.h"

/* "2026-11-30 01:17:55" UTC, by the C library. */
static bool at(const char *windows, const char *when)
{
	struct errtext e = {.text = ""};
	struct freeze f;
	struct tm tm = {0};

	if (freeze_parse(windows, &f, &e))
		fail_msg("%s", e.text);
	assert_non_null(strptime(when, "%Y-%m-%d %H:%M:%S", &tm));
	return freeze_at(&f, (int64_t)timegm(&tm) * 1000);
}

static void weekly(void **state)
{
	static const char w[] = "fri 16:00-mon 08:00";

	(void)state;
	assert_false(at(w, "2026-11-27 15:59:59")); /* a Friday */
	assert_true(at(w, "2026-11-27 16:00:00"));
	assert_true(at(w, "2026-11-29 12:00:00"));
	assert_true(at(w, "2026-11-30 07:59:59"));
	assert_false(at(w, "2026-11-30 08:00:00"));
	assert_true(at("tue 10:00-12:00", "2026-12-01 11:59:59"));
	assert_false(at("tue 10:00-12:00", "2026-12-02 11:00:00"));
	assert_true(at("sun 22:00-24:00", "2026-11-29 23:59:59"));
	assert_false(at("sun 22:00-24:00", "2026-11-30 00:00:00"));
}

static void daily_and_dated(void **state)
{
	static const char w[] = "daily 23:30-00:30 , 2026-12-24..2027-01-02";

	(void)state;
	for (int d = 1; d <= 7; d++) {
		char when[32];

		snprintf(when, sizeof when, "2026-12-%02d 23:30:00", d);
		assert_true(at(w, when));
		snprintf(when, sizeof when, "2026-12-%02d 00:29:59", d);
		assert_true(at(w, when));
		snprintf(when, sizeof when, "2026-12-%02d 00:30:00", d);
		assert_false(at(w, when));
	}
	assert_false(at(w, "2026-12-23 12:00:00"));
	assert_true(at(w, "2026-12-24 00:30:00"));
	assert_true(at(w, "2027-01-02 23:00:00"));
	assert_false(at(w, "2027-01-03 01:00:00"));
	assert_true(at("2028-02-29..2028-02-29", "2028-02-29 12:00:00"));
	assert_false(at("", "2026-12-24 12:00:00"));
	assert_false(at("  ", "2026-12-24 12:00:00"));
}

static void what_is_none(void **state)
{
	static const char *const bad[] = {"x", "fri", "fri 16:00", "fri 16:00-", "16:00-17:00", "fri 25:00-26:00", "fri 16:60-17:00", "daily 10:00-tue 11:00",
					  "2026-12-24", "2026-13-01..2026-13-02", "2026-02-29..2026-03-02", "2026-06-31..2026-07-01", "2026-12-24..2026-12-23", "fri 16:00-mon 08:00,", ",", "fri 16:00-mon 08:00 x",
					  "fri 24:01-mon 08:00", "daily 1:00-2:00,daily 1:00-2:00,daily 1:00-2:00,daily 1:00-2:00", "fri 10:00-daily 11:00"};
	struct errtext e;
	struct freeze f = {.n = 7};

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		if (freeze_parse(bad[i], &f, &e) != -EINVAL)
			fail_msg("'%s' was taken", bad[i]);
		assert_int_equal(f.n, 7);
		assert_non_null(strstr(e.text, "rollout.freeze"));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(weekly), cmocka_unit_test(daily_and_dated), cmocka_unit_test(what_is_none)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
