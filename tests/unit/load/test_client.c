/* What an answer's events are taken to say: when the first token came, how many tokens a piece carried, what usage
 * counts, what an error is; and that one client against a small server of libevent's measures the gaps that were slept. */
#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "tests/bench/load/client.h"

static int event(struct answer *a, const char *text, uint64_t now)
{
	return answer_event(a, text, strlen(text), now);
}

static void test_events(void **state)
{
	struct answer a = {.text = BUF_INIT(1 << 16)};

	(void)state;
	assert_int_equal(event(&a, "{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}", 1000), 0);
	assert_int_equal(a.first, 0); /* a role is no token */
	assert_int_equal(event(&a, "{\"choices\":[{\"delta\":{\"content\":\"Hel\"},\"token_ids\":[4,5]}]}", 2000), 0);
	assert_int_equal(event(&a, "{\"choices\":[{\"delta\":{\"content\":\"\"},\"token_ids\":[6]}]}", 3500), 0); /* half a character */
	assert_int_equal(event(&a, "{\"choices\":[{\"delta\":{\"content\":\"lo\"},\"token_ids\":[7,8,9]}]}", 9500), 0);
	assert_int_equal(event(&a, "{\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}", 9600), 0);
	assert_int_equal(event(&a, "{\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":6,\"redraft\":{\"rounds\":3,\"proposed\":9,\"accepted\":2}}}", 9700), 0);
	assert_false(a.ok);
	assert_int_equal(event(&a, "[DONE]", 9800), 0);
	assert_true(a.ok);
	assert_int_equal(a.first, 2000);
	assert_int_equal(a.last, 9500);
	assert_int_equal(a.first_tokens, 2);
	assert_int_equal(a.n_pieces, 2);
	assert_true(fabsf(a.pieces[0].ms - 1.5f) <= 1e-6f && a.pieces[0].tokens == 1);
	assert_true(fabsf(a.pieces[1].ms - 6.f) <= 1e-6f && a.pieces[1].tokens == 3);
	assert_int_equal(a.tokens, 6);
	assert_int_equal(a.accepted, 2);
	assert_int_equal(a.text.len, 5);
	assert_memory_equal(a.text.data, "Hello", 5);
	answer_done(&a);
}

static void test_bad_events(void **state)
{
	struct answer a = {0};

	(void)state;
	assert_true(event(&a, "{\"error\":{\"message\":\"no\"}}", 1) < 0);
	assert_true(event(&a, "nonsense", 1) < 0);
	assert_int_equal(event(&a, "{}", 1), 0);
	answer_done(&a);
}

/* A server that sends three pieces 20 ms apart, the middle one split over two chunks; path of errors by max_tokens. */
struct reply {
	struct evhttp_request *req;
	struct event *timer;
	int n;
};

static void send_text(struct evhttp_request *req, const char *text)
{
	struct evbuffer *b = evbuffer_new();

	(void)evbuffer_add(b, text, strlen(text));
	evhttp_send_reply_chunk(req, b);
	evbuffer_free(b);
}

static void next_piece(evutil_socket_t fd, short what, void *arg)
{
	struct reply *r = arg;
	struct timeval tv = {0, 20000};

	(void)fd;
	(void)what;
	if (r->n == 1) {
		send_text(r->req, "data: {\"choices\":[{\"delta\":");
		send_text(r->req, "{\"content\":\"b\"}}]}\n\n");
	} else {
		send_text(r->req, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\r\n\r\n");
	}
	if (++r->n < 3) {
		(void)evtimer_add(r->timer, &tv);
		return;
	}
	send_text(r->req, "data: {\"choices\":[],\"usage\":{\"completion_tokens\":3}}\n\ndata: [DONE]\n\n");
	evhttp_send_reply_end(r->req);
	event_free(r->timer);
	free(r);
}

static void serve(struct evhttp_request *req, void *arg)
{
	struct evbuffer *in = evhttp_request_get_input_buffer(req);
	struct evbuffer_ptr fail = evbuffer_search(in, "\"max_tokens\":7", 14, NULL);
	struct reply *r;
	struct timeval tv = {0, 20000};

	if (fail.pos >= 0) {
		evhttp_send_error(req, 429, "busy");
		return;
	}
	r = calloc(1, sizeof *r);
	r->req = req;
	r->timer = evtimer_new(arg, next_piece, r);
	evhttp_send_reply_start(req, 200, "OK");
	(void)evtimer_add(r->timer, &tv);
}

struct waiting {
	struct event_base *base;
	struct answer a;
	int ended;
};

static void ended(void *arg, struct answer *a)
{
	struct waiting *w = arg;

	w->a = *a;
	w->ended++;
	(void)event_base_loopbreak(w->base);
}

static struct answer ask(struct event_base *base, uint16_t port, int max_tokens)
{
	struct target to = {"127.0.0.1", port, 5, "", ""};
	struct request q = {.to = &to, .messages = "[]", .domain = "", .max_tokens = max_tokens, .draft = true, .trace = true};
	struct waiting w = {.base = base};

	assert_int_equal(call_start(base, &q, ended, &w), 0);
	(void)event_base_dispatch(base);
	assert_int_equal(w.ended, 1);
	return w.a;
}

static void test_against_a_server(void **state)
{
	struct event_base *base = event_base_new();
	struct evhttp *http = evhttp_new(base);
	struct evhttp_bound_socket *s = evhttp_bind_socket_with_handle(http, "127.0.0.1", 0);
	struct sockaddr_storage at;
	socklen_t len = sizeof at;
	struct answer a;
	uint16_t port;

	(void)state;
	assert_non_null(s);
	assert_int_equal(getsockname(evhttp_bound_socket_get_fd(s), (struct sockaddr *)&at, &len), 0);
	port = (uint16_t)((((uint8_t *)&at)[2] << 8) | ((uint8_t *)&at)[3]);
	evhttp_set_gencb(http, serve, base);
	a = ask(base, port, 3);
	assert_string_equal(a.error, "");
	assert_true(a.ok && a.tokens == 3 && a.n_pieces == 2);
	/* how long each took is the machine's affair; that the parts make up the whole is not (test_events has exact times) */
	assert_true(a.first > a.sent && a.last > a.first);
	assert_true(a.pieces[0].ms >= 0 && a.pieces[1].ms >= 0 && fabsf(a.pieces[0].ms + a.pieces[1].ms - (float)(a.last - a.first) / 1000) <= 0.01f);
	answer_done(&a);
	a = ask(base, port, 7);
	assert_string_equal(a.error, "http 429");
	answer_done(&a);
	evhttp_free(http);
	a = ask(base, port, 3); /* nobody listens */
	assert_false(a.ok);
	assert_true(*a.error);
	answer_done(&a);
	(void)event_base_loop(base, EVLOOP_NONBLOCK); /* connections are freed from the loop */
	event_base_free(base);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_events),
		cmocka_unit_test(test_bad_events),
		cmocka_unit_test(test_against_a_server),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
