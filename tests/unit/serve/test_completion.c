/* What a request may ask for beyond text, over real sockets and the scripted engine.
 *
 * Loading is said truly and refuses; then: penalties, bias and log-probabilities reach the engine as asked and come back
 * in OpenAI's two shapes, streamed or not, aligned with the text; echo; tool calls found in answers,
 * streamed or not, forced or not, and never shown as text; deadlines before and in a stream; keys, which are
 * asked for where they should be; client and priority.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "serve/keys.h"
#include "tests/unit/serve/api.h"

#define TOOLS "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{}}},{\"type\":\"function\",\"function\":{\"name\":\"add\"}}]"

static json_t *choice0(const json_t *j)
{
	return json_array_get(json_object_get(j, "choices"), 0);
}

static void open_now(void *arg)
{
	(void)arg;
	openai_open(t.openai, &fake_calls, NULL, NULL, &t.model);
}

/* First: there is no way back to loading. */
static void test_loading(void **state)
{
	static const char *const probes[] = {"/health", "/healthz", "/ready", "/ping"};
	struct answer a;

	(void)state;
	for (int i = 0; i < 4; i++) {
		a = call_with("GET", probes[i], "", "");
		assert_int_equal(503, a.status);
		assert_non_null(strstr(a.body, "\"status\":\"loading\""));
		free(a.head);
	}
	a = call_with("GET", "/live", "", "");
	assert_int_equal(200, a.status);
	free(a.head);
	a = call_with("GET", "/metrics", "", "");
	assert_int_equal(200, a.status);
	free(a.head);
	a = post(CHAT, "{" HI "}");
	assert_int_equal(503, a.status);
	assert_non_null(strstr(a.head, "Retry-After: 1"));
	assert_non_null(strstr(a.body, "\"code\":\"loading\""));
	free(a.head);
	assert_int_equal(0, loop_post(t.loop, open_now, NULL));
	a = call_with("GET", "/ready", "", "");
	assert_int_equal(200, a.status);
	assert_non_null(strstr(a.body, "\"status\":\"ready\""));
	free(a.head);
}

static void test_options_reach_the_engine(void **state)
{
	const struct engine_request *r = fake.got;

	(void)state;
	fake_reset();
	say("x");
	free(post(CHAT, "{" HI ",\"presence_penalty\":0.5,\"frequency_penalty\":-1,\"repetition_penalty\":1.25,\"logit_bias\":{\"9\":-100,\"3\":2.5},"
			"\"logprobs\":true,\"top_logprobs\":4}").head);
	free(post("/v1/completions", "{\"prompt\":\"a\",\"logprobs\":0}").head);
	free(post("/v1/completions", "{\"prompt\":\"a\"}").head);
	assert_true(r[0].sampling.presence == 0.5f && r[0].sampling.frequency == -1 && r[0].sampling.repetition == 1.25f);
	assert_int_equal(2, r[0].sampling.n_bias);
	assert_int_equal(4, r[0].top_logprobs);
	assert_non_null(r[0].on_logprobs);
	assert_non_null(r[1].on_logprobs);
	assert_int_equal(0, r[1].top_logprobs);
	assert_null(r[2].on_logprobs);
	assert_int_equal(0, r[2].sampling.n_bias);
}

static void check_content(const json_t *list, const char *text)
{
	size_t at = 0;

	assert_int_equal(strlen(text), json_array_size(list)); /* the script says a byte a token */
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *e = json_array_get(list, i), *bytes = json_object_get(e, "bytes"), *top = json_object_get(e, "top_logprobs");
		assert_int_equal(1, json_array_size(bytes));
		assert_int_equal((unsigned char)text[at++], json_integer_value(json_array_get(bytes, 0)));
		assert_true(json_real_value(json_object_get(e, "logprob")) == -(double)fake.ids[i] / 8);
		assert_int_equal(2, json_array_size(top));
		assert_true(json_real_value(json_object_get(json_array_get(top, 1), "logprob")) == -0.25);
		assert_true(json_is_string(json_object_get(e, "token")));
	}
}

