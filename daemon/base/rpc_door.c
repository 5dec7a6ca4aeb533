/* The sockets that callers come through: two doors a server, bound in its run folder or taken from the service manager. A socket
 * file left by a dead process is replaced, one that answers is not ours; how many may be inside is bounded for each door, so that readers
 * cannot crowd out an operator.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "daemon/base/activate.h"
#include "daemon/base/address.h"
#include "daemon/base/loop.h"
#include "daemon/base/rpc_inside.h"
#include "daemon/base/rpc_wire.h"

enum { RPC_MAX_CONNECTIONS = 64 /* a door */, RPC_ACCEPT_PAUSE_US = 100000 };

static void door_again(evutil_socket_t fd, short what, void *arg)
{
	struct rpc_door *d = arg;

	(void)fd;
	(void)what;
	(void)event_add(d->ev, NULL);
}

static void door_accept(evutil_socket_t fd, short what, void *arg)
{
	struct rpc_door *d = arg;
	char full[256];
	int conn = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

	(void)what;
	if (conn < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
		struct timeval pause = {.tv_usec = RPC_ACCEPT_PAUSE_US};

		if (evtimer_add(d->again, &pause) == 0)
			event_del(d->ev); /* whoever waits stays: the loop would spin on it */
	}
	if (conn < 0)
		return;
	if (d->n_conns < RPC_MAX_CONNECTIONS) {
		rpc_conn_new(d, conn);
		return;
	}
	snprintf(full, sizeof full, "{\"error\":\"%s.Busy\",\"parameters\":{\"message\":\"%d connections are open here\"}}", d->server->interface, RPC_MAX_CONNECTIONS);
	(void)send(conn, full, strlen(full) + 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	close(conn);
}

/* A socket file left by a dead process is removed; one that answers is not ours. */
static int door_clear(const char *path, const struct sockaddr_un *a, struct errtext *e)
{
	int r = address_clear(a);

	if (r == -EEXIST)
		return errtext_set(e, r, "%s exists and is not a socket; remove it", path);
	if (r == -EADDRINUSE)
		return errtext_set(e, r, "%s: another process answers there; stop it first", path);
	return r ? errtext_set(e, r, "%s: %s", path, strerror(-r)) : 0;
}

static int door_bind(struct rpc_door *d, const char *run_dir, const char *name, mode_t mode, struct errtext *e)
{
	struct sockaddr_un a;
	char path[sizeof a.sun_path];
	int r;

	if (snprintf(path, sizeof path, "%s/%s", run_dir, name) >= (int)sizeof path)
		return errtext_set(e, -ENAMETOOLONG, "run_dir %.80s...: a socket path has at most 107 bytes", run_dir);
	r = address_unix(path, &a);
	if (!r)
		r = door_clear(path, &a, e);
	if (r < 0)
		return r;
	d->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (d->fd < 0)
		return errtext_set(e, -errno, "socket: %s", strerror(errno));
	if (bind(d->fd, (struct sockaddr *)&a, sizeof a) < 0)
		return errtext_set(e, -errno, "%s: %s", path, strerror(errno));
	snprintf(d->path, sizeof d->path, "%s", path);
	if (chmod(path, mode) < 0 || listen(d->fd, RPC_MAX_CONNECTIONS) < 0) /* nobody connects before listen */
		return errtext_set(e, -errno, "%s: %s", path, strerror(errno));
	return 0;
}

/* Our own socket at run_dir/NAME.sock, unless the service manager passed one called NAME. */
int rpc_door_open(struct rpc_door *d, const char *run_dir, const char *name, unsigned mode, struct errtext *e)
{
	char file[32];
	int r = activate_take(name, e);

	if (r >= 0) {
		d->fd = r;
	} else if (r == -ENOENT) {
		snprintf(file, sizeof file, "%s.sock", name);
		r = door_bind(d, run_dir, file, mode, e);
	}
	if (r < 0)
		return r;
	d->ev = event_new(loop_base(d->server->loop), d->fd, EV_READ | EV_PERSIST, door_accept, d);
	d->again = evtimer_new(loop_base(d->server->loop), door_again, d);
	if (!d->ev || !d->again || event_add(d->ev, NULL) < 0)
		return -ENOMEM;
	return 0;
}

/* One process a folder: the lock closes the gap between bind and listen. */
int rpc_door_lock(struct rpc_server *s, const char *run_dir, struct errtext *e)
{
	char path[160];

	if (snprintf(path, sizeof path, "%s/.lock", run_dir) >= (int)sizeof path)
		return errtext_set(e, -ENAMETOOLONG, "run_dir %.80s...: a socket path has at most 107 bytes", run_dir);
	s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0640);
	if (s->lock_fd < 0)
		return errtext_set(e, -errno, "%s: %s", path, strerror(errno));
	if (flock(s->lock_fd, LOCK_EX | LOCK_NB) < 0)
		return errtext_set(e, errno == EWOULDBLOCK ? -EADDRINUSE : -errno,
				   "%s: another process uses this run_dir; stop it first", run_dir);
	return 0;
}

void rpc_door_close(struct rpc_door *d)
{
	if (d->ev)
		event_free(d->ev);
	if (d->again)
		event_free(d->again);
	if (d->fd >= 0)
		close(d->fd);
	if (d->path[0])
		(void)unlink(d->path);
}
