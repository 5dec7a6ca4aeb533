/* Trace records: a safetensors blob <-> struct trace_record.
 *
 * One table names the tensors, so that encoding, decoding and the page
 * (record.md) cannot drift apart. Decoding copies every tensor into one aligned
 * arena, because Kafka payloads are not aligned, and then checks the values
 * (record_check.c): a record that passed may be trained on blindly.
 */
#include "schemas/record.h"

#include <stdlib.h>
#include <string.h>
#include "schemas/record_check.h"
#include "schemas/record_payload.h"
#include "schemas/safetensors.h"

enum { HEADER_BOUND = 4736 }; /* JSON header at most: 16 tensors, 12 strings, every byte escaped */

/* ---- encoding ---- */

struct layout {
	struct st_out t[16];
	int n;
};

static void put(struct layout *l, const char *name, enum st_dtype dtype, const void *data, int d0, int d1, int d2)
{
	struct st_out *o = &l->t[l->n];

	if (!data || d0 == 0 || d1 == 0 || d2 == 0)
		return; /* empty tensors are left out */
	*o = (struct st_out){.name = name, .dtype = dtype, .n_dims = d1 < 0 ? 1 : d2 < 0 ? 2 : 3, .data = data};
	o->shape[0] = (uint64_t)d0;
	o->shape[1] = d1 < 0 ? 0 : (uint64_t)d1;
	o->shape[2] = d2 < 0 ? 0 : (uint64_t)d2;
	l->n++;
}

static void list_features(struct layout *l, const struct trace_record *r, const struct packed_features *p)
{
	switch (p->kind) {
	case RECORD_BF16: put(l, "features", ST_BF16, r->features, r->T, 3, r->H_t); break;
	case RECORD_PLANES:
		put(l, "features_lo", ST_U8, p->code, r->T, 3, r->H_t);
		put(l, "features_hi_zstd", ST_U8, p->zstd, (int)p->zstd_bytes, -1, -1);
		break;
	case RECORD_FP8:
	case RECORD_INT8:
		put(l, "features", p->kind == RECORD_FP8 ? ST_F8_E4M3 : ST_I8, p->code, r->T, 3, r->H_t);
		put(l, "features_scale", ST_F32, p->scale, r->T, 3, -1);
		break;
	}
}

static void list_tensors(struct layout *l, const struct trace_record *r, const struct packed_features *p)
{
	put(l, "token_ids", ST_U32, r->token_ids, r->T, -1, -1);
	put(l, "positions", ST_U32, r->positions, r->T, -1, -1);
	put(l, "next_token", ST_U32, &r->next_token, 1, -1, -1);
	put(l, "loss_mask", ST_U8, r->loss_mask, r->T, -1, -1);
	list_features(l, r, p);
	put(l, "topk_ids", ST_U32, r->topk_ids, r->T_gen, r->K, -1);
	put(l, "topk_logprob", ST_F16, r->topk_logprob, r->T_gen, r->K, -1);
	put(l, "last_hidden", ST_BF16, r->last_hidden, r->T_prompt, r->H_t, -1);
	put(l, "round_start", ST_U32, r->round_start, r->S, -1, -1);
	put(l, "round_len", ST_U8, r->round_len, r->S, -1, -1);
	put(l, "accepted", ST_U8, r->accepted, r->S, -1, -1);
	put(l, "round_version", ST_U32, r->round_version, r->S, -1, -1);
	put(l, "round_flags", ST_U8, r->round_flags, r->S, -1, -1);
	put(l, "draft_ids", ST_U32, r->draft_ids, r->S, r->k, -1);
	put(l, "draft_parent", ST_U8, r->draft_parent, r->S, r->k, -1);
}

static int shape_ok(const struct trace_record *r)
{
	return r->T > 0 && r->T_gen >= 0 && r->T_prompt >= 0 && r->T_gen + r->T_prompt == r->T && r->S >= 0 && r->K >= 0 &&
	       r->K <= RECORD_MAX_TOPK && r->k >= 0 && r->k <= RECORD_MAX_K && r->H_t > 0 && r->token_ids && r->positions && r->loss_mask &&
	       (r->features || (r->payload >= RECORD_FP8 && r->codes && r->scales));
}

