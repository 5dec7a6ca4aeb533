/* Fingerprints: one hash over many tensors, whatever order they come in.
 *
 * Each tensor contributes name, NUL, dtype, NUL, the number of dimensions
 * (u32), the dimensions (u64 each), the number of data bytes (u64) and the data;
 * numbers little-endian. Names ascend bytewise. Two producers that hold the same
 * weights in different layouts so arrive at one hash.
 */
#include "schemas/draft_config.h"

#include <stdlib.h>
#include <string.h>
#include "daemon/base/sha.h"

enum { FP_MAX = 100000 };

struct fp_entry {
	char *name, *dtype;
	int n_dims;
	uint64_t shape[8];
	const void *data;
	size_t bytes;
};

struct fp {
	struct fp_entry *v;
	int n, cap;
};

struct fp *fp_new(void)
{
	return calloc(1, sizeof(struct fp));
}

struct fp *fp_free(struct fp *f)
{
	if (f) {
		for (int i = 0; i < f->n; i++) {
			free(f->v[i].name);
			free(f->v[i].dtype);
		}
		free(f->v);
		free(f);
	}
	return NULL;
}

int fp_add(struct fp *f, const char *name, const char *dtype, const uint64_t *shape, int n_dims, const void *data, size_t bytes)
{
	if (n_dims < 0 || n_dims > 8 || f->n >= FP_MAX)
		return -EINVAL;
	if (f->n == f->cap) {
		int cap = f->cap ? 2 * f->cap : 64;
		struct fp_entry *v = realloc(f->v, (size_t)cap * sizeof *v);
		if (!v)
			return -ENOMEM;
		f->v = v;
		f->cap = cap;
	}
	struct fp_entry x = {.name = strdup(name), .dtype = strdup(dtype), .n_dims = n_dims, .data = data, .bytes = bytes};
	if (!x.name || !x.dtype) {
		free(x.name);
		free(x.dtype);
		return -ENOMEM;
	}
	for (int i = 0; i < n_dims; i++)
		x.shape[i] = shape[i];
	f->v[f->n++] = x;
	return 0;
}

int fp_add_bf16(struct fp *f, const char *name, int rows, int cols, const uint16_t *bf16)
{
	uint64_t shape[2] = {(uint64_t)rows, (uint64_t)cols};
	int vector = rows == 1;

	return fp_add(f, name, "BF16", shape + vector, 2 - vector, bf16, (size_t)rows * (size_t)cols * 2);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct fp_entry *)a)->name, ((const struct fp_entry *)b)->name);
}

static void add_number(struct sha *s, uint64_t v, int bytes)
{
	uint8_t raw[8];

	for (int i = 0; i < bytes; i++)
		raw[i] = (uint8_t)(v >> (8 * i));
	sha_update(s, raw, (size_t)bytes);
}

int fp_final_hex(struct fp *f, char ret_hex[static 65])
{
	if (f->n)
		qsort(f->v, (size_t)f->n, sizeof *f->v, by_name);
	for (int i = 1; i < f->n; i++) {
		if (strcmp(f->v[i].name, f->v[i - 1].name) == 0)
			return -EINVAL; /* the same tensor twice */
	}
	struct sha *s = sha_new();
	if (!s)
		return -ENOMEM;
	for (int i = 0; i < f->n; i++) {
		const struct fp_entry *x = &f->v[i];
		sha_update(s, x->name, strlen(x->name) + 1);
		sha_update(s, x->dtype, strlen(x->dtype) + 1);
		add_number(s, (uint64_t)x->n_dims, 4);
		for (int d = 0; d < x->n_dims; d++)
			add_number(s, x->shape[d], 8);
		add_number(s, x->bytes, 8);
		if (x->bytes)
			sha_update(s, x->data, x->bytes);
	}
	sha_final_hex(s, ret_hex);
	sha_free(s);
	return 0;
}
