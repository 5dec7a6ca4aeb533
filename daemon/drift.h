/* Drift: has the accept length of some traffic fallen?
 *
 * A stream is one domain at one context length (round.h's bucket), under one version: a
 * switch starts it anew (a rollback after 16 records in a row of the lower version), for another draft has another level. The unit is the request, since
 * the tokens of one are no independent witnesses. One detector a stream may raise an alarm: Page-Hinkley
 * over falls, in units of the stream's own spread. That form was chosen by measurement
 * (tests/bench/drift_sim.c; the table is in daemon/README.md): its false alarms are
 * rare enough to wake somebody, and it is the quickest for the falls that matter. ADWIN and
 * KSWIN run beside it as witnesses and are shown, but alarm nobody: a dozen
 * streams at a request a second are 600,000 looks a week.
 *
 * An alarm ends when the stream has recovered half of what it lost (mean of its last
 * DRIFT_RECENT requests) or another version serves it.
 * Bounded: DRIFT_STREAMS streams; the one longest unseen gives its place. Threads: one owner.
 */
#pragma once
#include <jansson.h>
#include "daemon/base/buf.h"
#include "daemon/detect.h"

struct round_record;
struct drift;

enum { DRIFT_STREAMS = 128, DRIFT_RECENT = 64, DRIFT_TEXT = 200 };

/* The defaults: of redraftd's table, and of what is simulated. */
#define DRIFT_IGNORE 0.25
#define DRIFT_ALARM 30
#define DRIFT_WARM 200

struct drift_rules {
	double ignore;  /* falls of the mean below this many standard deviations between requests are no drift */
	double alarm;   /* summed evidence, in standard deviations, that is one */
	int64_t warm;   /* requests that a stream's level and spread are learnt from first */
};
extern const struct drift_rules drift_defaults;

int MUSTCHECK drift_new(const struct drift_rules *rules, struct drift **ret);
struct drift *drift_free(struct drift *d);
/* 1: alarm raised, -1: one ended; ret_text says which and from what to what, in a sentence. 0: nothing to
 * say. Records of plain decoding and records without a chain round are passed over. */
int drift_take(struct drift *d, const struct round_record *r, char ret_text[static DRIFT_TEXT]);
/* 0 none, 1 one stream has fallen, 2 several, 3 more than half of the recent traffic */
int drift_level(const struct drift *d);
/* Served against replayed: the same version on the same rounds, and of how many the two numbers are not the same; standard errors by requests. */
struct drift_compared { double served_al, replayed_al, gap_se, differ, differ_se; int requests; };
/* On at least 16 requests, their means differ by more than 2 % and four standard errors, or surely more than 5 % of the rounds do, which is more
 * than ties decided by rounding. Then it is not the traffic. */
bool drift_is_decay(const struct drift_compared *c);
/* [{domain, context, version, requests, mean, sd, recent, p50, p95, accepted_at: [], alarm, evidence, adwin, kswin}] */
json_t *drift_streams(const struct drift *d);
int MUSTCHECK drift_print(const struct drift *d, struct buf *out); /* for /metrics */