int record_encode(struct buf *out, const struct trace_record *r)
{
	const struct trace_meta *m = &r->meta;
	char temperature[32], run[16], seq[24];
	struct layout l = {.n = 0};
	struct packed_features p;
	size_t len0 = out->len;

	if (!shape_ok(r))
		return -EINVAL;
	(void)snprintf(temperature, sizeof temperature, "%.9g", (double)m->temperature);
	(void)snprintf(run, sizeof run, "%u", m->run);
	(void)snprintf(seq, sizeof seq, "%llu", (unsigned long long)m->seq);
	const struct st_meta_kv meta[] = {
		{"schema", "1"},       {"target_fp", m->target_fp},   {"temperature", temperature},      {"request", m->request},
		{"run", run},          {"last", m->last ? "1" : "0"}, {"conversation", m->conversation}, {"parent", m->parent},
		{"domain", m->domain}, {"tenant", m->tenant},         {"producer", m->producer},         {"seq", seq},
	};
	int rc = 0;
	if (!r->features)
		p = (struct packed_features){.kind = r->payload, .code = r->codes, .scale = r->scales};
	else
		rc = record_pack_features(r->payload, r->features, (size_t)r->T * 3 * (size_t)r->H_t, (size_t)r->H_t, &p);
	if (rc < 0)
		return rc;
	list_tensors(&l, r, &p);
	rc = st_write(out, l.t, l.n, meta, (int)(sizeof meta / sizeof meta[0]), 64);
	free(p.owned);
	if (rc == 0 && out->len - len0 > RECORD_MAX_BYTES) {
		out->len = len0;
		rc = -E2BIG;
	}
	return rc;
}

size_t record_bytes(enum record_payload payload, int T, int T_gen, int T_prompt, int S, int K, int k, int H_t)
{
	size_t row = 4 + 4 + 1 + (payload < RECORD_FP8 ? (size_t)H_t * 6 : (size_t)H_t * 3 + 12), round = 4 + 1 + 1 + 4 + 1 + (size_t)k * 5;

	return 8 + HEADER_BOUND + 64 + 4 + (size_t)T * row + (size_t)T_gen * (size_t)K * 6 + (size_t)T_prompt * (size_t)H_t * 2 +
	       (size_t)S * round;
}

bool record_round_is_chain(const struct trace_record *r, int s)
{
	for (int j = 0; r->draft_parent && j < r->round_len[s]; j++)
		if (r->draft_parent[s * r->k + j] != (uint8_t)(j - 1))
			return false;
	return true;
}

/* ---- decoding ---- */

/* A tensor that must have dtype and dims dims; NULL in *ret when absent. */
static int want(const struct st_file *f, const char *name, enum st_dtype dtype, int dims, const struct st_tensor **ret, struct errtext *e)
{
	const struct st_tensor *t = st_find(f, name);

	if (t && (t->dtype != dtype || t->n_dims != dims))
		return errtext_set(e, -EINVAL, "%s: expected %s with %d dimensions", name, st_dtype_name(dtype), dims);
	for (int i = 0; t && i < dims; i++) {
		if (t->shape[i] > RECORD_MAX_BYTES)
			return errtext_set(e, -EINVAL, "%s: too large", name);
	}
	*ret = t;
	return 0;
}

struct parts { /* the tensors of one record, NULL when absent */
	const struct st_tensor *ids, *pos, *next, *mask, *feat, *zip, *scale, *lo, *tk_ids, *tk_lp, *hidden;
	const struct st_tensor *start, *len, *acc, *ver, *flags, *draft, *parent;
};

