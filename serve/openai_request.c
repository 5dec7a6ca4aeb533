/* One function a field or group of fields, all of the same form: absent or null is
 * the default, a wrong type or value is a sentence that names the field.
 */
#include "serve/openai_request.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "serve/chat.h"
#include "serve/openai_fields.h"
#include "serve/tokenizer.h"
#include "serve/toolcall.h"

int openai_fail(struct openai_error *e, int status, const char *param, const char *code, const char *fmt, ...)
{
	va_list ap;

	e->status = status;
	e->type = status == 404 ? "not_found_error" : status == 429 ? "rate_limit_error" : status >= 500 ? "server_error" : "invalid_request_error";
	e->code = code;
	(void)snprintf(e->param, sizeof e->param, "%s", param);
	va_start(ap, fmt);
	(void)vsnprintf(e->message, sizeof e->message, fmt, ap);
	va_end(ap);
	return -EINVAL;
}

json_t *openai_error_json(const struct openai_error *e)
{
	/* a message cut in the middle of a character is not UTF-8 and packs as nothing */
	json_t *message = json_string(e->message);

	return json_pack("{s:{s:o,s:s,s:s?,s:s?}}", "error", "message", message ? message : json_string("The request is not valid."), "type",
			 e->type, "param", *e->param ? e->param : NULL, "code", e->code);
}

enum { MAX_DEPTH = 64, MAX_CONTAINERS = 100000, MAX_MEMBERS = 100000 /* dear: each is hashed */, MAX_VALUES = 1000000 };

bool openai_json_bounded(const char *body, size_t len)
{
	long depth = 0, opened = 0, members = 0, values = 0;
	bool text = false;

	for (size_t i = 0; i < len; i++) {
		char c = body[i];
		if (text) {
			i += c == '\\';
			text = c != '"';
		} else if (c == '"') {
			text = true;
		} else if (c == '[' || c == '{') {
			opened++;
			if (++depth > MAX_DEPTH)
				return false;
		} else if (c == ']' || c == '}') {
			depth--;
		} else if (c == ':') {
			members++;
		} else if (c == ',') {
			values++;
		}
	}
	return opened <= MAX_CONTAINERS && members <= MAX_MEMBERS && values <= MAX_VALUES;
}

int openai_parse_json(const char *body, size_t len, json_t **ret, struct openai_error *e)
{
	json_error_t at;
	json_t *j;

	if (!openai_json_bounded(body, len))
		return openai_fail(e, 400, "", "invalid_json", "The body nests deeper than %d or holds more than %d values or %d members of objects.", MAX_DEPTH, MAX_VALUES,
				   MAX_MEMBERS);
	j = json_loadb(body, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &at);
	if (!j)
		return openai_fail(e, 400, "", "invalid_json", "The body is not valid JSON (line %d, column %d): %.120s.", at.line, at.column,
				   at.text);
	if (!json_is_object(j)) {
		json_decref(j);
		return openai_fail(e, 400, "", "invalid_json", "The body must be a JSON object.");
	}
	*ret = j;
	return 0;
}

static int get_lengths(const json_t *body, bool chat, struct openai_request *q, struct openai_error *e)
{
	long long max = 0, completion = 0, n = 1, min = 0;
	int r;

	if ((r = field_int(body, "max_tokens", 1, INT32_MAX, &max, e)) < 0 ||
	    (r = field_int(body, "max_completion_tokens", 1, INT32_MAX, &completion, e)) < 0 ||
	    (r = field_int(body, "n", 1, OPENAI_MAX_N, &n, e)) < 0 || (r = field_int(body, "min_tokens", 0, INT32_MAX, &min, e)) < 0)
		return r;
	if (max && completion && max != completion)
		return openai_fail(e, 400, "max_tokens", "invalid_value", "max_tokens and max_completion_tokens say different things; give one.");
	max = max ? max : completion;
	if (max == 0 && !chat)
		max = 16; /* OpenAI's default there */
	if (max && min > max)
		return openai_fail(e, 400, "min_tokens", "invalid_value", "min_tokens is %lld and max_tokens %lld; it must not be more.", min, max);
	q->min_tokens = (int)min;
	q->max_tokens = (int)max;
	q->n = (int)n;
	return 0;
}

static int add_stop(struct openai_request *q, const json_t *s, struct openai_error *e)
{
	if (!json_is_string(s) || json_string_length(s) == 0 || json_string_length(s) > TEXTOUT_MAX_STOP ||
	    strlen(json_string_value(s)) != json_string_length(s))
		return openai_fail(e, 400, "stop", "invalid_value", "stop must be a string or a list of strings of 1 to %d bytes.", TEXTOUT_MAX_STOP);
	memcpy(q->stops[q->n_stops++], json_string_value(s), json_string_length(s) + 1);
	return 0;
}

