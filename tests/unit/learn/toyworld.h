/* A small world for tests of the learner: a store with a frozen target of 8 layers,
 * 32 wide, over 96 tokens; trace records made from a seed; a source that hands out
 * a script. */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "daemon/base/fs.h"
#include "daemon/base/mix.h"
#include "learn/frozen.h"
#include "learn/source.h"
#include "schemas/manifest.h"
#include "schemas/record.h"
#include "schemas/safetensors.h"

enum { TW_V = 96, TW_H = 32, TW_K = 8, TW_PARTS = 3 };
#define TW_FP "abababababababababababababababababababababababababababababababab"

static inline uint64_t tw_next(uint64_t *s)
{
	return mix64(*s += MIX_GOLDEN);
}

static inline uint16_t tw_bf16(uint64_t *s) /* about normal, deviation 0.5 */
{
	float f = ((float)(tw_next(s) % 1000) + (float)(tw_next(s) % 1000)) / 1000.0f - 1.0f;
	union { float f; uint32_t u; } x = {.f = f};
	return (uint16_t)(x.u >> 16);
}

static inline void tw_temp_dir(char ret[256])
{
	const char *base = getenv("TMPDIR");
	(void)snprintf(ret, 256, "%s/redraft-test-XXXXXX", base ? base : "/tmp");
	assert_non_null(mkdtemp(ret));
}

/* store/frozen/<fp>/frozen.safetensors */
static inline void tw_store(const char *store)
{
	static uint16_t emb[TW_V * TW_H];
	uint64_t s = 7;
	char path[512], *slash;
	struct buf b = BUF_INIT(0);
	for (int i = 0; i < TW_V * TW_H; i++)
		emb[i] = tw_bf16(&s);
	struct st_out t = {"embed_tokens.weight", ST_BF16, 2, {TW_V, TW_H}, emb};
	const struct st_meta_kv meta[] = {{"target_fp", TW_FP}, {"n_layer", "8"}, {"n_head", "2"}, {"n_kv_head", "1"}, {"head_dim", "16"},
					  {"intermediate_size", "48"}, {"rms_eps", "1e-5"}, {"rope_theta", "10000"}, {"max_ctx", "512"}};
	assert_int_equal(st_write(&b, &t, 1, meta, 9, 8), 0);
	assert_int_equal(store_frozen_file(store, TW_FP, path, sizeof path), 0);
	slash = strrchr(path, '/');
	*slash = 0;
	assert_int_equal(fs_mkdirs(path), 0);
	*slash = '/';
	assert_int_equal(fs_write_atomic(path, b.data, b.len), 0);
	buf_done(&b);
}

/* One record of a request: rows [at, at+T) of which those from n_prompt on are generated. */
struct tw_record {
	char request[32], domain[16];
	int at, T, n_prompt;
	uint32_t run;
	bool last;
	uint64_t seq, seed; /* seed of the request's text: token i is a function of (seed, i) */
	uint32_t round_version; /* one round of two proposals at the last prompt row, by this version; 0 = none */
	uint8_t round_accepted, round_flags;
	char conversation[32], parent[64], tenant[32];
	float scale; /* of the features; 0 = 1 */
};

static inline uint32_t tw_token(uint64_t seed, int i)
{
	uint64_t s = seed * 1000003 + (uint64_t)i;
	return (uint32_t)(tw_next(&s) % 40); /* a narrow text, so that there is something to learn */
}

static inline uint16_t tw_scaled(uint16_t h, float scale)
{
	union { float f; uint32_t u; } x = {.u = (uint32_t)h << 16};
	x.f *= scale != 0 ? scale : 1;
	return (uint16_t)(x.u >> 16);
}

