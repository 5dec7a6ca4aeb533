/* The replay pool on disk: accepted records, raw, in append-only segments.
 *
 * A record is kept as it came (a safetensors blob) behind a small checksummed
 * header; everything that is trained is read back from here. Where a record
 * lies is a function of the records appended before it, so that a learner that
 * repeats its journal puts each at the same place, and finds it there already.
 * A segment leaves the pool by size, its file only when no checkpoint that is
 * kept needs it any more. Threads: one owner.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/buf.h"

struct pool_ref {
	uint32_t segment, offset, len; /* of the header; len = bytes of the blob */
};

struct pool;
struct pool_options {
	const char *dir;        /* state_dir/pool; made when missing */
	uint32_t segment_bytes; /* a segment takes no further record past this */
	uint64_t max_bytes;     /* the oldest segments go past this */
	_Atomic uint64_t *beats; /* grows while erasing reads through it, which may take minutes; may be NULL */
};
struct pool_where { uint32_t first, segment, offset; }; /* oldest segment, and where the next record goes */

int MUSTCHECK pool_open(const struct pool_options *o, struct pool **ret, struct errtext *e);
struct pool *pool_close(struct pool *p);
struct pool_where pool_where(const struct pool *p);
void pool_rewind(struct pool *p, struct pool_where w); /* continue from a checkpoint */
void pool_set_sizes(struct pool *p, uint32_t segment_bytes, uint64_t max_bytes);
uint64_t pool_bytes(const struct pool *p);

/* time_s: when the record was written, s since 1970; it stays with the entry. */
int MUSTCHECK pool_append(struct pool *p, int partition, int64_t offset, int64_t time_s, const void *blob, uint32_t len, struct pool_ref *ret);
/* The record that was appended here before a crash: 0 and the blob in *out when it is
 * (partition, offset) and whole; -ENOENT otherwise. Moves nothing. */
int MUSTCHECK pool_peek(struct pool *p, int partition, int64_t offset, struct buf *out, int64_t *ret_time_s);
int MUSTCHECK pool_read(struct pool *p, struct pool_ref ref, struct buf *out); /* -EIO: damaged */
int MUSTCHECK pool_sync(struct pool *p); /* what was appended is durable */
/* The same for any thread to do later: once both descriptors were synced (-1: none). They are the caller's to close, on failure too. */
int MUSTCHECK pool_sync_later(struct pool *p, int ret_fd[2]);

/* Every whole record of an existing folder in the order in which it was appended, from its oldest segment on, erased ones passed over; ends
 * at the first that is missing or damaged, and the pool stands behind the last. each's failure ends it and is returned. */
int MUSTCHECK pool_scan(struct pool *p, int (*each)(void *arg, int partition, int64_t offset, const void *blob, uint32_t len, struct pool_ref ref),
			void *arg);

/* The entry again at the end, under its partition and offset: for what must outlive its segment. -EIO: damaged. */
int MUSTCHECK pool_copy(struct pool *p, struct pool_ref ref, struct pool_ref *ret);

/* Retention. When the oldest entry there is was written (INT64_MAX: there is none); a time that is not known counts as 0. */
int MUSTCHECK pool_oldest(struct pool *p, int64_t *ret_time_s);
/* Records written before that are gone from disk when this returns: their bytes are freed, their places stay. For
 * what no checkpoint and no run needs any more. *ret_n: how many. */
int MUSTCHECK pool_erase_older(struct pool *p, int64_t time_s, uint64_t *ret_n);

/* The same for those whose blob match says yes to. *ret_bytes: of their blobs. Both cut off too what a crash left behind the last entry of a
 * segment: records in part overwritten, which nobody can reach. */
int MUSTCHECK pool_erase_if(struct pool *p, bool (*match)(void *arg, const void *blob, uint32_t len), void *arg, uint64_t *ret_n, uint64_t *ret_bytes);

/* Over the size: forget the oldest segment (never the one being written). true when
 * first moved: the caller copies what it keeps of it, and drops every run that refers to an older one. */
bool pool_shrink(struct pool *p);
void pool_delete_below(struct pool *p, uint32_t segment); /* unlink files older than that */
