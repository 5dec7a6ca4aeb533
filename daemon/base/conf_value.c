/* Configuration values: from text with type and range checked, back to JSON, and
 * compared; the nearest right name of a wrong one.
 */
#include "daemon/base/conf_value.h"
#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/base/buf.h"

static void *conf_field(const struct conf_entry *entry, void *conf)
{
	return (char *)conf + entry->offset;
}

static bool conf_in_range(const struct conf_entry *entry, double v)
{
	if (entry->min == 0 && entry->max == 0)
		return true;
	return v >= entry->min && v <= entry->max; /* NaN is outside */
}

static int conf_range_error(const struct conf_entry *entry, const char *text, const char *where, struct errtext *e)
{
	return errtext_set(e, -ERANGE, "%s: %s = %.60s is out of range, allowed is %g to %g%s%s", where, entry->key,
			   text, entry->min, entry->max, entry->unit && entry->unit[0] ? " " : "",
			   entry->unit ? entry->unit : "");
}

static int conf_parse_bool(const char *text, bool *ret)
{
	static const char *const words[] = {"off", "on", "false", "true", "no", "yes", "0", "1", NULL};

	for (int i = 0; words[i]; i++)
		if (!strcasecmp(text, words[i])) {
			*ret = i & 1;
			return 0;
		}
	return -EINVAL;
}

static int conf_parse_enum(const char *choices, const char *text, int *ret)
{
	size_t n = strlen(text);
	int i = 0;

	for (const char *c = choices; c; i++) {
		size_t len = strcspn(c, "|");

		if (len == n && !strncmp(c, text, n)) {
			*ret = i;
			return 0;
		}
		c = c[len] ? c + len + 1 : NULL;
	}
	return -EINVAL;
}

static int conf_set_number(const struct conf_entry *entry, const char *text, const char *where, void *conf,
			   struct errtext *e)
{
	char *end = NULL;
	double d;
	long long v;

	errno = 0;
	if (entry->type == CONF_INT) {
		v = strtoll(text, &end, 10);
		if (end == text || *end || isspace((unsigned char)text[0]))
			return errtext_set(e, -EINVAL, "%s: %s = \"%.60s\" is not a whole number", where, entry->key, text);
		if (errno == ERANGE || !conf_in_range(entry, (double)v))
			return conf_range_error(entry, text, where, e);
		*(int64_t *)conf_field(entry, conf) = v;
		return 0;
	}
	d = strtod(text, &end);
	if (end == text || *end || isspace((unsigned char)text[0]) || !isfinite(d))
		return errtext_set(e, -EINVAL, "%s: %s = \"%.60s\" is not a number", where, entry->key, text);
	if (!conf_in_range(entry, d))
		return conf_range_error(entry, text, where, e);
	*(double *)conf_field(entry, conf) = d;
	return 0;
}

int conf_value_set(const struct conf_entry *entry, const char *text, const char *where, void *conf, struct errtext *e)
{
	char **s = conf_field(entry, conf), *copy;

	switch (entry->type) {
	case CONF_STRING:
		copy = strdup(text);
		if (!copy)
			return errtext_set(e, -ENOMEM, "out of memory");
		free(*s);
		*s = copy;
		return 0;
	case CONF_INT:
	case CONF_REAL:
		return conf_set_number(entry, text, where, conf, e);
	case CONF_BOOL:
		if (conf_parse_bool(text, conf_field(entry, conf)) < 0)
			return errtext_set(e, -EINVAL, "%s: %s = \"%.60s\" is neither on nor off", where, entry->key, text);
		return 0;
	case CONF_ENUM:
		if (conf_parse_enum(entry->choices, text, conf_field(entry, conf)) < 0)
			return errtext_set(e, -EINVAL, "%s: %s = \"%.60s\" is none of %s", where, entry->key, text,
					   entry->choices);
		return 0;
	}
	return errtext_set(e, -EINVAL, "%s: the table entry has no type", entry->key);
}

void conf_done(const struct conf_program *p, void *conf)
{
	for (const struct conf_entry *entry = p->entries; entry->key; entry++)
		if (entry->type == CONF_STRING)
			free(*(char **)conf_field(entry, conf));
	memset(conf, 0, p->struct_size);
}

/* A text that may be shown: passwords and secrets among "k=v,k=v" settings are not for whoever may read the status. */
static json_t *conf_shown(const char *text)
{
	static const char *const secret[] = {"password", "secret", "ssl.key.pem", "oauthbearer.config"};
	struct buf b = BUF_INIT(1 << 20);
	int r = 0;
	json_t *j;

	for (const char *at = text; !r && *at;) { /* setting by setting */
		size_t n = strcspn(at, ","), key = strcspn(at, "=,"), keep = n;

		for (size_t i = 0; key < n && i < sizeof secret / sizeof *secret; i++)
			if (memmem(at, key, secret[i], strlen(secret[i])))
				keep = key + 1;
		r = buf_append(&b, at, keep);
		if (!r && keep < n)
			r = buf_puts(&b, "***");
		if (!r && at[n])
			r = buf_puts(&b, ",");
		at += n + (at[n] == ',');
	}
	j = r ? NULL : json_stringn(b.len ? (const char *)b.data : "", b.len);
	buf_done(&b);
	return j;
}

