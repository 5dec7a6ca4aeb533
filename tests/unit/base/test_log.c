/* Log lines: one line each with its priority, levels filtered, a full pipe drops
 * and counts instead of blocking.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "daemon/base/log.h"

static void lines(void **state)
{
	char text[4096] = "";
	int p[2], saved = dup(2);
	unsigned long dropped;
	ssize_t n;

	(void)state;
	assert_int_equal(pipe(p), 0);
	dup2(p[1], 2);
	log_init("test", LOG_INFO);
	log_info("hello %d", 5);
	log_debug("not seen");
	log_error("two\nlines\x01");
	n = read(p[0], text, sizeof text - 1);
	dropped = log_dropped();
	for (int i = 0; i < 20000; i++)
		log_info("%s", "a line that nobody reads, again and again");
	dropped = log_dropped() - dropped;
	dup2(saved, 2);
	log_init("test", LOG_INFO);
	assert_true(n > 0);
	assert_string_equal(text, "<6>hello 5\n<3>two lines \n");
	assert_true(dropped > 1000); /* and we are here: it did not block */
	assert_false(fcntl(saved, F_GETFL) & O_NONBLOCK);
	close(p[0]);
	close(p[1]);
	close(saved);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(lines)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
