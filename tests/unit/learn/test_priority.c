/* A learner that leads its session lowers the session with itself and never raises it; one that shares it, with a shell
 * or with serving, lowers itself alone. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "learn/priority.h"

/* The niceness of this process's session; -100 where Linux has none. */
static int session_nice(void)
{
	long number;
	int nice = -100;
	FILE *f = fopen("/proc/self/autogroup", "re");
	if (f && fscanf(f, "/autogroup-%ld nice %d", &number, &nice) != 2)
		nice = -100;
	if (f)
		(void)fclose(f);
	return nice;
}

enum { GOOD, NOT_LEADER, NOT_OWN, NOT_SESSION };

static int lowered(bool leads)
{
	int before = session_nice();
	if (leads && setsid() < 0)
		return NOT_LEADER;
	if (priority_lower(SCHED_IDLE, 3) || sched_getscheduler(0) != SCHED_IDLE || getpriority(PRIO_PROCESS, 0) != 19)
		return NOT_OWN;
	if (session_nice() != (leads ? 19 : before))
		return NOT_SESSION;
	return priority_lower(SCHED_OTHER, 5) || session_nice() != (leads ? 19 : before) ? NOT_SESSION : GOOD;
}

static int in_child(bool leads)
{
	int status;
	pid_t p = fork();
	if (!p)
		_exit(lowered(leads));
	assert_true(p > 0);
	assert_int_equal(waitpid(p, &status, 0), p);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void test_leader(void **unused)
{
	(void)unused;
	if (session_nice() == -100) {
		print_message("this kernel has no groups by session\n");
		skip();
	}
	assert_int_equal(in_child(true), GOOD);
}

static void test_shared(void **unused)
{
	(void)unused;
	assert_int_equal(in_child(false), GOOD);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_leader), cmocka_unit_test(test_shared)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
