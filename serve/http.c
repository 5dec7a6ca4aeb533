/* Connections and their stages, over libevent's buffers.
 *
 * A connection reads a head, then a body, is with its owner while answered, writes, and starts over.
 * One struct is both the connection and its request of the moment. A refusal of ours ends the
 * connection: what the peer still sends is read and thrown away for a moment, as closing over
 * unread bytes would reset it before the refusal is read. Every stage has its time; one sweep a
 * second finds who has overstayed it.
 */
#include <event2/event.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/base/clock.h"
#include "serve/http_inside.h"

enum { MAX_AHEAD = 64 << 10, FREE_BODY = 64 << 10, SWEEP_US = 500000 };

const struct http_times http_default_times = {.idle = 75000, .head = 20000, .body = 60000, .stall = 60000, .flush = 120000, .linger = 2000};

void http_enter(struct http_request *r, enum stage stage)
{
	r->stage = stage;
	r->since_us = clock_us();
}

void http_drop_body(struct http_request *r)
{
	buf_done(&r->body);
	r->http->bodies -= r->counted;
	r->counted = 0;
}

static void conn_free(struct http_request *r)
{
	if (r->handling) {
		r->dead = true;
		return;
	}
	*r->link = r->next;
	if (r->next)
		r->next->link = r->link;
	r->http->n--;
	http_drop_body(r);
	buf_done(&r->headers);
	free(r->text);
	bufferevent_free(r->bev);
	free(r);
}

void http_cut(struct http_request *r)
{
	void (*gone)(void *arg) = r->stage == ANSWER ? r->on_gone : NULL;

	r->on_gone = NULL;
	http_enter(r, LINGER);
	if (gone)
		gone(r->arg);
	conn_free(r);
}

/* ---- requests ---- */

/* Room for n more bytes of body; false: refused. */
static bool body_room(struct http_request *r, size_t n)
{
	struct http *h = r->http;
	size_t len = r->body.len + n, want = len > FREE_BODY ? len - FREE_BODY : 0;

	if (len > h->o.max_body) {
		http_refuse(r, 413, "The body is larger than this server takes.");
		return false;
	}
	if (h->bodies - r->counted + want > h->o.max_bodies) {
		http_refuse(r, 503, "The server holds as many large requests as it may; try again.");
		return false;
	}
	h->bodies = h->bodies - r->counted + want;
	r->counted = want;
	return true;
}

static bool take_bytes(struct http_request *r, const void *p, size_t n)
{
	if (!body_room(r, n))
		return false;
	if (buf_append(&r->body, p, n) < 0) {
		http_refuse(r, 503, "The server is out of memory; try again.");
		return false;
	}
	return true;
}

static void answer(struct http_request *r)
{
	http_enter(r, ANSWER);
	r->handling = true;
	r->http->o.handle(r->http->o.ctx, r);
	r->handling = false;
	if (r->dead)
		conn_free(r);
	else
		http_drop_body(r);
}

/* Each returns whether there may be more to do at once. */
static bool read_head(struct http_request *r, struct evbuffer *in)
{
	size_t max = r->http->o.max_headers, have = evbuffer_get_length(in), n;
	struct evbuffer_ptr end;
	const char *why;
	int status;

	while (r->stage == IDLE && have > 0) { /* empty lines before a request are allowed */
		char two[2];
		if (evbuffer_copyout(in, two, 2) < 2 || two[0] != '\r' || two[1] != '\n')
			break;
		(void)evbuffer_drain(in, 2);
		have -= 2;
	}
	if (have == 0)
		return false;
	if (r->stage == IDLE)
		http_enter(r, HEAD);
	end = evbuffer_search(in, "\r\n\r\n", 4, NULL);
	n = end.pos < 0 ? have : (size_t)end.pos + 4;
	if (n > max) {
		http_refuse(r, 431, "The request's head is larger than this server takes.");
		return false;
	}
	if (end.pos < 0)
		return false;
	free(r->text);
	r->text = malloc(n + 1);
	if (!r->text || evbuffer_remove(in, r->text, n) != (int)n) {
		http_refuse(r, 503, "The server is out of memory; try again.");
		return false;
	}
	status = http_head_parse(r->text, n, &r->head, &why);
	if (status == 0 && r->head.has_length && r->head.length > r->http->o.max_body)
		status = 413, why = "The body is larger than this server takes.";
	if (status != 0) {
		http_refuse(r, status, why);
		return false;
	}
	r->chunks = (struct http_chunks){0};
	http_enter(r, BODY);
	if (r->head.expects_continue && (r->head.chunked || r->head.length > 0) && evbuffer_get_length(in) == 0)
		(void)evbuffer_add(bufferevent_get_output(r->bev), "HTTP/1.1 100 Continue\r\n\r\n", 25);
	return true;
}

static bool read_chunked(struct http_request *r, struct evbuffer *in)
{
	size_t n = evbuffer_get_contiguous_space(in), used, n_data;
	const uint8_t *data;
	int s;

	if (n == 0)
		return false;
	s = http_chunks_step(&r->chunks, evbuffer_pullup(in, (ev_ssize_t)n), n, &used, &data, &n_data);
	if (s < 0) {
		http_refuse(r, 400, "The chunks of the body are broken.");
		return false;
	}
	if (n_data > 0 && !take_bytes(r, data, n_data))
		return false;
	(void)evbuffer_drain(in, used);
	if (s == HTTP_CHUNKS_DONE)
		answer(r);
	return s == HTTP_CHUNKS_MORE;
}

static bool read_counted(struct http_request *r, struct evbuffer *in)
{
	while (r->body.len < r->head.length) {
		size_t n = evbuffer_get_contiguous_space(in), left = r->head.length - r->body.len;
		if (n == 0)
			return false;
		n = n < left ? n : left;
		if (!take_bytes(r, evbuffer_pullup(in, (ev_ssize_t)n), n))
			return false;
		(void)evbuffer_drain(in, n);
	}
	answer(r);
	return false;
}

