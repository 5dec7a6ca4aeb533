/* The two models against PyTorch and transformers (tests/reference/llama), and what serving leans on.
 *
 * Llama, Qwen2 and Qwen3 equal transformers' own: features, logits, and the greedy continuation token by token.
 * Features, hidden states and logits of a tiny Llama for each RoPE kind, tied and not, within
 * 3e-6 of the largest; an EAGLE-3 chain of five proposals likewise, rows with real features and
 * fed-back ones. On every path this CPU has: rows are the same bits however the run is cut and
 * whoever shares the batch and whichever have an output. Weights come back out of eagle3_unpack as they went in.
 * Wrong shapes and missing tensors are refused by name.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/model/eagle3.h"
#include "kernels/model/llama.h"

enum { H = 48, I = 80, L = 4, NH = 6, NKV = 2, HD = 12, V = 96, N = 21, V_D = 40, STEPS = 5 };

/* ---- weights by formula, as make_vectors.py has them ---- */

static float formula(const char *name, size_t i, int cols)
{
	uint32_t h = 2166136261u;
	for (const char *c = name; *c; c++)
		h = (h ^ (uint8_t)*c) * 16777619u;
	uint32_t x = ((uint32_t)i + h) * 2654435761u;
	x ^= x >> 15;
	x *= 2246822519u;
	x ^= x >> 13;
	double v = (double)x / 4294967296.0 - 0.5;
	return (float)(strstr(name, "norm") ? 1 + 0.4 * v : v * 2 / sqrt(cols) * 1.7);
}

struct source { float *held; bool draft; const char *hide, *bend; int hd; /* 0: HD */ };

static void shape_of(const struct source *s, const char *name, int *rows, int *cols)
{
	struct eagle3_config e = {.H = H, .H_t = H, .I = 64, .n_head = 4, .n_kv = 2, .hd = 16, .V = V, .V_d = V_D};
	for (int t = 0; s->draft && t < E3_N_TENSORS; t++)
		if (!strcmp(name, eagle3_tensor_name((enum eagle3_tensor)t))) {
			eagle3_tensor_shape(&e, (enum eagle3_tensor)t, rows, cols);
			return;
		}
	int hd = s->hd ? s->hd : HD;
	if (strstr(name, "bias") || strstr(name, "q_norm") || strstr(name, "k_norm")) {
		*rows = 1;
		*cols = strstr(name, "norm") ? hd : strstr(name, "q_proj") ? NH * hd : NKV * hd;
		return;
	}
	*rows = strstr(name, "norm") ? 1 : strstr(name, "embed") || strstr(name, "lm_head") ? V : strstr(name, "q_proj") ? NH * hd :
		strstr(name, "k_proj") || strstr(name, "v_proj") ? NKV * hd : strstr(name, "gate") || strstr(name, "up_proj") ? I : H;
	*cols = strstr(name, "o_proj") ? NH * hd : strstr(name, "down") ? I : H;
}

static int get(void *ctx, const char *name, struct tensor_view *ret, struct errtext *e)
{
	struct source *s = ctx;
	(void)e;
	if (s->hide && strstr(name, s->hide))
		return -ENOENT;
	shape_of(s, name, &ret->rows, &ret->cols);
	size_t n = (size_t)ret->rows * (size_t)ret->cols;
	free(s->held);
	s->held = malloc(n * sizeof *s->held);
	for (size_t i = 0; i < n; i++)
		s->held[i] = formula(name, i, ret->cols);
	if (s->bend && strstr(name, s->bend))
		ret->cols++;
	ret->type = DT_F32;
	ret->data = s->held;
	return 0;
}

static struct llama_config config(int kind)
{
	struct llama_config c = {.n_layer = L, .H = H, .I = I, .n_head = NH, .n_kv = NKV, .hd = HD, .V = V, .rms_eps = (real)1e-5, .max_ctx = 64,
				 .tied = kind == ROPE_LINEAR, .boundaries = {1, 2, 4}};
	c.rope = (struct rope_config){.theta = 500, .kind = (unsigned)kind, .factor = kind == ROPE_LLAMA3 ? 8 : 4, .low_freq_factor = 1,
				      .high_freq_factor = 4, .orig_max = 64, .beta_fast = 32, .beta_slow = 1, .mscale = 1, .mscale_all_dim = 0};
	return c;
}

