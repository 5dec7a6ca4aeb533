/* Reading is lenient about blanks and about an end mark that never came (the answer may have been
 * cut by max_tokens right after the JSON), strict about the JSON itself.
 */
#include "serve/toolcall.h"
#include <stdlib.h>
#include <string.h>
#include "daemon/base/sha.h"
#include "serve/openai_fields.h"

const char TOOLCALL_OPEN[sizeof "<tool_call>"] = "<tool_call>";
static const char CLOSE[] = "</tool_call>";

enum { MAX_TOOLS = 256, MAX_CALLS = 128, MAX_NAME = 64 };

static bool is_name(const char *s)
{
	size_t n = s ? strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") : 0;

	return n > 0 && n <= MAX_NAME && !s[n];
}

int toolcall_check(const json_t *tools, struct openai_error *e)
{
	const json_t *t;
	size_t i;

	if (!tools)
		return 0;
	if (!json_is_array(tools) || json_array_size(tools) > MAX_TOOLS)
		return openai_fail(e, 400, "tools", "invalid_value", "tools must be a list of at most %d functions.", MAX_TOOLS);
	json_array_foreach((json_t *)tools, i, t)
	{
		const char *type = json_string_value(json_object_get(t, "type"));
		if (!type || strcmp(type, "function") != 0 || !is_name(json_string_value(json_object_get(json_object_get(t, "function"), "name"))))
			return openai_fail(e, 400, "tools", "invalid_value",
					   "tools[%zu] must be {\"type\": \"function\", \"function\": {\"name\": 1 to %d of A-Z a-z 0-9 _ - ., ...}}.", i, MAX_NAME);
	}
	return 0;
}

const json_t *toolcall_named(const json_t *tools, const char *name)
{
	const json_t *t;
	size_t i;

	json_array_foreach((json_t *)tools, i, t)
	{
		const char *is = json_string_value(json_object_get(json_object_get(t, "function"), "name"));
		if (is && name && strcmp(is, name) == 0)
			return t;
	}
	return NULL;
}

/* The first member that the arguments must have, as far as it is certain: its name, and the quote of a string. */
static void first_member(const json_t *function, char *out, size_t size)
{
	const json_t *p = json_object_get(function, "parameters"), *required = json_object_get(p, "required");
	const char *name = json_string_value(json_array_get(required, 0));
	const json_t *schema = name ? json_object_get(json_object_get(p, "properties"), name) : NULL;
	const char *type = json_string_value(json_object_get(schema, "type"));

	*out = 0;
	if (is_name(name) && schema)
		(void)snprintf(out, size, "\"%s\": %s", name, type && strcmp(type, "string") == 0 && !json_object_get(schema, "enum") ? "\"" : "");
}

struct form { const char *family, *before, *arguments; }; /* family: how its name begins */
static const struct form forms[] = {
	{"qwen", "<tool_call>\n{\"name\": \"", "\", \"arguments\": "},
	{"llama", "{\"name\": \"", "\", \"parameters\": "},
	{"", "<tool_call>[{\"name\": \"", "\", \"arguments\": "},
};

char *toolcall_beginning(const json_t *tool, const char *family)
{
	const struct form *m = forms;
	const json_t *f = json_object_get(tool, "function");
	char member[MAX_NAME + 8], *s = NULL;
	int n;

	first_member(f, member, sizeof member);
	while (strncmp(m->family, family, strlen(m->family)) != 0)
		m++;
	n = f ? asprintf(&s, "%s%s%s{%s", m->before, json_string_value(json_object_get(f, "name")), m->arguments, member)
	      : asprintf(&s, "%s", m->before);
	return n < 0 ? NULL : s;
}

static bool add_call(json_t *list, const char *name, char *arguments /* taken */, const char *seed)
{
	char key[160], hex[SHA_HEX], id[32];
	json_t *args = arguments ? json_string(arguments) : NULL, *call;

	free(arguments);
	(void)snprintf(key, sizeof key, "%.100s/%zu", seed, json_array_size(list));
	sha_hex(key, strlen(key), hex);
	(void)snprintf(id, sizeof id, "call_%.24s", hex);
	call = args ? json_pack("{s:s,s:s,s:{s:s,s:o}}", "id", id, "type", "function", "function", "name", name, "arguments", args) : NULL;
	return call && json_array_append_new(list, call) == 0;
}

/* One object of the model to one of OpenAI's. */
static bool add_object(json_t *list, const json_t *o, const char *seed)
{
	const char *name = json_string_value(json_object_get(o, "name"));
	const json_t *args = json_object_get(o, "arguments");

	args = args ? args : json_object_get(o, "parameters");
	if (!is_name(name) || json_array_size(list) >= MAX_CALLS || !(json_is_object(args) || json_is_string(args)))
		return false;
	return add_call(list, name, json_is_string(args) ? strdup(json_string_value(args)) : json_dumps(args, JSON_COMPACT), seed);
}

