/* Drafts to and from llama.cpp (learn/draft_gguf.h): one table of names, walked in both directions. */
#include "learn/draft_gguf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/buf.h"
#include "daemon/base/fs.h"
#include "schemas/gguf.h"

enum { ALIGN = 32, WIDTH_MOST = 1 << 20, HEADS_MOST = 4096 /* and the width of one; as in a config.json */ };

static const char *const names[E3_N_ALL] = {
	[E3_FC] = "fc.weight",
	[E3_NORM_IN] = "blk.0.attn_norm.weight",
	[E3_NORM_HIDDEN] = "blk.0.attn_norm_2.weight",
	[E3_Q] = "blk.0.attn_q.weight",
	[E3_K] = "blk.0.attn_k.weight",
	[E3_V] = "blk.0.attn_v.weight",
	[E3_O] = "blk.0.attn_output.weight",
	[E3_NORM_POST] = "blk.0.ffn_norm.weight",
	[E3_GATE] = "blk.0.ffn_gate.weight",
	[E3_UP] = "blk.0.ffn_up.weight",
	[E3_DOWN] = "blk.0.ffn_down.weight",
	[E3_NORM] = "output_norm.weight",
	[E3_HEAD] = "output.weight",
	[E3_NORM_FC] = "enc.output_norm.weight",
};

/* Where row i of a head comes from: pairs that rotate together lie side by side there, half a head apart here. */
static int row_of(enum eagle3_tensor t, int hd, int i)
{
	if (t != E3_Q && t != E3_K)
		return i;
	int within = i % hd;
	return i - within + within % 2 * (hd / 2) + within / 2;
}

/* ---- out ---- */

struct out {
	struct buf kv, info, data;
	uint64_t n_kv, n_tensors;
	int r; /* first failure */
};

static void put(struct out *o, struct buf *b, const void *p, size_t n)
{
	if (!o->r)
		o->r = buf_append(b, p, n);
}

static void put_u32(struct out *o, struct buf *b, uint32_t v)
{
	put(o, b, &v, sizeof v);
}

static void put_u64(struct out *o, struct buf *b, uint64_t v)
{
	put(o, b, &v, sizeof v);
}

static void pad(struct out *o, struct buf *b)
{
	static const uint8_t zero[ALIGN];
	put(o, b, zero, (ALIGN - b->len % ALIGN) % ALIGN);
}

static void put_text(struct out *o, struct buf *b, const char *s)
{
	put_u64(o, b, strlen(s));
	put(o, b, s, strlen(s));
}

static void key(struct out *o, const char *name, enum gguf_value type)
{
	o->n_kv++;
	put_text(o, &o->kv, name);
	put_u32(o, &o->kv, type);
}

static void kv_text(struct out *o, const char *name, const char *value)
{
	key(o, name, GV_STRING);
	put_text(o, &o->kv, value);
}

static void kv_u32(struct out *o, const char *name, int value)
{
	key(o, name, GV_U32);
	put_u32(o, &o->kv, (uint32_t)value);
}

static void kv_f32(struct out *o, const char *name, double value)
{
	float f = (float)value;
	key(o, name, GV_F32);
	put(o, &o->kv, &f, sizeof f);
}

static void kv_bool(struct out *o, const char *name, bool value)
{
	uint8_t v = value;
	key(o, name, GV_BOOL);
	put(o, &o->kv, &v, 1);
}

