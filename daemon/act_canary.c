/* Once a second while a canary runs: what its requests show, as an event. */
#include "daemon/act_canary.h"
#include <string.h>
#include "daemon/act_inside.h"
#include "daemon/base/metrics.h"
#include "daemon/watch.h"

/* The step that the share belongs to, from 1. */
static int step_of(const struct rollout_rules *r, uint32_t permille)
{
	int step = 1;

	while (step < r->n_steps && permille >= r->permille[step])
		step++;
	return step;
}

void act_canary(struct act *a, struct watch *w)
{
	const struct rollout *r = &a->r;
	uint32_t version = r->s.canary.version, permille = r->s.canary.permille;
	struct canary_rules rules = a->o.canary;
	struct ro_event ev = {.kind = RO_JUDGED, .version = version, .permille = permille, .text = a->canary_text};

	metric_set(metrics_gauge(a->metrics, "redraft_canary_permille", NULL, "Conversations of 1000 that draft with a version on canary."), permille);
	if (!version) {
		a->canary_text[0] = '\0';
		watch_canary_stop(w);
		return;
	}
	rules.requests *= step_of(&r->rules, permille);
	switch (watch_canary(w, version, r->s.live, &rules, rollout_unproven(r, version), a->canary_text)) {
	case CANARY_HARM: ev.result = RO_BAD; break;
	case CANARY_ENOUGH: ev.result = RO_OK; break;
	case CANARY_GOES_ON: ev.result = RO_LATER; break;
	}
	act_event(a, &ev);
}

const char *act_canary_text(const struct act *a)
{
	return a->canary_text;
}
