/* Listening sockets of the HTTP server. Threads: pure functions over the kernel. */
#pragma once
#include <sys/socket.h>
#include "daemon/base/err.h"

/* "host:port" or a path -> a listening, non-blocking socket; -errno with e. */
int MUSTCHECK http_listen_tcp(const char *where, struct errtext *e);
int MUSTCHECK http_listen_unix(const char *path, struct errtext *e); /* takes over a path that nobody listens on */
int http_bound_port(int fd); /* 0 for a UNIX socket */
/* Who is there: numeric address, or "unix:<uid>". */
void http_name_peer(int fd, const struct sockaddr *a, socklen_t n, char *out, size_t size);
