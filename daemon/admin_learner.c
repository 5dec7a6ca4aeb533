/* What the learner is asked for, and its answer passed on: what would version N have done (Replay), and: forget this tenant
 * (Purge). A purge also says what it cannot reach.
 */
#include <ctype.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/act.h"
#include "daemon/admin_inside.h"
#include "daemon/base/loop.h"
#include "daemon/base/loop_guard.h"

enum { REPLAY_MS = 600000, PURGE_MS = 600000, TENANT_LEAST = 8, TENANT_MOST = 64 };

/* A question that is out. The loop may end before it is answered; then it is dropped here. */
struct admin_asked {
	struct loop_guard guard;
	struct rpc_call *call;
	struct admin_request *change; /* or NULL */
};

static void asked_drop(struct loop_guard *g)
{
	struct admin_asked *x = (struct admin_asked *)(void *)((char *)g - offsetof(struct admin_asked, guard));

	rpc_reply(x->call, NULL); /* whoever asked has been hung up on */
	admin_forget(x->change);
	free(x);
}

static void asked_error(const struct admin_asked *x, const char *name, const char *text)
{
	if (x->change)
		admin_end(x->change, NULL, name, text);
	else
		rpc_error(x->call, name, "%s", text);
}

/* "NAME: text" as the learner said it: the same error of ours where we declare one of that name, else Failed, with its own in the text. */
static const char *asked_name(const char *error, const char **ret_text)
{
	static const char *const same[][2] = {
		{"io.redraft.Learn.Busy: ", "io.redraft.Busy"},
		{"io.redraft.Learn.NotEnough: ", "io.redraft.NotEnough"},
		{"io.redraft.Learn.BadVersion: ", "io.redraft.BadVersion"},
		{"org.varlink.service.InvalidParameter: ", "org.varlink.service.InvalidParameter"},
	};

	for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
		size_t n = strlen(same[i][0]);

		if (!strncmp(error, same[i][0], n)) {
			*ret_text = error + n;
			return same[i][1];
		}
	}
	*ret_text = error;
	return "io.redraft.Failed";
}

static void asked_answered(void *arg, int r, json_t *params, const char *error)
{
	struct admin_asked *x = arg;
	const char *name, *said;
	char text[300];

	if (r < 0) {
		snprintf(text, sizeof text, "the learner does not answer: %.200s", error);
		asked_error(x, "io.redraft.LearnerAbsent", text);
	} else if (r > 0) {
		name = asked_name(error, &said);
		snprintf(text, sizeof text, "%.290s", said);
		asked_error(x, name, text);
	} else if (x->change) {
		static const char kept[] = "Kafka holds the tenant's records until their retention has passed (redraftctl topics); copies and backups outside are yours to "
					   "find. What the weights have learned stays in them: to take that back, rebase the learner to a version whose training "
					   "cut is older, and quarantine those that are newer.";

		(void)json_object_set_new(params, "kept", json_string(kept));
		admin_end(x->change, json_incref(params), NULL, "");
	} else {
		rpc_reply(x->call, json_incref(params));
	}
	loop_guard_remove(&x->guard);
	free(x);
}

static void ask(struct admin *a, struct rpc_call *call, struct admin_request *change, const char *method, json_t *params, int ms)
{
	struct admin_asked *x = calloc(1, sizeof *x);
	int r = x ? 0 : -ENOMEM;

	if (x)
		*x = (struct admin_asked){.guard.drop = asked_drop, .call = call, .change = change};
	if (!r)
		r = rpc_call_async(a->o.loop, a->o.learn_socket, method, params, ms, asked_answered, x);
	else
		json_decref(params);
	if (!r) {
		loop_guard_add(a->o.loop, &x->guard);
		return;
	}
	asked_error(&(struct admin_asked){.call = call, .change = change}, "io.redraft.Busy", "out of memory");
	free(x);
}

void admin_replay(void *ctx, struct rpc_call *call, json_t *params)
{
	const json_t *requests = json_object_get(params, "requests");
	struct admin *a = ctx;
	uint32_t version;
	json_t *p;

	if (admin_version(call, params, "version", false, &version) < 0)
		return;
	if (!rollout_find(act_rollout(a->o.act), version)) {
		rpc_error(call, "io.redraft.BadVersion", "there is no version %u", version);
		return;
	}
	p = json_pack("{s:I}", "version", (json_int_t)version);
	if (json_is_integer(requests))
		(void)json_object_set_new(p, "requests", json_integer(json_integer_value(requests)));
	ask(a, call, NULL, "io.redraft.Learn.Replay", p, REPLAY_MS);
}

void admin_purge(void *ctx, struct rpc_call *call, json_t *params)
{
	struct admin *a = ctx;
	struct admin_request *q;
	const char *tenant;
	bool good;

	if (admin_text(call, params, "tenant", TENANT_MOST, &tenant) < 0)
		return;
	good = strlen(tenant) >= TENANT_LEAST;
	for (const char *p = tenant; *p; p++)
		good = good && isxdigit((unsigned char)*p);
	if (!good && strcmp(tenant, "anonymous") != 0) {
		(void)admin_bad(call, "tenant: its keyed hash as records carry it, hexadecimal digits, or anonymous");
		return;
	}
	q = admin_begin(a, call, "Purge", params);
	if (!q)
		return;
	snprintf(q->detail, sizeof q->detail, "tenant %.64s", tenant);
	ask(a, call, q, "io.redraft.Learn.Purge", json_pack("{s:s}", "tenant", tenant), PURGE_MS);
}
