/* The API behind real sockets, in front of the engine that answers from a script: set-up and a small client.
 * Each test file has its own server. */
#pragma once
#include <arpa/inet.h>
#include <sys/socket.h>
#include "daemon/base/loop.h"
#include "daemon/base/metrics.h"
#include "serve/chat.h"
#include "serve/http.h"
#include "serve/openai_live.h"
#include "tests/unit/serve/fake_engine.h"
#include "tests/unit/serve/vectors.h"

static struct {
	struct tokenizer *tokenizer;
	struct loop *loop;
	struct metrics *metrics;
	struct openai *openai;
	struct http *http;
	struct openai_model model;
	pthread_t thread;
	uint32_t byte_id[256];
	uint32_t script[4096];
} t;

static inline void *run_loop(void *arg)
{
	(void)arg;
	(void)loop_run(t.loop);
	return NULL;
}

static bool api_loads_late; /* the test itself opens the API */

static inline int api_setup(void **state)
{
	struct openai_options o = {.domains = "tools,code", .tenant_key = "0123456789abcdef0123456789abcde"};
	struct http_options h = {.listen = "127.0.0.1:0", .max_body = 1 << 16, .max_headers = 4096, .max_bodies = 1 << 20, .handle = openai_handle,
				 .refusal = openai_refusal};
	const struct chat_template *chat;
	struct errtext e = {""};

	(void)state;
	t.tokenizer = toy_tokenizer();
	memset(t.byte_id, 0xff, sizeof t.byte_id);
	for (uint32_t i = 0; i < tokenizer_vocab(t.tokenizer); i++) {
		size_t n;
		const char *p = tokenizer_token(t.tokenizer, i, &n);
		if (n == 1)
			t.byte_id[(uint8_t)*p] = i;
	}
	if (chat_select(NULL, 0, "chatml", &chat, &e) < 0 || loop_new(&t.loop) < 0)
		return -1;
	t.metrics = metrics_new();
	o.loop = t.loop;
	o.metrics = t.metrics;
	o.model_name = "org/toy";
	t.model = (struct openai_model){t.tokenizer, chat, "org/toy", 4 << 20};
	if (openai_new(&o, &t.openai, &e) < 0)
		return -1;
	if (!api_loads_late)
		openai_open(t.openai, &fake_calls, NULL, NULL, &t.model);
	h.ctx = t.openai;
	if (http_new(t.loop, &h, &t.http, &e) < 0)
		return -1;
	fake_reset();
	return pthread_create(&t.thread, NULL, run_loop, NULL);
}

static inline void stop_loop(void *arg)
{
	(void)arg;
	loop_stop(t.loop);
}

static inline int api_teardown(void **state)
{
	(void)state;
	fake_reset();
	if (loop_post(t.loop, stop_loop, NULL) < 0)
		return -1;
	pthread_join(t.thread, NULL);
	http_free(t.http);
	openai_free(t.openai);
	loop_free(t.loop);
	metrics_free(t.metrics);
	tokenizer_free(t.tokenizer);
	return 0;
}

/* --- client --- */

static inline int dial(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)http_port(t.http)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct timeval limit = {20, 0};
	int fd = socket(AF_INET, SOCK_STREAM, 0), small = 4096;

	(void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	(void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
	assert_int_equal(0, connect(fd, (struct sockaddr *)&a, sizeof a));
	return fd;
}

static inline void ask(int fd, const char *method, const char *path, const char *headers, const char *body)
{
	char *text = NULL;
	int n = asprintf(&text, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%sContent-Length: %zu\r\n\r\n%s", method, path, headers,
			 strlen(body), body);

	assert_int_equal(n, send(fd, text, (size_t)n, MSG_NOSIGNAL));
	free(text);
}

struct answer {
	int status;
	char *head, *body; /* body unchunked */
};

static inline void unchunk(char *p)
{
	char *out = p;

	for (;;) {
		char *end;
		size_t n = strtoul(p, &end, 16);
		if (n == 0 || strncmp(end, "\r\n", 2) != 0)
			break;
		memmove(out, end + 2, n);
		out += n;
		p = end + 2 + n + 2;
	}
	*out = 0;
}

static inline struct answer hear(int fd)
{
	size_t cap = 1 << 22, n = 0;
	char *text = malloc(cap + 1);
	struct answer a = {0, NULL, NULL};
	ssize_t got;

	while (n < cap && (got = recv(fd, text + n, cap - n, 0)) > 0)
		n += (size_t)got;
	text[n] = 0;
	close(fd);
	a.head = text;
	a.body = strstr(text, "\r\n\r\n");
	assert_non_null(a.body);
	*a.body = 0;
	a.body += 4;
	assert_int_equal(1, sscanf(text, "HTTP/1.1 %d", &a.status));
	if (strstr(text, "Transfer-Encoding: chunked"))
		unchunk(a.body);
	return a;
}

static inline struct answer call_with(const char *method, const char *path, const char *headers, const char *body)
{
	int fd = dial();

	ask(fd, method, path, headers, body);
	return hear(fd);
}

static inline struct answer post(const char *path, const char *body)
{
	return call_with("POST", path, "", body);
}

static inline json_t *parsed(struct answer a)
{
	json_t *j = json_loads(a.body, 0, NULL);

	if (!j)
		fail_msg("not JSON: %s", a.body);
	free(a.head);
	return j;
}

static inline void say(const char *text)
{
	fake.n_ids = 0;
	for (; *text; text++) {
		assert_int_not_equal(UINT32_MAX, t.byte_id[(uint8_t)*text]);
		t.script[fake.n_ids++] = t.byte_id[(uint8_t)*text];
	}
	fake.ids = t.script;
}

/* Walks a stream: text of choice 0 into out; number of data lines, or fails. */
static inline int walk(const char *body, char *out, char *reason, json_t **ret_usage)
{
	const char *p = body;
	int n = 0;

	*out = *reason = 0;
	while (*p) {
		const char *end = strstr(p, "\n\n");
		json_t *j, *c;
		const char *s;
		assert_non_null(end);
		assert_int_equal(0, strncmp(p, "data: ", 6));
		n++;
		if (strncmp(p, "data: [DONE]\n\n", 14) == 0) {
			assert_int_equal(0, p[14]);
			return n;
		}
		j = json_loadb(p + 6, (size_t)(end - p - 6), 0, NULL);
		assert_non_null(j);
		c = json_array_get(json_object_get(j, "choices"), 0);
		s = json_string_value(json_object_get(json_object_get(c, "delta"), "content"));
		if (!s)
			s = json_string_value(json_object_get(c, "text"));
		strcat(out, s ? s : "");
		s = json_string_value(json_object_get(c, "finish_reason"));
		strcat(reason, s ? s : "");
		if (ret_usage && json_object_get(j, "usage")) {
			assert_int_equal(0, json_array_size(json_object_get(j, "choices")));
			*ret_usage = json_incref(json_object_get(j, "usage"));
		}
		json_decref(j);
		p = end + 2;
	}
	fail_msg("no [DONE] at the end of: %s", body);
	return n;
}

__attribute__((unused)) static const char CHAT[] = "/v1/chat/completions";
#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"

static const char *text_at(const json_t *j, int i)
{
	return json_string_value(json_object_get(json_object_get(json_array_get(json_object_get(j, "choices"), (size_t)i), "message"), "content"));
}

static const char *reason_at(const json_t *j, int i)
{
	return json_string_value(json_object_get(json_array_get(json_object_get(j, "choices"), (size_t)i), "finish_reason"));
}
