/* Prometheus text metrics. Series are created at start (or bounded in number),
 * updated from any thread with relaxed atomics, printed by metrics_print.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/buf.h"

struct metrics;
struct metric; /* one series; owned by the registry */

struct metrics *metrics_new(void); /* NULL when out of memory */
struct metrics *metrics_free(struct metrics *m);
/* labels: "domain=\"code\",version=\"3\"" or NULL. Same name and labels = same
 * series. At most 4,096 series; past that the last one given back is a sink. Never NULL. */
struct metric *metrics_counter(struct metrics *m, const char *name, const char *labels, const char *help);
struct metric *metrics_gauge(struct metrics *m, const char *name, const char *labels, const char *help);
struct metric *metrics_histogram(struct metrics *m, const char *name, const char *labels, const char *help,
				 const double *edges, int n_edges); /* edges copied, ascending */
void metric_add(struct metric *x, double v);
void metric_set(struct metric *x, double v);
void metric_observe(struct metric *x, double v);
void metric_observe_n(struct metric *x, double v, unsigned n); /* n times */
/* Remove the series of a name whose labels `keep` does not want. Only for names whose series nobody holds on to between
 * calls: a pointer to one that was removed is dead. */
void metrics_retire(struct metrics *m, const char *name, bool (*keep)(void *arg, const char *labels), void *arg);
double metric_get(const struct metric *x); /* counter or gauge value; histogram: count */
/* The text that metrics_print (and others, in its form) gave, as OpenMetrics; for who accepts METRICS_OPEN. */
#define METRICS_PLAIN "text/plain; version=0.0.4; charset=utf-8"
#define METRICS_OPEN  "application/openmetrics-text; version=1.0.0; charset=utf-8"
bool metrics_wants_open(const char *accept); /* the Accept header, or NULL */
int MUSTCHECK metrics_openmetrics(const struct buf *text, struct buf *out);
int MUSTCHECK metrics_print(struct metrics *m, struct buf *out);
