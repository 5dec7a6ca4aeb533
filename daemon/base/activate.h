/* Sockets that the service manager opened for us (systemd's LISTEN_FDS protocol).
 *
 * A socket unit gives each descriptor a name (FileDescriptorName=). Ours are
 * "control" and "status" (rpc_server.c) and "http" (serve/http.c). A socket that was passed
 * belongs to the manager: its path, mode and group are the unit's, and nobody unlinks it.
 * Threads: before any other starts.
 */
#pragma once
#include "daemon/base/err.h"

/* The descriptor passed under this name, made non-blocking and close-on-exec; the caller owns
 * it. -ENOENT: none was passed. -EINVAL with e: it is not a listening stream socket. */
int MUSTCHECK activate_take(const char *name, struct errtext *e);