static json_t *conf_value_json(const struct conf_entry *entry, const void *conf)
{
	const char *f = (const char *)conf + entry->offset, *c = entry->choices;

	switch (entry->type) {
	case CONF_STRING:
		return conf_shown(*(char *const *)(const void *)f ? *(char *const *)(const void *)f : "");
	case CONF_INT:
		return json_integer(*(const int64_t *)(const void *)f);
	case CONF_REAL:
		return json_real(*(const double *)(const void *)f);
	case CONF_BOOL:
		return json_boolean(*(const bool *)(const void *)f);
	case CONF_ENUM:
		for (int i = *(const int *)(const void *)f; i > 0 && c; i--) {
			c = strchr(c, '|');
			c = c ? c + 1 : NULL;
		}
		return c ? json_stringn(c, strcspn(c, "|")) : json_null();
	}
	return json_null();
}

json_t *conf_show(const struct conf_program *p, const void *conf)
{
	json_t *all = json_object();

	for (const struct conf_entry *entry = p->entries; all && entry->key; entry++) {
		json_t *one = json_pack("{s:o, s:s?, s:s, s:b, s:s}", "value", conf_value_json(entry, conf), "default",
					entry->def, "unit", entry->unit ? entry->unit : "", "reloadable",
					entry->reloadable, "help", entry->help);

		if (!one || json_object_set_new(all, entry->key, one) < 0) {
			json_decref(all);
			return NULL;
		}
	}
	return all;
}

/* ---- two configurations ---- */

static size_t conf_size(enum conf_type type)
{
	switch (type) {
	case CONF_STRING:
		return sizeof(char *);
	case CONF_INT:
		return sizeof(int64_t);
	case CONF_REAL:
		return sizeof(double);
	case CONF_BOOL:
		return sizeof(bool);
	case CONF_ENUM:
		return sizeof(int);
	}
	return 0;
}

static bool conf_same(const struct conf_entry *entry, const void *a, const void *b)
{
	const char *x = (const char *)a + entry->offset, *y = (const char *)b + entry->offset;
	const char *s, *t;

	if (entry->type != CONF_STRING)
		return !memcmp(x, y, conf_size(entry->type));
	s = *(char *const *)(const void *)x;
	t = *(char *const *)(const void *)y;
	return !strcmp(s ? s : "", t ? t : "");
}

int conf_differing(const struct conf_program *p, const void *a, const void *b, bool reloadable, char *ret, size_t size)
{
	size_t len = 0, room = size > 16 ? size - 16 : 0; /* kept free for "and N more" */
	int n = 0, left_out = 0;

	ret[0] = '\0';
	for (const struct conf_entry *entry = p->entries; entry->key; entry++) {
		if (entry->reloadable != reloadable || conf_same(entry, a, b))
			continue;
		n++;
		if (left_out || len + strlen(entry->key) + 2 >= room)
			left_out++;
		else
			len += (size_t)snprintf(ret + len, size - len, "%s%s", len ? ", " : "", entry->key);
	}
	if (left_out)
		snprintf(ret + len, size - len, " and %d more", left_out);
	return n;
}

void conf_swap_reloadable(const struct conf_program *p, void *a, void *b)
{
	for (const struct conf_entry *entry = p->entries; entry->key; entry++) {
		char spare[sizeof(int64_t)];
		size_t n = conf_size(entry->type);

		if (!entry->reloadable)
			continue;
		memcpy(spare, conf_field(entry, a), n);
		memcpy(conf_field(entry, a), conf_field(entry, b), n);
		memcpy(conf_field(entry, b), spare, n);
	}
}

/* ---- names ---- */

static int conf_min3(int a, int b, int c)
{
	int m = a < b ? a : b;

	return m < c ? m : c;
}

/* Edits between two words: insert, delete, replace, swap of neighbours. */
static int conf_distance(const char *a, const char *b)
{
	enum { MAX = 64 };
	int row[3][MAX + 1];
	int n = (int)strnlen(a, MAX), m = (int)strnlen(b, MAX);
	int *two = row[0], *one = row[1], *now = row[2], *spare;

	for (int j = 0; j <= m; j++)
		one[j] = j;
	for (int i = 1; i <= n; i++) {
		now[0] = i;
		for (int j = 1; j <= m; j++) {
			int change = a[i - 1] != b[j - 1];

			now[j] = conf_min3(one[j] + 1, now[j - 1] + 1, one[j - 1] + change);
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && two[j - 2] + 1 < now[j])
				now[j] = two[j - 2] + 1;
		}
		spare = two;
		two = one;
		one = now;
		now = spare;
	}
	return one[m];
}

const char *conf_nearest(const char *word, const char *const *names)
{
	const char *best = NULL;
	int best_d = 0, limit = (int)strnlen(word, 64) / 3 + 1;

	for (int i = 0; names[i]; i++) {
		const char *dot = strrchr(names[i], '.');
		int d = conf_distance(word, names[i]);

		/* "topk" for "capture.topk": forgetting the section is one slip, not eight */
		if (dot && !strchr(word, '.')) {
			int tail = conf_distance(word, dot + 1) + 1;

			d = tail < d ? tail : d;
		}
		if (!best || d < best_d) {
			best = names[i];
			best_d = d;
		}
	}
	return best && best_d <= limit ? best : NULL;
}
