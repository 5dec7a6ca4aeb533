/* What operators say: promote, rollback, pin, unpin, hold, release, and a rollback said to the
 * server directly while we were away; and the two things that are done without being asked, alarm and collapse.
 *
 * Rollback is the one that must always work. It asks nothing, waits for nothing and
 * cancels what runs. The order is: the server first (activate what is warm; load it
 * when it is not; no draft at all when that fails too), then memory, then the answer, then the disk.
 * A server that is not running needs no moving: it will start from the state.
 */
#include <string.h>
#include "daemon/rollout_steps.h"

void ro_on_promote(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	const struct version_entry *v = rollout_find(r, ev->version);

	if (!v)
		ro_answer(a, RO_PROMOTE, "io.redraft.BadVersion", "there is no version %u", ev->version);
	else if (ev->expected >= 0 && (uint64_t)ev->expected != r->s.generation)
		ro_answer(a, RO_PROMOTE, "io.redraft.GenerationMismatch", "the generation is %llu, not %lld",
			  (unsigned long long)r->s.generation, (long long)ev->expected);
	else if (r->s.pin && r->s.pin != ev->version)
		ro_answer(a, RO_PROMOTE, "io.redraft.BadVersion", "version %u is pinned; unpin first", r->s.pin);
	else if (r->op.phase != RO_IDLE)
		ro_answer(a, RO_PROMOTE, "io.redraft.Busy", "version %u is being switched to; try again", r->op.version);
	else if (!r->serve_up)
		ro_answer(a, RO_PROMOTE, "io.redraft.ServerAbsent", "the server does not answer; nothing was changed");
	else if (ev->version == r->s.live && r->serve_live == r->s.live)
		ro_answer(a, RO_PROMOTE, NULL, "version %u is live already", ev->version);
	else {
		if (v->state == VS_QUARANTINED) /* their word counts: a rollback can be a mistake too */
			ro_say(a, "version %u is taken out of quarantine by an operator", ev->version);
		ro_load(r, a, RO_WHY_OPERATOR, ev->version);
	}
}

uint32_t rollout_back_to(const struct rollout *r)
{
	const struct version_entry *v = rollout_find(r, r->s.previous);

	if (v && v->number != r->s.live && (v->state == VS_PREVIOUS || v->state == VS_RETIRED))
		return v->number;
	return ro_older(r, r->s.live);
}

void ro_on_rollback(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	if (r->op.phase != RO_IDLE && r->op.why == RO_WHY_BACK)
		return; /* one is on its way; both callers get its answer */
	if (r->op.phase != RO_IDLE && r->op.why == RO_WHY_OPERATOR)
		ro_answer(a, RO_PROMOTE, "io.redraft.Busy", "cancelled by a rollback");
	r->op.cancelled = r->op.phase != RO_IDLE || r->s.canary.version;
	if (r->op.phase != RO_IDLE)
		ro_say(a, "rollback: the switch to version %u is cancelled", r->op.version);
	if (r->s.canary.version)
		ro_say(a, "rollback: the canary of version %u is cancelled", r->s.canary.version);
	r->op.by_itself = ev->kind == RO_COLLAPSED;
	if (r->op.by_itself)
		snprintf(r->op.reason, sizeof r->op.reason, "rolled back: %.140s", ev->text ? ev->text : "");
	else
		snprintf(r->op.reason, sizeof r->op.reason, "rolled back by an operator");
	snprintf(r->op.request, sizeof r->op.request, "%s", ev->request ? ev->request : "");
	r->op.why = RO_WHY_BACK;
	r->op.left = r->s.live;
	r->op.to = rollout_back_to(r);
	r->op.tried_load = false;
	ro_say(a, "rollback from version %u to %u asked by %.60s", r->op.left, r->op.to, r->op.by_itself ? "redraftd" : ev->text ? ev->text : "an operator");
	ro_activate(r, a, r->op.to, true, false);
}

/* reached: the server took it; otherwise it is not there and will start from the state. */
static void ro_back_done(struct rollout *r, const struct ro_event *ev, bool reached, struct ro_actions *a)
{
	uint32_t left = r->op.left, to = r->op.to, on_server = r->op.version;

	ro_op_end(r);
	if (reached) { /* first, so that whoever asked waits for no disk; a crash before the state is written is found out from the server (ro_adopt) */
		ro_answer(a, RO_ROLLBACK, NULL, "%s", "");
		a->a[a->n - 1].version = left;
	}
	if (left)
		ro_quarantine(r, a, left, "%s", r->op.reason);
	ro_set_live(r, to, a);
	if (r->s.pin == left)
		r->s.pin = 0;
	r->next_promotion_us = ev->now_us + r->rules.interval_us;
	if (reached) {
		r->serve_live = on_server;
		ro_server_canary(r, 0, 0, "");
		r->s.generation = r->serve_generation = ev->generation;
	} else {
		r->serve_up = false;
		r->s.generation++;
	}
	if (r->rules.follows && !r->s.hold) {
		r->s.hold = true;
		ro_say(a, "this server follows its fleet no longer, until release; the others stay where they are");
	}
	if (left || r->op.cancelled)
		ro_drop_pending(r, a, left ? "made from a version that was rolled back" : "cancelled by a rollback");
	if (left)
		ro_rebase(r, a, "rollback");
	if (left)
		ro_say(a, "rolled back from version %u, quarantined, to version %u%s%s", left, to, to ? "" : " (no draft)",
		       reached ? "" : "; the server starts from here");
	else
		ro_say(a, "rollback: no version was live");
	ro_do(a, RO_DO_SAVE, 0);
	if (reached)
		return;
	if (ev->result == RO_HUNG) {
		ro_answer(a, RO_ROLLBACK, "io.redraft.ServerAbsent",
			  "the server does not answer; it gets version %u when it does", to);
		return;
	}
	ro_answer(a, RO_ROLLBACK, NULL, "%s", "the server is not running; it starts from here");
	a->a[a->n - 1].version = left;
}

