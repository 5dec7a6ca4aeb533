/* Probe: the pinned prompts, served with one loaded version (probe.h). One set at a time; the answer comes when the last
 * of them is through.
 */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>
#include "daemon/base/loop.h"
#include "serve/control_inside.h"
#include "serve/probe.h"
#include "serve/tokenizer.h"

enum { MAX_PROBES = 32, MAX_TEXT = 4096, MAX_TOKENS = 256 };

struct probe_one {
	struct probe_job *job;
	struct probe features;
	struct request_stats stats;
	uint64_t handle;
	int n_prompt;
	enum finish why;
};

struct probe_job {
	struct control *c;
	struct rpc_call *call;
	uint32_t version;
	int n, k;
	atomic_int left; /* running, and one for him who starts them */
	bool refused;
	struct probe_one one[MAX_PROBES];
};

static json_t *features_json(const struct probe *p)
{
	json_t *list = json_array();

	for (int b = 0; b < PROBE_BOUNDARIES; b++) {
		json_t *signs = json_array();

		for (int k = 0; k < PROBE_SIGNS; k++)
			(void)json_array_append_new(signs, json_real(probe_projection(p, b, k)));
		(void)json_array_append_new(list, json_pack("{s:f,s:o}", "rms", probe_rms(p, b), "projections", signs));
	}
	return list;
}

/* A prompt whose features are not finite has none that JSON could say. */
static bool sound(const struct probe_one *o)
{
	bool finite = true;

	for (int b = 0; b < PROBE_BOUNDARIES; b++)
		finite = finite && isfinite(probe_rms(&o->features, b));
	return finite;
}

/* On the loop: all are through. */
static void probed(void *arg)
{
	struct probe_job *j = arg;
	json_t *list = json_array();
	bool ok = !j->refused;

	for (int i = 0; i < j->n; i++) {
		const struct probe_one *o = &j->one[i];

		ok = ok && (o->why == FINISH_LENGTH || o->why == FINISH_STOP);
		(void)json_array_append_new(list, json_pack("{s:i,s:I,s:I,s:I,s:o}", "tokens", o->n_prompt, "rounds", (json_int_t)o->stats.proposing_rounds, "proposed",
							    (json_int_t)o->stats.proposed, "accepted", (json_int_t)o->stats.accepted, "features",
							    sound(o) ? features_json(&o->features) : json_array()));
	}
	if (ok) {
		rpc_reply(j->call, json_pack("{s:I,s:i,s:o}", "version", (json_int_t)j->version, "k", j->k, "probes", list));
	} else {
		rpc_error(j->call, "io.redraft.Busy", "the server has no room for probes now");
		json_decref(list);
	}
	j->c->probes = NULL;
	free(j);
}

/* j may be gone as soon as nothing is left (control_probes_end). */
static void over(struct probe_job *j)
{
	struct loop *loop = j->c->o.loop;

	if (atomic_fetch_sub(&j->left, 1) != 1)
		return;
	while (loop_post(loop, probed, j) < 0)
		usleep(10000);
}

static void on_tokens(void *arg, const uint32_t *ids, int n)
{
	(void)arg;
	(void)ids;
	(void)n;
}

static void on_done(void *arg, enum finish why, const struct request_stats *s, const char *error)
{
	struct probe_one *o = arg;

	(void)error;
	o->why = why;
	o->stats = *s;
	over(o->job);
}

static void submit(struct probe_job *j, struct probe_one *o, const uint32_t *ids, size_t n, int max_tokens)
{
	struct engine_request r = {.prompt = ids, .n_prompt = (int)n, .max_tokens = max_tokens, .ignore_eos = true, .no_trace = true, .probe = &o->features,
				   .probe_version = j->version, .request_id = "probe", .domain = "probe", .client = "probe",
				   .priority = -ENGINE_MAX_PRIORITY, .on_tokens = on_tokens, .on_done = on_done, .arg = o};

	r.sampling.top_p = 1;
	o->job = j;
	o->n_prompt = (int)n;
	atomic_fetch_add(&j->left, 1);
	if (engine_submit(j->c->o.engine, &r, &o->handle) != 0) {
		j->refused = true;
		atomic_fetch_sub(&j->left, 1);
	}
}

static bool good_prompts(const json_t *prompts)
{
	size_t n = json_array_size(prompts);
	bool good = n >= 1 && n <= MAX_PROBES;

	for (size_t i = 0; good && i < n; i++)
		good = json_string_length(json_array_get(prompts, i)) >= 1 && json_string_length(json_array_get(prompts, i)) <= MAX_TEXT;
	return good;
}

void on_probe(void *ctx, struct rpc_call *call, json_t *p)
{
	struct control *c = ctx;
	const json_t *prompts = json_object_get(p, "prompts");
	uint32_t version, max_tokens = 32;
	struct engine_status s;
	struct probe_job *j;

	if (!control_u32(p, "version", true, &version) || !control_u32(p, "max_tokens", false, &max_tokens) || max_tokens < 1 || max_tokens > MAX_TOKENS) {
		control_invalid(call, "version or max_tokens");
		return;
	}
	if (!c->o.tokenizer || !good_prompts(prompts)) {
		rpc_error(call, "org.varlink.service.InvalidParameter", "prompts must be 1 to %d texts of 1 to %d bytes", MAX_PROBES, MAX_TEXT);
		return;
	}
	if (control_loading(c, call, version))
		return;
	engine_status(c->o.engine, &s);
	if (!control_ready(&s, version)) {
		rpc_error(call, "io.redraft.BadVersion", "version %u is not loaded", version);
		return;
	}
	j = c->probes ? NULL : calloc(1, sizeof *j);
	if (!j) {
		rpc_error(call, "io.redraft.Busy", "probes are running");
		return;
	}
	*j = (struct probe_job){.c = c, .call = call, .version = version, .k = s.draft_k};
	atomic_init(&j->left, 1);
	c->probes = j;
	for (size_t i = 0; i < json_array_size(prompts); i++) {
		const json_t *text = json_array_get(prompts, i);
		uint32_t *ids = NULL;
		size_t n = 0;

		if (tokenizer_encode(c->o.tokenizer, json_string_value(text), json_string_length(text), false, SIZE_MAX, &ids, &n) || n < 1)
			j->refused = true;
		else
			submit(j, &j->one[j->n++], ids, n, (int)max_tokens);
		free(ids);
	}
	over(j);
}

/* The loop has stopped: cancel, wait for the engine's last word, tell the caller's end. */
void control_probes_end(struct control *c)
{
	struct probe_job *j = c->probes;

	if (!j)
		return;
	for (int i = 0; i < j->n; i++)
		engine_cancel(c->o.engine, j->one[i].handle);
	while (atomic_load(&j->left) > 0)
		usleep(1000);
	rpc_error(j->call, "io.redraft.Busy", "the server is stopping");
	free(j);
	c->probes = NULL;
}
