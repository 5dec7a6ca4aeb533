/* The frozen half of the target, mapped from the store (learn/frozen.h).
 *
 * Only bf16 matrices of one width are accepted. The metadata is text written by
 * the server: numbers are parsed strictly, and what is missing stays 0, so that
 * a file written by an engine's shim with fewer keys still serves to train a
 * draft that exists; only making a first draft needs the shape.
 */
#include "learn/frozen.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/sha.h"
#include "schemas/manifest.h"
#include "schemas/safetensors.h"

/* The one fingerprint below store/frozen, when there is exactly one. */
static int only_target(const char *store, char ret[65], struct errtext *e)
{
	char path[PATH_MAX];
	if (snprintf(path, sizeof path, "%s/frozen", store) >= (int)sizeof path)
		return errtext_set(e, -EINVAL, "store: the path is too long");
	char found[65] = "";
	int n = 0;
	DIR *d = opendir(path);
	for (const struct dirent *de; d && (de = readdir(d));)
		if (sha_is_hex(de->d_name)) {
			memcpy(found, de->d_name, 65);
			n++;
		}
	if (d)
		closedir(d);
	if (n == 0)
		return errtext_set(e, -ENOENT, "%s holds no target yet: start redraft-serve once with --store %s", path, store);
	if (n > 1)
		return errtext_set(e, -EINVAL, "%s holds %d targets: say which with --target_fp", path, n);
	memcpy(ret, found, 65);
	return 0;
}

static double meta_number(const struct st_file *st, const char *key)
{
	const char *s = st_meta(st, key);
	char *end;
	double v = s ? strtod(s, &end) : 0;
	return s && *s && !*end ? v : 0;
}

static int meta_int(const struct st_file *st, const char *key)
{
	double v = meta_number(st, key);
	return v >= 0 && v <= 1e9 ? (int)v : 0;
}

static int64_t meta_id(const struct st_file *st, const char *key)
{
	return st_meta(st, key) ? (int64_t)meta_number(st, key) : -1;
}

/* One bf16 matrix [V,H] of the file; V and H are set by the first one seen. */
static int take_matrix(struct frozen *f, const struct st_file *st, const char *name, const uint16_t **ret, struct errtext *e)
{
	const struct st_tensor *t = st_find(st, name);
	if (!t)
		return -ENOENT;
	if (t->dtype != ST_BF16 || t->n_dims != 2 || t->shape[0] < 2 || t->shape[0] > (1u << 24) || t->shape[1] < 1 || t->shape[1] > 65536)
		return errtext_set(e, -EINVAL, "frozen.safetensors: %s must be BF16 [vocabulary, hidden]", name);
	if (f->V && (t->shape[0] != (uint64_t)f->V || t->shape[1] != (uint64_t)f->H))
		return errtext_set(e, -EINVAL, "frozen.safetensors: %s has another shape than the embedding", name);
	f->V = (int)t->shape[0];
	f->H = (int)t->shape[1];
	*ret = (const uint16_t *)(const void *)t->data;
	return 0;
}

static int take_tensors(struct frozen *f, const struct st_file *st, struct errtext *e)
{
	int r = take_matrix(f, st, "embed_tokens.weight", &f->embedding, e);
	if (r == -ENOENT)
		return errtext_set(e, -EINVAL, "frozen.safetensors: embed_tokens.weight is missing");
	if (r)
		return r;
	r = take_matrix(f, st, "lm_head.weight", &f->head, e);
	if (r == -ENOENT) {
		f->head = f->embedding;
		f->tied = true;
		r = 0;
	}
	return r;
}

