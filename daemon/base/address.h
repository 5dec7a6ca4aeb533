/* Where a socket is, as people write it: host:port, [::1]:port, or the path of a UNIX socket.
 *
 * Threads: any.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/un.h>
#include "daemon/base/err.h"

enum { ADDRESS_HOST = 256 };

/* host, without the brackets of an IPv6 address ("" = none was written), and the port, which points into where. -EINVAL: no port. */
int MUSTCHECK address_split(const char *where, char ret_host[static ADDRESS_HOST], const char **ret_port);
/* Can it be host:port? Nobody is asked what the host's name means. */
bool address_is_tcp(const char *where);
/* -ENAMETOOLONG: longer than a socket's path may be. */
int MUSTCHECK address_unix(const char *path, struct sockaddr_un *ret);
/* Makes way for a socket at a path: the file that a dead process left is removed. -EADDRINUSE: somebody answers there; -EEXIST: it is
 * no socket. */
int MUSTCHECK address_clear(const struct sockaddr_un *a);
