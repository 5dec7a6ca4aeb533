/* The API as clients see it, over real sockets, in front of an engine that answers
 * from a script (fake_engine.h).
 *
 * Whole replies and streams have the documented form and say the same; a stream holds no
 * line but data lines and ends in [DONE]; characters and stop strings that cross tokens;
 * n choices with their random streams; a client that hangs up, or reads too slowly,
 * cancels its request; a full queue is 429; engine errors before and in a stream; bad
 * requests name their field; labels (conversation, domain, tenant, opt-outs); the small
 * endpoints; draining.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "tests/unit/serve/api.h"

/* --- tests --- */

static void test_whole_reply(void **state)
{
	struct answer a;
	json_t *j, *u, *r;

	(void)state;
	fake_reset();
	say("Paris.");
	a = call_with("POST", CHAT, "X-Request-Id: abc-1\r\n",
		      "{" HI ",\"model\":\"org/toy\",\"temperature\":0.5,\"top_p\":0.9,\"top_k\":5,\"seed\":-3,\"max_tokens\":9,\"extra\":1}");
	assert_int_equal(200, a.status);
	assert_non_null(strstr(a.head, "X-Request-Id: abc-1"));
	assert_non_null(strstr(a.head, "Content-Type: application/json"));
	j = parsed(a);
	assert_string_equal("chat.completion", json_string_value(json_object_get(j, "object")));
	assert_string_equal("Paris.", text_at(j, 0));
	assert_string_equal("stop", reason_at(j, 0));
	u = json_object_get(j, "usage");
	r = json_object_get(u, "redraft");
	assert_int_equal(6, json_integer_value(json_object_get(u, "completion_tokens")));
	assert_int_equal(json_integer_value(json_object_get(u, "total_tokens")), 6 + json_integer_value(json_object_get(u, "prompt_tokens")));
	assert_int_equal(7, json_integer_value(json_array_get(json_object_get(r, "versions"), 0)));
	assert_int_equal(4, json_integer_value(json_object_get(r, "rounds")));
	assert_int_equal(6, json_integer_value(json_object_get(r, "proposed")));
	assert_int_equal(3, json_integer_value(json_object_get(r, "accepted")));
	json_decref(j);
	assert_int_equal(9, fake.got[0].max_tokens);
	assert_true(fake.got[0].sampling.temperature == 0.5f && fake.got[0].sampling.top_p == 0.9f && fake.got[0].sampling.top_k == 5);
	assert_true(fake.got[0].sampling.seed == (uint64_t)-3);
	assert_int_equal(0, atomic_load(&fake.n_cancelled));
}

static void test_defaults(void **state)
{
	json_t *j;

	(void)state;
	fake_reset();
	say("x");
	j = parsed(post(CHAT, "{" HI "}"));
	json_decref(j);
	j = parsed(post(CHAT, "{" HI ",\"max_completion_tokens\":5,\"temperature\":null,\"stop\":null,\"logprobs\":false,\"logit_bias\":{}}"));
	json_decref(j);
	assert_true(fake.got[0].sampling.temperature == 1 && fake.got[0].sampling.top_p == 1 && fake.got[0].sampling.top_k == 0);
	assert_true(fake.got[0].max_tokens > 1000000);
	assert_true(fake.got[0].sampling.seed != fake.got[1].sampling.seed);
	assert_int_equal(5, fake.got[1].max_tokens);
	assert_true(fake.got[1].sampling.temperature == 1);
}

