/* evhttp, with what it lacks.
 *
 * Its connections outlive requests and its requests may lose their connection, so a
 * request of ours is tied to both by one callback, the connection's close: evhttp has
 * then taken the request off the connection, and freeing it is up to us. While a
 * request is being answered, bytes that a pipelining client sends on must wait: evhttp's
 * read callback treats them as a fatal error in that state, so it is taken off until
 * the reply is done (evhttp puts it back itself).
 */
#include "serve/http.h"
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include "daemon/base/loop.h"

enum { MAX_OUTPUT = 1 << 20, IDLE_S = 75, WRITE_S = 60, ACCEPT_PAUSE_US = 100000 };

struct http {
	struct evhttp *ev;
	struct evhttp_bound_socket *bound;
	struct http_options o;
	struct http_request *open; /* list */
	int port;
};

struct http_request {
	struct http *http;
	struct evhttp_request *ev; /* NULL once evhttp has freed it */
	struct evhttp_connection *conn;
	char *path;
	struct http_request *next, **link;
	void (*on_gone)(void *arg);
	void *arg;
};

static struct bufferevent *request_bev(struct http_request *r)
{
	return evhttp_connection_get_bufferevent(r->conn);
}

static void request_free(struct http_request *r)
{
	*r->link = r->next;
	if (r->next)
		r->next->link = r->link;
	free(r->path);
	free(r);
}

/* The connection is going down under a request that has not been answered. */
static void on_close(struct evhttp_connection *conn, void *arg)
{
	struct http_request *r = arg;

	(void)conn;
	if (r->ev)
		evhttp_request_free(r->ev); /* evhttp took it off the connection and left it to us */
	r->ev = NULL;
	if (r->on_gone)
		r->on_gone(r->arg);
	request_free(r);
}

/* Close a connection in mid-request. evhttp frees its request with it. */
static void cut(struct http_request *r)
{
	r->ev = NULL;
	evhttp_connection_free(r->conn); /* calls on_close */
}

static void set_timeouts(struct http_request *r, bool reading)
{
	struct timeval idle = {IDLE_S, 0}, slow = {WRITE_S, 0};

	bufferevent_set_timeouts(request_bev(r), reading ? &idle : NULL, &slow);
}

static void on_request(struct evhttp_request *ev, void *arg)
{
	struct http *h = arg;
	struct http_request *r = calloc(1, sizeof *r);
	const char *path = evhttp_uri_get_path(evhttp_request_get_evhttp_uri(ev));
	bufferevent_data_cb read_cb, write_cb;
	bufferevent_event_cb event_cb;
	void *cb_arg;

	if (!r || !(r->path = evhttp_uridecode(path ? path : "/", 0, NULL))) {
		free(r);
		evhttp_send_error(ev, HTTP_INTERNAL, NULL);
		return;
	}
	r->http = h;
	r->ev = ev;
	r->conn = evhttp_request_get_connection(ev);
	r->next = h->open;
	r->link = &h->open;
	if (h->open)
		h->open->link = &r->next;
	h->open = r;
	evhttp_connection_set_closecb(r->conn, on_close, r);
	bufferevent_getcb(request_bev(r), &read_cb, &write_cb, &event_cb, &cb_arg);
	bufferevent_setcb(request_bev(r), NULL, write_cb, event_cb, cb_arg);
	(void)bufferevent_enable(request_bev(r), EV_READ); /* off after a body; it is how we hear of a hang-up */
	set_timeouts(r, false);
	h->o.handle(h->o.ctx, r);
}

static struct evconnlistener *listener(struct http *h)
{
	return evhttp_bound_socket_get_listener(h->bound);
}

/* The lowest free descriptor tells how many are taken. An eighth is kept back for the control
 * socket, the store and the broker: clients must not lock an operator out. */
static bool few_descriptors(int any)
{
	struct rlimit most;
	int fd = fcntl(any, F_DUPFD_CLOEXEC, 0);

	if (fd < 0)
		return true;
	close(fd);
	return getrlimit(RLIMIT_NOFILE, &most) == 0 && (rlim_t)fd >= most.rlim_cur - most.rlim_cur / 8;
}

static void on_accept_again(evutil_socket_t fd, short what, void *arg);

