/* The audit log's second copy: each line, as it is sealed, to a topic of its own (redraft.audit, not compacted).
 *
 * Never waits: what the broker has not taken stays in 4 MiB of queue until it does, however long; past that lines are
 * counted and not sent (the file has them). Threads: the loop's.
 */
#pragma once
#include <stddef.h>
#include "daemon/base/err.h"

struct metrics;
struct watch_audit;

/* *ret = NULL when brokers or topic is "". */
int MUSTCHECK watch_audit_new(const char *brokers, const char *topic, const char *conf, struct metrics *m, struct watch_audit **ret, struct errtext *e);
struct watch_audit *watch_audit_free(struct watch_audit *a); /* waits up to 2 s for what is on its way; NULL is taken */
void watch_audit_send(struct watch_audit *a, const char *line, size_t len); /* NULL is taken */
void watch_audit_tick(struct watch_audit *a); /* once a second; NULL is taken */
