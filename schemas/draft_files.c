/* A draft's folder, opened: config.json and a mapped model.safetensors.
 *
 * Every tensor is resolved to its canonical name and held against the table of
 * what the config promises; one unknown, missing or misshapen tensor, or one
 * value that is not finite, refuses the whole draft. SGLang skips unknown names silently and
 * serves random weights; this loader exists so that we never do.
 */
#include "schemas/draft_config.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/base/fs.h"
#include "schemas/draft_layout.h"
#include "schemas/record.h"
#include "schemas/safetensors.h"

struct draft_files {
	struct draft_config config;
	struct fs_map map;
	struct st_file *st;
	int64_t *d2t;
	int n;
	struct draft_slot slot[DRAFT_MAX_TENSORS + 1]; /* + embed_tokens */
	struct held {
		bool is_bf16;
		const void *data; /* NULL until found; into the map, or to owned */
		void *owned;
	} held[DRAFT_MAX_TENSORS + 1];
};

static int find_slot(const struct draft_files *f, const char *name)
{
	for (int i = 0; i < f->n; i++) {
		if (strcmp(f->slot[i].name, name) == 0)
			return i;
	}
	return -1;
}

static int check_finite(const char *name, const struct held *h, size_t n, struct errtext *e)
{
	unsigned bad = 0;

	if (h->is_bf16) {
		const uint16_t *v = h->data;
		for (size_t i = 0; i < n; i++)
			bad |= (v[i] & 0x7f80u) == 0x7f80u;
	} else {
		const uint32_t *v = h->data;
		for (size_t i = 0; i < n; i++)
			bad |= (v[i] & 0x7f800000u) == 0x7f800000u;
	}
	return bad ? errtext_set(e, -EINVAL, "%s: a value is not finite", name) : 0;
}

/* Point at the data, or copy it when it is unaligned or f16. */
static int hold(struct held *h, const struct st_tensor *t, size_t n)
{
	size_t unit = st_dtype_size(t->dtype);

	h->is_bf16 = t->dtype == ST_BF16;
	if (t->dtype == ST_F16) {
		float *wide = malloc(n * sizeof *wide + 1);
		if (!wide)
			return -ENOMEM;
		for (size_t i = 0; i < n; i++) {
			uint16_t half;
			memcpy(&half, t->data + 2 * i, 2);
			wide[i] = f16_to_f32(half);
		}
		h->data = h->owned = wide;
	} else if ((uintptr_t)t->data % unit) {
		h->owned = malloc(t->bytes + 1);
		if (!h->owned)
			return -ENOMEM;
		h->data = memcpy(h->owned, t->data, t->bytes);
	} else {
		h->data = t->data;
	}
	return 0;
}

static int take_tensor(struct draft_files *f, const struct st_tensor *t, const char *name, struct errtext *e)
{
	int i = find_slot(f, name);

	if (i < 0)
		return errtext_set(e, -EINVAL, "model.safetensors: unknown tensor %.64s", t->name);
	const struct draft_slot *s = &f->slot[i];
	size_t n = (size_t)s->rows * (size_t)s->cols;
	if (f->held[i].data)
		return errtext_set(e, -EINVAL, "model.safetensors: %s is there twice, under two names", name);
	if (t->dtype != ST_F32 && t->dtype != ST_BF16 && t->dtype != ST_F16)
		return errtext_set(e, -EINVAL, "%s: dtype %s is not one of F32, BF16, F16", name, st_dtype_name(t->dtype));
	bool fits = s->rows == 1 && t->n_dims == 1 ? t->shape[0] == (uint64_t)s->cols
						   : t->n_dims == 2 && t->shape[0] == (uint64_t)s->rows && t->shape[1] == (uint64_t)s->cols;
	if (!fits)
		return errtext_set(e, -EINVAL, "%s: shape is not [%d,%d] as config.json demands", name, s->rows, s->cols);
	int r = hold(&f->held[i], t, n);
	return r < 0 ? r : check_finite(name, &f->held[i], n, e);
}

static int take_d2t(struct draft_files *f, const struct st_tensor *t, struct errtext *e)
{
	int n = f->config.draft_vocab_size;

	if (f->d2t)
		return errtext_set(e, -EINVAL, "model.safetensors: d2t is there twice, under two names");
	if (t && (t->dtype != ST_I64 || t->n_dims != 1 || t->shape[0] != (uint64_t)n))
		return errtext_set(e, -EINVAL, "d2t: not I64 of length %d", n);
	f->d2t = calloc((size_t)n, sizeof *f->d2t);
	if (!f->d2t)
		return -ENOMEM;
	if (t)
		memcpy(f->d2t, t->data, t->bytes);
	return draft_check_d2t(f->d2t, n, f->config.vocab_size, e);
}

/* t2d is the same table as a mask; it must say the same. */
static int check_t2d(const struct draft_files *f, const struct st_tensor *t, struct errtext *e)
{
	int V = f->config.vocab_size, next = 0;

	if (t->dtype != ST_BOOL || t->n_dims != 1 || t->shape[0] != (uint64_t)V)
		return errtext_set(e, -EINVAL, "t2d: not BOOL of length %d", V);
	for (int j = 0; j < V; j++) {
		bool used = next < f->config.draft_vocab_size && f->d2t[next] + next == j;
		if (t->data[j] > 1 || t->data[j] != used)
			return errtext_set(e, -EINVAL, "t2d and d2t disagree about target id %d", j);
		next += used;
	}
	return 0;
}

