/* What this proves: a trace record comes back bit for bit as it was pushed, from an
 * unaligned payload; record_bytes is an upper bound that is not wasteful; and each
 * field's law (record.md) refuses the record that breaks it, by the field's name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "schemas/record.h"
#include "schemas/safetensors.h"

enum { T = 9, TG = 5, TP = T - TG, S = 2, K = 4, KD = 3, H = 8, VOCAB = 100 };

struct fixture { /* the arrays of one good record */
	uint32_t ids[T], pos[T], tk[TG * K], start[S], ver[S], draft[S * KD];
	uint16_t feat[T * 3 * H], lp[TG * K], hidden[TP * H];
	uint8_t mask[T], len[S], acc[S], flags[S], parent[S * KD];
	struct trace_record r;
};

static uint32_t seed = 12345;
static uint32_t rnd(void)
{
	seed = seed * 1664525u + 1013904223u;
	return seed >> 8;
}

static void make(struct fixture *x)
{
	memset(x, 0, sizeof *x);
	for (int i = 0; i < T; i++) {
		x->ids[i] = rnd() % VOCAB;
		x->pos[i] = 40 + (uint32_t)i;
		x->mask[i] = i >= TP;
	}
	for (int i = 0; i < T * 3 * H; i++)
		x->feat[i] = (uint16_t)(rnd() & 0xbfff); /* any finite value, both signs */
	for (int i = 0; i < TP * H; i++)
		x->hidden[i] = (uint16_t)(rnd() & 0xbfff);
	for (int i = 0; i < TG; i++) {
		for (int j = 0; j < K; j++) {
			x->tk[i * K + j] = (uint32_t)(10 * j) + rnd() % 10;
			x->lp[i * K + j] = f32_to_f16(-0.25f * (float)(j + 1));
		}
	}
	uint32_t start[S] = {4, 6}, ver[S] = {3, 4}, draft[S * KD] = {1, 2, RECORD_PAD, 4, 5, 6};
	uint8_t len[S] = {2, 3}, acc[S] = {1, 3};
	memcpy(x->start, start, sizeof start);
	memcpy(x->ver, ver, sizeof ver);
	memcpy(x->draft, draft, sizeof draft);
	memcpy(x->len, len, sizeof len);
	memcpy(x->acc, acc, sizeof acc);
	x->flags[1] = 1;
	memset(x->parent, 0xff, sizeof x->parent);
	x->r = (struct trace_record){
		.meta = {.target_fp = "00ff",
			 .request = "req-1",
			 .conversation = "c\"onv",
			 .parent = "p:3",
			 .domain = "tools",
			 .tenant = "t",
			 .producer = "uuid",
			 .seq = 1ull << 63,
			 .run = 2,
			 .last = true,
			 .temperature = 0.7f},
		.T = T,
		.T_gen = TG,
		.T_prompt = TP,
		.S = S,
		.K = K,
		.k = KD,
		.H_t = H,
		.token_ids = x->ids,
		.positions = x->pos,
		.next_token = 99,
		.loss_mask = x->mask,
		.features = x->feat,
		.topk_ids = x->tk,
		.topk_logprob = x->lp,
		.last_hidden = x->hidden,
		.round_start = x->start,
		.round_len = x->len,
		.accepted = x->acc,
		.round_version = x->ver,
		.round_flags = x->flags,
		.draft_ids = x->draft,
	};
}

static int there_and_back(const struct trace_record *r, struct trace_record *ret, struct errtext *e)
{
	struct buf out = BUF_INIT(0);

	assert_int_equal(record_encode(&out, r), 0);
	assert_true(out.len <= record_bytes(r->payload, r->T, r->T_gen, r->T_prompt, r->S, r->K, r->k, r->H_t));
	uint8_t *shifted = malloc(out.len + 1); /* Kafka promises no alignment */
	memcpy(shifted + 1, out.data, out.len);
	int rc = record_decode(shifted + 1, out.len, VOCAB, ret, e);
	free(shifted);
	buf_done(&out);
	return rc;
}

static float widen(uint16_t h)
{
	union {
		uint32_t u;
		float f;
	} x = {.u = (uint32_t)h << 16};
	return x.f;
}

