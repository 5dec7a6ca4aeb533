/* Shared between web.c and its web_*.c only. */
#pragma once
#include <event2/http.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/address.h"
#include "daemon/base/sha.h"
#include "daemon/web.h"

enum { WEB_LISTENERS = 16, WEB_SLOW_BYTES = 512 << 10, WEB_VERSIONS = 100, WEB_MOST_FD = 384, WEB_TICK_US = 1000000, WEB_SOON_US = 50000 };

struct loop_timer;
struct history;

struct web {
	struct web_options o; /* host and listen are copies */
	char listen_name[ADDRESS_HOST], host[128];
	struct evhttp *http;
	struct evhttp_bound_socket *bound;
	struct loop_timer *tick;
	struct history *history;
	uint64_t start_us, refusal_us; /* refusal: when one was last logged */
	char token[SHA_HEX];           /* hash of the token; "" = there is none */
	json_t *versions;              /* as of versions_mark */
	uint64_t versions_mark;
	struct web_listener {
		struct evhttp_request *q; /* of /events; NULL = a free place */
		struct evhttp_connection *c;
	} listener[WEB_LISTENERS];
	int n_listeners;
};

/* An answer: type and security headers are added. */
void web_send(struct evhttp_request *q, int code, const char *type, const void *p, size_t n);
void web_send_json(struct evhttp_request *q, int code, json_t *j /* taken; NULL: 500 */);
void PRINTF(3, 4) web_fail(struct evhttp_request *q, int code, const char *fmt, ...); /* {"error": text} */
/* A request whose connection is ending, told by the close callback: a peer who left makes it ours to free,
 * otherwise the connection frees it. */
void web_let_go(struct evhttp_request *q);
void web_headers(struct evhttp_request *q, const char *type);
json_t *web_status(struct web *w); /* what /api/status gives */

void web_events(struct web *w, struct evhttp_request *q); /* GET /events */
void web_events_send(struct web *w, const char *name, json_t *data /* taken */);

int MUSTCHECK web_token(struct web *w, struct errtext *e); /* read once, kept as a hash */
void web_change(struct web *w, struct evhttp_request *q);  /* POST /api/... */
