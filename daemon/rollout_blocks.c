/* What the rules of the rollout are made of: an action, a sentence, a mark on a version, an operation begun or over.
 *
 * None of these decides anything; who may call them when is in the other rollout_*.c.
 */
#include "daemon/rollout_steps.h"

struct ro_action *ro_do(struct ro_actions *a, enum ro_action_kind kind, uint32_t version)
{
	static struct ro_action spill;
	struct ro_action *x = a->n < RO_MAX_ACTIONS ? &a->a[a->n++] : &spill;

	*x = (struct ro_action){.kind = kind, .version = version};
	return x;
}

void ro_say(struct ro_actions *a, const char *fmt, ...)
{
	struct ro_action *x = ro_do(a, RO_DO_LOG, 0);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(x->text, sizeof x->text, fmt, ap);
	va_end(ap);
}

struct version_entry *rollout_find(const struct rollout *r, uint32_t number)
{
	for (int i = 0; number && i < r->s.n_versions; i++)
		if (r->s.versions[i].number == number)
			return &r->s.versions[i];
	return NULL;
}

void ro_mark(struct rollout *r, uint32_t version, enum version_state state, const char *fmt, ...)
{
	struct version_entry *v = rollout_find(r, version);
	va_list ap;

	if (!v)
		return;
	v->state = state;
	va_start(ap, fmt);
	vsnprintf(v->reason, sizeof v->reason, fmt, ap);
	va_end(ap);
}

void ro_verdict(struct ro_actions *a, uint32_t version, const char *verdict, const char *fmt, ...)
{
	struct ro_action *x;
	va_list ap;

	if (a->n >= RO_MAX_ACTIONS / 2) /* a store full of foreign candidates: the learner waits for one at most */
		return;
	x = ro_do(a, RO_DO_VERDICT, version);
	x->verdict = verdict;
	va_start(ap, fmt);
	vsnprintf(x->text, sizeof x->text, fmt, ap);
	va_end(ap);
}

void ro_answer(struct ro_actions *a, enum ro_event_kind verb, const char *error, const char *fmt, ...)
{
	struct ro_action *x = ro_do(a, RO_DO_ANSWER, 0);
	va_list ap;

	x->verb = verb;
	x->error = error;
	va_start(ap, fmt);
	vsnprintf(x->text, sizeof x->text, fmt, ap);
	va_end(ap);
}

/* The newest version below `below` that has served and is not quarantined. */
uint32_t ro_older(const struct rollout *r, uint32_t below)
{
	for (int i = r->s.n_versions - 1; i >= 0; i--) {
		const struct version_entry *v = &r->s.versions[i];

		if (v->number < below && (v->state == VS_PREVIOUS || v->state == VS_RETIRED))
			return v->number;
	}
	return 0;
}

uint32_t ro_newest(const struct rollout *r, enum version_state state)
{
	for (int i = r->s.n_versions - 1; i >= 0; i--)
		if (r->s.versions[i].state == state)
			return r->s.versions[i].number;
	return 0;
}

void ro_set_live(struct rollout *r, uint32_t version, struct ro_actions *a)
{
	struct version_entry *old = rollout_find(r, r->s.live), *prev = rollout_find(r, r->s.previous);
	uint32_t next;

	if (version == r->s.live)
		return;
	if (prev && prev->state == VS_PREVIOUS)
		prev->state = VS_RETIRED;
	if (old && old->state == VS_LIVE)
		old->state = VS_RETIRED;
	if (version)
		ro_mark(r, version, VS_LIVE, "%s", "");
	/* Going back keeps no way forward to what was left: previous is what stood below. */
	next = old && old->state == VS_RETIRED ? old->number : ro_older(r, version);
	r->s.live = version;
	r->s.previous = next;
	prev = rollout_find(r, next);
	if (prev)
		prev->state = VS_PREVIOUS;
	ro_judge_anew(r, a);
}

uint32_t ro_home(const struct rollout *r)
{
	const struct version_entry *base = rollout_find(r, r->s.base);

	return r->s.live ? r->s.live : base && base->state != VS_QUARANTINED ? base->number : 0;
}

void ro_rebase(struct rollout *r, struct ro_actions *a, const char *why)
{
	uint32_t to = ro_home(r);

	r->home_said = true;
	if (to)
		snprintf(ro_do(a, RO_DO_REBASE, to)->text, RO_TEXT, "%s", why);
}

void ro_drop_pending(struct rollout *r, struct ro_actions *a, const char *why)
{
	for (int i = 0; i < r->s.n_versions; i++) {
		struct version_entry *v = &r->s.versions[i];

		if (v->state != VS_CANDIDATE && v->state != VS_GATED && v->state != VS_CANARY)
			continue;
		ro_mark(r, v->number, VS_REJECTED, "%s", why);
		ro_verdict(a, v->number, "superseded", "%s", why);
	}
	ro_canary_forget(r);
	r->eval.running = false;
	r->eval.id++;
}

void ro_quarantine(struct rollout *r, struct ro_actions *a, uint32_t version, const char *fmt, ...)
{
	char why[sizeof r->s.versions->reason];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof why, fmt, ap);
	va_end(ap);
	ro_mark(r, version, VS_QUARANTINED, "%s", why);
	ro_verdict(a, version, "quarantined", "%s", why);
}

void ro_op_end(struct rollout *r)
{
	r->op.phase = RO_IDLE;
	r->op.id++;
}

struct ro_action *ro_begin(struct rollout *r, struct ro_actions *a, enum ro_phase phase, enum ro_action_kind kind, uint32_t version)
{
	struct ro_action *x = ro_do(a, kind, version);

	r->op.phase = phase;
	r->op.since_us = r->now_us;
	r->op.version = version;
	x->id = ++r->op.id;
	x->generation = r->serve_generation;
	return x;
}

void ro_load(struct rollout *r, struct ro_actions *a, enum ro_why why, uint32_t version)
{
	r->op.why = why;
	(void)ro_begin(r, a, RO_LOADING, RO_DO_LOAD, version);
}

void ro_activate(struct rollout *r, struct ro_actions *a, uint32_t version, bool all, bool checked)
{
	struct ro_action *x = ro_begin(r, a, RO_ACTIVATING, RO_DO_ACTIVATE, version);

	x->all = all;
	x->checked = checked;
	if (r->op.why == RO_WHY_BACK)
		snprintf(x->text, sizeof x->text, "%s", r->op.request);
	x->by_operator = r->op.why == RO_WHY_OPERATOR || (r->op.why == RO_WHY_BACK && !r->op.by_itself);
}
