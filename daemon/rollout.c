/* What follows what, when nobody interferes: the accepted version is loaded, compared
 * and activated, and the server is brought to where the state says whenever it is
 * found elsewhere. Candidates are in rollout_judge.c, the canary in rollout_canary.c,
 * what operators say in rollout_verbs.c. After every event ro_next starts whatever is due, so no rule has
 * to remember to.
 */
#include "daemon/rollout.h"
#include "daemon/rollout_steps.h"

/* ---- going live ---- */

static void ro_went_live(struct rollout *r, uint32_t version, const struct ro_event *ev, struct ro_actions *a)
{
	uint64_t interval = r->rules.interval_us;
	uint64_t jitter = interval / 20 ? ev->random % (interval / 10 + 1) : 0; /* -5 % .. +5 % */

	ro_set_live(r, version, a);
	r->s.generation = r->serve_generation = ev->generation;
	r->serve_live = version;
	ro_server_canary(r, 0, 0, "");
	r->next_promotion_us = ev->now_us + interval - (interval / 20 ? interval / 20 : 0) + jitter;
	r->tries = 0;
	if (r->told != version)
		ro_verdict(a, version, "accepted", "live");
	r->told = 0;
	ro_say(a, "version %u is live (generation %llu); version %u stays warm", version,
	       (unsigned long long)ev->generation, r->s.previous);
	ro_do(a, RO_DO_SAVE, 0);
	ro_do(a, RO_DO_COLLECT, 0);
}

/* A version that cannot be served as it was made. Those that have served are
 * quarantined, the others rejected; what was live makes room for the next older. */
void ro_unfit(struct rollout *r, uint32_t version, const char *why, struct ro_actions *a)
{
	struct version_entry *v = rollout_find(r, version);
	bool served = v && (v->state == VS_LIVE || v->state == VS_PREVIOUS || v->state == VS_RETIRED);

	if (!v)
		return;
	if (r->s.canary.version == version)
		ro_canary_forget(r);
	if (!served) {
		if (v->state != VS_REJECTED && v->state != VS_QUARANTINED)
			ro_rejected(r, version, why, a);
	} else {
		ro_quarantine(r, a, version, "%s", why);
		ro_say(a, "version %u quarantined: %s", version, why);
		if (r->s.previous == version) {
			r->s.previous = ro_older(r, version);
			ro_mark(r, r->s.previous, VS_PREVIOUS, "%s", "");
		}
		if (r->s.live == version)
			ro_set_live(r, r->s.previous ? r->s.previous : ro_older(r, version), a);
		if (r->s.pin == version)
			r->s.pin = 0;
	}
	ro_do(a, RO_DO_SAVE, 0);
}

static void ro_on_loaded(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	const char *why = ev->text ? ev->text : "";
	bool operator = r->op.why == RO_WHY_OPERATOR;
	uint32_t version = r->op.version;

	if (r->op.phase != RO_LOADING || ev->id != r->op.id) {
		if (ev->result == RO_OK && ev->version != r->s.live && ev->version != r->s.previous &&
		    ev->version != r->op.version && ev->version != r->s.canary.version)
			ro_do(a, RO_DO_UNLOAD, ev->version); /* a load that was cancelled meanwhile */
		return;
	}
	if (r->op.why == RO_WHY_BACK) {
		ro_back_loaded(r, ev, a);
		return;
	}
	if (ev->result == RO_OK) {
		if (r->op.why == RO_WHY_CANARY)
			ro_canary_ask(r, a);
		else if (r->op.why == RO_WHY_GATE && r->rules.n_steps)
			ro_canary_begin(r, ev, a);
		else
			ro_activate(r, a, version, r->op.why == RO_WHY_FLEET && version < r->s.live, r->op.why != RO_WHY_RESTORE);
		return;
	}
	ro_op_end(r);
	r->retry_us = ev->now_us + RO_RETRY_US;
	if (ev->result == RO_NOBODY || ev->result == RO_HUNG) {
		r->serve_up = false;
		if (operator)
			ro_answer(a, RO_PROMOTE, "io.redraft.ServerAbsent", "the server does not answer: %.150s", why);
	} else if (ev->result == RO_LATER) {
		if (operator)
			ro_answer(a, RO_PROMOTE, "io.redraft.Busy", "the server cannot load now: %.150s", why);
	} else {
		if (ev->result == RO_MISMATCH)
			ro_do(a, RO_DO_UNLOAD, version);
		if (operator)
			ro_answer(a, RO_PROMOTE, "io.redraft.BadVersion", "%s", why);
		if (!operator || ev->result == RO_MISMATCH)
			ro_unfit(r, version, why, a);
	}
}

