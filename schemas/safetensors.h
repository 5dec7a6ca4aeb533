/* safetensors: tensors at rest (checkpoints, frozen weights) and in motion (trace
 * records). u64 LE header length (<= 1 MiB here), JSON header, data without
 * holes or overlap, every length checked before use, no duplicate names.
 *
 * Data pointers may be unaligned when the blob is (Kafka payloads are): read them
 * with memcpy. Threads: a parsed file is read-only.
 */
#pragma once
#include <stdint.h>
#include "daemon/base/buf.h"
#include "daemon/base/fs.h"

enum st_dtype { ST_F64, ST_F32, ST_F16, ST_BF16, ST_F8_E4M3, ST_F8_E5M2, ST_I64, ST_I32, ST_I16, ST_I8, ST_U64, ST_U32, ST_U16, ST_U8, ST_BOOL, ST_N_DTYPES };
size_t st_dtype_size(enum st_dtype t);
const char *st_dtype_name(enum st_dtype t); /* "BF16" */

enum { ST_MAX_DIMS = 4, ST_MAX_TENSORS = 4096, ST_MAX_META = 256 };

struct st_tensor {
	const char *name; /* owned by the file */
	enum st_dtype dtype;
	int n_dims;
	uint64_t shape[ST_MAX_DIMS];
	const uint8_t *data; /* into the blob */
	size_t bytes;
};

struct st_file; /* holds the index only; the blob must outlive it */
int MUSTCHECK st_parse(const void *blob, size_t len, struct st_file **ret, struct errtext *e); /* -EINVAL with e */
struct st_file *st_free(struct st_file *f);
int st_count(const struct st_file *f);
const struct st_tensor *st_at(const struct st_file *f, int i);             /* in data order */
const struct st_tensor *st_find(const struct st_file *f, const char *name); /* or NULL */
const char *st_meta(const struct st_file *f, const char *key);             /* __metadata__ value or NULL */

/* Writer: tensors are laid out by descending element size, then in the order given;
 * data start padded with spaces to `align` (8 for checkpoints, 64 for records). */
struct st_out {
	const char *name;
	enum st_dtype dtype;
	int n_dims;
	uint64_t shape[ST_MAX_DIMS];
	const void *data;
};
struct st_meta_kv { const char *key, *value; };
int MUSTCHECK st_write(struct buf *out, const struct st_out *t, int n, const struct st_meta_kv *meta, int n_meta, int align);
/* The same for fs_write_parts, without a copy of the data: what stands before it goes to an empty head, which ret[0] points into. */
int MUSTCHECK st_lay_out(struct buf *head, const struct st_out *t, int n, const struct st_meta_kv *meta, int n_meta, int align, struct fs_part *ret /* [n+1] */);
