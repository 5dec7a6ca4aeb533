/* What the files of the HTTP server share: http.c (connections and their stages), http_reply.c (what is written),
 * http_doors.c (what is let in). Threads: the loop's. */
#pragma once
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/listener.h>
#include "daemon/base/buf.h"
#include "daemon/base/loop.h"
#include "serve/http.h"
#include "serve/http_parse.h"

enum stage { IDLE, HEAD, BODY, ANSWER, FLUSH, LINGER };

struct door {
	struct http *http;
	struct evconnlistener *listener; /* NULL = not open */
};

struct http {
	struct loop *loop;
	struct http_options o;
	struct door tcp, local;
	char *path; /* owned; of the UNIX socket while it is ours */
	struct http_request *all; /* list of connections */
	struct loop_timer *sweep, *resume;
	size_t bodies;
	int n, port;
	bool last, stopped;
};

struct http_request {
	struct http *http;
	struct http_request *next, **link;
	struct bufferevent *bev;
	char peer[64];
	enum stage stage;
	uint64_t since_us; /* of the stage */
	bool close_after, refused;
	bool handling, dead; /* freed when the handler has returned */
	/* the request */
	char *text; /* owned; head points into it */
	struct http_head head;
	struct http_chunks chunks;
	struct buf body;
	size_t counted; /* of body, in http->bodies */
	/* the reply */
	struct buf headers;
	bool chunked_out;
	size_t allowed; /* of the stream: what may lie unread beside MAX_OUTPUT */
	void (*on_gone)(void *arg);
	void *arg;
};

/* http.c */
void http_enter(struct http_request *r, enum stage stage);
void http_drop_body(struct http_request *r);
void http_cut(struct http_request *r); /* the end of a connection, under whatever it was doing */
void http_begin(struct http_request *r); /* a connection that was just accepted: bev, peer are there */

/* http_reply.c: what this layer itself has to say against a request. It ends the connection. */
void http_refuse(struct http_request *r, int status, const char *sentence);

/* http_doors.c */
int http_open_doors(struct http *h, struct errtext *e);
void http_set_doors(struct http *h, bool open);
void http_close_doors(struct http *h); /* those that are open, and the timer; the UNIX socket's path goes */
