/* Accept length as served, by domain and version, from the round records; and whether it has fallen.
 *
 * A thread reads redraft.rounds from its end by assign(). Broker or topic absent:
 * it looks again and nothing else notices. Bounded: 16 domains (then "other"), the
 * 8 newest versions of each. Functions may be called from any thread.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include "daemon/base/buf.h"
#include "daemon/canary.h"
#include "daemon/drift.h"

struct watch;
struct round_record;

struct watch_options {
	const char *brokers; /* "" = off */
	const char *topic;
	const char *conf;    /* "k=v,k=v" for librdkafka, or "" */
	struct drift_rules drift;
};

int MUSTCHECK watch_check(const char *conf, struct errtext *e); /* does librdkafka know these settings? -EINVAL with e */
int MUSTCHECK watch_new(const struct watch_options *o, struct watch **ret, struct errtext *e);
struct watch *watch_free(struct watch *w);
/* From now on records of this target only count; the topic may be other servers' too, with targets of their own. "": any. */
void watch_target(struct watch *w, const char *target_fp);
void watch_take(struct watch *w, const struct round_record *r); /* one record; the thread does this */
/* {domain: {requests, rounds, accept_length, recent, versions: {N: {...}}}}; new reference.
 * accept_length: exponential over about 200 rounds; recent: over the last 64 requests; null
 * where nothing was proposed yet. The domain's own are those of its newest version seen. */
json_t *watch_domains(struct watch *w);
json_t *watch_streams(struct watch *w); /* drift_streams */
/* The drift level now; ret_text: the last thing said since this was asked before, "" when nothing was. */
int watch_drift(struct watch *w, char ret_text[static DRIFT_TEXT]);
/* How the reading goes: {on, up, topic, partitions, lag, lag_s, gaps, lost, bad, foreign, trouble}; foreign: records of other targets; new reference. */
json_t *watch_kafka(struct watch *w);
/* The next sentence about Kafka that was not yet fetched; false = none. */
bool watch_said(struct watch *w, char *ret, size_t size);
/* What is seen of the canary so far; the counting begins when this version and live are first asked about together. */
enum canary_outcome watch_canary(struct watch *w, uint32_t version, uint32_t live, const struct canary_rules *rules, bool proven,
				 char ret_text[static CANARY_TEXT]);
void watch_canary_stop(struct watch *w);
/* Of the last requests that began with a version: how many did not end with it (they went on without a draft, or were moved). */
int watch_lost(struct watch *w, uint32_t version, int *ret_requests);
/* Accept length of a version over the last requests of all domains, and how many those are (64 a domain at most); NaN: none. */
double watch_recent_al(struct watch *w, uint32_t version, int *ret_requests);
/* Another version is live. What one that comes back was like before it was left is not what it is like now, and requests that were
 * moved off it look as if they had lost their draft: both counts above begin anew for it. */
void watch_live(struct watch *w, uint32_t left, uint32_t live);
int MUSTCHECK watch_print(struct watch *w, struct buf *out); /* for /metrics */
