/* evhttp does HTTP; here are the events of the stream and their clock.
 *
 * A server that does not tell token ids is taken to send one token a piece; where its usage
 * says otherwise at the end, the counts of a request are the usage's.
 */
#include "tests/bench/load/client.h"
#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/base/clock.h"

enum { MAX_EVENT = 1 << 22, MAX_REPLY = 1 << 28, MAX_PIECES = 1 << 20 };

struct call {
	struct answer a;
	struct buf line;
	struct event_base *base;
	struct evhttp_connection *to;
	int status;
	const char *failed;
	void (*on_end)(void *arg, struct answer *a);
	void *arg;
};

void answer_done(struct answer *a)
{
	free(a->pieces);
	buf_done(&a->text);
	*a = (struct answer){0};
}

static int add_piece(struct answer *a, int tokens, uint64_t now)
{
	if (a->first == 0) {
		a->first = a->last = now;
		a->first_tokens = tokens;
		return 0;
	}
	if ((a->n_pieces & (a->n_pieces + 1)) == 0) { /* 0, 1, 3, 7, ...: grow to the double */
		struct piece *grown = a->n_pieces < MAX_PIECES ? realloc(a->pieces, 2 * (a->n_pieces + 1) * sizeof *grown) : NULL;
		if (!grown)
			return -ENOMEM;
		a->pieces = grown;
	}
	a->pieces[a->n_pieces++] = (struct piece){(float)(now - a->last) / 1000.f, (uint16_t)tokens};
	a->last = now;
	return 0;
}

static int take_choice(struct answer *a, json_t *choice, uint64_t now)
{
	json_t *delta = json_object_get(choice, "delta"), *content = json_object_get(delta, "content"), *ids = json_object_get(choice, "token_ids");
	size_t n = json_string_length(content);
	int tokens = ids ? (int)json_array_size(ids) : n > 0;

	if (n > 0 && buf_append(&a->text, json_string_value(content), n) < 0)
		return -E2BIG;
	return tokens > 0 ? add_piece(a, tokens, now) : 0;
}

static int int_of(const json_t *j, const char *key)
{
	return (int)json_integer_value(json_object_get(j, key));
}

int answer_event(struct answer *a, const char *data, size_t n, uint64_t now)
{
	json_t *j, *usage, *choice;
	size_t at;
	int r = 0;

	if (n == 6 && memcmp(data, "[DONE]", 6) == 0) {
		a->ok = true;
		return 0;
	}
	j = json_loadb(data, n, 0, NULL);
	if (!j || json_object_get(j, "error"))
		r = -EINVAL;
	json_array_foreach(json_object_get(j, "choices"), at, choice)
		if (r == 0)
			r = take_choice(a, choice, now);
	usage = json_object_get(j, "usage");
	if (json_is_object(usage)) {
		json_t *ours = json_object_get(usage, "redraft");
		a->prompt_tokens = int_of(usage, "prompt_tokens");
		a->tokens = int_of(usage, "completion_tokens");
		a->rounds = int_of(ours, "rounds");
		a->proposed = int_of(ours, "proposed");
		a->accepted = int_of(ours, "accepted");
	}
	json_decref(j);
	return r;
}

/* Every whole line of c->line; the beginning of the next stays. */
static void take_lines(struct call *c, uint64_t now)
{
	size_t at = 0;
	uint8_t *end;

	while ((end = memchr(c->line.data + at, '\n', c->line.len - at))) {
		const char *line = (char *)c->line.data + at;
		size_t n = (size_t)(end - (c->line.data + at));
		at += n + 1;
		if (n && line[n - 1] == '\r')
			n--;
		if (n < 6 || memcmp(line, "data: ", 6) != 0)
			continue;
		if (answer_event(&c->a, line + 6, n - 6, now) < 0 && !c->failed)
			c->failed = "stream";
	}
	buf_consume(&c->line, at);
}

static void on_chunk(struct evhttp_request *req, void *arg)
{
	struct call *c = arg;
	struct evbuffer *in = evhttp_request_get_input_buffer(req);
	uint64_t now = clock_us();
	size_t n = evbuffer_get_length(in);

	if (evhttp_request_get_response_code(req) != 200 || buf_reserve(&c->line, n) < 0) {
		(void)evbuffer_drain(in, n);
		return;
	}
	(void)evbuffer_remove(in, c->line.data + c->line.len, n);
	c->line.len += n;
	take_lines(c, now);
}