static void test_stream_says_the_same(void **state)
{
	char text[256], reason[64];
	json_t *usage = NULL;
	struct answer a;

	(void)state;
	fake_reset();
	fake.pause_us = 500;
	say("na\xc3\xafve \xf0\x9f\x98\x80 \xe4\xbd\xa0!");
	a = post(CHAT, "{" HI ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
	assert_int_equal(200, a.status);
	assert_non_null(strstr(a.head, "Content-Type: text/event-stream"));
	assert_non_null(strstr(a.body, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}"));
	assert_true(walk(a.body, text, reason, &usage) >= 4);
	assert_string_equal("na\xc3\xafve \xf0\x9f\x98\x80 \xe4\xbd\xa0!", text);
	assert_string_equal("stop", reason);
	assert_int_equal(strlen(text), json_integer_value(json_object_get(usage, "completion_tokens")));
	json_decref(usage);
	free(a.head);
	a = post("/v1/completions", "{\"prompt\":\"Hi\",\"stream\":true}");
	usage = NULL;
	(void)walk(a.body, text, reason, &usage);
	assert_string_equal("na\xc3\xafve \xf0\x9f\x98\x80 \xe4\xbd\xa0!", text);
	assert_null(usage); /* not asked for: no such chunk */
	assert_non_null(strstr(a.body, "\"object\":\"text_completion\""));
	free(a.head);
}

static void test_stop_strings(void **state)
{
	char text[256], reason[64];
	struct answer a;
	json_t *j;

	(void)state;
	fake_reset();
	fake.hold = true;
	say("one two END three");
	j = parsed(post(CHAT, "{" HI ",\"stop\":[\"zzz\",\" END\"]}"));
	assert_string_equal("one two", text_at(j, 0));
	assert_string_equal("stop", reason_at(j, 0));
	assert_int_equal(11, json_integer_value(json_object_get(json_object_get(j, "usage"), "completion_tokens")));
	json_decref(j);
	assert_int_equal(1, atomic_load(&fake.n_cancelled));
	fake_reset();
	fake.hold = true;
	fake.pause_us = 500;
	a = post(CHAT, "{" HI ",\"stream\":true,\"stop\":\" END\"}");
	(void)walk(a.body, text, reason, NULL);
	assert_string_equal("one two", text);
	assert_string_equal("stop", reason);
	free(a.head);
}

static void test_length_and_choices(void **state)
{
	json_t *j;

	(void)state;
	fake_reset();
	fake.why = FINISH_LENGTH;
	say("abc");
	j = parsed(post(CHAT, "{" HI ",\"n\":3,\"seed\":5}"));
	assert_int_equal(3, json_array_size(json_object_get(j, "choices")));
	for (int i = 0; i < 3; i++) {
		assert_string_equal("abc", text_at(j, i));
		assert_string_equal("length", reason_at(j, i));
		assert_int_equal(i, fake.got[i].sampling.choice);
		assert_int_equal(5, fake.got[i].sampling.seed);
	}
	assert_int_equal(9, json_integer_value(json_object_get(json_object_get(j, "usage"), "completion_tokens")));
	assert_string_not_equal(fake.got[0].request_id, fake.got[1].request_id);
	json_decref(j);
	fake_reset();
	j = parsed(post("/v1/completions", "{\"prompt\":[\"a\",[1,2,3]],\"n\":2,\"return_token_ids\":true}"));
	assert_int_equal(4, json_array_size(json_object_get(j, "choices")));
	for (int i = 0; i < 4; i++)
		assert_int_equal(i % 2, fake.got[i].sampling.choice);
	assert_int_equal(3, fake.got[3].n_prompt);
	assert_int_equal(3, json_array_size(json_object_get(json_array_get(json_object_get(j, "choices"), 3), "prompt_token_ids")));
	assert_int_equal(3, json_array_size(json_object_get(json_array_get(json_object_get(j, "choices"), 3), "token_ids")));
	json_decref(j);
}

static void wait_for(const atomic_int *what, int least)
{
	for (int i = 0; i < 10000 && atomic_load(what) < least; i++)
		usleep(1000);
	assert_true(atomic_load(what) >= least);
}

static void test_hanging_up_cancels(void **state)
{
	int fd;

	(void)state;
	for (int stream = 0; stream < 2; stream++) {
		fake_reset();
		fake.hold = true;
		say("abc");
		fd = dial();
		ask(fd, "POST", CHAT, "", stream ? "{" HI ",\"stream\":true,\"n\":2}" : "{" HI ",\"n\":2}");
		wait_for(&fake.n, 2);
		usleep(20000);
		assert_int_equal(0, atomic_load(&fake.n_cancelled));
		close(fd);
		wait_for(&fake.n_cancelled, 2);
	}
}

static void test_a_slow_reader_is_cut(void **state)
{
	static uint32_t many[1 << 20];
	int fd = dial();

	(void)state;
	fake_reset();
	for (size_t i = 0; i < 1 << 20; i++)
		many[i] = t.byte_id['a'];
	fake.ids = many;
	fake.n_ids = 1 << 20;
	fake.group = 256;
	fake.pause_us = 50;
	fake.hold = true;
	ask(fd, "POST", CHAT, "", "{" HI ",\"stream\":true,\"return_token_ids\":true}");
	wait_for(&fake.n_cancelled, 1); /* without a byte read */
	close(fd);
}

/* What is there at once, because it was asked for at that length, is not held against who reads it: 1.9 MB, of which each choice has the prompt's ids or text. */
static void test_a_long_opening_cuts_nobody(void **state)
{
	enum { N = 30000 };
	char *body = malloc(2 * N + 200);

	(void)state;
	for (int echo = 0; echo < 2; echo++) {
		struct answer a;
		size_t n = (size_t)sprintf(body, "{\"stream\":true,\"n\":32,\"%s\":true,\"prompt\":%s", echo ? "echo" : "return_token_ids", echo ? "\"" : "[");
		for (int i = 0; i < N; i++, n += 2)
			memcpy(body + n, echo ? "aa" : i ? ",1" : " 1", 2);
		(void)sprintf(body + n, "%s}", echo ? "\"" : "]");
		fake_reset();
		say("abc");
		a = post("/v1/completions", body);
		assert_int_equal(200, a.status);
		assert_true(strlen(a.body) > 32 * 2 * N);
		assert_non_null(strstr(a.body, "data: [DONE]"));
		assert_int_equal(0, atomic_load(&fake.n_cancelled));
		free(a.head);
	}
	free(body);
}

static void test_queue_full(void **state)
{
	struct answer a;

	(void)state;
	fake_reset();
	fake.accept = 2;
	fake.hold = true;
	say("abc");
	a = post(CHAT, "{" HI ",\"n\":3}");
	assert_int_equal(429, a.status);
	assert_non_null(strstr(a.head, "Retry-After: "));
	assert_non_null(strstr(a.body, "\"code\":\"queue_full\""));
	free(a.head);
	wait_for(&fake.n_cancelled, 2); /* those that had got in */
}

static void test_engine_errors(void **state)
{
	struct answer a;

	(void)state;
	fake_reset();
	say("");
	fake.why = FINISH_ERROR;
	fake.error = "the model could not be run";
	for (int stream = 0; stream < 2; stream++) {
		a = post(CHAT, stream ? "{" HI ",\"stream\":true}" : "{" HI "}");
		assert_int_equal(500, a.status);
		assert_non_null(strstr(a.body, "the model could not be run"));
		free(a.head);
	}
	fake_reset();
	fake.pause_us = 5000;
	fake.why = FINISH_ERROR;
	fake.error = "the model could not be run";
	say("abc");
	a = post(CHAT, "{" HI ",\"stream\":true}");
	assert_int_equal(200, a.status);
	assert_non_null(strstr(a.body, "data: {\"error\":{\"message\":\"the model could not be run\""));
	assert_string_equal("data: [DONE]\n\n", a.body + strlen(a.body) - 14);
	free(a.head);
}

static void test_bad_requests(void **state)
{
	static const struct {
		const char *path, *body;
		int status;
		const char *param; /* NULL = null */
	} cases[] = {
		{CHAT, "", 400, NULL},
		{CHAT, "{", 400, NULL},
		{CHAT, "[]", 400, NULL},
		{CHAT, "{\"a\":1,\"a\":2}", 400, NULL},
		{CHAT, "{\"x\":\"\xff\"}", 400, NULL},
		{CHAT, "{}", 400, "messages"},
		{CHAT, "{\"messages\":[{\"role\":\"robot\",\"content\":\"x\"}]}", 400, "messages"},
		{CHAT, "{" HI ",\"model\":\"gpt-4\"}", 404, "model"},
		{CHAT, "{" HI ",\"model\":4}", 400, "model"},
		{CHAT, "{" HI ",\"temperature\":\"hot\"}", 400, "temperature"},
		{CHAT, "{" HI ",\"temperature\":2.5}", 400, "temperature"},
		{CHAT, "{" HI ",\"top_p\":0}", 400, "top_p"},
		{CHAT, "{" HI ",\"top_p\":-0.1}", 400, "top_p"},
		{CHAT, "{" HI ",\"top_k\":1.5}", 400, "top_k"},
		{CHAT, "{" HI ",\"min_p\":2}", 400, "min_p"},
		{CHAT, "{" HI ",\"seed\":\"a\"}", 400, "seed"},
		{CHAT, "{" HI ",\"max_tokens\":0}", 400, "max_tokens"},
		{CHAT, "{" HI ",\"max_completion_tokens\":-1}", 400, "max_completion_tokens"},
		{CHAT, "{" HI ",\"n\":33}", 400, "n"},
		{CHAT, "{" HI ",\"n\":1000000000000000000000}", 400, NULL},
		{CHAT, "{" HI ",\"max_tokens\":3,\"max_completion_tokens\":5}", 400, "max_tokens"},
		{CHAT, "{" HI ",\"n\":true}", 400, "n"},
		{CHAT, "{" HI ",\"min_tokens\":-1}", 400, "min_tokens"},
		{CHAT, "{" HI ",\"min_tokens\":4,\"max_tokens\":3}", 400, "min_tokens"},
		{"/v1/completions", "{\"prompt\":\"a\",\"min_tokens\":17}", 400, "min_tokens"},
		{CHAT, "{" HI ",\"min_tokens\":2000000000}", 400, "messages"},
		{CHAT, "{" HI ",\"stop_token_ids\":[600]}", 400, "stop_token_ids"},
		{CHAT, "{" HI ",\"stop_token_ids\":[\"a\"]}", 400, "stop_token_ids"},
		{CHAT, "{" HI ",\"stop_token_ids\":7}", 400, "stop_token_ids"},
		{CHAT, "{" HI ",\"best_of\":2}", 400, "best_of"},
		{CHAT, "{" HI ",\"stop\":\"\"}", 400, "stop"},
		{CHAT, "{" HI ",\"stop\":[1]}", 400, "stop"},
		{CHAT, "{" HI ",\"stop\":\"a\\u0000\"}", 400, "stop"},
		{CHAT, "{" HI ",\"stream\":1}", 400, "stream"},
		{CHAT, "{" HI ",\"stream_options\":1}", 400, "stream_options"},
		{CHAT, "{" HI ",\"stream_options\":{\"include_usage\":true}}", 400, "stream_options"},
		{CHAT, "{" HI ",\"logprobs\":2}", 400, "logprobs"},
		{CHAT, "{" HI ",\"top_logprobs\":2}", 400, "top_logprobs"},
		{CHAT, "{" HI ",\"logprobs\":true,\"top_logprobs\":21}", 400, "top_logprobs"},
		{CHAT, "{" HI ",\"logit_bias\":{\"600\":1}}", 400, "logit_bias"},
		{CHAT, "{" HI ",\"logit_bias\":{\"-1\":1}}", 400, "logit_bias"},
		{CHAT, "{" HI ",\"logit_bias\":{\"5\":101}}", 400, "logit_bias"},
		{CHAT, "{" HI ",\"logit_bias\":{\"5\":1,\"05\":2}}", 400, "logit_bias"},
		{CHAT, "{" HI ",\"logit_bias\":[1]}", 400, "logit_bias"},
		{CHAT, "{" HI ",\"presence_penalty\":2.1}", 400, "presence_penalty"},
		{CHAT, "{" HI ",\"repetition_penalty\":0}", 400, "repetition_penalty"},
		{CHAT, "{" HI ",\"frequency_penalty\":\"0\"}", 400, "frequency_penalty"},
		{CHAT, "{" HI ",\"response_format\":{\"type\":\"json_object\"}}", 400, "response_format"},
		{CHAT, "{" HI ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}}", 400, "response_format"},
		{CHAT, "{" HI ",\"tool_choice\":\"required\"}", 400, "tool_choice"},
		{CHAT, "{" HI ",\"tool_choice\":\"maybe\"}", 400, "tool_choice"},
		{CHAT, "{" HI ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\"}}],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"b\"}}}", 400, "tool_choice"},
		{CHAT, "{" HI ",\"tools\":[{\"type\":\"retrieval\"}]}", 400, "tools"},
		{CHAT, "{" HI ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]}", 400, "tools"},
		{CHAT, "{" HI ",\"echo\":true}", 400, "echo"},
		{"/v1/completions", "{\"prompt\":\"a\",\"tools\":[]}", 400, "tools"},
		{"/v1/completions", "{\"prompt\":\"a\",\"logprobs\":21}", 400, "logprobs"},
		{"/v1/completions", "{\"prompt\":\"a\",\"echo\":true,\"logprobs\":1}", 400, "echo"},
		{"/v1/completions", "{\"prompt\":[\"a\",\"b\",\"c\"],\"n\":32}", 400, "n"},
		{CHAT, "{" HI ",\"tools\":{}}", 400, "tools"},
		{CHAT, "{" HI ",\"max_tokens\":2000000000}", 400, "messages"},
		{"/v1/completions", "{}", 400, "prompt"},
		{"/v1/completions", "{\"prompt\":\"\"}", 400, "prompt"},
		{"/v1/completions", "{\"prompt\":[]}", 400, "prompt"},
		{"/v1/completions", "{\"prompt\":[1,-1]}", 400, "prompt"},
		{"/v1/completions", "{\"prompt\":[600]}", 400, "prompt"},
		{"/v1/completions", "{\"prompt\":[1,\"a\"]}", 400, "prompt"},
		{"/v1/completions", "{\"prompt\":\"a\",\"suffix\":\"b\"}", 400, "suffix"},
		{"/tokenize", "{}", 400, "prompt"},
		{"/detokenize", "{\"tokens\":[600]}", 400, "tokens"},
		{"/nothing", "{}", 404, NULL},
		{"/v1/models", "{}", 405, NULL},
	};

	(void)state;
	fake_reset();
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct answer a = post(cases[i].path, cases[i].body);
		int status = a.status;
		json_t *j = parsed(a), *e = json_object_get(j, "error");
		const char *param = json_string_value(json_object_get(e, "param"));
		if (status != cases[i].status || (param == NULL) != (cases[i].param == NULL) || (param && strcmp(param, cases[i].param) != 0))
			fail_msg("%s %s: %d %s", cases[i].path, cases[i].body, status, param ? param : "null");
		assert_true(json_string_length(json_object_get(e, "message")) > 10);
		assert_true(json_is_string(json_object_get(e, "type")) && json_object_get(e, "code"));
		json_decref(j);
	}
	assert_int_equal(0, atomic_load(&fake.n));
}

