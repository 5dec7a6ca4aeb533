/* Tables and fields (table.h). */
#include "daemon/ctl/table.h"
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int table_init(struct table *t, int n_columns, const char *right)
{
	*t = (struct table){.n_columns = n_columns, .right = right};
	t->cell = calloc(TABLE_ROWS, sizeof *t->cell);
	return t->cell ? 0 : -1;
}

/* A peer's control characters are no commands to the terminal. */
static void harmless(char *text)
{
	for (char *p = text; *p; p++)
		if ((unsigned char)*p < 32 || *p == 127)
			*p = '?';
}

void table_set(struct table *t, int column, const char *fmt, ...)
{
	va_list ap;

	if (t->n_rows >= TABLE_ROWS)
		return;
	va_start(ap, fmt);
	vsnprintf(t->cell[t->n_rows][column], CELL, fmt, ap);
	va_end(ap);
	harmless(t->cell[t->n_rows][column]);
}

void table_next(struct table *t)
{
	if (t->n_rows < TABLE_ROWS)
		t->n_rows++;
}

void table_print(struct table *t, FILE *out)
{
	int width[TABLE_COLUMNS] = {0};

	for (int i = 0; i < t->n_rows; i++)
		for (int j = 0; j < t->n_columns; j++)
			if ((int)strlen(t->cell[i][j]) > width[j])
				width[j] = (int)strlen(t->cell[i][j]);
	for (int i = 0; i < t->n_rows; i++) {
		for (int j = 0; j < t->n_columns; j++) {
			const char *text = t->cell[i][j];
			bool last = j == t->n_columns - 1;

			if (t->right[j] == 'r')
				fprintf(out, "%*s", width[j], text);
			else if (last)
				fputs(text, out);
			else
				fprintf(out, "%-*s", width[j], text);
			fputs(last ? "\n" : "  ", out);
		}
	}
	free(t->cell);
}

void table_heads(struct table *t, const char *const *heads)
{
	for (int i = 0; i < t->n_columns; i++)
		table_set(t, i, "%s", heads[i]);
	table_next(t);
}

long long num(const json_t *o, const char *key)
{
	return json_integer_value(json_object_get(o, key));
}

const char *str(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s && s[0] ? s : "-";
}

const char *al(const json_t *o, const char *key)
{
	static char text[4][32];
	static int at;
	const json_t *v = json_object_get(o, key);

	at = (at + 1) % 4;
	if (json_is_number(v))
		snprintf(text[at], sizeof text[at], "%.3f", json_number_value(v));
	else
		snprintf(text[at], sizeof text[at], "-");
	return text[at];
}

const char *plain(const char *text)
{
	static char out[4][300];
	static int at;

	at = (at + 1) % 4;
	snprintf(out[at], sizeof out[at], "%s", text);
	harmless(out[at]);
	return out[at];
}