static int find_parts(const struct st_file *f, struct parts *p, struct errtext *e)
{
	const struct st_tensor *feat = st_find(f, "features");
	enum st_dtype kind = feat ? feat->dtype : ST_U8;
	const struct {
		const char *name;
		enum st_dtype dtype;
		int dims;
		const struct st_tensor **ret;
	} all[] = {
		{"token_ids", ST_U32, 1, &p->ids},
		{"positions", ST_U32, 1, &p->pos},
		{"next_token", ST_U32, 1, &p->next},
		{"loss_mask", ST_U8, 1, &p->mask},
		{feat ? "features" : "features_hi", kind, 3, &p->feat},
		{"features_hi_zstd", ST_U8, 1, &p->zip},
		{"features_lo", ST_U8, 3, &p->lo},
		{"features_scale", ST_F32, 2, &p->scale},
		{"topk_ids", ST_U32, 2, &p->tk_ids},
		{"topk_logprob", ST_F16, 2, &p->tk_lp},
		{"last_hidden", ST_BF16, 2, &p->hidden},
		{"round_start", ST_U32, 1, &p->start},
		{"round_len", ST_U8, 1, &p->len},
		{"accepted", ST_U8, 1, &p->acc},
		{"round_version", ST_U32, 1, &p->ver},
		{"round_flags", ST_U8, 1, &p->flags},
		{"draft_ids", ST_U32, 2, &p->draft},
		{"draft_parent", ST_U8, 2, &p->parent},
	};

	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
		int r = want(f, all[i].name, all[i].dtype, all[i].dims, all[i].ret, e);
		if (r < 0)
			return r;
	}
	if (feat || p->feat)
		p->zip = NULL; /* one kind is enough */
	if (!p->ids || !p->pos || !p->next || !p->mask || (!p->feat && !p->zip))
		return errtext_set(e, -EINVAL, "%s is missing",
				   !p->ids    ? "token_ids"
				   : !p->pos  ? "positions"
				   : !p->next ? "next_token"
				   : !p->mask ? "loss_mask"
					      : "features");
	if (feat && kind != ST_BF16 && kind != ST_I8 && kind != ST_F8_E4M3)
		return errtext_set(e, -EINVAL, "features: dtype %s is not one of BF16, I8, F8_E4M3", st_dtype_name(kind));
	if (p->zip ? !p->lo : kind == ST_U8 ? !p->lo : kind != ST_BF16 && !p->scale)
		return errtext_set(e, -EINVAL, "%s is missing", kind == ST_U8 ? "features_lo" : "features_scale");
	return 0;
}

static bool dims_are(const struct st_tensor *t, uint64_t d0, uint64_t d1, uint64_t d2)
{
	return !t || (t->shape[0] == d0 && (t->n_dims < 2 || t->shape[1] == d1) && (t->n_dims < 3 || t->shape[2] == d2));
}

/* Sizes from the tensors' shapes, and all shapes against each other. */
static int check_shapes(const struct parts *p, struct trace_record *r, struct errtext *e)
{
	uint64_t T = p->ids->shape[0], H = (p->feat ? p->feat : p->lo)->shape[2], G = 0, S = 0, k = 0, K = 0;

	for (uint64_t i = 0; i < p->mask->shape[0]; i++)
		G += p->mask->data[i];
	if (T == 0 || H == 0 || !dims_are(p->pos, T, 0, 0) || !dims_are(p->mask, T, 0, 0) || !dims_are(p->next, 1, 0, 0) || G > T)
		return errtext_set(e, -EINVAL, "token_ids, positions, loss_mask and next_token do not agree in length");
	if (!dims_are(p->feat, T, 3, H) || !dims_are(p->lo, T, 3, H) || !dims_are(p->scale, T, 3, 0))
		return errtext_set(e, -EINVAL, "features: not [T,3,H_t], or its scale not [T,3]");
	if (!p->tk_ids != !p->tk_lp || (p->tk_ids && G == 0))
		return errtext_set(e, -EINVAL, "topk_ids and topk_logprob: one without the other, or no generated row");
	if (p->tk_ids)
		K = p->tk_ids->shape[1];
	if (!dims_are(p->tk_ids, G, K, 0) || !dims_are(p->tk_lp, G, K, 0) || K > RECORD_MAX_TOPK)
		return errtext_set(e, -EINVAL, "topk: not [T_gen,K] with K <= %d", RECORD_MAX_TOPK);
	if (!dims_are(p->hidden, T - G, H, 0))
		return errtext_set(e, -EINVAL, "last_hidden: not [T_prompt,H_t]");
	if (p->start)
		S = p->start->shape[0];
	if (p->draft)
		k = p->draft->shape[1];
	bool all = p->len && p->acc && p->ver && p->flags, none = !p->len && !p->acc && !p->ver && !p->flags && !p->draft && !p->parent;
	if (S ? !all : !none)
		return errtext_set(e, -EINVAL, "rounds: some of the round tensors are missing");
	if (S && (!dims_are(p->len, S, 0, 0) || !dims_are(p->acc, S, 0, 0) || !dims_are(p->ver, S, 0, 0) || !dims_are(p->flags, S, 0, 0) ||
		  !dims_are(p->draft, S, k, 0) || !dims_are(p->parent, S, k, 0) || S > T || k > RECORD_MAX_K))
		return errtext_set(e, -EINVAL, "rounds: tensors do not agree in length");
	r->T = (int)T, r->T_gen = (int)G, r->T_prompt = (int)(T - G), r->H_t = (int)H;
	r->S = (int)S, r->k = (int)k, r->K = (int)K;
	return 0;
}