static void ro_on_activated(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	const char *why = ev->text ? ev->text : "";
	bool operator = r->op.why == RO_WHY_OPERATOR;
	uint32_t version = r->op.version;

	if (r->op.phase != RO_ACTIVATING || ev->id != r->op.id)
		return;
	if (r->op.why == RO_WHY_BACK) {
		ro_back_activated(r, ev, a);
		return;
	}
	ro_op_end(r);
	if (ev->result == RO_OK && r->op.why == RO_WHY_RESTORE) {
		r->s.generation = r->serve_generation = ev->generation;
		r->serve_live = version;
		ro_server_canary(r, 0, 0, "");
		ro_say(a, "the server is back at version %u (generation %llu)", version, (unsigned long long)ev->generation);
		ro_do(a, RO_DO_SAVE, 0);
	} else if (ev->result == RO_OK) {
		if (r->op.why == RO_WHY_FLEET && version < r->s.live) /* nobody goes back for nothing */
			ro_quarantine(r, a, r->s.live, "%s", "rolled back by the leader of the fleet");
		ro_went_live(r, version, ev, a);
		if (operator) {
			r->s.hold = r->rules.follows; /* the operator has decided what runs */
			ro_answer(a, RO_PROMOTE, NULL, "%s", "");
		}
	} else {
		r->retry_us = ev->now_us + RO_RETRY_US;
		ro_do(a, RO_DO_LOOK, 0);
		if (ev->result == RO_NOBODY || ev->result == RO_HUNG)
			r->serve_up = false;
		else if (ev->result == RO_BAD && r->op.why == RO_WHY_GATE && ++r->tries >= 3)
			ro_unfit(r, version, why[0] ? why : "the server would not activate it", a);
		if (operator)
			ro_answer(a, RO_PROMOTE,
				  ev->result == RO_GENERATION ? "io.redraft.GenerationMismatch"
				  : ev->result == RO_BAD      ? "io.redraft.BadVersion"
							      : "io.redraft.ServerAbsent",
				  "%s", why);
	}
}

/* ---- who is there ---- */

static void ro_on_server(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	struct version_entry *v = rollout_find(r, ev->version);

	if (!r->serve_up)
		ro_say(a, "the server is there, with version %u (generation %llu)", ev->version,
		       (unsigned long long)ev->generation);
	r->serve_up = true;
	r->serve_generation = ev->generation;
	r->serve_live = ev->version;
	ro_server_canary(r, ev->canary, ev->permille, ev->salt);
	if (r->op.phase != RO_IDLE)
		return; /* what runs will say where it ended */
	if ((v || !ev->version) && ro_gone_back(r, ev)) {
		ro_adopt(r, ev, a); /* perhaps to where we are: what went live there was never in our journal */
	} else if (ev->version == r->s.live) {
		if (r->s.generation != ev->generation) {
			r->s.generation = ev->generation;
			ro_do(a, RO_DO_SAVE, 0);
		}
	} else if (ev->by_operator && ev->generation >= r->s.generation && (v || !ev->version)) {
		ro_adopt(r, ev, a);
	} else if (v && (v->state == VS_GATED || v->state == VS_CANARY) && !r->s.pin && ev->by_daemon && ev->generation > r->s.generation) {
		ro_went_live(r, ev->version, ev, a); /* we died between its answer and our journal */
	} else if (v && v->state != VS_QUARANTINED && !r->s.live && !r->s.generation && ev->generation) {
		ro_set_live(r, ev->version, a); /* our state was lost; the server's word is all there is */
		r->s.generation = ev->generation;
		ro_say(a, "no state of our own; taking version %u from the server", ev->version);
		ro_do(a, RO_DO_SAVE, 0);
	}
}

