/* What a record's values must be before anything is learned from them.
 *
 * Whoever may write to the trace topic trains the draft, so nothing here is
 * taken on trust: positions are consecutive, ids are below the vocabulary, numbers are
 * finite, a teacher row is sorted and has no id twice, a round lies inside the
 * record, accepts no more than it proposed, and the next one starts after it.
 */
#include "schemas/record_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

float f16_to_f32(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 0x3ff;
	union {
		uint32_t u;
		float f;
	} x;

	if (exp == 31) {
		x.u = sign | 0x7f800000u | man << 13;
	} else if (exp) {
		x.u = sign | (exp + 112) << 23 | man << 13;
	} else {
		x.f = (float)man * 0x1p-24f; /* subnormal or zero: exact */
		x.u |= sign;
	}
	return x.f;
}

uint16_t f32_to_f16(float f) /* nearest even */
{
	union {
		float f;
		uint32_t u;
	} x = {.f = f};
	uint16_t sign = (uint16_t)(x.u >> 16 & 0x8000);
	uint32_t a = x.u & 0x7fffffffu;

	if (a > 0x7f800000u)
		return (uint16_t)(sign | 0x7e00);
	if (a >= 0x477ff000u) /* rounds to 65536 or more */
		return (uint16_t)(sign | 0x7c00);
	if (a < 0x38800000u) { /* below 2^-14: adding 0.5 leaves the f16 subnormal in the low bits */
		x.u = a;
		x.f += 0.5f;
		return (uint16_t)(sign | (x.u - 0x3f000000u));
	}
	a += 0xfffu + (a >> 13 & 1);
	return (uint16_t)(sign | ((a - 0x38000000u) >> 13));
}

/* ---- metadata ---- */

static int text(const struct st_file *f, const char *key, bool required, char *ret, size_t size, struct errtext *e)
{
	const char *v = st_meta(f, key);

	if (!v || (required && !*v)) {
		if (required)
			return errtext_set(e, -EINVAL, "metadata %s is missing", key);
		v = "";
	}
	if (strlen(v) >= size)
		return errtext_set(e, -EINVAL, "metadata %s is longer than %zu bytes", key, size - 1);
	strcpy(ret, v);
	return 0;
}

static int number(const struct st_file *f, const char *key, uint64_t max, uint64_t *ret, struct errtext *e)
{
	const char *v = st_meta(f, key);
	uint64_t n = 0;

	if (!v || !*v)
		return errtext_set(e, -EINVAL, "metadata %s is missing", key);
	for (; *v; v++) {
		if (*v < '0' || *v > '9' || __builtin_mul_overflow(n, 10u, &n) || __builtin_add_overflow(n, (uint64_t)(*v - '0'), &n) ||
		    n > max)
			return errtext_set(e, -EINVAL, "metadata %s is not a number up to %llu", key, (unsigned long long)max);
	}
	*ret = n;
	return 0;
}

int record_parse_meta(const struct st_file *f, struct trace_meta *ret, struct errtext *e)
{
	struct trace_meta m = {.last = false};
	uint64_t schema = 0, run = 0, last = 0;
	int r = number(f, "schema", UINT32_MAX, &schema, e);

	if (r == 0 && schema != 1)
		r = errtext_set(e, -EINVAL, "schema %llu is not 1", (unsigned long long)schema);
	if (r == 0)
		r = text(f, "target_fp", true, m.target_fp, sizeof m.target_fp, e);
	if (r == 0)
		r = text(f, "request", true, m.request, sizeof m.request, e);
	if (r == 0)
		r = text(f, "conversation", false, m.conversation, sizeof m.conversation, e);
	if (r == 0)
		r = text(f, "parent", false, m.parent, sizeof m.parent, e);
	if (r == 0)
		r = text(f, "domain", false, m.domain, sizeof m.domain, e);
	if (r == 0)
		r = text(f, "tenant", false, m.tenant, sizeof m.tenant, e);
	if (r == 0)
		r = text(f, "producer", true, m.producer, sizeof m.producer, e);
	if (r == 0)
		r = number(f, "seq", UINT64_MAX, &m.seq, e);
	if (r == 0)
		r = number(f, "run", UINT32_MAX, &run, e);
	if (r == 0)
		r = number(f, "last", 1, &last, e);
	if (r < 0)
		return r;
	const char *temperature = st_meta(f, "temperature");
	char *end = NULL;
	m.temperature = temperature ? strtof(temperature, &end) : 0;
	if (!temperature || end == temperature || *end || !isfinite(m.temperature) || m.temperature < 0)
		return errtext_set(e, -EINVAL, "metadata temperature is not a number");
	m.run = (uint32_t)run;
	m.last = last == 1;
	*ret = m;
	return 0;
}

/* ---- values ---- */

