/* Connections and their stages, over libevent's buffers.
 *
 * A connection reads a head, then a body, is with its owner while answered, writes, and starts over.
 * One struct is both the connection and its request of the moment. A refusal of ours ends the
 * connection: what the peer still sends is read and thrown away for a moment, as closing over
 * unread bytes would reset it before the refusal is read. Every stage has its time; one sweep a
 * second finds who has overstayed it.
 */
#include "serve/http.h"
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include "daemon/base/activate.h"
#include "daemon/base/buf.h"
#include "daemon/base/clock.h"
#include "daemon/base/loop.h"
#include "serve/http_listen.h"
#include "serve/http_parse.h"

enum {
	MAX_AHEAD = 64 << 10, MAX_OUTPUT = 1 << 20, FREE_BODY = 64 << 10,
	ACCEPT_PAUSE_US = 100000, SWEEP_US = 500000
};

const struct http_times http_default_times = {.idle = 75000, .head = 20000, .body = 60000, .stall = 60000, .flush = 120000, .linger = 2000};

enum stage { IDLE, HEAD, BODY, ANSWER, FLUSH, LINGER };

struct door {
	struct http *http;
	struct evconnlistener *listener; /* NULL = not open */
};

struct http {
	struct loop *loop;
	struct http_options o;
	struct door tcp, local;
	char *path; /* owned; of the UNIX socket while it is ours */
	struct http_request *all; /* list of connections */
	struct loop_timer *sweep, *resume;
	size_t bodies;
	int n, port;
	bool last, stopped;
};

struct http_request {
	struct http *http;
	struct http_request *next, **link;
	struct bufferevent *bev;
	char peer[64];
	enum stage stage;
	uint64_t since_us; /* of the stage */
	bool close_after, refused;
	bool handling, dead; /* freed when the handler has returned */
	/* the request */
	char *text; /* owned; head points into it */
	struct http_head head;
	struct http_chunks chunks;
	struct buf body;
	size_t counted; /* of body, in http->bodies */
	/* the reply */
	struct buf headers;
	bool chunked_out;
	void (*on_gone)(void *arg);
	void *arg;
};

static void enter(struct http_request *r, enum stage stage)
{
	r->stage = stage;
	r->since_us = clock_us();
}

static void drop_body(struct http_request *r)
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
	drop_body(r);
	buf_done(&r->headers);
	free(r->text);
	bufferevent_free(r->bev);
	free(r);
}

/* The end of a connection, under whatever it was doing. */
static void cut(struct http_request *r)
{
	void (*gone)(void *arg) = r->stage == ANSWER ? r->on_gone : NULL;

	r->on_gone = NULL;
	enter(r, LINGER);
	if (gone)
		gone(r->arg);
	conn_free(r);
}

/* ---- replies ---- */

static const char *phrase(int status)
{
	static const struct { int status; const char *words; } table[] = {
		{200, "OK"}, {204, "No Content"}, {400, "Bad Request"}, {401, "Unauthorized"}, {403, "Forbidden"}, {404, "Not Found"},
		{405, "Method Not Allowed"}, {408, "Request Timeout"}, {413, "Content Too Large"}, {417, "Expectation Failed"},
		{429, "Too Many Requests"}, {431, "Request Header Fields Too Large"}, {500, "Internal Server Error"}, {501, "Not Implemented"},
		{503, "Service Unavailable"}, {504, "Gateway Timeout"}, {505, "HTTP Version Not Supported"}};

	for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
		if (table[i].status == status)
			return table[i].words;
	return "Status";
}

void http_set_header(struct http_request *r, const char *name, const char *value)
{
	for (const char *p = value; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			return;
	if (buf_printf(&r->headers, "%s: %s\r\n", name, value) < 0)
		r->close_after = true; /* out of memory: the reply goes without it */
}

static void write_head(struct http_request *r, int status, const char *type)
{
	struct evbuffer *out = bufferevent_get_output(r->bev);
	char date[40];
	time_t now = time(NULL);
	struct tm tm;

	if (type)
		http_set_header(r, "Content-Type", type);
	r->close_after = r->close_after || r->http->last || !r->head.keep_alive;
	(void)strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &tm));
	(void)evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\n%s", status, phrase(status), date,
				  r->close_after ? "Connection: close\r\n" : r->head.v11 ? "" : "Connection: keep-alive\r\n");
	(void)evbuffer_add(out, r->headers.data, r->headers.len);
	buf_clear(&r->headers);
}

