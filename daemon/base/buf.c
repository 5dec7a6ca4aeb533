/* Growable bytes. Growth doubles, so that n appends cost O(n); the bound is
 * checked before anything is touched, which is what makes -E2BIG harmless.
 */
#include "daemon/base/buf.h"
#include <stdlib.h>
#include <string.h>

void buf_done(struct buf *b)
{
	free(b->data);
	b->data = NULL;
	b->len = b->cap = 0;
}

void buf_clear(struct buf *b)
{
	b->len = 0;
}

int buf_reserve(struct buf *b, size_t extra)
{
	size_t need, cap = b->cap ? b->cap : 256;
	uint8_t *p;

	if (__builtin_add_overflow(b->len, extra, &need))
		return -E2BIG;
	if (b->max && need > b->max)
		return -E2BIG;
	if (need <= b->cap)
		return 0;
	while (cap < need)
		if (__builtin_mul_overflow(cap, 2, &cap))
			return -E2BIG;
	if (b->max && cap > b->max)
		cap = b->max;
	p = realloc(b->data, cap);
	if (!p)
		return -ENOMEM;
	b->data = p;
	b->cap = cap;
	return 0;
}

int buf_append(struct buf *b, const void *p, size_t n)
{
	int r = buf_reserve(b, n);

	if (r < 0)
		return r;
	if (n)
		memcpy(b->data + b->len, p, n);
	b->len += n;
	return 0;
}

int buf_puts(struct buf *b, const char *s)
{
	return buf_append(b, s, strlen(s));
}

int buf_printf(struct buf *b, const char *fmt, ...)
{
	char small[256], *text = small, *big = NULL;
	va_list ap, again;
	int n, r;

	va_start(ap, fmt);
	va_copy(again, ap);
	n = vsnprintf(small, sizeof small, fmt, ap);
	va_end(ap);
	if (n >= (int)sizeof small) {
		/* Not printed straight into the buffer: vsnprintf's NUL would
		 * need a byte beyond max. */
		n = vasprintf(&big, fmt, again);
		text = big;
	}
	va_end(again);
	if (n < 0)
		return -ENOMEM;
	r = buf_append(b, text, (size_t)n);
	free(big);
	return r;
}

void buf_consume(struct buf *b, size_t n)
{
	if (n > b->len)
		n = b->len;
	b->len -= n;
	if (b->len && n)
		memmove(b->data, b->data + n, b->len);
}
