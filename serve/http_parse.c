/* Request line, fields, then what they say about the body.
 *
 * Everything is checked before anything is believed: a head either yields one meaning or a
 * refusal.
 */
#include "serve/http_parse.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool is_token(unsigned char c)
{
	return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static int refuse(int status, const char **ret_why, const char *why)
{
	*ret_why = why;
	return status;
}

static int hex(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* "http://host/path?query" or "/path?query" to the decoded path; NULL when it is none. */
static const char *decode_target(char *t)
{
	char *out, *from;

	if (strncasecmp(t, "http://", 7) == 0 || strncasecmp(t, "https://", 8) == 0) {
		t = strstr(t, "://") + 3;
		t += strcspn(t, "/?");
		if (*t != '/')
			return "/";
	}
	if (strcmp(t, "*") == 0)
		return t;
	if (*t != '/')
		return NULL;
	for (out = from = t; *from && *from != '?' && *from != '#'; from++) {
		if (*from != '%') {
			*out++ = *from;
			continue;
		}
		int hi = hex(from[1]), lo = hi < 0 ? -1 : hex(from[2]);
		if (lo < 0 || hi * 16 + lo < 0x20 || hi * 16 + lo == 0x7f)
			return NULL;
		*out++ = (char)(hi * 16 + lo);
		from += 2;
	}
	*out = 0;
	return t;
}

static int request_line(char *line, struct http_head *h, const char **why)
{
	char *target = strchr(line, ' '), *version = target ? strchr(target + 1, ' ') : NULL;

	if (!version || target == line)
		return refuse(400, why, "The request line must be a method, a path and a version.");
	*target++ = 0;
	*version++ = 0;
	for (const char *p = line; *p; p++)
		if (!is_token((unsigned char)*p))
			return refuse(400, why, "The request's method is not a word.");
	for (const char *p = target; *p; p++)
		if ((unsigned char)*p <= 0x20 || *p == 0x7f)
			return refuse(400, why, "The request's path holds a control character.");
	if (strncmp(version, "HTTP/", 5) != 0)
		return refuse(400, why, "The request line must end in HTTP/1.1.");
	if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0)
		return refuse(505, why, "This server speaks HTTP/1.1 and HTTP/1.0.");
	h->v11 = version[7] == '1';
	h->method = line;
	h->path = decode_target(target);
	return h->path ? 0 : refuse(400, why, "The request's path must begin with / and its % escapes must be two hexadecimal digits.");
}

static int field_line(char *line, struct http_head *h, const char **why)
{
	char *colon = strchr(line, ':'), *end;

	if (!colon || colon == line)
		return refuse(400, why, "A header line must be a name, a colon and a value.");
	for (char *p = line; p < colon; p++)
		if (!is_token((unsigned char)*p))
			return refuse(400, why, "A header's name holds a character that no name may hold.");
	if (h->n_fields == HTTP_MAX_FIELDS)
		return refuse(431, why, "The request has too many header lines.");
	*colon++ = 0;
	colon += strspn(colon, " \t");
	for (end = colon + strlen(colon); end > colon && (end[-1] == ' ' || end[-1] == '\t'); end--)
		;
	*end = 0;
	for (const char *p = colon; *p; p++)
		if (((unsigned char)*p < 0x20 && *p != '\t') || *p == 0x7f)
			return refuse(400, why, "A header's value holds a control character.");
	h->fields[h->n_fields++] = (struct http_field){line, colon};
	return 0;
}

const char *http_head_get(const struct http_head *h, const char *name)
{
	for (int i = 0; i < h->n_fields; i++)
		if (strcasecmp(h->fields[i].name, name) == 0)
			return h->fields[i].value;
	return NULL;
}

static int read_length(const char *v, struct http_head *h, const char **why)
{
	size_t n = strlen(v), x = 0;

	if (n == 0 || n > 15 || strspn(v, "0123456789") != n)
		return refuse(400, why, "Content-Length must be one decimal number.");
	for (; *v; v++)
		x = x * 10 + (size_t)(*v - '0');
	if (h->has_length && x != h->length)
		return refuse(400, why, "The request has two lengths.");
	h->has_length = true;
	h->length = x;
	return 0;
}

/* Is the word in a comma-separated list? */
static bool lists(const char *list, const char *word)
{
	size_t n = strlen(word);

	while (*list) {
		list += strspn(list, ", \t");
		size_t k = strcspn(list, ", \t");
		if (k == n && strncasecmp(list, word, n) == 0)
			return true;
		list += k;
	}
	return false;
}

static int meaning(struct http_head *h, const char **why)
{
	int hosts = 0, r;

	h->keep_alive = h->v11;
	for (int i = 0; i < h->n_fields; i++) {
		const char *name = h->fields[i].name, *v = h->fields[i].value;
		if (strcasecmp(name, "Content-Length") == 0) {
			if ((r = read_length(v, h, why)) != 0)
				return r;
		} else if (strcasecmp(name, "Transfer-Encoding") == 0) {
			if (h->chunked || strcasecmp(v, "chunked") != 0)
				return refuse(501, why, "The only Transfer-Encoding this server reads is chunked.");
			h->chunked = true;
		} else if (strcasecmp(name, "Connection") == 0) {
			h->keep_alive = !lists(v, "close") && (h->keep_alive || lists(v, "keep-alive"));
		} else if (strcasecmp(name, "Expect") == 0) {
			if (strcasecmp(v, "100-continue") != 0)
				return refuse(417, why, "The only expectation this server meets is 100-continue.");
			h->expects_continue = h->v11;
		} else if (strcasecmp(name, "Host") == 0) {
			hosts++;
		}
	}
	if (h->chunked && (h->has_length || !h->v11))
		return refuse(400, why, "A request has either Content-Length or, in HTTP/1.1, Transfer-Encoding: not both.");
	if (hosts != 1 && h->v11)
		return refuse(400, why, "A request must have one Host header.");
	return 0;
}

int http_head_parse(char *text, size_t len, struct http_head *ret, const char **ret_why)
{
	char *line = text, *end = text + len;
	int r = 0;

	*ret = (struct http_head){0};
	if (memchr(text, 0, len))
		return refuse(400, ret_why, "The request's head holds a NUL.");
	*end = 0;
	for (int i = 0; line < end; i++) {
		char *eol = strchr(line, '\n');
		if (!eol || eol == line || eol[-1] != '\r')
			return refuse(400, ret_why, "The lines of a request's head must end in CRLF.");
		eol[-1] = 0;
		if (i > 0 && !*line) /* the empty line that ends the head */
			return eol + 1 == end ? meaning(ret, ret_why) : refuse(400, ret_why, "The request's head ends before its end.");
		if (strchr(line, '\r'))
			return refuse(400, ret_why, "The request's head holds a lone CR.");
		r = i == 0 ? request_line(line, ret, ret_why) : field_line(line, ret, ret_why);
		if (r != 0)
			return r;
		line = eol + 1;
	}
	return refuse(400, ret_why, "The request's head does not end in an empty line.");
}

/* ---- chunks: size [; extension] CRLF data CRLF ... 0 CRLF [trailer lines] CRLF ---- */

enum { SIZE, EXTENSION, SIZE_LF, DATA, DATA_CR, DATA_LF, TRAILER, TRAILER_LINE, TRAILER_LF, END_LF, OVER };

static int size_byte(struct http_chunks *c, uint8_t b)
{
	int d = hex((char)b);

	if (d >= 0) {
		if (++c->digits > 8)
			return -EINVAL;
		c->left = c->left * 16 + (size_t)d;
		return SIZE;
	}
	if (c->digits == 0)
		return -EINVAL;
	return b == '\r' ? SIZE_LF : b == ';' || b == ' ' || b == '\t' ? EXTENSION : -EINVAL;
}

/* The state after one byte that is no data. */
static int line_byte(struct http_chunks *c, uint8_t b)
{
	bool counted = c->state == EXTENSION || c->state >= TRAILER;

	if (counted && ++c->lines > HTTP_MAX_CHUNK_LINES)
		return -EINVAL;
	switch (c->state) {
	case SIZE:
		return size_byte(c, b);
	case EXTENSION:
		return b == '\r' ? SIZE_LF : b == '\n' ? -EINVAL : EXTENSION;
	case SIZE_LF:
		return b != '\n' ? -EINVAL : c->left ? DATA : TRAILER;
	case DATA_CR:
		return b == '\r' ? DATA_LF : -EINVAL;
	case DATA_LF:
		c->digits = 0;
		return b == '\n' ? SIZE : -EINVAL;
	case TRAILER:
		return b == '\r' ? END_LF : b == '\n' ? -EINVAL : TRAILER_LINE;
	case TRAILER_LINE:
		return b == '\r' ? TRAILER_LF : b == '\n' ? -EINVAL : TRAILER_LINE;
	case TRAILER_LF:
		return b == '\n' ? TRAILER : -EINVAL;
	case END_LF:
		return b == '\n' ? OVER : -EINVAL;
	}
	return -EINVAL;
}

int http_chunks_step(struct http_chunks *c, const uint8_t *p, size_t n, size_t *ret_used, const uint8_t **ret_data, size_t *ret_n)
{
	size_t i = 0;

	*ret_n = 0;
	*ret_data = p;
	while (i < n && c->state != DATA && c->state != OVER) {
		int s = line_byte(c, p[i++]);
		if (s < 0)
			return s;
		c->state = s;
	}
	if (c->state == DATA && i < n) {
		*ret_data = p + i;
		*ret_n = n - i < c->left ? n - i : c->left;
		c->left -= *ret_n;
		i += *ret_n;
		if (c->left == 0)
			c->state = DATA_CR;
	}
	*ret_used = i;
	return c->state == OVER ? HTTP_CHUNKS_DONE : HTTP_CHUNKS_MORE;
}
