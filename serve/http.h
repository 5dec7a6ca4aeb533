/* HTTP/1.1 server over TCP and a UNIX socket: requests in, replies and event streams out.
 *
 * One request is one struct http_request, alive from the handler's call until the
 * owner ends it (http_reply, http_stream_end) or the peer goes away (on_gone, after
 * which it is freed). Knows nothing of what is served.
 *
 * What a peer can take: a head of max_headers bytes and 20 s, a body of max_body bytes and 60 s,
 * 75 s of idleness, 64 KiB of requests sent ahead, 1 MiB of a stream unread when its next event comes (beside
 * http_stream_allow), 60 s without reading, 120 s for the end of a reply. All bodies together hold at most max_bodies, beyond the first 64 KiB of
 * each; a larger one that finds no room is refused with 503. No connections are accepted while seven eighths
 * of the process's descriptors are taken.
 * A peer that ends its side while it is answered (shutdown, nc -N) counts as gone, as for nginx and uvicorn: until something is written to it that
 * is the same as a hang-up, which must cancel what it asked for, and a reply that is not streamed is written at its end alone.
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

/* How long each stage may last, in ms. */
struct http_times { unsigned idle, head, body, stall, flush, linger; };
extern const struct http_times http_default_times;

struct http_options {
	const char *listen;      /* "127.0.0.1:8080", "[::1]:8080", ":8080"; port 0 = any; NULL or "" = none. A socket that the
				  * service manager passed as "http" takes its place */
	const char *listen_unix; /* path, mode 0660; NULL or "" = none */
	size_t max_body, max_headers, max_bodies;
	const struct http_times *times; /* NULL = the default, as above */
	void (*handle)(void *ctx, struct http_request *r);
	/* The JSON that goes with a refusal of this layer into out[size]; returns its length. NULL = the sentence as text. */
	size_t (*refusal)(void *ctx, int status, const char *sentence, char *out, size_t size);
	void *ctx;
};

/* -EADDRINUSE and others with e. */
int MUSTCHECK http_new(struct loop *l, const struct http_options *o, struct http **ret, struct errtext *e);
struct http *http_free(struct http *h); /* cuts what is open; on_gone is called */
int http_port(const struct http *h);    /* of TCP, or 0 */
void http_stop_accepting(struct http *h);
void http_last_requests(struct http *h); /* from now on every reply ends its connection */

struct http_stats {
	int connections;
	size_t bodies; /* bytes held, as counted against max_bodies */
	size_t unread; /* bytes of answers that wait for their readers */
};
struct http_stats http_stats(const struct http *h); /* looks at every connection */
const struct http *http_of(const struct http_request *r);

const char *http_method(const struct http_request *r); /* "GET", "HEAD", ... */
const char *http_path(const struct http_request *r);   /* percent-decoded, without the query */
const char *http_header(const struct http_request *r, const char *name); /* NULL when absent */
const char *http_body(const struct http_request *r, size_t *ret_len);    /* until the handler returns */
const char *http_peer(const struct http_request *r);   /* numeric address, or "unix:<uid>" */

void http_on_gone(struct http_request *r, void (*on_gone)(void *arg), void *arg);
/* Headers that the reply or stream will carry; values with control characters are left out. */
void http_set_header(struct http_request *r, const char *name, const char *value);
void http_reply(struct http_request *r, int status, const char *type, const void *body, size_t len); /* ends r */

void http_stream_start(struct http_request *r, const char *type);
/* So much is sent once, at the length that was asked for, and may lie unread beside the rest: what is sent right behind it finds it unread, however fast the reader. */
void http_stream_allow(struct http_request *r, size_t len);
/* -EPIPE: the reader is too slow and was cut (on_gone has been called, r is gone). */
int MUSTCHECK http_stream_send(struct http_request *r, const void *p, size_t len);
void http_stream_end(struct http_request *r); /* ends r */
