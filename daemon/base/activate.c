/* LISTEN_FDS by hand: descriptors from 3 on, LISTEN_FDNAMES names them in order, and
 * LISTEN_PID says whom they are for, so that a child does not take its parent's.
 */
#include "daemon/base/activate.h"
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ACTIVATE_FIRST = 3, ACTIVATE_MAX = 16 };

/* Which of the colon-separated names is this one; -1 = none. */
static int activate_index(const char *names, const char *name)
{
	size_t n = strlen(name);

	for (int i = 0; names; i++) {
		size_t len = strcspn(names, ":");

		if (len == n && !strncmp(names, name, n))
			return i;
		names = names[len] ? names + len + 1 : NULL;
	}
	return -1;
}

static bool activate_listens(int fd)
{
	int type = 0, listens = 0;
	socklen_t n = sizeof type, m = sizeof listens;

	return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) == 0 && type == SOCK_STREAM &&
	       getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &m) == 0 && listens;
}

int activate_take(const char *name, struct errtext *e)
{
	const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
	int i = activate_index(getenv("LISTEN_FDNAMES"), name), fd = ACTIVATE_FIRST + i;
	long n = count ? strtol(count, NULL, 10) : 0;

	if (!pid || strtol(pid, NULL, 10) != (long)getpid() || i < 0 || i >= n || n > ACTIVATE_MAX)
		return -ENOENT;
	if (!activate_listens(fd))
		return errtext_set(e, -EINVAL, "the descriptor passed as \"%s\" is not a listening stream socket; look at the socket unit",
				   name);
	if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
		return errtext_set(e, -errno, "the socket passed as \"%s\": %s", name, strerror(errno));
	return fd;
}