static int get_stops(const json_t *body, struct openai_request *q, struct openai_error *e)
{
	const json_t *v = field_get(body, "stop");
	size_t n = json_is_array(v) ? json_array_size(v) : v ? 1 : 0;
	int r = 0;

	if (n > TEXTOUT_MAX_STOPS)
		return openai_fail(e, 400, "stop", "invalid_value", "stop holds more than %d strings.", TEXTOUT_MAX_STOPS);
	if (n == 0)
		return 0;
	q->stops = calloc(n, sizeof *q->stops);
	if (!q->stops)
		return field_no_memory(e);
	for (size_t i = 0; i < n && r == 0; i++)
		r = add_stop(q, json_is_array(v) ? json_array_get(v, i) : v, e);
	return r;
}

static int get_stop_ids(const struct openai_model *m, const json_t *body, struct openai_request *q, struct openai_error *e)
{
	const json_t *list = field_get(body, "stop_token_ids");
	size_t n = json_array_size(list);

	if (list && (!json_is_array(list) || n > ENGINE_MAX_STOP_IDS))
		return openai_fail(e, 400, "stop_token_ids", "invalid_value", "stop_token_ids must be a list of at most %d token ids.", ENGINE_MAX_STOP_IDS);
	if (n == 0)
		return 0;
	q->stop_ids = malloc(n * sizeof *q->stop_ids);
	if (!q->stop_ids)
		return field_no_memory(e);
	for (size_t i = 0; i < n; i++) {
		const json_t *v = json_array_get(list, i);
		json_int_t id = json_integer_value(v);
		if (!json_is_integer(v) || id < 0 || id >= (json_int_t)tokenizer_vocab(m->tokenizer))
			return openai_fail(e, 400, "stop_token_ids", "invalid_value", "stop_token_ids holds something that is not a token id below %u.",
					   tokenizer_vocab(m->tokenizer));
		q->stop_ids[q->n_stop_ids++] = (uint32_t)id;
	}
	return 0;
}

static int get_stream(const json_t *body, struct openai_request *q, struct openai_error *e)
{
	const json_t *o = field_get(body, "stream_options");
	int r;

	if ((r = field_bool(body, "stream", &q->stream, e)) < 0 || (r = field_bool(body, "ignore_eos", &q->ignore_eos, e)) < 0 ||
	    (r = field_bool(body, "return_token_ids", &q->return_ids, e)) < 0)
		return r;
	if (o && !json_is_object(o))
		return field_wrong(e, "stream_options", "an object");
	if (o && !q->stream)
		return openai_fail(e, 400, "stream_options", "invalid_value", "stream_options needs stream to be true.");
	return field_bool(o, "include_usage", &q->include_usage, e);
}

static const char LEAVE_OUT[] = "leave it out or at its neutral value";

/* Parameters that would change the answer and that we do not do: neutral values pass. */
static int check_neutral(const json_t *body, bool chat, struct openai_error *e)
{
	static const char *const absent[] = {"suffix", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
					     "bad_words", "allowed_token_ids", "prompt_logprobs", "prompt_embeds",
					     "functions", "function_call", "audio", "modalities", "web_search_options"};
	for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++) {
		const json_t *v = field_get(body, absent[i]);
		bool empty = json_is_false(v) || (json_is_array(v) && json_array_size(v) == 0) || (json_is_integer(v) && json_integer_value(v) == 0) ||
			     (json_is_object(v) && json_object_size(v) == 0) || (json_is_string(v) && json_string_length(v) == 0);
		if (v && !empty && !(strcmp(absent[i], "modalities") == 0 && json_array_size(v) == 1 &&
				     json_is_string(json_array_get(v, 0)) && strcmp(json_string_value(json_array_get(v, 0)), "text") == 0))
			return field_unsupported(e, absent[i], LEAVE_OUT);
	}
	if (!chat && field_get(body, "tools"))
		return field_unsupported(e, "tools", "ask /v1/chat/completions");
	if (chat && json_is_true(field_get(body, "echo")))
		return field_unsupported(e, "echo", "it belongs to /v1/completions");
	return 0;
}