static struct llama *load(struct dev *d, int kind, enum dtype type)
{
	struct source s = {0};
	struct tensor_source ts = {.get = get, .ctx = &s};
	struct llama_config c = config(kind);
	struct llama *m = NULL;
	struct errtext e = {0};
	if (llama_load(d, &c, &ts, type, &m, &e))
		fail_msg("%s", e.text);
	free(s.held);
	return m;
}

/* ---- the vectors ---- */

static float *expected(const char *want, int n)
{
	FILE *f = fopen(strncmp(want, "hf_", 3) ? "tests/reference/llama/vectors.bin" : "tests/reference/llama/transformers.bin", "rb");
	char name[64];
	int count;
	assert_non_null(f);
	while (fscanf(f, "%63s %d", name, &count) == 2) {
		assert_int_equal(fgetc(f), '\n');
		if (!strcmp(name, want)) {
			float *v = malloc((size_t)count * sizeof *v);
			assert_int_equal(count, n);
			assert_int_equal(fread(v, sizeof *v, (size_t)count, f), (size_t)count);
			fclose(f);
			return v;
		}
		assert_int_equal(fseek(f, (long)count * 4, SEEK_CUR), 0);
	}
	fail_msg("no vector %s", want);
	return NULL;
}

static void close_to(const char *name, const real *got, int n)
{
	float *want = expected(name, n);
	double max = 0, worst = 0;
	for (int i = 0; i < n; i++)
		max = fabs((double)want[i]) > max ? fabs((double)want[i]) : max;
	for (int i = 0; i < n; i++) {
		double diff = fabs((double)got[i] - (double)want[i]) / max;
		worst = !(diff <= worst) ? diff : worst;
		if (!(diff <= 3e-6))
			fail_msg("%s[%d] is %g, expected %g", name, i, (double)got[i], (double)want[i]);
	}
	print_message("%s: worst %.1e of the largest\n", name, worst);
	free(want);
}

/* ---- running ---- */

struct run { struct dev *d; struct kv_pool kv; uint32_t ids[N], pos[N], slots[N], rows[N], pages[2]; real *features, *hidden, *logits; };

static void run_init(struct run *r, struct dev *d, int n_layer, int n_kv, int hd)
{
	*r = (struct run){.d = d, .pages = {3, 1}};
	r->kv = (struct kv_pool){.n_layer = n_layer, .n_kv = n_kv, .d = hd, .page_tok = 32, .n_pages = 4, .type = DT_F32};
	assert_int_equal(d->ops->kv_new(d, &r->kv), 0);
	for (uint32_t i = 0; i < N; i++) {
		r->ids[i] = (7 * i * i + 3 * i + 5) % V;
		r->pos[i] = i;
		r->rows[i] = i;
		r->slots[i] = 3 * 32 + i;
	}
	r->features = calloc(N * 3 * H, sizeof(real));
	r->hidden = calloc(N * H, sizeof(real));
	r->logits = calloc(N * V, sizeof(real));
}

static void run_done(struct run *r)
{
	r->d->ops->kv_free(r->d, &r->kv);
	free(r->features);
	free(r->hidden);
	free(r->logits);
}

static void forward(struct run *r, struct llama *m, int from, int n)
{
	struct attn_seq s = {.pages = r->pages, .n_past = from, .n_rows = n};
	struct llama_batch b = {.M = n, .ids = r->ids + from, .pos = r->pos + from, .slots = r->slots + from, .seqs = &s, .n_seqs = 1,
				.logit_rows = r->rows, .n_logits = n};
	assert_int_equal(llama_forward(m, &r->kv, &b, r->features + from * 3 * H, r->hidden + from * H, r->logits + from * V), 0);
}

