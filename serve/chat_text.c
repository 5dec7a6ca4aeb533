/* From a request's messages to what templates see, and the list of segments.
 *
 * Only the markers that a renderer itself writes become control tokens. A role
 * or a content that spells "<|im_start|>" stays plain text: the output is a list of
 * segments, each to be encoded with or without control tokens.
 */
#include "serve/chat_text.h"
#include <stdlib.h>
#include <string.h>

int put_text(struct render *w, bool special, const char *p, size_t len)
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

int put_plain(struct render *w, const char *s)
{
	return put_text(w, false, s, strlen(s));
}

int put_marker(struct render *w, const char *s)
{
	return put_text(w, true, s, strlen(s));
}

static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function", NULL};

int chat_role(const struct render *w, size_t i, const char **ret_role)
{
	const json_t *m = json_array_get(w->messages, i), *role = json_object_get(m, "role");

	if (!json_is_object(m))
		return errtext_set(w->e, -EINVAL, "messages[%zu] must be an object", i);
	if (!json_is_string(role))
		return errtext_set(w->e, -EINVAL, "messages[%zu].role must be a string", i);
	for (int k = 0; roles[k]; k++)
		if (strcmp(roles[k], json_string_value(role)) == 0) {
			*ret_role = k == 1 ? "system" : roles[k];
			return 0;
		}
	return errtext_set(w->e, -EINVAL, "messages[%zu].role '%.40s' is not one of system, developer, user, assistant, tool, function", i,
			   json_string_value(role));
}

static int put_part(struct buf *out, const json_t *part, size_t i, size_t k, struct errtext *e)
{
	const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");

	if (!json_is_object(part) || !json_is_string(type))
		return errtext_set(e, -EINVAL, "messages[%zu].content[%zu] must be an object with a type", i, k);
	if (strcmp(json_string_value(type), "text") != 0 && strcmp(json_string_value(type), "input_text") != 0)
		return errtext_set(e, -EINVAL, "messages[%zu].content[%zu].type '%.40s' is not supported; only text is", i, k,
				   json_string_value(type));
	if (!json_is_string(text))
		return errtext_set(e, -EINVAL, "messages[%zu].content[%zu].text must be a string", i, k);
	return buf_append(out, json_string_value(text), json_string_length(text));
}

int chat_calls(const struct render *w, size_t i, const json_t **ret)
{
	const json_t *m = json_array_get(w->messages, i), *calls = json_object_get(m, "tool_calls");
	const char *role = json_string_value(json_object_get(m, "role"));

	if (calls && !json_is_null(calls) && !json_is_array(calls))
		return errtext_set(w->e, -EINVAL, "messages[%zu].tool_calls must be a list", i);
	*ret = role && strcmp(role, "assistant") == 0 && json_array_size(calls) > 0 ? calls : NULL;
	return 0;
}

int chat_content(const struct render *w, size_t i, struct buf *out)
{
	const json_t *c = json_object_get(json_array_get(w->messages, i), "content"), *calls;
	json_t *part;
	size_t k;
	int r = chat_calls(w, i, &calls);

	if (r < 0)
		return r;
	if (json_is_string(c))
		return buf_append(out, json_string_value(c), json_string_length(c));
	if (json_is_array(c)) {
		json_array_foreach((json_t *)c, k, part)
			if ((r = put_part(out, part, i, k, w->e)) < 0)
				return r;
		return 0;
	}
	if (calls && (!c || json_is_null(c)))
		return 0;
	return errtext_set(w->e, -EINVAL, "messages[%zu].content must be a string or a list of text parts", i);
}

int chat_call(const struct render *w, size_t i, const json_t *calls, size_t k, const char **ret_name, json_t **ret_args)
{
	json_t *f = json_object_get(json_array_get(calls, k), "function"), *args = json_object_get(f, "arguments"), *parsed = NULL;

	if (!json_is_string(json_object_get(f, "name")))
		return errtext_set(w->e, -EINVAL, "messages[%zu].tool_calls[%zu].function.name must be a string", i, k);
	if (json_is_string(args)) /* OpenAI sends them as JSON inside a string */
		parsed = json_loads(json_string_value(args), JSON_DECODE_ANY, NULL);
	*ret_name = json_string_value(json_object_get(f, "name"));
	*ret_args = parsed ? parsed : args ? json_incref(args) : json_object();
	return *ret_args ? 0 : -ENOMEM;
}
