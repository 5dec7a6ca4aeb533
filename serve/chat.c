/* From messages to text.
 *
 * A model's chat template is a Jinja program; we do not run it. Its SHA-256 picks a
 * renderer written by hand that gives the same text. Default system prompts differ
 * inside one family, so a hash is exact and a family name (the operator's word)
 * is a choice.
 *
 * Only the markers that the renderer itself writes become control tokens. A role
 * or a content that spells "<|im_start|>" stays plain text: the output is a list of
 * segments, each to be encoded with or without control tokens.
 *
 * Roles: developer is rendered as system; system, user, assistant, tool and function as
 * themselves (the template puts any role between its markers). Tools, which these
 * templates ignore, go into the system message as a block (serve/README.md).
 */
#include "serve/chat.h"
#include <stdlib.h>
#include <string.h>
#include "daemon/base/sha.h"

struct chat_template {
	const char *family;
	const char *sha[4];          /* of the templates that render so */
	const char *default_system;  /* put first when the first message is not a system's; NULL = none */
	const char *start, *end;     /* markers around a message */
};

static const struct chat_template templates[] = {
	{
		.family = "smollm2",
		.sha = {"872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788"},
		.default_system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
		.start = "<|im_start|>",
		.end = "<|im_end|>",
	},
	{
		.family = "chatml",
		.sha = {"153280e3ff55d19da1398bdb3914ee2a51b80429bfaedde11d7d216c39db80f3"},
		.start = "<|im_start|>",
		.end = "<|im_end|>",
	},
};

enum { N_TEMPLATES = sizeof templates / sizeof templates[0], MAX_MESSAGES = 4096 };

static const char TOOLS_INTRO[] = "You may call one or more of the functions below. To call functions, answer with a JSON list between "
				  "<tool_call> and </tool_call>, each entry {\"name\": ..., \"arguments\": {...}}; otherwise answer in "
				  "plain text.\n<tools>";
static const char TOOLS_OUTRO[] = "</tools>";

int chat_select(const char *tmpl, size_t len, const char *family, const struct chat_template **ret, struct errtext *e)
{
	char sha[SHA_HEX] = "none";

	if (family && *family) {
		for (int i = 0; i < N_TEMPLATES; i++)
			if (strcmp(templates[i].family, family) == 0) {
				*ret = &templates[i];
				return 0;
			}
		return errtext_set(e, -ENOTSUP, "chat family '%.40s' is not known; known are smollm2 and chatml", family);
	}
	if (tmpl)
		sha_hex(tmpl, len, sha);
	for (int i = 0; i < N_TEMPLATES; i++)
		for (int k = 0; k < 4 && templates[i].sha[k]; k++)
			if (strcmp(templates[i].sha[k], sha) == 0) {
				*ret = &templates[i];
				return 0;
			}
	return errtext_set(e, -ENOTSUP, "the model's chat template (SHA-256 %.16s...) is not known; name a family: smollm2 or chatml", sha);
}

/* One rendering: text so far, segments so far. */
struct render {
	struct buf *out;
	struct chat_segment *seg;
	int n, cap;
};

static int segment(struct render *w, bool special, const char *p, size_t len)
{
	int r;

	if (len == 0)
		return 0;
	if (w->n > 0 && !special && !w->seg[w->n - 1].special) {
		if ((r = buf_append(w->out, p, len)) < 0)
			return r;
		w->seg[w->n - 1].len += len;
		return 0;
	}
	if (w->n == w->cap) {
		int cap = w->cap ? 2 * w->cap : 32;
		void *grown = realloc(w->seg, (size_t)cap * sizeof *w->seg);
		if (!grown)
			return -ENOMEM;
		w->seg = grown;
		w->cap = cap;
	}
	w->seg[w->n] = (struct chat_segment){w->out->len, len, special};
	if ((r = buf_append(w->out, p, len)) < 0)
		return r;
	w->n++;
	return 0;
}

static int plain(struct render *w, const char *s)
{
	return segment(w, false, s, strlen(s));
}

static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function", NULL};

/* Checks one message; *ret_role is what the template sees. */
static int check_message(const json_t *m, size_t i, const char **ret_role, struct errtext *e)
{
	const json_t *role = json_object_get(m, "role");

	if (!json_is_object(m))
		return errtext_set(e, -EINVAL, "messages[%zu] must be an object", i);
	if (!json_is_string(role))
		return errtext_set(e, -EINVAL, "messages[%zu].role must be a string", i);
	for (int k = 0; roles[k]; k++)
		if (strcmp(roles[k], json_string_value(role)) == 0) {
			*ret_role = k == 1 ? "system" : roles[k];
			return 0;
		}
	return errtext_set(e, -EINVAL, "messages[%zu].role '%.40s' is not one of system, developer, user, assistant, tool, function", i,
			   json_string_value(role));
}

static int put_part(struct render *w, const json_t *part, size_t i, size_t k, struct errtext *e)
{
	const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");

	if (!json_is_object(part) || !json_is_string(type))
		return errtext_set(e, -EINVAL, "messages[%zu].content[%zu] must be an object with a type", i, k);
	if (strcmp(json_string_value(type), "text") != 0 && strcmp(json_string_value(type), "input_text") != 0)
		return errtext_set(e, -EINVAL, "messages[%zu].content[%zu].type '%.40s' is not supported; only text is", i, k,
				   json_string_value(type));
	if (!json_is_string(text))
		return errtext_set(e, -EINVAL, "messages[%zu].content[%zu].text must be a string", i, k);
	return segment(w, false, json_string_value(text), json_string_length(text));
}

