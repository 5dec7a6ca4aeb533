/* Accept length over the last day, so that a page opened now has a past.
 *
 * Two rings a domain: 10 s for the last hour, 5 min (the mean of thirty of those) for the last
 * day. A slot in which the domain had no request is empty, not zero. Beside them marks (switches,
 * drift, decay) and the last sentences said. Bounded: 17 domains, 64 marks, 32 events, about
 * 65 KiB in all. Time is the monotonic clock's; wall-clock time is put on when it is shown.
 * Threads: one owner.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/err.h"

struct history;

enum {
	HISTORY_FINE_S = 10, HISTORY_FINE = 360, /* seconds a slot, slots */
	HISTORY_FOLD = 30, HISTORY_COARSE = 288, /* fine slots in a coarse one, coarse slots */
	HISTORY_DOMAINS = 17, HISTORY_MARKS = 64, HISTORY_EVENTS = 32,
};

int MUSTCHECK history_new(uint64_t now_us, struct history **ret);
struct history *history_free(struct history *h);
bool history_due(const struct history *h, uint64_t now_us); /* a slot has ended: time to take */
/* domains as watch_domains gives them. Before a slot has ended it does nothing. */
void history_take(struct history *h, uint64_t now_us, const json_t *domains);
/* kind "switch", "drift" or "decay": also a mark on the curve; "event": only said. version 0 = none. */
void history_said(struct history *h, uint64_t now_us, const char *kind, uint32_t version, const char *text);
/* {now_ms, fine: {step_ms, end_ms, domains: {name: [accept length or null, ...]}}, coarse: the same,
 *  marks: [{t_ms, kind, version, text}], events: the same, oldest first}. Lists end at end_ms; nothing
 * stands for what came before a domain was first seen. */
json_t *history_json(const struct history *h, uint64_t now_us, int64_t wall_ms);
