/* GET /events: Server-Sent Events. A listener is a reply that never ends. There are at most WEB_LISTENERS; who
 * reads so slowly that WEB_SLOW_BYTES wait for him is hung up on, and his browser comes back by
 * itself. The snapshot is made once for all of them, and not at all when nobody listens.
 */
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/web_inside.h"

static struct evbuffer *web_frame(const char *name, json_t *data)
{
	char *text = data ? json_dumps(data, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
	struct evbuffer *b = text ? evbuffer_new() : NULL;

	if (b && evbuffer_add_printf(b, "event: %s\ndata: %s\n\n", name, text) < 0) {
		evbuffer_free(b);
		b = NULL;
	}
	free(text);
	return b;
}

/* The connection is ending, whoever ended it. */
static void web_listener_gone(struct evhttp_connection *c, void *arg)
{
	struct web *w = arg;

	for (int i = 0; i < WEB_LISTENERS; i++) {
		struct web_listener *x = &w->listener[i];

		if (!x->q || x->c != c)
			continue;
		web_let_go(x->q);
		*x = (struct web_listener){0};
		w->n_listeners--;
	}
}

static void web_listener_send(struct web_listener *x, struct evbuffer *frame)
{
	struct evbuffer *copy;

	if (evbuffer_get_length(bufferevent_get_output(evhttp_connection_get_bufferevent(x->c))) > WEB_SLOW_BYTES) {
		evhttp_connection_free(x->c); /* and web_listener_gone */
		return;
	}
	copy = evbuffer_new();
	if (copy && evbuffer_add(copy, evbuffer_pullup(frame, -1), evbuffer_get_length(frame)) == 0)
		evhttp_send_reply_chunk(x->q, copy);
	if (copy)
		evbuffer_free(copy);
}

void web_events_send(struct web *w, const char *name, json_t *data)
{
	struct evbuffer *frame = web_frame(name, data);

	json_decref(data);
	for (int i = 0; frame && i < WEB_LISTENERS; i++)
		if (w->listener[i].q)
			web_listener_send(&w->listener[i], frame);
	if (frame)
		evbuffer_free(frame);
}

void web_events(struct web *w, struct evhttp_request *q)
{
	struct evkeyvalq *out = evhttp_request_get_output_headers(q);
	struct evbuffer *frame;
	json_t *status;
	int i = 0;

	if (evhttp_request_get_command(q) == EVHTTP_REQ_HEAD) {
		web_send(q, 200, "text/event-stream", "", 0);
		return;
	}
	while (i < WEB_LISTENERS && w->listener[i].q)
		i++;
	if (i == WEB_LISTENERS) {
		evhttp_add_header(out, "Retry-After", "5");
		web_fail(q, 503, "%d pages are being kept up to date already; close one", WEB_LISTENERS);
		return;
	}
	web_headers(q, "text/event-stream");
	evhttp_add_header(out, "X-Accel-Buffering", "no"); /* a proxy that collects would show the past */
	w->listener[i] = (struct web_listener){.q = q, .c = evhttp_request_get_connection(q)};
	w->n_listeners++;
	evhttp_connection_set_closecb(w->listener[i].c, web_listener_gone, w);
	evhttp_send_reply_start(q, 200, "OK");
	status = web_status(w);
	frame = web_frame("status", status);
	json_decref(status);
	if (frame && w->listener[i].q == q)
		web_listener_send(&w->listener[i], frame);
	if (frame)
		evbuffer_free(frame);
}
