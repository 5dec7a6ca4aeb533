/* Probe: the pinned prompts now. Recording them anew is a change: what they gave before is no reference any more. */
#include "daemon/act_probe.h"
#include "daemon/admin_inside.h"

static void admin_probed(void *arg, json_t *outcome, const char *error, const char *text)
{
	admin_end(arg, outcome, error, text);
}

void admin_probe(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;
	json_t *record = json_object_get(params, "record");
	struct admin_request *q;

	if (record && !json_is_null(record) && !json_is_boolean(record)) {
		(void)admin_bad(call, "record: true or false");
		return;
	}
	q = admin_begin(a, call, "Probe", params);
	if (q)
		act_probe_now(a->o.act, json_is_true(record), admin_probed, q);
}
