/* A client of one OpenAI-style server: a JSON body out, a JSON body back, one connection a call.
 *
 * Plain HTTP, for a server on this machine or behind a proxy on it. Blocking; threads: calls are independent.
 */
#pragma once
#include <jansson.h>
#include "daemon/base/err.h"

struct ask_server {
	char host[256], port[16];
};
/* "http://127.0.0.1:8080" or "127.0.0.1:8080". -EINVAL with e. */
int MUSTCHECK ask_parse(const char *url, struct ask_server *ret, struct errtext *e);
enum { ASK_E_BUSY = 1 }; /* 429 or 503: ask again later */
/* POST body (borrowed) to path with extra header lines ("" or "Name: value\r\n"...). Other statuses are -EIO with the server's
 * words in e; nobody there: -errno of connect. */
int MUSTCHECK ask_post(const struct ask_server *s, const char *path, const char *headers, const json_t *body, int timeout_s, json_t **ret, struct errtext *e);
