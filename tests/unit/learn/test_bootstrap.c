/* A question is a function of (seed, number): the same bytes again, others for other numbers; it is what the template
 * and the kinds promise; a function list is JSON that names what the request asks for. And the client that asks:
 * a good answer comes back whole, every bad one is a reason, and nothing a server says makes it wait or grow for ever. */
#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>
#include "tests/unit/learn/toyworld.h"
#include "learn/ask.h"
#include "learn/bootstrap.h"

static bool same(const struct buf *a, const struct buf *b)
{
	return a->len == b->len && (!a->len || memcmp(a->data, b->data, a->len) == 0);
}

static void test_questions(void **state)
{
	int tools = 0, code = 0, chat = 0, alike = 0;
	struct bootstrap_question before = {0};
	(void)state;
	for (uint64_t i = 0; i < 400; i++) {
		struct bootstrap_question a = {0}, b = {0};
		assert_int_equal(bootstrap_question(BOOTSTRAP_SMOLLM2, 3, i, &a), 0);
		assert_int_equal(bootstrap_question(BOOTSTRAP_SMOLLM2, 3, i, &b), 0);
		assert_true(same(&a.prefix, &b.prefix) && a.seed == b.seed && a.write_tokens == b.write_tokens);
		alike += same(&a.prefix, &before.prefix);
		tools += strcmp(a.domain, "tools") == 0;
		code += strcmp(a.domain, "code") == 0;
		chat += strcmp(a.domain, "chat") == 0;
		assert_true(a.answer_tokens > 0 && (a.write_tokens > 0 || a.opening.len > 0));
		assert_non_null(memmem(a.prefix.data, a.prefix.len, "<|im_start|>user\n", 17));
		assert_memory_equal(a.prefix.data, "<|im_start|>system\n", 19);
		if (a.system.len) {
			const char *list = memmem(a.system.data, a.system.len, "JSON:\n", 6);
			assert_non_null(list);
			json_t *j = json_loadb(list + 6, a.system.len - (size_t)(list + 6 - (const char *)a.system.data), 0, NULL), *f;
			size_t k;
			assert_true(json_array_size(j) >= 1);
			json_array_foreach(j, k, f) {
				assert_true(json_is_string(json_object_get(f, "name")) && !strchr(json_string_value(json_object_get(f, "name")), ' '));
				json_t *p = json_object_get(f, "parameters"), *name;
				size_t n;
				json_array_foreach(json_object_get(p, "required"), n, name)
					assert_non_null(json_object_get(json_object_get(p, "properties"), json_string_value(name)));
			}
			json_decref(j);
		}
		bootstrap_done(&before);
		before = a;
		bootstrap_done(&b);
	}
	bootstrap_done(&before);
	assert_true(tools > 100 && code > 90 && chat > 60);
	assert_true(alike < 40);
}

static void test_whole(void **state)
{
	struct bootstrap_question q = {.opening = BUF_INIT(0)};
	struct buf b = BUF_INIT(0);
	(void)state;
	assert_int_equal(buf_puts(&q.opening, "Fix.\n```python\ndef"), 0);
	assert_int_equal(bootstrap_whole(&q, " f():\n    pass", &b), 0);
	assert_int_equal(b.len, strlen("Fix.\n```python\ndef f():\n    pass\n```"));
	buf_clear(&b);
	assert_int_equal(bootstrap_whole(&q, " f(): pass\n```\nWhy?", &b), 0); /* closed already */
	assert_int_equal(b.len, strlen("Fix.\n```python\ndef f(): pass\n```\nWhy?"));
	buf_done(&b);
	bootstrap_done(&q);
}

/* One connection: reads the request, sends `say`, closes. */
struct peer {
	int fd;
	const char *say;
	size_t fill; /* this many more bytes of 'x' */
	char heard[4096];
};

static void *serve(void *arg)
{
	struct peer *p = arg;
	int c = accept(p->fd, NULL, NULL);
	ssize_t n = recv(c, p->heard, sizeof p->heard - 1, 0);
	(void)n;
	(void)send(c, p->say, strlen(p->say), MSG_NOSIGNAL);
	char x[4096];
	memset(x, 'x', sizeof x);
	for (size_t left = p->fill; left && send(c, x, sizeof x, MSG_NOSIGNAL) > 0; left -= left < sizeof x ? left : sizeof x)
		;
	(void)close(c);
	return NULL;
}

static int talk(const char *say, size_t fill, json_t **ret, struct errtext *e, char heard[4096])
{
	struct peer p = {.say = say, .fill = fill};
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof a;
	pthread_t t;
	char url[64];
	struct ask_server s;
	json_t *body = json_pack("{s:i}", "n", 1);
	p.fd = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(bind(p.fd, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(listen(p.fd, 1), 0);
	assert_int_equal(getsockname(p.fd, (struct sockaddr *)&a, &len), 0);
	assert_int_equal(pthread_create(&t, NULL, serve, &p), 0);
	(void)snprintf(url, sizeof url, "http://127.0.0.1:%d/", ntohs(a.sin_port));
	assert_int_equal(ask_parse(url, &s, e), 0);
	int r = ask_post(&s, "/v1/x", "X-A: b\r\n", body, 10, ret, e);
	assert_int_equal(pthread_join(t, NULL), 0);
	(void)close(p.fd);
	json_decref(body);
	if (heard)
		memcpy(heard, p.heard, sizeof p.heard);
	return r;
}

static void test_ask(void **state)
{
	struct errtext e = {""};
	json_t *j = NULL;
	char heard[4096];
	struct ask_server s;
	(void)state;
	assert_int_equal(talk("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{\"a\": 5}", 0, &j, &e, heard), 0);
	assert_int_equal(json_integer_value(json_object_get(j, "a")), 5);
	json_decref(j);
	assert_non_null(strstr(heard, "POST /v1/x HTTP/1.1\r\n"));
	assert_non_null(strstr(heard, "\r\nX-A: b\r\n\r\n{\"n\":1}"));
	assert_int_equal(talk("HTTP/1.1 200 OK\r\n\r\n{\"a\": 6}", 0, &j, &e, NULL), 0); /* ends at the close */
	json_decref(j);
	assert_int_equal(talk("HTTP/1.1 429 Busy\r\nContent-Length: 2\r\n\r\n{}", 0, &j, &e, NULL), ASK_E_BUSY);
	assert_int_equal(talk("HTTP/1.1 400 Bad\r\n\r\n{\"error\": {\"message\": \"no such model\"}}", 0, &j, &e, NULL), -EIO);
	assert_non_null(strstr(e.text, "no such model"));
	assert_int_equal(talk("nonsense", 0, &j, &e, NULL), -EIO);
	assert_int_equal(talk("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{\"a\":", 0, &j, &e, NULL), -EIO); /* cut off */
	assert_int_equal(talk("HTTP/1.1 200 OK\r\n\r\n", 64u << 20, &j, &e, NULL), -E2BIG);
	assert_int_equal(talk("", 0, &j, &e, NULL), -ECONNRESET);
	assert_int_equal(ask_parse("https://a:1", &s, &e), -EINVAL);
	assert_int_equal(ask_parse("http://", &s, &e), -EINVAL);
	assert_int_equal(ask_parse("localhost", &s, &e), -EINVAL);
	assert_int_equal(ask_parse("localhost:8080", &s, &e), 0);
	assert_string_equal(s.port, "8080");
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_questions), cmocka_unit_test(test_whole), cmocka_unit_test(test_ask)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
