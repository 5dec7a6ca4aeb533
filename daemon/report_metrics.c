/* The learner has no port of its own: what its status says is shown on the daemon's /metrics, most of it by act_learn_metrics.c; here
 * what only means something while it is there, one row of a table a figure.
 * While it is gone its series are gone too, so that nobody takes old figures for new ones; redraft_learn_up says why.
 */
#include "daemon/act.h"
#include "daemon/base/metrics.h"
#include "daemon/report.h"

static const struct peer_metric {
	const char *name, *in, *key, *help; /* in: object inside the status, "" = the status itself */
} learn_metrics[] = {
	{"redraft_learn_loss", "", "loss", "Mean loss of the last steps."},
	{"redraft_learn_paused", "", "paused", "1 while training is paused."},
	{"redraft_learn_base_version", "", "base_version", "Version that the learner goes on from."},
	{"redraft_learn_lag_seconds", "records", "lag_s", "Age of the newest trace record read, while others wait."},
	{"redraft_learn_pool_bytes", "pool", "bytes", "Replay pool on disk."},
	{"redraft_learn_duty", "pace", "duty", "Share of the time that the learner may compute."},
	{"redraft_learn_rss_bytes", "pace", "rss_bytes", "Memory of the learner's process."},
	{"redraft_learn_checkpoints_failed", "checkpoint", "failed", "Checkpoints that could not be written since the learner's start."},
	{"redraft_learn_candidates_failed", "candidate", "failed", "Candidates that could not be written since the learner's start."},
};

static bool keep_none(void *arg, const char *labels)
{
	(void)arg;
	(void)labels;
	return false;
}

void report_metrics(struct metrics *m, struct act *a)
{
	json_t *status = act_learn_status(a);

	if (!act_rollout(a)->learn_up)
		metrics_retire(m, "redraft_learn_pace_state", keep_none, NULL);
	for (size_t i = 0; i < sizeof learn_metrics / sizeof *learn_metrics; i++) {
		const struct peer_metric *x = &learn_metrics[i];
		const json_t *v = json_object_get(x->in[0] ? json_object_get(status, x->in) : status, x->key);

		if (!act_rollout(a)->learn_up || !(json_is_number(v) || json_is_boolean(v)))
			metrics_retire(m, x->name, keep_none, NULL);
		else
			metric_set(metrics_gauge(m, x->name, NULL, x->help), json_is_boolean(v) ? json_is_true(v) : json_number_value(v));
	}
}