static void ro_on_learner(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	const struct version_entry *v;

	if (!r->learn_up)
		ro_say(a, "the learner is there");
	r->learn_up = true;
	if (ev->parent && !r->home_said) {
		r->home_said = true;
		if (ro_home(r) && ro_was_rolled_back(rollout_find(r, ev->parent))) { /* we died between our journal and telling it */
			ro_verdict(a, ev->parent, "quarantined", "%.150s", rollout_find(r, ev->parent)->reason);
			ro_rebase(r, a, "rollback");
			ro_say(a, "the learner goes on from version %u, which was rolled back; told to go back to %u", ev->parent, ro_home(r));
		}
	}
	if (r->greeted || !r->s.n_versions)
		return;
	/* First meeting since our start: it may have missed what became of its last version. */
	r->greeted = true;
	v = &r->s.versions[r->s.n_versions - 1];
	if (v->state == VS_REJECTED || v->state == VS_QUARANTINED)
		ro_verdict(a, v->number, v->state == VS_REJECTED ? "rejected" : "quarantined", "%.150s", v->reason);
	else if (v->state != VS_CANDIDATE && v->state != VS_GATED && v->state != VS_CANARY)
		ro_verdict(a, v->number, "accepted", "%s", version_state_name(v->state));
}

/* ---- what is due ---- */

static bool ro_may_promote(const struct rollout *r, uint64_t now_us)
{
	return !r->s.pin && !r->s.hold && !r->s.paused && !r->frozen && now_us >= r->next_promotion_us;
}

/* Bring the server to where the state says; then, when all is well, the next version in. */
static void ro_next_move(struct rollout *r, uint64_t now_us, struct ro_actions *a)
{
	uint32_t gated = ro_newest(r, VS_GATED);

	if (r->op.phase != RO_IDLE || !r->serve_up || now_us < r->retry_us)
		return;
	if (r->serve_live != r->s.live) {
		ro_say(a, "the server has version %u live and should have %u; moving it", r->serve_live, r->s.live);
		r->op.why = RO_WHY_RESTORE;
		if (r->s.live)
			ro_load(r, a, RO_WHY_RESTORE, r->s.live);
		else
			ro_activate(r, a, 0, false, false);
	} else if (r->s.canary.version && r->s.canary.version != r->serve_canary) {
		ro_load(r, a, RO_WHY_CANARY, r->s.canary.version);
	} else if (!ro_canary_agrees(r)) {
		ro_canary_ask(r, a);
	} else if (gated && !r->s.canary.version && ro_may_promote(r, now_us)) {
		ro_load(r, a, RO_WHY_GATE, gated);
	}
}

static void ro_next(struct rollout *r, uint64_t now_us, struct ro_actions *a)
{
	uint32_t gated, candidate = ro_newest(r, VS_CANDIDATE);

	ro_too_old(r, now_us, a);
	ro_next_move(r, now_us, a);
	gated = ro_newest(r, VS_GATED);
	if (gated && gated != r->told && (r->op.phase == RO_IDLE || r->op.version != gated)) {
		/* It has to wait for its turn; the learner need not. */
		r->told = gated;
		ro_verdict(a, gated, "accepted", "gated; waiting for its turn");
	}
	if (candidate && r->learn_up && !r->rules.follows && !r->s.paused && !r->eval.running && now_us >= r->eval.again_us) {
		struct ro_action *x = ro_do(a, RO_DO_EVALUATE, candidate);

		r->eval.running = true;
		r->eval.version = candidate;
		x->against = r->eval.against = r->s.live;
		x->id = ++r->eval.id;
	}
}