static bool look_again_later(struct evconnlistener *l)
{
	struct timeval pause = {0, ACCEPT_PAUSE_US};

	return event_base_once(evconnlistener_get_base(l), -1, EV_TIMEOUT, on_accept_again, l, &pause) == 0;
}

static void on_accept_again(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	if (!few_descriptors(evconnlistener_get_fd(arg)) || !look_again_later(arg))
		evconnlistener_enable(arg);
}

/* No descriptor left for a connection that waits: the listener would stay ready and the loop
 * would spin on it. Look again a little later. (arg is evhttp's, not ours.) */
static void on_accept_error(struct evconnlistener *l, void *arg)
{
	(void)arg;
	if (look_again_later(l))
		evconnlistener_disable(l);
}

/* Each connection's input is bounded: a whole request may wait in it, no more. */
static struct bufferevent *on_connection(struct event_base *base, void *arg)
{
	struct http *h = arg;
	struct bufferevent *b = bufferevent_socket_new(base, -1, 0);

	if (few_descriptors(evconnlistener_get_fd(listener(h))))
		on_accept_error(listener(h), NULL);
	if (b)
		bufferevent_setwatermark(b, EV_READ, 0, 2 * h->o.max_body + h->o.max_headers + 4096);
	return b;
}

/* "host:port" -> a listening socket, or -errno */
static int listen_on(const char *where, struct errtext *e)
{
	const char *colon = strrchr(where, ':');
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found;
	char host[256];
	size_t n = colon ? (size_t)(colon - where) : 0;
	int fd, r, one = 1;

	if (!colon || n >= sizeof host || !colon[1])
		return errtext_set(e, -EINVAL, "listen '%.100s' must be host:port, such as 127.0.0.1:8080", where);
	memcpy(host, where, n);
	host[n] = 0;
	if (n >= 2 && host[0] == '[' && host[n - 1] == ']') {
		host[n - 1] = 0;
		memmove(host, host + 1, n - 1);
	}
	r = getaddrinfo(*host ? host : NULL, colon + 1, &hints, &found);
	if (r != 0)
		return errtext_set(e, -EINVAL, "listen '%.100s' cannot be resolved: %s", where, gai_strerror(r));
	fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	r = fd < 0 ? -errno : 0;
	if (r == 0)
		(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (r == 0 && (bind(fd, found->ai_addr, found->ai_addrlen) < 0 || listen(fd, 512) < 0))
		r = -errno;
	freeaddrinfo(found);
	if (r < 0 && fd >= 0)
		close(fd);
	if (r < 0)
		return errtext_set(e, r, "cannot listen on %.100s: %s", where, strerror(-r));
	return fd;
}

static int bound_port(int fd)
{
	struct sockaddr_storage a;
	socklen_t n = sizeof a;

	if (getsockname(fd, (struct sockaddr *)&a, &n) < 0)
		return 0;
	return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port : ((struct sockaddr_in *)&a)->sin_port);
}


int http_new(struct loop *l, const struct http_options *o, struct http **ret, struct errtext *e)
{
	struct http *h = calloc(1, sizeof *h);
	int fd;

	if (!h || !(h->ev = evhttp_new(loop_base(l)))) {
		free(h);
		return errtext_set(e, -ENOMEM, "out of memory");
	}
	h->o = *o;
	evhttp_set_max_headers_size(h->ev, (ev_ssize_t)o->max_headers);
	/* A body somewhat over the limit is read, so that the refusal has our error's form. */
	evhttp_set_max_body_size(h->ev, (ev_ssize_t)(2 * o->max_body));
	evhttp_set_allowed_methods(h->ev, EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_HEAD | EVHTTP_REQ_OPTIONS | EVHTTP_REQ_PUT |
						  EVHTTP_REQ_DELETE | EVHTTP_REQ_PATCH);
	evhttp_set_timeout(h->ev, IDLE_S);
	evhttp_set_bevcb(h->ev, on_connection, h);
	evhttp_set_gencb(h->ev, on_request, h);
	fd = listen_on(o->listen, e);
	if (fd < 0) {
		evhttp_free(h->ev);
		free(h);
		return fd;
	}
	h->port = bound_port(fd);
	h->bound = evhttp_accept_socket_with_handle(h->ev, fd);
	if (!h->bound) {
		close(fd);
		http_free(h);
		return errtext_set(e, -ENOMEM, "out of memory");
	}
	evconnlistener_set_error_cb(listener(h), on_accept_error);
	*ret = h;
	return 0;
}

