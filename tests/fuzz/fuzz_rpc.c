/* A message of a control socket that parses is an object that can be sent again and parses to the same; as a reply it is one of
 * three things: parameters, an error with its text, or refused. */
#include <string.h>
#include "daemon/base/rpc_wire.h"
#include "tests/fuzz/fuzz.h"

FUZZ(rpc)
{
	struct errtext e = {""};
	json_t *msg = NULL, *again = NULL, *params = NULL;
	struct buf out = BUF_INIT(RPC_MAX_OUTPUT);
	int r;

	if (rpc_parse(data, size, &msg, &e) < 0) {
		FUZZ_CHECK(e.text[0]);
		return 0;
	}
	FUZZ_CHECK(json_is_object(msg));
	r = rpc_append(&out, msg);
	FUZZ_CHECK(r == 0 && out.len && out.data[out.len - 1] == 0 && !memchr(out.data, 0, out.len - 1));
	FUZZ_CHECK(rpc_parse(out.data, out.len - 1, &again, &e) == 0 && json_equal(msg, again));
	r = rpc_split_reply(msg, &params, &e);
	FUZZ_CHECK(r == 0 || r == 1 || r == -EPROTO);
	FUZZ_CHECK(r == 0 ? !params || json_is_object(params) : e.text[0] != 0);
	json_decref(msg);
	json_decref(again);
	buf_done(&out);
	return 0;
}