/* Every kind of payload: planes bit for bit, 8-bit kinds within half a step of their code, and the bf16 that follows. */
static void test_payloads(void **state)
{
	enum { ROWS = 40, WIDTH = 96, N = ROWS * 3 * WIDTH };
	static uint16_t feat[N];
	static uint32_t ids[ROWS], pos[ROWS];
	static uint8_t mask[ROWS];
	size_t size[4];
	(void)state;
	for (int i = 0; i < N; i++) { /* rows of very different size, as boundaries are; one of zeros, one of the smallest */
		int row = i / WIDTH;
		float f = ((float)(rnd() % 2001) - 1000) * ldexpf(1, row % 40 - 20);
		union {
			float f;
			uint32_t u;
		} x = {.f = row == 5 ? 0 : row == 6 ? ldexpf(f, -110) : f};
		feat[i] = (uint16_t)(x.u >> 16);
	}
	for (int i = 0; i < ROWS; i++)
		pos[i] = (uint32_t)i;
	for (int kind = RECORD_BF16; kind <= RECORD_INT8; kind++) {
		struct trace_record r = {.meta = {.target_fp = "ff", .request = "r", .producer = "p"}, .payload = (enum record_payload)kind, .T = ROWS, .T_prompt = ROWS,
					 .H_t = WIDTH, .token_ids = ids, .positions = pos, .loss_mask = mask, .features = feat}, got;
		struct buf out = BUF_INIT(0);
		struct errtext e = {""};
		assert_int_equal(record_encode(&out, &r), 0);
		size[kind] = out.len;
		assert_true(out.len <= record_bytes(r.payload, ROWS, 0, 0, 0, 0, 0, WIDTH));
		buf_done(&out);
		assert_int_equal(there_and_back(&r, &got, &e), 0);
		assert_int_equal(got.payload, kind);
		for (int row = 0; row < 3 * ROWS; row++) {
			float top = 0;
			for (int i = 0; i < WIDTH; i++)
				top = fmaxf(top, fabsf(widen(feat[row * WIDTH + i])));
			for (int i = 0; i < WIDTH; i++) {
				float x = widen(feat[row * WIDTH + i]), y = widen(got.features[row * WIDTH + i]);
				float step = kind == RECORD_INT8 ? top / 127 / 2 : kind == RECORD_FP8 ? fmaxf(fabsf(x) / 16, top / 448 / 1024) : 0;
				step = step > 0 && step < 0x1p-126f ? 0x1p-126f : step;
				if (!(fabsf(x - y) <= step * 1.001f + (step > 0 ? fabsf(y) / 256 : 0)))
					fail_msg("kind %d, row %d: %g came back as %g, step %g", kind, row, (double)x, (double)y, (double)step);
			}
		}
		record_done(&got);
		feat[7] = kind % 2 ? 0x7fc0 : 0xff80; /* what is not finite is refused in every kind */
		assert_int_equal(there_and_back(&r, &got, &e), -EINVAL);
		feat[7] = 0x3f80;
	}
	print_message("bf16 %zu, planes %zu, fp8 %zu, int8 %zu bytes\n", size[0], size[1], size[2], size[3]);
	assert_true((double)size[1] < 0.9 * (double)size[0] && (double)size[2] < 0.6 * (double)size[0] && size[2] == size[3]);
	/* noise does not shrink: it travels as bf16 */
	for (int i = 0; i < N; i++)
		feat[i] = (uint16_t)((rnd() & 0xff) | ((rnd() & 0xff) << 8));
	for (int i = 0; i < N; i++)
		feat[i] = (feat[i] & 0x7f80) == 0x7f80 ? (uint16_t)(feat[i] & 0xbfff) : feat[i];
	struct trace_record r = {.meta = {.target_fp = "ff", .request = "r", .producer = "p"}, .payload = RECORD_PLANES, .T = ROWS, .T_prompt = ROWS,
				 .H_t = WIDTH, .token_ids = ids, .positions = pos, .loss_mask = mask, .features = feat}, got;
	assert_int_equal(there_and_back(&r, &got, NULL), 0);
	assert_memory_equal(got.features, feat, sizeof feat);
	record_done(&got);
}