static void test_reference(void **state)
{
	(void)state;
	static const char *const kinds[] = {"default", "linear", "llama3", "yarn"};
	for (int k = 0; k < 4; k++) {
		struct dev *d = NULL;
		struct run r;
		char name[64];
		assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
		struct llama *m = load(d, k, DT_F32);
		run_init(&r, d, L, NKV, HD);
		forward(&r, m, 0, N);
		snprintf(name, sizeof name, "%s.features", kinds[k]);
		close_to(name, r.features, N * 3 * H);
		snprintf(name, sizeof name, "%s.hidden", kinds[k]);
		close_to(name, r.hidden, N * H);
		snprintf(name, sizeof name, "%s.logits", kinds[k]);
		close_to(name, r.logits, N * V);
		run_done(&r);
		llama_free(m);
		dev_free(d);
	}
}

/* Llama, Qwen2, Qwen3 */
static struct llama *load_config(struct dev *d, struct llama_config *c, int kind, enum dtype type)
{
	struct source s = {.hd = kind == 1 ? 8 : 12};
	struct tensor_source ts = {.get = get, .ctx = &s};
	struct llama *m = NULL;
	struct errtext e = {0};
	c->hd = s.hd;
	c->tied = kind != 2;
	c->qkv_bias = kind == 1;
	c->qk_norm = kind == 2;
	if (llama_load(d, c, &ts, type, &m, &e))
		fail_msg("%s", e.text);
	free(s.held);
	return m;
}

static struct llama *load_kind(struct dev *d, int kind, enum dtype type)
{
	struct llama_config c = config(kind ? ROPE_DEFAULT : ROPE_LLAMA3);
	return load_config(d, &c, kind, type);
}

static const char *const kind_names[] = {"hf_llama", "hf_qwen2", "hf_qwen3"};
enum { MORE = 8 };

static void test_transformers(void **state)
{
	(void)state;
	for (int k = 0; k < 3; k++) {
		struct dev *d = NULL;
		struct run r;
		char name[64];
		assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
		struct llama *m = load_kind(d, k, DT_F32);
		run_init(&r, d, L, NKV, llama_cfg(m)->hd);
		forward(&r, m, 0, N);
		snprintf(name, sizeof name, "%s.features", kind_names[k]);
		close_to(name, r.features, N * 3 * H);
		snprintf(name, sizeof name, "%s.logits", kind_names[k]);
		close_to(name, r.logits, N * V);
		snprintf(name, sizeof name, "%s.greedy", kind_names[k]);
		float *want = expected(name, MORE);
		uint32_t id = 11, zero = 0;
		for (int i = 0; i < MORE; i++) {
			uint32_t pos = (uint32_t)(N + i), slot = pos < 32 ? 3 * 32 + pos : 1 * 32 + pos - 32;
			real logits[V];
			struct attn_seq s = {.pages = r.pages, .n_past = (int)pos, .n_rows = 1};
			struct llama_batch b = {.M = 1, .ids = &id, .pos = &pos, .slots = &slot, .seqs = &s, .n_seqs = 1, .logit_rows = &zero, .n_logits = 1};
			assert_int_equal(llama_forward(m, &r.kv, &b, NULL, NULL, logits), 0);
			id = 0;
			for (uint32_t v = 1; v < V; v++)
				id = logits[v] > logits[id] ? v : id;
			assert_int_equal(id, (uint32_t)want[i]);
		}
		free(want);
		run_done(&r);
		llama_free(m);
		dev_free(d);
	}
}

