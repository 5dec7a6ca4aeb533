/* The learner's side of what the daemon does: evaluations asked for and judged,
 * verdicts and rebases delivered in order. What it has not confirmed stays in the
 * outbox until it is there, and free: one that is ending, as on a full disk, says Busy, and hears it in its
 * next life. Any other error it answers with is logged and dropped, since saying the same again would not help.
 */
#include <stdlib.h>
#include <string.h>
#include "daemon/act_inside.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/rpc.h"

enum { TELL_MS = 30000, ASK_MS = 3000, EVALUATE_MS = 600000, SILENT_MAX = 5 };

static void act_told(void *arg, int r, json_t *params, const char *error)
{
	static const char busy[] = "io.redraft.Learn.Busy:";
	struct act *a = arg;

	(void)params;
	a->sending = false;
	if (r < 0 || (r == RPC_E_REMOTE && !strncmp(error, busy, sizeof busy - 1)))
		return; /* not there, or not now: act_ask_learner finds it again and sends on */
	if (r > 0)
		log_warn("%s: %s; not said again", a->outbox[0].method, error);
	json_decref(a->outbox[0].params);
	memmove(&a->outbox[0], &a->outbox[1], (size_t)(--a->n_outbox) * sizeof a->outbox[0]);
	act_send(a);
}

void act_send(struct act *a)
{
	if (a->sending || !a->n_outbox || !a->r.learn_up)
		return;
	a->sending = rpc_call_async(a->loop, a->o.learn_socket, a->outbox[0].method, json_incref(a->outbox[0].params),
				    TELL_MS, act_told, a) == 0;
}

void act_tell(struct act *a, const char *method, json_t *params)
{
	if (a->n_outbox == ACT_MAX_OUTBOX) { /* a learner gone for days: the oldest matters least; [0] may be on its way */
		json_decref(a->outbox[1].params);
		memmove(&a->outbox[1], &a->outbox[2], (ACT_MAX_OUTBOX - 2) * sizeof a->outbox[0]);
		a->n_outbox--;
	}
	snprintf(a->outbox[a->n_outbox].method, sizeof a->outbox[0].method, "%s", method);
	a->outbox[a->n_outbox++].params = params;
	act_send(a);
}

/* verdict.json says what was decided and on what; once, by what became of the version. */
static void act_write_verdict(struct act *a, const struct gate_verdict *v)
{
	const struct version_entry *entry = rollout_find(&a->r, a->eval.version);
	const char *word = !entry || entry->state == VS_CANDIDATE ? NULL
			   : v->outcome == GATE_UNDECIDED	  ? "superseded"
			   : entry->state == VS_REJECTED	  ? "rejected"
								  : "accepted";
	struct errtext e;
	json_t *j;
	int r;

	if (!word)
		return;
	j = gate_json(&a->o.gate, v);
	if (j) {
		(void)json_object_set_new(j, "verdict", json_string(word));
		(void)json_object_set_new(j, "against", json_integer(a->eval.against));
		(void)json_object_set_new(j, "k", json_integer(a->o.gate_k));
	}
	r = store_write_verdict(a->store, a->eval.version, j, &e);
	if (r < 0 && r != -EEXIST)
		log_warn("%s; the state has the reason", e.text);
}

enum ro_result act_judge(struct act *a, json_t *params, uint32_t against, struct gate_verdict *v)
{
	static const enum ro_result results[] = {[GATE_ACCEPT] = RO_OK, [GATE_REJECT] = RO_BAD, [GATE_UNDECIDED] = RO_LATER};
	struct gate_pair *pairs = malloc(GATE_MAX_PAIRS * sizeof *pairs);
	struct errtext e = {.text = "out of memory"};
	const json_t *pinned = json_object_get(params, "pinned"); /* asked for only of a candidate that is accepted; an older learner knows none */
	int n = pairs ? gate_read_pairs(json_object_get(params, "pairs"), pairs, GATE_MAX_PAIRS, &e) : -ENOMEM;

	if (n >= 0) {
		gate_decide(&a->o.gate, pairs, n, against, v);
		n = pinned && !json_is_null(pinned) ? gate_read_pairs(pinned, pairs, GATE_MAX_PAIRS, &e) : 0;
		if (n > 0)
			gate_guard(&a->o.gate, pairs, n, v);
	}
	if (n < 0) {
		*v = (struct gate_verdict){.outcome = GATE_UNDECIDED};
		snprintf(v->reason, sizeof v->reason, "the learner's answer is no use: %.100s", e.text);
		log_warn("%s", v->reason);
	}
	free(pairs);
	return results[v->outcome];
}

static int act_ask(struct act *a, bool pinned);