/* What min_tokens and stop_token_ids do to the engine is tests/unit/serve/test_engine_law.c's; here: to the text. */
static void test_ends(void **state)
{
	const struct engine_request *r = fake.got;
	uint32_t last;
	char body[200], text[256], reason[64];
	struct answer a;
	json_t *j;

	(void)state;
	fake_reset();
	fake.why = FINISH_STOP;
	say("abXcd");
	last = fake.ids[4];
	(void)snprintf(body, sizeof body, "{" HI ",\"stop_token_ids\":[%u,7],\"min_tokens\":4,\"max_tokens\":9,\"return_token_ids\":true}", last);
	j = parsed(post(CHAT, body));
	assert_int_equal(2, r[0].n_stop_ids);
	assert_int_equal(4, r[0].min_tokens);
	assert_string_equal("abXc", text_at(j, 0)); /* the token that ended it is no text */
	assert_string_equal("stop", json_string_value(json_object_get(choice0(j), "finish_reason")));
	assert_int_equal(5, json_integer_value(json_object_get(json_object_get(j, "usage"), "completion_tokens")));
	json_decref(j);
	(void)snprintf(body, sizeof body, "{" HI ",\"stop_token_ids\":[%u],\"n\":2,\"logprobs\":true,\"top_logprobs\":2}", last);
	j = parsed(post(CHAT, body));
	for (int i = 0; i < 2; i++) { /* but it was drawn */
		assert_string_equal("abXc", text_at(j, i));
		check_content(json_object_get(json_object_get(json_array_get(json_object_get(j, "choices"), (size_t)i), "logprobs"), "content"), "abXcd");
	}
	json_decref(j);
	(void)snprintf(body, sizeof body, "{\"prompt\":\"d\",\"echo\":true,\"stream\":true,\"stop_token_ids\":[%u]}", last); /* in the prompt it ends nothing */
	a = post("/v1/completions", body);
	(void)walk(a.body, text, reason, NULL);
	assert_string_equal("dabXc", text);
	assert_string_equal("stop", reason);
	free(a.head);
	j = parsed(post(CHAT, "{" HI ",\"stop\":[\"X\",\"d\"],\"min_tokens\":3}")); /* too early for X */
	assert_string_equal("abXc", text_at(j, 0));
	json_decref(j);
	j = parsed(post(CHAT, "{" HI ",\"stop\":[\"X\",\"d\"],\"min_tokens\":2}"));
	assert_string_equal("ab", text_at(j, 0));
	json_decref(j);
}

static void test_logprobs_chat(void **state)
{
	static const char text[] = "na\xc3\xafve END tail";
	json_t *j, *all = json_array(), *lp;
	struct answer a;

	(void)state;
	fake_reset();
	fake.hold = true;
	say(text);
	j = parsed(post(CHAT, "{" HI ",\"logprobs\":true,\"top_logprobs\":2,\"stop\":\"END\"}"));
	assert_string_equal("na\xc3\xafve ", text_at(j, 0));
	check_content(json_object_get(json_object_get(choice0(j), "logprobs"), "content"), "na\xc3\xafve END"); /* up to what ended it */
	json_decref(j);
	fake_reset();
	fake.hold = true;
	fake.group = 3;
	fake.pause_us = 500;
	a = post(CHAT, "{" HI ",\"logprobs\":true,\"top_logprobs\":2,\"stop\":\"END\",\"stream\":true}");
	for (char *p = a.body, *end; strncmp(p, "data: [", 7) != 0; p = end + 2) {
		end = strstr(p, "\n\n");
		j = json_loadb(p + 6, (size_t)(end - p - 6), 0, NULL);
		lp = json_object_get(json_object_get(choice0(j), "logprobs"), "content");
		if (lp)
			json_array_extend(all, lp);
		json_decref(j);
	}
	check_content(all, "na\xc3\xafve END");
	json_decref(all);
	free(a.head);
}

