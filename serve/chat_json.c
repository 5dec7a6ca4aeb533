/* JSON as Python's json.dumps(ensure_ascii=False) writes it: ", " and ": ", keys in their order, \u00xx in lower
 * case, the shortest digits that give a number back.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "serve/chat_text.h"

static int put_string(struct buf *out, const char *s, size_t n)
{
	static const char escapes[] = "\"\"\\\\\bb\ff\nn\rr\tt";
	int r = buf_puts(out, "\"");

	for (size_t i = 0, from = 0; r == 0 && i <= n; i++) {
		const char *e = i < n && s[i] ? strchr(escapes, s[i]) : NULL;
		bool plain = i < n && (uint8_t)s[i] >= 0x20 && s[i] != '"' && s[i] != '\\';
		if (plain)
			continue;
		r = buf_append(out, s + from, i - from);
		from = i + 1;
		if (r == 0 && i < n && e && (uint8_t)s[i] < 0x20)
			r = buf_printf(out, "\\%c", e[1]);
		else if (r == 0 && i < n && (s[i] == '"' || s[i] == '\\'))
			r = buf_printf(out, "\\%c", s[i]);
		else if (r == 0 && i < n)
			r = buf_printf(out, "\\u%04x", (unsigned)(uint8_t)s[i]);
	}
	return r ? r : buf_puts(out, "\"");
}

/* As repr: the fewest digits, an exponent below 1e-4 and from 1e16 on. */
static int put_real(struct buf *out, double v)
{
	char text[40], digits[40];
	int p = 1, exponent;

	do
		(void)snprintf(text, sizeof text, "%.*e", p - 1, v);
	while (strtod(text, NULL) != v && ++p <= 17);
	exponent = atoi(strchr(text, 'e') + 1);
	if (exponent < -4 || exponent >= 16) { /* repr writes at least two digits of it, as printf does */
		return buf_puts(out, text);
	}
	(void)snprintf(digits, sizeof digits, "%.*f", p - 1 > exponent ? p - 1 - exponent : 1, v);
	return buf_puts(out, digits);
}

static int new_line(struct buf *out, int indent, int depth)
{
	return indent ? buf_printf(out, "\n%*s", indent * depth, "") : 0;
}

static int put(struct buf *out, const json_t *v, int indent, int depth);

static int put_items(struct buf *out, const json_t *v, int indent, int depth)
{
	const char *key;
	json_t *x;
	size_t i, n = 0;
	int r = 0;

	if (json_is_array(v)) {
		json_array_foreach((json_t *)v, i, x) {
			r = r || !n++ ? r : buf_puts(out, indent ? "," : ", ");
			r = r ? r : new_line(out, indent, depth + 1);
			r = r ? r : put(out, x, indent, depth + 1);
		}
	} else {
		json_object_foreach((json_t *)v, key, x) {
			r = r || !n++ ? r : buf_puts(out, indent ? "," : ", ");
			r = r ? r : new_line(out, indent, depth + 1);
			r = r ? r : put_string(out, key, strlen(key));
			r = r ? r : buf_puts(out, ": ");
			r = r ? r : put(out, x, indent, depth + 1);
		}
	}
	return r || !n ? r : new_line(out, indent, depth);
}

static int put(struct buf *out, const json_t *v, int indent, int depth)
{
	int r;

	switch (json_typeof(v)) {
	case JSON_STRING:
		return put_string(out, json_string_value(v), json_string_length(v));
	case JSON_INTEGER:
		return buf_printf(out, "%lld", (long long)json_integer_value(v));
	case JSON_REAL:
		return put_real(out, json_real_value(v));
	case JSON_TRUE:
		return buf_puts(out, "true");
	case JSON_FALSE:
		return buf_puts(out, "false");
	case JSON_NULL:
		return buf_puts(out, "null");
	default:
		r = buf_puts(out, json_is_array(v) ? "[" : "{");
		r = r ? r : put_items(out, v, indent, depth);
		return r ? r : buf_puts(out, json_is_array(v) ? "]" : "}");
	}
}

int chat_json(struct buf *out, const json_t *v, int indent)
{
	return put(out, v, indent, 0);
}
