/* GGUF v3: the container.
 *
 * One pass over a private mapping. A cursor knows how many bytes are left and
 * every read goes through it, so no length in the file can lead outside; counts are
 * held against what could possibly fit before anything is allocated. Keys and
 * tensor names are kept sorted, which finds duplicates and makes look-up cheap.
 */
#include "schemas/gguf_file.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ENTRIES = 65536, MAX_NAME = 255, MAX_KEY = 65535, MAX_DIMS = 4 };

static const size_t value_size[GV_N] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

struct cursor {
	const uint8_t *p;
	size_t left;
	bool short_read; /* sticks */
};

static const uint8_t *skip(struct cursor *c, uint64_t n)
{
	const uint8_t *p = c->p;

	if (n > c->left) {
		c->short_read = true;
		c->left = 0;
		return NULL;
	}
	c->p += n;
	c->left -= (size_t)n;
	return p;
}

static uint64_t load(const uint8_t *p, size_t n)
{
	uint64_t v = 0;

	for (size_t i = n; i-- > 0;)
		v = v << 8 | p[i];
	return v;
}

static uint64_t take(struct cursor *c, size_t n)
{
	const uint8_t *p = skip(c, n);

	return p ? load(p, n) : 0;
}

static struct gguf_name take_string(struct cursor *c)
{
	uint64_t len = take(c, 8);
	const uint8_t *p = skip(c, len);

	return (struct gguf_name){(const char *)p, p ? (size_t)len : 0};
}

static int compare(const void *pa, const void *pb)
{
	const struct gguf_name *a = pa, *b = pb;
	size_t n = a->len < b->len ? a->len : b->len;
	int r = n ? memcmp(a->p, b->p, n) : 0;

	return r ? r : (a->len > b->len) - (a->len < b->len);
}

static const void *find(const void *base, size_t n, size_t size, const char *name)
{
	struct gguf_name key = {name, strlen(name)};

	return n ? bsearch(&key, base, n, size, compare) : NULL;
}

/* ---- metadata ---- */

static int take_string_array(struct cursor *c, struct gguf_kv *kv)
{
	if (kv->n > c->left / 8) /* each has a length of 8 bytes */
		return -EINVAL;
	kv->at = malloc((size_t)kv->n * sizeof *kv->at + 1);
	if (!kv->at)
		return -ENOMEM;
	for (uint64_t i = 0; i < kv->n && !c->short_read; i++) {
		kv->at[i] = c->p;
		(void)take_string(c);
	}
	return c->short_read ? -EINVAL : 0;
}

static int take_kv(struct cursor *c, struct gguf_kv *kv, struct errtext *e)
{
	kv->key = take_string(c);
	kv->n = 1;
	uint64_t type = take(c, 4);
	if (type == GV_ARRAY) {
		kv->is_array = true;
		type = take(c, 4);
		kv->n = take(c, 8);
	}
	if (c->short_read || kv->key.len > MAX_KEY)
		return errtext_set(e, -EINVAL, "GGUF: metadata ends in the middle or has too long a key");
	if (type >= GV_N || type == GV_ARRAY)
		return errtext_set(e, -EINVAL, "GGUF: metadata %.*s has unknown type %llu", (int)(kv->key.len < 80 ? kv->key.len : 80),
				   kv->key.p, (unsigned long long)type);
	kv->type = (enum gguf_value)type;
	kv->data = c->p;
	int r = 0;
	uint64_t bytes = 0;
	if (type == GV_STRING && kv->is_array)
		r = take_string_array(c, kv);
	else if (type == GV_STRING)
		(void)take_string(c);
	else if (__builtin_mul_overflow(kv->n, (uint64_t)value_size[type], &bytes))
		r = -EINVAL;
	else
		(void)skip(c, bytes);
	if (r == 0 && c->short_read)
		r = -EINVAL;
	if (r < 0)
		return errtext_set(e, r, "GGUF: metadata %.*s runs past the end of the file", (int)(kv->key.len < 80 ? kv->key.len : 80),
				   kv->key.p);
	return 0;
}

static int take_metadata(struct gguf *g, struct cursor *c, uint64_t n, struct errtext *e)
{
	g->kv = calloc((size_t)n + 1, sizeof *g->kv);
	if (!g->kv)
		return errtext_set(e, -ENOMEM, "out of memory");
	for (; g->n_kv < n;) {
		int r = take_kv(c, &g->kv[g->n_kv++], e);
		if (r < 0)
			return r;
	}
	qsort(g->kv, g->n_kv, sizeof *g->kv, compare);
	for (size_t i = 1; i < g->n_kv; i++) {
		if (compare(&g->kv[i - 1], &g->kv[i]) == 0)
			return errtext_set(e, -EINVAL, "GGUF: metadata %.*s is there twice",
					   (int)(g->kv[i].key.len < 80 ? g->kv[i].key.len : 80), g->kv[i].key.p);
	}
	return 0;
}

