/* Qwen2.5 and Qwen3 (with and without thinking).
 *
 * Tools stand in the system message, one JSON object a line; tool answers are gathered in one user message. Qwen3
 * drops an earlier answer's thoughts, except those after the last question, which a chain of tool calls still needs.
 * `function` messages, which the templates would leave out, are shown as tool answers.
 */
#include <string.h>
#include "serve/chat_text.h"

static const char TOOLS_INTRO[] = "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function "
				  "signatures within <tools></tools> XML tags:\n<tools>";
static const char TOOLS_OUTRO[] = "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
				  "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
				  "<args-json-object>}\n</tool_call>";

struct span {
	const char *p;
	size_t n;
};

static struct span strip_left(struct span s)
{
	while (s.n && *s.p == '\n')
		s = (struct span){s.p + 1, s.n - 1};
	return s;
}

static struct span strip_right(struct span s)
{
	while (s.n && s.p[s.n - 1] == '\n')
		s.n--;
	return s;
}

static struct span before_first(struct span s, const char *mark)
{
	const char *at = memmem(s.p, s.n, mark, strlen(mark));

	return at ? (struct span){s.p, (size_t)(at - s.p)} : s;
}

static struct span after_last(struct span s, const char *mark)
{
	const char *at;

	while ((at = memmem(s.p, s.n, mark, strlen(mark)))) {
		size_t skip = (size_t)(at - s.p) + strlen(mark);
		s = (struct span){s.p + skip, s.n - skip};
	}
	return s;
}

static bool begins(struct span s, const char *with)
{
	return s.n >= strlen(with) && memcmp(s.p, with, strlen(with)) == 0;
}

static bool ends(struct span s, const char *with)
{
	return s.n >= strlen(with) && memcmp(s.p + s.n - strlen(with), with, strlen(with)) == 0;
}

static int put_span(struct render *w, struct span s)
{
	return put_text(w, false, s.p, s.n);
}

static int open_message(struct render *w, const char *role, const char *after)
{
	int r = put_marker(w, "<|im_start|>");

	r = r ? r : put_plain(w, role);
	return r ? r : put_plain(w, after);
}

static int close_message(struct render *w)
{
	int r = put_marker(w, "<|im_end|>");

	return r ? r : put_plain(w, "\n");
}

static int put_json(struct render *w, const json_t *v)
{
	struct buf b = BUF_INIT(w->out->max);
	int r = chat_json(&b, v, 0);

	r = r ? r : put_text(w, false, (const char *)b.data, b.len);
	buf_done(&b);
	return r;
}

/* The system message: the client's first, or the default, and the tools. */
static int put_system(const struct chat_template *t, struct render *w, struct span first, bool given)
{
	int r;

	if (!given && !w->tools && !t->default_system)
		return 0;
	if ((r = open_message(w, "system", "\n")) < 0)
		return r;
	if (given)
		r = put_span(w, first);
	else if (t->default_system)
		r = put_plain(w, t->default_system);
	if (r == 0 && w->tools && (given || t->default_system))
		r = put_plain(w, "\n\n");
	if (r == 0 && w->tools)
		r = put_plain(w, TOOLS_INTRO);
	for (size_t k = 0; r == 0 && k < json_array_size(w->tools); k++)
		if ((r = put_plain(w, "\n")) == 0)
			r = put_json(w, json_array_get(w->tools, k));
	if (r == 0 && w->tools)
		r = put_plain(w, TOOLS_OUTRO);
	return r ? r : close_message(w);
}

static int put_call(struct render *w, size_t i, const json_t *calls, size_t k, bool new_line)
{
	const char *name;
	json_t *args;
	int r = chat_call(w, i, calls, k, &name, &args);

	if (r < 0)
		return r;
	r = put_plain(w, new_line ? "\n<tool_call>\n{\"name\": \"" : "<tool_call>\n{\"name\": \"");
	r = r ? r : put_plain(w, name);
	r = r ? r : put_plain(w, "\", \"arguments\": ");
	r = r ? r : put_json(w, args);
	json_decref(args);
	return r ? r : put_plain(w, "}\n</tool_call>");
}

