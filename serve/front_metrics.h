/* What /metrics shows of the serving front: vLLM's names with vLLM's labels
 * (model_name, engine), so that its dashboards and benchmarks read them unchanged,
 * and our own under redraft_. Threads: the loop's.
 */
#pragma once
#include "serve/engine.h"
#include "serve/tap.h"

struct metrics;
struct front_metrics;

struct front_metrics *front_metrics_new(struct metrics *m, const char *model_name); /* NULL when out of memory */
struct front_metrics *front_metrics_free(struct front_metrics *f);

void front_metrics_first_token(struct front_metrics *f, double seconds);
void front_metrics_tokens(struct front_metrics *f, int n, double seconds_each);
/* reason: "stop", "length", "abort" or "error" */
void front_metrics_end(struct front_metrics *f, const char *reason, double seconds, const char *domain, const struct request_stats *s);
void front_metrics_refused(struct front_metrics *f, int status);
/* Counters that the engine and the tap keep; tap may be NULL. */
void front_metrics_refresh(struct front_metrics *f, const struct engine_status *s, const struct tap_stats *t);
