/* Addresses taken apart, and the socket files of the dead (address.h). */
#include "daemon/base/address.h"
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

int address_split(const char *where, char ret_host[static ADDRESS_HOST], const char **ret_port)
{
	const char *colon = strrchr(where, ':');
	size_t n = colon ? (size_t)(colon - where) : 0;

	if (!colon || !colon[1] || n >= ADDRESS_HOST)
		return -EINVAL;
	if (n >= 2 && where[0] == '[' && where[n - 1] == ']') {
		where++;
		n -= 2;
	}
	memcpy(ret_host, where, n);
	ret_host[n] = '\0';
	*ret_port = colon + 1;
	return 0;
}

bool address_is_tcp(const char *where)
{
	char host[ADDRESS_HOST];
	unsigned char a[16];
	const char *port;

	if (address_split(where, host, &port) || strspn(port, "0123456789") != strlen(port) || strlen(port) > 5 || strtol(port, NULL, 10) > 65535)
		return false;
	host[strcspn(host, "%")] = '\0'; /* fe80::1%eth0 */
	return !strchr(host, ':') || inet_pton(AF_INET6, host, a) == 1;
}

int address_unix(const char *path, struct sockaddr_un *ret)
{
	size_t n = strlen(path);
	struct sockaddr_un a = {.sun_family = AF_UNIX};

	if (n >= sizeof a.sun_path)
		return -ENAMETOOLONG;
	memcpy(a.sun_path, path, n + 1);
	*ret = a;
	return 0;
}

int address_clear(const struct sockaddr_un *a)
{
	struct stat st;
	int fd, r;

	if (lstat(a->sun_path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode))
		return -EEXIST;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	r = connect(fd, (const struct sockaddr *)a, sizeof *a) < 0 ? -errno : 0;
	close(fd);
	if (r != -ECONNREFUSED) /* only that means that nobody has it open; a full queue (EAGAIN) is somebody's */
		return r == -ENOENT ? 0 : r == 0 || r == -EAGAIN ? -EADDRINUSE : r;
	return unlink(a->sun_path) < 0 && errno != ENOENT ? -errno : 0;
}
