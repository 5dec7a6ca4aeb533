/* What the daemon says of itself, as JSON: the same to the control socket and to the page.
 * New references; NULL when out of memory. Threads: the loop's.
 */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include "schemas/manifest.h"

struct act;
struct audit;
struct metrics;
struct watch;

json_t *report_status(struct act *a, struct watch *w, struct audit *audit /* or NULL */, uint64_t start_us); /* io.redraft.Daemon.Status */
json_t *report_versions(struct act *a, int most); /* [Version], the newest `most`; reads two files of each */
/* One Version; its manifest and verdict, which may be NULL, are new references too. */
json_t *report_version(struct act *a, const struct version_entry *v, json_t **ret_manifest, json_t **ret_verdict);
json_t *report_drift(struct act *a, struct watch *w); /* io.redraft.Daemon.Drift */
/* A string that is surely one: what is no UTF-8, as after a cut inside a character, becomes question marks. */
json_t *report_text(const char *s);
/* What the learner last said of itself, as redraft_learn_* (report_metrics.c). */
void report_metrics(struct metrics *m, struct act *a);
