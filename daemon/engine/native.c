/* redraft-serve over its control socket (schemas/admin/io.redraft.Serve.varlink).
 * A call is a small heap record that carries the caller's done until the answer.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/base/loop_guard.h"
#include "daemon/base/rpc.h"
#include "daemon/engine/engine.h"

enum { STATUS_MS = 3000, LOAD_MS = 120000, ACTIVATE_MS = 5000, UNLOAD_MS = 5000, PROBE_MS = 120000, MOVE_DEADLINE_MS = 60000 };

struct native_call {
	struct loop_guard guard;
	engine_done *done;
	void *arg;
	bool is_status;
};

static void native_drop(struct loop_guard *g)
{
	free((char *)g - offsetof(struct native_call, guard));
}

/* "io.redraft.Serve.NoSlot: text" by the error's last name. */
static enum ro_result native_error(const char *text)
{
	static const struct {
		const char *name;
		enum ro_result result;
	} known[] = {{"NoSlot", RO_LATER}, {"Busy", RO_LATER}, {"GenerationMismatch", RO_GENERATION}};
	size_t n = strcspn(text, ":");

	while (n && text[n - 1] != '.')
		n--;
	text += n;
	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		size_t len = strlen(known[i].name);

		if (!strncmp(text, known[i].name, len) && (text[len] == ':' || !text[len]))
			return known[i].result;
	}
	return RO_BAD;
}

static uint32_t native_u32(const json_t *o, const char *key)
{
	json_int_t v = json_integer_value(json_object_get(o, key));

	return v > 0 && v < UINT32_MAX ? (uint32_t)v : 0;
}

static uint64_t native_u64(const json_t *o, const char *key)
{
	json_int_t v = json_integer_value(json_object_get(o, key));

	return v > 0 ? (uint64_t)v : 0;
}

static void native_read_status(json_t *params, struct engine_status *s)
{
	const char *source = json_string_value(json_object_get(params, "source"));
	const char *fp = json_string_value(json_object_get(params, "target_fp"));
	const json_t *canary = json_object_get(params, "canary"); /* absent: a server that has none */
	const char *salt = json_string_value(json_object_get(canary, "salt"));
	const json_t *left = json_object_get(params, "left"), *v; /* absent: an older server */
	size_t i;

	*s = (struct engine_status){.generation = native_u64(params, "generation"),
				    .live = native_u32(params, "live"),
				    .previous = native_u32(params, "previous"),
				    .canary = native_u32(canary, "version"),
				    .permille = native_u32(canary, "permille"),
				    .salt = salt ? salt : "",
				    .by_operator = source && !strcmp(source, "operator"),
				    .by_daemon = source && !strcmp(source, "daemon"),
				    .raw = params};
	s->n_left = json_is_array(left) ? 0 : -1;
	json_array_foreach((json_t *)(uintptr_t)left, i, v)
		if (s->n_left < ENGINE_LEFT && json_integer_value(v) > 0 && json_integer_value(v) < UINT32_MAX)
			s->left[s->n_left++] = (uint32_t)json_integer_value(v);
	if (fp && strlen(fp) < sizeof s->target_fp)
		memcpy(s->target_fp, fp, strlen(fp) + 1);
}

static void native_answered(void *arg, int r, json_t *params, const char *error)
{
	struct native_call *c = arg;
	struct engine_status status;
	struct engine_answer a = {.result = RO_OK, .text = error ? error : ""};

	if (r == RPC_E_REMOTE)
		a.result = native_error(a.text);
	else if (r == -ENOENT || r == -ECONNREFUSED || r == -ECONNRESET)
		a.result = RO_NOBODY;
	else if (r < 0)
		a.result = RO_HUNG;
	if (!r) {
		a.weights_sha = json_string_value(json_object_get(params, "weights_sha"));
		a.generation = native_u64(params, "generation");
		a.raw = params;
	}
	if (!r && c->is_status) {
		native_read_status(params, &status);
		a.status = &status;
	}
	loop_guard_remove(&c->guard);
	if (c->done)
		c->done(c->arg, &a);
	free(c);
}

static void native_call(struct engine *x, const char *method, json_t *params, int timeout_ms, engine_done *done, void *arg)
{
	struct native_call *c = malloc(sizeof *c);
	int r = -ENOMEM;

	if (!c) {
		json_decref(params);
	} else {
		*c = (struct native_call){.guard.drop = native_drop, .done = done, .arg = arg,
					  .is_status = !strcmp(method, "io.redraft.Serve.Status")};
		r = rpc_call_async(x->loop, x->socket_path, method, params, timeout_ms, native_answered, c);
		if (!r)
			loop_guard_add(x->loop, &c->guard);
	}
	if (r < 0) { /* out of memory: told at once, the one case that is not from the loop */
		const struct engine_answer a = {.result = RO_HUNG, .text = "out of memory"};

		free(c);
		if (done)
			done(arg, &a);
	}
}

static void native_status(struct engine *x, engine_done *done, void *arg)
{
	native_call(x, "io.redraft.Serve.Status", NULL, STATUS_MS, done, arg);
}

static void native_load(struct engine *x, uint32_t version, const char *path, const char *sha, engine_done *done, void *arg)
{
	native_call(x, "io.redraft.Serve.Load",
		    json_pack("{s:I, s:s, s:s}", "version", (json_int_t)version, "path", path, "weights_sha", sha), LOAD_MS,
		    done, arg);
}

static void native_activate(struct engine *x, uint32_t version, bool all, int64_t expected, bool by_operator, const char *request,
			    engine_done *done, void *arg)
{
	json_t *p = json_pack("{s:I, s:s, s:s}", "version", (json_int_t)version, "move", all ? "all" : "new", "source",
			      by_operator ? "operator" : "daemon");

	if (p && !all)
		(void)json_object_set_new(p, "deadline_ms", json_integer(MOVE_DEADLINE_MS));
	if (p && expected >= 0)
		(void)json_object_set_new(p, "expected_generation", json_integer(expected));
	if (p && request[0])
		(void)json_object_set_new(p, "request_id", json_string(request));
	native_call(x, "io.redraft.Serve.Activate", p, ACTIVATE_MS, done, arg);
}

static void native_canary(struct engine *x, uint32_t version, uint32_t permille, const char *salt, int64_t expected,
			  engine_done *done, void *arg)
{
	json_t *p = json_pack("{s:I}", "version", (json_int_t)version);

	if (p && version) {
		(void)json_object_set_new(p, "permille", json_integer(permille));
		(void)json_object_set_new(p, "salt", json_string(salt));
	}
	if (p && expected >= 0)
		(void)json_object_set_new(p, "expected_generation", json_integer(expected));
	native_call(x, "io.redraft.Serve.Canary", p, ACTIVATE_MS, done, arg);
}

static void native_unload(struct engine *x, uint32_t version)
{
	native_call(x, "io.redraft.Serve.Unload", json_pack("{s:I}", "version", (json_int_t)version), UNLOAD_MS, NULL, NULL);
}

static void native_probe(struct engine *x, uint32_t version, json_t *prompts, int max_tokens, engine_done *done, void *arg)
{
	native_call(x, "io.redraft.Serve.Probe",
		    json_pack("{s:I, s:o, s:i}", "version", (json_int_t)version, "prompts", prompts, "max_tokens", max_tokens), PROBE_MS, done, arg);
}

const struct engine_kind engine_native = {
	.name = "native",
	.status = native_status,
	.load = native_load,
	.activate = native_activate,
	.canary = native_canary,
	.unload = native_unload,
	.probe = native_probe,
};
