/* Status, versions and drift as JSON (report.h). Peers' own statuses are passed on whole,
 * with "up" added, so that nothing has to be kept in step with them here.
 */
#include "daemon/report.h"
#include <string.h>
#include <unistd.h>
#include "daemon/act_canary.h"
#include "daemon/audit.h"
#include "daemon/base/clock.h"
#include "daemon/watch.h"

json_t *report_text(const char *s)
{
	json_t *j = json_string(s);
	char plain[512];
	size_t n = 0;

	if (j)
		return j;
	for (; s[n] && n + 1 < sizeof plain; n++)
		plain[n] = (unsigned char)s[n] < 0x80 ? s[n] : '?';
	plain[n] = '\0';
	return json_string(plain);
}

json_t *report_version(struct act *a, const struct version_entry *v, json_t **ret_manifest, json_t **ret_verdict)
{
	json_t *manifest = store_read_json(act_store(a), v->number, "manifest.json");
	json_t *verdict = store_read_json(act_store(a), v->number, "verdict.json");
	const char *created = json_string_value(json_object_get(manifest, "created"));
	const char *sha = json_string_value(json_object_get(manifest, "weights_sha"));

	*ret_manifest = manifest;
	*ret_verdict = verdict;
	return json_pack("{s:I, s:s, s:I, s:s, s:o, s:s, s:O?, s:O?}", "version", (json_int_t)v->number, "state",
			 version_state_name(v->state), "parent", json_integer_value(json_object_get(manifest, "parent")), "created",
			 created ? created : "", "reason", report_text(v->reason), "weights_sha", sha ? sha : "", "training",
			 json_object_get(manifest, "training"), "verdict", verdict);
}

json_t *report_versions(struct act *a, int most)
{
	const struct rollout *r = act_rollout(a);
	json_t *list = json_array();

	for (int i = r->s.n_versions > most ? r->s.n_versions - most : 0; list && i < r->s.n_versions; i++) {
		json_t *manifest, *verdict;

		(void)json_array_append_new(list, report_version(a, &r->s.versions[i], &manifest, &verdict));
		json_decref(manifest);
		json_decref(verdict);
	}
	return list;
}

/* The peer's own last status, with "up" in front. */
static json_t *report_peer(json_t *status, bool up)
{
	json_t *j = status ? json_copy(status) : json_object();

	if (j)
		(void)json_object_set_new(j, "up", json_boolean(up));
	return j;
}

/* version 0: none runs. seen: what its requests show so far, a sentence. */
static json_t *report_canary(const struct act *a)
{
	const struct store_state *s = &act_rollout(a)->s;

	return json_pack("{s:I, s:I, s:s, s:o}", "version", (json_int_t)s->canary.version, "permille", (json_int_t)s->canary.permille, "since",
			 s->canary.since, "seen", report_text(act_canary_text(a)));
}

/* What is being switched to; phase "": nothing is. */
static json_t *report_moving(const struct rollout *r)
{
	static const char *const phases[] = {[RO_IDLE] = "", [RO_LOADING] = "loading", [RO_ACTIVATING] = "activating", [RO_CANARYING] = "canary"};
	static const char *const whys[] = {[RO_WHY_GATE] = "accepted", [RO_WHY_OPERATOR] = "promote", [RO_WHY_RESTORE] = "restore",
					   [RO_WHY_BACK] = "rollback", [RO_WHY_CANARY] = "canary", [RO_WHY_FLEET] = "fleet"};
	bool moves = r->op.phase != RO_IDLE;
	double s = moves ? (double)(clock_us() - r->op.since_us) / 1e6 : 0;

	return json_pack("{s:s, s:I, s:s, s:f}", "phase", phases[r->op.phase], "version", (json_int_t)(moves ? r->op.version : 0), "why",
			 moves ? whys[r->op.why] : "", "since_s", s);
}

json_t *report_status(struct act *a, struct watch *w, struct audit *audit, uint64_t start_us)
{
	const struct rollout *r = act_rollout(a);
	const char *fp = act_target_fp(a);

	return json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:b, s:o, s:o, s:s?, s:o, s:o, s:o, s:o, s:o, s:o}", "pid", (int)getpid(), "uptime_s",
			 (json_int_t)((clock_us() - start_us) / 1000000), "generation", (json_int_t)r->s.generation, "live",
			 (json_int_t)r->s.live, "previous", (json_int_t)r->s.previous, "base", (json_int_t)r->s.base, "pin",
			 (json_int_t)r->s.pin, "hold", (int)r->s.hold, "paused", (int)r->s.paused, "frozen", (int)r->frozen, "moving",
			 report_moving(r), "canary", report_canary(a), "target_fp", fp[0] ? fp : NULL, "serve",
			 report_peer(act_serve_status(a), r->serve_up), "learn", report_peer(act_learn_status(a), r->learn_up), "domains",
			 w ? watch_domains(w) : json_object(), "last_event", report_text(act_last_event(a)), "audit", audit ? audit_status(audit) : json_null(), "watch",
			 w ? watch_kafka(w) : json_null());
}

json_t *report_drift(struct act *a, struct watch *w)
{
	return json_pack("{s:i, s:o, s:o}", "level", act_drift_level(a), "decay", report_text(act_decay(a)), "streams",
			 w ? watch_streams(w) : json_array());
}
