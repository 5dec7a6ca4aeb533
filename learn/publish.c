/* Drafts out of and into the version store (learn/publish.h). */
#include "learn/publish.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/base/clock.h"
#include "schemas/manifest.h"

void draft_done(struct draft *d)
{
	free(d->d2t);
	free(d->w);
	memset(d, 0, sizeof *d);
}

void draft_eagle3_config(const struct draft_config *f, struct eagle3_config *ret)
{
	*ret = (struct eagle3_config){
		.H = f->hidden_size, .H_t = f->target_hidden_size ? f->target_hidden_size : f->hidden_size, .I = f->intermediate_size,
		.n_head = f->n_head, .n_kv = f->n_kv_head, .hd = f->head_dim, .V = f->vocab_size, .V_d = f->draft_vocab_size,
		.rms_eps = (real)f->rms_eps, .max_ctx = f->max_position,
		.rope = {.theta = f->rope_theta, .factor = f->rope_factor, .low_freq_factor = f->rope_low,
			 .high_freq_factor = f->rope_high, .orig_max = f->rope_orig_max, .beta_fast = f->rope_beta_fast,
			 .beta_slow = f->rope_beta_slow, .mscale = f->rope_mscale, .mscale_all_dim = f->rope_mscale_all},
		.boundaries = {f->boundaries[0], f->boundaries[1], f->boundaries[2]},
		.norm_before_residual = f->norm_before_residual, .norm_before_fc = f->norm_before_fc,
		.fc_norm = f->fc_norm, .norm_output = f->norm_output,
	};
	static const int kinds[] = {ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN};
	ret->rope.kind = kinds[f->rope_kind >= 0 && f->rope_kind < 4 ? f->rope_kind : 0];
}

size_t draft_params(const struct eagle3_config *c)
{
	size_t n = 0;
	for (int t = 0; t < E3_N_ALL; t++) {
		int rows, cols;
		eagle3_tensor_shape(c, (enum eagle3_tensor)t, &rows, &cols);
		n += (size_t)rows * (size_t)cols;
	}
	return n;
}

/* The tensors of a checkpoint in the order of the flat masters, one after the other; false behind the last. */
struct part { const char *name; int rows, cols, t, i; };

static bool next_part(const struct eagle3_config *c, struct part *p)
{
	for (; p->t < E3_N_ALL; p->t++, p->i = 0) {
		int parts = eagle3_tensor_parts(c, (enum eagle3_tensor)p->t);
		if (p->i == parts)
			continue;
		eagle3_tensor_shape(c, (enum eagle3_tensor)p->t, &p->rows, &p->cols);
		p->cols /= parts;
		p->name = eagle3_part_name(c, (enum eagle3_tensor)p->t, p->i++);
		return true;
	}
	return false;
}

/* All tensors of an opened folder into flat masters. */
static int widen(const struct draft_files *f, struct draft *d, struct errtext *e)
{
	d->n = draft_params(&d->c);
	d->w = malloc(d->n * sizeof *d->w);
	d->d2t = malloc((size_t)d->c.V_d * sizeof *d->d2t);
	if (!d->w || !d->d2t)
		return -ENOMEM;
	memcpy(d->d2t, draft_files_d2t(f), (size_t)d->c.V_d * sizeof *d->d2t);
	size_t at = 0;
	for (struct part p = {0}; next_part(&d->c, &p);) {
		const char *name = p.name;
		int rows = p.rows, cols = p.cols, got_r, got_c;
		bool bf16;
		const void *data;
		int r = draft_files_tensor(f, name, &bf16, &got_r, &got_c, &data);
		if (r)
			return errtext_set(e, -EINVAL, "%s is missing", name);
		if ((size_t)got_r * (size_t)got_c != (size_t)rows * (size_t)cols)
			return errtext_set(e, -EINVAL, "%s is %d x %d, want %d x %d", name, got_r, got_c, rows, cols);
		for (size_t i = 0; i < (size_t)rows * (size_t)cols; i++)
			d->w[at++] = (real)(bf16 ? bf16_to_f32(((const uint16_t *)data)[i]) : ((const float *)data)[i]);
	}
	return 0;
}

int publish_check(const struct draft *d, const struct frozen *fz, struct errtext *e)
{
	if (d->c.V != fz->V || d->c.H_t != fz->H || d->c.H != fz->H)
		return errtext_set(e, -EINVAL, "a draft %d wide over %d tokens does not fit this target (%d, %d)", d->c.H, d->c.V, fz->H, fz->V);
	return 0;
}

int publish_read_folder(const char *dir, const struct frozen *fz, struct draft *ret, struct errtext *e)
{
	struct draft d = {0};
	struct draft_files *f = NULL;
	int r = draft_open(dir, fz->n_layer, &f, e);
	if (!r) {
		d.file = *draft_files_config(f);
		draft_eagle3_config(&d.file, &d.c);
		r = publish_check(&d, fz, e);
	}
	if (!r)
		r = widen(f, &d, e);
	if (!r)
		r = draft_weights_sha(f, d.weights_sha);
	draft_close(f);
	if (r) {
		draft_done(&d);
		return r;
	}
	*ret = d;
	return 0;
}

int publish_read_version(const char *store, uint32_t n, const struct frozen *fz, struct draft *ret, struct errtext *e)
{
	char dir[PATH_MAX];
	struct manifest m = {0};
	int r = store_version_dir(store, n, dir, sizeof dir);
	if (!r)
		r = manifest_read(dir, &m, e);
	if (!r && strcmp(m.target_fp, fz->target_fp) != 0)
		r = errtext_set(e, -EINVAL, "version %u belongs to target %.12s, not %.12s", n, m.target_fp, fz->target_fp);
	manifest_done(&m);
	return r ? r : publish_read_folder(dir, fz, ret, e);
}

