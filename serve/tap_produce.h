/* The tap's Kafka producer: bounded, never waits for a broker, comes back by itself.
 *
 * One thread (the tap's) calls everything. What cannot be queued is refused at
 * once; what the broker never took is reported through on_lost. An idempotent
 * producer can die of a fatal error; it is then replaced by a new one.
 */
#pragma once
#include <stdbool.h>
#include "daemon/base/buf.h"

struct tap_producer;

struct tap_producer_options {
	const char *brokers, *extra_conf; /* extra_conf "k=v,k=v" or NULL */
	size_t queue_bytes;
	char target_fp[65], source[80];
	/* of a message that was queued; tag as given to tap_produce */
	void (*on_delivered)(void *arg, uint64_t tag);
	void (*on_lost)(void *arg, uint64_t tag);
	void *arg;
};

enum { TAP_PRODUCE_E_FULL = 1, TAP_PRODUCE_E_SIZE = 2, TAP_PRODUCE_E_OTHER = 3 };

/* Does librdkafka know these settings and take their values? -EINVAL with e. */
int MUSTCHECK tap_producer_check(const char *extra_conf, struct errtext *e);
int MUSTCHECK tap_producer_new(const struct tap_producer_options *o, struct tap_producer **ret, struct errtext *e);
/* Waits at most ms for what is queued, then gives it up (on_lost for each). */
struct tap_producer *tap_producer_free(struct tap_producer *p, int ms);

struct tap_message {
	const char *topic, *key, *ce_type, *content_type;
	char id[64]; /* ce_id */
	uint64_t tag;
	struct buf *value; /* taken over (and emptied) on success only */
};
/* 0 = queued, or TAP_PRODUCE_E_* */
int MUSTCHECK tap_produce(struct tap_producer *p, struct tap_message *m);
/* No broker could be reached when one was last needed or asked. */
bool tap_producer_down(const struct tap_producer *p);
void tap_producer_poll(struct tap_producer *p); /* delivery reports, renewal after a fatal error */