/* Written whole into the buffer; the owner has let go. */
static void written(struct http_request *r)
{
	r->on_gone = NULL;
	enter(r, FLUSH);
}

void http_reply(struct http_request *r, int status, const char *type, const void *body, size_t len)
{
	struct evbuffer *out = bufferevent_get_output(r->bev);

	write_head(r, status, type);
	if (status == 204)
		(void)evbuffer_add(out, "\r\n", 2);
	else
		(void)evbuffer_add_printf(out, "Content-Length: %zu\r\n\r\n", len);
	if (len > 0 && strcmp(r->head.method, "HEAD") != 0 && evbuffer_add(out, body, len) < 0)
		r->close_after = true; /* out of memory: the reader sees a reply cut short */
	written(r);
}

void http_stream_start(struct http_request *r, const char *type)
{
	http_set_header(r, "Cache-Control", "no-cache");
	r->chunked_out = r->head.v11;
	if (r->chunked_out)
		http_set_header(r, "Transfer-Encoding", "chunked");
	else
		r->close_after = true; /* its end is the end of the stream */
	write_head(r, 200, type);
	(void)evbuffer_add(bufferevent_get_output(r->bev), "\r\n", 2);
}

int http_stream_send(struct http_request *r, const void *p, size_t len)
{
	struct evbuffer *out = bufferevent_get_output(r->bev);
	int bad = 0;

	if (len == 0)
		return 0;
	if (evbuffer_get_length(out) + len > MAX_OUTPUT) {
		cut(r);
		return -EPIPE;
	}
	if (r->chunked_out)
		bad = evbuffer_add_printf(out, "%zx\r\n", len) < 0;
	bad |= evbuffer_add(out, p, len) < 0;
	if (r->chunked_out)
		bad |= evbuffer_add(out, "\r\n", 2) < 0;
	if (bad) {
		cut(r);
		return -EPIPE;
	}
	return 0;
}

void http_stream_end(struct http_request *r)
{
	if (r->chunked_out && evbuffer_add(bufferevent_get_output(r->bev), "0\r\n\r\n", 5) < 0)
		r->close_after = true;
	written(r);
}

/* What this layer itself has to say against a request. It ends the connection. */
static void refuse(struct http_request *r, int status, const char *sentence)
{
	char body[512];
	size_t n = 0;

	if (r->http->o.refusal)
		n = r->http->o.refusal(r->http->o.ctx, status, sentence, body, sizeof body);
	r->close_after = r->refused = true;
	r->head = (struct http_head){.method = "GET", .v11 = true};
	buf_clear(&r->headers);
	drop_body(r);
	if (status == 503)
		http_set_header(r, "Retry-After", "1");
	if (n > 0)
		http_reply(r, status, "application/json", body, n);
	else
		http_reply(r, status, "text/plain; charset=utf-8", sentence, strlen(sentence));
}

/* ---- requests ---- */

/* Room for n more bytes of body; false: refused. */
static bool body_room(struct http_request *r, size_t n)
{
	struct http *h = r->http;
	size_t len = r->body.len + n, want = len > FREE_BODY ? len - FREE_BODY : 0;

	if (len > h->o.max_body) {
		refuse(r, 413, "The body is larger than this server takes.");
		return false;
	}
	if (h->bodies - r->counted + want > h->o.max_bodies) {
		refuse(r, 503, "The server holds as many large requests as it may; try again.");
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
		refuse(r, 503, "The server is out of memory; try again.");
		return false;
	}
	return true;
}

