/* safetensors, read and written.
 *
 * Reading is in three steps: bound the header, let jansson build the JSON tree
 * (duplicate keys refused), then check every entry: known dtype, shape product
 * without overflow, size equal to its offsets, and, after sorting by offset,
 * no hole and no overlap up to the last byte. Nothing of the data is touched,
 * so that opening a mapped checkpoint costs no page faults.
 */
#include "schemas/safetensors.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_MAX = 1 << 20, NAME_MAX_BYTES = 512 };

static const struct {
	const char *name;
	size_t size;
} dtypes[ST_N_DTYPES] = {
	[ST_F64] = {"F64", 8},         [ST_F32] = {"F32", 4}, [ST_F16] = {"F16", 2}, [ST_BF16] = {"BF16", 2}, [ST_F8_E4M3] = {"F8_E4M3", 1},
	[ST_F8_E5M2] = {"F8_E5M2", 1}, [ST_I64] = {"I64", 8}, [ST_I32] = {"I32", 4}, [ST_I16] = {"I16", 2},   [ST_I8] = {"I8", 1},
	[ST_U64] = {"U64", 8},         [ST_U32] = {"U32", 4}, [ST_U16] = {"U16", 2}, [ST_U8] = {"U8", 1},     [ST_BOOL] = {"BOOL", 1},
};

struct st_file {
	json_t *root; /* owns every string */
	int n;
	struct st_tensor *t; /* by offset */
	json_t *meta; /* borrowed from root, or NULL */
};

size_t st_dtype_size(enum st_dtype t)
{
	return t < ST_N_DTYPES ? dtypes[t].size : 0;
}

const char *st_dtype_name(enum st_dtype t)
{
	return t < ST_N_DTYPES ? dtypes[t].name : "?";
}

static int dtype_parse(const char *name, enum st_dtype *ret)
{
	for (int i = 0; i < ST_N_DTYPES; i++) {
		if (strcmp(name, dtypes[i].name) == 0) {
			*ret = (enum st_dtype)i;
			return 0;
		}
	}
	return -EINVAL;
}

static bool nonnegative(const json_t *v, uint64_t *ret)
{
	if (!json_is_integer(v) || json_integer_value(v) < 0)
		return false;
	*ret = (uint64_t)json_integer_value(v);
	return true;
}

static int parse_shape(const json_t *shape, struct st_tensor *t, uint64_t *ret_count, struct errtext *e)
{
	uint64_t count = 1;

	if (!json_is_array(shape) || json_array_size(shape) > ST_MAX_DIMS)
		return errtext_set(e, -EINVAL, "tensor %.64s: shape is not a list of at most %d numbers", t->name, ST_MAX_DIMS);
	t->n_dims = (int)json_array_size(shape);
	for (int i = 0; i < t->n_dims; i++) {
		if (!nonnegative(json_array_get(shape, (size_t)i), &t->shape[i]) || __builtin_mul_overflow(count, t->shape[i], &count))
			return errtext_set(e, -EINVAL, "tensor %.64s: bad shape", t->name);
	}
	*ret_count = count;
	return 0;
}

/* One header entry. data, n_data: the whole data part. */
static int parse_entry(const char *name, const json_t *v, const uint8_t *data, size_t n_data, struct st_tensor *t, struct errtext *e)
{
	const json_t *dtype = json_object_get(v, "dtype"), *off = json_object_get(v, "data_offsets");
	uint64_t count = 0, bytes, begin, end;

	t->name = name;
	if (strlen(name) > NAME_MAX_BYTES)
		return errtext_set(e, -EINVAL, "tensor name longer than %d bytes", NAME_MAX_BYTES);
	if (!json_is_object(v) || !json_is_string(dtype))
		return errtext_set(e, -EINVAL, "tensor %.64s: no dtype", name);
	if (dtype_parse(json_string_value(dtype), &t->dtype) < 0)
		return errtext_set(e, -EINVAL, "tensor %.64s: unknown dtype %.16s", name, json_string_value(dtype));
	int r = parse_shape(json_object_get(v, "shape"), t, &count, e);
	if (r < 0)
		return r;
	if (!json_is_array(off) || json_array_size(off) != 2 || !nonnegative(json_array_get(off, 0), &begin) ||
	    !nonnegative(json_array_get(off, 1), &end) || begin > end || end > n_data)
		return errtext_set(e, -EINVAL, "tensor %.64s: bad data_offsets", name);
	if (__builtin_mul_overflow(count, (uint64_t)dtypes[t->dtype].size, &bytes) || bytes != end - begin)
		return errtext_set(e, -EINVAL, "tensor %.64s: shape and data_offsets disagree", name);
	t->data = data + begin;
	t->bytes = (size_t)bytes;
	return 0;
}

