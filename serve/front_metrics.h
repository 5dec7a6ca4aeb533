/* What /metrics shows of the serving front: vLLM's names with vLLM's labels
 * (model_name, engine), so that its dashboards and benchmarks read them unchanged,
 * and our own under redraft_. Threads: the loop's.
 */
#pragma once
#include "serve/engine.h"
#include "serve/http.h"
#include "serve/tap.h"

struct metrics;
struct front_metrics;

struct front_metrics *front_metrics_new(struct metrics *m, const char *model_name); /* NULL when out of memory */
struct front_metrics *front_metrics_free(struct front_metrics *f);

void front_metrics_first_token(struct front_metrics *f, double seconds);
void front_metrics_tokens(struct front_metrics *f, int n, double seconds_each);
/* reason: a finish_reason or "abort", "deadline", "error"; tokens generated, and the time of those after the first */
void front_metrics_end(struct front_metrics *f, const char *reason, double seconds, int tokens, double decode_s, const char *domain, const struct request_stats *s);
/* Of a request that was taken: prompt tokens of one choice, choices, the bound on an answer (0 = none was named). */
void front_metrics_taken(struct front_metrics *f, int prompt, int n, int max_tokens);
void front_metrics_refused(struct front_metrics *f, int status);
/* What the process holds: connections, what lies in their buffers, and memory of the allocator. */
void front_metrics_process(struct front_metrics *f, const struct http_stats *h);
/* Counters that the engine and the tap keep; tap may be NULL. */
void front_metrics_refresh(struct front_metrics *f, const struct engine_status *s, const struct tap_stats *t);
/* Series of versions that no slot holds any more go: versions come every hour, for years. */
void front_metrics_retire(struct front_metrics *f, const struct engine_status *s);
