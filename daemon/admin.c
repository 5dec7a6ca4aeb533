/* The method table. Every mutation leaves one audit line in the log: who (uid and pid
 * as the kernel gave them), what, and how it ended. A request id makes a retry
 * harmless: the answer given before is given again.
 */
#include "daemon/admin.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/act.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/rpc.h"
#include "daemon/report.h"
#include "schemas/idl.h"

enum { ADMIN_REMEMBERED = 32 };

struct admin_memory { /* an answered request id */
	char id[64], method[16];
	json_t *reply; /* owned */
};

struct admin {
	struct act *act;
	struct watch *watch;
	struct rpc_server *server;
	uint64_t start_us;
	struct admin_memory memory[ADMIN_REMEMBERED];
	int next_memory;
};

/* One mutation on its way: lives until answered. */
struct admin_request {
	struct admin *admin;
	struct rpc_call *call;
	char method[16], id[64], who[48], detail[96];
};

static int admin_bad(struct rpc_call *call, const char *what)
{
	rpc_error(call, "org.varlink.service.InvalidParameter", "%s", what);
	return -EINVAL;
}

/* A version number: absent gives 0 when optional. */
static int admin_version(struct rpc_call *call, json_t *params, bool optional, uint32_t *ret)
{
	json_t *v = json_object_get(params, "version");

	if (optional && (!v || json_is_null(v))) {
		*ret = 0;
		return 0;
	}
	if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) >= UINT32_MAX)
		return admin_bad(call, "version: a number from 1");
	*ret = (uint32_t)json_integer_value(v);
	return 0;
}

/* ---- reading ---- */

static void admin_status(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;

	(void)params;
	rpc_reply(call, report_status(a->act, a->watch, a->start_us));
}

static void admin_versions(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;

	(void)params;
	rpc_reply(call, json_pack("{s:o}", "versions", report_versions(a->act, INT_MAX)));
}

static void admin_show(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;
	const struct version_entry *v;
	json_t *manifest, *verdict, *described;
	uint32_t number;

	if (admin_version(call, params, false, &number) < 0)
		return;
	v = rollout_find(act_rollout(a->act), number);
	if (!v) {
		rpc_error(call, "io.redraft.BadVersion", "there is no version %u", number);
		return;
	}
	described = report_version(a->act, v, &manifest, &verdict);
	rpc_reply(call, json_pack("{s:o, s:o, s:o?}", "version", described, "manifest", manifest ? manifest : json_object(),
				  "verdict", verdict));
}

/* ---- changing ---- */

static struct admin_memory *admin_recall(struct admin *a, const char *method, const char *id)
{
	for (int i = 0; id[0] && i < ADMIN_REMEMBERED; i++)
		if (a->memory[i].reply && !strcmp(a->memory[i].id, id) && !strcmp(a->memory[i].method, method))
			return &a->memory[i];
	return NULL;
}

static void admin_remember(struct admin *a, const struct admin_request *q, json_t *reply)
{
	struct admin_memory *m = &a->memory[a->next_memory];

	if (!q->id[0] || !reply)
		return;
	a->next_memory = (a->next_memory + 1) % ADMIN_REMEMBERED;
	json_decref(m->reply);
	memcpy(m->id, q->id, sizeof m->id);
	memcpy(m->method, q->method, sizeof m->method);
	m->reply = json_incref(reply);
}

/* NULL: already answered (bad id, known id, out of memory). */
static struct admin_request *admin_begin(struct admin *a, struct rpc_call *call, const char *method, json_t *params)
{
	json_t *id = json_object_get(params, "request_id");
	struct admin_memory *known;
	struct admin_request *q;
	unsigned uid;
	int pid;

	if (id && !json_is_null(id) && (!json_is_string(id) || json_string_length(id) >= sizeof q->id)) {
		admin_bad(call, "request_id: a string of at most 63 bytes");
		return NULL;
	}
	known = admin_recall(a, method, json_is_string(id) ? json_string_value(id) : "");
	if (known) {
		rpc_reply(call, json_incref(known->reply));
		return NULL;
	}
	q = calloc(1, sizeof *q);
	if (!q) {
		rpc_error(call, "io.redraft.Busy", "out of memory; try again");
		return NULL;
	}
	q->admin = a;
	q->call = call;
	snprintf(q->method, sizeof q->method, "%s", method);
	snprintf(q->id, sizeof q->id, "%s", json_is_string(id) ? json_string_value(id) : "");
	rpc_peer(call, &uid, &pid);
	snprintf(q->who, sizeof q->who, "uid %u, pid %d", uid, pid);
	return q;
}

/* Takes q and reply. */
static void admin_end(struct admin_request *q, json_t *reply, const char *error, const char *text)
{
	if (error) {
		log_info("audit: %s by %s%s: %s: %s", q->method, q->who, q->detail, error, text);
		rpc_error(q->call, error, "%s", text);
		json_decref(reply);
	} else {
		log_info("audit: %s by %s%s: done", q->method, q->who, q->detail);
		admin_remember(q->admin, q, reply);
		rpc_reply(q->call, reply);
	}
	free(q);
}