static void test_sizes(void **state)
{
	char *big = malloc(70001);
	struct answer a;

	(void)state;
	fake_reset();
	memset(big, ' ', 70000);
	big[70000] = 0;
	a = post(CHAT, big);
	assert_int_equal(413, a.status);
	assert_non_null(strstr(a.body, "request_too_large"));
	free(a.head);
	free(big);
	/* the first prompt that is too long is the answer: what stands behind it is not looked at */
	a = post("/v1/completions", "{\"prompt\":[\"a\",\"b\",{}],\"max_tokens\":4194304}");
	assert_int_equal(400, a.status);
	assert_non_null(strstr(a.body, "context_length_exceeded"));
	free(a.head);
}

/* An object's members cost a hundred times what the numbers of a list do, and everybody waits while they are read. */
static void test_members_are_bounded(void **state)
{
	enum { MOST = 100000 };
	struct buf b = BUF_INIT(0);

	(void)state;
	assert_int_equal(buf_puts(&b, "{\"text\":\"a:b\",\"list\":["), 0);
	for (int i = 0; i < 2 * MOST; i++)
		assert_int_equal(buf_puts(&b, "1,"), 0);
	assert_int_equal(buf_puts(&b, "1]"), 0);
	for (int i = 2; i <= MOST; i++) {
		assert_true(i % 1000 || openai_json_bounded((const char *)b.data, b.len));
		assert_int_equal(buf_printf(&b, ",\"%d\":1", i), 0);
	}
	assert_false(openai_json_bounded((const char *)b.data, b.len));
	buf_done(&b);
}

