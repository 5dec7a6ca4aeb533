/* ChatML as SmolLM2 and plain ChatML have it: every role between its markers. These templates ignore tools, so the tools
 * go into the system message as a block, and calls are written back in the form it asks for (serve/README.md).
 */
#include <stdlib.h>
#include "serve/chat_text.h"

static const char TOOLS_INTRO[] = "You may call one or more of the functions below. To call functions, answer with a JSON list between "
				  "<tool_call> and </tool_call>, each entry {\"name\": ..., \"arguments\": {...}}; otherwise answer in "
				  "plain text.\n<tools>";
static const char TOOLS_OUTRO[] = "</tools>";

static int put_calls(struct render *w, const json_t *calls, size_t i, bool after_text)
{
	json_t *list = json_array(), *args;
	const char *name;
	char *text;
	int r = list ? 0 : -ENOMEM;

	for (size_t k = 0; r == 0 && k < json_array_size(calls); k++)
		if ((r = chat_call(w, i, calls, k, &name, &args)) == 0)
			r = json_array_append_new(list, json_pack("{s:s,s:o}", "name", name, "arguments", args)) < 0 ? -ENOMEM : 0;
	text = r == 0 ? json_dumps(list, JSON_COMPACT) : NULL;
	json_decref(list);
	if (!text)
		return r < 0 ? r : -ENOMEM;
	if ((r = put_plain(w, after_text ? "\n<tool_call>" : "<tool_call>")) == 0 && (r = put_plain(w, text)) == 0)
		r = put_plain(w, "</tool_call>");
	free(text);
	return r;
}

static int put_content(struct render *w, size_t i)
{
	struct buf text = BUF_INIT(w->out->max);
	const json_t *calls = NULL;
	int r = chat_content(w, i, &text);

	if (r == 0)
		r = put_text(w, false, (const char *)text.data, text.len);
	if (r == 0 && (r = chat_calls(w, i, &calls)) == 0 && calls)
		r = put_calls(w, calls, i, text.len > 0);
	buf_done(&text);
	return r;
}

static int put_tools(struct render *w, bool after_text)
{
	char *text = json_dumps(w->tools, JSON_COMPACT);
	int r;

	if (!text)
		return -ENOMEM;
	r = after_text ? put_plain(w, "\n\n") : 0;
	if (r == 0 && (r = put_plain(w, TOOLS_INTRO)) == 0 && (r = put_plain(w, text)) == 0)
		r = put_plain(w, TOOLS_OUTRO);
	free(text);
	return r;
}

static int open_message(struct render *w, const char *role)
{
	int r = put_marker(w, "<|im_start|>");

	if (r == 0 && (r = put_plain(w, role)) == 0)
		r = put_plain(w, "\n");
	return r;
}

static int close_message(struct render *w)
{
	int r = put_marker(w, "<|im_end|>");

	return r < 0 ? r : put_plain(w, "\n");
}

/* The system message that the client did not send: the template's default, and
 * the tools when there are any. */
static int default_system(const struct chat_template *t, struct render *w)
{
	int r;

	if (!t->default_system && !w->tools)
		return 0;
	if ((r = open_message(w, "system")) < 0)
		return r;
	if (t->default_system && (r = put_plain(w, t->default_system)) < 0)
		return r;
	if (w->tools && (r = put_tools(w, t->default_system != NULL)) < 0)
		return r;
	return close_message(w);
}

int chat_render_chatml(const struct chat_template *t, struct render *w)
{
	size_t n = json_array_size(w->messages);
	int r;

	for (size_t i = 0; i < n; i++) {
		const char *role = "";
		size_t before;

		if ((r = chat_role(w, i, &role)) < 0)
			return r;
		bool system = role[0] == 's';
		if (i == 0 && !system && (r = default_system(t, w)) < 0)
			return r;
		if ((r = open_message(w, role)) < 0)
			return r;
		before = w->out->len;
		if ((r = put_content(w, i)) < 0)
			return r;
		if (i == 0 && w->tools && system && (r = put_tools(w, w->out->len > before)) < 0)
			return r;
		if ((r = close_message(w)) < 0)
			return r;
	}
	return w->prompt ? open_message(w, "assistant") : 0;
}