static void admin_answered(void *arg, const char *error, const char *text, uint32_t quarantined)
{
	struct admin_request *q = arg;
	const struct store_state *s = &act_rollout(q->admin->act)->s;
	json_t *reply = NULL;

	if (!error && !strcmp(q->method, "Promote"))
		reply = json_pack("{s:I, s:I, s:I}", "generation", (json_int_t)s->generation, "live", (json_int_t)s->live, "previous",
				  (json_int_t)s->previous);
	else if (!error && !strcmp(q->method, "Rollback"))
		reply = json_pack("{s:I, s:I, s:I, s:I}", "generation", (json_int_t)s->generation, "live", (json_int_t)s->live,
				  "previous", (json_int_t)s->previous, "quarantined", (json_int_t)quarantined);
	else if (!error && !strcmp(q->method, "Pin"))
		reply = json_pack("{s:I, s:I}", "generation", (json_int_t)s->generation, "pin", (json_int_t)s->pin);
	else if (!error)
		reply = json_pack("{s:I}", "generation", (json_int_t)s->generation);
	admin_end(q, reply, error, text);
}

static void admin_submitted(void *arg, uint32_t version, const char *error)
{
	struct admin_request *q = arg;

	if (version)
		admin_end(q, json_pack("{s:I}", "version", (json_int_t)version), NULL, "");
	else
		admin_end(q, NULL, "io.redraft.BadVersion", error);
}

static void admin_submit(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;
	const char *path = json_string_value(json_object_get(params, "path"));
	struct admin_request *q;
	int r;

	if (!path) {
		admin_bad(call, "path: a folder in the store's incoming");
		return;
	}
	q = admin_begin(a, call, "Submit", params);
	if (!q)
		return;
	snprintf(q->detail, sizeof q->detail, " of %.80s", path);
	r = act_submit(a->act, path, admin_submitted, q);
	if (r == -EBUSY)
		admin_end(q, NULL, "io.redraft.Busy", "another submission is being verified; try again");
	else if (r < 0)
		admin_end(q, NULL, "io.redraft.BadVersion", strerror(-r));
}

static void admin_promote(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;
	json_t *expected = json_object_get(params, "expected_generation");
	struct admin_request *q;
	uint32_t version;

	if (admin_version(call, params, false, &version) < 0)
		return;
	if (expected && !json_is_null(expected) && (!json_is_integer(expected) || json_integer_value(expected) < 0)) {
		admin_bad(call, "expected_generation: a number from 0");
		return;
	}
	q = admin_begin(a, call, "Promote", params);
	if (!q)
		return;
	snprintf(q->detail, sizeof q->detail, " of version %u", version);
	act_promote(a->act, version, json_is_integer(expected) ? json_integer_value(expected) : -1, admin_answered, q);
}

static void admin_rollback(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;
	struct admin_request *q = admin_begin(a, call, "Rollback", params);

	if (!q)
		return;
	snprintf(q->detail, sizeof q->detail, " of version %u", act_rollout(a->act)->s.live);
	act_rollback(a->act, q->who, admin_answered, q);
}

static void admin_pin(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;
	struct admin_request *q;
	uint32_t version;

	if (admin_version(call, params, true, &version) < 0)
		return;
	q = admin_begin(a, call, "Pin", params);
	if (!q)
		return;
	if (version)
		snprintf(q->detail, sizeof q->detail, " of version %u", version);
	act_pin(a->act, version, admin_answered, q);
}

static void admin_unpin(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;
	struct admin_request *q = admin_begin(a, call, "Unpin", params);

	if (q)
		act_unpin(a->act, admin_answered, q);
}

static void admin_hold(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;
	json_t *reason = json_object_get(params, "reason");
	struct admin_request *q;

	if (reason && !json_is_null(reason) && (!json_is_string(reason) || json_string_length(reason) > 120)) {
		(void)admin_bad(call, "reason: a string of at most 120 bytes");
		return;
	}
	q = admin_begin(a, call, "Hold", params);
	if (q)
		act_hold(a->act, json_string_value(reason), admin_answered, q);
}

static void admin_release(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;
	struct admin_request *q = admin_begin(a, call, "Release", params);

	if (q)
		act_release(a->act, admin_answered, q);
}

static void admin_drift(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;

	(void)params;
	rpc_reply(call, report_drift(a->act, a->watch));
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
	{"io.redraft.Daemon.Drift", RPC_STATUS, admin_drift},
	{NULL, RPC_STATUS, NULL},
};

int admin_new(struct loop *l, const char *run_dir, struct act *act, struct watch *watch, struct admin **ret, struct errtext *e)
{
	struct admin *a = calloc(1, sizeof *a);
	int r;

	if (!a)
		return -ENOMEM;
	a->act = act;
	a->watch = watch;
	a->start_us = clock_us();
	r = rpc_server_new(l, run_dir, admin_methods, idl_io_redraft_Daemon, a, &a->server, e);
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
	rpc_server_free(a->server);
	for (int i = 0; i < ADMIN_REMEMBERED; i++)
		json_decref(a->memory[i].reply);
	free(a);
	return NULL;
}
