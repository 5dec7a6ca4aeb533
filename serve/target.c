/* From a GGUF file to a target that can be served.
 *
 * Shapes come from the metadata; every tensor is then held against them by
 * llama_load. Expanding a quantised tensor costs more than reading it, so the
 * fingerprint's pass runs beside the loading pass on a thread of its own.
 */
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/base/fs.h"
#include "daemon/base/sha.h"
#include "schemas/gguf.h"
#include "schemas/manifest.h"
#include "schemas/safetensors.h"
#include "serve/target.h"
#include "serve/tokenizer.h"

/* ---- metadata ---- */

static int number(const struct gguf *g, const char *key, long min, long max, int *ret, struct errtext *e)
{
	uint64_t v = 0;
	int r = gguf_u64(g, key, &v);
	if (r)
		return errtext_set(e, -EINVAL, "model file: %s is %s", key, r == -ENOENT ? "missing" : "no whole number");
	if (v < (uint64_t)min || v > (uint64_t)max)
		return errtext_set(e, -EINVAL, "model file: %s is %llu, expected %ld..%ld", key, (unsigned long long)v, min, max);
	*ret = (int)v;
	return 0;
}

static double optional(const struct gguf *g, const char *key, double otherwise)
{
	double v;
	return gguf_f64(g, key, &v) ? otherwise : v;
}

static bool text_is(const char *s, size_t len, const char *want)
{
	return len == strlen(want) && memcmp(s, want, len) == 0;
}

static int read_rope(const struct gguf *g, struct rope_config *r, struct errtext *e)
{
	const char *kind;
	size_t len;
	r->theta = optional(g, "llama.rope.freq_base", 10000);
	r->kind = ROPE_DEFAULT;
	if (gguf_str(g, "llama.rope.scaling.type", &kind, &len) || text_is(kind, len, "none"))
		return 0;
	r->factor = optional(g, "llama.rope.scaling.factor", 1);
	r->orig_max = optional(g, "llama.rope.scaling.original_context_length", 0);
	if (text_is(kind, len, "linear")) {
		r->kind = ROPE_LINEAR;
	} else if (text_is(kind, len, "yarn") && r->orig_max > 0) {
		r->kind = ROPE_YARN;
		r->beta_fast = optional(g, "llama.rope.scaling.yarn_beta_fast", 32);
		r->beta_slow = optional(g, "llama.rope.scaling.yarn_beta_slow", 1);
		r->mscale = 1;
	} else {
		return errtext_set(e, -ENOTSUP, "model file: RoPE scaling \"%.*s\" is not supported", (int)(len < 32 ? len : 32), kind);
	}
	return r->factor > 0 ? 0 : errtext_set(e, -EINVAL, "model file: llama.rope.scaling.factor must be positive");
}

/* A head of its own, or the embedding again? */
static int read_tied(const struct gguf *g, bool *ret, struct errtext *e)
{
	int rows, cols;
	uint16_t *data;
	int r = gguf_read_hf(g, "lm_head.weight", &rows, &cols, &data, e);
	if (r == -ENOENT) {
		*ret = true;
		return 0;
	}
	if (r)
		return r;
	free(data);
	*ret = false;
	return 0;
}

static int read_config(const struct gguf *g, struct llama_config *c, int *ret_context, struct errtext *e)
{
	const char *arch;
	size_t len;
	if (gguf_str(g, "general.architecture", &arch, &len) || !text_is(arch, len, "llama"))
		return errtext_set(e, -EINVAL, "model file: general.architecture is not \"llama\", which is all that is served");
	const struct { const char *key; int *at; long max; } need[] = {
		{"llama.block_count", &c->n_layer, 1000},
		{"llama.embedding_length", &c->H, 1 << 17},
		{"llama.feed_forward_length", &c->I, 1 << 19},
		{"llama.attention.head_count", &c->n_head, 1024},
		{"llama.attention.head_count_kv", &c->n_kv, 1024},
		{"llama.context_length", ret_context, 1 << 24},
	};
	for (size_t i = 0; i < sizeof need / sizeof *need; i++) {
		int r = number(g, need[i].key, 1, need[i].max, need[i].at, e);
		if (r)
			return r;
	}
	uint64_t v = gguf_array_len(g, "tokenizer.ggml.tokens");
	if (v < 1 || v > 1 << 22)
		return errtext_set(e, -EINVAL, "model file: it holds no vocabulary");
	c->V = (int)v;
	c->hd = gguf_u64(g, "llama.attention.key_length", &v) == 0 && v < 4096 ? (int)v : c->H / c->n_head;
	c->rms_eps = (real)optional(g, "llama.attention.layer_norm_rms_epsilon", 1e-5);
	default_boundaries(c->n_layer, c->boundaries);
	if (c->n_layer < 7)
		return errtext_set(e, -ENOTSUP, "model file: %d blocks are too few to tap three different boundaries (7 at least)", c->n_layer);
	int r = read_rope(g, &c->rope, e);
	return r ? r : read_tied(g, &c->tied, e);
}