static void test_same_bits(void **state)
{
	(void)state;
	for (enum dev_isa isa = ISA_PORTABLE; isa < ISA_END; isa++)
		for (int bf16 = 0; bf16 < 2; bf16++)
			for (int threads = 1; threads <= 2; threads++) {
				struct dev *d = NULL;
				struct run whole, cut;
				if (dev_cpu_new(threads, isa, &d))
					continue; /* not on this CPU */
				struct llama *m = load_kind(d, bf16 + threads - 1, bf16 ? DT_BF16 : DT_F32);
				int hd = llama_cfg(m)->hd;
				run_init(&whole, d, L, NKV, hd);
				forward(&whole, m, 0, N);
				for (int step = 1; step <= 8; step++) {
					run_init(&cut, d, L, NKV, hd);
					for (int i = 0; i < N; i += step)
						forward(&cut, m, i, N - i < step ? N - i : step);
					assert_memory_equal(cut.logits, whole.logits, N * V * sizeof(real));
					assert_memory_equal(cut.features, whole.features, N * 3 * H * sizeof(real));
					run_done(&cut);
				}
				run_done(&whole);
				llama_free(m);
				dev_free(d);
			}
}

/* Only some rows have an output: a row within, the last two; or none. Their bits, everybody's features, and what is read later are as if all had one. */
static void some_outputs(struct dev *d, int kind, enum dtype type, int last_boundary)
{
	enum { TO = 13 };
	static const uint32_t out[] = {4, TO - 2, TO - 1}, heads[] = {0, 2};
	struct llama_config c = config(ROPE_DEFAULT);
	struct run whole, some;
	real hidden[3 * H], logits[2 * V];

	c.boundaries[2] = last_boundary;
	struct llama *m = load_config(d, &c, kind, type);
	run_init(&whole, d, L, NKV, c.hd);
	run_init(&some, d, L, NKV, c.hd);
	forward(&whole, m, 0, N);
	for (int n_out = 3; n_out >= 0; n_out -= 3) {
		const struct attn_seq s = {.pages = some.pages, .n_rows = TO};
		const struct attn_seq of_out[] = {{.pages = some.pages, .n_past = 4, .n_rows = 1}, {.pages = some.pages, .n_past = TO - 2, .row0 = 1, .n_rows = 2}};
		const struct llama_batch b = {.M = TO, .ids = some.ids, .pos = some.pos, .slots = some.slots, .seqs = &s, .n_seqs = 1, .n_out = n_out, .out_rows = out,
					      .out_seqs = of_out, .n_out_seqs = n_out ? 2 : 0, .logit_rows = heads, .n_logits = n_out ? 2 : 0};
		for (size_t i = 0; i < N * 3 * H; i++)
			some.features[i] = (real)NAN;
		assert_int_equal(llama_forward(m, &some.kv, &b, some.features, hidden, logits), 0);
		assert_memory_equal(some.features, whole.features, TO * 3 * H * sizeof(real));
		for (int i = 0; i < n_out; i++)
			assert_memory_equal(hidden + i * H, whole.hidden + out[i] * H, H * sizeof(real));
		for (int i = 0; i < 2 && n_out; i++)
			assert_memory_equal(logits + i * V, whole.logits + out[heads[i]] * V, V * sizeof(real));
		forward(&some, m, TO, N - TO); /* reads the keys of all */
		assert_memory_equal(some.logits + TO * V, whole.logits + TO * V, (N - TO) * V * sizeof(real));
	}
	run_done(&whole);
	run_done(&some);
	llama_free(m);
}

static void test_some_outputs(void **state)
{
	(void)state;
	for (enum dev_isa isa = ISA_PORTABLE; isa < ISA_END; isa++)
		for (int way = 0; way < 6; way++) {
			struct dev *d = NULL;
			if (dev_cpu_new(1 + way % 2, isa, &d))
				continue; /* not on this CPU */
			some_outputs(d, way / 2, way < 3 ? DT_BF16 : DT_F32, way % 2 ? L - 1 : L);
			dev_free(d);
		}
}

