/* A scanner that knows only what it must to find where an item ends: depth of brackets,
 * inside a string or not, after a backslash or not. The bytes of one item
 * are collected and jansson parses them.
 */
#include "tests/bench/load/json_list.h"
#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/base/buf.h"

struct json_list {
	FILE *f;
	const char *path; /* owned */
	struct buf item;
	long skipped;
	bool ended;
};

struct scan {
	int depth;
	bool string, escape, any, overflow;
};

int json_list_open(const char *path, size_t max_item, struct json_list **ret, struct errtext *e)
{
	struct json_list *l = calloc(1, sizeof *l);
	int c;

	if (!l)
		return -ENOMEM;
	l->item.max = max_item;
	l->path = strdup(path);
	l->f = fopen(path, "re");
	if (!l->f || !l->path) {
		int r = l->path ? -errno : -ENOMEM;
		json_list_close(l);
		return errtext_set(e, r, "%s cannot be opened: %s", path, strerror(-r));
	}
	while ((c = getc_unlocked(l->f)) != EOF && isspace(c))
		;
	if (c != '[') {
		json_list_close(l);
		return errtext_set(e, -EINVAL, "%s does not begin with a JSON list", path);
	}
	*ret = l;
	return 0;
}

struct json_list *json_list_close(struct json_list *l)
{
	if (!l)
		return NULL;
	if (l->f)
		(void)fclose(l->f);
	free((char *)l->path);
	buf_done(&l->item);
	free(l);
	return NULL;
}

long json_list_skipped(const struct json_list *l)
{
	return l->skipped;
}

/* Takes one byte in; true when it stands behind the item (a comma or the closing bracket). */
static bool ends_item(struct scan *s, int c)
{
	if (s->string) {
		s->string = s->escape || c != '"';
		s->escape = !s->escape && c == '\\';
		return false;
	}
	if (c == '"')
		s->string = true;
	else if (c == '[' || c == '{')
		s->depth++;
	else if ((c == ']' || c == '}') && s->depth > 0)
		s->depth--;
	else if (s->depth == 0 && (c == ',' || c == ']'))
		return true;
	return false;
}

/* The bytes up to the end of one item into l->item; the byte behind it, or EOF. */
static int collect(struct json_list *l, struct scan *s)
{
	int c;

	buf_clear(&l->item);
	while ((c = getc_unlocked(l->f)) != EOF) {
		uint8_t byte = (uint8_t)c;
		if (!s->any && isspace(c))
			continue;
		if (ends_item(s, c))
			return c;
		s->any = true;
		if (!s->overflow && buf_append(&l->item, &byte, 1) < 0)
			s->overflow = true;
	}
	return EOF;
}

int json_list_next(struct json_list *l, json_t **ret, struct errtext *e)
{
	while (!l->ended) {
		struct scan s = {0};
		int end = collect(l, &s);
		json_t *j = NULL;

		if (end == EOF)
			return ferror(l->f) ? errtext_set(e, -EIO, "%s cannot be read", l->path) : JSON_LIST_CUT;
		if (s.any && !s.overflow)
			j = json_loadb((char *)l->item.data, l->item.len, JSON_DECODE_ANY, NULL);
		l->skipped += s.any && !j;
		l->ended = end == ']';
		if (j) {
			*ret = j;
			return 0;
		}
	}
	return JSON_LIST_END;
}
