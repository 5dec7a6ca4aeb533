/* Asking a daemon of the test's at its control socket. */
#pragma once
#include "daemon/base/rpc.h"
#include "tests/unit/daemon/fixture.h"

static int ask(const char *method, json_t *params, json_t **ret, struct errtext *e)
{
	char full[80];

	snprintf(full, sizeof full, "io.redraft.Daemon.%s", method);
	*ret = NULL;
	return rpc_call_sync(fixture_path("daemon/control.sock"), full, params, 60000, ret, e);
}

static json_t *must(const char *method, json_t *params)
{
	struct errtext e = {.text = ""};
	json_t *out;

	if (ask(method, params, &out, &e))
		fail_msg("%s: %s", method, e.text);
	return out;
}