static int take_all(struct draft_files *f, struct errtext *e)
{
	const struct st_tensor *t2d = NULL;
	int r = 0;

	for (int i = 0; r >= 0 && i < st_count(f->st); i++) {
		const struct st_tensor *t = st_at(f->st, i);
		char name[128];
		r = draft_canonical_name(t->name, name, sizeof name);
		if (r == 1)
			continue;
		if (r < 0)
			return errtext_set(e, r, "model.safetensors: a tensor's name is too long");
		if (strcmp(name, "d2t") == 0)
			r = take_d2t(f, t, e);
		else if (strcmp(name, "t2d") == 0)
			t2d = t;
		else
			r = take_tensor(f, t, name, e);
	}
	if (r < 0)
		return r;
	if (!f->d2t && f->config.draft_vocab_size != f->config.vocab_size)
		return errtext_set(e, -EINVAL, "model.safetensors: d2t is missing");
	r = f->d2t ? 0 : take_d2t(f, NULL, e);
	if (r == 0 && t2d)
		r = check_t2d(f, t2d, e);
	for (int i = 0; r == 0 && i < f->n - 1; i++) { /* the last slot, embed_tokens, may be absent */
		if (!f->held[i].data)
			r = errtext_set(e, -EINVAL, "model.safetensors: %s is missing", f->slot[i].name);
	}
	return r;
}

static int open_folder(struct draft_files *f, const char *dir, int n_target_layers, struct errtext *e)
{
	char path[PATH_MAX], *json;
	int r = snprintf(path, sizeof path, "%s/config.json", dir) < (int)sizeof path ? 0 : -ENAMETOOLONG;

	if (r == 0)
		r = fs_read_text(path, 1 << 20, &json);
	if (r < 0)
		return errtext_set(e, fs_text_fault(r), "%.160s/config.json: %s", dir, fs_text_why(r));
	r = draft_config_parse(json, n_target_layers, &f->config, e);
	free(json);
	if (r < 0)
		return r;
	f->n = draft_layout(&f->config, f->slot);
	f->slot[f->n++] = (struct draft_slot){"embed_tokens.weight", f->config.vocab_size, f->config.hidden_size};
	(void)snprintf(path, sizeof path, "%s/model.safetensors", dir);
	r = fs_map(path, &f->map);
	if (r < 0)
		return errtext_set(e, r, "%.160s/model.safetensors: %s", dir, strerror(-r));
	r = st_parse(f->map.data, f->map.len, &f->st, e);
	return r < 0 ? r : take_all(f, e);
}

int draft_open(const char *dir, int n_target_layers, struct draft_files **ret, struct errtext *e)
{
	struct draft_files *f = calloc(1, sizeof *f);

	if (!f)
		return errtext_set(e, -ENOMEM, "out of memory");
	int r = open_folder(f, dir, n_target_layers, e);
	if (r < 0) {
		draft_close(f);
		return r;
	}
	*ret = f;
	return 0;
}

struct draft_files *draft_close(struct draft_files *f)
{
	if (f) {
		for (int i = 0; i < f->n; i++)
			free(f->held[i].owned);
		free(f->d2t);
		st_free(f->st);
		fs_unmap(&f->map);
		free(f);
	}
	return NULL;
}

const struct draft_config *draft_files_config(const struct draft_files *f)
{
	return &f->config;
}

const int64_t *draft_files_d2t(const struct draft_files *f)
{
	return f->d2t;
}

int draft_files_tensor(const struct draft_files *f, const char *name, bool *ret_is_bf16, int *ret_rows, int *ret_cols,
		       const void **ret_data)
{
	int i = find_slot(f, name);

	if (i < 0 || !f->held[i].data)
		return -ENOENT;
	*ret_is_bf16 = f->held[i].is_bf16;
	*ret_rows = f->slot[i].rows;
	*ret_cols = f->slot[i].cols;
	*ret_data = f->held[i].data;
	return 0;
}

int draft_weights_sha(const struct draft_files *f, char ret_hex[static 65])
{
	uint16_t *rounded[DRAFT_MAX_TENSORS] = {NULL};
	uint64_t n_d2t = (uint64_t)f->config.draft_vocab_size;
	struct fp *fp = fp_new();
	int r = fp ? fp_add(fp, "d2t", "I64", &n_d2t, 1, f->d2t, (size_t)n_d2t * 8) : -ENOMEM;

	for (int i = 0; r == 0 && i < f->n - 1; i++) {
		const struct draft_slot *s = &f->slot[i];
		size_t n = (size_t)s->rows * (size_t)s->cols;
		const uint16_t *bits = f->held[i].data;
		if (!f->held[i].is_bf16) {
			const float *wide = f->held[i].data;
			bits = rounded[i] = malloc(n * 2);
			for (size_t j = 0; bits && j < n; j++)
				rounded[i][j] = draft_to_bf16(wide[j]);
		}
		r = bits ? fp_add_bf16(fp, s->name, s->rows, s->cols, bits) : -ENOMEM;
	}
	if (r == 0)
		r = fp_final_hex(fp, ret_hex);
	for (int i = 0; i < DRAFT_MAX_TENSORS; i++)
		free(rounded[i]);
	fp_free(fp);
	return r;
}
