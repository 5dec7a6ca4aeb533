/* What an operator says to the rollout. Every mutation leaves one audit line: who (uid and pid as the kernel gave
 * them), what, from what to what, why, and how it ended. A request id makes a retry harmless: the answer given before is
 * given again. What is answered stands in the audit log, or the answer says that it does not yet; a rollback alone is answered first.
 */
#include <stdlib.h>
#include <string.h>
#include "daemon/act.h"
#include "daemon/admin_inside.h"
#include "daemon/audit.h"
#include "daemon/fleet.h"

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
struct admin_request *admin_begin(struct admin *a, struct rpc_call *call, const char *method, json_t *params)
{
	json_t *id = json_object_get(params, "request_id");
	struct admin_memory *known;
	struct admin_request *q;
	const char *why;

	if (admin_text(call, params, "reason", ADMIN_REASON, &why) < 0)
		return NULL;
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
	snprintf(q->why, sizeof q->why, "%s", why);
	q->from = audit_place(&act_rollout(a->o.act)->s);
	rpc_peer(call, &q->uid, &q->pid);
	snprintf(q->who, sizeof q->who, "uid %u, pid %d", q->uid, q->pid);
	return q;
}

static bool admin_write(struct admin_request *q, const char *error, const char *text)
{
	struct admin *a = q->admin;

	return audit_change(a->o.audit, a->o.news, &act_rollout(a->o.act)->s,
			    &(struct audit_change){.what = q->method, .who = q->who, .detail = q->detail, .why = q->why, .peer = true, .uid = q->uid, .pid = q->pid,
						   .from = q->from}, error, text);
}

void admin_end(struct admin_request *q, json_t *reply, const char *error, const char *text)
{
	bool first = !strcmp(q->method, "Rollback"); /* is answered before anything is written */
	bool audited = first || admin_write(q, error, text);

	if (error) {
		rpc_error(q->call, error, "%s", text);
		json_decref(reply);
	} else {
		if (reply && !first)
			(void)json_object_set_new(reply, "audited", json_boolean(audited));
		admin_remember(q->admin, q, reply);
		rpc_reply(q->call, reply);
	}
	if (first)
		(void)admin_write(q, error, text);
	admin_forget(q);
}

void admin_forget(struct admin_request *q)
{
	if (q)
		json_decref(q->from);
	free(q);
}

static void admin_answered(void *arg, const char *error, const char *text, uint32_t quarantined)
{
	struct admin_request *q = arg;
	const struct store_state *s = &act_rollout(q->admin->o.act)->s;
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

static void admin_submitted(void *arg, uint32_t version, const char *error, const char *text)
{
	admin_end(arg, error ? NULL : json_pack("{s:I}", "version", (json_int_t)version), error, text);
}

void admin_submit(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;
	const char *path = json_string_value(json_object_get(params, "path"));
	struct admin_request *q;
	int r;

	if (!path) {
		admin_bad(call, "path: a folder in the store's incoming");
		return;
	}
	if (fleet_follows(a->o.fleet)) {
		rpc_error(call, "io.redraft.BadVersion", "this redraftd follows a fleet (fleet.role): candidates are handed in at its leader");
		return;
	}
	q = admin_begin(a, call, "Submit", params);
	if (!q)
		return;
	snprintf(q->detail, sizeof q->detail, "%.80s", path);
	r = act_submit(a->o.act, path, 0, admin_submitted, q);
	if (r == -EBUSY)
		admin_end(q, NULL, "io.redraft.Busy", "another submission is being verified; try again");
	else if (r < 0)
		admin_end(q, NULL, r == -ENAMETOOLONG ? "io.redraft.BadVersion" : "io.redraft.Busy", strerror(-r));
}

void admin_promote(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;
	json_t *expected = json_object_get(params, "expected_generation");
	struct admin_request *q;
	uint32_t version;

	if (admin_version(call, params, "version", false, &version) < 0)
		return;
	if (expected && !json_is_null(expected) && (!json_is_integer(expected) || json_integer_value(expected) < 0)) {
		admin_bad(call, "expected_generation: a number from 0");
		return;
	}
	q = admin_begin(a, call, "Promote", params);
	if (!q)
		return;
	snprintf(q->detail, sizeof q->detail, "version %u", version);
	act_promote(a->o.act, version, json_is_integer(expected) ? json_integer_value(expected) : -1, admin_answered, q);
}

void admin_rollback(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;
	struct admin_request *q = admin_begin(a, call, "Rollback", params);
	char who[sizeof q->who + sizeof q->why + 2], id[sizeof q->id];

	if (!q)
		return;
	memcpy(id, q->id, sizeof id);
	snprintf(q->detail, sizeof q->detail, "version %u", act_rollout(a->o.act)->s.live);
	snprintf(who, sizeof who, "%s%s%s", q->who, q->why[0] ? ": " : "", q->why); /* q may be gone while this is looked at */
	act_rollback(a->o.act, who, id, admin_answered, q);
}

void admin_pin(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;
	struct admin_request *q;
	uint32_t version;

	if (admin_version(call, params, "version", true, &version) < 0)
		return;
	q = admin_begin(a, call, "Pin", params);
	if (!q)
		return;
	if (version)
		snprintf(q->detail, sizeof q->detail, "version %u", version);
	act_pin(a->o.act, version, admin_answered, q);
}

/* What is said with nothing but why: said to the rollout too, or not. */
static void admin_stop(struct admin *a, struct rpc_call *call, const char *method, json_t *params,
		       void (*verb)(struct act *act, const char *why, act_answer *answer, void *arg))
{
	struct admin_request *q = admin_begin(a, call, method, params);
	char why[ADMIN_REASON + 1];

	if (!q)
		return;
	memcpy(why, q->why, sizeof why); /* q may be answered and gone while this is looked at */
	verb(a->o.act, why[0] ? why : NULL, admin_answered, q);
}

static void admin_go_on(struct admin *a, struct rpc_call *call, const char *method, json_t *params,
			void (*verb)(struct act *act, act_answer *answer, void *arg))
{
	struct admin_request *q = admin_begin(a, call, method, params);

	if (q)
		verb(a->o.act, admin_answered, q);
}

void admin_unpin(void *ctx, struct rpc_call *call, json_t *params)
{
	admin_go_on(ctx, call, "Unpin", params, act_unpin);
}

void admin_hold(void *ctx, struct rpc_call *call, json_t *params)
{
	admin_stop(ctx, call, "Hold", params, act_hold);
}

void admin_pause(void *ctx, struct rpc_call *call, json_t *params)
{
	admin_stop(ctx, call, "PauseRollout", params, act_pause);
}

void admin_resume(void *ctx, struct rpc_call *call, json_t *params)
{
	admin_go_on(ctx, call, "ResumeRollout", params, act_resume);
}

void admin_release(void *ctx, struct rpc_call *call, json_t *params)
{
	admin_go_on(ctx, call, "Release", params, act_release);
}