/* Bump allocator over the arena that the record owns. */
struct arena {
	uint8_t *at;
};

static void *take(struct arena *a, size_t bytes)
{
	void *p = a->at;

	a->at += (bytes + 63) / 64 * 64;
	return p;
}

static const void *copy(struct arena *a, const struct st_tensor *t)
{
	return t && t->bytes ? memcpy(take(a, t->bytes), t->data, t->bytes) : NULL;
}

static int copy_parts(const struct parts *p, struct trace_record *r, struct errtext *e)
{
	const struct st_tensor *const *all = (const struct st_tensor *const *)p;
	size_t n_feat = (size_t)r->T * 3 * (size_t)r->H_t, bytes = (n_feat * 2 + 63) / 64 * 64;

	for (size_t i = 0; i < sizeof *p / sizeof p->ids; i++)
		bytes += all[i] ? (all[i]->bytes + 63) / 64 * 64 : 0;
	r->owned = aligned_alloc(64, bytes);
	if (!r->owned)
		return errtext_set(e, -ENOMEM, "out of memory");
	struct arena a = {r->owned};
	r->token_ids = copy(&a, p->ids);
	r->positions = copy(&a, p->pos);
	memcpy(&r->next_token, p->next->data, 4);
	r->loss_mask = copy(&a, p->mask);
	uint16_t *features = take(&a, n_feat * 2);
	if (record_widen_features(features, p->zip ? p->zip : p->feat, p->lo, copy(&a, p->scale), p->zip, n_feat, (size_t)r->H_t) < 0)
		return errtext_set(e, -EINVAL, "features_hi_zstd: not %zu bytes compressed by zstd", n_feat);
	r->payload = p->zip || p->feat->dtype == ST_U8 ? RECORD_PLANES : p->feat->dtype == ST_I8 ? RECORD_INT8 : p->feat->dtype == ST_F8_E4M3 ? RECORD_FP8 : RECORD_BF16;
	r->features = features;
	r->topk_ids = copy(&a, p->tk_ids);
	r->topk_logprob = copy(&a, p->tk_lp);
	r->last_hidden = copy(&a, p->hidden);
	r->round_start = copy(&a, p->start);
	r->round_len = copy(&a, p->len);
	r->accepted = copy(&a, p->acc);
	r->round_version = copy(&a, p->ver);
	r->round_flags = copy(&a, p->flags);
	r->draft_ids = copy(&a, p->draft);
	r->draft_parent = copy(&a, p->parent);
	return 0;
}

int record_decode(const void *blob, size_t len, uint32_t vocab, struct trace_record *ret, struct errtext *e)
{
	struct trace_record r = {.T = 0};
	struct parts p = {.ids = NULL};
	struct st_file *f;

	if (len > RECORD_MAX_BYTES)
		return errtext_set(e, -E2BIG, "record of %zu bytes is over the limit of %d", len, RECORD_MAX_BYTES);
	int rc = st_parse(blob, len, &f, e);
	if (rc < 0)
		return rc;
	rc = record_parse_meta(f, &r.meta, e);
	if (rc == 0)
		rc = find_parts(f, &p, e);
	if (rc == 0)
		rc = check_shapes(&p, &r, e);
	if (rc == 0)
		rc = copy_parts(&p, &r, e);
	if (rc == 0)
		rc = record_check_values(&r, vocab, e);
	st_free(f);
	if (rc < 0) {
		record_done(&r);
		return rc;
	}
	*ret = r;
	return 0;
}

void record_done(struct trace_record *r)
{
	free(r->owned);
	*r = (struct trace_record){.T = 0};
}