/* The calls of an earlier assistant message, in the form the tools block asks for. */
static int put_tool_calls(struct render *w, const json_t *calls, size_t i, bool after_text, struct errtext *e)
{
	json_t *list = json_array(), *call;
	size_t k;
	char *text;
	int r;

	json_array_foreach((json_t *)calls, k, call)
	{
		json_t *f = json_object_get(call, "function"), *args = json_object_get(f, "arguments"), *parsed = NULL;
		if (!json_is_string(json_object_get(f, "name"))) {
			json_decref(list);
			return errtext_set(e, -EINVAL, "messages[%zu].tool_calls[%zu].function.name must be a string", i, k);
		}
		if (json_is_string(args)) /* OpenAI sends them as JSON inside a string */
			parsed = json_loads(json_string_value(args), JSON_DECODE_ANY, NULL);
		if (!parsed && args)
			parsed = json_incref(args);
		json_array_append_new(list, json_pack("{s:O,s:o}", "name", json_object_get(f, "name"), "arguments",
						      parsed ? parsed : json_object()));
	}
	text = json_dumps(list, JSON_COMPACT);
	json_decref(list);
	if (!text)
		return -ENOMEM;
	if ((r = plain(w, after_text ? "\n<tool_call>" : "<tool_call>")) == 0 && (r = plain(w, text)) == 0)
		r = plain(w, "</tool_call>");
	free(text);
	return r;
}

static int put_content(struct render *w, const json_t *m, size_t i, const char *role, struct errtext *e)
{
	const json_t *c = json_object_get(m, "content"), *calls = json_object_get(m, "tool_calls");
	bool has_calls = strcmp(role, "assistant") == 0 && json_array_size(calls) > 0;
	json_t *part;
	size_t k;
	int r;

	if (calls && !json_is_null(calls) && !json_is_array(calls))
		return errtext_set(e, -EINVAL, "messages[%zu].tool_calls must be a list", i);
	if (json_is_string(c)) {
		r = segment(w, false, json_string_value(c), json_string_length(c));
		if (r < 0)
			return r;
	} else if (json_is_array(c)) {
		json_array_foreach((json_t *)c, k, part)
			if ((r = put_part(w, part, i, k, e)) < 0)
				return r;
	} else if (!(has_calls && (!c || json_is_null(c)))) {
		return errtext_set(e, -EINVAL, "messages[%zu].content must be a string or a list of text parts", i);
	}
	return has_calls ? put_tool_calls(w, calls, i, json_string_length(c) > 0 || json_array_size(c) > 0, e) : 0;
}

static int put_tools(struct render *w, const json_t *tools, bool after_text)
{
	char *text = json_dumps(tools, JSON_COMPACT);
	int r;

	if (!text)
		return -ENOMEM;
	r = after_text ? plain(w, "\n\n") : 0;
	if (r == 0 && (r = plain(w, TOOLS_INTRO)) == 0 && (r = plain(w, text)) == 0)
		r = plain(w, TOOLS_OUTRO);
	free(text);
	return r;
}

static int open_message(const struct chat_template *t, struct render *w, const char *role)
{
	int r = segment(w, true, t->start, strlen(t->start));

	if (r == 0 && (r = plain(w, role)) == 0)
		r = plain(w, "\n");
	return r;
}

static int close_message(const struct chat_template *t, struct render *w)
{
	int r = segment(w, true, t->end, strlen(t->end));

	return r < 0 ? r : plain(w, "\n");
}

/* The system message that the client did not send: the template's default, and
 * the tools when there are any. */
static int default_system(const struct chat_template *t, struct render *w, const json_t *tools)
{
	int r;

	if (!t->default_system && !tools)
		return 0;
	if ((r = open_message(t, w, "system")) < 0)
		return r;
	if (t->default_system && (r = plain(w, t->default_system)) < 0)
		return r;
	if (tools && (r = put_tools(w, tools, t->default_system != NULL)) < 0)
		return r;
	return close_message(t, w);
}

static int render_all(const struct chat_template *t, struct render *w, const json_t *messages, const json_t *tools, bool prompt,
		      struct errtext *e)
{
	size_t n = json_array_size(messages);
	int r;

	for (size_t i = 0; i < n; i++) {
		const json_t *m = json_array_get(messages, i);
		const char *role = "";
		size_t before;

		if ((r = check_message(m, i, &role, e)) < 0)
			return r;
		if (i == 0 && strcmp(role, "system") != 0 && (r = default_system(t, w, tools)) < 0)
			return r;
		if ((r = open_message(t, w, role)) < 0)
			return r;
		before = w->out->len;
		if ((r = put_content(w, m, i, role, e)) < 0)
			return r;
		if (i == 0 && tools && strcmp(role, "system") == 0 && (r = put_tools(w, tools, w->out->len > before)) < 0)
			return r;
		if ((r = close_message(t, w)) < 0)
			return r;
	}
	return prompt ? open_message(t, w, "assistant") : 0;
}

int chat_render(const struct chat_template *t, const json_t *messages, const json_t *tools, bool add_generation_prompt, struct buf *out,
		struct chat_segment **ret_segments, int *ret_n, struct errtext *e)
{
	struct render w = {.out = out};
	int r;

	if (!json_is_array(messages) || json_array_size(messages) == 0)
		return errtext_set(e, -EINVAL, "messages must be a list of at least one message");
	if (json_array_size(messages) > MAX_MESSAGES)
		return errtext_set(e, -EINVAL, "messages holds more than %d entries", MAX_MESSAGES);
	if (json_is_null(tools) || json_array_size(tools) == 0)
		tools = NULL;
	r = render_all(t, &w, messages, tools, add_generation_prompt, e);
	if (r < 0) {
		free(w.seg);
		if (r == -E2BIG)
			errtext_set(e, r, "the messages are too long");
		return r;
	}
	*ret_segments = w.seg;
	*ret_n = w.n;
	return 0;
}