static void test_logprobs_completions(void **state)
{
	json_t *j, *lp;

	(void)state;
	fake_reset();
	say("a\xc3\xaf" "b");
	j = parsed(post("/v1/completions", "{\"prompt\":\"a\",\"logprobs\":3}"));
	lp = json_object_get(choice0(j), "logprobs");
	assert_int_equal(4, json_array_size(json_object_get(lp, "tokens")));
	assert_string_equal("a", json_string_value(json_array_get(json_object_get(lp, "tokens"), 0)));
	assert_true(json_real_value(json_array_get(json_object_get(lp, "token_logprobs"), 3)) == -(double)fake.ids[3] / 8);
	assert_true(json_object_size(json_array_get(json_object_get(lp, "top_logprobs"), 0)) >= 1);
	assert_int_equal(0, json_integer_value(json_array_get(json_object_get(lp, "text_offset"), 0)));
	assert_int_equal(1, json_integer_value(json_array_get(json_object_get(lp, "text_offset"), 1)));
	json_decref(j);
	fake_reset();
	j = parsed(post("/v1/completions", "{\"prompt\":\"a\",\"logprobs\":0}"));
	lp = json_object_get(choice0(j), "logprobs");
	assert_int_equal(4, json_array_size(json_object_get(lp, "token_logprobs")));
	assert_true(json_is_null(json_object_get(lp, "top_logprobs")));
	json_decref(j);
	fake_reset();
	j = parsed(post(CHAT, "{" HI "}"));
	assert_true(json_is_null(json_object_get(choice0(j), "logprobs")));
	json_decref(j);
}

static void test_echo(void **state)
{
	char text[256], reason[64];
	struct answer a;
	json_t *j;

	(void)state;
	fake_reset();
	say("ND. The END.");
	fake.hold = true;
	/* a stop string that begins in the prompt is none */
	j = parsed(post("/v1/completions", "{\"prompt\":\"Hi <|im_end|> E\",\"echo\":true,\"stop\":\"END\",\"max_tokens\":20}"));
	assert_string_equal("Hi <|im_end|> END. The ", json_string_value(json_object_get(choice0(j), "text")));
	json_decref(j);
	fake_reset();
	fake.hold = true;
	a = post("/v1/completions", "{\"prompt\":\"Hi <|im_end|> E\",\"echo\":true,\"stop\":\"END\",\"stream\":true,\"max_tokens\":20}");
	(void)walk(a.body, text, reason, NULL);
	assert_string_equal("Hi <|im_end|> END. The ", text);
	free(a.head);
}

static const char *call_field(const json_t *calls, size_t i, const char *name)
{
	return json_string_value(json_object_get(json_object_get(json_array_get(calls, i), "function"), name));
}

static void test_tool_calls(void **state)
{
	static const char two[] = "Let me see.<tool_call>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Berlin\"}}, {\"name\": \"add\", \"arguments\": {}}]</tool_call>";
	char text[512], reason[64];
	struct answer a;
	json_t *j, *m, *calls;

	(void)state;
	fake_reset();
	say(two);
	j = parsed(post(CHAT, "{" HI "," TOOLS "}"));
	m = json_object_get(choice0(j), "message");
	calls = json_object_get(m, "tool_calls");
	assert_string_equal("tool_calls", reason_at(j, 0));
	assert_string_equal("Let me see.", text_at(j, 0));
	assert_int_equal(2, json_array_size(calls));
	assert_string_equal("get_weather", call_field(calls, 0, "name"));
	assert_string_equal("{\"city\":\"Berlin\"}", call_field(calls, 0, "arguments"));
	assert_string_equal("add", call_field(calls, 1, "name"));
	assert_int_equal(0, strncmp("call_", json_string_value(json_object_get(json_array_get(calls, 0), "id")), 5));
	json_decref(j);
	fake_reset();
	fake.pause_us = 100;
	a = post(CHAT, "{" HI "," TOOLS ",\"stream\":true}");
	(void)walk(a.body, text, reason, NULL);
	assert_string_equal("Let me see.", text);
	assert_string_equal("tool_calls", reason);
	assert_non_null(strstr(a.body, "\"tool_calls\":[{\"id\":\"call_"));
	assert_non_null(strstr(a.body, "\"index\":1"));
	free(a.head);
	fake_reset(); /* without tools, or with none wanted, it is text */
	j = parsed(post(CHAT, "{" HI "}"));
	assert_string_equal(two, text_at(j, 0));
	json_decref(j);
	fake_reset();
	j = parsed(post(CHAT, "{" HI "," TOOLS ",\"tool_choice\":\"none\"}"));
	assert_string_equal(two, text_at(j, 0));
	assert_string_equal("stop", reason_at(j, 0));
	json_decref(j);
	fake_reset(); /* a broken call is text, streamed too */
	say("<tool_call>[{\"name\": </tool_call> <tool");
	a = post(CHAT, "{" HI "," TOOLS ",\"stream\":true}");
	(void)walk(a.body, text, reason, NULL);
	assert_string_equal("<tool_call>[{\"name\": </tool_call> <tool", text);
	assert_string_equal("stop", reason);
	free(a.head);
	fake_reset(); /* Llama's form */
	say("{\"name\": \"add\", \"parameters\": {\"a\": 1}}");
	j = parsed(post(CHAT, "{" HI "," TOOLS "}"));
	m = json_object_get(choice0(j), "message");
	assert_true(json_is_null(json_object_get(m, "content")));
	assert_string_equal("{\"a\":1}", call_field(json_object_get(m, "tool_calls"), 0, "arguments"));
	json_decref(j);
}