static void answer(struct http_request *r)
{
	enter(r, ANSWER);
	r->handling = true;
	r->http->o.handle(r->http->o.ctx, r);
	r->handling = false;
	if (r->dead)
		conn_free(r);
	else
		drop_body(r);
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
		enter(r, HEAD);
	end = evbuffer_search(in, "\r\n\r\n", 4, NULL);
	n = end.pos < 0 ? have : (size_t)end.pos + 4;
	if (n > max) {
		refuse(r, 431, "The request's head is larger than this server takes.");
		return false;
	}
	if (end.pos < 0)
		return false;
	free(r->text);
	r->text = malloc(n + 1);
	if (!r->text || evbuffer_remove(in, r->text, n) != (int)n) {
		refuse(r, 503, "The server is out of memory; try again.");
		return false;
	}
	status = http_head_parse(r->text, n, &r->head, &why);
	if (status == 0 && r->head.has_length && r->head.length > r->http->o.max_body)
		status = 413, why = "The body is larger than this server takes.";
	if (status != 0) {
		refuse(r, status, why);
		return false;
	}
	r->chunks = (struct http_chunks){0};
	enter(r, BODY);
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
		refuse(r, 400, "The chunks of the body are broken.");
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
		enter(r, LINGER);
		proceed(r);
	} else {
		enter(r, IDLE);
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
			cut(r);
	}
}

static void overstayed(struct http_request *r, uint64_t now)
{
	const struct http_times *t = r->http->o.times;
	const unsigned most[] = {[IDLE] = t->idle, [HEAD] = t->head, [BODY] = t->body, [ANSWER] = 0, [FLUSH] = t->flush, [LINGER] = t->linger};

	if (r->stage == ANSWER || now - r->since_us < (uint64_t)most[r->stage] * 1000)
		return;
	if (r->stage == HEAD || r->stage == BODY)
		refuse(r, 408, r->stage == HEAD ? "The request's head took too long to arrive." : "The request's body took too long to arrive.");
	else
		cut(r);
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

/* ---- accepting ---- */

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

static void doors(struct http *h, bool open)
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
		doors(h, true);
}

/* A connection that waits keeps the listener ready, and the loop would spin on it: look again a little later. */
static void pause_accepting(struct http *h)
{
	doors(h, false);
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
	struct timeval stall = {h->o.times->stall / 1000, h->o.times->stall % 1000 * 1000};
	int one = 1;

	if (r)
		r->bev = bufferevent_socket_new(evconnlistener_get_base(l), fd, BEV_OPT_CLOSE_ON_FREE);
	if (!r || !r->bev) {
		free(r);
		close(fd);
		return;
	}
	r->http = h;
	r->body = BUF_INIT(h->o.max_body);
	r->headers = BUF_INIT(16 << 10);
	http_name_peer(fd, a, (socklen_t)n, r->peer, sizeof r->peer);
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* each event of a stream at once */
	r->next = h->all;
	r->link = &h->all;
	if (h->all)
		h->all->link = &r->next;
	h->all = r;
	h->n++;
	enter(r, IDLE);
	bufferevent_setcb(r->bev, on_read, on_written, on_event, r);
	bufferevent_setwatermark(r->bev, EV_READ, 0, MAX_AHEAD);
	bufferevent_set_timeouts(r->bev, NULL, &stall);
	(void)bufferevent_enable(r->bev, EV_READ | EV_WRITE);
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

static int open_doors(struct http *h, struct errtext *e)
{
	const char *tcp = h->o.listen ? h->o.listen : "", *local = h->o.listen_unix ? h->o.listen_unix : "";
	int r = 0, fd = activate_take("http", e);

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

int http_new(struct loop *l, const struct http_options *o, struct http **ret, struct errtext *e)
{
	struct http *h = calloc(1, sizeof *h);
	int r = h ? 0 : -ENOMEM;

	if (r == 0) {
		h->loop = l;
		h->o = *o;
		h->o.times = o->times ? o->times : &http_default_times;
		if ((r = loop_timer_new(l, on_sweep, h, &h->sweep)) == 0)
			r = loop_timer_new(l, on_resume, h, &h->resume);
	}
	if (r < 0)
		errtext_set(e, r, "out of memory");
	else
		r = open_doors(h, e);
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
		cut(h->all);
	if (h->tcp.listener)
		evconnlistener_free(h->tcp.listener);
	if (h->local.listener)
		evconnlistener_free(h->local.listener);
	if (h->path)
		(void)unlink(h->path);
	free(h->path);
	loop_timer_free(h->sweep);
	loop_timer_free(h->resume);
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
	doors(h, false);
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