/* A state edited by hand: the roles and the list must agree, since a rollback goes by both. What the list says is refused has no role. */
static void ro_agree(struct rollout *r)
{
	const struct version_entry *live = rollout_find(r, r->s.live), *prev = rollout_find(r, r->s.previous);

	if (live && (live->state == VS_QUARANTINED || live->state == VS_REJECTED)) {
		r->s.live = prev && (prev->state == VS_PREVIOUS || prev->state == VS_RETIRED) ? prev->number : ro_older(r, r->s.live);
		r->s.previous = r->s.live;
	}
	prev = rollout_find(r, r->s.previous);
	if ((r->s.live && r->s.previous == r->s.live) || (prev && prev->state != VS_PREVIOUS && prev->state != VS_RETIRED))
		r->s.previous = ro_older(r, r->s.live);
	if (r->s.canary.version == r->s.live)
		ro_canary_forget(r);
	if (r->s.pin != r->s.live)
		r->s.pin = 0;
	for (int i = 0; i < r->s.n_versions; i++) {
		struct version_entry *v = &r->s.versions[i];

		if (v->number == r->s.live)
			v->state = VS_LIVE;
		else if (v->number == r->s.previous)
			v->state = VS_PREVIOUS;
		else if (v->state == VS_LIVE || v->state == VS_PREVIOUS)
			v->state = VS_RETIRED;
		if (v->state == VS_CANARY && v->number != r->s.canary.version)
			v->state = VS_GATED;
		if (v->state != VS_CANARY && v->number == r->s.canary.version)
			ro_canary_forget(r);
	}
}

void rollout_init(struct rollout *r, struct store_state *s, const struct rollout_rules *rules, uint64_t now_us)
{
	*r = (struct rollout){.s = *s, .rules = *rules};
	*s = (struct store_state){0};
	if (r->s.live)
		r->next_promotion_us = now_us + rules->interval_us;
	r->eval.since_us = r->gated_us = r->step_since_us = now_us;
	ro_agree(r);
}

void rollout_set_rules(struct rollout *r, const struct rollout_rules *rules)
{
	uint64_t was = r->rules.interval_us, due = r->next_promotion_us;

	r->rules = *rules;
	if (due)
		r->next_promotion_us = (due > was ? due - was : 0) + rules->interval_us;
}

void rollout_done(struct rollout *r)
{
	store_state_done(&r->s);
}

int rollout_apply(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	int res = 0;

	a->n = 0;
	r->now_us = ev->now_us;
	r->frozen = ev->frozen;
	switch (ev->kind) {
	case RO_SUBMITTED: res = ro_on_submitted(r, ev, a); break;
	case RO_EVALUATED: ro_on_evaluated(r, ev, a); break;
	case RO_LOADED: ro_on_loaded(r, ev, a); break;
	case RO_ACTIVATED: ro_on_activated(r, ev, a); break;
	case RO_SERVER: ro_on_server(r, ev, a); break;
	case RO_SERVER_GONE:
		if (r->serve_up)
			ro_say(a, "the server is gone; waiting for it");
		r->serve_up = false;
		break;
	case RO_LEARNER: ro_on_learner(r, ev, a); break;
	case RO_LEARNER_GONE:
		if (r->learn_up)
			ro_say(a, "the learner is gone; serving and rollback go on");
		r->learn_up = false;
		break;
	case RO_PROMOTE: ro_on_promote(r, ev, a); break;
	case RO_ROLLBACK: ro_on_rollback(r, ev, a); break;
	case RO_PIN: ro_on_pin(r, ev, a); break;
	case RO_UNPIN: ro_on_unpin(r, ev, a); break;
	case RO_HOLD: ro_on_hold(r, ev, a); break;
	case RO_RELEASE: ro_on_release(r, a); break;
	case RO_PAUSE: ro_on_pause(r, ev, a); break;
	case RO_RESUME: ro_on_resume(r, a); break;
	case RO_CANARIED: ro_on_canaried(r, ev, a); break;
	case RO_JUDGED: ro_on_judged(r, ev, a); break;
	case RO_ALARM: ro_on_alarm(r, ev, a); break;
	case RO_COLLAPSED: ro_on_collapsed(r, ev, a); break;
	case RO_FOLLOW: ro_on_follow(r, ev, a); break;
	case RO_TICK:
	case RO_N_EVENTS: break;
	}
	if (!res)
		ro_next(r, ev->now_us, a);
	return res;
}
