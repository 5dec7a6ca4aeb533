/* The frozen file: what a learner needs of the target, exported once for all who map it. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/base/fs.h"
#include "schemas/manifest.h"
#include "schemas/safetensors.h"
#include "serve/target.h"

static int add_frozen(const struct target *t, const char *hf_name, const char *name, struct st_out *out, struct errtext *e)
{
	int rows, cols;
	uint16_t *data;
	int r = target_read(t, hf_name, &rows, &cols, &data, e);
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
