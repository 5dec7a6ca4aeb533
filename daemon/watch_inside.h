/* Shared between watch.c (counting) and watch_*.c (Kafka) only. */
#pragma once
#include <librdkafka/rdkafka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "daemon/watch.h"

enum { WATCH_DOMAINS = 17, WATCH_VERSIONS = 8, WATCH_RECENT = 64 };

struct watch_cell {
	uint32_t version; /* 0 with used false = free; version 0 = plain decoding */
	bool used, left;  /* left: it was live, and is not */
	uint64_t requests, rounds, proposed, accepted, seen; /* seen: stamp of the last record */
	double ema;                                         /* NaN until something was proposed */
	uint32_t ring_rounds[WATCH_RECENT], ring_accepted[WATCH_RECENT];
	uint64_t lost; /* bit per request, the newest lowest: it ended without its draft */
	int at, n_first; /* n_first: how many of its bits are requests */
};

struct watch_domain {
	char name[32];
	uint64_t requests, rounds;
	struct watch_cell cell[WATCH_VERSIONS];
};

enum { WATCH_SAID = 16, WATCH_TEXT = 256 };

struct watch_place { /* where we are in a partition */
	int64_t next;  /* the record after the last one taken; -1: none was taken */
	uint64_t sum;  /* of that last one */
	int64_t mark;  /* the last one taken as of the last look back; -1 = none */
	uint64_t mark_sum;
	bool back;     /* a look back is under way: the first record that comes is compared */
	int32_t leader; /* as last seen: -1 = none */
};

struct watch_kafka { /* how the reading goes */
	atomic_bool up, refused;     /* the broker answers; it refuses our login */
	int partitions;
	int64_t lag, seen_ms;        /* records behind, -1 = not known; the time of the newest record read, 0 = none */
	uint64_t lost, gaps;         /* records that were gone before they were read; how often */
	char trouble[WATCH_TEXT];    /* "" = none */
	char said[WATCH_SAID][WATCH_TEXT]; /* not yet fetched */
	int n_said;
};

struct watch {
	pthread_mutex_t lock; /* guards domains .. kafka */
	struct watch_domain domain[WATCH_DOMAINS];
	int n_domains;
	uint64_t bad, foreign, stamp;
	char target_fp[65];   /* "" = any */
	struct drift *drift;  /* owned */
	struct canary canary;
	char said[DRIFT_TEXT]; /* by drift, not yet fetched */
	struct watch_kafka kafka;
	char *brokers, *topic, *conf; /* owned */
	rd_kafka_t *rk;       /* owned; NULL = off */
	pthread_t thread;
	bool started;
	atomic_bool stop;
	/* the thread's own */
	int n_partitions;     /* assigned */
	int silent;           /* looks without an answer, running */
	bool gone_said;       /* that nobody answers, since somebody did last, or ever */
	bool denied_said;     /* that we may not read the topic, since we last might */
	bool was_absent;      /* the broker said there is no such topic: what comes is all new */
	struct watch_place *place; /* owned; of each assigned partition */
	_Atomic uint64_t back_us; /* when to look back next; atomic for a test that does not wait for it */
	int wake[2];          /* a pipe: the library writes when something has come, watch_disconnect when it is over; -1 = none */
};

/* watch_place.c: is the log of each partition still the one that we read? */
enum watch_seen { WATCH_NEW, WATCH_AGAIN, WATCH_ANEW };
enum watch_seen watch_place_next(struct watch_place *p, int64_t offset, uint64_t sum); /* a record at the place: new; taken before; of another log */
bool watch_place_take(struct watch *w, const rd_kafka_message_t *m); /* is this one to be counted? */
void watch_look_back(struct watch *w);
void watch_gap(struct watch *w, const rd_kafka_message_t *m); /* m: the place is outside the log */

/* watch_kafka.c */
void PRINTF(2, 3) watch_say(struct watch *w, const char *fmt, ...);
int MUSTCHECK watch_connect(struct watch *w, struct errtext *e); /* and start reading; brokers, topic and conf are set */
void watch_disconnect(struct watch *w);
/* A client's settings, for watch_topics.c and watch_audit.c: brokers, watch.conf, the credential. NULL with e. */
rd_kafka_conf_t *watch_settings(const char *brokers, const char *conf, struct errtext *e);
