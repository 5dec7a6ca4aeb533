/* The learner's status as metrics: what it took, trained, left out and why, and the state of its pace. */
#include <stdio.h>
#include <string.h>
#include "daemon/act_inside.h"
#include "daemon/base/metrics.h"

static void gauge(struct act *a, const char *name, const char *labels, const char *help, const json_t *v)
{
	if (json_is_number(v) || json_is_boolean(v))
		metric_set(metrics_gauge(a->metrics, name, labels, help), json_is_boolean(v) ? json_is_true(v) : json_number_value(v));
}

/* One series a key of an object: its keys are the learner's own words, checked and few. */
static void gauges(struct act *a, const char *name, const char *label, const char *help, json_t *object)
{
	const char *key;
	json_t *v;
	int n = 0;

	json_object_foreach(object, key, v) {
		char labels[80];

		if (n++ == 16 || strlen(key) > 32 || key[strspn(key, "abcdefghijklmnopqrstuvwxyz_")])
			continue;
		(void)snprintf(labels, sizeof labels, "%s=\"%s\"", label, key);
		gauge(a, name, labels, help, v);
	}
}

void act_learn_metrics(struct act *a)
{
	static const char *const states[] = {"full", "stretched", "paused", "asleep", "refused"};
	json_t *s = a->learn_status, *pool = json_object_get(s, "pool"), *pace = json_object_get(s, "pace"), *steps = json_object_get(s, "steps");
	const char *state = json_string_value(json_object_get(pace, "state"));

	gauge(a, "redraft_learn_steps", NULL, "Training steps taken.", json_object_get(s, "step"));
	gauge(a, "redraft_learn_trained_tokens", NULL, "Rows trained.", json_object_get(s, "trained_tokens"));
	gauges(a, "redraft_learn_records", "what", "Trace records: consumed, bytes, rows, set aside, twice, lost, behind.", json_object_get(s, "records"));
	gauges(a, "redraft_learn_left_out", "reason", "Records and runs that were not learned from, by reason.", json_object_get(pool, "left_out"));
	gauges(a, "redraft_learn_history", "found", "Runs by how far back the history before them was found.", json_object_get(pool, "history"));
	gauges(a, "redraft_learn_pinned", "domain", "Older requests kept to judge candidates by, never trained.", json_object_get(s, "pinned"));
	gauges(a, "redraft_learn_steps_without_effect", "reason", "Steps that changed nothing, by reason; and resumes that were not exact.", steps);
	for (size_t i = 0; state && i < sizeof states / sizeof *states; i++) {
		char labels[40];

		(void)snprintf(labels, sizeof labels, "state=\"%s\"", states[i]);
		metric_set(metrics_gauge(a->metrics, "redraft_learn_pace_state", labels, "1 for the state that the learner's pace is in."), strcmp(state, states[i]) == 0);
	}
}
