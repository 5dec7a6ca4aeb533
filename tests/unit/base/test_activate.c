/* Sockets from the service manager: found by name, only when they are for this process and
 * listening; a control server takes them and leaves their files alone.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>
#include "daemon/base/activate.h"
#include "daemon/base/fs.h"
#include "daemon/base/loop.h"
#include "daemon/base/rpc.h"

static char folder[64];

/* A socket at folder/name, moved to descriptor `at`. */
static void socket_at(int at, const char *name, bool listens)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	snprintf(a.sun_path, sizeof a.sun_path, "%s/%s", folder, name);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
	if (listens)
		assert_int_equal(listen(fd, 4), 0);
	assert_int_equal(dup2(fd, at), at);
	if (fd != at)
		close(fd);
}

static void environment(const char *pid, const char *n, const char *names)
{
	setenv("LISTEN_PID", pid, 1);
	setenv("LISTEN_FDS", n, 1);
	setenv("LISTEN_FDNAMES", names, 1);
}

static void by_name(void **state)
{
	struct errtext e = {""};
	char me[16];

	(void)state;
	snprintf(me, sizeof me, "%d", (int)getpid());
	unsetenv("LISTEN_PID");
	assert_int_equal(activate_take("control", &e), -ENOENT);
	socket_at(3, "a.sock", true);
	socket_at(4, "b.sock", false);
	environment("1", "2", "status:control");
	assert_int_equal(activate_take("status", &e), -ENOENT); /* another process's */
	environment(me, "2", "status:control");
	assert_int_equal(activate_take("http", &e), -ENOENT);
	assert_int_equal(activate_take("stat", &e), -ENOENT); /* a beginning is not the name */
	assert_int_equal(activate_take("status", &e), 3);
	assert_int_equal(fcntl(3, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	assert_int_equal(fcntl(3, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
	assert_int_equal(activate_take("control", &e), -EINVAL); /* it does not listen */
	assert_non_null(strstr(e.text, "control"));
	environment(me, "1", "status:control");
	assert_int_equal(activate_take("control", &e), -ENOENT); /* fewer were passed than named */
	environment(me, "junk", "status");
	assert_int_equal(activate_take("status", &e), -ENOENT);
	close(3);
	close(4);
}

static void server_leaves_the_files(void **state)
{
	static const struct rpc_method none[] = {{NULL, RPC_STATUS, NULL}};
	struct rpc_server *s = NULL;
	struct loop *l = NULL;
	struct errtext e = {""};
	struct stat st;
	char me[16], path[128];

	(void)state;
	snprintf(me, sizeof me, "%d", (int)getpid());
	socket_at(3, "door.sock", true);
	environment(me, "1", "control");
	assert_int_equal(loop_new(&l), 0); /* its descriptors come after 3 */
	assert_int_equal(rpc_server_new(l, folder, none, "interface io.redraft.Test\n", NULL, &s, &e), 0);
	snprintf(path, sizeof path, "%s/control.sock", folder);
	assert_int_equal(stat(path, &st), -1); /* the one passed is the control door */
	snprintf(path, sizeof path, "%s/status.sock", folder);
	assert_int_equal(stat(path, &st), 0); /* the other is ours */
	rpc_server_free(s);
	assert_int_equal(stat(path, &st), -1);
	snprintf(path, sizeof path, "%s/door.sock", folder);
	assert_int_equal(stat(path, &st), 0); /* the manager's stays */
	loop_free(l);
	unsetenv("LISTEN_PID");
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(by_name), cmocka_unit_test(server_leaves_the_files)};
	int r;

	snprintf(folder, sizeof folder, "/tmp/redraft-test-activate-XXXXXX");
	if (!mkdtemp(folder))
		return 1;
	r = cmocka_run_group_tests(tests, NULL, NULL);
	return fs_remove_tree(folder) < 0 || r;
}
