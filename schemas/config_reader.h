/* Fields of a config.json, read one after the other: the first failure sticks, so that a caller looks once at the end.
 *
 * Shared by draft_config.c (a draft's) and hf_config.c (a target's). Values are borrowed from the object.
 */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include "daemon/base/err.h"

struct reader {
	const json_t *o;
	struct errtext *e;
	int rc;
};

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
