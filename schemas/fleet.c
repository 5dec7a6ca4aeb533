/* A leader's word as JSON, strictly (fleet.h): it makes a daemon switch its server, so nothing that is only nearly one passes. */
#include "schemas/fleet.h"
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "daemon/base/sha.h"

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

static bool text_into(const char *s, char *ret, size_t size)
{
	return (size_t)snprintf(ret, size, "%s", s) < size;
}

int fleet_word_decode(const void *p, size_t n, struct fleet_word *ret, struct errtext *e)
{
	json_t *j = n <= FLEET_MOST ? json_loadb(p, n, JSON_REJECT_DUPLICATES, NULL) : NULL;
	const char *target_fp, *run, *host, *weights_sha;
	json_int_t schema, epoch, generation, live;
	struct fleet_word w = {.buried = false};
	bool good = json_unpack(j, "{s:I, s:s, s:I, s:s, s:s, s:I, s:I, s:s}", "schema", &schema, "target_fp", &target_fp, "epoch", &epoch, "run", &run, "host", &host,
				"generation", &generation, "live", &live, "weights_sha", &weights_sha) == 0 &&
		    schema == FLEET_SCHEMA && epoch > 0 && live >= 0 && live < UINT32_MAX && generation >= 0 && text_into(target_fp, w.target_fp, sizeof w.target_fp) &&
		    text_into(run, w.run, sizeof w.run) && text_into(host, w.host, sizeof w.host) && text_into(weights_sha, w.weights_sha, sizeof w.weights_sha) &&
		    sha_is_hex(w.target_fp) && w.run[0] && (live ? sha_is_hex(w.weights_sha) : !w.weights_sha[0]);

	json_decref(j);
	if (!good)
		return errtext_set(e, -EINVAL, "a record that is no leader's word");
	w.epoch = (uint64_t)epoch;
	w.generation = (uint64_t)generation;
	w.live = (uint32_t)live;
	*ret = w;
	return 0;
}