static void act_evaluated(void *arg, int r, json_t *params, const char *error)
{
	struct act *a = arg;
	struct ro_event ev = {.kind = RO_EVALUATED, .id = a->eval.id, .version = a->eval.version,
			      .took_us = clock_us() - a->eval.started_us};
	struct gate_verdict v = {.outcome = GATE_UNDECIDED};
	bool stale = !a->r.eval.running || a->r.eval.id != a->eval.id;

	if (r == 0) {
		ev.result = act_judge(a, params, a->eval.against, &v);
		if (ev.result == RO_OK && a->eval.against && !a->eval.pinned && !stale && act_ask(a, true) >= 0)
			return; /* it goes on only where it has forgotten nothing; what was replayed is not replayed again */
		ev.full = json_is_true(json_object_get(params, "full"));
	} else if (r < 0) {
		ev.result = RO_NOBODY;
	} else if (strstr(error, "BadVersion")) { /* it cannot even be read there */
		ev.result = RO_BAD;
		snprintf(v.reason, sizeof v.reason, "%.150s", error);
	} else if (strstr(error, "NotReplayable")) { /* a kind of draft that no replay can judge: the canary does */
		ev.result = RO_UNFIT;
		snprintf(v.reason, sizeof v.reason, "%.150s", error);
	} else { /* Busy, NotEnough: later */
		ev.result = RO_LATER;
		snprintf(v.reason, sizeof v.reason, "%.150s", error);
	}
	ev.text = v.reason;
	log_debug("gate of version %u: %s", a->eval.version, v.reason);
	act_event(a, &ev);
	if (!stale && r == 0)
		act_write_verdict(a, &v);
	a->eval.started_us = 0;
	if (a->r.eval.running && a->r.eval.id != ev.id) /* another was wanted while this one ran */
		act_evaluate(a, a->r.eval.id, a->r.eval.version, a->r.eval.against);
}

/* {domain: the newest version that served and whose verdict rests on requests of that domain}, unless that is live itself: what it was
 * when somebody last asked. */
static json_t *act_references(struct act *a)
{
	json_t *of = json_object(), *verdict, *d;
	const char *domain;
	void *next;

	for (int i = a->r.s.n_versions - 1; i >= 0; i--) {
		const struct version_entry *v = &a->r.s.versions[i];

		if (v->state != VS_LIVE && v->state != VS_PREVIOUS && v->state != VS_RETIRED)
			continue;
		verdict = store_read_json(a->store, v->number, "verdict.json");
		json_object_foreach(json_object_get(verdict, "domains"), domain, d)
			if (json_integer_value(json_object_get(d, "requests")) >= GATE_DOMAIN_MIN && !json_object_get(of, domain))
				(void)json_object_set_new(of, domain, json_integer(v->number));
		json_decref(verdict);
	}
	json_object_foreach_safe(of, next, domain, d)
		if (json_integer_value(d) == a->r.s.live)
			(void)json_object_del(of, domain);
	return of;
}

int act_ask_replay(struct act *a, uint32_t candidate, uint32_t live, bool pinned, void (*done)(void *arg, int r, json_t *params, const char *error))
{
	json_t *p = json_pack("{s:I, s:I, s:i, s:b}", "candidate", (json_int_t)candidate, "live", (json_int_t)live, "k", a->o.gate_k, "pinned", pinned);

	if (pinned)
		(void)json_object_set_new(p, "references", act_references(a));

	return rpc_call_async(a->loop, a->o.learn_socket, "io.redraft.Learn.Evaluate", p, EVALUATE_MS, done, a);
}

/* The evaluation at hand: with the pinned requests too only where all else is well, since they cost a replay of their own. */
static int act_ask(struct act *a, bool pinned)
{
	a->eval.pinned = pinned;
	return act_ask_replay(a, a->eval.version, a->eval.against, pinned, act_evaluated);
}

/* One at a time: the learner computes it. A newer wish waits for the older answer. */
void act_evaluate(struct act *a, uint32_t id, uint32_t version, uint32_t against)
{
	if (a->eval.started_us)
		return;
	a->eval = (struct act_evaluation){.id = id, .version = version, .against = against, .started_us = clock_us()};
	if (act_ask(a, false) < 0)
		a->eval.started_us = 0; /* out of memory: stays running until the learner comes again */
}

/* What went wrong at the learner, once for each time that it is counted anew: its sentence is ours too. */
static void act_learner_trouble(struct act *a, const json_t *fresh, const char *part, const char *count, const char *sentence, enum act_news kind)
{
	const json_t *was = json_object_get(a->learn_status, part), *is = json_object_get(fresh, part);
	const char *text = json_string_value(json_object_get(is, sentence));

	if (text && text[0] && (!was || json_integer_value(json_object_get(is, count)) > json_integer_value(json_object_get(was, count))))
		act_say(a, kind, text);
}

static void act_learner_said(void *arg, int r, json_t *params, const char *error)
{
	struct act *a = arg;
	struct ro_event ev = {.kind = r >= 0 ? RO_LEARNER : RO_LEARNER_GONE};
	json_int_t base;

	(void)error;
	a->asking = false;
	if (r == -ETIMEDOUT && ++a->learn_silent < SILENT_MAX)
		return; /* slow is not gone */
	if (r >= 0)
		a->learn_silent = 0;
	if (r == 0) {
		act_learner_trouble(a, params, "records", "gaps", "last_gap", ACT_NEWS_KAFKA);
		act_learner_trouble(a, params, "checkpoint", "failed", "error", ACT_NEWS_LEARNER);
		act_learner_trouble(a, params, "candidate", "failed", "error", ACT_NEWS_LEARNER);
		json_decref(a->learn_status);
		a->learn_status = json_incref(params);
		act_learn_metrics(a);
		base = json_integer_value(json_object_get(params, "base_version"));
		ev.parent = base > 0 && base < UINT32_MAX ? act_origin(a, (uint32_t)base) : 0;
	}
	act_event(a, &ev);
	act_send(a);
}

void act_ask_learner(struct act *a)
{
	if (!a->asking)
		a->asking = rpc_call_async(a->loop, a->o.learn_socket, "io.redraft.Learn.Status", NULL, ASK_MS,
					   act_learner_said, a) == 0;
}
