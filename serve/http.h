/* HTTP/1.1 server: requests in, replies and event streams out.
 *
 * One request is one struct http_request, alive from the handler's call until the
 * owner ends it (http_reply, http_stream_end) or the peer goes away (on_gone, after
 * which it is freed). Knows nothing of what is served.
 *
 * Limits: headers and body by options; output waiting for a slow reader 1 MiB and
 * 60 s, then the connection is cut; an idle connection 75 s; no more are accepted
 * while seven eighths of the process's descriptors are taken.
 * Threads: the loop's only.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "daemon/base/err.h"

struct loop;
struct http;
struct http_request;

struct http_options {
	const char *listen; /* "127.0.0.1:8080", "[::1]:8080", ":8080"; port 0 = any */
	size_t max_body, max_headers;
	void (*handle)(void *ctx, struct http_request *r);
	void *ctx;
};

/* -EADDRINUSE and others with e. */
int MUSTCHECK http_new(struct loop *l, const struct http_options *o, struct http **ret, struct errtext *e);
struct http *http_free(struct http *h); /* cuts what is open; on_gone is called */
int http_port(const struct http *h);
void http_stop_accepting(struct http *h);

const char *http_method(const struct http_request *r); /* "GET", "HEAD", ... */
const char *http_path(const struct http_request *r);   /* percent-decoded, without the query */
const char *http_header(const struct http_request *r, const char *name); /* NULL when absent */
const char *http_body(const struct http_request *r, size_t *ret_len);
bool http_body_too_large(const struct http_request *r);

void http_on_gone(struct http_request *r, void (*on_gone)(void *arg), void *arg);
/* Headers that the reply or stream will carry; values with control characters are left out. */
void http_set_header(struct http_request *r, const char *name, const char *value);
void http_reply(struct http_request *r, int status, const char *type, const void *body, size_t len); /* ends r */

void http_stream_start(struct http_request *r, const char *type);
/* -EPIPE: the reader is too slow and was cut (on_gone has been called, r is gone). */
int MUSTCHECK http_stream_send(struct http_request *r, const void *p, size_t len);
void http_stream_end(struct http_request *r); /* ends r */
