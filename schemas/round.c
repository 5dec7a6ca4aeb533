/* Round records: struct round_record <-> one JSON object.
 *
 * Small on purpose: redraftd reads every one of them. Readers ignore unknown
 * keys; arrays are as long as k, so that k = 3 costs three numbers.
 */
#include "schemas/round.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "schemas/json_reader.h"

enum { ROUND_MAX_BYTES = 64 * 1024 };

const double round_tpot_edges_ms[ROUND_TPOT_EDGES] = {5, 10, 15, 20, 30, 40, 50, 75, 100, 150, 200, 300, 500, 750, 1000, 2000};

int round_bucket(int64_t context_tokens)
{
	int b = 0;
	for (int64_t x = context_tokens / 128; x > 1 && b < ROUND_BUCKETS - 1; x /= 2)
		b++;
	return b;
}

double round_accept_length(const struct round_record *r)
{
	double accepted = 0;

	if (r->proposed[0] == 0)
		return NAN;
	for (int i = 0; i < ROUND_MAX_K; i++)
		accepted += r->accepted[i];
	return 1 + accepted / r->proposed[0];
}

/* ---- encoding ---- */

static json_t *numbers(const uint32_t *v, int n)
{
	json_t *a = json_array();

	for (int i = 0; i < n; i++) {
		if (json_array_append_new(a, json_integer(v[i])) < 0) {
			json_decref(a);
			return NULL;
		}
	}
	return a;
}

static bool any_tree(const struct round_record *r)
{
	uint32_t n = 0;

	for (int i = 0; i < r->k; i++)
		n += r->tree_proposed[i];
	return n > 0;
}

int round_encode(struct buf *out, const struct round_record *r)
{
	if (r->k < 0 || r->k > ROUND_MAX_K || !isfinite(r->ttft_ms) || r->seq > INT64_MAX)
		return -EINVAL;
	json_t *o =
		json_pack("{s:i, s:s, s:s, s:I, s:s, s:s, s:I, s:b, s:I, s:s, s:s, s:i, s:i, s:I, s:o, s:o, s:I, s:I, s:f, s:o, s:I}",
			  "schema", 1, "target_fp", r->target_fp, "producer", r->producer, "seq", (json_int_t)r->seq, "request", r->request,
			  "conversation", r->conversation, "part", (json_int_t)r->part, "last", (int)r->last, "version",
			  (json_int_t)r->version, "domain", r->domain, "tenant", r->tenant, "context_bucket", r->context_bucket, "k", r->k,
			  "rounds", (json_int_t)r->rounds, "proposed", numbers(r->proposed, r->k), "accepted", numbers(r->accepted, r->k),
			  "tokens", (json_int_t)r->tokens, "prompt_tokens", (json_int_t)r->prompt_tokens, "ttft_ms", r->ttft_ms, "tpot_ms",
			  numbers(r->tpot_ms, ROUND_TPOT_EDGES + 1), "drops", (json_int_t)r->dropped_records);
	if (!o)
		return -EINVAL; /* a string is not UTF-8 (or no memory) */
	if (any_tree(r) && (json_object_set_new(o, "tree_proposed", numbers(r->tree_proposed, r->k)) < 0 ||
			    json_object_set_new(o, "tree_accepted", numbers(r->tree_accepted, r->k)) < 0)) {
		json_decref(o);
		return -ENOMEM;
	}
	char *text = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9));
	int rc = text ? buf_puts(out, text) : -ENOMEM;
	free(text);
	json_decref(o);
	return rc;
}

/* ---- decoding ---- */

static void array(struct reader *d, const char *key, uint32_t *ret, int n)
{
	const json_t *a = json_object_get(d->o, key);

	if (d->rc == 0 && (!json_is_array(a) || json_array_size(a) != (size_t)n))
		d->rc = errtext_set(d->e, -EINVAL, "%s: not an array of %d numbers", key, n);
	for (int i = 0; d->rc == 0 && i < n; i++) {
		const json_t *v = json_array_get(a, (size_t)i);
		if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > UINT32_MAX)
			d->rc = errtext_set(d->e, -EINVAL, "%s: entry %d is not a count", key, i);
		else
			ret[i] = (uint32_t)json_integer_value(v);
	}
}

