/* Comparing two version folders (diff.h). Nested objects are compared by path ("training.loss"), so that a difference is one
 * line; arrays are values. Weights are summed in double, in the order of the files, so the figure is the same every time.
 */
#include "daemon/diff.h"
#include <limits.h>
#include <math.h>
#include <string.h>
#include "daemon/base/fs.h"
#include "daemon/store.h"
#include "schemas/safetensors.h"

enum { DIFF_DEPTH = 8, DIFF_PATH = 160 };

static const char *const diff_boring[] = {"number", "version", "created", "model_sha", "config_sha", "schema", NULL};

static bool diff_is_boring(const char *path)
{
	for (int i = 0; diff_boring[i]; i++)
		if (!strcmp(path, diff_boring[i]))
			return true;
	return false;
}

static json_t *diff_value(json_t *v)
{
	return v ? json_incref(v) : json_null();
}

static void diff_objects(const char *at, json_t *a, json_t *b, int depth, json_t *out);

static void diff_pair(const char *at, const char *key, json_t *a, json_t *b, int depth, json_t *out)
{
	char path[DIFF_PATH];

	snprintf(path, sizeof path, "%s%s%s", at, at[0] ? "." : "", key);
	if ((a && b && json_equal(a, b)) || diff_is_boring(path))
		return;
	if ((!a || json_is_object(a)) && (!b || json_is_object(b)) && depth < DIFF_DEPTH)
		diff_objects(path, a, b, depth + 1, out);
	else
		(void)json_object_set_new(out, path, json_pack("[o, o]", diff_value(a), diff_value(b)));
}

static void diff_objects(const char *at, json_t *a, json_t *b, int depth, json_t *out)
{
	const char *key;
	json_t *v;

	json_object_foreach(a, key, v)
		diff_pair(at, key, v, json_object_get(b, key), depth, out);
	json_object_foreach(b, key, v)
		if (!json_object_get(a, key))
			diff_pair(at, key, NULL, v, depth, out);
}

/* ---- weights ---- */

static double diff_float(const struct st_tensor *t, size_t i)
{
	uint32_t bits;
	uint16_t half;
	float f;

	if (t->dtype == ST_F32) {
		memcpy(&f, t->data + i * 4, 4);
		return (double)f;
	}
	memcpy(&half, t->data + i * 2, 2);
	bits = (uint32_t)half << 16; /* bf16 */
	memcpy(&f, &bits, 4);
	return (double)f;
}

static bool diff_comparable(const struct st_tensor *a, const struct st_tensor *b)
{
	return b && a->dtype == b->dtype && (a->dtype == ST_F32 || a->dtype == ST_BF16) && a->bytes == b->bytes && a->n_dims == b->n_dims &&
	       !memcmp(a->shape, b->shape, (size_t)a->n_dims * sizeof *a->shape);
}

static json_t *diff_tensors(const struct st_file *a, const struct st_file *b)
{
	json_t *list = json_array(), *other = json_array();
	double far = 0, length = 0;
	bool same = st_count(a) == st_count(b);

	for (int i = 0; i < st_count(a); i++) {
		const struct st_tensor *x = st_at(a, i), *y = st_find(b, x->name);
		double d = 0, l = 0;

		same = same && y && x->bytes == y->bytes && !memcmp(x->data, y->data, x->bytes);
		if (!diff_comparable(x, y)) {
			if (!y || x->bytes != y->bytes || memcmp(x->data, y->data, x->bytes) != 0)
				(void)json_array_append_new(other, json_string(x->name));
			continue;
		}
		for (size_t k = 0, n = x->bytes / st_dtype_size(x->dtype); k < n; k++) {
			double u = diff_float(x, k), v = diff_float(y, k);

			d += (u - v) * (u - v);
			l += u * u;
		}
		far += d;
		length += l;
		(void)json_array_append_new(list, json_pack("{s:s, s:f}", "name", x->name, "relative", l > 0 && isfinite(d / l) ? sqrt(d / l) : 0.0));
	}
	return json_pack("{s:b, s:f, s:f, s:o, s:o}", "same", (int)same, "distance", isfinite(far) ? sqrt(far) : 0.0, "relative",
			 length > 0 && isfinite(far / length) ? sqrt(far / length) : 0.0, "tensors", list, "not_compared", other);
}

struct diff_side {
	char dir[PATH_MAX];
	json_t *manifest, *config, *verdict; /* owned */
	struct fs_map map;
	struct st_file *weights; /* owned */
};

static int diff_open(const char *store, uint32_t n, struct diff_side *s, struct errtext *e)
{
	char path[PATH_MAX + 32];
	int r = store_version_dir(store, n, s->dir, sizeof s->dir);

	if (!r) {
		s->manifest = store_json_in(s->dir, "manifest.json");
		s->config = store_json_in(s->dir, "config.json");
		s->verdict = store_json_in(s->dir, "verdict.json");
		r = s->manifest ? 0 : -ENOENT;
	}
	if (r < 0)
		return errtext_set(e, r, "version %u has no manifest that reads; redraftctl versions lists what there is", n);
	snprintf(path, sizeof path, "%s/model.safetensors", s->dir);
	if (fs_map(path, &s->map) == 0 && st_parse(s->map.data, s->map.len, &s->weights, e) < 0)
		s->weights = NULL; /* then there is no distance */
	return 0;
}

static void diff_close(struct diff_side *s)
{
	json_decref(s->manifest);
	json_decref(s->config);
	json_decref(s->verdict);
	st_free(s->weights);
	fs_unmap(&s->map);
}

static json_t *diff_of(json_t *a, json_t *b)
{
	json_t *out = json_object();

	diff_objects("", a, b, 0, out);
	return out;
}

int diff_versions(const char *store, uint32_t a, uint32_t b, json_t **ret, struct errtext *e)
{
	struct diff_side x = {.manifest = NULL}, y = {.manifest = NULL};
	json_t *j = NULL;
	int r = diff_open(store, a, &x, e);

	if (!r)
		r = diff_open(store, b, &y, e);
	if (!r) {
		j = json_pack("{s:I, s:I, s:o, s:o, s:o, s:o}", "a", (json_int_t)a, "b", (json_int_t)b, "manifest", diff_of(x.manifest, y.manifest),
			      "config", diff_of(x.config, y.config), "verdict", diff_of(x.verdict, y.verdict), "weights",
			      x.weights && y.weights ? diff_tensors(x.weights, y.weights) : json_null());
		r = j ? 0 : -ENOMEM;
	}
	diff_close(&x);
	diff_close(&y);
	if (!r)
		*ret = j;
	return r;
}
