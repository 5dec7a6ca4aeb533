/* A growable byte buffer with a hard upper bound.
 *
 * Every buffer that a peer can make us grow has a max; going over it is -E2BIG
 * and leaves the contents as they were. Threads: one owner at a time.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "daemon/base/err.h"

struct buf {
	uint8_t *data; /* owned */
	size_t len, cap;
	size_t max; /* bytes; 0 = no bound */
};

#define BUF_INIT(max_bytes) ((struct buf){.max = (max_bytes)})

void buf_done(struct buf *b);  /* frees; safe on a zeroed struct and twice */
void buf_clear(struct buf *b); /* len = 0, keeps the memory */
int MUSTCHECK buf_reserve(struct buf *b, size_t extra);
int MUSTCHECK buf_append(struct buf *b, const void *p, size_t n);
int MUSTCHECK buf_puts(struct buf *b, const char *s);
int MUSTCHECK PRINTF(2, 3) buf_printf(struct buf *b, const char *fmt, ...);
void buf_consume(struct buf *b, size_t n); /* drop n bytes from the front, n <= len */
