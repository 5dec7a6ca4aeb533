/* A fall of accept length: is it the traffic or the engine?
 *
 * Traffic that has changed is the learner's to follow: it is told the level and learns harder. But
 * the same curve appears when the engine no longer does what the weights say (a stale
 * page of draft KV, another draft than named, features of the wrong boundary), and learning from such
 * traces would make it worse. So when a fall begins, and once an hour besides, the learner replays the
 * live version over the very rounds that were served: same version, same requests, same starts. What was
 * served and what the weights say must agree; where they surely do not, it is decay: promotions are
 * held, training pauses, and somebody is told. Nothing is rolled back for it: the previous version
 * would be served by the same engine.
 */
#include <math.h>
#include "daemon/act_inside.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/metrics.h"
#include "daemon/base/rpc.h"
#include "daemon/drift.h"

enum { COMPARE_MS = 600000, COMPARE_REQUESTS = 64 };
static const uint64_t compare_again_us = 60ull * 1000000;

static void act_found_decay(struct act *a, long long version, const struct drift_compared *c)
{
	char text[RO_TEXT];

	snprintf(text, sizeof text, "decay, not drift: version %lld was served at accept length %.3f, its weights say %.3f, %.1f %% of rounds differ (%d requests)",
		 version, c->served_al, c->replayed_al, 100 * c->differ, c->requests);
	act_alarm(a, text);
}

/* Somebody has to look: the rollout holds and pauses until a release, over restarts too. One alarm at a time: the first says why. */
void act_alarm(struct act *a, const char *text)
{
	if (a->r.s.alarm[0])
		return;
	log_fields(LOG_ERROR, "REDRAFT_EVENT=decay\n", "%s; training paused, promotions held until release", text);
	act_say(a, ACT_NEWS_DECAY, text);
	act_event(a, &(struct ro_event){.kind = RO_ALARM, .text = text});
}

static void act_compared(void *arg, int r, json_t *params, const char *error)
{
	struct act *a = arg;
	struct drift_compared c = {0};
	json_int_t version; /* the one compared: another may be live by now */

	a->comparing = false;
	if (r != 0) { /* nobody there, or too few rounds yet */
		a->compare_us = clock_us() + (a->o.compare_us < compare_again_us ? a->o.compare_us : compare_again_us);
		log_debug("served against replayed: %s", error ? error : "no answer");
		return;
	}
	if (json_unpack(params, "{s:I, s:i, s:F, s:F, s:F, s?F, s?F}", "version", &version, "requests", &c.requests, "served_al", &c.served_al, "replayed_al",
			&c.replayed_al, "gap_se", &c.gap_se, "differ", &c.differ, "differ_se", &c.differ_se) != 0 ||
	    !isfinite(c.served_al) || !isfinite(c.replayed_al) || !isfinite(c.gap_se) || !isfinite(c.differ) || !isfinite(c.differ_se)) {
		log_warn("served against replayed: the learner's answer is no use");
		return;
	}
	metric_set(metrics_gauge(a->metrics, "redraft_served_replayed_gap", NULL, "Replayed minus served accept length of the live version on the same rounds."),
		   c.replayed_al - c.served_al);
	log_info("served against replayed: version %lld, %.3f against %.3f on %d requests (standard error %.4f), %.2f %% of rounds differ (%.2f)",
		 (long long)version, c.served_al, c.replayed_al, c.requests, c.gap_se, 100 * c.differ, 100 * c.differ_se);
	if (drift_is_decay(&c))
		act_found_decay(a, (long long)version, &c);
}

void act_compare(struct act *a)
{
	json_t *p;

	if (a->comparing || !a->r.learn_up || !a->r.s.live || a->r.op.phase != RO_IDLE)
		return;
	p = json_pack("{s:I, s:i}", "version", (json_int_t)a->r.s.live, "requests", COMPARE_REQUESTS);
	a->compare_us = clock_us() + a->o.compare_us;
	a->comparing = rpc_call_async(a->loop, a->o.learn_socket, "io.redraft.Learn.CompareServed", p, COMPARE_MS, act_compared, a) == 0;
}

void act_drift(struct act *a, int level, const char *text)
{
	if (text[0]) {
		log_fields(LOG_WARN, "REDRAFT_EVENT=drift\n", "%s", text);
		act_say(a, ACT_NEWS_DRIFT, text);
	}
	metric_set(metrics_gauge(a->metrics, "redraft_decay", NULL, "1 while an alarm stands: the engine or the target was found not to do what it did."), a->r.s.alarm[0] != 0);
	if (level > a->drift || clock_us() >= a->compare_us)
		act_compare(a);
	if (level == a->drift)
		return;
	a->drift = level;
	act_tell(a, "io.redraft.Learn.SetDrift", json_pack("{s:i}", "level", level));
}

int act_drift_level(const struct act *a)
{
	return a->drift > 0 ? a->drift : 0;
}

const char *act_decay(const struct act *a)
{
	return a->r.s.alarm;
}
