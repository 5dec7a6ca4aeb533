/* sd_notify: the datagram arrives, by path and in the abstract namespace; unset is silence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>
#include "daemon/base/notify.h"

static void sends_to(const char *name)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	char text[64] = "";
	int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
	ssize_t n;

	memcpy(a.sun_path, name, strlen(name));
	if (name[0] == '@')
		a.sun_path[0] = '\0';
	assert_int_equal(bind(fd, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))), 0);
	setenv("NOTIFY_SOCKET", name, 1);
	notify_state("READY=1\nSTATUS=%d of %d", 1, 2);
	n = recv(fd, text, sizeof text - 1, MSG_DONTWAIT);
	assert_int_equal(n, 21);
	assert_string_equal(text, "READY=1\nSTATUS=1 of 2");
	close(fd);
	if (name[0] == '/')
		unlink(name);
}

static void both_kinds(void **state)
{
	char path[64];

	(void)state;
	unsetenv("NOTIFY_SOCKET");
	notify_state("READY=1");
	setenv("NOTIFY_SOCKET", "/nonexistent/socket", 1);
	notify_state("READY=1");
	snprintf(path, sizeof path, "/tmp/redraft-test-notify-%d", (int)getpid());
	sends_to(path);
	snprintf(path, sizeof path, "@redraft-test-notify-%d", (int)getpid());
	sends_to(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(both_kinds)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