static void test_forced_calls(void **state)
{
	json_t *j, *calls;
	int plain;

	(void)state;
	fake_reset();
	say("\"city\": \"Ber}lin\"} and so on"); /* after the brace that every call has */
	fake.hold = true; /* the model would ramble on */
	j = parsed(post(CHAT, "{" HI "," TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"get_weather\"}}}"));
	calls = json_object_get(json_object_get(choice0(j), "message"), "tool_calls");
	assert_string_equal("get_weather", call_field(calls, 0, "name"));
	assert_string_equal("{\"city\": \"Ber}lin\"}", call_field(calls, 0, "arguments"));
	assert_string_equal("tool_calls", reason_at(j, 0));
	json_decref(j);
	assert_int_equal(1, atomic_load(&fake.n_cancelled));
	plain = fake.got[0].n_prompt;
	fake_reset();
	say("add\", \"arguments\": {\"a\": [1, {}]}}, {\"name\"");
	fake.hold = true;
	j = parsed(post(CHAT, "{" HI "," TOOLS ",\"tool_choice\":\"required\"}"));
	calls = json_object_get(json_object_get(choice0(j), "message"), "tool_calls");
	assert_string_equal("add", call_field(calls, 0, "name"));
	assert_string_equal("{\"a\": [1, {}]}", call_field(calls, 0, "arguments"));
	json_decref(j);
	assert_true(fake.got[0].n_prompt < plain); /* the name was part of the prompt there */
	fake_reset();
	say("not JSON at all");
	fake.why = FINISH_LENGTH; /* cut */
	j = parsed(post(CHAT, "{" HI "," TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"add\"}}}"));
	calls = json_object_get(json_object_get(choice0(j), "message"), "tool_calls");
	assert_string_equal("{not JSON at all", call_field(calls, 0, "arguments")); /* for the caller to see */
	assert_string_equal("length", reason_at(j, 0));
	json_decref(j);
}

/* What must be there is written for the model. */
static void test_forced_beginnings(void **state)
{
	static const struct { const char *parameters, *begins; } cases[] = {
		{"{}", "{"},
		{"{\"properties\":{\"a\":{\"type\":\"string\"}}}", "{"},
		{"{\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{}},\"required\":[\"a\",\"b\"]}", "{\"a\": \""},
		{"{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]}", "{\"a\": "},
		{"{\"properties\":{\"a\":{\"type\":\"string\",\"enum\":[\"x\"]}},\"required\":[\"a\"]}", "{\"a\": "},
		{"{\"required\":[\"a\"]}", "{"}, {"{\"required\":[7]}", "{"}, {"[]", "{"}, {"null", "{"}};

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		char text[300], want[100], *got;
		json_t *tool;
		(void)snprintf(text, sizeof text, "{\"function\":{\"name\":\"f\",\"parameters\":%s}}", cases[i].parameters);
		(void)snprintf(want, sizeof want, "<tool_call>[{\"name\": \"f\", \"arguments\": %s", cases[i].begins);
		tool = json_loads(text, 0, NULL);
		got = toolcall_beginning(tool, "smollm2");
		assert_string_equal(want, got);
		free(got);
		json_decref(tool);
	}
}