static int check_counts(const struct round_record *r, struct errtext *e)
{
	for (int i = 0; i < r->k; i++) {
		if (r->proposed[i] > r->rounds || r->accepted[i] > r->proposed[i])
			return errtext_set(e, -EINVAL, "place %d: accepted %u of %u proposed in %u rounds", i, r->accepted[i],
					   r->proposed[i], r->rounds);
		if (r->tree_proposed[i] > r->proposed[i] || r->tree_accepted[i] > r->accepted[i] || r->tree_accepted[i] > r->tree_proposed[i] ||
		    r->accepted[i] - r->tree_accepted[i] > r->proposed[i] - r->tree_proposed[i])
			return errtext_set(e, -EINVAL, "place %d: rounds that branched do not fit the counts of all", i);
	}
	return 0;
}

static int decode_object(const json_t *o, struct round_record *r, struct errtext *e)
{
	struct reader d = {.o = o, .e = e};
	const json_t *ttft = json_object_get(o, "ttft_ms");

	if (reader_count(&d, "schema", UINT32_MAX) != 1 && d.rc == 0)
		return errtext_set(e, -EINVAL, "schema is not 1");
	reader_text(&d, "target_fp", READER_MAY_BE_EMPTY, r->target_fp, sizeof r->target_fp);
	reader_text(&d, "producer", READER_MAY_BE_EMPTY, r->producer, sizeof r->producer);
	reader_text(&d, "request", READER_MAY_BE_EMPTY, r->request, sizeof r->request);
	reader_text(&d, "conversation", READER_MAY_BE_EMPTY, r->conversation, sizeof r->conversation);
	reader_text(&d, "domain", READER_MAY_BE_EMPTY, r->domain, sizeof r->domain);
	reader_text(&d, "tenant", READER_MAY_BE_EMPTY, r->tenant, sizeof r->tenant);
	r->seq = reader_count(&d, "seq", INT64_MAX);
	r->part = reader_u32(&d, "part");
	r->version = reader_u32(&d, "version");
	r->context_bucket = (int)reader_count(&d, "context_bucket", ROUND_BUCKETS - 1);
	r->k = (int)reader_count(&d, "k", ROUND_MAX_K);
	r->rounds = reader_u32(&d, "rounds");
	array(&d, "proposed", r->proposed, r->k);
	array(&d, "accepted", r->accepted, r->k);
	if (json_object_get(o, "tree_proposed")) { /* absent: every round was a chain */
		array(&d, "tree_proposed", r->tree_proposed, r->k);
		array(&d, "tree_accepted", r->tree_accepted, r->k);
	}
	r->tokens = reader_u32(&d, "tokens");
	r->prompt_tokens = reader_u32(&d, "prompt_tokens");
	array(&d, "tpot_ms", r->tpot_ms, ROUND_TPOT_EDGES + 1);
	r->dropped_records = reader_u32(&d, "drops");
	r->last = reader_bool(&d, "last");
	if (d.rc == 0 && !(json_is_number(ttft) && json_number_value(ttft) >= 0))
		d.rc = errtext_set(e, -EINVAL, "ttft_ms: not a number from 0 up");
	r->ttft_ms = json_number_value(ttft);
	return d.rc < 0 ? d.rc : check_counts(r, e);
}

int round_decode(const void *json, size_t len, struct round_record *ret, struct errtext *e)
{
	struct round_record r = {.k = 0};
	json_error_t je;

	if (len > ROUND_MAX_BYTES)
		return errtext_set(e, -E2BIG, "round record of %zu bytes is over the limit of %d", len, ROUND_MAX_BYTES);
	json_t *o = json_loadb(json, len, JSON_REJECT_DUPLICATES, &je);
	if (!json_is_object(o)) {
		json_decref(o);
		return errtext_set(e, -EINVAL, "not a JSON object: %.120s", o ? "another kind of value" : je.text);
	}
	int rc = decode_object(o, &r, e);
	json_decref(o);
	if (rc == 0)
		*ret = r;
	return rc;
}