static int by_offset(const void *pa, const void *pb)
{
	const struct st_tensor *a = pa, *b = pb;

	if (a->data != b->data)
		return a->data < b->data ? -1 : 1;
	return (a->bytes > b->bytes) - (a->bytes < b->bytes); /* empty ones first */
}

static int check_meta(const json_t *meta, struct errtext *e)
{
	const char *key;
	json_t *v;

	if (!json_is_object(meta) || json_object_size(meta) > ST_MAX_META)
		return errtext_set(e, -EINVAL, "__metadata__ is not an object of at most %d entries", ST_MAX_META);
	json_object_foreach((json_t *)meta, key, v)
	{
		if (!json_is_string(v))
			return errtext_set(e, -EINVAL, "__metadata__ value %.64s is not a string", key);
	}
	return 0;
}

static int index_tensors(struct st_file *f, const uint8_t *data, size_t n_data, struct errtext *e)
{
	size_t n = json_object_size(f->root);
	const char *key;
	json_t *v;
	int r;

	if (n > ST_MAX_TENSORS + 1)
		return errtext_set(e, -EINVAL, "more than %d tensors", ST_MAX_TENSORS);
	f->t = calloc(n + 1, sizeof *f->t);
	if (!f->t)
		return errtext_set(e, -ENOMEM, "out of memory");
	json_object_foreach(f->root, key, v)
	{
		if (strcmp(key, "__metadata__") == 0) {
			f->meta = v;
			r = check_meta(v, e);
		} else {
			r = parse_entry(key, v, data, n_data, &f->t[f->n++], e);
		}
		if (r < 0)
			return r;
	}
	qsort(f->t, (size_t)f->n, sizeof *f->t, by_offset);
	const uint8_t *at = data;
	for (int i = 0; i < f->n; i++) {
		if (f->t[i].data != at)
			return errtext_set(e, -EINVAL, "tensor %.64s: hole or overlap before its data", f->t[i].name);
		at += f->t[i].bytes;
	}
	if (at != data + n_data)
		return errtext_set(e, -EINVAL, "%zu bytes after the last tensor", (size_t)(data + n_data - at));
	return 0;
}

int st_parse(const void *blob, size_t len, struct st_file **ret, struct errtext *e)
{
	const uint8_t *p = blob;
	uint64_t n_header = 0;
	json_error_t je;

	if (len < 8)
		return errtext_set(e, -EINVAL, "not safetensors: %zu bytes are too short", len);
	for (int i = 7; i >= 0; i--)
		n_header = n_header << 8 | p[i];
	if (n_header < 2 || n_header > HEADER_MAX || n_header > len - 8)
		return errtext_set(e, -EINVAL, "not safetensors: header length %llu", (unsigned long long)n_header);
	if (p[8] != '{')
		return errtext_set(e, -EINVAL, "not safetensors: header does not start with {");

	struct st_file *f = calloc(1, sizeof *f);
	if (!f)
		return errtext_set(e, -ENOMEM, "out of memory");
	f->root = json_loadb((const char *)p + 8, (size_t)n_header, JSON_REJECT_DUPLICATES, &je);
	int r = -EINVAL;
	if (!f->root)
		(void)errtext_set(e, r, "safetensors header: %.120s", je.text);
	else
		r = index_tensors(f, p + 8 + n_header, len - 8 - (size_t)n_header, e);
	if (r < 0) {
		st_free(f);
		return r;
	}
	*ret = f;
	return 0;
}

struct st_file *st_free(struct st_file *f)
{
	if (f) {
		json_decref(f->root);
		free(f->t);
		free(f);
	}
	return NULL;
}

int st_count(const struct st_file *f)
{
	return f->n;
}

const struct st_tensor *st_at(const struct st_file *f, int i)
{
	return i >= 0 && i < f->n ? &f->t[i] : NULL;
}

const struct st_tensor *st_find(const struct st_file *f, const char *name)
{
	for (int i = 0; i < f->n; i++) {
		if (strcmp(f->t[i].name, name) == 0)
			return &f->t[i];
	}
	return NULL;
}

const char *st_meta(const struct st_file *f, const char *key)
{
	return json_string_value(json_object_get(f->meta, key));
}

/* ---- writing ---- */

static uint64_t out_bytes(const struct st_out *t)
{
	uint64_t n = dtypes[t->dtype].size;

	for (int i = 0; i < t->n_dims; i++) {
		if (__builtin_mul_overflow(n, t->shape[i], &n))
			return UINT64_MAX;
	}
	return n;
}

static json_t *out_entry(const struct st_out *t, uint64_t begin, uint64_t end)
{
	json_t *shape = json_array();

	for (int i = 0; i < t->n_dims; i++) {
		if (json_array_append_new(shape, json_integer((json_int_t)t->shape[i])) < 0) {
			json_decref(shape);
			return NULL;
		}
	}
	return json_pack("{s:s, s:o, s:[I,I]}", "dtype", dtypes[t->dtype].name, "shape", shape, "data_offsets", (json_int_t)begin,
			 (json_int_t)end);
}

