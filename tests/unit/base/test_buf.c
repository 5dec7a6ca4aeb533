/* Buffers: contents survive growth and consumption; the bound is exact and harmless. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "daemon/base/buf.h"

static void grows_and_consumes(void **state)
{
	struct buf b = BUF_INIT(0);

	(void)state;
	for (int i = 0; i < 1000; i++)
		assert_int_equal(buf_printf(&b, "%04d", i), 0);
	assert_int_equal(b.len, 4000);
	buf_consume(&b, 3996);
	assert_memory_equal(b.data, "0999", 4);
	assert_int_equal(b.len, 4);
	buf_consume(&b, 4);
	assert_int_equal(b.len, 0);
	assert_int_equal(buf_puts(&b, "x"), 0);
	buf_clear(&b);
	assert_int_equal(b.len, 0);
	buf_done(&b);
	buf_done(&b);
	assert_null(b.data);
}

static void the_bound_holds(void **state)
{
	struct buf b = BUF_INIT(10);
	char text[400];

	(void)state;
	memset(text, 'y', sizeof text - 1);
	text[sizeof text - 1] = '\0';
	assert_int_equal(buf_append(&b, "12345", 5), 0);
	assert_int_equal(buf_append(&b, "678901", 6), -E2BIG);
	assert_int_equal(buf_printf(&b, "%s", text), -E2BIG);
	assert_int_equal(buf_reserve(&b, SIZE_MAX), -E2BIG);
	assert_int_equal(b.len, 5);
	assert_memory_equal(b.data, "12345", 5);
	assert_int_equal(buf_append(&b, "67890", 5), 0);
	assert_int_equal(buf_append(&b, "", 0), 0);
	assert_int_equal(buf_append(&b, "x", 1), -E2BIG);
	buf_done(&b);
}

static void long_printf(void **state)
{
	struct buf b = BUF_INIT(1000);
	char text[700];

	(void)state;
	memset(text, 'z', sizeof text - 1);
	text[sizeof text - 1] = '\0';
	assert_int_equal(buf_printf(&b, "<%s>", text), 0);
	assert_int_equal(b.len, 701);
	assert_int_equal(b.data[700], '>');
	buf_done(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(grows_and_consumes), cmocka_unit_test(the_bound_holds),
					   cmocka_unit_test(long_printf)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
