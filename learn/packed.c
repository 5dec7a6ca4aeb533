/* 8-bit drafts (learn/packed.h).
 *
 * Row r of a matrix is kept as q = round(w / s_r), s_r = max|w_r| / 127: rows differ in size by an order of magnitude
 * (embedding-like heads most), within a row values do not. Metadata of the file: format, config (text of config.json), submit
 * (text of submit.json, from which target and history come), weights_sha (of the expanded draft, as bf16), note.
 */
#include "learn/packed.h"

#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/fs.h"
#include "kernels/model/eagle3.h"
#include "learn/publish.h"
#include "schemas/safetensors.h"

#define FORMAT "redraft-draft-int8-1"

/* ---- out ---- */

struct out {
	struct st_out t[2 * E3_N_TENSORS + 1];
	char name[E3_N_TENSORS][64];
	void *owned[2 * E3_N_TENSORS];
	int n, n_owned;
};

static void *own(struct out *o, size_t bytes)
{
	void *p = malloc(bytes ? bytes : 1);
	if (p)
		o->owned[o->n_owned++] = p;
	return p;
}

static float value(const void *data, bool bf16, size_t i)
{
	return bf16 ? bf16_to_f32(((const uint16_t *)data)[i]) : ((const float *)data)[i];
}

static int add_vector(struct out *o, const char *name, int n, const void *data, bool bf16)
{
	float *v = own(o, (size_t)n * sizeof *v);
	if (!v)
		return -ENOMEM;
	for (int i = 0; i < n; i++)
		v[i] = value(data, bf16, (size_t)i);
	o->t[o->n++] = (struct st_out){name, ST_F32, 1, {(uint64_t)n}, v};
	return 0;
}

static int add_matrix(struct out *o, int which, const char *name, int rows, int cols, const void *data, bool bf16)
{
	float *scale = own(o, (size_t)rows * sizeof *scale);
	int8_t *q = own(o, (size_t)rows * (size_t)cols);
	if (!scale || !q)
		return -ENOMEM;
	for (int r = 0; r < rows; r++) {
		size_t at = (size_t)r * (size_t)cols;
		float most = 0;
		for (int c = 0; c < cols; c++)
			most = fmaxf(most, fabsf(value(data, bf16, at + (size_t)c)));
		scale[r] = most / 127;
		for (int c = 0; c < cols; c++)
			q[at + (size_t)c] = most > 0 ? (int8_t)lrintf(value(data, bf16, at + (size_t)c) / scale[r]) : 0;
	}
	(void)snprintf(o->name[which], sizeof o->name[which], "%s.scale", name);
	o->t[o->n++] = (struct st_out){name, ST_I8, 2, {(uint64_t)rows, (uint64_t)cols}, q};
	o->t[o->n++] = (struct st_out){o->name[which], ST_F32, 1, {(uint64_t)rows}, scale};
	return 0;
}

static int add_all(struct out *o, const struct draft_files *f, struct errtext *e)
{
	const struct draft_config *c = draft_files_config(f);
	if (c->norm_before_fc || c->fc_norm)
		return errtext_set(e, -ENOTSUP, "a draft with %s is not packed", c->fc_norm ? "fc_norm" : "norm_before_fc");
	o->t[o->n++] = (struct st_out){"d2t", ST_I64, 1, {(uint64_t)c->draft_vocab_size}, draft_files_d2t(f)};
	for (int i = 0; i < E3_N_TENSORS; i++) {
		const char *name = eagle3_tensor_name((enum eagle3_tensor)i);
		int rows, cols;
		bool bf16;
		const void *data;
		int r = draft_files_tensor(f, name, &bf16, &rows, &cols, &data);
		if (r)
			return errtext_set(e, -EINVAL, "%s is missing", name);
		r = rows == 1 ? add_vector(o, name, cols, data, bf16) : add_matrix(o, i, name, rows, cols, data, bf16);
		if (r)
			return r;
	}
	return 0;
}