static bool add_value(json_t *list, const json_t *v, const char *seed)
{
	const json_t *one;
	size_t i;

	if (!json_is_array(v))
		return add_object(list, v, seed);
	json_array_foreach((json_t *)v, i, one)
		if (!add_object(list, one, seed))
			return false;
	return json_array_size(v) > 0;
}

static size_t blanks(const char *p, size_t n)
{
	size_t i = 0;

	while (i < n && (p[i] == ' ' || p[i] == '\n' || p[i] == '\r' || p[i] == '\t'))
		i++;
	return i;
}

/* One or more JSON values, with blanks, commas or semicolons between. */
static bool add_values(json_t *list, const char *p, size_t n, const char *seed)
{
	size_t at = blanks(p, n);

	while (at < n) {
		json_error_t where;
		json_t *v = openai_json_bounded(p + at, n - at) ? json_loadb(p + at, n - at, JSON_DISABLE_EOF_CHECK, &where) : NULL;
		bool ok = v && add_value(list, v, seed);
		json_decref(v);
		if (!ok)
			return false;
		at += (size_t)where.position;
		at += blanks(p + at, n - at);
		if (at < n && (p[at] == ',' || p[at] == ';'))
			at += 1 + blanks(p + at + 1, n - at - 1);
	}
	return json_array_size(list) > 0;
}

/* Broken JSON after a forced beginning that named the function: its arguments as written. */
static bool add_broken(json_t *list, const char *p, size_t n, const char *seed)
{
	static const char head[] = "{\"name\": \"";
	const char *stop = p + n, *name, *end = NULL, *args = NULL;
	char copy[MAX_NAME + 1];

	p += blanks(p, n);
	p += p < stop && *p == '[';
	if ((size_t)(stop - p) < sizeof head || memcmp(p, head, sizeof head - 1) != 0)
		return false;
	name = p + sizeof head - 1;
	for (size_t i = 0; i < sizeof forms / sizeof *forms && !end; i++) {
		end = memmem(name, (size_t)(stop - name), forms[i].arguments, strlen(forms[i].arguments));
		args = end ? end + strlen(forms[i].arguments) : NULL;
	}
	if (!end || end == name || (size_t)(end - name) > MAX_NAME)
		return false;
	(void)snprintf(copy, sizeof copy, "%.*s", (int)(end - name), name);
	n = (size_t)(stop - args);
	/* a whole object that is merely not followed by what it should be */
	json_error_t where;
	json_t *v = json_loadb(args, n, JSON_DISABLE_EOF_CHECK, &where);
	size_t len = json_is_object(v) ? (size_t)where.position : n;
	json_decref(v);
	return is_name(copy) && add_call(list, copy, strndup(args, len), seed);
}

/* Sections between the marks, from p on. */
static bool add_marked(json_t *list, const char *p, const char *end, bool forced, const char *seed)
{
	const size_t n_open = sizeof TOOLCALL_OPEN - 1, n_close = sizeof CLOSE - 1;

	while ((size_t)(end - p) >= n_open && memcmp(p, TOOLCALL_OPEN, n_open) == 0) {
		const char *from = p + n_open, *close = memmem(from, (size_t)(end - from), CLOSE, n_close);
		size_t n = (size_t)((close ? close : end) - from);
		if (!add_values(list, from, n, seed)) {
			json_array_clear(list);
			return forced && add_broken(list, from, n, seed);
		}
		p = close ? close + n_close : end;
		p += blanks(p, (size_t)(end - p));
	}
	return json_array_size(list) > 0;
}

json_t *toolcall_find(const char *text, size_t len, bool forced, const char *seed, size_t *ret_before)
{
	const char *open = memmem(text, len, TOOLCALL_OPEN, sizeof TOOLCALL_OPEN - 1);
	size_t skip = blanks(text, len);
	json_t *list = json_array();
	bool ok;

	if (open)
		ok = add_marked(list, open, text + len, forced, seed);
	else
		ok = skip < len && text[skip] == '{' && (add_values(list, text + skip, len - skip, seed) ||
							 (forced && json_array_clear(list) == 0 && add_broken(list, text + skip, len - skip, seed)));
	if (!ok) {
		json_decref(list);
		return NULL;
	}
	*ret_before = open ? (size_t)(open - text) : 0;
	return list;
}

void toolcall_watch(struct toolcall_watch *w, const char *p, size_t n)
{
	for (size_t i = 0; i < n && !w->over; i++) {
		char c = p[i];
		if (w->escape)
			w->escape = false;
		else if (w->quoted)
			w->escape = c == '\\', w->quoted = c != '"';
		else if (c == '"')
			w->quoted = true;
		else if (c == '{' || c == '[')
			w->depth++;
		else if (c == '}' || c == ']')
			w->over = --w->depth <= w->base;
	}
}

struct toolcall_watch toolcall_watch_start(const char *beginning)
{
	struct toolcall_watch w = {.base = -1};
	const char *json = strstr(beginning, TOOLCALL_OPEN);

	json = json ? json + sizeof TOOLCALL_OPEN - 1 : beginning;
	toolcall_watch(&w, json, strlen(json));
	w.base = w.depth - 1; /* the end of what was begun last: the arguments, or the call */
	return w;
}