void ro_back_loaded(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	if (ev->result == RO_OK)
		ro_activate(r, a, r->op.to, true, false);
	else if (ev->result == RO_NOBODY || ev->result == RO_HUNG)
		ro_back_done(r, ev, false, a);
	else /* get off the bad version first; ro_next then restores `to`, or finds it unfit */
		ro_activate(r, a, 0, true, false);
}

void ro_back_activated(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	if (ev->result == RO_OK) {
		ro_back_done(r, ev, true, a);
	} else if (ev->result == RO_NOBODY || ev->result == RO_HUNG) {
		ro_back_done(r, ev, false, a);
	} else if (r->op.version && !r->op.tried_load) {
		r->op.tried_load = true;
		ro_load(r, a, RO_WHY_BACK, r->op.to);
	} else if (r->op.version) {
		ro_activate(r, a, 0, true, false);
	} else { /* it refuses even to decode plainly: nothing was changed, say so */
		ro_op_end(r);
		ro_do(a, RO_DO_LOOK, 0);
		ro_answer(a, RO_ROLLBACK, "io.redraft.ServerAbsent", "the server refuses: %.150s", ev->text ? ev->text : "");
	}
}

/* A server that does not tell: it was moved from what we know as live; or, where that is where it is, from what was about to go live,
 * if there was time for both moves. */
static uint32_t ro_must_have_left(const struct rollout *r, const struct ro_event *ev)
{
	if (!ev->by_operator)
		return 0;
	if (ev->version != r->s.live)
		return ev->version < r->s.live ? r->s.live : 0;
	return ev->generation <= r->s.generation + 1 ? 0 : r->s.canary.version ? r->s.canary.version : ro_newest(r, VS_GATED);
}

/* The i-th version that was gone back from and is not in quarantine for it yet; 0: none, *i is past the last. */
static uint32_t ro_next_left(const struct rollout *r, const struct ro_event *ev, int *i)
{
	int n = ev->left ? ev->n_left : 1;

	while (*i < n) {
		uint32_t number = ev->left ? ev->left[*i] : ro_must_have_left(r, ev);
		const struct version_entry *v = rollout_find(r, number);

		++*i;
		if (v && v->state != VS_QUARANTINED && number != ev->version)
			return number;
	}
	return 0;
}

bool ro_gone_back(const struct rollout *r, const struct ro_event *ev)
{
	int i = 0;

	return (ev->by_operator || ev->by_daemon) && ev->generation > r->s.generation && ro_next_left(r, ev, &i);
}

void ro_adopt(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	uint32_t left;
	int n = 0;

	for (int i = 0; (left = ro_next_left(r, ev, &i)); n++) {
		ro_quarantine(r, a, left, "%s", ev->by_operator ? "rolled back at the server" : "rolled back by redraftd, which died before it wrote down why");
		if (r->s.canary.version == left)
			ro_canary_forget(r);
	}
	if (r->s.pin != ev->version)
		r->s.pin = 0;
	ro_set_live(r, ev->version, a);
	r->s.generation = ev->generation;
	r->next_promotion_us = ev->now_us + r->rules.interval_us;
	if (n)
		ro_drop_pending(r, a, "made from a version that was rolled back");
	ro_rebase(r, a, ev->by_operator ? "an operator moved the server" : "rollback");
	if (ev->by_operator && ev->left && !n && ev->version) { /* forward, and so said to us: nobody else can */
		r->s.hold = r->rules.follows;
		ro_say(a, "version %u is live by an operator's word, which we did not live to write down", ev->version);
	} else if (ev->by_operator) {
		r->s.hold = true;
		ro_say(a, "an operator moved the server to version %u; taken over, promotions held until release or promote", ev->version);
	} else {
		ro_say(a, "the server went back to version %u before we died; taken over", ev->version);
	}
	ro_do(a, RO_DO_SAVE, 0);
}