static struct eagle3 *load_draft(struct dev *d, struct llama *m, enum dtype type)
{
	struct source s = {.draft = true};
	struct tensor_source ts = {.get = get, .ctx = &s};
	struct eagle3_config c = {.H = H, .H_t = H, .I = 64, .n_head = 4, .n_kv = 2, .hd = 16, .V = V, .V_d = V_D, .rms_eps = (real)1e-5,
				  .rope = {.theta = 10000}, .max_ctx = 64, .boundaries = {1, 2, 4}};
	int64_t d2t[V_D];
	struct eagle3 *x = NULL;
	struct errtext e = {0};
	for (int i = 0; i < V_D; i++)
		d2t[i] = i + 1; /* draft id i stands for 2i+1 */
	if (eagle3_load(d, &c, &ts, d2t, llama_embedding(m), type, &x, &e))
		fail_msg("%s", e.text);
	free(s.held);
	return x;
}

static void test_chain(void **state)
{
	(void)state;
	struct dev *d = NULL;
	struct run t, r;
	real fb[N * H], logits[V_D];
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
	struct llama *m = load(d, ROPE_DEFAULT, DT_F32);
	struct eagle3 *x = load_draft(d, m, DT_F32);
	run_init(&t, d, L, NKV, HD);
	forward(&t, m, 0, N);
	run_init(&r, d, 1, 2, 16);
	/* rows 0..N-2 with real features, in two chunks, of which only the very last has an output; then each step on its own feedback */
	for (int part = 0; part < 2; part++) {
		int from = part ? 7 : 0, n = part ? N - 1 - 7 : 7;
		struct attn_seq s = {.pages = r.pages, .n_past = from + n - 1, .n_rows = 1};
		uint32_t last = (uint32_t)n - 1;
		struct eagle3_batch b = {.M = n, .ids = r.ids + from + 1, .pos = r.pos + from, .slots = r.slots + from, .n_out = part, .out_rows = &last,
					 .out_pos = r.pos + from + n - 1, .seqs = &s, .n_seqs = part};
		assert_int_equal(eagle3_forward(x, &r.kv, &b, t.features + from * 3 * H, NULL, fb, logits), 0);
	}
	for (int step = 0; step < STEPS; step++) {
		char name[64];
		snprintf(name, sizeof name, "chain.feedback.%d", step);
		close_to(name, fb, H);
		snprintf(name, sizeof name, "chain.logits.%d", step);
		close_to(name, logits, V_D);
		uint32_t best = 0, id, pos = (uint32_t)(N - 1 + step), slot = 3 * 32 + pos;
		for (uint32_t i = 1; i < V_D; i++)
			best = logits[i] > logits[best] ? i : best;
		id = eagle3_target_id(x, best);
		assert_int_equal(id, 2 * best + 1);
		struct attn_seq s = {.pages = r.pages, .n_past = (int)pos, .n_rows = 1};
		struct eagle3_batch b = {.M = 1, .ids = &id, .pos = &pos, .slots = &slot, .n_out = 1, .seqs = &s, .n_seqs = 1};
		assert_int_equal(eagle3_forward(x, &r.kv, &b, NULL, fb, fb, logits), 0);
	}
	eagle3_free(x);
	run_done(&r);
	run_done(&t);
	llama_free(m);
	dev_free(d);
}

/* A row that has an output and the same row among others that have none: the same feedback and logits, keys and values. */
static void outputs_of_some(enum dev_isa isa)
{
	static const uint32_t some[] = {4, 11, 12, N - 2};
	enum { M = N - 1, SOME = sizeof some / sizeof *some };
	struct dev *d = NULL;
	struct run t, r[2];
	static real fb[2][M * H], logits[2][M * V_D];
	if (dev_cpu_new(1, isa, &d))
		return;
	struct llama *m = load(d, ROPE_DEFAULT, DT_BF16);
	struct eagle3 *x = load_draft(d, m, DT_BF16);
	run_init(&t, d, L, NKV, HD);
	forward(&t, m, 0, N);
	for (int few = 0; few < 2; few++) {
		run_init(&r[few], d, 1, 2, 16);
		struct attn_seq s[SOME] = {{.pages = r[few].pages, .n_rows = M}};
		for (int i = 0; few && i < SOME; i++)
			s[i] = (struct attn_seq){.pages = r[few].pages, .n_past = (int)some[i], .row0 = i, .n_rows = 1};
		struct eagle3_batch b = {.M = M, .ids = r[few].ids + 1, .pos = r[few].pos, .slots = r[few].slots, .n_out = few ? SOME : M, .out_rows = few ? some : NULL,
					 .out_pos = some, .seqs = s, .n_seqs = few ? SOME : 1};
		assert_int_equal(eagle3_forward(x, &r[few].kv, &b, t.features, NULL, fb[few], logits[few]), 0);
	}
	for (int i = 0; i < SOME; i++) {
		assert_memory_equal(fb[1] + i * H, fb[0] + some[i] * H, H * sizeof **fb);
		assert_memory_equal(logits[1] + i * V_D, logits[0] + some[i] * V_D, V_D * sizeof **logits);
	}
	for (int few = 0; few < 2; few++)
		run_done(&r[few]);
	run_done(&t);
	eagle3_free(x);
	llama_free(m);
	dev_free(d);
}

