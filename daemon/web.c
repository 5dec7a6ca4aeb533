/* Metrics over HTTP, by libevent's own server on the daemon's loop: requests have no
 * body worth reading, answers are one buffer, and idle connections time out.
 */
#include "daemon/web.h"
#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/http.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "daemon/base/buf.h"
#include "daemon/base/loop.h"
#include "daemon/base/metrics.h"
#include "daemon/watch.h"

struct web {
	struct evhttp *http;
	struct evhttp_bound_socket *bound;
	struct metrics *metrics; /* borrowed */
	struct watch *watch;     /* borrowed */
};

static void web_send(struct evhttp_request *q, int code, const char *type, const void *p, size_t n)
{
	struct evbuffer *b = evbuffer_new();

	if (!b || evbuffer_add(b, p, n) < 0) {
		evhttp_send_error(q, HTTP_INTERNAL, NULL);
	} else {
		evhttp_add_header(evhttp_request_get_output_headers(q), "Content-Type", type);
		evhttp_send_reply(q, code, code == 200 ? "OK" : "Not Found", b);
	}
	if (b)
		evbuffer_free(b);
}

static void web_metrics(struct evhttp_request *q, void *arg)
{
	struct web *w = arg;
	struct buf b = BUF_INIT(16 << 20);
	int r = metrics_print(w->metrics, &b);

	if (!r && w->watch)
		r = watch_print(w->watch, &b);
	if (r < 0)
		evhttp_send_error(q, HTTP_INTERNAL, NULL);
	else
		web_send(q, 200, "text/plain; version=0.0.4; charset=utf-8", b.data, b.len);
	buf_done(&b);
}

static void web_health(struct evhttp_request *q, void *arg)
{
	static const char ok[] = "{\"status\":\"ok\"}\n";

	(void)arg;
	web_send(q, 200, "application/json", ok, sizeof ok - 1);
}

static void web_other(struct evhttp_request *q, void *arg)
{
	static const char text[] = "here are /metrics and /health\n";

	(void)arg;
	web_send(q, 404, "text/plain; charset=utf-8", text, sizeof text - 1);
}

static int web_split(const char *listen, char *ret_host, size_t size, int *ret_port, struct errtext *e)
{
	const char *colon = strrchr(listen, ':');
	size_t n = colon ? (size_t)(colon - listen) : 0;
	char *end;
	long port;

	if (!colon || !n || n >= size || !colon[1])
		return errtext_set(e, -EINVAL, "listen_metrics = %.100s: expected host:port", listen);
	port = strtol(colon + 1, &end, 10);
	if (*end || port < 0 || port > 65535)
		return errtext_set(e, -EINVAL, "listen_metrics = %.100s: a port is a number from 0 to 65535", listen);
	if (listen[0] == '[' && listen[n - 1] == ']') {
		listen++;
		n -= 2;
	}
	memcpy(ret_host, listen, n);
	ret_host[n] = '\0';
	*ret_port = (int)port;
	return 0;
}

int web_new(struct loop *l, const char *listen, struct metrics *m, struct watch *watch, struct web **ret, struct errtext *e)
{
	char host[128];
	int port = 0, r;
	struct web *w;

	if (!listen[0]) {
		*ret = NULL;
		return 0;
	}
	r = web_split(listen, host, sizeof host, &port, e);
	if (r < 0)
		return r;
	w = calloc(1, sizeof *w);
	if (!w)
		return -ENOMEM;
	w->metrics = m;
	w->watch = watch;
	w->http = evhttp_new(loop_base(l));
	if (!w->http) {
		web_free(w);
		return -ENOMEM;
	}
	evhttp_set_allowed_methods(w->http, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD);
	evhttp_set_max_headers_size(w->http, 16384);
	evhttp_set_max_body_size(w->http, 4096);
	evhttp_set_timeout(w->http, 30);
	evhttp_set_cb(w->http, "/metrics", web_metrics, w);
	evhttp_set_cb(w->http, "/health", web_health, w);
	evhttp_set_cb(w->http, "/healthz", web_health, w);
	evhttp_set_gencb(w->http, web_other, w);
	errno = 0;
	w->bound = evhttp_bind_socket_with_handle(w->http, host, (uint16_t)port);
	if (!w->bound) {
		r = errno ? -errno : -EADDRNOTAVAIL;
		web_free(w);
		return errtext_set(e, r, "listen_metrics = %.100s: %s", listen, strerror(-r));
	}
	*ret = w;
	return 0;
}

struct web *web_free(struct web *w)
{
	if (w && w->http)
		evhttp_free(w->http);
	free(w);
	return NULL;
}

int web_port(const struct web *w)
{
	struct sockaddr_storage a = {0};
	socklen_t n = sizeof a;

	if (getsockname(evhttp_bound_socket_get_fd(w->bound), (struct sockaddr *)&a, &n) < 0)
		return 0;
	return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&a)->sin6_port
					      : ((struct sockaddr_in *)(void *)&a)->sin_port);
}
