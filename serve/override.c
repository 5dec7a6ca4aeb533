/* Two places, the same name: the store first, the run folder when that fails. */
#include "serve/override.h"
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/base/fs.h"

static const char NAME[] = "serve-override.json";

static int path_in(const char *dir, char ret[static PATH_MAX])
{
	int n = snprintf(ret, PATH_MAX, "%s/%s", dir, NAME);

	return n < 0 || n >= PATH_MAX ? -ENAMETOOLONG : 0;
}

json_t *override_left(const uint32_t *left, int n)
{
	json_t *a = json_array();

	for (int i = 0; i < n; i++)
		(void)json_array_append_new(a, json_integer(left[i]));
	return a;
}

int override_write(const char *store, const char *run_dir, const struct override *o)
{
	json_t *j = json_pack("{s:i,s:I,s:I,s:I,s:I,s:o}", "schema", 1, "generation", (json_int_t)o->generation, "store_generation",
			      (json_int_t)o->store_generation, "live", (json_int_t)o->live, "previous", (json_int_t)o->previous, "left",
			      override_left(o->left, o->n_left));
	char *text = j ? json_dumps(j, JSON_INDENT(1)) : NULL;
	char path[PATH_MAX];
	int r = text ? path_in(store, path) : -ENOMEM;

	json_decref(j);
	if (r == 0)
		r = fs_write_atomic(path, text, strlen(text));
	if (text && r < 0 && path_in(run_dir, path) == 0)
		r = fs_write_atomic(path, text, strlen(text));
	free(text);
	return r;
}

static int read_one(const char *dir, struct override *ret)
{
	char path[PATH_MAX], *text;
	int r = path_in(dir, path);
	json_int_t generation, store_generation, live, previous;
	struct override o;
	json_t *j, *v;
	size_t i;

	if (r == 0)
		r = fs_read_text(path, 4096, &text);
	if (r < 0)
		return r;
	j = json_loads(text, 0, NULL);
	free(text);
	r = json_unpack(j, "{s:I,s:I,s:I,s:I}", "generation", &generation, "store_generation", &store_generation, "live", &live, "previous",
			&previous);
	o = (struct override){.n_left = 0};
	json_array_foreach(json_object_get(j, "left"), i, v) /* of an older server: none */
		if (o.n_left < OVERRIDE_LEFT && json_integer_value(v) > 0 && json_integer_value(v) < UINT32_MAX)
			o.left[o.n_left++] = (uint32_t)json_integer_value(v);
	json_decref(j);
	if (r < 0 || generation < 0 || store_generation < 0 || live < 0 || live > UINT32_MAX || previous < 0 || previous > UINT32_MAX)
		return -EINVAL;
	o.generation = (uint64_t)generation;
	o.store_generation = (uint64_t)store_generation;
	o.live = (uint32_t)live;
	o.previous = (uint32_t)previous;
	*ret = o;
	return 0;
}

int override_read(const char *store, const char *run_dir, uint64_t store_generation, struct override *ret)
{
	struct override a, b;
	bool have_a = read_one(store, &a) == 0, have_b = read_one(run_dir, &b) == 0;

	if (have_b && (!have_a || b.generation > a.generation))
		a = b;
	if ((!have_a && !have_b) || a.store_generation < store_generation)
		return -ENOENT;
	*ret = a;
	return 0;
}

void override_remove(const char *store, const char *run_dir)
{
	char path[PATH_MAX];

	if (path_in(run_dir, path) == 0)
		(void)unlink(path);
	if (path_in(store, path) == 0 && unlink(path) == 0 && fs_sync_dir(store) < 0)
		return; /* should it come back after a crash, its generation tells that it is old */
}