/* order: indices by descending element size, stable; there are only 4 sizes. */
static void layout(const struct st_out *t, int n, int *order)
{
	int at = 0;

	for (size_t size = 8; size > 0; size /= 2) {
		for (int i = 0; i < n; i++) {
			if (dtypes[t[i].dtype].size == size)
				order[at++] = i;
		}
	}
}

static int build_header(json_t *root, const struct st_out *t, int n, const int *order, const struct st_meta_kv *meta, int n_meta,
			uint64_t *ret_total)
{
	uint64_t at = 0;

	if (n_meta > 0) {
		json_t *m = json_object();
		if (json_object_set_new(root, "__metadata__", m) < 0)
			return -ENOMEM;
		for (int i = 0; i < n_meta; i++) {
			if (json_object_set_new(m, meta[i].key, json_string(meta[i].value)) < 0)
				return -EINVAL; /* not UTF-8 */
		}
	}
	for (int i = 0; i < n; i++) {
		const struct st_out *o = &t[order[i]];
		uint64_t bytes = out_bytes(o);
		if (bytes > SIZE_MAX / 2 || at > SIZE_MAX / 2 - bytes || json_object_get(root, o->name))
			return -EINVAL;
		if (json_object_set_new(root, o->name, out_entry(o, at, at + bytes)) < 0)
			return -EINVAL;
		at += bytes;
	}
	*ret_total = at;
	return 0;
}

/* *out has room for `room` bytes of data behind what is appended. */
static int emit_head(struct buf *out, const char *text, size_t n_text, int align, size_t room)
{
	size_t start = (8 + n_text + (size_t)align - 1) / (size_t)align * (size_t)align, n_header = start - 8;
	uint8_t prefix[8];
	int r;

	if (n_header > HEADER_MAX)
		return -E2BIG;
	r = buf_reserve(out, start + room);
	if (r < 0)
		return r;
	for (int i = 0; i < 8; i++)
		prefix[i] = (uint8_t)((uint64_t)n_header >> (8 * i));
	r = buf_append(out, prefix, 8);
	if (r == 0)
		r = buf_append(out, text, n_text);
	for (size_t i = n_text; r == 0 && i < n_header; i++)
		r = buf_append(out, " ", 1);
	return r;
}

static int write_head(struct buf *out, const struct st_out *t, int n, const struct st_meta_kv *meta, int n_meta, int align, bool room_for_data, int *ret_order)
{
	uint64_t total = 0;

	if (n < 0 || n > ST_MAX_TENSORS || n_meta < 0 || n_meta > ST_MAX_META || align < 1)
		return -EINVAL;
	for (int i = 0; i < n; i++) {
		if (t[i].dtype >= ST_N_DTYPES || t[i].n_dims < 0 || t[i].n_dims > ST_MAX_DIMS || strcmp(t[i].name, "__metadata__") == 0)
			return -EINVAL;
	}
	json_t *root = json_object();
	char *text = NULL;
	int r = root ? 0 : -ENOMEM;
	if (r == 0) {
		layout(t, n, ret_order);
		r = build_header(root, t, n, ret_order, meta, n_meta, &total);
	}
	if (r == 0) {
		text = json_dumps(root, JSON_COMPACT);
		r = text ? emit_head(out, text, strlen(text), align, room_for_data ? (size_t)total : 0) : -ENOMEM;
	}
	free(text);
	json_decref(root);
	return r;
}

static int *new_order(int n)
{
	return calloc(n > 0 && n <= ST_MAX_TENSORS ? (size_t)n : 1, sizeof(int));
}

int st_lay_out(struct buf *head, const struct st_out *t, int n, const struct st_meta_kv *meta, int n_meta, int align, struct fs_part *ret)
{
	int *order = new_order(n);
	int r = order ? write_head(head, t, n, meta, n_meta, align, false, order) : -ENOMEM;

	for (int i = 0; i < n && r == 0; i++)
		ret[i + 1] = (struct fs_part){t[order[i]].data, (size_t)out_bytes(&t[order[i]])};
	if (r == 0)
		ret[0] = (struct fs_part){head->data, head->len};
	free(order);
	return r;
}

int st_write(struct buf *out, const struct st_out *t, int n, const struct st_meta_kv *meta, int n_meta, int align)
{
	size_t len0 = out->len;
	int *order = new_order(n);
	int r = order ? write_head(out, t, n, meta, n_meta, align, true, order) : -ENOMEM;

	for (int i = 0; i < n && r == 0; i++) {
		const struct st_out *o = &t[order[i]];
		uint64_t bytes = out_bytes(o);
		if (bytes)
			r = buf_append(out, o->data, (size_t)bytes);
	}
	if (r < 0)
		out->len = len0; /* nothing half-written */
	free(order);
	return r;
}
