/* The learner's control socket (learn/control.h). */
#include "learn/control.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/rpc.h"
#include "schemas/idl.h"

struct control {
	struct worker *w;
	json_t *(*config)(void *arg);
	void *config_arg;
	struct rpc_server *server;
};

static void on_done(void *arg, json_t *reply, const char *error, const char *message)
{
	struct rpc_call *call = arg;
	if (error)
		rpc_error(call, error, "%s", message);
	else
		rpc_reply(call, reply ? json_incref(reply) : NULL);
}

static void post(void *ctx, struct rpc_call *call, struct command c)
{
	struct control *k = ctx;
	c.done = on_done;
	c.arg = call;
	if (worker_post(k->w, &c))
		rpc_error(call, "io.redraft.Busy", "too many calls wait, or the learner is ending");
}

/* An integer parameter in [min, max]; false: the call was answered with the reason. */
static bool number(struct rpc_call *call, json_t *params, const char *key, json_int_t min, json_int_t max, bool required, json_int_t *ret)
{
	json_t *v = json_object_get(params, key);
	if ((!v || json_is_null(v)) && !required)
		return true;
	if (!json_is_integer(v) || json_integer_value(v) < min || json_integer_value(v) > max) {
		rpc_error(call, "org.varlink.service.InvalidParameter", "%s must be a number from %lld to %lld", key, (long long)min, (long long)max);
		return false;
	}
	*ret = json_integer_value(v);
	return true;
}

static bool text(struct rpc_call *call, json_t *params, const char *key, bool required, const char **ret)
{
	json_t *v = json_object_get(params, key);
	*ret = "";
	if ((!v || json_is_null(v)) && !required)
		return true;
	if (!json_is_string(v)) {
		rpc_error(call, "org.varlink.service.InvalidParameter", "%s must be a string", key);
		return false;
	}
	*ret = json_string_value(v);
	return true;
}

static void on_status(void *ctx, struct rpc_call *call, json_t *params)
{
	struct control *k = ctx;
	(void)params;
	rpc_reply(call, worker_status(k->w));
}

/* What does not fit is left out, as a version that is gone is. */
static void references(json_t *of, struct evaluate_older *ret)
{
	const char *domain;
	json_t *v;
	json_object_foreach(of, domain, v) {
		json_int_t version = json_integer_value(v);
		if (ret->n == EVALUATE_DOMAINS || strlen(domain) >= sizeof ret->v->domain || version < 1 || version > UINT32_MAX)
			continue;
		(void)snprintf(ret->v[ret->n].domain, sizeof ret->v->domain, "%s", domain);
		ret->v[ret->n++].version = (uint32_t)version;
	}
}

static void on_evaluate(void *ctx, struct rpc_call *call, json_t *params)
{
	struct command c = {.kind = CMD_EVALUATE, .pinned = json_is_true(json_object_get(params, "pinned"))};
	json_int_t candidate = 0, live = 0, k = 0;
	if (!number(call, params, "candidate", 1, UINT32_MAX, true, &candidate) || !number(call, params, "live", 0, UINT32_MAX, true, &live) ||
	    !number(call, params, "k", 1, TTT_MAX_STEPS, false, &k))
		return;
	c.version = (uint32_t)candidate;
	c.live = (uint32_t)live;
	c.k = (int)k;
	references(json_object_get(params, "references"), &c.older);
	post(ctx, call, c);
}

static void on_compare(void *ctx, struct rpc_call *call, json_t *params)
{
	json_int_t version = 0, requests = 64;
	if (number(call, params, "version", 1, UINT32_MAX, true, &version) && number(call, params, "requests", 1, 4096, false, &requests))
		post(ctx, call, (struct command){.kind = CMD_COMPARE, .version = (uint32_t)version, .k = (int)requests});
}

static void on_replay(void *ctx, struct rpc_call *call, json_t *params)
{
	json_int_t version = 0, requests = 64;
	if (number(call, params, "version", 1, UINT32_MAX, true, &version) && number(call, params, "requests", 1, 4096, false, &requests))
		post(ctx, call, (struct command){.kind = CMD_REPLAY, .version = (uint32_t)version, .k = (int)requests});
}

