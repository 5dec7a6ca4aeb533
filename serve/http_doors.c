/* What the HTTP server lets in: a TCP port and a UNIX socket, and when neither is looked at for a while.
 *
 * Clients never take the last descriptors of the process, and a connection that cannot be taken does not
 * keep the loop busy: both doors are left alone and looked at again a little later.
 */
#include <event2/event.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "daemon/base/activate.h"
#include "serve/http_inside.h"
#include "serve/http_listen.h"

enum { ACCEPT_PAUSE_US = 100000 };

/* The lowest free descriptor tells how many are taken. An eighth is kept back for the control
 * socket, the store and the broker: clients must not lock an operator out. */
static bool few_descriptors(struct http *h)
{
	int any = evconnlistener_get_fd(h->tcp.listener ? h->tcp.listener : h->local.listener), fd = fcntl(any, F_DUPFD_CLOEXEC, 0);
	struct rlimit most;

	if (fd < 0)
		return true;
	close(fd);
	return getrlimit(RLIMIT_NOFILE, &most) == 0 && (rlim_t)fd >= most.rlim_cur - most.rlim_cur / 8;
}

void http_set_doors(struct http *h, bool open)
{
	struct door *const all[] = {&h->tcp, &h->local};

	for (int i = 0; i < 2; i++)
		if (all[i]->listener && open)
			(void)evconnlistener_enable(all[i]->listener);
		else if (all[i]->listener)
			(void)evconnlistener_disable(all[i]->listener);
}

static void on_resume(void *arg)
{
	struct http *h = arg;

	if (h->stopped)
		return;
	if (few_descriptors(h))
		loop_timer_set(h->resume, ACCEPT_PAUSE_US);
	else
		http_set_doors(h, true);
}

/* A connection that waits keeps the listener ready, and the loop would spin on it: look again a little later. */
static void pause_accepting(struct http *h)
{
	http_set_doors(h, false);
	loop_timer_set(h->resume, ACCEPT_PAUSE_US);
}

static void on_accept_error(struct evconnlistener *l, void *arg)
{
	struct door *d = arg;

	(void)l;
	pause_accepting(d->http);
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *a, int n, void *arg)
{
	struct http *h = ((struct door *)arg)->http;
	struct http_request *r = calloc(1, sizeof *r);
	int one = 1;

	if (r)
		r->bev = bufferevent_socket_new(evconnlistener_get_base(l), fd, BEV_OPT_CLOSE_ON_FREE);
	if (!r || !r->bev) {
		free(r);
		close(fd);
		return;
	}
	r->http = h;
	http_name_peer(fd, a, (socklen_t)n, r->peer, sizeof r->peer);
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* each event of a stream at once */
	http_begin(r);
	if (few_descriptors(h))
		pause_accepting(h);
}

static int open_door(struct http *h, struct door *d, int fd, struct errtext *e)
{
	if (fd < 0)
		return fd;
	d->http = h;
	d->listener = evconnlistener_new(loop_base(h->loop), on_accept, d, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd);
	if (!d->listener) {
		close(fd);
		return errtext_set(e, -ENOMEM, "out of memory");
	}
	evconnlistener_set_error_cb(d->listener, on_accept_error);
	return 0;
}

int http_open_doors(struct http *h, struct errtext *e)
{
	const char *tcp = h->o.listen ? h->o.listen : "", *local = h->o.listen_unix ? h->o.listen_unix : "";
	int fd, r = loop_timer_new(h->loop, on_resume, h, &h->resume);

	if (r < 0)
		return errtext_set(e, r, "out of memory");
	fd = activate_take("http", e);
	if (fd == -ENOENT && !*tcp && !*local)
		return errtext_set(e, -EINVAL, "listen and listen_unix are both empty: the server needs one of them");
	if (fd != -ENOENT || *tcp) {
		if (fd == -ENOENT)
			fd = http_listen_tcp(tcp, e);
		h->port = fd < 0 ? 0 : http_bound_port(fd);
		r = open_door(h, &h->tcp, fd, e);
	}
	if (r == 0 && *local) {
		fd = http_listen_unix(local, e);
		h->path = fd < 0 ? NULL : strdup(local);
		r = open_door(h, &h->local, fd, e);
	}
	return r;
}

void http_close_doors(struct http *h)
{
	if (h->tcp.listener)
		evconnlistener_free(h->tcp.listener);
	if (h->local.listener)
		evconnlistener_free(h->local.listener);
	if (h->path)
		(void)unlink(h->path);
	free(h->path);
	loop_timer_free(h->resume);
}