static void test_outputs_of_some(void **state)
{
	(void)state;
	for (enum dev_isa isa = ISA_PORTABLE; isa < ISA_END; isa++)
		outputs_of_some(isa);
}

static void test_unpack(void **state)
{
	(void)state;
	for (int bf16 = 0; bf16 < 2; bf16++) {
		struct dev *d = NULL;
		assert_int_equal(dev_cpu_new(1, ISA_AUTO, &d), 0);
		struct llama *m = load(d, ROPE_DEFAULT, DT_F32);
		struct eagle3 *x = load_draft(d, m, bf16 ? DT_BF16 : DT_F32);
		for (int t = 0; t < E3_N_TENSORS; t++) {
			int rows, cols;
			const char *name = eagle3_tensor_name((enum eagle3_tensor)t);
			eagle3_tensor_shape(eagle3_cfg(x), (enum eagle3_tensor)t, &rows, &cols);
			size_t n = (size_t)(rows * cols), bytes = n * (bf16 ? 2 : 4);
			void *got = malloc(bytes);
			assert_int_equal(eagle3_unpack(x, (enum eagle3_tensor)t, got, bytes), 0);
			assert_int_equal(eagle3_unpack(x, (enum eagle3_tensor)t, got, bytes + 2), -EINVAL);
			for (size_t i = 0; i < n; i++) {
				float want = formula(name, i, cols);
				if (bf16)
					assert_int_equal(((uint16_t *)got)[i], f32_to_bf16(want));
				else
					assert_memory_equal((float *)got + i, &want, 4);
			}
			free(got);
		}
		eagle3_free(x);
		llama_free(m);
		dev_free(d);
	}
}

static void test_refused(void **state)
{
	(void)state;
	struct dev *d = NULL;
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &d), 0);
	struct { struct source s; int b0; const char *says; } cases[] = {
		{{.hide = "layers.2.mlp.up_proj"}, 1, "model.layers.2.mlp.up_proj.weight"},
		{{.bend = "layers.3.self_attn.k_proj"}, 1, "model.layers.3.self_attn.k_proj.weight"},
		{{.hide = "lm_head"}, 1, "lm_head.weight"},
		{{0}, 2, "boundaries"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct tensor_source ts = {.get = get, .ctx = &cases[i].s};
		struct llama_config c = config(ROPE_DEFAULT);
		struct llama *m = (void *)1;
		struct errtext e = {0};
		c.boundaries[0] = cases[i].b0;
		assert_int_equal(llama_load(d, &c, &ts, DT_F32, &m, &e), -EINVAL);
		assert_ptr_equal(m, (void *)1);
		assert_non_null(strstr(e.text, cases[i].says));
		free(cases[i].s.held);
	}
	dev_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_reference), cmocka_unit_test(test_transformers), cmocka_unit_test(test_same_bits),
					   cmocka_unit_test(test_some_outputs), cmocka_unit_test(test_chain),
					   cmocka_unit_test(test_outputs_of_some), cmocka_unit_test(test_unpack), cmocka_unit_test(test_refused)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
