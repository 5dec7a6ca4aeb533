/* Fields of a JSON object, read one after the other: the first failure sticks, so that a caller looks once at the end.
 *
 * Two manners: config.json of others (draft_config.c, hf_config.c), where what is absent or null has a default; and what we write
 * ourselves (manifest.c, round.c), where every field must be there and be what it should. Values are borrowed from the object.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "daemon/base/err.h"

struct reader {
	const json_t *o;
	const char *path; /* for the sentence, of what we write; NULL = none */
	struct errtext *e;
	int rc;
};

/* ---- config.json ---- */

/* null is as good as absent */
static inline const json_t *reader_get(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	return json_is_null(v) ? NULL : v;
}

/* A whole number from 1 to max; fallback 0 = required. 1 after a failure. */
static inline int reader_whole(struct reader *d, const char *key, int64_t fallback, int64_t max)
{
	const json_t *v = reader_get(d->o, key);
	int64_t n = v ? json_integer_value(v) : fallback;

	if (d->rc == 0 && !v && fallback == 0)
		d->rc = errtext_set(d->e, -EINVAL, "config.json: %s is missing", key);
	if (d->rc == 0 && ((v && !json_is_integer(v)) || n < 1 || n > max))
		d->rc = errtext_set(d->e, -EINVAL, "config.json: %s is not a whole number from 1 to %lld", key, (long long)max);
	return d->rc == 0 ? (int)n : 1;
}

/* ---- what we write ---- */

static inline void reader_bad(struct reader *d, const char *key, const char *why)
{
	if (d->rc == 0)
		d->rc = errtext_set(d->e, -EINVAL, "%.120s%s%s %s", d->path ? d->path : "", d->path ? ": " : "", key, why);
}

/* A whole number from 0 to max; 0 after a failure. */
static inline uint64_t reader_count(struct reader *d, const char *key, uint64_t max)
{
	const json_t *v = json_object_get(d->o, key);
	char why[48];

	if (!json_is_integer(v) || json_integer_value(v) < 0 || (uint64_t)json_integer_value(v) > max) {
		snprintf(why, sizeof why, "is not a number from 0 to %llu", (unsigned long long)max);
		reader_bad(d, key, why);
	}
	return d->rc == 0 ? (uint64_t)json_integer_value(v) : 0;
}

static inline uint32_t reader_u32(struct reader *d, const char *key)
{
	return (uint32_t)reader_count(d, key, UINT32_MAX);
}

enum reader_text { READER_MAY_BE_ABSENT, READER_MAY_BE_EMPTY, READER_NOT_EMPTY };

/* A string into ret[size], whole or not at all. */
static inline void reader_text(struct reader *d, const char *key, enum reader_text least, char *ret, size_t size)
{
	const json_t *v = json_object_get(d->o, key);

	if (!v && least == READER_MAY_BE_ABSENT)
		*ret = 0;
	else if (!json_is_string(v) || json_string_length(v) >= size || (least == READER_NOT_EMPTY && !json_string_length(v)))
		reader_bad(d, key, "is missing or too long");
	else if (d->rc == 0)
		memcpy(ret, json_string_value(v), json_string_length(v) + 1);
}

static inline bool reader_bool(struct reader *d, const char *key)
{
	const json_t *v = json_object_get(d->o, key);

	if (!json_is_boolean(v))
		reader_bad(d, key, "is not true or false");
	return json_is_true(v);
}
