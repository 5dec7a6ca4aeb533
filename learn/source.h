/* Where trace records come from: one table, so that tests can use a script.
 *
 * Reads are by (partition, offset), in any interleaving the caller wants: the
 * learner decides the order and journals it, and reads the same order again
 * after a crash. Threads: one owner.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "daemon/base/err.h"

struct source_msg {
	int64_t offset;
	int64_t time_s;   /* when it was written, s since 1970; 0 = not known */
	const void *data; /* may be unaligned; valid until release */
	size_t len;
	void *owner;      /* the source's own */
};

enum { SOURCE_E_NONE = 1, SOURCE_E_GAP = 2 };

struct source {
	/* How many partitions the topic has; 0 = not known yet (nobody answers). */
	int (*partitions)(struct source *s);
	/* The message of `partition` at `offset`, or the next one after it (offsets may skip).
	 * 0; SOURCE_E_NONE: none within wait_ms; SOURCE_E_GAP: `offset` is outside the log, the
	 * log starts again at ret->offset; -errno. wanted[0..n) are the offsets the caller would
	 * read next of each partition: a source that must (re)start starts them all. */
	int (*read)(struct source *s, int partition, int64_t offset, const int64_t *wanted, int n, int wait_ms, struct source_msg *ret);
	void (*release)(struct source *s, struct source_msg *m);
	const char *(*cluster)(struct source *s); /* "" = not known */
	/* Messages known to wait beyond `offset`, or -1. */
	int64_t (*lag)(struct source *s, int partition, int64_t offset);
	/* The last trouble the transport spoke of; "" = none. */
	const char *(*trouble)(struct source *s);
	struct source *(*free)(struct source *s);
};

struct source_options {
	const char *brokers, *topic;
	const char *extra; /* "k=v,k=v" for librdkafka (security), or NULL */
};
/* Does librdkafka know these settings and take their values? -EINVAL with e. */
int MUSTCHECK source_kafka_check(const char *extra, struct errtext *e);
/* Kafka by assign(): no group join, no commit. Does not wait for a broker. */
int MUSTCHECK source_kafka_new(const struct source_options *o, struct source **ret, struct errtext *e);
