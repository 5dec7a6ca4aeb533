/* A leader's word as JSON, strictly (fleet.h): it makes a daemon switch its server, so nothing that is only nearly one passes. */
#include "schemas/fleet.h"
#include <jansson.h>
#include <string.h>

enum { FLEET_MOST = 1024, FLEET_SCHEMA = 1 };

int fleet_word_encode(const struct fleet_word *w, char *ret, size_t size)
{
	json_t *j = json_pack("{s:i, s:s, s:I, s:s, s:s, s:I, s:I, s:s}", "schema", FLEET_SCHEMA, "target_fp", w->target_fp, "epoch", (json_int_t)w->epoch, "run", w->run,
			      "host", w->host, "generation", (json_int_t)w->generation, "live", (json_int_t)w->live, "weights_sha", w->weights_sha);
	size_t n = j ? json_dumpb(j, ret, size, JSON_COMPACT) : 0;

	json_decref(j);
	if (!n || n >= size)
		return -ENOMEM;
	ret[n] = '\0';
	return 0;
}

static int text_into(const json_t *j, const char *key, char *ret, size_t size)
{
	const char *s = json_string_value(json_object_get(j, key));

	if (!s || strlen(s) >= size)
		return -EINVAL;
	memcpy(ret, s, strlen(s) + 1);
	return 0;
}

static bool is_hash(const char *s)
{
	return strlen(s) == 64 && strspn(s, "0123456789abcdef") == 64;
}

int fleet_word_decode(const void *p, size_t n, struct fleet_word *ret, struct errtext *e)
{
	json_t *j = n <= FLEET_MOST ? json_loadb(p, n, JSON_REJECT_DUPLICATES, NULL) : NULL;
	json_int_t epoch = json_integer_value(json_object_get(j, "epoch")), live = json_integer_value(json_object_get(j, "live"));
	json_int_t generation = json_integer_value(json_object_get(j, "generation"));
	struct fleet_word w = {.epoch = (uint64_t)epoch, .live = (uint32_t)live, .generation = (uint64_t)generation};
	bool good = json_integer_value(json_object_get(j, "schema")) == FLEET_SCHEMA && epoch > 0 && live >= 0 && live < UINT32_MAX && generation >= 0 &&
		    !text_into(j, "target_fp", w.target_fp, sizeof w.target_fp) && !text_into(j, "run", w.run, sizeof w.run) &&
		    !text_into(j, "host", w.host, sizeof w.host) && !text_into(j, "weights_sha", w.weights_sha, sizeof w.weights_sha) &&
		    is_hash(w.target_fp) && w.run[0] && (live ? is_hash(w.weights_sha) : !w.weights_sha[0]);

	json_decref(j);
	if (!good)
		return errtext_set(e, -EINVAL, "a record that is no leader's word");
	*ret = w;
	return 0;
}