static inline void tw_encode(const struct tw_record *q, struct buf *out)
{
	struct trace_record r = {.T = q->T, .K = TW_K, .H_t = TW_H};
	uint32_t *ids = calloc((size_t)q->T, 4), *pos = calloc((size_t)q->T, 4), *tk = calloc((size_t)q->T * TW_K, 4);
	uint8_t *mask = calloc((size_t)q->T, 1);
	uint16_t *f = calloc((size_t)q->T * 3 * TW_H, 2), *lp = calloc((size_t)q->T * TW_K, 2), *hid = calloc((size_t)q->T * TW_H, 2);
	uint64_t s = q->seed * 77 + (uint64_t)q->at;
	for (int t = 0; t < q->T; t++) {
		ids[t] = tw_token(q->seed, q->at + t);
		pos[t] = (uint32_t)(q->at + t);
		mask[t] = q->at + t >= q->n_prompt;
		for (int i = 0; i < 3 * TW_H; i++)
			f[t * 3 * TW_H + i] = tw_scaled(tw_bf16(&s), q->scale);
		if (mask[t]) {
			uint32_t first = tw_token(q->seed, q->at + t + 1);
			for (int k = 0; k < TW_K; k++) {
				tk[r.T_gen * TW_K + k] = (first + (uint32_t)k * 7) % TW_V;
				lp[r.T_gen * TW_K + k] = f32_to_f16(-0.5f - (float)k);
			}
			r.T_gen++;
		} else {
			for (int i = 0; i < TW_H; i++)
				hid[r.T_prompt * TW_H + i] = tw_bf16(&s);
			r.T_prompt++;
		}
	}
	memcpy(r.meta.target_fp, TW_FP, 65);
	(void)snprintf(r.meta.request, sizeof r.meta.request, "%s", q->request);
	(void)snprintf(r.meta.domain, sizeof r.meta.domain, "%s", q->domain);
	(void)snprintf(r.meta.producer, sizeof r.meta.producer, "toy-producer");
	(void)snprintf(r.meta.conversation, sizeof r.meta.conversation, "%s", q->conversation);
	(void)snprintf(r.meta.parent, sizeof r.meta.parent, "%s", q->parent);
	(void)snprintf(r.meta.tenant, sizeof r.meta.tenant, "%s", q->tenant);
	r.meta.seq = q->seq;
	r.meta.run = q->run;
	r.meta.last = q->last;
	uint32_t start = (uint32_t)(q->n_prompt - 1 - q->at), drafts[2] = {1, 2};
	uint8_t len = 2;
	if (q->round_version) {
		r.S = 1;
		r.k = 2;
		r.round_start = &start;
		r.round_len = &len;
		r.accepted = &q->round_accepted;
		r.round_version = &q->round_version;
		r.round_flags = &q->round_flags;
		r.draft_ids = drafts;
	}
	r.token_ids = ids;
	r.positions = pos;
	r.next_token = tw_token(q->seed, q->at + q->T);
	r.loss_mask = mask;
	r.features = f;
	r.topk_ids = r.T_gen ? tk : NULL;
	r.topk_logprob = r.T_gen ? lp : NULL;
	r.last_hidden = r.T_prompt ? hid : NULL;
	if (!r.T_gen)
		r.K = 0;
	assert_int_equal(record_encode(out, &r), 0);
	free(ids);
	free(pos);
	free(tk);
	free(mask);
	free(f);
	free(lp);
	free(hid);
}

/* ---- a source that plays a script ---- */

struct tw_message { int partition; int64_t offset, time_s; struct buf blob; };
struct tw_source {
	struct source base;
	struct tw_message *v;
	int n, visible; /* only the first `visible` have been produced so far */
	int64_t low[TW_PARTS]; /* the log of a partition starts here */
	int reads;
};

static inline int tw_partitions(struct source *s)
{
	(void)s;
	return TW_PARTS;
}

static inline int tw_read(struct source *src, int partition, int64_t offset, const int64_t *wanted, int n, int wait_ms, struct source_msg *ret)
{
	struct tw_source *s = (struct tw_source *)(void *)src;
	(void)wanted, (void)n, (void)wait_ms;
	s->reads++;
	memset(ret, 0, sizeof *ret);
	if (offset < s->low[partition]) {
		ret->offset = s->low[partition];
		return SOURCE_E_GAP;
	}
	int64_t high = s->low[partition];
	for (int i = 0; i < s->visible; i++)
		if (s->v[i].partition == partition)
			high = s->v[i].offset + 1;
	if (offset > high) { /* beyond the end: the log is another one */
		ret->offset = s->low[partition];
		return SOURCE_E_GAP;
	}
	for (int i = 0; i < s->visible; i++)
		if (s->v[i].partition == partition && s->v[i].offset >= offset) {
			*ret = (struct source_msg){.offset = s->v[i].offset, .time_s = s->v[i].time_s, .data = s->v[i].blob.data, .len = s->v[i].blob.len};
			return 0;
		}
	return SOURCE_E_NONE;
}

static inline void tw_release(struct source *s, struct source_msg *m)
{
	(void)s, (void)m;
}

