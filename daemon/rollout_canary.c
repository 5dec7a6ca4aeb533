/* The canary: an accepted version serves a share of the conversations before it serves all.
 *
 * The share grows in steps under one salt. A step has passed when enough of its requests were seen without
 * harm, or when it has lasted long enough without any (not for a version that no replay could judge: that one has to
 * show it). Harm: everybody is back on live, the version is quarantined, the learner goes back too.
 *
 * What the server should hold is in the state; whatever it says that differs is put right by ro_next, so that a
 * restart of either side, a lost answer and a crash between the server's yes and our journal all end the same way. A
 * canary is judged against live: when live changes it is over, and its version is judged anew.
 */
#include <string.h>
#include "daemon/rollout_steps.h"

static const char no_replay[] = "not replayable";

bool ro_unproven(const struct version_entry *v)
{
	return v && !strncmp(v->reason, no_replay, sizeof no_replay - 1);
}

bool rollout_unproven(const struct rollout *r, uint32_t number)
{
	return ro_unproven(rollout_find(r, number));
}

void ro_server_canary(struct rollout *r, uint32_t version, uint32_t permille, const char *salt)
{
	r->serve_canary = version;
	r->serve_permille = version ? permille : 0;
	snprintf(r->serve_salt, sizeof r->serve_salt, "%s", version && salt ? salt : "");
}

bool ro_canary_agrees(const struct rollout *r)
{
	if (r->s.canary.version != r->serve_canary)
		return false;
	return !r->serve_canary || (r->s.canary.permille == r->serve_permille && !strcmp(r->s.canary.salt, r->serve_salt));
}

static void send(struct rollout *r, struct ro_actions *a, uint32_t version, uint32_t permille, const char *salt)
{
	struct ro_action *x = ro_begin(r, a, RO_CANARYING, RO_DO_CANARY, version);

	x->permille = permille;
	x->checked = version != 0;
	snprintf(x->text, sizeof x->text, "%s", salt);
}

/* The salt is new for each canary, so that no conversation is always among the first. */
void ro_canary_begin(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	char salt[RO_SALT];

	snprintf(salt, sizeof salt, "%u-%08x", r->op.version, ev->random);
	send(r, a, r->op.version, r->rules.permille[0], salt);
}

void ro_canary_ask(struct rollout *r, struct ro_actions *a)
{
	r->op.why = RO_WHY_CANARY;
	send(r, a, r->s.canary.version, r->s.canary.permille, r->s.canary.salt);
}

void ro_canary_forget(struct rollout *r)
{
	memset(&r->s.canary, 0, sizeof r->s.canary);
}

void ro_canary_stop(struct rollout *r, const char *why, struct ro_actions *a)
{
	uint32_t version = r->s.canary.version, newer = ro_newest(r, VS_GATED);
	bool unproven = ro_unproven(rollout_find(r, version));

	if (!version)
		return;
	ro_canary_forget(r);
	if (newer) {
		ro_mark(r, version, VS_REJECTED, "superseded by version %u; its canary ended: %s", newer, why);
		ro_say(a, "canary of version %u ended: %s; version %u comes after it", version, why, newer);
	} else {
		ro_mark(r, version, VS_GATED, "%s%sits canary ended: %s", unproven ? no_replay : "", unproven ? "; " : "", why);
		ro_say(a, "canary of version %u ended: %s; it waits", version, why);
	}
}

static void began(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	const struct version_entry *v = rollout_find(r, ev->version);
	char was[sizeof v->reason];

	snprintf(was, sizeof was, "%s", v ? v->reason : "");
	ro_mark(r, ev->version, VS_CANARY, "%s", was);
	r->s.canary.version = ev->version;
	r->s.canary.permille = ev->permille;
	snprintf(r->s.canary.salt, sizeof r->s.canary.salt, "%s", ev->salt ? ev->salt : "");
	r->step_since_us = ev->now_us;
	r->tries = 0;
	if (r->told != ev->version)
		ro_verdict(a, ev->version, "accepted", "gated; on canary");
	r->told = ev->version;
	ro_say(a, "canary: version %u drafts for %u of 1000 conversations", ev->version, ev->permille);
	ro_do(a, RO_DO_SAVE, 0);
}