/* A frame that is cut, of another length, or no frame: refused by name, whatever byte is wrong. */
static void test_bad_planes(void **state)
{
	struct fixture x;
	struct buf out = BUF_INIT(0);
	struct trace_record got;
	static uint16_t feat[T * 3 * 200];
	int refused = 0;
	(void)state;
	make(&x);
	for (int i = 0; i < T * 3 * 200; i++)
		feat[i] = (uint16_t)(0x3f00 | (rnd() & 0xff));
	x.r.H_t = 200, x.r.features = feat, x.r.last_hidden = NULL, x.r.payload = RECORD_PLANES;
	assert_int_equal(record_encode(&out, &x.r), 0);
	struct st_file *f;
	assert_int_equal(st_parse(out.data, out.len, &f, NULL), 0);
	const struct st_tensor *z = st_find(f, "features_hi_zstd");
	assert_non_null(z);
	size_t at = (size_t)(z->data - (const uint8_t *)out.data), n = z->bytes;
	st_free(f);
	for (size_t i = 0; i < n; i++) {
		uint8_t *b = (uint8_t *)out.data + at + i, keep = *b;
		struct errtext e = {""};
		*b ^= 0x55;
		int rc = record_decode(out.data, out.len, VOCAB, &got, &e);
		if (rc == 0)
			record_done(&got); /* another plane, as another bf16 would have been */
		else
			refused++, assert_true(strstr(e.text, "features") != NULL);
		*b = keep;
	}
	assert_true(refused > 4);
	buf_done(&out);
}

static void test_round_trip(void **state)
{
	(void)state;
	struct fixture x;
	struct trace_record d;

	make(&x);
	assert_true(record_round_is_chain(&x.r, 0));
	for (int variant = 0; variant < 4; variant++) {
		if (variant == 1)
			x.r.draft_parent = x.parent;
		if (variant == 2)
			x.r.last_hidden = NULL;
		if (variant == 3)
			x.r.S = 0, x.r.k = 0, x.r.K = 0, x.r.topk_ids = NULL, x.r.topk_logprob = NULL;
		assert_int_equal(there_and_back(&x.r, &d, NULL), 0);
		assert_int_equal(memcmp(&d.meta, &x.r.meta, sizeof d.meta), 0);
		assert_true(d.T == T && d.T_gen == TG && d.T_prompt == TP && d.S == x.r.S && d.K == x.r.K && d.k == x.r.k && d.H_t == H);
		assert_int_equal(d.next_token, 99);
		assert_memory_equal(d.token_ids, x.ids, sizeof x.ids);
		assert_memory_equal(d.positions, x.pos, sizeof x.pos);
		assert_memory_equal(d.loss_mask, x.mask, sizeof x.mask);
		assert_memory_equal(d.features, x.feat, sizeof x.feat);
		assert_int_equal((uintptr_t)d.features % 64, 0);
		if (variant < 3) {
			assert_memory_equal(d.topk_ids, x.tk, sizeof x.tk);
			assert_memory_equal(d.topk_logprob, x.lp, sizeof x.lp);
			assert_memory_equal(d.round_start, x.start, sizeof x.start);
			assert_memory_equal(d.round_len, x.len, sizeof x.len);
			assert_memory_equal(d.accepted, x.acc, sizeof x.acc);
			assert_memory_equal(d.round_version, x.ver, sizeof x.ver);
			assert_memory_equal(d.round_flags, x.flags, sizeof x.flags);
			assert_memory_equal(d.draft_ids, x.draft, sizeof x.draft);
		}
		assert_int_equal(variant == 1 || (variant > 1 && x.r.S), d.draft_parent != NULL);
		assert_int_equal(variant < 2, d.last_hidden != NULL);
		if (d.last_hidden)
			assert_memory_equal(d.last_hidden, x.hidden, sizeof x.hidden);
		record_done(&d);
		record_done(&d);
	}
}