/* As far as what has come allows. r may be gone afterwards. */
static void proceed(struct http_request *r)
{
	struct evbuffer *in = bufferevent_get_input(r->bev);
	bool more = true;

	while (more)
		switch (r->stage) {
		case IDLE:
		case HEAD:
			more = read_head(r, in);
			break;
		case BODY:
			more = r->head.chunked ? read_chunked(r, in) : read_counted(r, in);
			break;
		case LINGER:
			(void)evbuffer_drain(in, evbuffer_get_length(in));
			more = false;
			break;
		default: /* the next request waits its turn */
			more = false;
		}
}

/* ---- events ---- */

static void on_read(struct bufferevent *bev, void *arg)
{
	(void)bev;
	proceed(arg);
}

/* The output has been handed to the kernel. */
static void on_written(struct bufferevent *bev, void *arg)
{
	struct http_request *r = arg;

	(void)bev;
	if (r->stage != FLUSH)
		return;
	if (r->close_after && !r->refused) {
		conn_free(r);
	} else if (r->close_after) {
		(void)shutdown(bufferevent_getfd(r->bev), SHUT_WR);
		http_enter(r, LINGER);
		proceed(r);
	} else {
		http_enter(r, IDLE);
		proceed(r);
	}
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
	(void)bev;
	if (what & (BEV_EVENT_EOF | BEV_EVENT_ERROR | BEV_EVENT_TIMEOUT)) {
		struct http_request *r = arg;
		if ((what & BEV_EVENT_EOF) && r->stage == FLUSH)
			r->close_after = true; /* it will not ask again, but may still read */
		else
			http_cut(r);
	}
}

void http_begin(struct http_request *r)
{
	struct http *h = r->http;
	struct timeval stall = {h->o.times->stall / 1000, h->o.times->stall % 1000 * 1000};

	r->body = BUF_INIT(h->o.max_body);
	r->headers = BUF_INIT(16 << 10);
	r->next = h->all;
	r->link = &h->all;
	if (h->all)
		h->all->link = &r->next;
	h->all = r;
	h->n++;
	http_enter(r, IDLE);
	bufferevent_setcb(r->bev, on_read, on_written, on_event, r);
	bufferevent_setwatermark(r->bev, EV_READ, 0, MAX_AHEAD);
	bufferevent_set_timeouts(r->bev, NULL, &stall);
	(void)bufferevent_enable(r->bev, EV_READ | EV_WRITE);
}

static void overstayed(struct http_request *r, uint64_t now)
{
	const struct http_times *t = r->http->o.times;
	const unsigned most[] = {[IDLE] = t->idle, [HEAD] = t->head, [BODY] = t->body, [ANSWER] = 0, [FLUSH] = t->flush, [LINGER] = t->linger};

	if (r->stage == ANSWER || now - r->since_us < (uint64_t)most[r->stage] * 1000)
		return;
	if (r->stage == HEAD || r->stage == BODY)
		http_refuse(r, 408, r->stage == HEAD ? "The request's head took too long to arrive." : "The request's body took too long to arrive.");
	else
		http_cut(r);
}

static void on_sweep(void *arg)
{
	struct http *h = arg;
	uint64_t now = clock_us();

	for (struct http_request *r = h->all, *next; r; r = next) {
		next = r->next;
		overstayed(r, now);
	}
	loop_timer_set(h->sweep, SWEEP_US);
}

int http_new(struct loop *l, const struct http_options *o, struct http **ret, struct errtext *e)
{
	struct http *h = calloc(1, sizeof *h);
	int r = h ? 0 : -ENOMEM;

	if (r == 0) {
		h->loop = l;
		h->o = *o;
		h->o.times = o->times ? o->times : &http_default_times;
		r = loop_timer_new(l, on_sweep, h, &h->sweep);
	}
	if (r < 0)
		errtext_set(e, r, "out of memory");
	else
		r = http_open_doors(h, e);
	if (r < 0) {
		http_free(h);
		return r;
	}
	loop_timer_set(h->sweep, SWEEP_US);
	*ret = h;
	return 0;
}

struct http *http_free(struct http *h)
{
	if (!h)
		return NULL;
	while (h->all)
		http_cut(h->all);
	http_close_doors(h);
	loop_timer_free(h->sweep);
	free(h);
	return NULL;
}

int http_port(const struct http *h)
{
	return h->port;
}

void http_stop_accepting(struct http *h)
{
	h->stopped = true;
	http_set_doors(h, false);
}

void http_last_requests(struct http *h)
{
	h->last = true;
}

struct http_stats http_stats(const struct http *h)
{
	struct http_stats s = {.connections = h->n, .bodies = h->bodies};

	for (const struct http_request *r = h->all; r; r = r->next)
		s.unread += evbuffer_get_length(bufferevent_get_output(r->bev));
	return s;
}

const struct http *http_of(const struct http_request *r)
{
	return r->http;
}

const char *http_method(const struct http_request *r)
{
	return r->head.method;
}

const char *http_path(const struct http_request *r)
{
	return r->head.path;
}

const char *http_header(const struct http_request *r, const char *name)
{
	return http_head_get(&r->head, name);
}

const char *http_body(const struct http_request *r, size_t *ret_len)
{
	*ret_len = r->body.len;
	return r->body.data ? (const char *)r->body.data : "";
}

const char *http_peer(const struct http_request *r)
{
	return r->peer;
}

void http_on_gone(struct http_request *r, void (*on_gone)(void *arg), void *arg)
{
	r->on_gone = on_gone;
	r->arg = arg;
}