void ro_on_canaried(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	bool gate = r->op.why == RO_WHY_GATE;
	uint32_t version = r->op.version;

	if (ev->result == RO_OK) /* also an answer that nobody waits for any more: it is so, and ro_next sees to it */
		ro_server_canary(r, ev->version, ev->permille, ev->salt);
	if (r->op.phase != RO_CANARYING || ev->id != r->op.id)
		return;
	ro_op_end(r);
	if (ev->result == RO_OK) {
		if (gate)
			began(r, ev, a);
		else
			ro_say(a, ev->version ? "canary: version %u, %u of 1000 conversations" : "canary over; everybody is on live",
			       ev->version, ev->permille);
		return;
	}
	r->retry_us = ev->now_us + RO_RETRY_US;
	ro_do(a, RO_DO_LOOK, 0);
	if (ev->result == RO_NOBODY || ev->result == RO_HUNG)
		r->serve_up = false;
	else if (ev->result == RO_BAD && version && ++r->tries >= 3)
		ro_unfit(r, version, ev->text && ev->text[0] ? ev->text : "the server would not take it on canary", a);
}

/* Everybody goes back to live; what was made from it may not go live either. */
static void harmed(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	uint32_t version = r->s.canary.version;
	const char *why = ev->text ? ev->text : "";

	ro_canary_forget(r);
	if (r->op.phase != RO_IDLE && r->op.version == version && r->op.why != RO_WHY_BACK && r->op.why != RO_WHY_OPERATOR) {
		ro_op_end(r); /* it may be live by the time we look: then the server is brought back */
		ro_do(a, RO_DO_LOOK, 0);
	}
	if (r->op.phase == RO_IDLE && r->serve_up)
		ro_canary_ask(r, a); /* first of all; ro_next asks again when it is not heard */
	ro_quarantine(r, a, version, "rolled back from canary: %.110s", why);
	ro_say(a, "version %u taken back from canary and quarantined: %s", version, why);
	ro_drop_pending(r, a, "made from a version that was taken back from canary");
	ro_rebase(r, a, "taken back from canary");
	ro_do(a, RO_DO_SAVE, 0);
}

static void passed(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	uint32_t version = r->s.canary.version, next = 0;

	for (int i = r->rules.n_steps - 1; i >= 0; i--)
		if (r->rules.permille[i] > r->s.canary.permille)
			next = r->rules.permille[i];
	if (!next) {
		ro_say(a, "canary of version %u passed: %.140s", version, ev->text ? ev->text : "");
		r->op.why = RO_WHY_GATE;
		ro_activate(r, a, version, false, true);
		return;
	}
	r->s.canary.permille = next;
	r->step_since_us = ev->now_us;
	ro_say(a, "canary of version %u grows to %u of 1000: %.120s", version, next, ev->text ? ev->text : "");
	ro_do(a, RO_DO_SAVE, 0); /* ro_next tells the server */
}

void ro_on_judged(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	bool proven_by_time = ev->now_us - r->step_since_us >= r->rules.step_us && !ro_unproven(rollout_find(r, ev->version));

	if (!r->s.canary.version || ev->version != r->s.canary.version)
		return;
	if (ev->result == RO_BAD) {
		harmed(r, ev, a);
		return;
	}
	if (ev->permille != r->s.canary.permille || r->op.phase != RO_IDLE || !r->serve_up || !ro_canary_agrees(r) || r->frozen ||
	    r->s.hold || r->s.pin || r->s.paused || ev->now_us < r->retry_us)
		return;
	if (ev->result == RO_OK || proven_by_time)
		passed(r, ev, a);
}