static inline const char *tw_cluster(struct source *s)
{
	(void)s;
	return "toy-cluster";
}

static inline int64_t tw_lag(struct source *s, int partition, int64_t offset)
{
	(void)s, (void)partition, (void)offset;
	return -1;
}

static inline const char *tw_trouble(struct source *s)
{
	(void)s;
	return "";
}

static inline void tw_add(struct tw_source *s, int partition, const void *blob, size_t len)
{
	int64_t offset = s->low[partition];
	for (int i = 0; i < s->n; i++)
		if (s->v[i].partition == partition)
			offset = s->v[i].offset + 1;
	s->v = realloc(s->v, (size_t)(s->n + 1) * sizeof *s->v);
	s->v[s->n] = (struct tw_message){.partition = partition, .offset = offset, .time_s = 1000 + s->n};
	s->v[s->n].blob = BUF_INIT(0);
	assert_int_equal(buf_append(&s->v[s->n].blob, blob, len), 0);
	s->n++;
}

static inline void tw_source_init(struct tw_source *s)
{
	memset(s, 0, sizeof *s);
	s->base = (struct source){tw_partitions, tw_read, tw_release, tw_cluster, tw_lag, tw_trouble, NULL};
}

static inline void tw_source_done(struct tw_source *s)
{
	for (int i = 0; i < s->n; i++)
		buf_done(&s->v[i].blob);
	free(s->v);
}

/* `requests` requests of two or three records each, interleaved by a seeded draw over the partitions;
 * among them a damaged record, a repeated one and one that is missing. Some go on from the request before them on
 * their partition, and some say again what it said. */
static inline void tw_script(struct tw_source *s, int requests, uint64_t seed)
{
	enum { OPEN = 6 };
	struct tw_record open[OPEN] = {0};
	int left[OPEN] = {0}, started = 0;
	uint64_t x = seed, seq[TW_PARTS] = {0};
	struct buf b = BUF_INIT(0), late[TW_PARTS] = {{0}}; /* a copy that comes some records later */
	int later[TW_PARTS] = {0};
	for (;;) {
		int i = (int)(tw_next(&x) % OPEN), part = i % TW_PARTS, all = 0;
		for (int k = 0; k < OPEN; k++)
			all += left[k];
		if (!all && started == requests)
			break;
		if (!left[i]) {
			if (started == requests)
				continue;
			struct tw_record was = open[i];
			uint64_t kind = tw_next(&x) % 4;
			bool more = was.at > 32 && kind < 2;
			open[i] = (struct tw_record){.n_prompt = 8 + (int)(tw_next(&x) % 12), .seed = more ? was.seed : seed * 131 + (uint64_t)started};
			(void)snprintf(open[i].conversation, sizeof open[i].conversation, "talk-%llu", (unsigned long long)open[i].seed);
			if (more && kind == 0) { /* a later round: its history was recorded by the one before */
				open[i].at = was.at / 32 * 32;
				open[i].n_prompt += open[i].at;
				(void)snprintf(open[i].parent, sizeof open[i].parent, "%s %d", was.request, open[i].at);
			}
			(void)snprintf(open[i].request, sizeof open[i].request, "req-%d", started++);
			(void)snprintf(open[i].domain, sizeof open[i].domain, "%s", started % 3 ? "tools" : "code");
			left[i] = 2 + (int)(tw_next(&x) % 2);
		}
		open[i].T = 10 + (int)(tw_next(&x) % 10);
		open[i].last = --left[i] == 0;
		open[i].seq = ++seq[part];
		if (tw_next(&x) % 23 != 0) { /* else it never arrived */
			buf_clear(&b);
			tw_encode(&open[i], &b);
			if (tw_next(&x) % 13 == 0) { /* damaged on the way */
				b.data[b.len / 2] ^= 0xff;
				b.data[20] ^= 0xff;
			}
			tw_add(s, part, b.data, b.len);
			if (late[part].len && ++later[part] == 4) {
				tw_add(s, part, late[part].data, late[part].len);
				buf_clear(&late[part]);
			} else if (!late[part].len && tw_next(&x) % 3 == 0) {
				later[part] = 0;
				assert_int_equal(buf_append(&late[part], b.data, b.len), 0);
			}
		}
		open[i].at += open[i].T;
		open[i].run++;
	}
	buf_done(&b);
	for (int p = 0; p < TW_PARTS; p++)
		buf_done(&late[p]);
}
