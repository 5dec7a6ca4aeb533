/* The method table of io.redraft.Daemon, and what only reads. Changes are in admin_change.c, streams in admin_tail.c,
 * what takes a while in admin_job.c, what the learner is asked for in admin_learner.c.
 */
#include "daemon/admin.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/act.h"
#include "daemon/admin_inside.h"
#include "daemon/base/clock.h"
#include "daemon/explain.h"
#include "daemon/fleet.h"
#include "daemon/report.h"
#include "schemas/idl.h"

int admin_bad(struct rpc_call *call, const char *what)
{
	rpc_error(call, "org.varlink.service.InvalidParameter", "%s", what);
	return -EINVAL;
}

int admin_version(struct rpc_call *call, json_t *params, const char *key, bool optional, uint32_t *ret)
{
	json_t *v = json_object_get(params, key);

	if (optional && (!v || json_is_null(v))) {
		*ret = 0;
		return 0;
	}
	if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) >= UINT32_MAX) {
		rpc_error(call, "org.varlink.service.InvalidParameter", "%s: a number from 1", key);
		return -EINVAL;
	}
	*ret = (uint32_t)json_integer_value(v);
	return 0;
}

int admin_text(struct rpc_call *call, json_t *params, const char *key, size_t most, const char **ret)
{
	json_t *v = json_object_get(params, key);

	*ret = "";
	if (!v || json_is_null(v))
		return 0;
	if (!json_is_string(v) || json_string_length(v) > most) {
		rpc_error(call, "org.varlink.service.InvalidParameter", "%s: a string of at most %zu bytes", key, most);
		return -EINVAL;
	}
	*ret = json_string_value(v);
	return 0;
}

/* ---- reading ---- */

static void admin_status(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;

	(void)params;
	json_t *j = report_status(a->o.act, a->o.watch, a->o.audit, a->start_us);

	if (j)
		(void)json_object_set_new(j, "fleet", fleet_status(a->o.fleet));
	rpc_reply(call, j);
}

static void admin_versions(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;

	(void)params;
	rpc_reply(call, json_pack("{s:o}", "versions", report_versions(a->o.act, INT_MAX)));
}

static void admin_show(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;
	const struct version_entry *v;
	json_t *manifest, *verdict, *described;
	uint32_t number;

	if (admin_version(call, params, "version", false, &number) < 0)
		return;
	v = rollout_find(act_rollout(a->o.act), number);
	if (!v) {
		rpc_error(call, "io.redraft.BadVersion", "there is no version %u", number);
		return;
	}
	described = report_version(a->o.act, v, &manifest, &verdict);
	rpc_reply(call, json_pack("{s:o, s:o, s:o?}", "version", described, "manifest", manifest ? manifest : json_object(),
				  "verdict", verdict));
}

static void admin_drift(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;

	(void)params;
	rpc_reply(call, report_drift(a->o.act, a->o.watch));
}

static void admin_explain(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;
	json_t *verdict, *j;
	uint32_t number;

	if (admin_version(call, params, "version", false, &number) < 0)
		return;
	verdict = store_read_json(act_store(a->o.act), number, "verdict.json");
	j = explain_version(act_rollout(a->o.act), number, verdict, act_decay(a->o.act), clock_us());
	json_decref(verdict);
	if (j)
		rpc_reply(call, j);
	else
		rpc_error(call, "io.redraft.BadVersion", "there is no version %u; the store may have forgotten it (store.keep)", number);
}

static void admin_config(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;

	(void)params;
	rpc_reply(call, json_pack("{s:o}", "config", a->o.config ? a->o.config(a->o.config_arg) : json_object()));
}

static const struct rpc_method admin_methods[] = {
	{"io.redraft.Daemon.Status", RPC_STATUS, admin_status},
	{"io.redraft.Daemon.Versions", RPC_STATUS, admin_versions},
	{"io.redraft.Daemon.Show", RPC_STATUS, admin_show},
	{"io.redraft.Daemon.Submit", RPC_CONTROL, admin_submit},
	{"io.redraft.Daemon.Promote", RPC_CONTROL, admin_promote},
	{"io.redraft.Daemon.Rollback", RPC_CONTROL, admin_rollback},
	{"io.redraft.Daemon.Pin", RPC_CONTROL, admin_pin},
	{"io.redraft.Daemon.Unpin", RPC_CONTROL, admin_unpin},
	{"io.redraft.Daemon.Hold", RPC_CONTROL, admin_hold},
	{"io.redraft.Daemon.Release", RPC_CONTROL, admin_release},
	{"io.redraft.Daemon.PauseRollout", RPC_CONTROL, admin_pause},
	{"io.redraft.Daemon.ResumeRollout", RPC_CONTROL, admin_resume},
	{"io.redraft.Daemon.Probe", RPC_CONTROL, admin_probe},
	{"io.redraft.Daemon.Drift", RPC_STATUS, admin_drift},
	{"io.redraft.Daemon.Explain", RPC_STATUS, admin_explain},
	{"io.redraft.Daemon.Diff", RPC_STATUS, admin_diff},
	{"io.redraft.Daemon.Config", RPC_STATUS, admin_config},
	{"io.redraft.Daemon.Tail", RPC_STATUS, admin_tail},
	{"io.redraft.Daemon.Audit", RPC_CONTROL, admin_audit},
	{"io.redraft.Daemon.Topics", RPC_CONTROL, admin_topics},
	{"io.redraft.Daemon.Replay", RPC_CONTROL, admin_replay},
	{"io.redraft.Daemon.Purge", RPC_CONTROL, admin_purge},
	{NULL, RPC_STATUS, NULL},
};

int admin_new(const struct admin_options *o, struct admin **ret, struct errtext *e)
{
	struct admin *a = calloc(1, sizeof *a);
	int r;

	if (!a)
		return -ENOMEM;
	a->o = *o;
	a->start_us = clock_us();
	r = rpc_server_new(o->loop, o->run_dir, admin_methods, idl_io_redraft_Daemon, a, &a->server, e);
	if (r < 0) {
		free(a);
		return r;
	}
	*ret = a;
	return 0;
}

struct admin *admin_free(struct admin *a)
{
	if (!a)
		return NULL;
	admin_job_end(a);
	admin_tail_end(a);
	rpc_server_free(a->server);
	for (int i = 0; i < ADMIN_REMEMBERED; i++)
		json_decref(a->memory[i].reply);
	free(a);
	return NULL;
}