int frozen_open(const char *store, const char *target_fp, struct frozen *ret, struct errtext *e)
{
	struct frozen f = {0};
	int r = 0;
	if (target_fp && *target_fp) {
		if (!sha_is_hex(target_fp))
			return errtext_set(e, -EINVAL, "target_fp: want 64 lower-case hex digits, not \"%.70s\"", target_fp);
		memcpy(f.target_fp, target_fp, 65);
	} else if ((r = only_target(store, f.target_fp, e)))
		return r;
	char path[PATH_MAX];
	if ((r = store_frozen_file(store, f.target_fp, path, sizeof path)))
		return errtext_set(e, r, "store: the path is too long");
	if ((r = fs_map(path, &f.map)))
		return errtext_set(e, r, "%.150s: %s: start redraft-serve once with --store", path, strerror(-r));
	/* Checkpoint writers align data to 8 bytes and mappings to pages; a file made otherwise is copied. */
	const uint8_t *data = f.map.data;
	struct st_file *st = NULL;
	r = st_parse(data, f.map.len, &st, e);
	if (!r)
		r = take_tensors(&f, st, e);
	if (!r && ((uintptr_t)f.embedding % 2 || (uintptr_t)f.head % 2)) {
		size_t n = (size_t)f.V * (size_t)f.H * 2;
		uint8_t *copy = malloc(n * 2);
		if (copy) {
			memcpy(copy, f.embedding, n);
			memcpy(copy + n, f.head, n);
			f.embedding = (const uint16_t *)(void *)copy;
			f.head = f.tied ? f.embedding : (const uint16_t *)(void *)(copy + n);
			f.copy = copy;
		} else
			r = -ENOMEM;
	}
	if (!r) {
		const char *fp = st_meta(st, "target_fp");
		if (fp && strcmp(fp, f.target_fp) != 0)
			r = errtext_set(e, -EINVAL, "%.120s was exported for target %.12s: remove it and start redraft-serve once", path, fp);
		f.n_layer = meta_int(st, "n_layer");
		f.n_head = meta_int(st, "n_head");
		f.n_kv_head = meta_int(st, "n_kv_head");
		f.head_dim = meta_int(st, "head_dim");
		f.intermediate_size = meta_int(st, "intermediate_size");
		f.max_ctx = meta_int(st, "max_ctx");
		f.rms_eps = meta_number(st, "rms_eps");
		f.rope_theta = meta_number(st, "rope_theta");
		f.bos_id = meta_id(st, "bos_id");
		f.eos_id = meta_id(st, "eos_id");
		f.pad_id = meta_id(st, "pad_id");
	}
	st_free(st);
	if (r) {
		frozen_close(&f);
		return r;
	}
	*ret = f;
	return 0;
}

void frozen_close(struct frozen *f)
{
	fs_unmap(&f->map);
	free(f->copy);
	memset(f, 0, sizeof *f);
}

int frozen_draft_config(const struct frozen *f, int draft_vocab, struct draft_config *ret, struct errtext *e)
{
	if (!f->n_layer)
		return errtext_set(e, -EINVAL, "frozen.safetensors does not tell the target's shape: remove it and start redraft-serve once");
	if (f->n_layer < 8)
		return errtext_set(e, -EINVAL, "the target has only %d layers: boundaries collide below 8", f->n_layer);
	struct draft_config c = {
		.hidden_size = f->H, .target_hidden_size = f->H, .vocab_size = f->V,
		.intermediate_size = f->intermediate_size ? f->intermediate_size : (f->H * 8 / 3 + 63) / 64 * 64,
		.n_head = f->n_head, .n_kv_head = f->n_kv_head ? f->n_kv_head : f->n_head,
		.head_dim = f->head_dim ? f->head_dim : (f->n_head ? f->H / f->n_head : 0),
		.draft_vocab_size = draft_vocab < f->V ? draft_vocab : f->V,
		.max_position = f->max_ctx ? f->max_ctx : 2048,
		.rms_eps = f->rms_eps > 0 ? f->rms_eps : 1e-5,
		.rope_theta = f->rope_theta > 0 ? f->rope_theta : 10000,
		.boundaries = {2, f->n_layer / 2, f->n_layer - 3}, .boundaries_default = true,
		.bos_id = f->bos_id, .eos_id = f->eos_id, .pad_id = f->pad_id,
	};
	if (c.n_head < 1 || c.head_dim < 2 || c.head_dim % 2 || c.n_head % c.n_kv_head)
		return errtext_set(e, -EINVAL, "frozen.safetensors: %d heads, %d key heads of width %d make no draft", c.n_head, c.n_kv_head, c.head_dim);
	*ret = c;
	return 0;
}