/* A forced call in the form of each family ends by itself, and is read back even though the answer stops with its arguments. */
static void test_forced_by_family(void **state)
{
	static const struct { const char *family, *begins, *goes_on; } cases[] = {
		{"qwen2.5", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"", "x{y\"}"},
		{"llama3.1", "{\"name\": \"f\", \"parameters\": {\"a\": \"", "x{y\"}"},
		{"smollm2", "<tool_call>[{\"name\": \"f\", \"arguments\": {\"a\": \"", "x{y\"}"}};
	json_t *tool = json_loads("{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{\"type\":\"string\"}},\"required\":[\"a\"]}}}", 0, NULL);

	(void)state;
	assert_non_null(tool);
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		char *got = toolcall_beginning(tool, cases[i].family), text[200];
		size_t n = strlen(cases[i].goes_on), before;
		assert_string_equal(cases[i].begins, got);
		struct toolcall_watch w = toolcall_watch_start(got);
		toolcall_watch(&w, cases[i].goes_on, n - 1);
		assert_false(w.over);
		toolcall_watch(&w, cases[i].goes_on + n - 1, 1);
		assert_true(w.over);
		(void)snprintf(text, sizeof text, "%s%s", got, cases[i].goes_on);
		json_t *calls = toolcall_find(text, strlen(text), true, "seed", &before);
		assert_int_equal(json_array_size(calls), 1);
		json_t *f = json_object_get(json_array_get(calls, 0), "function");
		assert_string_equal(json_string_value(json_object_get(f, "name")), "f");
		assert_string_equal(json_string_value(json_object_get(f, "arguments")), "{\"a\": \"x{y\"}");
		assert_null(toolcall_find(text, strlen(text), false, "seed", &before)); /* not forced: broken JSON is text */
		json_decref(calls);
		free(got);
		got = toolcall_beginning(NULL, cases[i].family); /* any of several: its name is the model's to write */
		w = toolcall_watch_start(got);
		toolcall_watch(&w, "f\", \"arguments\": {}}", 20);
		assert_true(w.over);
		free(got);
	}
	json_decref(tool);
}

static void wait_for(const atomic_int *what, int least)
{
	for (int i = 0; i < 10000 && atomic_load(what) < least; i++)
		usleep(1000);
	assert_true(atomic_load(what) >= least);
}

static void test_deadlines(void **state)
{
	struct answer a;

	(void)state;
	fake_reset();
	fake.hold = true;
	say("");
	a = call_with("POST", CHAT, "X-Redraft-Deadline-Ms: 50\r\n", "{" HI "}");
	assert_int_equal(504, a.status);
	assert_non_null(strstr(a.body, "\"code\":\"deadline_exceeded\""));
	free(a.head);
	wait_for(&fake.n_cancelled, 1);
	assert_true(fake.got[0].deadline_us > 0);
	fake_reset();
	fake.hold = true;
	say("abc");
	a = call_with("POST", CHAT, "X-Redraft-Deadline-Ms: 1500\r\n", "{" HI ",\"stream\":true}");
	assert_int_equal(200, a.status);
	assert_non_null(strstr(a.body, "\"content\":\"a\""));
	assert_non_null(strstr(a.body, "deadline_exceeded"));
	assert_string_equal("data: [DONE]\n\n", a.body + strlen(a.body) - 14);
	free(a.head);
	fake_reset(); /* in time */
	a = call_with("POST", CHAT, "X-Redraft-Deadline-Ms: 60000\r\n", "{" HI "}");
	assert_int_equal(200, a.status);
	free(a.head);
	fake_reset(); /* the engine's own word */
	fake.why = FINISH_DEADLINE;
	a = call_with("POST", CHAT, "", "{" HI "}");
	assert_int_equal(504, a.status);
	free(a.head);
	for (int i = 0; i < 3; i++) {
		a = call_with("POST", CHAT, i == 0 ? "X-Redraft-Deadline-Ms: soon\r\n" : i == 1 ? "X-Redraft-Deadline-Ms: 0\r\n" : "X-Redraft-Priority: 11\r\n",
			      "{" HI "}");
		assert_int_equal(400, a.status);
		free(a.head);
	}
}

static void test_client_and_priority(void **state)
{
	(void)state;
	fake_reset();
	say("x");
	free(call_with("POST", CHAT, "X-Redraft-Priority: low\r\nAuthorization: Bearer made-up-key\r\n", "{" HI "}").head);
	free(call_with("POST", CHAT, "X-Redraft-Priority: 2\r\n", "{" HI "}").head);
	assert_int_equal(-1, fake.got[0].priority);
	assert_int_equal(2, fake.got[1].priority);
	assert_string_equal("127.0.0.1", fake.got[0].client); /* nobody checked that key */
}

