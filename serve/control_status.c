/* What the server says of itself at its control socket: Status, Config; and the one switch that is no version's, SetCapture. */
#include <unistd.h>
#include "daemon/base/clock.h"
#include "serve/control_inside.h"
#include "serve/tap.h"

static json_t *slots_json(const struct engine_status *s)
{
	json_t *a = json_array();

	for (int i = 0; i < 4; i++)
		json_array_append_new(a, json_pack("{s:I,s:s,s:s,s:i}", "version", (json_int_t)s->slots[i].version, "state", s->slots[i].state,
						   "weights_sha", s->slots[i].weights_sha, "requests", s->slots[i].requests));
	return a;
}

static json_t *tokens_json(const struct engine_status *s)
{
	json_t *accepted = json_array(), *proposed = json_array();

	for (int i = 0; i < ENGINE_MAX_K; i++) {
		json_array_append_new(accepted, json_integer((json_int_t)s->accepted_at[i]));
		json_array_append_new(proposed, json_integer((json_int_t)s->proposed_at[i]));
	}
	return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:o,s:o}", "prompt", (json_int_t)s->tokens_prompt, "generated",
			 (json_int_t)s->tokens_generated, "rounds", (json_int_t)s->rounds, "proposing_rounds", (json_int_t)s->proposing_rounds,
			 "proposed", (json_int_t)s->proposed, "accepted", (json_int_t)s->accepted, "accepted_at", accepted, "proposed_at",
			 proposed);
}

static json_t *records_json(struct control *c)
{
	struct tap_stats t = {0};

	if (c->o.tap)
		tap_stats(c->o.tap, &t);
	return json_pack("{s:b,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "enabled", c->o.tap && c->capture, "records", (json_int_t)t.records,
			 "bytes", (json_int_t)t.bytes, "delivered", (json_int_t)t.delivered, "rounds", (json_int_t)t.rounds, "dropped_ring",
			 (json_int_t)t.dropped_ring, "dropped_queue", (json_int_t)t.dropped_queue, "dropped_broker",
			 (json_int_t)t.dropped_broker, "dropped_size", (json_int_t)t.dropped_size, "requests_traced",
			 (json_int_t)t.requests_traced, "requests_skipped", (json_int_t)t.requests_skipped);
}

static json_t *live_cut(struct control *c)
{
	for (int i = 0; i < 4; i++)
		if (c->cuts[i].cut && c->cuts[i].version == control_live(c))
			return json_incref(c->cuts[i].cut);
	return json_null();
}

void on_status(void *ctx, struct rpc_call *call, json_t *p)
{
	struct control *c = ctx;
	struct engine_status s;
	json_t *j;

	(void)p;
	engine_status(c->o.engine, &s);
	j = json_pack("{s:s,s:s,s:i,s:I,s:I,s:I,s:I,s:s,s:o}", "target_fp", c->o.target_fp, "model", c->o.model_name, "pid", (int)getpid(),
		      "uptime_s", (json_int_t)((clock_us() - c->start_us) / 1000000), "generation", (json_int_t)c->generation, "live",
		      (json_int_t)control_live(c), "previous", (json_int_t)control_previous(c, &s), "source", control_source_name(c->source), "slots", slots_json(&s));
	if (j) {
		json_object_set_new(j, "left", override_left(c->left, c->n_left));
		json_object_set_new(j, "canary", canary_json(&s));
		json_object_set_new(j, "running", json_integer(s.running));
		json_object_set_new(j, "waiting", json_integer(s.waiting));
		json_object_set_new(j, "draft_k", json_integer(s.draft_k));
		json_object_set_new(j, "cut", live_cut(c));
		json_object_set_new(j, "records", records_json(c));
		json_object_set_new(j, "tokens", tokens_json(&s));
		json_object_set_new(j, "latency", json_pack("{s:f,s:f,s:f,s:f}", "round_ms_p50", s.round_ms_p50, "round_ms_p95", s.round_ms_p95,
							    "recent_ms_p95", s.recent_ms_p95, "max_gap_ms", s.max_gap_ms));
	}
	rpc_reply(call, j);
}

void on_capture(void *ctx, struct rpc_call *call, json_t *p)
{
	struct control *c = ctx;
	const json_t *v = json_object_get(p, "enabled");

	if (!json_is_boolean(v)) {
		control_invalid(call, "enabled");
		return;
	}
	c->capture = c->o.tap && json_is_true(v);
	if (c->o.tap)
		tap_set_enabled(c->o.tap, c->capture);
	rpc_reply(call, json_pack("{s:b}", "enabled", c->capture));
}

void on_config(void *ctx, struct rpc_call *call, json_t *p)
{
	struct control *c = ctx;

	(void)p;
	rpc_reply(call, json_pack("{s:o}", "config", c->o.config ? c->o.config(c->o.config_arg) : json_object()));
}
