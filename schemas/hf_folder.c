/* A Hugging Face folder: its JSON files read once, its weights mapped.
 *
 * Every shard's index is parsed at open, so that a missing or damaged file is found before any work is
 * done; a tensor is then looked up by name over the shards (one to a few dozen).
 */
#include "schemas/hf_folder.h"

#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/base/fs.h"
#include "schemas/draft_layout.h"
#include "schemas/record.h"
#include "schemas/safetensors.h"

enum { MAX_SHARDS = 1000, MAX_JSON = 1 << 20, MAX_TOKENIZER = 64 << 20 };

struct shard {
	struct fs_map map;
	struct st_file *st;
};

struct hf_folder {
	char path[PATH_MAX];
	struct hf_config config;
	struct hf_tokenizer *tokenizer;
	char *chat_template;
	struct shard *shards;
	int n_shards;
};

/* ---- the index of shards ---- */

static int add_file(struct hf_index *x, const char *name, struct errtext *e)
{
	if (!*name || *name == '.' || strchr(name, '/') || strlen(name) > 200)
		return errtext_set(e, -EINVAL, "model.safetensors.index.json: %.60s is no plain file name", name);
	for (int i = 0; i < x->n; i++)
		if (strcmp(x->files[i], name) == 0)
			return 0;
	if (x->n == MAX_SHARDS)
		return errtext_set(e, -EINVAL, "model.safetensors.index.json names more than %d files", MAX_SHARDS);
	x->files[x->n] = strdup(name);
	return x->files[x->n] ? x->n++, 0 : -ENOMEM;
}

int hf_index_parse(const char *json, size_t len, struct hf_index *ret, struct errtext *e)
{
	struct hf_index x = {calloc(MAX_SHARDS, sizeof *x.files), 0};
	json_error_t je;
	json_t *o = json_loadb(json, len, JSON_REJECT_DUPLICATES, &je), *map = json_object_get(o, "weight_map"), *file;
	const char *tensor;
	int r = x.files ? 0 : -ENOMEM;

	if (r == 0 && !o)
		r = errtext_set(e, -EINVAL, "model.safetensors.index.json, line %d: %.120s", je.line, je.text);
	else if (r == 0 && json_object_size(map) == 0)
		r = errtext_set(e, -EINVAL, "model.safetensors.index.json has no weight_map");
	if (r == 0)
		json_object_foreach(map, tensor, file) {
			if (!json_is_string(file))
				r = errtext_set(e, -EINVAL, "model.safetensors.index.json: the file of %.60s is not a text", tensor);
			if (r < 0 || (r = add_file(&x, json_string_value(file), e)) < 0)
				break;
		}
	json_decref(o);
	if (r < 0) {
		hf_index_done(&x);
		return r;
	}
	*ret = x;
	return 0;
}

void hf_index_done(struct hf_index *x)
{
	for (int i = 0; x->files && i < x->n; i++)
		free(x->files[i]);
	free(x->files);
	*x = (struct hf_index){0};
}

/* ---- opening ---- */

/* -ENOENT without a word when the file is not there. */
static int read_file(const struct hf_folder *f, const char *name, size_t max, struct fs_map *ret, struct errtext *e)
{
	char path[PATH_MAX];
	int r = (size_t)snprintf(path, sizeof path, "%s/%s", f->path, name) >= sizeof path ? -ENAMETOOLONG : fs_map(path, ret);

	if (r == 0 && ret->len > max) {
		fs_unmap(ret);
		r = errtext_set(e, -EFBIG, "%.150s is longer than %zu bytes", name, max);
	} else if (r < 0 && r != -ENOENT) {
		(void)errtext_set(e, r, "%.180s: %s", path, strerror(-r));
	}
	return r;
}

static int need_file(const struct hf_folder *f, const char *name, size_t max, struct fs_map *ret, struct errtext *e)
{
	int r = read_file(f, name, max, ret, e);

	return r == -ENOENT ? errtext_set(e, r, "%.150s has no %.80s", f->path, name) : r;
}

static int open_shard(struct hf_folder *f, const char *name, struct errtext *e)
{
	struct shard *s = &f->shards[f->n_shards];
	struct errtext why = {""};
	int r = need_file(f, name, SIZE_MAX, &s->map, e);

	if (r < 0)
		return r;
	f->n_shards++;
	r = st_parse(s->map.data, s->map.len, &s->st, &why);
	return r < 0 ? errtext_set(e, r, "%.100s: %.140s", name, why.text) : 0;
}

static int open_weights(struct hf_folder *f, struct errtext *e)
{
	struct hf_index x = {0};
	struct fs_map json = {0};
	int r = read_file(f, "model.safetensors.index.json", 64 << 20, &json, e);

	if (r == -ENOENT) {
		f->shards = calloc(1, sizeof *f->shards);
		return f->shards ? open_shard(f, "model.safetensors", e) : -ENOMEM;
	}
	if (r == 0) {
		r = hf_index_parse((const char *)json.data, json.len, &x, e);
		fs_unmap(&json);
	}
	if (r == 0 && !(f->shards = calloc((size_t)x.n, sizeof *f->shards)))
		r = -ENOMEM;
	for (int i = 0; r == 0 && i < x.n; i++)
		r = open_shard(f, x.files[i], e);
	hf_index_done(&x);
	return r;
}

static int open_config(struct hf_folder *f, struct errtext *e)
{
	struct fs_map m = {0};
	int r = need_file(f, "config.json", MAX_JSON, &m, e);

	if (r == 0)
		r = hf_config_parse((const char *)m.data, m.len, &f->config, e);
	fs_unmap(&m);
	if (r < 0)
		return r;
	r = read_file(f, "generation_config.json", MAX_JSON, &m, e);
	if (r == 0)
		r = hf_generation_parse((const char *)m.data, m.len, &f->config, e);
	fs_unmap(&m);
	return r == -ENOENT ? 0 : r;
}