/* Text of DIR/name, or NULL. */
static char *text_of(const char *dir, const char *name)
{
	char path[PATH_MAX], *text = NULL;
	if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path || fs_read_text(path, 1 << 20, &text))
		return NULL;
	return text;
}

static int layers_of(const char *submit)
{
	json_t *j = submit ? json_loads(submit, 0, NULL) : NULL;
	int n = (int)json_integer_value(json_object_get(j, "target_layers"));
	json_decref(j);
	return n;
}

static int write_file(const char *file, struct out *o, const char *config, const char *submit, const char *sha, const char *note, struct errtext *e)
{
	const struct st_meta_kv meta[] = {{"format", FORMAT}, {"config", config}, {"submit", submit}, {"weights_sha", sha}, {"note", note}};
	struct buf b = BUF_INIT(0);
	int r = st_write(&b, o->t, o->n, meta, sizeof meta / sizeof meta[0], 8);
	if (!r)
		r = fs_write_atomic(file, b.data, b.len);
	buf_done(&b);
	return r ? errtext_set(e, r, "%.150s: %s", file, strerror(-r)) : 0;
}

int packed_write(const char *dir, const char *file, const char *note, struct errtext *e)
{
	char *config = text_of(dir, "config.json"), *submit = text_of(dir, "submit.json"), check[PATH_MAX], sha[65] = "";
	struct draft_files *f = NULL;
	struct out o = {0};
	int r = config && submit ? 0 : errtext_set(e, -EINVAL, "%.150s: no draft folder as redraft-learn writes it (config.json, submit.json)", dir);
	if (!r)
		r = draft_open(dir, layers_of(submit), &f, e);
	if (!r)
		r = add_all(&o, f, e);
	if (!r) /* once with no hash, to learn what it expands to, then for good */
		r = write_file(file, &o, config, submit, "", note, e);
	if (!r && snprintf(check, sizeof check, "%s.expanded", file) >= (int)sizeof check)
		r = -ENAMETOOLONG;
	if (!r)
		r = packed_expand(file, check, sha, e);
	if (!r)
		r = fs_remove_tree(check);
	if (!r)
		r = write_file(file, &o, config, submit, sha, note, e);
	for (int i = 0; i < o.n_owned; i++)
		free(o.owned[i]);
	draft_close(f);
	free(config);
	free(submit);
	return r;
}

/* ---- back ---- */

struct back {
	struct draft_tensor t[E3_N_TENSORS];
	float *owned[E3_N_TENSORS];
	int64_t *d2t;
	int n;
};

/* One tensor widened into b; its shape is the file's, draft_save compares it with the config. */
static int widen(const struct st_file *f, enum eagle3_tensor which, struct back *b, struct errtext *e)
{
	const char *name = eagle3_tensor_name(which);
	char scale_name[64];
	(void)snprintf(scale_name, sizeof scale_name, "%s.scale", name);
	const struct st_tensor *t = st_find(f, name), *s = st_find(f, scale_name);
	bool vector = t && t->dtype == ST_F32 && t->n_dims == 1;
	if (!t || (!vector && (t->dtype != ST_I8 || t->n_dims != 2 || !s || s->dtype != ST_F32 || s->n_dims != 1 || s->shape[0] != t->shape[0])) || t->shape[0] > INT_MAX ||
	    (!vector && t->shape[1] > INT_MAX))
		return errtext_set(e, -EINVAL, "packed draft: %s is missing or not as it should be", name);
	size_t rows = vector ? 1 : t->shape[0], cols = vector ? t->shape[0] : t->shape[1];
	float *v = malloc(rows * cols * sizeof *v + 1);
	if (!v)
		return -ENOMEM;
	b->owned[b->n] = v;
	b->t[b->n++] = (struct draft_tensor){name, (int)rows, (int)cols, v};
	if (vector)
		memcpy(v, t->data, cols * sizeof *v);
	for (size_t r = 0; r < rows && !vector; r++) {
		float scale;
		memcpy(&scale, s->data + r * sizeof scale, sizeof scale);
		for (size_t c = 0; c < cols; c++)
			v[r * cols + c] = scale * (float)((const int8_t *)t->data)[r * cols + c];
	}
	return 0;
}

