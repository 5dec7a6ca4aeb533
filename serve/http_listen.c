/* Addresses to sockets, sockets to names. */
#include "serve/http_listen.h"
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "daemon/base/address.h"

enum { BACKLOG = 512 };

int http_listen_tcp(const char *where, struct errtext *e)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found;
	char host[ADDRESS_HOST];
	const char *port;
	int fd, r, one = 1;

	if (address_split(where, host, &port))
		return errtext_set(e, -EINVAL, "listen '%.100s' must be host:port, such as 127.0.0.1:8080", where);
	r = getaddrinfo(*host ? host : NULL, port, &hints, &found);
	if (r != 0)
		return errtext_set(e, -EINVAL, "listen '%.100s' cannot be resolved: %s", where, gai_strerror(r));
	fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	r = fd < 0 ? -errno : 0;
	if (r == 0)
		(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (r == 0 && (bind(fd, found->ai_addr, found->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0))
		r = -errno;
	freeaddrinfo(found);
	if (r < 0 && fd >= 0)
		close(fd);
	if (r < 0)
		return errtext_set(e, r, "cannot listen on %.100s: %s", where, strerror(-r));
	return fd;
}

int http_listen_unix(const char *path, struct errtext *e)
{
	struct sockaddr_un a;
	int fd, r;

	if (address_unix(path, &a))
		return errtext_set(e, -EINVAL, "listen_unix '%.120s' is longer than the %zu bytes a socket's path may have", path, sizeof a.sun_path - 1);
	r = address_clear(&a); /* what a killed process leaves behind */
	if (r < 0)
		return errtext_set(e, r, "cannot listen on %.150s: %s", path, strerror(-r));
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0)
		r = -errno;
	else if (chmod(path, 0660) < 0 || listen(fd, BACKLOG) < 0) {
		r = -errno;
		(void)unlink(path);
	}
	if (r < 0 && fd >= 0)
		close(fd);
	return r < 0 ? errtext_set(e, r, "cannot listen on %.150s: %s", path, strerror(-r)) : fd;
}

int http_bound_port(int fd)
{
	struct sockaddr_storage a;
	socklen_t n = sizeof a;

	if (getsockname(fd, (struct sockaddr *)&a, &n) < 0)
		return 0;
	if (a.ss_family == AF_INET6)
		return ntohs(((struct sockaddr_in6 *)&a)->sin6_port);
	return a.ss_family == AF_INET ? ntohs(((struct sockaddr_in *)&a)->sin_port) : 0;
}

void http_name_peer(int fd, const struct sockaddr *a, socklen_t n, char *out, size_t size)
{
	struct ucred who = {0};
	socklen_t n_who = sizeof who;

	if (a->sa_family == AF_UNIX) {
		if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n_who) == 0)
			(void)snprintf(out, size, "unix:%u", who.uid);
		else
			(void)snprintf(out, size, "unix");
	} else if (getnameinfo(a, n, out, (socklen_t)size, NULL, 0, NI_NUMERICHOST) != 0) {
		(void)snprintf(out, size, "?");
	}
}
