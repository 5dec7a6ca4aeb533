/* The watchdog is fed only while the work moves, STATUS= is sent when it changed, and nothing is
 * done without a manager; a pulse stands still only when two looks found work and no beat.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>
#include "daemon/base/loop.h"
#include "daemon/base/service.h"

static void pulse(void **state)
{
	struct pulse p = {0};

	(void)state;
	assert_true(pulse_moves(&p, 5, false));
	assert_true(pulse_moves(&p, 5, true));  /* work has only just come */
	assert_false(pulse_moves(&p, 5, true)); /* busy twice, no beat */
	assert_true(pulse_moves(&p, 6, true));
	assert_true(pulse_moves(&p, 6, false));
	assert_true(pulse_moves(&p, 6, true));
}

struct world {
	struct loop *loop;
	bool alive;
	int asked;
};

static bool alive(void *arg)
{
	struct world *w = arg;

	w->asked++;
	return w->alive;
}

static void status(void *arg, char *ret, size_t size)
{
	(void)arg;
	snprintf(ret, size, "all well");
}

static void stop(void *arg)
{
	loop_stop(arg);
}

/* Runs for a while; counts what the manager was told. */
static void run(struct world *w, int fd, int *ret_status, int *ret_watchdog)
{
	struct service_options o = {.loop = w->loop, .alive = alive, .status = status, .arg = w};
	struct service *s = NULL;
	struct loop_timer *t = NULL;
	char text[256];
	ssize_t n;

	*ret_status = *ret_watchdog = 0;
	assert_int_equal(service_new(&o, &s), 0);
	assert_int_equal(loop_timer_new(w->loop, stop, w->loop, &t), 0);
	loop_timer_set(t, 300000);
	assert_int_equal(loop_run(w->loop), 0);
	loop_timer_free(t);
	service_free(s);
	while ((n = recv(fd, text, sizeof text - 1, MSG_DONTWAIT)) > 0) {
		text[n] = '\0';
		*ret_status += strcmp(text, "STATUS=all well") == 0;
		*ret_watchdog += strcmp(text, "WATCHDOG=1") == 0;
	}
}

static void feeds(void **state)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	struct world w = {.alive = true};
	int fd = socket(AF_UNIX, SOCK_DGRAM, 0), said, fed;
	char name[64], pid[16];

	(void)state;
	snprintf(name, sizeof name, "/tmp/redraft-test-service-%d", (int)getpid());
	memcpy(a.sun_path, name, strlen(name));
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(loop_new(&w.loop), 0);
	unsetenv("NOTIFY_SOCKET");
	setenv("WATCHDOG_USEC", "100000", 1);
	run(&w, fd, &said, &fed);
	assert_int_equal(said + fed + w.asked, 0);
	setenv("NOTIFY_SOCKET", name, 1);
	run(&w, fd, &said, &fed);
	assert_int_equal(said, 1);
	assert_true(fed >= 2);
	w.alive = false;
	run(&w, fd, &said, &fed);
	assert_int_equal(fed, 0);
	setenv("WATCHDOG_PID", "1", 1); /* another process is watched */
	w.alive = true;
	run(&w, fd, &said, &fed);
	assert_int_equal(fed, 0);
	snprintf(pid, sizeof pid, "%d", (int)getpid());
	setenv("WATCHDOG_PID", pid, 1);
	run(&w, fd, &said, &fed);
	assert_true(fed >= 2);
	loop_free(w.loop);
	close(fd);
	unlink(name);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(pulse), cmocka_unit_test(feeds)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
