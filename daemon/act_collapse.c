/* A live version that is accepted at under a quarter of what its gate saw.
 *
 * That alone may be the traffic, and then going back would help nobody (contracts.md "Gate and what follows"). So one of two
 * things has to be seen as well: an alarm stands (served and replayed differ, or the probes moved), or the learner, asked to replay
 * both on the newest held-out requests, finds the version before it surely better. Then it is rolled back at once, by
 * nobody's word. Both are looked for when the collapse is seen, and again every minute while it lasts.
 */
#include "daemon/act_collapse.h"
#include "daemon/act_inside.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/watch.h"

enum { COLLAPSE_REQUESTS = 32 };
static const double collapse_share = 0.25;
static const uint64_t again_us = 60000000;

/* Accept length of the live version as its gate saw it; 0: no gate saw it (an operator's word, a history that is lost). */
static double gate_al(struct act *a)
{
	struct act_collapse *c = &a->collapse;
	json_t *verdict;

	if (c->version == a->r.s.live)
		return c->gate_al;
	verdict = store_read_json(a->store, a->r.s.live, "verdict.json");
	*c = (struct act_collapse){.version = a->r.s.live, .gate_al = json_number_value(json_object_get(verdict, "candidate_al")),
				    .asking = c->asking, .asked = c->asked, .back_to = c->back_to};
	json_decref(verdict);
	return c->gate_al;
}

static void go_back(struct act *a, const char *because)
{
	struct act_collapse *c = &a->collapse;
	char text[RO_TEXT];

	snprintf(text, sizeof text, "accept length %.2f, %.2f at its gate, and %.90s", c->seen_al, c->gate_al, because);
	log_error("version %u: %s; going back", c->version, text);
	act_event(a, &(struct ro_event){.kind = RO_COLLAPSED, .version = c->version, .text = text});
}

/* The version before on the same requests: is it surely better? */
static void replayed(void *arg, int r, json_t *params, const char *error)
{
	struct act *a = arg;
	struct act_collapse *c = &a->collapse;
	struct gate_verdict v;
	char because[96];

	c->asking = false;
	if (r)
		log_debug("replay of the version before: %s", error ? error : "no answer");
	if (r || c->version != a->r.s.live || c->asked != a->r.s.live || c->back_to != rollout_back_to(&a->r))
		return;
	(void)act_judge(a, params, c->asked, &v);
	if (!(v.all.lower > 0))
		return;
	snprintf(because, sizeof because, "version %u gives %.2f where it gives %.2f, on %d requests", c->back_to, v.all.candidate_al, v.all.live_al,
		 v.all.requests);
	go_back(a, because);
}

static void ask(struct act *a)
{
	struct act_collapse *c = &a->collapse;

	act_compare(a);
	if (c->asking || !a->r.learn_up || !rollout_back_to(&a->r))
		return;
	c->asked = c->version;
	c->back_to = rollout_back_to(&a->r);
	c->asking = act_ask_replay(a, c->back_to, c->version, false, replayed) == 0;
}

/* A draft that gives no numbers is dropped by the engine, request by request, and then there is nothing that could be compared. */
static void lost(struct act *a, struct watch *w)
{
	int n, gone = watch_lost(w, a->r.s.live, &n);
	char text[RO_TEXT];

	if (n < COLLAPSE_REQUESTS || 2 * gone < n)
		return;
	snprintf(text, sizeof text, "decay, not drift: %d of the last %d requests of version %u lost their draft", gone, n, a->r.s.live);
	act_alarm(a, text);
}

void act_collapse(struct act *a, struct watch *w)
{
	struct act_collapse *c = &a->collapse;
	double gate, al;
	int n;

	if (c->version != a->r.s.live)
		watch_live(w, c->version, a->r.s.live);
	gate = gate_al(a);
	if (a->r.s.live)
		lost(a, w);
	if (!a->r.s.live || a->r.op.phase != RO_IDLE || a->r.s.pin || gate <= 1 || clock_us() < c->again_us)
		return;
	al = watch_recent_al(w, a->r.s.live, &n);
	if (n < COLLAPSE_REQUESTS || !(al - 1 < collapse_share * (gate - 1)))
		return;
	c->again_us = clock_us() + again_us;
	c->seen_al = al;
	log_warn("version %u is accepted at %.2f, %.2f at its gate (%d requests): is it the version?", c->version, al, gate, n);
	if (a->r.s.alarm[0])
		go_back(a, "an alarm stands");
	else
		ask(a);
}