static void on_error(enum evhttp_request_error why, void *arg)
{
	struct call *c = arg;

	c->failed = why == EVREQ_HTTP_TIMEOUT ? "timeout" : why == EVREQ_HTTP_EOF ? "closed" : "protocol";
}

/* evhttp frees no connection that failed by itself, and none may be freed from its own callback. */
static void free_connection(evutil_socket_t fd, short what, void *to)
{
	(void)fd;
	(void)what;
	evhttp_connection_free(to);
}

static void on_done(struct evhttp_request *req, void *arg)
{
	struct call *c = arg;
	struct answer *a = &c->a;

	a->done = clock_us();
	c->status = req ? evhttp_request_get_response_code(req) : 0;
	if (c->failed)
		(void)snprintf(a->error, sizeof a->error, "%s", c->failed);
	else if (c->status == 0)
		(void)snprintf(a->error, sizeof a->error, "connect");
	else if (c->status != 200)
		(void)snprintf(a->error, sizeof a->error, "http %d", c->status);
	else if (!a->ok)
		(void)snprintf(a->error, sizeof a->error, "no end");
	a->ok = !a->error[0];
	(void)event_base_once(c->base, -1, EV_TIMEOUT, free_connection, c->to, &(struct timeval){0, 0});
	c->on_end(c->arg, a);
	buf_done(&c->line);
	free(c);
}

static json_t *body_of(const struct request *q)
{
	json_t *body = json_pack("{s:i,s:f,s:b,s:{s:b},s:I}", "max_tokens", q->max_tokens, "temperature", q->temperature, "stream", 1,
				 "stream_options", "include_usage", 1, "seed", (json_int_t)(q->seed & 0x7fffffff));

	if (body && q->ignore_eos)
		json_object_set_new(body, "ignore_eos", json_true());
	if (body && q->token_ids)
		json_object_set_new(body, "return_token_ids", json_true());
	if (body && *q->to->model)
		json_object_set_new(body, "model", json_string(q->to->model));
	if (body)
		json_object_set_new(body, "messages", json_loads(q->messages, 0, NULL));
	return body;
}

static void set_headers(struct evkeyvalq *h, const struct request *q)
{
	char bearer[256];

	(void)evhttp_add_header(h, "Host", q->to->host);
	(void)evhttp_add_header(h, "Content-Type", "application/json");
	(void)evhttp_add_header(h, "Connection", "close");
	if (*q->domain)
		(void)evhttp_add_header(h, "X-Redraft-Domain", q->domain);
	if (!q->draft)
		(void)evhttp_add_header(h, "X-Redraft-Draft", "off");
	if (!q->trace)
		(void)evhttp_add_header(h, "X-Redraft-Trace", "off");
	if (*q->to->bearer) {
		(void)snprintf(bearer, sizeof bearer, "Bearer %s", q->to->bearer);
		(void)evhttp_add_header(h, "Authorization", bearer);
	}
}

int call_start(struct event_base *base, const struct request *q, void (*on_end)(void *arg, struct answer *a), void *arg)
{
	struct call *c = calloc(1, sizeof *c);
	struct evhttp_connection *to = evhttp_connection_base_new(base, NULL, q->to->host, q->to->port);
	struct evhttp_request *req = c && to ? evhttp_request_new(on_done, c) : NULL;
	json_t *body = req ? body_of(q) : NULL;
	char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;

	json_decref(body);
	if (!text || evbuffer_add(evhttp_request_get_output_buffer(req), text, strlen(text)) < 0) {
		free(text);
		if (req)
			evhttp_request_free(req);
		if (to)
			evhttp_connection_free(to);
		free(c);
		return -ENOMEM;
	}
	free(text);
	c->base = base;
	c->to = to;
	c->on_end = on_end;
	c->arg = arg;
	c->line = BUF_INIT(MAX_EVENT);
	c->a.text = BUF_INIT(MAX_EVENT);
	evhttp_connection_set_timeout(to, q->to->timeout_s);
	evhttp_connection_set_max_body_size(to, MAX_REPLY);
	evhttp_request_set_chunked_cb(req, on_chunk);
	evhttp_request_set_error_cb(req, on_error);
	set_headers(evhttp_request_get_output_headers(req), q);
	c->a.sent = clock_us();
	if (evhttp_make_request(to, req, EVHTTP_REQ_POST, "/v1/chat/completions") == 0)
		return 0;
	evhttp_connection_free(to);
	free(c);
	return -EIO;
}
