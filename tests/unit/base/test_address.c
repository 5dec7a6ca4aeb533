/* Addresses as people write them, good and bad; a socket file is removed when its process is dead, and only then. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>
#include "daemon/base/address.h"
#include "daemon/base/fs.h"

static void split(void **state)
{
	static const char *const good[][3] = {
		{"127.0.0.1:80", "127.0.0.1", "80"}, {"[::1]:0", "::1", "0"}, {":8080", "", "8080"}, {"a.b:x", "a.b", "x"}, {"::1:9", "::1", "9"}, {"[:1", "[", "1"}, {"[]:7", "", "7"},
	};
	static const char *const bad[] = {"", "host", "host:", ":"};
	char host[ADDRESS_HOST], longest[ADDRESS_HOST + 8];
	const char *port;

	(void)state;
	for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
		assert_int_equal(address_split(good[i][0], host, &port), 0);
		assert_string_equal(host, good[i][1]);
		assert_string_equal(port, good[i][2]);
	}
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_int_equal(address_split(bad[i], host, &port), -EINVAL);
	memset(longest, 'h', sizeof longest);
	strcpy(longest + ADDRESS_HOST - 1, ":1");
	assert_int_equal(address_split(longest, host, &port), 0);
	strcpy(longest + ADDRESS_HOST, ":1");
	longest[ADDRESS_HOST - 1] = 'h';
	assert_int_equal(address_split(longest, host, &port), -EINVAL);
}

static void what_can_be_listened_at(void **state)
{
	static const char *const good[] = {"127.0.0.1:80", "[::1]:0", ":8080", "a.b:65535", "::1:9", "[fe80::1%eth0]:80", "localhost:1"};
	static const char *const bad[] = {"", "8080", "host:", "a.b:http", "a:65536", "a:-1", "a:123456", ":80:80", "127.0.0.1:80:80", "[a.b:c]:9"};

	(void)state;
	for (size_t i = 0; i < sizeof good / sizeof *good; i++)
		assert_true(address_is_tcp(good[i]));
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_false(address_is_tcp(bad[i]));
}

static void sockets_of_the_dead(void **state)
{
	struct sockaddr_un a;
	char dir[] = "/tmp/redraft-test-XXXXXX", path[200];
	int fd;

	(void)state;
	assert_non_null(mkdtemp(dir));
	memset(path, 'x', sizeof path);
	path[sizeof a.sun_path] = '\0';
	assert_int_equal(address_unix(path, &a), -ENAMETOOLONG);
	path[sizeof a.sun_path - 1] = '\0';
	assert_int_equal(address_unix(path, &a), 0);
	snprintf(path, sizeof path, "%s/s", dir);
	assert_int_equal(address_unix(path, &a), 0);
	assert_int_equal(address_clear(&a), 0); /* nothing there */
	fd = socket(AF_UNIX, SOCK_STREAM, 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(listen(fd, 1), 0);
	assert_int_equal(address_clear(&a), -EADDRINUSE);
	assert_int_equal(access(path, F_OK), 0);
	close(fd); /* as a killed process leaves it */
	assert_int_equal(address_clear(&a), 0);
	assert_int_not_equal(access(path, F_OK), 0);
	assert_int_equal(fs_write_atomic(path, "x", 1), 0);
	assert_int_equal(address_clear(&a), -EEXIST);
	assert_int_equal(access(path, F_OK), 0);
	assert_int_equal(fs_remove_tree(dir), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(split), cmocka_unit_test(what_can_be_listened_at), cmocka_unit_test(sockets_of_the_dead)};

	return cmocka_run_group_tests_name("address", tests, NULL, NULL);
}
