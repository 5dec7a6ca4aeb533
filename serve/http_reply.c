/* What the HTTP server writes: heads, whole replies, streams in chunks, and its own refusals.
 *
 * Everything goes into the connection's output buffer; a reader who has left more than MAX_OUTPUT of a stream unread, beside
 * what was allowed for, when the next event comes is cut off, so that nobody's answer is kept for ever.
 */
#include <string.h>
#include <time.h>
#include "serve/http_inside.h"

enum { MAX_OUTPUT = 1 << 20 };

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
	http_enter(r, FLUSH);
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
	r->allowed = 0;
	if (r->chunked_out)
		http_set_header(r, "Transfer-Encoding", "chunked");
	else
		r->close_after = true; /* its end is the end of the stream */
	write_head(r, 200, type);
	(void)evbuffer_add(bufferevent_get_output(r->bev), "\r\n", 2);
}

void http_stream_allow(struct http_request *r, size_t len)
{
	r->allowed += len;
}

int http_stream_send(struct http_request *r, const void *p, size_t len)
{
	struct evbuffer *out = bufferevent_get_output(r->bev);
	int bad = 0;

	if (len == 0)
		return 0;
	if (evbuffer_get_length(out) > MAX_OUTPUT + r->allowed) { /* of what was sent before: one event may be larger */
		http_cut(r);
		return -EPIPE;
	}
	if (r->chunked_out)
		bad = evbuffer_add_printf(out, "%zx\r\n", len) < 0;
	bad |= evbuffer_add(out, p, len) < 0;
	if (r->chunked_out)
		bad |= evbuffer_add(out, "\r\n", 2) < 0;
	if (bad) {
		http_cut(r);
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

void http_refuse(struct http_request *r, int status, const char *sentence)
{
	char body[512];
	size_t n = 0;

	if (r->http->o.refusal)
		n = r->http->o.refusal(r->http->o.ctx, status, sentence, body, sizeof body);
	r->close_after = r->refused = true;
	r->head = (struct http_head){.method = "GET", .v11 = true};
	buf_clear(&r->headers);
	http_drop_body(r);
	if (status == 503)
		http_set_header(r, "Retry-After", "1");
	if (n > 0)
		http_reply(r, status, "application/json", body, n);
	else
		http_reply(r, status, "text/plain; charset=utf-8", sentence, strlen(sentence));
}