static void metadata(struct out *o, const struct draft_config *c)
{
	static const char *const scaling[] = {NULL, "linear", NULL, "yarn"};
	kv_text(o, "general.architecture", "eagle3");
	kv_text(o, "tokenizer.ggml.model", "none");
	kv_u32(o, "general.alignment", ALIGN);
	kv_u32(o, "eagle3.vocab_size", c->vocab_size);
	kv_u32(o, "eagle3.context_length", c->max_position);
	kv_u32(o, "eagle3.embedding_length", c->hidden_size);
	kv_u32(o, "eagle3.block_count", 1);
	kv_u32(o, "eagle3.feed_forward_length", c->intermediate_size);
	kv_u32(o, "eagle3.attention.head_count", c->n_head);
	kv_u32(o, "eagle3.attention.head_count_kv", c->n_kv_head);
	kv_u32(o, "eagle3.attention.key_length", c->head_dim);
	kv_u32(o, "eagle3.attention.value_length", c->head_dim);
	kv_u32(o, "eagle3.rope.dimension_count", c->head_dim);
	kv_f32(o, "eagle3.rope.freq_base", c->rope_theta);
	kv_f32(o, "eagle3.attention.layer_norm_rms_epsilon", c->rms_eps);
	kv_u32(o, "eagle3.target_hidden_size", c->target_hidden_size);
	kv_bool(o, "eagle3.norm_before_residual", c->norm_before_residual);
	kv_bool(o, "eagle3.norm_before_fc", c->norm_before_fc);
	key(o, "eagle3.target_layers", GV_ARRAY);
	put_u32(o, &o->kv, GV_U32);
	put_u64(o, &o->kv, 3);
	for (int i = 0; i < 3; i++) /* it names the layers whose inputs it taps, which are boundaries */
		put_u32(o, &o->kv, (uint32_t)c->boundaries[i]);
	if (scaling[c->rope_kind]) {
		kv_text(o, "eagle3.rope.scaling.type", scaling[c->rope_kind]);
		kv_f32(o, "eagle3.rope.scaling.factor", c->rope_factor);
	}
	if (c->rope_kind == 3) {
		kv_u32(o, "eagle3.rope.scaling.original_context_length", (int)c->rope_orig_max);
		kv_f32(o, "eagle3.rope.scaling.yarn_beta_fast", c->rope_beta_fast);
		kv_f32(o, "eagle3.rope.scaling.yarn_beta_slow", c->rope_beta_slow);
	}
}

/* The tensor's entry; its data follow at the next multiple of ALIGN. */
static void begin_tensor(struct out *o, const char *name, uint32_t type, int rows, int cols)
{
	pad(o, &o->data);
	o->n_tensors++;
	put_text(o, &o->info, name);
	put_u32(o, &o->info, rows > 1 ? 2 : 1);
	put_u64(o, &o->info, (uint64_t)cols);
	if (rows > 1)
		put_u64(o, &o->info, (uint64_t)rows);
	put_u32(o, &o->info, type);
	put_u64(o, &o->info, o->data.len);
}

static void put_row(struct out *o, const real *w, int n, bool as_bf16)
{
	for (int i = 0; i < n && !o->r; i++) {
		float f = (float)w[i];
		uint16_t h = f32_to_bf16(f);
		put(o, &o->data, as_bf16 ? (const void *)&h : &f, as_bf16 ? sizeof h : sizeof f);
	}
}

static void tensors(struct out *o, const struct draft *d)
{
	const real *w = d->w;
	for (int t = 0; t < E3_N_ALL; t++) {
		int rows, cols;
		eagle3_tensor_shape(&d->c, (enum eagle3_tensor)t, &rows, &cols);
		if (!cols)
			continue;
		begin_tensor(o, names[t], rows > 1 ? GT_BF16 : GT_F32, rows, cols);
		for (int i = 0; i < rows; i++)
			put_row(o, w + (size_t)row_of((enum eagle3_tensor)t, d->c.hd, i) * (size_t)cols, cols, rows > 1);
		w += (size_t)rows * (size_t)cols;
	}
	begin_tensor(o, "d2t", GT_I64, 1, d->c.V_d);
	for (int i = 0; i < d->c.V_d; i++)
		put_u64(o, &o->data, (uint64_t)(d->d2t[i] + i));
}