static int check_forms(const json_t *body, int n, struct openai_error *e)
{
	const json_t *format = field_get(body, "response_format"), *type;
	long long best_of = n;
	int r = field_int(body, "best_of", 1, OPENAI_MAX_N, &best_of, e);

	if (r < 0)
		return r;
	if (best_of != n)
		return field_unsupported(e, "best_of", "leave it out or equal to n");
	type = field_get(format, "type");
	if (format && (!json_is_object(format) || !json_is_string(type)))
		return field_wrong(e, "response_format", "an object with a type");
	if (format && strcmp(json_string_value(type), "text") != 0)
		return field_unsupported(e, "response_format", "only {\"type\": \"text\"} is; ask for JSON in the prompt");
	return 0;
}

static int get_echo(const json_t *body, struct openai_request *q, struct openai_error *e)
{
	int r = field_bool(body, "echo", &q->echo, e);

	if (r == 0 && q->echo && q->logprobs)
		return field_unsupported(e, "echo", "it cannot be had together with logprobs, as prompts are not scored");
	return r;
}

/* tools and tool_choice: what is rendered into the prompt, and how the answer must begin. */
static int get_tools(const struct openai_model *m, const json_t *body, struct openai_request *q, struct openai_error *e)
{
	const json_t *tools = field_get(body, "tools"), *choice = field_get(body, "tool_choice");
	const char *word = json_string_value(choice);
	const json_t *forced = NULL;
	int r = toolcall_check(tools, e);

	if (r < 0)
		return r;
	if (json_is_object(choice)) {
		forced = toolcall_named(tools, json_string_value(json_object_get(json_object_get(choice, "function"), "name")));
		if (!forced)
			return field_wrong(e, "tool_choice", "the name of one of the tools: {\"type\": \"function\", \"function\": {\"name\": ...}}");
	} else if (choice && !(word && (strcmp(word, "auto") == 0 || strcmp(word, "none") == 0 || strcmp(word, "required") == 0))) {
		return field_wrong(e, "tool_choice", "auto, none, required or an object that names a function");
	}
	q->tools = json_array_size(tools) > 0 && !(word && strcmp(word, "none") == 0);
	if (!forced && !(word && strcmp(word, "required") == 0))
		return 0;
	if (json_array_size(tools) == 0)
		return openai_fail(e, 400, "tool_choice", "invalid_value", "tool_choice asks for a call, but there are no tools.");
	q->forced = toolcall_beginning(json_array_size(tools) == 1 ? json_array_get(tools, 0) : forced, m->chat ? chat_family(m->chat) : "");
	return q->forced ? 0 : field_no_memory(e);
}

int openai_check_model(const struct openai_model *m, const json_t *body, struct openai_error *e)
{
	const json_t *v = field_get(body, "model");

	if (v && !json_is_string(v))
		return field_wrong(e, "model", "a string");
	if (v && strcmp(json_string_value(v), m->name) != 0)
		return openai_fail(e, 404, "model", "model_not_found", "The model '%.80s' does not exist; this server holds '%.80s'.",
				   json_string_value(v), m->name);
	return 0;
}

/* A list of token ids. */
static int get_ids(const struct openai_model *m, const json_t *list, struct openai_prompt *ret, struct openai_error *e)
{
	size_t n = json_array_size(list);
	uint32_t *ids;

	if (n > (size_t)m->max_context)
		return openai_fail(e, 400, "prompt", "context_length_exceeded",
				   "This model's maximum context length is %d tokens; the prompt holds %zu.", m->max_context, n);
	ids = malloc((n + 1) * sizeof *ids);
	if (!ids)
		return field_no_memory(e);
	for (size_t i = 0; i < n; i++) {
		const json_t *v = json_array_get(list, i);
		json_int_t id = json_integer_value(v);
		if (!json_is_integer(v) || id < 0 || id >= (json_int_t)tokenizer_vocab(m->tokenizer)) {
			free(ids);
			return openai_fail(e, 400, "prompt", "invalid_value", "prompt holds something that is not a token id below %u.",
					   tokenizer_vocab(m->tokenizer));
		}
		ids[i] = (uint32_t)id;
	}
	*ret = (struct openai_prompt){ids, (int)n};
	return 0;
}

static int check_fit(const struct openai_model *m, const struct openai_request *q, int prompt, struct openai_error *e)
{
	long long n = q->prompts[prompt].n, want = q->max_tokens > 0 ? q->max_tokens : q->min_tokens > 1 ? q->min_tokens : 1;

	if (n + want <= m->max_context)
		return 0;
	return openai_fail(e, 400, q->chat ? "messages" : "prompt", "context_length_exceeded",
			   "This model's maximum context length is %d tokens; the prompt holds %lld and %lld more were asked for.", m->max_context, n, want);
}