static void test_labels(void **state)
{
	static const char two[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"Yes?\"},{\"role\":\"user\","
				  "\"content\":\"More\"}]}";
	const struct engine_request *r = fake.got;

	(void)state;
	fake_reset();
	say("x");
	free(post(CHAT, "{" HI "}").head);
	free(post(CHAT, two).head);
	free(call_with("POST", CHAT, "Authorization: Bearer sk-secret\r\nX-Redraft-Domain: code\r\n", "{" HI "}").head);
	free(call_with("POST", CHAT, "Authorization: Bearer sk-secret\r\nX-Redraft-Domain: unknown\r\nX-Redraft-Conversation: c-42\r\n", "{" HI "}").head);
	free(call_with("POST", CHAT, "X-Redraft-Trace: off\r\nX-Redraft-Draft: off\r\n", "{\"messages\":[{\"role\":\"user\",\"content\":\"Other\"}]}").head);
	assert_string_equal("anonymous", r[0].tenant);
	assert_string_equal("other", r[0].domain);
	assert_int_equal(64, strlen(r[0].conversation));
	assert_string_equal(r[0].conversation, r[1].conversation); /* its next turn */
	assert_string_not_equal(r[0].conversation, r[2].conversation);
	assert_string_not_equal(r[0].conversation, r[4].conversation);
	assert_int_equal(64, strlen(r[2].tenant));
	assert_null(strstr(r[2].tenant, "secret"));
	assert_string_equal(r[2].tenant, r[3].tenant);
	assert_string_equal("code", r[2].domain);
	assert_string_equal("other", r[3].domain);
	assert_string_equal("c-42", r[3].conversation);
	assert_true(!r[0].no_trace && !r[0].no_draft && r[4].no_trace && r[4].no_draft);
}

static void test_small_endpoints(void **state)
{
	static const char *const names[] = {
		"vllm:num_requests_running{model_name=\"org/toy\",engine=\"0\"} 0", "vllm:generation_tokens_total{model_name=\"org/toy\",engine=\"0\"} 1234",
		"vllm:spec_decode_num_drafts_total{", "vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name=\"org/toy\",engine=\"0\",position=\"1\"} 5",
		"vllm:time_to_first_token_seconds_bucket{", "vllm:time_per_output_token_seconds_count{", "redraft_live_version 7",
		"redraft_accept_length{version=\"7\",domain=\"code\"} 2.5", "redraft_http_connections 1", "redraft_http_body_bytes 0",
		"redraft_http_unread_bytes 0", "redraft_heap_bytes{state=\"used\"}", "redraft_heap_bytes{state=\"free\"}"};
	struct answer a;
	json_t *j;

	(void)state;
	fake_reset();
	say("xyz");
	free(call_with("POST", CHAT, "X-Redraft-Domain: code\r\n", "{" HI "}").head);
	a = call_with("GET", "/metrics", "", "");
	assert_int_equal(200, a.status);
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		if (!strstr(a.body, names[i]))
			fail_msg("no %s in\n%s", names[i], a.body);
	free(a.head);
	j = parsed(call_with("GET", "/v1/models", "", ""));
	assert_string_equal("org/toy", json_string_value(json_object_get(json_array_get(json_object_get(j, "data"), 0), "id")));
	json_decref(j);
	j = parsed(call_with("GET", "/v1/models/org%2Ftoy", "", ""));
	assert_string_equal("org/toy", json_string_value(json_object_get(j, "id")));
	json_decref(j);
	a = call_with("GET", "/v1/models/other", "", "");
	assert_int_equal(404, a.status);
	free(a.head);
	for (int i = 0; i < 4; i++) {
		a = call_with("GET", i == 0 ? "/health" : i == 1 ? "/healthz" : i == 2 ? "/ping" : "/ready", "", "");
		assert_int_equal(200, a.status);
		assert_string_equal("{\"status\":\"ready\",\"reasons\":[]}", a.body);
		free(a.head);
	}
	a = call_with("HEAD", "/v1/models", "", "");
	assert_int_equal(200, a.status);
	assert_string_equal("", a.body);
	free(a.head);
	a = call_with("OPTIONS", CHAT, "", "");
	assert_int_equal(204, a.status);
	assert_non_null(strstr(a.head, "Access-Control-Allow-Origin: *"));
	free(a.head);
}

static void test_tokenize_and_back(void **state)
{
	json_t *j, *k;
	char *ids, body[2000];

	(void)state;
	fake_reset();
	j = parsed(post("/tokenize", "{\"prompt\":\"Hi \xf0\x9f\x98\x80<|im_end|>12\",\"return_token_strs\":true}"));
	assert_int_equal(json_integer_value(json_object_get(j, "count")), json_array_size(json_object_get(j, "tokens")));
	assert_int_equal(json_array_size(json_object_get(j, "token_strs")), json_array_size(json_object_get(j, "tokens")));
	ids = json_dumps(json_object_get(j, "tokens"), 0);
	(void)snprintf(body, sizeof body, "{\"tokens\":%s}", ids);
	k = parsed(post("/detokenize", body));
	assert_string_equal("Hi \xf0\x9f\x98\x80<|im_end|>12", json_string_value(json_object_get(k, "prompt")));
	json_decref(j);
	json_decref(k);
	free(ids);
	j = parsed(post("/tokenize", "{" HI ",\"add_generation_prompt\":false}"));
	k = parsed(post("/tokenize", "{" HI "}"));
	assert_true(json_integer_value(json_object_get(j, "count")) < json_integer_value(json_object_get(k, "count")));
	json_decref(j);
	json_decref(k);
}

static atomic_int swept, left;

/* On the loop: the engine ends the request and posts its drain, which waits behind us. A sweep that
 * comes now must leave the request to it. */
static void sweep_now(void *arg)
{
	struct completion *c = t.openai->live;
	bool ended = false;

	(void)arg;
	while (c && !ended) {
		usleep(1000);
		pthread_mutex_lock(&c->lock);
		ended = c->choices[0].in_done && c->posted;
		pthread_mutex_unlock(&c->lock);
	}
	if (c)
		completion_sweep(c);
	atomic_store(&left, t.openai->n_live);
	atomic_store(&swept, 1);
}

static void test_a_sweep_frees_nothing_that_is_on_its_way(void **state)
{
	struct answer a;
	int fd = dial();

	(void)state;
	fake_reset();
	fake.pause_us = 100000;
	say("ab");
	ask(fd, "POST", CHAT, "", "{" HI "}");
	wait_for(&fake.n, 1);
	assert_int_equal(0, loop_post(t.loop, sweep_now, NULL));
	a = hear(fd);
	assert_int_equal(200, a.status);
	free(a.head);
	assert_int_equal(1, atomic_load(&swept));
	assert_int_equal(1, atomic_load(&left));
}

/* --- draining; last, as there is no way back --- */

static atomic_int idle;

static void on_idle(void *arg)
{
	(void)arg;
	atomic_store(&idle, 1);
}

static void begin_drain(void *arg)
{
	(void)arg;
	openai_drain(t.openai, on_idle, NULL);
}

static void cancel_all(void *arg)
{
	(void)arg;
	openai_cancel_all(t.openai);
}

static void test_draining(void **state)
{
	struct answer a;
	int fd = dial();

	(void)state;
	fake_reset();
	fake.hold = true;
	say("abc");
	ask(fd, "POST", CHAT, "", "{" HI "}");
	wait_for(&fake.n, 1);
	assert_int_equal(0, loop_post(t.loop, begin_drain, NULL));
	for (int i = 0; i < 2; i++) {
		a = i == 0 ? post(CHAT, "{" HI "}") : call_with("GET", "/health", "", "");
		assert_int_equal(503, a.status);
		free(a.head);
	}
	assert_int_equal(0, atomic_load(&idle));
	assert_int_equal(0, loop_post(t.loop, cancel_all, NULL));
	a = hear(fd);
	assert_int_equal(503, a.status);
	assert_non_null(strstr(a.body, "shutting down"));
	free(a.head);
	wait_for(&idle, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_whole_reply),	    cmocka_unit_test(test_defaults),	     cmocka_unit_test(test_stream_says_the_same),
		cmocka_unit_test(test_stop_strings),	    cmocka_unit_test(test_length_and_choices), cmocka_unit_test(test_hanging_up_cancels),
		cmocka_unit_test(test_a_slow_reader_is_cut), cmocka_unit_test(test_a_long_opening_cuts_nobody), cmocka_unit_test(test_queue_full), cmocka_unit_test(test_engine_errors),
		cmocka_unit_test(test_bad_requests),	    cmocka_unit_test(test_sizes),	     cmocka_unit_test(test_labels),
		cmocka_unit_test(test_members_are_bounded),
		cmocka_unit_test(test_small_endpoints),	    cmocka_unit_test(test_tokenize_and_back),
		cmocka_unit_test(test_a_sweep_frees_nothing_that_is_on_its_way), cmocka_unit_test(test_draining),
	};

	return cmocka_run_group_tests(tests, api_setup, api_teardown);
}
