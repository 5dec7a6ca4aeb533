/* Poisson arrivals have the rate and the spread they should, and the same seed the same times; replayed times
 * come back as written, and a file that is none is refused with its line. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "tests/bench/load/arrivals.h"

static void test_poisson(void **state)
{
	struct arrivals a, b;
	double last = 0, sum = 0, squares = 0;
	enum { N = 20000 };

	(void)state;
	assert_int_equal(arrivals_init(&a, 5, false, 3, NULL), 0);
	assert_int_equal(arrivals_init(&b, 5, false, 3, NULL), 0);
	for (int i = 0; i < N; i++) {
		double t = arrivals_next(&a), gap = t - last;
		assert_true(t == arrivals_next(&b));
		assert_true(gap >= 0);
		sum += gap;
		squares += gap * gap;
		last = t;
	}
	assert_true(fabs(sum / N - .2) <= .006);                              /* mean 1 / rate */
	assert_true(fabs(sqrt(squares / N - sum / N * sum / N) - .2) <= .01); /* an exponential's deviation is its mean */
}

static void test_even_and_refused(void **state)
{
	struct arrivals a;
	struct errtext e = {0};

	(void)state;
	assert_int_equal(arrivals_init(&a, 4, true, 1, &e), 0);
	assert_true(arrivals_next(&a) == .25);
	assert_true(arrivals_next(&a) == .5);
	assert_true(arrivals_init(&a, 0, false, 1, &e) < 0);
	assert_non_null(strstr(e.text, "rate"));
}

static int replay(const char *text, struct arrivals *a, struct errtext *e)
{
	char path[] = "/tmp/redraft-times-XXXXXX";
	int fd = mkstemp(path), r;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	(void)close(fd);
	r = arrivals_replay(a, path, e);
	(void)unlink(path);
	return r;
}

static void test_replay(void **state)
{
	struct arrivals a;
	struct errtext e = {0};

	(void)state;
	assert_int_equal(replay("0\n0.5\n0.5\n2.25\n", &a, &e), 0);
	assert_true(arrivals_next(&a) == 0 && arrivals_next(&a) == .5 && arrivals_next(&a) == .5 && arrivals_next(&a) == 2.25);
	assert_true(isinf(arrivals_next(&a)));
	arrivals_done(&a);
	assert_true(replay("0\n2\n1\n", &a, &e) < 0);
	assert_non_null(strstr(e.text, "time 3"));
	assert_true(replay("0\nnan\n", &a, &e) < 0);
	assert_true(replay("0\nsoon\n", &a, &e) < 0);
	assert_true(replay("", &a, &e) < 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_poisson),
		cmocka_unit_test(test_even_and_refused),
		cmocka_unit_test(test_replay),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