static void on_purge(void *ctx, struct rpc_call *call, json_t *params)
{
	struct command c = {.kind = CMD_PURGE};
	const char *tenant;
	if (!text(call, params, "tenant", true, &tenant))
		return;
	size_t n = strlen(tenant);
	if (n < 1 || n > 64 || strspn(tenant, "abcdefghijklmnopqrstuvwxyz0123456789") != n) {
		rpc_error(call, "org.varlink.service.InvalidParameter", "tenant must be as records carry it: a keyed hash of at most 64 digits, or anonymous");
		return;
	}
	(void)snprintf(c.text, sizeof c.text, "%s", tenant);
	post(ctx, call, c);
}

static void on_config(void *ctx, struct rpc_call *call, json_t *params)
{
	struct control *k = ctx;
	(void)params;
	rpc_reply(call, json_pack("{s:o}", "config", k->config ? k->config(k->config_arg) : json_object()));
}

void control_config(struct control *c, json_t *(*config)(void *arg), void *arg)
{
	c->config = config;
	c->config_arg = arg;
}

static void on_verdict(void *ctx, struct rpc_call *call, json_t *params)
{
	struct command c = {.kind = CMD_VERDICT};
	json_int_t version = 0;
	const char *verdict, *reason;
	if (!number(call, params, "version", 1, UINT32_MAX, true, &version) || !text(call, params, "verdict", true, &verdict) ||
	    !text(call, params, "reason", false, &reason))
		return;
	static const char *const known[] = {"accepted", "rejected", "superseded", "quarantined"};
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (strcmp(verdict, known[i]) == 0) {
			c.version = (uint32_t)version;
			(void)snprintf(c.text, sizeof c.text, "%s%s%.120s", verdict, *reason ? ": " : "", reason);
			post(ctx, call, c);
			return;
		}
	rpc_error(call, "org.varlink.service.InvalidParameter", "verdict must be accepted, rejected, superseded or quarantined");
}

static void on_rebase(void *ctx, struct rpc_call *call, json_t *params)
{
	json_int_t version = 0;
	if (number(call, params, "version", 1, UINT32_MAX, true, &version))
		post(ctx, call, (struct command){.kind = CMD_REBASE, .version = (uint32_t)version});
}

static void on_drift(void *ctx, struct rpc_call *call, json_t *params)
{
	json_int_t level = 0;
	if (number(call, params, "level", 0, 3, true, &level))
		post(ctx, call, (struct command){.kind = CMD_DRIFT, .k = (int)level});
}

static void on_pause(void *ctx, struct rpc_call *call, json_t *params)
{
	(void)params;
	post(ctx, call, (struct command){.kind = CMD_PAUSE});
}

static void on_resume(void *ctx, struct rpc_call *call, json_t *params)
{
	(void)params;
	post(ctx, call, (struct command){.kind = CMD_RESUME});
}

static void on_publish(void *ctx, struct rpc_call *call, json_t *params)
{
	(void)params;
	post(ctx, call, (struct command){.kind = CMD_PUBLISH});
}

static const struct rpc_method methods[] = {
	{"io.redraft.Learn.Status", RPC_STATUS, on_status},
	{"io.redraft.Learn.Evaluate", RPC_CONTROL, on_evaluate},
	{"io.redraft.Learn.CompareServed", RPC_CONTROL, on_compare},
	{"io.redraft.Learn.Config", RPC_STATUS, on_config},
	{"io.redraft.Learn.Replay", RPC_CONTROL, on_replay},
	{"io.redraft.Learn.Purge", RPC_CONTROL, on_purge},
	{"io.redraft.Learn.Verdict", RPC_CONTROL, on_verdict},
	{"io.redraft.Learn.Rebase", RPC_CONTROL, on_rebase},
	{"io.redraft.Learn.SetDrift", RPC_CONTROL, on_drift},
	{"io.redraft.Learn.PauseTraining", RPC_CONTROL, on_pause},
	{"io.redraft.Learn.ResumeTraining", RPC_CONTROL, on_resume},
	{"io.redraft.Learn.Publish", RPC_CONTROL, on_publish},
	{NULL, RPC_STATUS, NULL},
};

int control_start(struct loop *loop, const char *run_dir, struct worker *w, struct control **ret, struct errtext *e)
{
	struct control *c = calloc(1, sizeof *c);
	if (!c)
		return -ENOMEM;
	c->w = w;
	int r = rpc_server_new(loop, run_dir, methods, idl_io_redraft_Learn, c, &c->server, e);
	if (r) {
		free(c);
		return r;
	}
	*ret = c;
	return 0;
}

struct control *control_stop(struct control *c)
{
	if (!c)
		return NULL;
	rpc_server_free(c->server);
	free(c);
	return NULL;
}