/* How good a start v is; 0 = none. The base is one even when it was refused as a first version: the daemon's Rebase goes there too. */
static int rank(const struct store_state *s, const struct version_entry *v)
{
	if (v->state == VS_QUARANTINED)
		return 0;
	if (v->number == s->live || v->number == s->base)
		return v->number == s->live ? 3 : 2;
	return v->state != VS_REJECTED;
}

uint32_t publish_newest(const char *store)
{
	struct store_state s = {0};
	uint32_t best = 0;
	int best_rank = 1;
	if (store_state_read(store, &s, NULL))
		return 0;
	for (int i = 0; i < s.n_versions; i++) /* ascending: the newest of equals */
		if (rank(&s, &s.versions[i]) >= best_rank) {
			best_rank = rank(&s, &s.versions[i]);
			best = s.versions[i].number;
		}
	store_state_done(&s);
	return best;
}

const char *publish_state_of(const char *store, uint32_t n)
{
	struct store_state s = {0};
	const char *name = NULL;
	if (store_state_read(store, &s, NULL))
		return NULL;
	for (int i = 0; i < s.n_versions; i++)
		if (s.versions[i].number == n)
			name = version_state_name(s.versions[i].state);
	store_state_done(&s);
	return name;
}

uint32_t publish_find_sha(const char *store, const char *weights_sha)
{
	struct store_state s = {0};
	uint32_t found = 0;
	if (store_state_read(store, &s, NULL))
		return 0;
	for (int i = s.n_versions - 1; i >= 0 && i >= s.n_versions - 16 && !found; i--) {
		char dir[PATH_MAX];
		struct manifest m = {0};
		if (!store_version_dir(store, s.versions[i].number, dir, sizeof dir) && !manifest_read(dir, &m, NULL)) {
			if (strcmp(m.weights_sha, weights_sha) == 0)
				found = m.number;
			manifest_done(&m);
		}
	}
	store_state_done(&s);
	return found;
}

int publish_path(const char *store, const char *name, char *ret, size_t size)
{
	int n = snprintf(ret, size, "%s/incoming/%s", store, name);
	return n > 0 && (size_t)n < size ? 0 : -ENAMETOOLONG;
}

void publish_remove(const char *store, const char *name)
{
	char dir[PATH_MAX];
	if (!publish_path(store, name, dir, sizeof dir))
		(void)!fs_remove_tree(dir); /* what is left of it lies there until somebody removes it */
}

static int save_weights(const char *dir, const struct draft_config *c, const int64_t *d2t, const real *w, struct errtext *e)
{
	struct eagle3_config ec;
	struct draft_tensor t[E3_N_ALL + 2];
	int n = 0;
	draft_eagle3_config(c, &ec);
	float *copy = malloc(draft_params(&ec) * sizeof *copy); /* `real` may be double */
	if (!copy)
		return -ENOMEM;
	size_t at = 0;
	for (struct part p = {0}; next_part(&ec, &p);) {
		t[n++] = (struct draft_tensor){p.name, p.rows, p.cols, copy + at};
		at += (size_t)p.rows * (size_t)p.cols;
	}
	for (size_t i = 0; i < at; i++)
		copy[i] = (float)w[i];
	int r = draft_save(dir, c, d2t, t, n, true, e);
	free(copy);
	return r;
}

int publish_write(const char *store, const char *name, const struct draft_config *c, const int64_t *d2t, const real *w,
		  const struct frozen *fz, json_t *meta, char ret_sha[static 65], struct errtext *e)
{
	char dir[PATH_MAX];
	int r = publish_path(store, name, dir, sizeof dir);
	return r ? r : publish_write_folder(dir, c, d2t, w, fz, meta, ret_sha, e);
}

int publish_write_folder(const char *dir, const struct draft_config *c, const int64_t *d2t, const real *w, const struct frozen *fz, json_t *meta,
			 char ret_sha[static 65], struct errtext *e)
{
	char path[PATH_MAX + 16], sha[65], now[32];
	struct draft_files *f = NULL;
	int r = fs_mkdirs(dir);
	if (r)
		return errtext_set(e, r, "store: %.150s: %s", dir, strerror(-r));
	if (!r)
		r = save_weights(dir, c, d2t, w, e);
	fs_crash_point("publish-weights");
	if (!r)
		r = draft_open(dir, fz->n_layer, &f, e);
	if (!r)
		r = draft_weights_sha(f, sha);
	draft_close(f);
	if (r)
		return r;
	clock_iso8601(clock_wall_ms(), now);
	json_t *j = json_deep_copy(meta);
	char *text = NULL;
	if (!j || json_object_set_new(j, "schema", json_integer(1)) || json_object_set_new(j, "target_fp", json_string(fz->target_fp)) ||
	    json_object_set_new(j, "weights_sha", json_string(sha)) || json_object_set_new(j, "created", json_string(now)) ||
	    json_object_set_new(j, "target_layers", json_integer(fz->n_layer)) ||
	    json_object_set_new(j, "program_commit", json_string(REDRAFT_COMMIT)) || !(text = json_dumps(j, JSON_INDENT(2))))
		r = -ENOMEM;
	(void)snprintf(path, sizeof path, "%s/submit.json", dir);
	if (!r)
		r = fs_write_atomic(path, text, strlen(text));
	fs_crash_point("publish-submit");
	free(text);
	json_decref(j);
	if (r)
		return errtext_set(e, r, "store: %.150s: %s", path, strerror(-r));
	memcpy(ret_sha, sha, sizeof sha);
	return 0;
}
