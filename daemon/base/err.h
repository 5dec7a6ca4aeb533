/* Errors.
 *
 * Functions return 0, a negative errno (fatal to the call, passed up unchanged,
 * never matched on) or a small positive MODULE_E_* documented at the function
 * and handled by its caller. Outputs named ret_x are untouched on failure.
 * Where a person wrote the input (a flag, a file, a request), the last argument
 * is a struct errtext that receives one clear sentence: what, where, what to do.
 * Threads: pure functions.
 */
#pragma once
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#define MUSTCHECK __attribute__((warn_unused_result))
#define PRINTF(a, b) __attribute__((format(printf, a, b)))

struct errtext {
	char text[256]; /* NUL-terminated; "" when nothing was said */
};

/* Write the sentence (truncated to fit) and return r, so that a failure reads
 * `return errtext_set(e, -EINVAL, "...")`. e may be NULL. */
static inline int PRINTF(3, 4) errtext_set(struct errtext *e, int r, const char *fmt, ...)
{
	if (e) {
		va_list ap;
		va_start(ap, fmt);
		(void)vsnprintf(e->text, sizeof e->text, fmt, ap);
		va_end(ap);
	}
	return r;
}

/* For what goes into JSON: a byte that is no printable ASCII, as of a character that was cut, becomes '?'. */
static inline void errtext_plain(char *s)
{
	for (; *s; s++)
		if (*s < ' ' || *s > '~')
			*s = '?';
}
