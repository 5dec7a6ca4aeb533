/* Llama 3, 3.1, 3.2 and 3.3.
 *
 * From 3.1 on the system message always comes, with dates; tools stand in the first user message, one indented JSON
 * object each. 3.2 writes today's date where the others have one of their own; a request may name it.
 */
#include <string.h>
#include <time.h>
#include "serve/chat_text.h"
#include "serve/utf8.h"

/* White space to Python's str.strip. */
static bool blank(uint32_t c)
{
	return (c >= 0x9 && c <= 0xd) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
	       c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* Text of message i without the blanks around it. */
static int trimmed(const struct render *w, size_t i, struct buf *text)
{
	size_t keep = 0, len;
	int r;

	buf_clear(text);
	if ((r = chat_content(w, i, text)) < 0)
		return r;
	while (text->len && blank(utf8_read(text->data, &len)))
		buf_consume(text, len);
	for (size_t at = 0; at < text->len; at += len)
		if (!blank(utf8_read(text->data + at, &len)))
			keep = at + len;
	text->len = keep;
	return 0;
}

static int put_buf(struct render *w, const struct buf *b)
{
	return put_text(w, false, (const char *)b->data, b->len);
}

static int open_message(struct render *w, const char *role)
{
	int r = put_marker(w, "<|start_header_id|>");

	r = r ? r : put_plain(w, role);
	r = r ? r : put_marker(w, "<|end_header_id|>");
	return r ? r : put_plain(w, "\n\n");
}

static int put_json(struct render *w, const json_t *v, int indent)
{
	struct buf b = BUF_INIT(w->out->max);
	int r = chat_json(&b, v, indent);

	r = r ? r : put_buf(w, &b);
	buf_done(&b);
	return r;
}

static int put_date(const struct chat_template *t, struct render *w)
{
	char today[32] = "26 Jul 2024";
	time_t now = time(NULL);
	struct tm tm;

	if (t->dated && localtime_r(&now, &tm))
		(void)strftime(today, sizeof today, "%d %b %Y", &tm);
	return put_plain(w, w->o->date ? w->o->date : today);
}

static int put_system(const struct chat_template *t, struct render *w, const struct buf *text)
{
	int r = open_message(w, "system");

	if (r == 0 && w->tools)
		r = put_plain(w, "Environment: ipython\n");
	r = r ? r : put_plain(w, "Cutting Knowledge Date: December 2023\nToday Date: ");
	r = r ? r : put_date(t, w);
	r = r ? r : put_plain(w, "\n\n");
	r = r ? r : put_buf(w, text);
	return r ? r : put_marker(w, "<|eot_id|>");
}

/* The first message after the system's, with the tools before its text. */
static int put_tools(struct render *w, size_t i, struct buf *text)
{
	int r;

	if (i >= json_array_size(w->messages))
		return errtext_set(w->e, -EINVAL, "tools need a user message to stand in");
	r = open_message(w, "user");
	r = r ? r : put_plain(w, "Given the following functions, please respond with a JSON for a function call with its proper arguments that best "
				 "answers the given prompt.\n\nRespond in the format {\"name\": function name, \"parameters\": dictionary of argument "
				 "name and its value}.Do not use variables.\n\n");
	for (size_t k = 0; r == 0 && k < json_array_size(w->tools); k++)
		if ((r = put_json(w, json_array_get(w->tools, k), 4)) == 0)
			r = put_plain(w, "\n\n");
	r = r ? r : trimmed(w, i, text);
	r = r ? r : put_buf(w, text);
	return r ? r : put_marker(w, "<|eot_id|>");
}

static int put_call(struct render *w, size_t i, const json_t *calls)
{
	const char *name;
	json_t *args;
	int r;

	if (json_array_size(calls) != 1)
		return errtext_set(w->e, -EINVAL, "messages[%zu].tool_calls holds %zu calls; this model takes one at a time", i, json_array_size(calls));
	if ((r = chat_call(w, i, calls, 0, &name, &args)) < 0)
		return r;
	r = open_message(w, "assistant");
	r = r ? r : put_plain(w, "{\"name\": \"");
	r = r ? r : put_plain(w, name);
	r = r ? r : put_plain(w, "\", \"parameters\": ");
	r = r ? r : put_json(w, args, 0);
	json_decref(args);
	r = r ? r : put_plain(w, "}");
	return r ? r : put_marker(w, "<|eot_id|>");
}

/* A tool's answer is written as JSON: a text in quotes. */
static int put_answer(struct render *w, size_t i, struct buf *text)
{
	int r = open_message(w, "ipython");

	buf_clear(text);
	r = r ? r : chat_content(w, i, text);
	if (r == 0) {
		json_t *s = json_stringn((const char *)text->data, text->len);
		r = s ? put_json(w, s, 0) : -ENOMEM;
		json_decref(s);
	}
	return r ? r : put_marker(w, "<|eot_id|>");
}

static int put_message(const struct chat_template *t, struct render *w, size_t i, struct buf *text)
{
	const json_t *calls = NULL;
	const char *role = "";
	int r = chat_role(w, i, &role);

	r = r ? r : chat_calls(w, i, &calls);
	if (r < 0)
		return r;
	if (!t->plain && calls)
		return put_call(w, i, calls);
	if (!t->plain && (strcmp(role, "tool") == 0 || strcmp(role, "function") == 0))
		return put_answer(w, i, text);
	r = open_message(w, role);
	r = r ? r : trimmed(w, i, text);
	r = r ? r : put_buf(w, text);
	return r ? r : put_marker(w, "<|eot_id|>");
}

int chat_render_llama3(const struct chat_template *t, struct render *w)
{
	size_t n = json_array_size(w->messages), i = 0;
	struct buf text = BUF_INIT(w->out->max);
	const char *role = "";
	int r = chat_role(w, 0, &role);

	r = r ? r : put_marker(w, "<|begin_of_text|>");
	if (r == 0 && !t->plain) {
		if (strcmp(role, "system") == 0)
			r = trimmed(w, i++, &text);
		r = r ? r : put_system(t, w, &text);
		if (r == 0 && w->tools)
			r = put_tools(w, i++, &text);
	}
	for (; r == 0 && i < n; i++)
		r = put_message(t, w, i, &text);
	buf_done(&text);
	return r == 0 && w->prompt ? open_message(w, "assistant") : r;
}
