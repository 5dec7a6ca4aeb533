/* What both ends of a control socket share: framing, parsing with limits, and
 * addresses. Used by rpc_*.c only.
 */
#pragma once
#include <jansson.h>
#include "daemon/base/buf.h"

enum {
	RPC_MAX_MESSAGE = 1 << 20,  /* a call */
	RPC_MAX_OUTPUT = 4 << 20,   /* what waits for a slow reader; so also the longest reply */
	RPC_MAX_NESTING = 32,
};

/* Parse one message (without its NUL): an object, UTF-8, no duplicate keys, at
 * most 32 levels deep. New reference. e gets the reason. */
int MUSTCHECK rpc_parse(const void *p, size_t n, json_t **ret, struct errtext *e);
/* Append msg and a NUL. -E2BIG when it does not fit below out->max. */
int MUSTCHECK rpc_append(struct buf *out, const json_t *msg);
/* {"method", "parameters"} of a call; params is taken. NULL when out of memory */
json_t *rpc_make_call(const char *method, json_t *params);
/* Split a reply. 0: *ret_params borrowed from msg (may be NULL: none). 1: the peer
 * reported an error, e holds "error: message". -EPROTO: neither. */
int rpc_split_reply(json_t *msg, json_t **ret_params, struct errtext *e);