static int submit_of(const char *text, const char *sha, const char *dir, struct errtext *e)
{
	char path[PATH_MAX], *out = NULL;
	json_t *j = json_loads(text, 0, NULL);
	int r = json_is_object(j) && !json_object_set_new(j, "weights_sha", json_string(sha)) && !json_object_set_new(j, "parent", json_integer(0)) && (out = json_dumps(j, JSON_INDENT(2)))
			? 0
			: errtext_set(e, -EINVAL, "packed draft: its submit.json cannot be read");
	if (!r)
		r = snprintf(path, sizeof path, "%s/submit.json", dir) < (int)sizeof path ? fs_write_atomic(path, out, strlen(out)) : -ENAMETOOLONG;
	free(out);
	json_decref(j);
	return r;
}

static int save(const struct st_file *f, struct back *b, const char *dir, char sha[static 65], struct errtext *e)
{
	const char *config = st_meta(f, "config"), *submit = st_meta(f, "submit"), *wanted = st_meta(f, "weights_sha");
	struct draft_config c;
	struct draft_files *files = NULL;
	int layers = layers_of(submit);
	const struct st_tensor *d = st_find(f, "d2t");
	if (!config || !submit || !wanted)
		return errtext_set(e, -EINVAL, "packed draft: config, submit or weights_sha is missing");
	int r = draft_config_parse(config, layers, &c, e);
	if (!r && (!d || d->dtype != ST_I64 || d->n_dims != 1 || d->shape[0] != (uint64_t)c.draft_vocab_size))
		r = errtext_set(e, -EINVAL, "packed draft: d2t is missing or not [%d]", c.draft_vocab_size);
	if (!r && !(b->d2t = malloc(d->bytes)))
		r = -ENOMEM;
	if (!r) {
		memcpy(b->d2t, d->data, d->bytes);
		r = fs_mkdirs(dir);
	}
	if (!r)
		r = draft_save(dir, &c, b->d2t, b->t, b->n, true, e);
	if (!r)
		r = draft_open(dir, layers, &files, e);
	if (!r)
		r = draft_weights_sha(files, sha);
	draft_close(files);
	if (!r && *wanted && strcmp(wanted, sha) != 0)
		r = errtext_set(e, -EINVAL, "packed draft: it expands to weights %.12s, the file says %.12s", sha, wanted);
	return r ? r : submit_of(submit, sha, dir, e);
}

int packed_expand(const char *file, const char *dir, char ret_sha[static 65], struct errtext *e)
{
	struct fs_map m = {0};
	struct st_file *f = NULL;
	struct back b = {0};
	char sha[65] = "";
	int r = fs_map(file, &m);
	if (r)
		return errtext_set(e, r, "%.150s: %s", file, strerror(-r));
	r = st_parse(m.data, m.len, &f, e);
	if (!r && (!st_meta(f, "format") || strcmp(st_meta(f, "format"), FORMAT) != 0))
		r = errtext_set(e, -EINVAL, "%.150s is no packed draft (format " FORMAT ")", file);
	for (int i = 0; i < E3_N_TENSORS && !r; i++)
		r = widen(f, (enum eagle3_tensor)i, &b, e);
	if (!r)
		r = save(f, &b, dir, sha, e);
	if (!r)
		memcpy(ret_sha, sha, sizeof sha);
	for (int i = 0; i < b.n; i++)
		free(b.owned[i]);
	free(b.d2t);
	st_free(f);
	fs_unmap(&m);
	return r;
}