/* llama3's scaling is written down as a divisor of each frequency. */
static int rope_factors(struct out *o, const struct draft *d)
{
	int n = d->c.hd / 2;
	real *f = malloc((size_t)n * sizeof *f), scale;
	if (!f)
		return -ENOMEM;
	rope_table(&d->c.rope, d->c.hd, f, &scale);
	for (int i = 0; i < n; i++)
		f[i] = (real)pow(d->c.rope.theta, -2.0 * i / d->c.hd) / f[i];
	begin_tensor(o, "rope_freqs.weight", GT_F32, 1, n);
	put_row(o, f, n, false);
	free(f);
	return 0;
}

static int supported(const struct draft_config *c, struct errtext *e)
{
	const char *no = c->fc_norm ? "fc_norm" : c->norm_output ? "norm_output" : NULL;
	if (no)
		return errtext_set(e, -ENOTSUP, "llama.cpp's eagle3 knows no %s", no);
	if (c->rope_kind == 3 && (c->rope_mscale < 1 || c->rope_mscale > 1 || c->rope_mscale_all < 0 || c->rope_mscale_all > 0))
		return errtext_set(e, -ENOTSUP, "llama.cpp's yarn takes mscale for 1 and mscale_all_dim for 0, this draft has %g and %g", c->rope_mscale, c->rope_mscale_all);
	return 0;
}

int draft_gguf_write(const struct draft *d, const char *path, struct errtext *e)
{
	struct out o = {.r = supported(&d->file, e)};
	struct buf file = BUF_INIT(0);
	if (o.r)
		return o.r;
	metadata(&o, &d->file);
	tensors(&o, d);
	if (!o.r && d->file.rope_kind == 2)
		o.r = rope_factors(&o, d);
	put(&o, &file, "GGUF", 4);
	put_u32(&o, &file, 3);
	put_u64(&o, &file, o.n_tensors);
	put_u64(&o, &file, o.n_kv);
	put(&o, &file, o.kv.data, o.kv.len);
	put(&o, &file, o.info.data, o.info.len);
	pad(&o, &file);
	put(&o, &file, o.data.data, o.data.len);
	if (!o.r)
		o.r = fs_write_atomic(path, file.data, file.len);
	if (o.r)
		(void)errtext_set(e, o.r, "%.150s: %s", path, strerror(-o.r));
	buf_done(&file);
	buf_done(&o.kv);
	buf_done(&o.info);
	buf_done(&o.data);
	return o.r;
}

/* ---- in ---- */

static int number(const struct gguf *g, const char *name, double fallback, double *ret, struct errtext *e)
{
	int r = gguf_f64(g, name, ret);
	if (r == -ENOENT && fallback >= 0) {
		*ret = fallback;
		return 0;
	}
	return r || !isfinite(*ret) || *ret < 0 || *ret > 1 << 24 ? errtext_set(e, -EINVAL, "GGUF: %s is missing or no sensible number", name) : 0;
}

/* A number that was kept as f32, in as few digits as tell it from its neighbours: as it stood in the config it came from. */
static double told(double v)
{
	char text[32] = "";
	bool same = false;
	for (int digits = 6; digits <= 9 && !same; digits++) {
		(void)snprintf(text, sizeof text, "%.*g", digits, v);
		same = !(fabsf(strtof(text, NULL) - (float)v) > 0);
	}
	return strtod(text, NULL);
}

/* A scaling that config.json can say too. */
static int read_scaling(const struct gguf *g, struct draft_config *c, struct errtext *e)
{
	const char *type;
	size_t len;
	double orig = c->max_position;
	int r = gguf_str(g, "eagle3.rope.scaling.type", &type, &len), rows, cols;
	float *factors = NULL;
	if (!gguf_read_f32(g, "rope_freqs.weight", &rows, &cols, &factors, NULL)) {
		free(factors);
		return errtext_set(e, -ENOTSUP, "GGUF: rope_freqs holds llama3's scaling as divisors, from which its four numbers cannot be told: import the folder it was made of");
	}
	if (r == -ENOENT || (!r && len == 4 && memcmp(type, "none", 4) == 0))
		return 0;
	if (!r && len == 6 && memcmp(type, "linear", 6) == 0)
		c->rope_kind = 1;
	else if (!r && len == 4 && memcmp(type, "yarn", 4) == 0)
		c->rope_kind = 3;
	else
		return errtext_set(e, -ENOTSUP, "GGUF: RoPE scaling of a kind that is not linear or yarn");
	r = number(g, "eagle3.rope.scaling.factor", -1, &c->rope_factor, e);
	if (!r)
		r = number(g, "eagle3.rope.scaling.original_context_length", orig, &c->rope_orig_max, e);
	if (!r)
		r = number(g, "eagle3.rope.scaling.yarn_beta_fast", 32, &c->rope_beta_fast, e);
	if (!r)
		r = number(g, "eagle3.rope.scaling.yarn_beta_slow", 1, &c->rope_beta_slow, e);
	return r;
}