struct http *http_free(struct http *h)
{
	if (!h)
		return NULL;
	while (h->open)
		cut(h->open);
	evhttp_free(h->ev);
	free(h);
	return NULL;
}

int http_port(const struct http *h)
{
	return h->port;
}

void http_stop_accepting(struct http *h)
{
	evconnlistener_disable(listener(h));
}

const char *http_method(const struct http_request *r)
{
	switch (evhttp_request_get_command(r->ev)) {
	case EVHTTP_REQ_GET:
		return "GET";
	case EVHTTP_REQ_POST:
		return "POST";
	case EVHTTP_REQ_HEAD:
		return "HEAD";
	case EVHTTP_REQ_OPTIONS:
		return "OPTIONS";
	default:
		return "OTHER";
	}
}

const char *http_path(const struct http_request *r)
{
	return r->path;
}

const char *http_header(const struct http_request *r, const char *name)
{
	return evhttp_find_header(evhttp_request_get_input_headers(r->ev), name);
}

const char *http_body(const struct http_request *r, size_t *ret_len)
{
	struct evbuffer *b = evhttp_request_get_input_buffer(r->ev);

	*ret_len = evbuffer_get_length(b);
	return *ret_len ? (const char *)evbuffer_pullup(b, -1) : "";
}

bool http_body_too_large(const struct http_request *r)
{
	return evbuffer_get_length(evhttp_request_get_input_buffer(r->ev)) > r->http->o.max_body;
}

void http_on_gone(struct http_request *r, void (*on_gone)(void *arg), void *arg)
{
	r->on_gone = on_gone;
	r->arg = arg;
}

void http_set_header(struct http_request *r, const char *name, const char *value)
{
	for (const char *p = value; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			return;
	(void)evhttp_add_header(evhttp_request_get_output_headers(r->ev), name, value);
}

/* From here on the connection is evhttp's alone again. */
static void release(struct http_request *r)
{
	evhttp_connection_set_closecb(r->conn, NULL, NULL);
	set_timeouts(r, true);
}

void http_reply(struct http_request *r, int status, const char *type, const void *body, size_t len)
{
	struct evbuffer *b = evbuffer_new();

	release(r);
	if (type)
		http_set_header(r, "Content-Type", type);
	if (evhttp_request_get_command(r->ev) == EVHTTP_REQ_HEAD) { /* the size of the body, and no body */
		char size[24];
		(void)snprintf(size, sizeof size, "%zu", len);
		http_set_header(r, "Content-Length", size);
		len = 0;
	}
	if (b && len > 0 && evbuffer_add(b, body, len) < 0) {
		evbuffer_free(b);
		b = NULL;
	}
	if (b)
		evhttp_send_reply(r->ev, status, NULL, b);
	else
		evhttp_send_error(r->ev, HTTP_INTERNAL, NULL);
	if (b)
		evbuffer_free(b);
	request_free(r);
}

void http_stream_start(struct http_request *r, const char *type)
{
	http_set_header(r, "Content-Type", type);
	http_set_header(r, "Cache-Control", "no-cache");
	evhttp_send_reply_start(r->ev, HTTP_OK, NULL);
}

int http_stream_send(struct http_request *r, const void *p, size_t len)
{
	struct evbuffer *b;

	if (evbuffer_get_length(bufferevent_get_output(request_bev(r))) + len > MAX_OUTPUT || !(b = evbuffer_new())) {
		cut(r);
		return -EPIPE;
	}
	if (evbuffer_add(b, p, len) < 0) {
		evbuffer_free(b);
		cut(r);
		return -EPIPE;
	}
	evhttp_send_reply_chunk(r->ev, b);
	evbuffer_free(b);
	return 0;
}

void http_stream_end(struct http_request *r)
{
	release(r);
	evhttp_send_reply_end(r->ev);
	request_free(r);
}