static void test_limit(void **state)
{
	(void)state;
	enum { BIG = 260, WIDE = 576 };
	struct trace_record r, d;
	struct fixture x;
	struct buf out = BUF_INIT(0);
	uint32_t *ids = calloc(BIG, 4), *pos = calloc(BIG, 4);
	uint8_t *mask = calloc(BIG, 1);
	uint16_t *feat = calloc((size_t)BIG * 3 * WIDE, 2);

	make(&x);
	r = x.r;
	r.T = r.T_prompt = BIG, r.T_gen = 0, r.S = 0, r.H_t = WIDE;
	r.token_ids = ids, r.positions = pos, r.loss_mask = mask, r.features = feat;
	r.topk_ids = NULL, r.topk_logprob = NULL, r.last_hidden = NULL;
	for (uint32_t i = 0; i < BIG; i++)
		pos[i] = i;
	assert_int_equal(record_encode(&out, &r), -E2BIG);
	assert_int_equal(out.len, 0);
	while (record_bytes(r.payload, r.T, 0, 0, 0, 0, 0, WIDE) > RECORD_MAX_BYTES)
		r.T = --r.T_prompt;
	assert_int_equal(record_encode(&out, &r), 0); /* what record_bytes allows, encodes */
	assert_true(record_bytes(r.payload, r.T, 0, 0, 0, 0, 0, WIDE) - out.len < 5000);
	assert_int_equal(record_decode(out.data, out.len, VOCAB, &d, NULL), 0);
	record_done(&d);
	buf_done(&out);
	free(ids), free(pos), free(mask), free(feat);
}

/* One breach a row: what to spoil, and the word the refusal must contain. */
static void spoil(struct fixture *x, int which, const char **ret_word)
{
	static const char *const word[] = {
		"token_ids", "positions", "positions",    "loss_mask",    "features",     "features",    "last_hidden", "next_token",
		"topk_ids",  "twice",     "topk_logprob", "topk_logprob", "topk_logprob", "round_start", "round_start", "accepted",
		"draft_ids", "draft_ids", "draft_ids",    "draft_parent", "temperature",  "target_fp",   "round 0",
	};
	switch (which) {
	case 0:
		x->ids[3] = VOCAB;
		break;
	case 1:
		x->pos[4]++;
		break;
	case 2:
		x->pos[0] = UINT32_MAX;
		for (int i = 1; i < T; i++)
			x->pos[i] = (uint32_t)(i - 1);
		break;
	case 3:
		x->mask[5] = 2;
		x->mask[6] = 0;
		break;
	case 4:
		x->feat[7] = 0x7f80;
		break;
	case 5:
		x->feat[T * 3 * H - 1] = 0xffc1;
		break;
	case 6:
		x->hidden[0] = 0x7fff;
		break;
	case 7:
		x->r.next_token = VOCAB;
		break;
	case 8:
		x->tk[5] = VOCAB;
		break;
	case 9:
		x->tk[K + 1] = x->tk[K + 3];
		break;
	case 10:
		x->lp[2] = f32_to_f16(-0.1f);
		break;
	case 11:
		x->lp[0] = 0x7e00;
		break; /* NaN */
	case 12:
		x->lp[0] = f32_to_f16(0.5f);
		break;
	case 13:
		x->start[1] = T;
		break;
	case 14:
		x->start[1] = 5;
		break; /* inside round 0, which accepted one */
	case 15:
		x->acc[0] = 3;
		break;
	case 16:
		x->draft[1] = VOCAB;
		break;
	case 17:
		x->draft[1] = RECORD_PAD;
		break;
	case 18:
		x->draft[2] = 7;
		break; /* past round_len */
	case 19:
		x->r.draft_parent = x->parent;
		x->parent[1] = 1;
		break;
	case 20:
		x->r.meta.temperature = NAN;
		break;
	case 21:
		x->r.meta.target_fp[0] = 0;
		break;
	case 22:
		x->len[0] = 9;
		break;
	default:
		*ret_word = NULL;
		return;
	}
	*ret_word = word[which];
}

static void test_laws(void **state)
{
	(void)state;
	const char *word;

	for (int which = 0;; which++) {
		struct fixture x;
		struct trace_record d = {.T = -7};
		struct errtext e = {""};
		make(&x);
		spoil(&x, which, &word);
		if (!word)
			break;
		assert_int_equal(there_and_back(&x.r, &d, &e), -EINVAL);
		assert_int_equal(d.T, -7);
		if (!strstr(e.text, word))
			fail_msg("case %d: \"%s\" does not name %s", which, e.text, word);
	}
}