static int read_config(const struct gguf *g, const struct frozen *fz, struct draft_config *c, struct errtext *e)
{
	const char *arch;
	size_t len;
	enum { N = 8 };
	static const struct { const char *key; int most; } whole[N] = {
		{"eagle3.embedding_length", WIDTH_MOST}, {"eagle3.feed_forward_length", WIDTH_MOST}, {"eagle3.attention.head_count", HEADS_MOST},
		{"eagle3.attention.head_count_kv", HEADS_MOST}, {"eagle3.attention.key_length", HEADS_MOST}, {"eagle3.context_length", 1 << 30},
		{"eagle3.target_hidden_size", WIDTH_MOST}, {"eagle3.block_count", 1 << 30},
	};
	double v[N] = {0}, theta = 10000, eps = 1e-6;
	if (gguf_str(g, "general.architecture", &arch, &len) || len != 6 || memcmp(arch, "eagle3", 6) != 0)
		return errtext_set(e, -EINVAL, "GGUF: no draft of arch eagle3");
	int r = 0;
	for (int i = 0; i < N && !r; i++) {
		r = number(g, whole[i].key, -1, &v[i], e);
		if (!r && (v[i] < 1 || v[i] > whole[i].most))
			r = errtext_set(e, -EINVAL, "GGUF: %s is %g", whole[i].key, v[i]);
	}
	if (!r)
		r = number(g, "eagle3.rope.freq_base", 10000, &theta, e);
	if (!r)
		r = number(g, "eagle3.attention.layer_norm_rms_epsilon", -1, &eps, e);
	if (!r && ((int)v[4] % 2 || (int)v[2] % (int)v[3]))
		r = errtext_set(e, -EINVAL, "GGUF: %g heads, %g key/value heads, head width %g do not fit each other", v[2], v[3], v[4]);
	if (r)
		return r;
	uint64_t on;
	*c = (struct draft_config){
		.hidden_size = (int)v[0], .intermediate_size = (int)v[1], .n_head = (int)v[2], .n_kv_head = (int)v[3], .head_dim = (int)v[4], .max_position = (int)v[5],
		.target_hidden_size = (int)v[6], .vocab_size = fz->V, .rms_eps = told(eps), .rope_theta = told(theta), .rope_factor = 1, .rope_low = 1, .rope_high = 4,
		.rope_orig_max = v[5], .rope_beta_fast = 32, .rope_beta_slow = 1, .rope_mscale = 1, .bos_id = fz->bos_id, .eos_id = fz->eos_id, .pad_id = fz->pad_id,
		.norm_before_residual = !gguf_u64(g, "eagle3.norm_before_residual", &on) && on, .norm_before_fc = !gguf_u64(g, "eagle3.norm_before_fc", &on) && on,
	};
	if (v[7] > 1)
		return errtext_set(e, -ENOTSUP, "GGUF: a draft of %g layers; one is what is served", v[7]);
	int standard[N_BOUNDARIES];
	default_boundaries(fz->n_layer, standard);
	for (uint64_t i = 0; i < N_BOUNDARIES && !r; i++) {
		int64_t b;
		r = gguf_array_len(g, "eagle3.target_layers") == N_BOUNDARIES ? gguf_array_i64(g, "eagle3.target_layers", i, &b) : -EINVAL;
		if (!r && (b < 0 || b > fz->n_layer || (i && b <= c->boundaries[i - 1])))
			r = -EINVAL;
		if (!r)
			c->boundaries[i] = (int)b;
	}
	if (r)
		return errtext_set(e, -EINVAL, "GGUF: eagle3.target_layers is not an ascending list of three layers of this target");
	c->boundaries_default = memcmp(c->boundaries, standard, sizeof standard) == 0;
	return read_scaling(g, c, e);
}

