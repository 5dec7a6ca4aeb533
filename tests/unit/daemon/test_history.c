/* The day that a page is shown: a point lands in its slot, thirty become one, what was not served is a
 * gap and no zero, and however long it runs and whatever is said, it stays the size it is.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "daemon/history.h"

static const uint64_t s = 1000000, day = 86400;

static void take(struct history *h, uint64_t at_s, const char *domain, int requests, double al)
{
	json_t *j = json_pack("{s:{s:i, s:f}}", domain, "requests", requests, "accept_length", al);

	assert_non_null(j);
	history_take(h, at_s * s, j);
	json_decref(j);
}

static json_t *ring(json_t *j, const char *which, const char *domain)
{
	return json_object_get(json_object_get(json_object_get(j, which), "domains"), domain);
}

static void near(const json_t *v, double want)
{
	assert_true(json_is_number(v));
	assert_true(fabs(json_number_value(v) - want) <= 0.0011);
}

static void slots_and_gaps(void **state)
{
	struct history *h;
	json_t *j, *list;

	(void)state;
	assert_int_equal(history_new(1000 * s, &h), 0);
	assert_false(history_due(h, 1009 * s));
	assert_true(history_due(h, 1010 * s));
	take(h, 1005, "code", 1, 9); /* the slot has not ended */
	take(h, 1010, "code", 5, 1.5);
	take(h, 1020, "code", 5, 1.7); /* no request came: a gap */
	take(h, 1030, "code", 6, 2.25);
	take(h, 1060, "code", 7, 3); /* two slots slept through */
	j = history_json(h, 1061 * s, 5000000);
	list = ring(j, "fine", "code");
	assert_int_equal(json_array_size(list), 6);
	near(json_array_get(list, 0), 1.5);
	assert_true(json_is_null(json_array_get(list, 1)));
	near(json_array_get(list, 2), 2.25);
	assert_true(json_is_null(json_array_get(list, 3)) && json_is_null(json_array_get(list, 4)));
	near(json_array_get(list, 5), 3);
	assert_int_equal(json_integer_value(json_object_get(json_object_get(j, "fine"), "end_ms")), 5000000 - 1000);
	/* the coarse slot from 900 s to 1,200 s is under way: the mean of what it has so far */
	list = ring(j, "coarse", "code");
	assert_int_equal(json_array_size(list), 1);
	near(json_array_get(list, 0), (1.5 + 2.25 + 3) / 3);
	json_decref(j);
	history_free(h);
}

static void folded_and_bounded(void **state)
{
	struct history *h;
	uint64_t from = 300 * 1000;
	json_t *j, *list;

	(void)state;
	assert_int_equal(history_new(from * s, &h), 0);
	for (uint64_t i = 1; i <= 2 * day / 10; i++) /* two days; the value is the number of the coarse slot */
		take(h, from + i * 10, "chat", (int)i, 1 + (double)((i - 1) / 30) / 100);
	j = history_json(h, (from + 2 * day) * s, 0);
	list = ring(j, "fine", "chat");
	assert_int_equal(json_array_size(list), HISTORY_FINE);
	near(json_array_get(list, HISTORY_FINE - 1), 1 + 5.75);
	near(json_array_get(list, 0), 1 + 5.64);
	list = ring(j, "coarse", "chat");
	assert_int_equal(json_array_size(list), HISTORY_COARSE + 1); /* and the one under way, of which nothing is known yet */
	near(json_array_get(list, 0), 1 + 2.88);
	near(json_array_get(list, HISTORY_COARSE - 1), 1 + 5.75);
	assert_true(json_is_null(json_array_get(list, HISTORY_COARSE)));
	json_decref(j);

	take(h, from + 30 * day, "chat", 1000000, 4); /* a month of sleep is one walk through the ring, not more */
	j = history_json(h, (from + 30 * day) * s, 0);
	assert_int_equal(json_array_size(ring(j, "fine", "chat")), 1);
	json_decref(j);

	for (int i = 0; i < 40; i++) { /* more domains than there is room for */
		char name[16];

		snprintf(name, sizeof name, "d%d", i);
		take(h, from + 31 * day + 10 * (uint64_t)i, name, 1, 2);
	}
	j = history_json(h, (from + 32 * day) * s, 0);
	assert_int_equal(json_object_size(json_object_get(json_object_get(j, "fine"), "domains")), HISTORY_DOMAINS);
	json_decref(j);
	history_free(h);
}

static void marks(void **state)
{
	struct history *h;
	json_t *j, *list, *last;

	(void)state;
	assert_int_equal(history_new(0, &h), 0);
	history_said(h, 10 * s, "switch", 7, "version 7 is live");
	for (int i = 0; i < 100; i++)
		history_said(h, 20 * s, "event", 7, "again in 3 s");
	j = history_json(h, 30 * s, 1000000);
	list = json_object_get(j, "marks"); /* chatter does not push a switch off the curve */
	assert_int_equal(json_array_size(list), 1);
	assert_int_equal(json_integer_value(json_object_get(json_array_get(list, 0), "t_ms")), 980000);
	assert_int_equal(json_array_size(json_object_get(j, "events")), HISTORY_EVENTS);
	json_decref(j);
	for (uint32_t i = 0; i < 200; i++)
		history_said(h, 40 * s, "drift", i, i == 199 ? "cut in a \xc3" : "fallen");
	j = history_json(h, 50 * s, 0);
	list = json_object_get(j, "marks");
	assert_int_equal(json_array_size(list), HISTORY_MARKS);
	last = json_array_get(list, HISTORY_MARKS - 1);
	assert_int_equal(json_integer_value(json_object_get(last, "version")), 199);
	assert_string_equal(json_string_value(json_object_get(last, "text")), "cut in a ?");
	assert_int_equal(json_integer_value(json_object_get(json_array_get(list, 0), "version")), 200 - HISTORY_MARKS);
	json_decref(j);
	history_free(h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(slots_and_gaps), cmocka_unit_test(folded_and_bounded), cmocka_unit_test(marks)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
