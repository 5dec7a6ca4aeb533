/* sd_notify without libsystemd: one datagram, one sentence of protocol. Never
 * blocks and never fails: a service manager that is not listening is not our
 * problem.
 */
#include "daemon/base/notify.h"
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void notify_state(const char *fmt, ...)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	char text[1024];
	va_list ap;
	size_t n;
	int fd, len;

	if (!path || (path[0] != '/' && path[0] != '@'))
		return;
	n = strlen(path);
	if (n >= sizeof a.sun_path)
		return;
	memcpy(a.sun_path, path, n);
	if (path[0] == '@') /* the abstract namespace: no file, first byte NUL */
		a.sun_path[0] = '\0';
	va_start(ap, fmt);
	len = vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	if (len <= 0)
		return;
	if (len >= (int)sizeof text)
		len = sizeof text - 1;
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	(void)sendto(fd, text, (size_t)len, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&a,
		     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n));
	close(fd);
}