static int check_finite(const uint16_t *bf16, size_t n, const char *name, struct errtext *e)
{
	unsigned bad = 0;

	for (size_t i = 0; i < n; i++)
		bad |= (bf16[i] & 0x7f80u) == 0x7f80u;
	return bad ? errtext_set(e, -EINVAL, "%s: a value is not finite", name) : 0;
}

static int check_rows(const struct trace_record *r, uint32_t vocab, struct errtext *e)
{
	for (int i = 0; i < r->T; i++) {
		if (r->positions[i] != r->positions[0] + (uint32_t)i || r->positions[i] < r->positions[0] || r->positions[i] == UINT32_MAX)
			return errtext_set(e, -EINVAL, "positions: row %d does not follow the row before", i);
		if (r->loss_mask[i] > 1)
			return errtext_set(e, -EINVAL, "loss_mask: row %d is neither 0 nor 1", i);
		if (vocab && r->token_ids[i] >= vocab)
			return errtext_set(e, -EINVAL, "token_ids: row %d is %u, the vocabulary ends at %u", i, r->token_ids[i], vocab);
	}
	if (vocab && r->next_token >= vocab)
		return errtext_set(e, -EINVAL, "next_token is %u, the vocabulary ends at %u", r->next_token, vocab);
	return 0;
}

static int by_id(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static int check_teacher(const struct trace_record *r, uint32_t vocab, struct errtext *e)
{
	uint32_t sorted[RECORD_MAX_TOPK];

	for (int i = 0; i < r->T_gen && r->topk_ids; i++) {
		const uint32_t *ids = r->topk_ids + (size_t)i * (size_t)r->K;
		const uint16_t *lp = r->topk_logprob + (size_t)i * (size_t)r->K;
		float before = 0.01f; /* rounding may leave a hair above 0 */
		for (int j = 0; j < r->K; j++) {
			float v = f16_to_f32(lp[j]);
			if (!(v <= before))
				return errtext_set(e, -EINVAL, "topk_logprob: row %d is not sorted or not a log-probability", i);
			if (vocab && ids[j] >= vocab)
				return errtext_set(e, -EINVAL, "topk_ids: %u, the vocabulary ends at %u", ids[j], vocab);
			before = v;
		}
		memcpy(sorted, ids, (size_t)r->K * 4);
		qsort(sorted, (size_t)r->K, 4, by_id);
		for (int j = 1; j < r->K; j++) {
			if (sorted[j] == sorted[j - 1])
				return errtext_set(e, -EINVAL, "topk_ids: row %d names %u twice", i, sorted[j]);
		}
	}
	return 0;
}

static int check_proposals(const struct trace_record *r, int s, uint32_t vocab, struct errtext *e)
{
	const uint32_t *ids = r->draft_ids + (size_t)s * (size_t)r->k;

	for (int j = 0; j < r->k; j++) {
		if (j >= r->round_len[s] ? ids[j] != RECORD_PAD : ids[j] == RECORD_PAD || (vocab && ids[j] >= vocab))
			return errtext_set(e, -EINVAL, "draft_ids: round %d, place %d is %u", s, j, ids[j]);
		uint8_t parent = r->draft_parent && j < r->round_len[s] ? r->draft_parent[s * r->k + j] : 0xff;
		if (parent != 0xff && parent >= j)
			return errtext_set(e, -EINVAL, "draft_parent: round %d, place %d does not come after its parent", s, j);
	}
	return 0;
}

static int check_rounds(const struct trace_record *r, uint32_t vocab, struct errtext *e)
{
	uint32_t earliest = 0;

	for (int s = 0; s < r->S; s++) {
		if (r->round_start[s] < earliest || r->round_start[s] >= (uint32_t)r->T)
			return errtext_set(e, -EINVAL, "round_start: round %d starts outside the record or inside the round before", s);
		if (r->accepted[s] > r->round_len[s] || r->round_len[s] > r->k)
			return errtext_set(e, -EINVAL, "round %d: accepted %u of %u, k %d", s, r->accepted[s], r->round_len[s], r->k);
		int rc = r->k ? check_proposals(r, s, vocab, e) : 0;
		if (rc < 0)
			return rc;
		earliest = r->round_start[s] + r->accepted[s] + 1u;
	}
	return 0;
}

int record_check_values(const struct trace_record *r, uint32_t vocab, struct errtext *e)
{
	int rc = check_rows(r, vocab, e);

	if (rc == 0)
		rc = check_finite(r->features, (size_t)r->T * 3 * (size_t)r->H_t, "features", e);
	if (rc == 0 && r->last_hidden)
		rc = check_finite(r->last_hidden, (size_t)r->T_prompt * (size_t)r->H_t, "last_hidden", e);
	if (rc == 0)
		rc = check_teacher(r, vocab, e);
	if (rc == 0)
		rc = check_rounds(r, vocab, e);
	return rc;
}
