/* From a model's file or folder to a target that can be served.
 *
 * Shapes come from its metadata (target_gguf.c, target_folder.c); every tensor is then held against
 * them by llama_load. Expanding a quantised tensor costs more than reading it, so the
 * fingerprint's pass runs beside the loading pass on a thread of its own.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "daemon/base/sha.h"
#include "schemas/gguf.h"
#include "schemas/hf_folder.h"
#include "serve/target.h"
#include "serve/target_source.h"
#include "serve/tokenizer.h"

int target_read(const struct target *t, const char *name, int *ret_rows, int *ret_cols, uint16_t **ret_bf16, struct errtext *e)
{
	if (t->folder)
		return hf_read(t->folder, name, ret_rows, ret_cols, ret_bf16, e);
	return gguf_read_hf(t->gguf, name, ret_rows, ret_cols, ret_bf16, e);
}

/* ---- the fingerprint ---- */

static void hash_number(struct sha *s, uint64_t v, int bytes)
{
	uint8_t raw[8];
	for (int i = 0; i < bytes; i++)
		raw[i] = (uint8_t)(v >> (8 * i));
	sha_update(s, raw, (size_t)bytes);
}

static int hash_tensor(const struct target *t, struct sha *s, const char *name, struct errtext *e)
{
	int rows, cols;
	uint16_t *data;
	int r = target_read(t, name, &rows, &cols, &data, e);
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

int target_tensors_sha(const struct target *t, char ret_hex[static 65], struct errtext *e)
{
	const struct llama_config *c = &t->cfg;
	static const char *const part[] = {
		"input_layernorm", "mlp.down_proj", "mlp.gate_proj", "mlp.up_proj", "post_attention_layernorm",
		"self_attn.k_proj", "self_attn.o_proj", "self_attn.q_proj", "self_attn.v_proj",
	};
	static const char *const bias[] = {"q_proj.bias", "k_proj.bias", "v_proj.bias"}, *const norm[] = {"q_norm.weight", "k_norm.weight"};
	enum { PARTS = sizeof part / sizeof *part, NAME = 80 };
	char(*names)[NAME] = calloc((size_t)c->n_layer * (PARTS + 5) + 3, NAME);
	struct sha *s = sha_new();
	int n = 0, r = names && s ? 0 : -ENOMEM;
	if (!r) {
		snprintf(names[n++], NAME, "model.embed_tokens.weight");
		snprintf(names[n++], NAME, "model.norm.weight");
		if (!c->tied)
			snprintf(names[n++], NAME, "lm_head.weight");
		for (int l = 0; l < c->n_layer; l++) {
			for (int i = 0; i < PARTS; i++)
				snprintf(names[n++], NAME, "model.layers.%d.%s.weight", l, part[i]);
			for (int i = 0; c->qkv_bias && i < 3; i++)
				snprintf(names[n++], NAME, "model.layers.%d.self_attn.%s", l, bias[i]);
			for (int i = 0; c->qk_norm && i < 2; i++)
				snprintf(names[n++], NAME, "model.layers.%d.self_attn.%s", l, norm[i]);
		}
		qsort(names, (size_t)n, NAME, by_name);
	}
	for (int i = 0; !r && i < n; i++)
		r = hash_tensor(t, s, names[i], e);
	if (!r)
		sha_final_hex(s, ret_hex);
	if (s)
		sha_free(s);
	free(names);
	return r;
}

struct hashing {
	const struct target *t;
	char hex[65];
	struct errtext e;
	int result;
};

static void *hash_thread(void *arg)
{
	struct hashing *h = arg;
	h->result = target_tensors_sha(h->t, h->hex, &h->e);
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

struct source { const struct target *t; uint16_t *held; };

static int source_get(void *ctx, const char *name, struct tensor_view *ret, struct errtext *e)
{
	struct source *s = ctx;
	free(s->held);
	s->held = NULL;
	int r = target_read(s->t, name, &ret->rows, &ret->cols, &s->held, e);
	ret->type = DT_BF16;
	ret->data = s->held;
	return r;
}

/* The hash runs on its own thread while this one packs. */
static int load_and_hash(struct dev *d, struct target *t, enum dtype type, struct errtext *e)
{
	struct source src = {.t = t};
	struct tensor_source ts = {.get = source_get, .ctx = &src};
	struct hashing h = {.t = t};
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
	size_t end = strlen(path);
	while (end > 1 && path[end - 1] == '/')
		end--;
	size_t from = end;
	while (from > 0 && path[from - 1] != '/')
		from--;
	if (end - from > 5 && memcmp(path + end - 5, ".gguf", 5) == 0)
		end -= 5;
	snprintf(t->name, sizeof t->name, "%.*s", (int)(end - from), path + from);
}

static void find_eog(struct target *t)
{
	uint32_t n = tokenizer_vocab(t->tokenizer);
	int max = (int)(sizeof t->eog_ids / sizeof *t->eog_ids);
	for (uint32_t id = 0; id < n && t->n_eog < max; id++)
		if (tokenizer_is_eog(t->tokenizer, id))
			t->eog_ids[t->n_eog++] = id;
}

static int open_gguf(struct target *t, const char *path, struct errtext *e)
{
	int r = gguf_open(path, &t->gguf, e);
	r = r ? r : target_gguf_config(t->gguf, &t->cfg, &t->train_context, e);
	r = r ? r : tokenizer_load(t->gguf, &t->tokenizer, e);
	if (!r && gguf_str(t->gguf, "tokenizer.chat_template", &t->chat_template, &t->chat_template_len))
		t->chat_template = NULL;
	return r;
}

static int open_folder(struct target *t, const char *path, struct errtext *e)
{
	int r = hf_open(path, &t->folder, e);
	r = r ? r : target_folder_config(t->folder, &t->cfg, &t->train_context, e);
	if (r)
		return r;
	const struct hf_config *c = hf_config(t->folder);
	t->chat_template = hf_chat_template(t->folder);
	t->chat_template_len = t->chat_template ? strlen(t->chat_template) : 0;
	return tokenizer_from_hf(hf_tokenizer(t->folder), c->eos_ids, c->n_eos, &t->tokenizer, e);
}

int target_open(struct dev *d, const char *path, enum dtype type, int max_context, struct target **ret, struct errtext *e)
{
	struct target *t = calloc(1, sizeof *t);
	struct stat st;
	if (!t)
		return -ENOMEM;
	int r = stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? open_folder(t, path, e) : open_gguf(t, path, e);
	if (!r && t->cfg.n_layer < 7)
		r = errtext_set(e, -ENOTSUP, "model: %d blocks are too few to tap three different boundaries (7 at least)", t->cfg.n_layer);
	if (!r) {
		default_boundaries(t->cfg.n_layer, t->cfg.boundaries);
		t->cfg.max_ctx = max_context < t->train_context ? max_context : t->train_context;
		name_after(t, path);
		find_eog(t);
		r = load_and_hash(d, t, type, e);
	}
	if (r) {
		target_close(t);
		return r;
	}
	*ret = t;
	return 0;
}

void target_rest(const struct target *t)
{
	if (t->gguf)
		gguf_rest(t->gguf);
	if (t->folder)
		hf_rest(t->folder);
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
	hf_free(t->folder);
	free(t);
	return NULL;
}
