/* Files that are never half-written: a nameless file + fsync + a name beside it + rename + fsync of the folder. A writer that is killed
 * leaves none behind, but for the moment between that name and the rename (on a file system without O_TMPFILE: at any moment, NAME.tmp-*).
 *
 * fs_map gives a read-only private mapping; it stays valid after the file is
 * renamed over or unlinked, because we never write in place.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "daemon/base/err.h"

struct fs_map {
	const uint8_t *data; /* NULL when len is 0 */
	size_t len;
};

int MUSTCHECK fs_map(const char *path, struct fs_map *ret);
void fs_unmap(struct fs_map *m); /* safe on a zeroed struct and twice */
void fs_map_rest(const struct fs_map *m); /* its pages count for us no longer; reading brings them back, from the file */
int MUSTCHECK fs_read_text(const char *path, size_t max_bytes, char **ret); /* malloc'd, NUL-terminated; -EILSEQ: it holds a NUL; -E2BIG */
const char *fs_text_why(int r);                                            /* what it failed with, in words */
int fs_text_fault(int r); /* the same, but -EINVAL where what is in the file is wrong and not this machine */
int MUSTCHECK fs_write_atomic(const char *path, const void *p, size_t n);  /* mode 0640 */
/* The same of parts laid end to end. It goes to the disk as it is written, some MiB at a time: whoever else syncs something there meanwhile
 * waits for one such piece, not for the whole file. */
struct fs_part { const void *data; size_t len; };
int MUSTCHECK fs_write_parts(const char *path, const struct fs_part *v, int n);
/* The bytes of a file, into a new one with mode 0640 and on the disk; one that is there is replaced. How many, or -errno with none of it there. */
int64_t MUSTCHECK fs_copy(const char *from, const char *to);
int MUSTCHECK fs_mkdirs(const char *path);      /* like mkdir -p, mode 0750 */
int MUSTCHECK fs_sync_dir(const char *path);    /* fsync of a folder */
int MUSTCHECK fs_remove_tree(const char *path); /* rm -r below one folder; missing = 0 */
/* Named crash points for tests: with REDRAFT_CRASH_AT=name in the environment
 * the process ends here at once (status 137). One getenv at first use. Any thread. */
void fs_crash_point(const char *name);