/* d2t's ids and with them the size of the draft's vocabulary; without one it is the target's. */
static int read_vocabulary(const struct gguf *g, struct draft *d, struct errtext *e)
{
	int64_t *ids = NULL;
	int n = 0, r = gguf_read_i64(g, "d2t", &n, &ids);
	if (r && r != -ENOENT)
		return errtext_set(e, r, "GGUF tensor d2t: %s", r == -EINVAL ? "not a list of I64" : strerror(-r));
	if (r == -ENOENT) {
		n = d->file.vocab_size;
		ids = malloc((size_t)n * sizeof *ids);
		for (int i = 0; ids && i < n; i++)
			ids[i] = i;
	}
	d->d2t = ids;
	d->file.draft_vocab_size = n;
	for (int i = 0; ids && i < n; i++) {
		if (ids[i] < 0 || ids[i] >= d->file.vocab_size)
			return errtext_set(e, -EINVAL, "GGUF tensor d2t: id %lld, the target has %d tokens", (long long)ids[i], d->file.vocab_size);
		ids[i] -= i;
	}
	return ids ? 0 : -ENOMEM;
}

static int read_tensor(const struct gguf *g, enum eagle3_tensor t, const struct eagle3_config *c, real *to, struct errtext *e)
{
	int rows, cols, got_r, got_c;
	uint16_t *h = NULL;
	float *f = NULL;
	eagle3_tensor_shape(c, t, &rows, &cols);
	int r = gguf_read_f32(g, names[t], &got_r, &got_c, &f, NULL); /* not through bf16 where it need not be */
	if (r)
		r = gguf_read_hf(g, names[t], &got_r, &got_c, &h, e);
	if (!r && (got_r != rows || got_c != cols))
		r = errtext_set(e, -EINVAL, "GGUF tensor %s is %d x %d, want %d x %d", names[t], got_r, got_c, rows, cols);
	for (int i = 0; i < rows && !r; i++) {
		real *row = to + (size_t)row_of(t, c->hd, i) * (size_t)cols;
		for (int k = 0; k < cols; k++)
			row[k] = (real)(f ? f[(size_t)i * (size_t)cols + (size_t)k] : bf16_to_f32(h[(size_t)i * (size_t)cols + (size_t)k]));
	}
	free(h);
	free(f);
	return r;
}

int draft_gguf_read(const char *path, const struct frozen *fz, struct draft *ret, struct errtext *e)
{
	struct gguf *g = NULL;
	struct draft d = {0};
	int r = gguf_open(path, &g, e);
	if (!r)
		r = read_config(g, fz, &d.file, e);
	if (!r)
		r = read_vocabulary(g, &d, e);
	if (!r) {
		draft_eagle3_config(&d.file, &d.c);
		r = publish_check(&d, fz, e);
	}
	if (!r) {
		d.n = draft_params(&d.c);
		r = (d.w = malloc(d.n * sizeof *d.w)) ? 0 : -ENOMEM;
	}
	real *w = d.w;
	for (int t = 0; t < E3_N_ALL && !r; t++) {
		int rows, cols;
		eagle3_tensor_shape(&d.c, (enum eagle3_tensor)t, &rows, &cols);
		if (cols)
			r = read_tensor(g, (enum eagle3_tensor)t, &d.c, w, e);
		w += (size_t)rows * (size_t)cols;
	}
	gguf_free(g);
	if (r) {
		draft_done(&d);
		return r;
	}
	*ret = d;
	return 0;
}