/* Tensors missing, misshapen or of the wrong type; unknown ones ignored. */
static void test_structure(void **state)
{
	(void)state;
	static const struct {
		const char *name;
		bool needed;
	} all[] = {{"token_ids", true}, {"positions", true},     {"next_token", true},   {"loss_mask", true},   {"features", true},
		   {"topk_ids", true},  {"topk_logprob", true},  {"last_hidden", false}, {"round_start", true}, {"round_len", true},
		   {"accepted", true},  {"round_version", true}, {"round_flags", true},  {"draft_ids", true}};
	static const char *const keys[] = {"schema",       "target_fp", "temperature", "request",  "run", "last",
					   "conversation", "domain",    "tenant",      "producer", "seq", "parent"};
	struct fixture x;
	struct buf out = BUF_INIT(0);
	struct st_file *f;
	struct trace_record d;

	make(&x);
	assert_int_equal(record_encode(&out, &x.r), 0);
	assert_int_equal(st_parse(out.data, out.len, &f, NULL), 0);
	assert_int_equal(st_count(f), 14);
	for (int mode = 0; mode < 3; mode++) { /* leave out, misshape, add an unknown one */
		for (int victim = 0; victim < st_count(f); victim++) {
			struct st_out t[20];
			struct st_meta_kv meta[12];
			struct buf b = BUF_INIT(0);
			struct errtext e = {""};
			int n = 0;
			for (int i = 0; i < st_count(f); i++) {
				const struct st_tensor *s = st_at(f, i);
				if (mode == 0 && strcmp(s->name, all[victim].name) == 0)
					continue;
				t[n] = (struct st_out){.name = s->name, .dtype = s->dtype, .n_dims = s->n_dims, .data = s->data};
				memcpy(t[n].shape, s->shape, sizeof s->shape);
				if (mode == 1 && strcmp(s->name, all[victim].name) == 0)
					t[n].shape[0]--;
				n++;
			}
			if (mode == 2)
				t[n++] = (struct st_out){"zz_unknown", ST_U8, 1, {T}, x.mask};
			for (int i = 0; i < 12; i++)
				meta[i] = (struct st_meta_kv){keys[i], st_meta(f, keys[i])};
			assert_int_equal(st_write(&b, t, n, meta, 12, 64), 0);
			int rc = record_decode(b.data, b.len, VOCAB, &d, &e);
			bool ok = mode == 2 || (mode == 0 && !all[victim].needed);
			if (rc != (ok ? 0 : -EINVAL))
				fail_msg("mode %d, %s: %d %s", mode, all[victim].name, rc, e.text);
			if (rc == 0)
				record_done(&d);
			buf_done(&b);
		}
	}
	st_free(f);
	buf_done(&out);
}

/* The 8-bit and byte-plane kinds of features widen to what their scale says. */
static void test_feature_kinds(void **state)
{
	(void)state;
	static const char *const keys[] = {"schema", "target_fp", "temperature", "request", "run", "last", "producer", "seq"};
	static const char *const vals[] = {"1", "ab", "0", "r", "0", "1", "p", "1"};
	uint32_t ids[2] = {1, 2}, pos[2] = {0, 1}, next = 3;
	uint8_t mask[2] = {0, 0}, code[6], lo[6];
	float scale[6] = {1, 2, 0.5f, 4, 1, 0.25f};
	/* e4m3: 1.0, -1.5, smallest subnormal, 448, 0, -0.875 */
	const uint8_t e4m3[6] = {0x38, 0xbc, 0x01, 0x7e, 0x00, 0xb6};
	const float e4m3_value[6] = {1, -1.5f, 0x1p-9f, 448, 0, -0.875f};
	struct st_meta_kv meta[8];

	for (int i = 0; i < 8; i++)
		meta[i] = (struct st_meta_kv){keys[i], vals[i]};
	for (int kind = 0; kind < 4; kind++) {
		struct st_out t[] = {{"token_ids", ST_U32, 1, {2}, ids},           {"positions", ST_U32, 1, {2}, pos},
				     {"next_token", ST_U32, 1, {1}, &next},        {"loss_mask", ST_U8, 1, {2}, mask},
				     {"features", ST_F8_E4M3, 3, {2, 3, 1}, code}, {"features_scale", ST_F32, 2, {2, 3}, scale}};
		struct buf out = BUF_INIT(0);
		struct trace_record d;
		struct errtext e = {""};
		for (int i = 0; i < 6; i++) {
			code[i] = kind == 0 ? e4m3[i] : kind == 1 ? (uint8_t)(i * 40 - 100) : (uint8_t)(0x40 + i);
			lo[i] = (uint8_t)(i * 17);
		}
		if (kind == 1)
			t[4].dtype = ST_I8;
		if (kind == 2) {
			t[4] = (struct st_out){"features_hi", ST_U8, 3, {2, 3, 1}, code};
			t[5] = (struct st_out){"features_lo", ST_U8, 3, {2, 3, 1}, lo};
		}
		if (kind == 3)
			code[0] = 0x7f; /* e4m3's NaN */
		assert_int_equal(st_write(&out, t, 6, meta, 8, 64), 0);
		int rc = record_decode(out.data, out.len, 0, &d, &e);
		assert_int_equal(rc, kind == 3 ? -EINVAL : 0);
		for (int i = 0; rc == 0 && i < 6; i++) {
			union {
				uint32_t u;
				float f;
			} v = {.u = (uint32_t)d.features[i] << 16};
			float want = kind == 0 ? e4m3_value[i] * scale[i] : (float)(int8_t)code[i] * scale[i];
			if (kind == 2)
				assert_int_equal(d.features[i], code[i] << 8 | lo[i]);
			else
				assert_true(!(fabsf(v.f - want) > 0.004f * fabsf(want)));
		}
		if (rc == 0)
			record_done(&d);
		buf_done(&out);
	}
}

