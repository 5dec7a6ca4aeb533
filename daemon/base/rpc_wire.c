/* Framing of control messages. A JSON text cannot hold a raw NUL, so a NUL ends a
 * message and nothing needs escaping. Depth is counted over the raw bytes before
 * parsing: the parser recurses, and a peer must not choose how deep.
 */
#include "daemon/base/rpc_wire.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static bool rpc_too_deep(const uint8_t *p, size_t n)
{
	bool in_string = false;
	int depth = 0;

	for (size_t i = 0; i < n; i++) {
		if (in_string) {
			if (p[i] == '\\')
				i++;
			else if (p[i] == '"')
				in_string = false;
		} else if (p[i] == '"') {
			in_string = true;
		} else if (p[i] == '{' || p[i] == '[') {
			if (++depth > RPC_MAX_NESTING)
				return true;
		} else if (p[i] == '}' || p[i] == ']') {
			depth--;
		}
	}
	return false;
}

int rpc_parse(const void *p, size_t n, json_t **ret, struct errtext *e)
{
	json_error_t je;
	json_t *msg;

	if (rpc_too_deep(p, n))
		return errtext_set(e, -EPROTO, "message nested deeper than %d levels", RPC_MAX_NESTING);
	msg = json_loadb(p, n, JSON_REJECT_DUPLICATES, &je);
	if (!msg)
		return errtext_set(e, -EPROTO, "message is not JSON: %s at byte %d", je.text, je.position);
	if (!json_is_object(msg)) {
		json_decref(msg);
		return errtext_set(e, -EPROTO, "message is not a JSON object");
	}
	*ret = msg;
	return 0;
}

int rpc_append(struct buf *out, const json_t *msg)
{
	char *text = json_dumps(msg, JSON_COMPACT);
	int r;

	if (!text)
		return -ENOMEM;
	r = buf_append(out, text, strlen(text) + 1);
	free(text);
	return r;
}

json_t *rpc_make_call(const char *method, json_t *params)
{
	json_t *call = json_object();

	if (!call || json_object_set_new(call, "method", json_string(method)) < 0) {
		json_decref(call);
		json_decref(params);
		return NULL;
	}
	if (json_object_set_new(call, "parameters", params ? params : json_object()) < 0) {
		json_decref(call);
		return NULL;
	}
	return call;
}

int rpc_split_reply(json_t *msg, json_t **ret_params, struct errtext *e)
{
	json_t *error = json_object_get(msg, "error"), *params = json_object_get(msg, "parameters");
	const char *message;

	if (params && !json_is_object(params))
		return errtext_set(e, -EPROTO, "reply whose parameters are not an object");
	if (!error || json_is_null(error)) {
		*ret_params = params;
		return 0;
	}
	if (!json_is_string(error) || !json_string_length(error))
		return errtext_set(e, -EPROTO, "reply whose error is not a name");
	message = json_string_value(json_object_get(params, "message"));
	if (!message) /* org.varlink.service errors carry one named parameter instead */
		message = json_string_value(json_object_iter_value(json_object_iter(params)));
	return errtext_set(e, 1, "%s%s%s", json_string_value(error), message ? ": " : "", message ? message : "");
}