/* One that is too long ends it at once: the others' texts may be long too, and everybody waits while they are read. left: ids that those before leave. */
static int get_one_prompt(const struct openai_model *m, const json_t *v, struct openai_request *q, int *left, struct openai_error *e)
{
	struct openai_prompt *p = &q->prompts[q->n_prompts];
	int r;

	if (json_is_string(v))
		r = openai_encode_text(m, "prompt", v, *left < m->max_context ? *left : m->max_context, p, e);
	else if (json_is_array(v))
		r = get_ids(m, v, p, e);
	else
		return field_wrong(e, "prompt", "a string, a list of strings, a list of token ids or a list of such lists");
	if (r < 0)
		return r;
	q->n_prompts++;
	*left -= p->n < *left ? p->n : *left;
	if (p->n == 0)
		return field_wrong(e, "prompt", "at least one token long");
	return check_fit(m, q, q->n_prompts - 1, e);
}

static int get_prompts(const struct openai_model *m, const json_t *body, struct openai_request *q, struct openai_error *e)
{
	const json_t *v = field_get(body, "prompt");
	bool many = json_is_array(v) && !json_is_integer(json_array_get(v, 0));
	size_t n = many ? json_array_size(v) : 1;
	int r = 0, left = openai_most_ids(m);

	if (n == 0 || n > OPENAI_MAX_PROMPTS)
		return openai_fail(e, 400, "prompt", "invalid_value", "prompt must hold 1 to %d prompts.", OPENAI_MAX_PROMPTS);
	q->prompts = calloc(n, sizeof *q->prompts);
	if (!q->prompts)
		return field_no_memory(e);
	for (size_t i = 0; i < n && r == 0; i++)
		r = get_one_prompt(m, many ? json_array_get(v, i) : v, q, &left, e);
	return r;
}

/* System and first user message: what names a conversation that has no header. */
static char *first_words(const json_t *messages)
{
	json_t *kept = json_array(), *m;
	size_t i;
	char *text;

	json_array_foreach((json_t *)messages, i, m)
	{
		const char *role = json_string_value(json_object_get(m, "role"));
		json_array_append(kept, json_object_get(m, "content"));
		if (strcmp(role, "user") == 0)
			break;
	}
	text = json_dumps(kept, JSON_COMPACT);
	json_decref(kept);
	return text;
}

static int get_chat(const struct openai_model *m, const json_t *body, struct openai_request *q, struct openai_error *e)
{
	int r;

	q->prompts = calloc(1, sizeof *q->prompts);
	if (!q->prompts)
		return field_no_memory(e);
	r = openai_encode_chat(m, body, true, m->max_context, &q->prompts[0], e);
	if (r < 0)
		return r;
	q->n_prompts = 1;
	r = get_tools(m, body, q, e);
	if (r == 0 && q->forced)
		r = openai_append_text(m, q->forced, &q->prompts[0], e);
	if (r < 0)
		return r;
	q->first_words = first_words(json_object_get(body, "messages"));
	return 0;
}

static int parse(const struct openai_model *m, const json_t *body, bool chat, struct openai_request *q, struct openai_error *e)
{
	int r;

	q->chat = chat;
	if ((r = openai_check_model(m, body, e)) < 0 || (r = openai_read_sampling(m, body, chat, q, e)) < 0 || (r = get_lengths(body, chat, q, e)) < 0 ||
	    (r = get_stops(body, q, e)) < 0 || (r = get_stop_ids(m, body, q, e)) < 0 || (r = get_stream(body, q, e)) < 0 || (r = check_neutral(body, chat, e)) < 0 ||
	    (r = check_forms(body, q->n, e)) < 0 || (!chat && (r = get_echo(body, q, e)) < 0))
		return r;
	r = chat ? get_chat(m, body, q, e) : get_prompts(m, body, q, e);
	if (r == 0 && q->n_prompts * q->n > OPENAI_MAX_CHOICES)
		return openai_fail(e, 400, "n", "invalid_value", "n times the number of prompts is %d; at most %d answers fit one request.",
				   q->n_prompts * q->n, OPENAI_MAX_CHOICES);
	return r == 0 && chat ? check_fit(m, q, 0, e) : r;
}

int openai_request_parse(const struct openai_model *m, const json_t *body, bool chat, struct openai_request *ret, struct openai_error *e)
{
	struct openai_request q = {0};
	int r = parse(m, body, chat, &q, e);

	if (r < 0) {
		openai_request_done(&q);
		return r;
	}
	*ret = q;
	return 0;
}

void openai_request_done(struct openai_request *q)
{
	for (int i = 0; i < q->n_prompts; i++)
		free(q->prompts[i].ids);
	free(q->prompts);
	free(q->stops);
	free(q->stop_ids);
	free(q->bias);
	free(q->forced);
	free(q->first_words);
	*q = (struct openai_request){0};
}