/* ---- tensors ---- */

/* data holds the offset until the data part is known. */
static int take_tensor(struct cursor *c, struct gguf_tensor *t, uint64_t *ret_offset, struct errtext *e)
{
	t->name = take_string(c);
	uint64_t dims = take(c, 4), d[MAX_DIMS] = {1, 1, 1, 1};
	if (c->short_read || t->name.len == 0 || t->name.len > MAX_NAME || dims < 1 || dims > MAX_DIMS)
		return errtext_set(e, -EINVAL, "GGUF: the list of tensors is damaged");
	for (uint64_t i = 0; i < dims; i++)
		d[i] = take(c, 8);
	t->type = (uint32_t)take(c, 4);
	*ret_offset = take(c, 8);
	t->n_dims = (int)dims;
	t->cols = d[0];
	bool overflow = __builtin_mul_overflow(d[1], d[2], &t->rows);
	overflow |= __builtin_mul_overflow(t->rows, d[3], &t->rows);
	if (c->short_read || overflow || t->rows == 0 || t->cols == 0 || t->rows > INT_MAX || t->cols > INT_MAX)
		return errtext_set(e, -EINVAL, "GGUF tensor %.*s: bad dimensions", (int)t->name.len, t->name.p);
	if (!gguf_block_values(t->type))
		return errtext_set(e, -EINVAL, "GGUF tensor %.*s has type %s (%u); readable are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K",
				   (int)(t->name.len < 80 ? t->name.len : 80), t->name.p, gguf_type_name(t->type), t->type);
	if (t->cols % gguf_block_values(t->type))
		return errtext_set(e, -EINVAL, "GGUF tensor %.*s: rows of %llu values are not whole blocks", (int)t->name.len, t->name.p,
				   (unsigned long long)t->cols);
	return 0;
}

static int place_tensor(struct gguf_tensor *t, uint64_t offset, uint64_t alignment, const uint8_t *data, size_t n_data, struct errtext *e)
{
	/* rows, cols < 2^31, blocks of at most 210 bytes */
	uint64_t bytes = t->rows * (t->cols / gguf_block_values(t->type)), per = gguf_block_bytes(t->type);

	if (offset % alignment || __builtin_mul_overflow(bytes, per, &bytes) || bytes > n_data || offset > n_data - bytes)
		return errtext_set(e, -EINVAL, "GGUF tensor %.*s runs past the end of the file", (int)t->name.len, t->name.p);
	t->data = data + offset;
	return 0;
}

static int take_tensors(struct gguf *g, struct cursor *c, uint64_t n, struct errtext *e)
{
	uint64_t alignment = 32, pad;
	int r = gguf_u64(g, "general.alignment", &alignment);

	if (r == -EINVAL || alignment == 0 || alignment > 65536 || (alignment & (alignment - 1)))
		return errtext_set(e, -EINVAL, "GGUF: general.alignment is not a power of two");
	g->t = calloc((size_t)n + 1, sizeof *g->t);
	uint64_t *offset = calloc((size_t)n + 1, sizeof *offset);
	r = g->t && offset ? 0 : errtext_set(e, -ENOMEM, "out of memory");
	for (; r == 0 && g->n_t < n; g->n_t++)
		r = take_tensor(c, &g->t[g->n_t], &offset[g->n_t], e);
	if (r == 0) {
		pad = (uint64_t)(c->p - g->map.data) % alignment;
		(void)skip(c, pad ? alignment - pad : 0);
		if (c->short_read && n)
			r = errtext_set(e, -EINVAL, "GGUF: no data after the list of tensors");
	}
	for (size_t i = 0; r == 0 && i < n; i++)
		r = place_tensor(&g->t[i], offset[i], alignment, c->p, c->left, e);
	free(offset);
	if (r < 0)
		return r;
	qsort(g->t, g->n_t, sizeof *g->t, compare);
	for (size_t i = 1; i < g->n_t; i++) {
		if (compare(&g->t[i - 1], &g->t[i]) == 0)
			return errtext_set(e, -EINVAL, "GGUF: tensor %.*s is there twice", (int)g->t[i].name.len, g->t[i].name.p);
	}
	return 0;
}

static int parse(struct gguf *g, struct errtext *e)
{
	struct cursor c = {g->map.data, g->map.len, false};
	const uint8_t *magic = skip(&c, 4);
	uint64_t version = take(&c, 4), n_t = take(&c, 8), n_kv = take(&c, 8);

	if (!magic || memcmp(magic, "GGUF", 4) != 0)
		return errtext_set(e, -EINVAL, "not a GGUF file");
	if (c.short_read || version != 3)
		return errtext_set(e, -EINVAL, "GGUF version %llu is not 3", (unsigned long long)version);
	if (n_t > MAX_ENTRIES || n_kv > MAX_ENTRIES || n_kv > c.left / 13 || n_t > c.left / 32)
		return errtext_set(e, -EINVAL, "GGUF: %llu tensors and %llu metadata entries do not fit into the file",
				   (unsigned long long)n_t, (unsigned long long)n_kv);
	int r = take_metadata(g, &c, n_kv, e);
	return r < 0 ? r : take_tensors(g, &c, n_t, e);
}