/* ---- the fingerprint ---- */

static void hash_number(struct sha *s, uint64_t v, int bytes)
{
	uint8_t raw[8];
	for (int i = 0; i < bytes; i++)
		raw[i] = (uint8_t)(v >> (8 * i));
	sha_update(s, raw, (size_t)bytes);
}

static int hash_tensor(const struct gguf *g, struct sha *s, const char *name, struct errtext *e)
{
	int rows, cols;
	uint16_t *data;
	int r = gguf_read_hf(g, name, &rows, &cols, &data, e);
	if (r)
		return r == -ENOENT ? errtext_set(e, -EINVAL, "model file: tensor %s is missing", name) : r;
	size_t bytes = (size_t)rows * (size_t)cols * sizeof *data;
	sha_update(s, name, strlen(name) + 1);
	sha_update(s, "BF16", 5);
	hash_number(s, rows == 1 ? 1 : 2, 4);
	if (rows != 1)
		hash_number(s, (uint64_t)rows, 8);
	hash_number(s, (uint64_t)cols, 8);
	hash_number(s, bytes, 8);
	sha_update(s, data, bytes);
	free(data);
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(a, b);
}

int target_tensors_sha(const struct gguf *g, const struct llama_config *c, char ret_hex[static 65], struct errtext *e)
{
	static const char *const part[] = {
		"input_layernorm", "mlp.down_proj", "mlp.gate_proj", "mlp.up_proj", "post_attention_layernorm",
		"self_attn.k_proj", "self_attn.o_proj", "self_attn.q_proj", "self_attn.v_proj",
	};
	enum { PARTS = sizeof part / sizeof *part, NAME = 80 };
	char(*names)[NAME] = calloc((size_t)c->n_layer * PARTS + 3, NAME);
	struct sha *s = sha_new();
	int n = 0, r = names && s ? 0 : -ENOMEM;
	if (!r) {
		snprintf(names[n++], NAME, "model.embed_tokens.weight");
		snprintf(names[n++], NAME, "model.norm.weight");
		if (!c->tied)
			snprintf(names[n++], NAME, "lm_head.weight");
		for (int l = 0; l < c->n_layer; l++)
			for (int i = 0; i < PARTS; i++)
				snprintf(names[n++], NAME, "model.layers.%d.%s.weight", l, part[i]);
		qsort(names, (size_t)n, NAME, by_name);
	}
	for (int i = 0; !r && i < n; i++)
		r = hash_tensor(g, s, names[i], e);
	if (!r)
		sha_final_hex(s, ret_hex);
	if (s)
		sha_free(s);
	free(names);
	return r;
}

struct hashing {
	const struct gguf *g;
	const struct llama_config *c;
	char hex[65];
	struct errtext e;
	int result;
};

static void *hash_thread(void *arg)
{
	struct hashing *h = arg;
	h->result = target_tensors_sha(h->g, h->c, h->hex, &h->e);
	return NULL;
}

static void finish_fp(struct target *t, const char *tensors)
{
	char text[256], tok[65];
	tokenizer_sha(t->tokenizer, tok);
	int n = snprintf(text, sizeof text, "redraft-target-1\n%s\n%s\n%d,%d,%d\n", tensors, tok,
			 t->cfg.boundaries[0], t->cfg.boundaries[1], t->cfg.boundaries[2]);
	sha_hex(text, (size_t)n, t->fp);
}

/* ---- loading ---- */

struct source { const struct gguf *g; uint16_t *held; };

static int source_get(void *ctx, const char *name, struct tensor_view *ret, struct errtext *e)
{
	struct source *s = ctx;
	free(s->held);
	s->held = NULL;
	int r = gguf_read_hf(s->g, name, &ret->rows, &ret->cols, &s->held, e);
	ret->type = DT_BF16;
	ret->data = s->held;
	return r;
}

/* The hash runs on its own thread while this one packs. */
static int load_and_hash(struct dev *d, struct target *t, enum dtype type, struct errtext *e)
{
	struct source src = {.g = t->gguf};
	struct tensor_source ts = {.get = source_get, .ctx = &src};
	struct hashing h = {.g = t->gguf, .c = &t->cfg};
	pthread_t thread;
	bool beside = pthread_create(&thread, NULL, hash_thread, &h) == 0;
	int r = llama_load(d, &t->cfg, &ts, type, &t->model, e);
	free(src.held);
	if (beside)
		pthread_join(thread, NULL);
	else
		hash_thread(&h);
	if (!r && h.result)
		r = errtext_set(e, h.result, "%s", h.e.text);
	if (!r)
		finish_fp(t, h.hex);
	return r;
}

static void name_after(struct target *t, const char *path)
{
	const char *base = strrchr(path, '/');
	base = base ? base + 1 : path;
	snprintf(t->name, sizeof t->name, "%s", base);
	size_t n = strlen(t->name);
	if (n > 5 && strcmp(t->name + n - 5, ".gguf") == 0)
		t->name[n - 5] = '\0';
}