/* f16: every code goes there and back; rounding is to nearest even; edges. */
static void test_f16(void **state)
{
	(void)state;
	for (uint32_t h = 0; h < 65536; h++) {
		float f = f16_to_f32((uint16_t)h);
		if (isnan(f))
			assert_true(isnan(f16_to_f32(f32_to_f16(f))));
		else
			assert_int_equal(f32_to_f16(f), h);
		if ((h & 0x7fff) < 0x7bff) { /* halfway to the next code goes to the even one */
			float mid = (f + f16_to_f32((uint16_t)(h + 1))) / 2;
			assert_int_equal(f32_to_f16(mid) & 1, 0);
			assert_int_equal(f32_to_f16(nextafterf(mid, f)), h);
			assert_int_equal(f32_to_f16(nextafterf(mid, 2 * f16_to_f32((uint16_t)(h + 1)))), h + 1);
		}
	}
	assert_int_equal(f32_to_f16(65519.f), 0x7bff);
	assert_int_equal(f32_to_f16(65520.f), 0x7c00);
	assert_int_equal(f32_to_f16(-INFINITY), 0xfc00);
	assert_int_equal(f32_to_f16(0x1p-25f), 0);
	assert_int_equal(f32_to_f16(0x1.8p-25f), 1);
}

/* Any damage to a good record: refused, or decoded into something that obeys the laws. */
static void test_damage(void **state)
{
	(void)state;
	struct fixture x;
	struct trace_record d;
	struct buf out = BUF_INIT(0);
	int accepted = 0;

	make(&x);
	printf("seed %u\n", seed);
	assert_int_equal(record_encode(&out, &x.r), 0);
	for (size_t n = 0; n < out.len; n += 1 + n / 300)
		assert_int_not_equal(record_decode(out.data, n, VOCAB, &d, NULL), 0);
	uint8_t *copy = malloc(out.len);
	for (int i = 0; i < 20000; i++) {
		memcpy(copy, out.data, out.len);
		for (int j = 0; j <= i % 3; j++)
			copy[rnd() % out.len] = (uint8_t)rnd();
		if (record_decode(copy, out.len, VOCAB, &d, NULL) == 0) {
			accepted++;
			for (int t = 0; t < d.T; t++)
				assert_true(d.token_ids[t] < VOCAB);
			record_done(&d);
		}
	}
	assert_true(accepted > 0 && accepted < 20000);
	free(copy);
	buf_done(&out);
}

static void test_chain_or_tree(void **state)
{
	(void)state;
	const uint8_t len[] = {3, 2, 3}, parent[] = {255, 0, 1, 255, 255, 255, 255, 0, 0};
	const struct trace_record r = {.S = 3, .k = 3, .round_len = len, .draft_parent = parent};
	assert_true(record_round_is_chain(&r, 0));
	assert_false(record_round_is_chain(&r, 1));
	assert_false(record_round_is_chain(&r, 2));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip), cmocka_unit_test(test_payloads),
		cmocka_unit_test(test_bad_planes), cmocka_unit_test(test_chain_or_tree), cmocka_unit_test(test_limit),         cmocka_unit_test(test_laws),
		cmocka_unit_test(test_structure),  cmocka_unit_test(test_feature_kinds), cmocka_unit_test(test_f16),
		cmocka_unit_test(test_damage),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