static int open_tokenizer(struct hf_folder *f, struct errtext *e)
{
	struct fs_map tok = {0}, cfg = {0};
	const struct hf_config *c = &f->config;
	int r = need_file(f, "tokenizer.json", MAX_TOKENIZER, &tok, e);

	if (r == 0) {
		r = read_file(f, "tokenizer_config.json", MAX_TOKENIZER, &cfg, e);
		r = r == -ENOENT ? 0 : r;
	}
	if (r == 0)
		r = hf_tokenizer_parse((const char *)tok.data, tok.len, (const char *)cfg.data, cfg.len, c->vocab, c->bos_id,
				       c->n_eos ? c->eos_ids[0] : -1, &f->tokenizer, e);
	fs_unmap(&tok);
	fs_unmap(&cfg);
	return r;
}

static int open_template(struct hf_folder *f, struct errtext *e)
{
	struct fs_map m = {0};
	int r = read_file(f, "chat_template.jinja", MAX_JSON, &m, e);

	if (r == -ENOENT)
		return 0;
	if (r == 0 && !(f->chat_template = strndup((const char *)m.data, m.len)))
		r = -ENOMEM;
	fs_unmap(&m);
	return r;
}

int hf_open(const char *path, struct hf_folder **ret, struct errtext *e)
{
	struct hf_folder *f = calloc(1, sizeof *f);
	int r;

	if (!f)
		return errtext_set(e, -ENOMEM, "out of memory");
	if (e)
		e->text[0] = '\0';
	(void)snprintf(f->path, sizeof f->path, "%s", path);
	if ((r = open_config(f, e)) == 0 && (r = open_tokenizer(f, e)) == 0 && (r = open_template(f, e)) == 0)
		r = open_weights(f, e);
	if (r < 0) {
		if (e && !e->text[0])
			(void)errtext_set(e, r, "%.180s: %s", path, strerror(-r));
		hf_free(f);
		return r;
	}
	*ret = f;
	return 0;
}

void hf_rest(const struct hf_folder *f)
{
	for (int i = 0; i < f->n_shards; i++)
		fs_map_rest(&f->shards[i].map);
}

struct hf_folder *hf_free(struct hf_folder *f)
{
	if (!f)
		return NULL;
	for (int i = 0; i < f->n_shards; i++) {
		if (f->shards[i].st)
			st_free(f->shards[i].st);
		fs_unmap(&f->shards[i].map);
	}
	free(f->shards);
	hf_tokenizer_free(f->tokenizer);
	free(f->chat_template);
	free(f);
	return NULL;
}

const struct hf_config *hf_config(const struct hf_folder *f)
{
	return &f->config;
}

const struct hf_tokenizer *hf_tokenizer(const struct hf_folder *f)
{
	return f->tokenizer;
}

const char *hf_chat_template(const struct hf_folder *f)
{
	return f->chat_template ? f->chat_template : f->tokenizer->chat_template;
}

/* ---- tensors ---- */

static int convert(const struct st_tensor *t, size_t n, uint16_t *out, struct errtext *e)
{
	unsigned bad = 0;

	if (t->dtype == ST_BF16)
		memcpy(out, t->data, 2 * n);
	for (size_t i = 0; t->dtype != ST_BF16 && i < n; i++) { /* the data may be unaligned */
		uint16_t h;
		float v;
		if (t->dtype == ST_F32) {
			memcpy(&v, t->data + 4 * i, 4);
		} else {
			memcpy(&h, t->data + 2 * i, 2);
			v = f16_to_f32(h);
		}
		out[i] = draft_to_bf16(v);
	}
	for (size_t i = 0; i < n; i++)
		bad |= (out[i] & 0x7f80u) == 0x7f80u;
	return bad ? errtext_set(e, -EINVAL, "tensor %.80s: a value is not finite", t->name) : 0;
}

int hf_read(const struct hf_folder *f, const char *name, int *ret_rows, int *ret_cols, uint16_t **ret_bf16, struct errtext *e)
{
	const struct st_tensor *t = NULL;

	for (int i = 0; !t && i < f->n_shards; i++)
		t = st_find(f->shards[i].st, name);
	if (!t)
		return errtext_set(e, -ENOENT, "no tensor %.80s in the folder", name);
	if (t->dtype != ST_BF16 && t->dtype != ST_F16 && t->dtype != ST_F32)
		return errtext_set(e, -ENOTSUP, "tensor %.80s is %s; BF16, F16 and F32 are read", name, st_dtype_name(t->dtype));
	uint64_t rows = t->n_dims == 2 ? t->shape[0] : 1, cols = t->n_dims == 2 ? t->shape[1] : t->shape[0];
	if (t->n_dims < 1 || t->n_dims > 2 || rows < 1 || cols < 1 || rows > INT_MAX || cols > INT_MAX)
		return errtext_set(e, -EINVAL, "tensor %.80s has an impossible shape", name);
	uint16_t *out = malloc((size_t)(rows * cols) * 2); /* as many values as the file really holds */
	int r = out ? convert(t, (size_t)(rows * cols), out, e) : errtext_set(e, -ENOMEM, "out of memory for %.80s", name);
	if (r < 0) {
		free(out);
		return r;
	}
	*ret_rows = (int)rows;
	*ret_cols = (int)cols;
	*ret_bf16 = out;
	return 0;
}