static void find_eog(struct target *t)
{
	uint32_t n = tokenizer_vocab(t->tokenizer);
	int max = (int)(sizeof t->eog_ids / sizeof *t->eog_ids);
	for (uint32_t id = 0; id < n && t->n_eog < max; id++)
		if (tokenizer_is_eog(t->tokenizer, id))
			t->eog_ids[t->n_eog++] = id;
}

int target_open(struct dev *d, const char *path, enum dtype type, int max_context, struct target **ret, struct errtext *e)
{
	struct target *t = calloc(1, sizeof *t);
	if (!t)
		return -ENOMEM;
	int r = gguf_open(path, &t->gguf, e);
	if (!r)
		r = read_config(t->gguf, &t->cfg, &t->train_context, e);
	if (!r)
		r = tokenizer_load(t->gguf, &t->tokenizer, e);
	if (!r) {
		t->cfg.max_ctx = max_context < t->train_context ? max_context : t->train_context;
		name_after(t, path);
		find_eog(t);
		if (gguf_str(t->gguf, "tokenizer.chat_template", &t->chat_template, &t->chat_template_len))
			t->chat_template = NULL;
		r = load_and_hash(d, t, type, e);
	}
	if (r) {
		target_close(t);
		return r;
	}
	*ret = t;
	return 0;
}

struct target *target_close(struct target *t)
{
	if (!t)
		return NULL;
	llama_free(t->model);
	if (t->tokenizer)
		tokenizer_free(t->tokenizer);
	if (t->gguf)
		gguf_free(t->gguf);
	free(t);
	return NULL;
}

/* ---- the frozen file ---- */

static int add_frozen(const struct target *t, const char *hf_name, const char *name, struct st_out *out, struct errtext *e)
{
	int rows, cols;
	uint16_t *data;
	int r = gguf_read_hf(t->gguf, hf_name, &rows, &cols, &data, e);
	if (r)
		return r;
	*out = (struct st_out){.name = name, .dtype = ST_BF16, .n_dims = 2, .shape = {(uint64_t)rows, (uint64_t)cols}, .data = data};
	return 0;
}

/* The target's shape, so that a learner can size a first draft; rows of {key, value}. */
static int frozen_meta(const struct target *t, char text[][32], struct st_meta_kv *meta)
{
	const struct llama_config *c = &t->cfg;
	const struct {
		const char *key;
		double value;
	} v[] = {
		{"n_layer", c->n_layer}, {"n_head", c->n_head}, {"n_kv_head", c->n_kv}, {"head_dim", c->hd}, {"intermediate_size", c->I},
		{"rms_eps", (double)c->rms_eps}, {"rope_theta", c->rope.theta}, {"max_ctx", t->train_context}, {"vocab_size", c->V},
		{"tied", c->tied}, {"eos_id", t->n_eog ? (double)t->eog_ids[0] : -1},
	};
	int n = 0;
	meta[n++] = (struct st_meta_kv){"format", "pt"};
	meta[n++] = (struct st_meta_kv){"target_fp", t->fp};
	for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
		snprintf(text[i], sizeof text[i], "%.9g", v[i].value);
		meta[n++] = (struct st_meta_kv){v[i].key, text[i]};
	}
	return n;
}

static int write_frozen(const struct target *t, const char *path, struct errtext *e)
{
	struct st_out out[2] = {{0}};
	struct st_meta_kv meta[16];
	char text[14][32];
	struct buf b = BUF_INIT(0);
	int n = 0, n_meta = frozen_meta(t, text, meta);
	int r = add_frozen(t, "model.embed_tokens.weight", "embed_tokens.weight", &out[n++], e);
	if (!r && !t->cfg.tied)
		r = add_frozen(t, "lm_head.weight", "lm_head.weight", &out[n++], e);
	if (!r)
		r = st_write(&b, out, n, meta, n_meta, 8);
	if (!r)
		r = fs_write_atomic(path, b.data, b.len);
	if (r && e && !e->text[0])
		errtext_set(e, r, "%s cannot be written: %s", path, strerror(-r));
	for (int i = 0; i < n; i++)
		free((void *)(uintptr_t)out[i].data);
	buf_done(&b);
	return r;
}

int target_export_frozen(const struct target *t, const char *store, struct errtext *e)
{
	char path[PATH_MAX], dir[PATH_MAX];
	int r = store_frozen_file(store, t->fp, path, sizeof path);
	if (r)
		return errtext_set(e, r, "store path is too long: %s", store);
	if (access(path, R_OK) == 0)
		return 0;
	snprintf(dir, sizeof dir, "%s", path);
	*strrchr(dir, '/') = '\0';
	r = fs_mkdirs(dir);
	if (r)
		return errtext_set(e, r, "%s cannot be made: %s", dir, strerror(-r));
	if (e)
		e->text[0] = '\0';
	return write_frozen(t, path, e);
}
