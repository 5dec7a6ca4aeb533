/* What the printing files share: tables whose columns are as wide as their widest cell, and fields of replies of which nothing is
 * assumed: what is missing reads as 0, as a dash, or as an empty list.
 */
#pragma once
#include <jansson.h>
#include <stdio.h>

enum { TABLE_COLUMNS = 10, TABLE_ROWS = 2000, CELL = 128 };

struct table {
	int n_columns, n_rows;
	const char *right; /* one character a column: 'r' stands right */
	char (*cell)[TABLE_COLUMNS][CELL];
};

int table_init(struct table *t, int n_columns, const char *right); /* -1: out of memory */
/* A cell of the row that is being made; control characters become question marks. */
void __attribute__((format(printf, 3, 4))) table_set(struct table *t, int column, const char *fmt, ...);
void table_next(struct table *t);
void table_heads(struct table *t, const char *const *heads); /* the first row */
void table_print(struct table *t, FILE *out);                /* and frees it */

long long num(const json_t *o, const char *key);
const char *str(const json_t *o, const char *key); /* "-" when missing or empty */
/* A number with three decimals, or a dash. Valid until the fourth next call. */
const char *al(const json_t *o, const char *key);
/* Text of a peer for a terminal: control characters become question marks. Valid until the fourth next call. */
const char *plain(const char *text);
