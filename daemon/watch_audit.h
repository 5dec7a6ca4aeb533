/* The audit log's second copy: each line, as it is sealed, to a topic of its own (redraft.audit, not compacted).
 *
 * Never waits. What the broker has not taken, or refuses, stays in 4 MiB of memory and is sent until it is taken, in its order;
 * past that lines are counted and not sent, nor is what waits when we stop (the file has them all). Threads: the loop's.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "daemon/base/err.h"

struct metrics;
struct watch_audit;

/* *ret = NULL when brokers or topic is "". */
int MUSTCHECK watch_audit_new(const char *brokers, const char *topic, const char *conf, struct metrics *m, struct watch_audit **ret, struct errtext *e);
struct watch_audit *watch_audit_free(struct watch_audit *a); /* waits up to 2 s for what is on its way; NULL is taken */
void watch_audit_send(struct watch_audit *a, const char *line, size_t len); /* NULL is taken */
void watch_audit_tick(struct watch_audit *a); /* once a second; NULL is taken */
/* What happened to the topic since this was asked before, as a sentence; false: nothing. NULL is taken. */
bool watch_audit_said(struct watch_audit *a, char *ret, size_t size);