/* Thoughts, where the template shows them, then the answer. */
static int put_thinking(struct render *w, size_t i, struct span *content, bool shown, bool last)
{
	const json_t *given = json_object_get(json_array_get(w->messages, i), "reasoning_content");
	struct span thought = {"", 0};
	int r;

	if (json_is_string(given)) {
		thought = (struct span){json_string_value(given), json_string_length(given)};
	} else if (memmem(content->p, content->n, "</think>", 8)) {
		thought = strip_left(after_last(strip_right(before_first(*content, "</think>")), "<think>"));
		*content = strip_left(after_last(*content, "</think>"));
	}
	if (!shown || !(last || thought.n))
		return put_span(w, *content);
	r = put_plain(w, "<think>\n");
	r = r ? r : put_span(w, strip_left(strip_right(thought)));
	r = r ? r : put_plain(w, "\n</think>\n\n");
	return r ? r : put_span(w, strip_left(*content));
}

static int put_assistant(const struct chat_template *t, struct render *w, size_t i, struct span content, size_t last_query)
{
	const json_t *calls = NULL;
	bool last = i + 1 == json_array_size(w->messages), old = t->default_system != NULL; /* Qwen2.5 */
	int r = chat_calls(w, i, &calls);

	/* Qwen2.5 writes no line for an empty text before calls, and one before each call */
	r = r ? r : open_message(w, "assistant", old && calls && !content.n ? "" : "\n");
	if (r == 0)
		r = t->thinks ? put_thinking(w, i, &content, i > last_query, last) : put_span(w, content);
	for (size_t k = 0; r == 0 && k < json_array_size(calls); k++)
		r = put_call(w, i, calls, k, old || k > 0 || content.n > 0);
	return r ? r : close_message(w);
}

static bool is_tool(const struct render *w, size_t i)
{
	const char *role = json_string_value(json_object_get(json_array_get(w->messages, i), "role"));

	return role && (strcmp(role, "tool") == 0 || strcmp(role, "function") == 0);
}

static int put_tool(struct render *w, size_t i, struct span content)
{
	int r = 0;

	if (i == 0 || !is_tool(w, i - 1))
		r = open_message(w, "user", "");
	r = r ? r : put_plain(w, "\n<tool_response>\n");
	r = r ? r : put_span(w, content);
	r = r ? r : put_plain(w, "\n</tool_response>");
	return r || is_tool(w, i + 1) ? r : close_message(w);
}

static int put_message(const struct chat_template *t, struct render *w, size_t i, const char *role, struct span content, size_t last_query)
{
	int r;

	if (strcmp(role, "assistant") == 0)
		return put_assistant(t, w, i, content, last_query);
	if (is_tool(w, i))
		return put_tool(w, i, content);
	if (strcmp(role, "system") == 0 && i == 0)
		return 0; /* put_system has been there */
	r = open_message(w, role, "\n");
	r = r ? r : put_span(w, content);
	return r ? r : close_message(w);
}

/* The last user message that is no tool answer in disguise; the last message when there is none. */
static int find_last_query(const struct render *w, size_t *ret)
{
	size_t n = json_array_size(w->messages);

	*ret = n - 1;
	for (size_t i = n; i-- > 0;) {
		const char *role;
		struct buf text = BUF_INIT(w->out->max);
		int r = chat_role(w, i, &role);
		if (r == 0 && strcmp(role, "user") == 0 && (r = chat_content(w, i, &text)) == 0) {
			struct span s = {text.len ? (const char *)text.data : "", text.len};
			bool query = !(begins(s, "<tool_response>") && ends(s, "</tool_response>"));
			buf_done(&text);
			if (query) {
				*ret = i;
				return 0;
			}
		}
		buf_done(&text);
		if (r < 0)
			return r;
	}
	return 0;
}

int chat_render_qwen(const struct chat_template *t, struct render *w)
{
	size_t n = json_array_size(w->messages), last_query = 0;
	struct buf text = BUF_INIT(w->out->max);
	int r = find_last_query(w, &last_query);

	for (size_t i = 0; r == 0 && i < n; i++) {
		const char *role = "";
		buf_clear(&text);
		if ((r = chat_role(w, i, &role)) == 0)
			r = chat_content(w, i, &text);
		struct span content = {text.len ? (const char *)text.data : "", text.len};
		if (r == 0 && i == 0)
			r = put_system(t, w, content, strcmp(role, "system") == 0);
		if (r == 0)
			r = put_message(t, w, i, role, content, last_query);
	}
	buf_done(&text);
	if (r == 0 && w->prompt) {
		r = open_message(w, "assistant", "\n");
		if (r == 0 && t->thinks && w->o->enable_thinking == 0)
			r = put_plain(w, "<think>\n\n</think>\n\n");
	}
	return r;
}