int gguf_open(const char *path, struct gguf **ret, struct errtext *e)
{
	struct gguf *g = calloc(1, sizeof *g);

	if (!g)
		return errtext_set(e, -ENOMEM, "out of memory");
	int r = fs_map(path, &g->map);
	if (r < 0)
		(void)errtext_set(e, r, "%.180s: %s", path, strerror(-r));
	else
		r = parse(g, e);
	if (r < 0) {
		gguf_free(g);
		return r;
	}
	*ret = g;
	return 0;
}

void gguf_rest(const struct gguf *g)
{
	fs_map_rest(&g->map);
}

struct gguf *gguf_free(struct gguf *g)
{
	if (g) {
		for (size_t i = 0; i < g->n_kv; i++)
			free(g->kv[i].at);
		free(g->kv);
		free(g->t);
		fs_unmap(&g->map);
		free(g);
	}
	return NULL;
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name)
{
	return find(g->t, g->n_t, sizeof *g->t, name);
}

/* ---- look-up ---- */

/* An integer of any kind, sign extended; -EINVAL for other types. */
static int as_integer(enum gguf_value type, const uint8_t *p, int64_t *ret)
{
	static const bool is_signed[GV_N] = {[GV_I8] = true, [GV_I16] = true, [GV_I32] = true, [GV_I64] = true};
	size_t n = value_size[type];

	if (type == GV_F32 || type == GV_F64 || type == GV_STRING || type == GV_ARRAY)
		return -EINVAL;
	uint64_t v = load(p, n);
	if (is_signed[type])
		v = (uint64_t)((int64_t)(v << (64 - 8 * n)) >> (64 - 8 * n));
	if (type == GV_U64 && v > INT64_MAX)
		return -EINVAL;
	*ret = (int64_t)v;
	return 0;
}

static const struct gguf_kv *find_kv(const struct gguf *g, const char *key)
{
	return find(g->kv, g->n_kv, sizeof *g->kv, key);
}

int gguf_u64(const struct gguf *g, const char *key, uint64_t *ret)
{
	const struct gguf_kv *kv = find_kv(g, key);
	int64_t v;

	if (!kv)
		return -ENOENT;
	if (kv->is_array || as_integer(kv->type, kv->data, &v) < 0 || v < 0)
		return -EINVAL;
	*ret = (uint64_t)v;
	return 0;
}

int gguf_f64(const struct gguf *g, const char *key, double *ret)
{
	const struct gguf_kv *kv = find_kv(g, key);
	float f;
	int64_t v;

	if (!kv)
		return -ENOENT;
	if (kv->is_array)
		return -EINVAL;
	if (kv->type == GV_F64) {
		memcpy(ret, kv->data, 8);
		return 0;
	}
	if (kv->type == GV_F32) {
		memcpy(&f, kv->data, 4);
		*ret = (double)f;
		return 0;
	}
	if (as_integer(kv->type, kv->data, &v) < 0)
		return -EINVAL;
	*ret = (double)v;
	return 0;
}

static void string_at(const uint8_t *p, const char **ret, size_t *ret_len)
{
	*ret = (const char *)p + 8;
	*ret_len = (size_t)load(p, 8);
}

int gguf_str(const struct gguf *g, const char *key, const char **ret, size_t *ret_len)
{
	const struct gguf_kv *kv = find_kv(g, key);

	if (!kv)
		return -ENOENT;
	if (kv->is_array || kv->type != GV_STRING)
		return -EINVAL;
	string_at(kv->data, ret, ret_len);
	return 0;
}

uint64_t gguf_array_len(const struct gguf *g, const char *key)
{
	const struct gguf_kv *kv = find_kv(g, key);

	return kv && kv->is_array ? kv->n : 0;
}

int gguf_array_str(const struct gguf *g, const char *key, uint64_t i, const char **ret, size_t *ret_len)
{
	const struct gguf_kv *kv = find_kv(g, key);

	if (!kv || !kv->is_array || i >= kv->n)
		return -ENOENT;
	if (kv->type != GV_STRING)
		return -EINVAL;
	string_at(kv->at[i], ret, ret_len);
	return 0;
}

int gguf_array_i64(const struct gguf *g, const char *key, uint64_t i, int64_t *ret)
{
	const struct gguf_kv *kv = find_kv(g, key);

	if (!kv || !kv->is_array || i >= kv->n)
		return -ENOENT;
	return as_integer(kv->type, kv->data + i * value_size[kv->type], ret);
}
