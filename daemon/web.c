/* Routes, static files, metrics and health, by libevent's own server on the daemon's loop: requests have
 * hardly a body, answers are one buffer, idle connections time out. One table says what there is, how it may be
 * asked for, and whether any name will do. The page's files are C strings made of daemon/page/.
 */
#include "daemon/web.h"
#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/listener.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "daemon/act.h"
#include "daemon/base/buf.h"
#include "daemon/base/clock.h"
#include "daemon/base/fnv.h"
#include "daemon/base/loop.h"
#include "daemon/base/metrics.h"
#include "daemon/history.h"
#include "daemon/news.h"
#include "daemon/page.h"
#include "daemon/report.h"
#include "daemon/watch.h"
#include "daemon/web_inside.h"

/* ---- answers ---- */

/* No script but /page.js, no style but /page.css, nobody else's frame, nothing from anywhere else. */
void web_headers(struct evhttp_request *q, const char *type)
{
	static const char *const fixed[][2] = {
		{"Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
					    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"},
		{"X-Content-Type-Options", "nosniff"},
		{"Referrer-Policy", "no-referrer"},
		{"Cross-Origin-Resource-Policy", "same-origin"},
		{"Cache-Control", "no-store"},
	};
	struct evkeyvalq *out = evhttp_request_get_output_headers(q);

	evhttp_add_header(out, "Content-Type", type);
	for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
		evhttp_add_header(out, fixed[i][0], fixed[i][1]);
}

void web_send(struct evhttp_request *q, int code, const char *type, const void *p, size_t n)
{
	bool head = evhttp_request_get_command(q) == EVHTTP_REQ_HEAD; /* the length it would have; libevent would send the body */
	struct evbuffer *b = evbuffer_new();
	char length[24];

	if (!b || evbuffer_add(b, p, head ? 0 : n) < 0) {
		evhttp_send_error(q, HTTP_INTERNAL, NULL);
	} else {
		web_headers(q, type);
		snprintf(length, sizeof length, "%zu", n);
		evhttp_add_header(evhttp_request_get_output_headers(q), "Content-Length", length);
		evhttp_send_reply(q, code, NULL, b);
	}
	if (b)
		evbuffer_free(b);
}

void web_send_json(struct evhttp_request *q, int code, json_t *j)
{
	char *text = j ? json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;

	json_decref(j);
	if (text)
		web_send(q, code, "application/json", text, strlen(text));
	else
		evhttp_send_error(q, HTTP_INTERNAL, NULL);
	free(text);
}

void web_fail(struct evhttp_request *q, int code, const char *fmt, ...)
{
	char text[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	web_send_json(q, code, json_pack("{s:o}", "error", report_text(text)));
}

void web_let_go(struct evhttp_request *q)
{
	if (!evhttp_request_get_connection(q))
		evhttp_request_free(q);
}

/* ---- what is asked for ---- */

static void web_metrics(struct web *w, struct evhttp_request *q)
{
	bool open = metrics_wants_open(evhttp_find_header(evhttp_request_get_input_headers(q), "Accept"));
	struct buf b = BUF_INIT(16 << 20), strict = BUF_INIT(16 << 20);
	int r = metrics_print(w->o.metrics, &b);

	if (!r && w->o.watch)
		r = watch_print(w->o.watch, &b);
	if (!r && open)
		r = metrics_openmetrics(&b, &strict);
	if (r < 0)
		evhttp_send_error(q, HTTP_INTERNAL, NULL);
	else
		web_send(q, 200, open ? METRICS_OPEN : METRICS_PLAIN, open ? strict.data : b.data, open ? strict.len : b.len);
	buf_done(&strict);
	buf_done(&b);
}

static void web_health(struct web *w, struct evhttp_request *q)
{
	static const char ok[] = "{\"status\":\"ok\"}\n";

	(void)w;
	web_send(q, 200, "application/json", ok, sizeof ok - 1);
}

/* The versions' files are read again only when something about a version has changed. */
static json_t *web_versions(struct web *w)
{
	const struct store_state *s = &act_rollout(w->o.act)->s;
	uint64_t mark = FNV1A; /* over what a person sees change */

	for (int i = 0; i < s->n_versions; i++) {
		char text[192];

		snprintf(text, sizeof text, "%u %d %s", s->versions[i].number, (int)s->versions[i].state, s->versions[i].reason);
		mark = fnv1a_text(mark, text);
	}
	if (!w->versions || mark != w->versions_mark) {
		json_decref(w->versions);
		w->versions = report_versions(w->o.act, WEB_VERSIONS);
		w->versions_mark = mark;
	}
	return w->versions;
}

json_t *web_status(struct web *w)
{
	return json_pack("{s:I, s:b, s:I, s:o, s:O, s:o}", "now_ms", (json_int_t)clock_wall_ms(), "can_change", w->token[0] != 0, "back_to",
			 (json_int_t)rollout_back_to(act_rollout(w->o.act)), "status", report_status(w->o.act, w->o.watch, w->o.audit, w->start_us), "versions",
			 web_versions(w), "drift", report_drift(w->o.act, w->o.watch));
}

static void web_api_status(struct web *w, struct evhttp_request *q)
{
	web_send_json(q, 200, web_status(w));
}

static void web_api_history(struct web *w, struct evhttp_request *q)
{
	web_send_json(q, 200, history_json(w->history, clock_us(), clock_wall_ms()));
}

struct web_route {
	const char *path;
	void (*handle)(struct web *w, struct evhttp_request *q); /* NULL: the text is the answer */
	bool post, any_name;
	const char *type, *text;
};

static const struct web_route web_routes[] = {
	{"/", NULL, false, false, "text/html; charset=utf-8", page_html},
	{"/page.css", NULL, false, false, "text/css; charset=utf-8", page_css},
	{"/page.js", NULL, false, false, "text/javascript; charset=utf-8", page_js},
	{"/icon.svg", NULL, false, false, "image/svg+xml", icon_svg},
	{"/api/status", web_api_status, false, false, NULL, NULL},
	{"/api/history", web_api_history, false, false, NULL, NULL},
	{"/events", web_events, false, false, NULL, NULL},
	{"/api/rollback", web_change, true, false, NULL, NULL},
	{"/api/hold", web_change, true, false, NULL, NULL},
	{"/api/release", web_change, true, false, NULL, NULL},
	{"/metrics", web_metrics, false, true, NULL, NULL},
	{"/health", web_health, false, true, NULL, NULL},
	{"/healthz", web_health, false, true, NULL, NULL},
};

static bool web_is_address(const char *name)
{
	unsigned char a[16];
	char v6[64];
	size_t n = strlen(name);

	if (n > 2 && n < sizeof v6 && name[0] == '[' && name[n - 1] == ']') {
		memcpy(v6, name + 1, n - 2);
		v6[n - 2] = '\0';
		return inet_pton(AF_INET6, v6, a) == 1;
	}
	return inet_pton(AF_INET, name, a) == 1;
}

/* Are we asked for by a name that is ours? Otherwise somebody's page has his own name point here, to read what we show. */
static bool web_is_ours(const struct web *w, struct evhttp_request *q)
{
	const char *given = evhttp_find_header(evhttp_request_get_input_headers(q), "Host"), *end;
	char name[128];

	if (!given)
		return true; /* no browser */
	end = strrchr(given, ']') ? strrchr(given, ']') + 1 : given + strcspn(given, ":");
	if ((size_t)(end - given) >= sizeof name || (*end && *end != ':'))
		return false;
	memcpy(name, given, (size_t)(end - given));
	name[end - given] = '\0';
	return web_is_address(name) || !strcasecmp(name, "localhost") || !strcasecmp(name, w->listen_name) ||
	       (w->host[0] && !strcasecmp(name, w->host));
}

static void web_asked(struct evhttp_request *q, void *arg)
{
	const char *path = evhttp_uri_get_path(evhttp_request_get_evhttp_uri(q));
	bool post = evhttp_request_get_command(q) == EVHTTP_REQ_POST;
	struct web *w = arg;

	for (size_t i = 0; i < sizeof web_routes / sizeof *web_routes; i++) {
		const struct web_route *x = &web_routes[i];

		if (strcmp(x->path, path && path[0] ? path : "/") != 0)
			continue;
		if (post != x->post) {
			evhttp_add_header(evhttp_request_get_output_headers(q), "Allow", x->post ? "POST" : "GET, HEAD");
			web_fail(q, 405, "%s is asked by %s", x->path, x->post ? "POST" : "GET");
		} else if (!x->any_name && !web_is_ours(w, q)) {
			web_fail(q, 403, "not known by this name: ask by address, or set web.host to it");
		} else if (x->handle) {
			x->handle(w, q);
		} else {
			web_send(q, 200, x->type, x->text, strlen(x->text));
		}
		return;
	}
	web_fail(q, 404, "here are / with what it needs, /metrics and /health");
}

/* ---- room ---- */

/* libevent's server takes every connection. So that nobody uses up the files that the store and the control socket
 * need, it stops taking them when the lowest free descriptor says that many are open, and looks again each tick;
 * idle ones end by themselves meanwhile. */
static bool web_crowded(const struct web *w)
{
	int fd = dup(evhttp_bound_socket_get_fd(w->bound));

	if (fd >= 0)
		close(fd);
	return fd < 0 || fd >= WEB_MOST_FD;
}

static struct bufferevent *web_accepts(struct event_base *base, void *arg)
{
	struct web *w = arg;

	(void)base;
	if (web_crowded(w))
		evconnlistener_disable(evhttp_bound_socket_get_listener(w->bound));
	return NULL; /* the usual kind */
}

/* ---- what happens ---- */

static void web_heard(void *arg, const struct news_item *x)
{
	struct web *w = arg;
	bool mark = !strcmp(x->kind, "switch") || !strcmp(x->kind, "drift") || !strcmp(x->kind, "decay");

	history_said(w->history, clock_us(), mark ? x->kind : "event", x->version, x->text);
	loop_timer_set(w->tick, WEB_SOON_US);
}

static void web_tick(void *arg)
{
	uint64_t now = clock_us();
	struct web *w = arg;

	if (!web_crowded(w))
		evconnlistener_enable(evhttp_bound_socket_get_listener(w->bound));
	if (history_due(w->history, now)) {
		json_t *domains = w->o.watch ? watch_domains(w->o.watch) : NULL;

		history_take(w->history, now, domains);
		json_decref(domains);
		web_events_send(w, "history", w->n_listeners ? json_object() : NULL);
	}
	if (w->n_listeners)
		web_events_send(w, "status", web_status(w));
	loop_timer_set(w->tick, WEB_TICK_US);
}

/* ---- life ---- */

static int web_split(const char *listen, char ret_host[static ADDRESS_HOST], int *ret_port, struct errtext *e)
{
	const char *text;
	char *end;
	long port;

	if (address_split(listen, ret_host, &text) || !ret_host[0])
		return errtext_set(e, -EINVAL, "listen_metrics = %.100s: expected host:port", listen);
	port = strtol(text, &end, 10);
	if (*end || port < 0 || port > 65535)
		return errtext_set(e, -EINVAL, "listen_metrics = %.100s: a port is a number from 0 to 65535", listen);
	*ret_port = (int)port;
	return 0;
}

int web_check(const char *listen, struct errtext *e)
{
	char host[ADDRESS_HOST];
	int port;

	return listen[0] ? web_split(listen, host, &port, e) : 0;
}

static int web_bind(struct web *w, struct loop *l, int port, struct errtext *e)
{
	int r;

	w->http = evhttp_new(loop_base(l));
	if (!w->http)
		return -ENOMEM;
	evhttp_set_allowed_methods(w->http, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD | EVHTTP_REQ_POST);
	evhttp_set_max_headers_size(w->http, 16384);
	evhttp_set_max_body_size(w->http, 4096);
	evhttp_set_timeout(w->http, 30);
	evhttp_set_gencb(w->http, web_asked, w);
	evhttp_set_bevcb(w->http, web_accepts, w);
	errno = 0;
	w->bound = evhttp_bind_socket_with_handle(w->http, w->listen_name, (uint16_t)port);
	r = w->bound ? 0 : errno ? -errno : -EADDRNOTAVAIL;
	return r ? errtext_set(e, r, "listen_metrics = %.100s: %s", w->o.listen, strerror(-r)) : 0;
}

int web_new(struct loop *l, const struct web_options *o, struct web **ret, struct errtext *e)
{
	struct web *w;
	int port = 0, r;

	if (!o->listen[0]) {
		*ret = NULL;
		return 0;
	}
	w = calloc(1, sizeof *w);
	if (!w)
		return -ENOMEM;
	w->o = *o;
	w->start_us = clock_us();
	snprintf(w->host, sizeof w->host, "%s", o->host);
	r = web_split(o->listen, w->listen_name, &port, e);
	if (!r)
		r = web_token(w, e);
	if (!r)
		r = history_new(w->start_us, &w->history);
	if (!r)
		r = loop_timer_new(l, web_tick, w, &w->tick);
	if (!r)
		r = web_bind(w, l, port, e);
	if (r < 0) {
		web_free(w);
		return r;
	}
	loop_timer_set(w->tick, WEB_TICK_US);
	r = news_listen(o->news, web_heard, w);
	if (r < 0) {
		web_free(w);
		return r;
	}
	*ret = w;
	return 0;
}

struct web *web_free(struct web *w)
{
	if (!w)
		return NULL;
	news_leave(w->o.news, w);
	if (w->http)
		evhttp_free(w->http); /* listeners take their leave */
	loop_timer_free(w->tick);
	history_free(w->history);
	json_decref(w->versions);
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
