/* The text of HTTP/1.1 requests: heads and chunked bodies. Strict where leniency would let two
 * readers of one connection disagree about where a request ends: lines end in CRLF, no folded lines, one
 * length, no blanks before a colon. Threads: pure functions over the caller's memory.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HTTP_MAX_FIELDS = 100, HTTP_MAX_CHUNK_LINES = 8192 /* bytes of chunk extensions and trailers */ };

struct http_field { const char *name, *value; };

struct http_head { /* points into the text it was parsed from */
	const char *method, *path; /* path: percent-decoded, without the query; valid UTF-8 is not promised */
	bool v11, keep_alive, chunked, expects_continue;
	bool has_length;
	size_t length; /* of the body, when has_length */
	struct http_field fields[HTTP_MAX_FIELDS];
	int n_fields;
};

/* text[0..len): a head with its empty last line; text[len] must be writable. Cut up in place. 0, or the status to
 * refuse it with and a sentence in *ret_why. */
int http_head_parse(char *text, size_t len, struct http_head *ret, const char **ret_why);
const char *http_head_get(const struct http_head *h, const char *name); /* the first of that name, or NULL */

struct http_chunks { int state; size_t left, lines; int digits; }; /* zeroed = at the start */
enum { HTTP_CHUNKS_MORE = 0, HTTP_CHUNKS_DONE = 1 };
/* One step: takes *ret_used bytes of p[0..n) and finds at most one run of body bytes among them. n > 0.
 * -EINVAL: broken. */
int http_chunks_step(struct http_chunks *c, const uint8_t *p, size_t n, size_t *ret_used, const uint8_t **ret_data, size_t *ret_n);