static struct api_keys *keys;

static void use_keys(void *arg)
{
	t.openai->o.keys = arg;
}

static void reread(void *arg)
{
	struct errtext e;
	*(int *)arg = api_keys_refresh(keys, &e);
}

static void test_keys(void **state)
{
	static const struct { const char *path, *auth; int status; } cases[] = {
		{"/v1/models", "", 401}, {"/v1/models", "Authorization: Bearer wrong-key-1\r\n", 401}, {"/v1/models", "Authorization: Basic first-key-1\r\n", 401},
		{"/v1/models", "Authorization: Bearer first-key-1\r\n", 200}, {"/v1/models/org%2Ftoy", "", 401},
		{"/v1/models", "Authorization: bearer second-key-2\r\n", 200}, {"/health", "", 200}, {"/live", "", 200}, {"/metrics", "", 200},
		{"/version", "", 200}, {"/nothing", "", 401}};
	char path[64];
	struct errtext e = {""};
	struct answer a;
	FILE *f;
	int changed = -1;

	(void)state;
	fake_reset();
	(void)snprintf(path, sizeof path, "/tmp/redraft-keys-%d", (int)getpid());
	assert_true(api_keys_open(path, &keys, &e) < 0);
	f = fopen(path, "w");
	fputs("# keys\nfirst-key-1\n\n  \nsecond-key-2 \n", f);
	fclose(f);
	assert_int_equal(0, api_keys_open(path, &keys, &e));
	assert_int_equal(2, api_keys_count(keys));
	assert_int_equal(0, loop_post(t.loop, use_keys, keys));
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		a = call_with("GET", cases[i].path, cases[i].auth, "");
		if (a.status != cases[i].status)
			fail_msg("%s %s: %d", cases[i].path, cases[i].auth, a.status);
		if (a.status == 401)
			assert_non_null(strstr(a.body, "\"code\":\"invalid_api_key\""));
		free(a.head);
	}
	say("x");
	free(call_with("POST", CHAT, "Authorization: Bearer first-key-1\r\n", "{" HI "}").head);
	assert_int_equal(0, strncmp("key:", fake.got[0].client, 4));
	assert_null(strstr(fake.got[0].client, "first"));
	f = fopen(path, "w"); /* an empty file locks nobody out and lets nobody in */
	fclose(f);
	assert_true(api_keys_refresh(keys, &e) < 0);
	assert_non_null(strstr(e.text, "no key"));
	assert_true(api_keys_match(keys, "first-key-1"));
	f = fopen(path, "w");
	fputs("third-key-3\n", f);
	fclose(f);
	assert_int_equal(0, loop_post(t.loop, reread, &changed));
	a = call_with("GET", "/v1/models", "Authorization: Bearer first-key-1\r\n", "");
	assert_int_equal(401, a.status);
	free(a.head);
	assert_int_equal(API_KEYS_CHANGED, changed);
	a = call_with("GET", "/v1/models", "Authorization: Bearer third-key-3\r\n", "");
	assert_int_equal(200, a.status);
	free(a.head);
	assert_int_equal(0, api_keys_refresh(keys, &e)); /* the same file as before */
	f = fopen(path, "w");
	fputs("short\n", f);
	fclose(f);
	assert_true(api_keys_refresh(keys, &e) < 0);
	assert_non_null(strstr(e.text, "line 1"));
	assert_null(strstr(e.text, "short"));
	unlink(path);
	assert_int_equal(0, loop_post(t.loop, use_keys, NULL));
	a = call_with("GET", "/v1/models", "", "");
	assert_int_equal(200, a.status);
	free(a.head);
	api_keys_free(keys);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_loading), cmocka_unit_test(test_options_reach_the_engine), cmocka_unit_test(test_ends), cmocka_unit_test(test_logprobs_chat),
		cmocka_unit_test(test_logprobs_completions), cmocka_unit_test(test_echo), cmocka_unit_test(test_tool_calls),
		cmocka_unit_test(test_forced_calls), cmocka_unit_test(test_forced_beginnings), cmocka_unit_test(test_forced_by_family), cmocka_unit_test(test_deadlines), cmocka_unit_test(test_client_and_priority),
		cmocka_unit_test(test_keys),
	};

	api_loads_late = true;
	return cmocka_run_group_tests(tests, api_setup, api_teardown);
}
