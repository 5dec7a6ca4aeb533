/* Candidates: submitted, judged by the gate, accepted or not, and what becomes of those that were accepted and are not live yet when
 * live changes under them or they wait for too long.
 */
#include <stdlib.h>
#include <string.h>
#include "daemon/rollout_steps.h"

/* Files can be damaged without any fault of the weights; that is another quarantine. */
bool ro_was_rolled_back(const struct version_entry *v)
{
	return v && v->state == VS_QUARANTINED && !strncmp(v->reason, "rolled back", 11);
}

int ro_on_submitted(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	size_t n = (size_t)r->s.n_versions;
	struct version_entry *v = realloc(r->s.versions, (n + 1) * sizeof *v);

	if (!v)
		return -ENOMEM;
	r->s.versions = v;
	for (size_t i = 0; i < n; i++) {
		if (v[i].state != VS_CANDIDATE)
			continue;
		ro_mark(r, v[i].number, VS_REJECTED, "superseded by version %u before it was judged", ev->version);
		ro_verdict(a, v[i].number, "superseded", "version %u came before a verdict", ev->version);
	}
	while (n && v[n - 1].number > ev->version) { /* a follower may be given an older one after a newer one */
		v[n] = v[n - 1];
		n--;
	}
	v[n] = (struct version_entry){.number = ev->version, .state = VS_CANDIDATE};
	r->s.n_versions++;
	if (ev->version >= r->s.next_number)
		r->s.next_number = ev->version + 1;
	if (!r->s.base)
		r->s.base = ev->version;
	r->eval.running = false;
	r->eval.id++;
	r->eval.since_us = r->eval.again_us = ev->now_us;
	if (ro_home(r) && ro_was_rolled_back(rollout_find(r, ev->parent))) { /* a learner that did not hear of it */
		ro_mark(r, ev->version, VS_REJECTED, "made from version %u, which was rolled back", ev->parent);
		ro_verdict(a, ev->version, "superseded", "made from version %u, which was rolled back", ev->parent);
		ro_rebase(r, a, "rollback");
		ro_say(a, "version %u rejected: made from version %u, which was rolled back", ev->version, ev->parent);
	} else {
		ro_say(a, "version %u submitted, made from version %u; next: %s", ev->version, ev->parent, r->rules.follows ? "the fleet's leader is followed to it" : "the gate");
	}
	ro_do(a, RO_DO_SAVE, 0);
	ro_do(a, RO_DO_COLLECT, 0);
	return 0;
}

static void ro_accepted(struct rollout *r, uint32_t version, const char *why, struct ro_actions *a)
{
	uint32_t waiting = ro_newest(r, VS_GATED);

	if (waiting) {
		ro_mark(r, waiting, VS_REJECTED, "superseded by version %u before it went live", version);
		if (r->told != waiting)
			ro_verdict(a, waiting, "superseded", "version %u passed the gate as well", version);
	}
	ro_mark(r, version, VS_GATED, "%s", why);
	r->rejects = r->tries = 0;
	r->gated_us = r->now_us;
	ro_say(a, "version %u passed the gate: %s", version, why);
}

void ro_rejected(struct rollout *r, uint32_t version, const char *why, struct ro_actions *a)
{
	ro_mark(r, version, VS_REJECTED, "%s", why);
	ro_verdict(a, version, "rejected", "%s", why);
	ro_say(a, "version %u rejected: %s; the learner goes on", version, why);
	if (++r->rejects >= r->rules.rejects_to_rebase && r->s.live) {
		ro_rebase(r, a, "rejected too many times running");
		ro_say(a, "%d rejections running; the learner goes back to version %u", r->rejects, r->s.live);
		r->rejects = 0;
	}
}

void ro_on_evaluated(struct rollout *r, const struct ro_event *ev, struct ro_actions *a)
{
	const char *why = ev->text ? ev->text : "";
	uint32_t version = r->eval.version;

	if (!r->eval.running || ev->id != r->eval.id)
		return;
	r->eval.running = false;
	/* The learner computes what we ask for: at most a quarter of its time. */
	r->eval.again_us = ev->now_us + (3 * ev->took_us > r->rules.retry_us ? 3 * ev->took_us : r->rules.retry_us);
	if (ev->result == RO_NOBODY)
		return;
	if (r->eval.against != r->s.live) { /* judged against what is no longer live: look again at once */
		r->eval.again_us = ev->now_us;
		return;
	}
	if (ev->result == RO_OK) {
		ro_accepted(r, version, why, a);
	} else if (ev->result == RO_UNFIT && r->rules.n_steps) {
		char text[RO_TEXT];

		snprintf(text, sizeof text, "not replayable, the canary judges: %.120s", why);
		ro_accepted(r, version, text, a);
	} else if (ev->result == RO_UNFIT) {
		ro_rejected(r, version, "it cannot be replayed, and there is no canary to judge it (canary.steps, brokers)", a);
	} else if (ev->result == RO_BAD) {
		ro_rejected(r, version, why, a);
	} else if (ev->full || ev->now_us - r->eval.since_us >= r->rules.max_wait_us) {
		const char *how = ev->full ? "on all the requests held out" : "for too long";

		ro_mark(r, version, VS_REJECTED, "superseded: undecided %s; %.120s", how, why);
		ro_verdict(a, version, "superseded", "undecided %s; %.120s", how, why);
		ro_say(a, "version %u superseded, undecided %s: %.120s", version, how, why);
	} else {
		return; /* undecided and time left: nothing to save */
	}
	ro_do(a, RO_DO_SAVE, 0);
}

void ro_judge_anew(struct rollout *r, struct ro_actions *a)
{
	uint32_t keep = ro_newest(r, VS_CANDIDATE);

	ro_canary_forget(r);
	for (int i = r->s.n_versions - 1; i >= 0; i--) {
		struct version_entry *v = &r->s.versions[i];

		if (v->state != VS_GATED && v->state != VS_CANARY)
			continue;
		if (keep) {
			ro_mark(r, v->number, VS_REJECTED, "superseded by version %u: live changed before it went live", keep);
			if (r->told != v->number)
				ro_verdict(a, v->number, "superseded", "live changed, and version %u is newer", keep);
			continue;
		}
		keep = v->number;
		v->state = VS_CANDIDATE;
		v->reason[0] = '\0';
		r->eval.running = false;
		r->eval.id++;
		r->eval.since_us = r->eval.again_us = r->now_us;
		ro_say(a, "version %u was judged against what is no longer live: it is judged again", keep);
	}
}

void ro_too_old(struct rollout *r, uint64_t now_us, struct ro_actions *a)
{
	uint32_t gated = ro_newest(r, VS_GATED);

	if (!gated || !r->rules.max_age_us || now_us - r->gated_us < r->rules.max_age_us || (r->op.phase != RO_IDLE && r->op.version == gated))
		return;
	ro_mark(r, gated, VS_REJECTED, "%s", "superseded: accepted, but it waited longer than rollout.max_age_s");
	if (r->told != gated)
		ro_verdict(a, gated, "superseded", "it waited longer than rollout.max_age_s");
	ro_say(a, "version %u superseded: it waited longer than rollout.max_age_s to go live", gated);
	ro_do(a, RO_DO_SAVE, 0);
}