/* The leader's word, said again until we are there. A rollback by the leader moves running requests too. */
void ro_on_follow(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	bool there = ev->version == r->s.live && r->serve_live == r->s.live;

	if (there || r->op.phase != RO_IDLE || !r->serve_up || r->s.pin || r->s.hold || ev->now_us < r->retry_us || (ev->version && !rollout_find(r, ev->version)))
		return;
	ro_say(a, "the fleet's leader, %.60s, is at version %u; following from %u", ev->text ? ev->text : "?", ev->version, r->s.live);
	if (ev->version) {
		ro_load(r, a, RO_WHY_FLEET, ev->version);
	} else {
		r->op.why = RO_WHY_FLEET;
		ro_activate(r, a, 0, true, true);
	}
}

/* What runs for the gate or for a canary, and can be left where it is. */
static bool ro_may_let_go(const struct rollout *r)
{
	return r->op.why == RO_WHY_CANARY || (r->op.why == RO_WHY_GATE && r->op.phase != RO_ACTIVATING);
}

/* A load or a canary is let go: its version waits. The late answer of a load frees the slot, and ro_next sees to it that the
 * server has no canary either. */
static void ro_let_go(struct rollout *r, const char *why, struct ro_actions *a)
{
	if (r->op.phase != RO_IDLE && ro_may_let_go(r))
		ro_op_end(r);
	ro_canary_stop(r, why, a);
}

void ro_on_pin(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	uint32_t version = ev->version ? ev->version : r->s.live;

	if (!version)
		ro_answer(a, RO_PIN, "io.redraft.BadVersion", "no version is live, so there is nothing to pin");
	else if (version != r->s.live)
		ro_answer(a, RO_PIN, "io.redraft.BadVersion", "version %u is not live (%u is); promote it first", version,
			  r->s.live);
	else if (r->op.phase != RO_IDLE && !ro_may_let_go(r))
		ro_answer(a, RO_PIN, "io.redraft.Busy", "version %u is being switched to; try again", r->op.version);
	else {
		ro_let_go(r, "live was pinned", a);
		r->s.pin = version;
		ro_say(a, "version %u pinned; nothing else goes live until unpin", version);
		ro_do(a, RO_DO_SAVE, 0);
		ro_answer(a, RO_PIN, NULL, "%s", "");
	}
}

void ro_on_unpin(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	(void)ev;
	ro_say(a, "unpinned%s", !r->s.hold ? "" : r->s.alarm[0] ? "; the alarm still holds promotions" : "; promotions are released");
	r->s.pin = 0;
	r->s.hold = r->s.hold && r->s.alarm[0];
	ro_do(a, RO_DO_SAVE, 0);
	ro_answer(a, RO_UNPIN, NULL, "%s", "");
}

/* From now on; said once. */
static void ro_stop(struct rollout *r, bool *stopped, const char *what, const struct ro_event *ev, struct ro_actions *a)
{
	ro_let_go(r, what, a);
	if (!*stopped)
		ro_say(a, "%s: %.120s", what, ev->text ? ev->text : "asked by an operator");
	*stopped = true;
	ro_do(a, RO_DO_SAVE, 0);
	ro_answer(a, ev->kind, NULL, "%s", "");
}

/* Candidates are made and judged all the same. */
void ro_on_hold(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	ro_stop(r, &r->s.hold, "promotions are held", ev, a);
}

/* Further than a hold: candidates are not even judged, and wait as they are. */
void ro_on_pause(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	ro_stop(r, &r->s.paused, "the rollout is paused", ev, a);
}

void ro_on_resume(struct rollout *r, struct ro_actions *a)
{
	if (r->s.paused)
		ro_say(a, "the rollout goes on");
	r->s.paused = false;
	r->eval.since_us = r->now_us; /* a candidate's patience was not used up meanwhile */
	ro_do(a, RO_DO_SAVE, 0);
	ro_answer(a, RO_RESUME, NULL, "%s", "");
}

void ro_on_release(struct rollout *r, struct ro_actions *a)
{
	if (r->s.hold)
		ro_say(a, "promotions are released");
	if (r->s.alarm[0]) {
		ro_say(a, "the alarm is taken back; training goes on");
		ro_do(a, RO_DO_RESUME, 0);
	}
	r->s.hold = false;
	r->s.alarm[0] = '\0';
	ro_do(a, RO_DO_SAVE, 0);
	ro_answer(a, RO_RELEASE, NULL, "%s", "");
}

/* One alarm at a time: the first says why. */
void ro_on_alarm(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	if (r->s.alarm[0])
		return;
	snprintf(r->s.alarm, sizeof r->s.alarm, "%.150s", ev->text && ev->text[0] ? ev->text : "alarm");
	ro_let_go(r, "an alarm holds promotions", a);
	r->s.hold = true;
	ro_do(a, RO_DO_PAUSE, 0);
	ro_say(a, "alarm: %.150s", r->s.alarm);
	ro_do(a, RO_DO_SAVE, 0);
}

/* Nobody but an operator moves a pinned version. */
void ro_on_collapsed(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	if (!ev->version || ev->version != r->s.live)
		return;
	if (r->s.pin)
		ro_say(a, "version %u is pinned, so it stays: %.130s", ev->version, ev->text ? ev->text : "");
	else
		ro_on_rollback(r, ev, a);
}
