/* The tap: capture of trace and round records. Never blocks the engine.
 *
 * The engine copies rows into a preallocated ring where the data already exists;
 * the tap's own thread joins them per request, encodes and produces through
 * librdkafka. Full ring or full queue: drop, count by reason, and drop the rest of that
 * request with it. Round records go out for every request.
 *
 * Threads: tap_begin/rows/round/end from the engine thread only (lock-free push);
 * tap_stats any.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/err.h"
#include "schemas/record.h"
#include "schemas/round.h"

struct tap;

struct tap_options {
	const char *brokers;      /* NULL or "" = capture counts only, nothing is produced */
	const char *traces_topic, *rounds_topic;
	int H_t, topk;
	int max_rows;             /* of the longest request; 0 = not known */
	enum record_payload payload; /* how features travel; encoded by the tap's thread */
	bool prompt_hidden;       /* last_hidden of prompt rows travels */
	double sample;            /* share of conversations traced, by hash */
	size_t ring_bytes, queue_bytes;
	char target_fp[65];
	const char *extra_conf;   /* "k=v,k=v" for librdkafka (security), or NULL */
};

int MUSTCHECK tap_new(const struct tap_options *o, struct tap **ret, struct errtext *e);
struct tap *tap_free(struct tap *t); /* flushes for at most 2 s */

/* parent: "REQUEST ROWS" when rows [0,ROWS) are an earlier request's of the conversation, or "" */
struct tap_request { char request[64], conversation[65], parent[96], domain[32], tenant[65]; float temperature; bool traced; int k; };

/* Engine side; each returns at once. handle: small integer the engine keeps per session. */
bool tap_traces(const struct tap *t, const struct tap_request *r); /* would it be, as things are? request and conversation matter */
int tap_begin(struct tap *t, const struct tap_request *r); /* handle >= 0, or -1: not traced (full) */
/* What the engine asks before it does any work for the tap. */
bool tap_wants_rows(const struct tap *t, int handle); /* sampled in, capture on, nothing dropped yet */
int tap_topk(const struct tap *t);                    /* depth of the rows it wants */
bool tap_wants_hidden(const struct tap *t);
enum record_payload tap_payload(const struct tap *t);
struct tap_row_group {    /* consecutive rows of one request */
	int n; bool prompt;   /* prompt rows carry hidden, generated rows carry top-k */
	const uint32_t *ids, *pos;
	const uint16_t *features; /* bf16 [n,3*H_t]; or NULL, and in the form of an 8-bit payload: */
	const uint8_t *codes;     /* [n,3*H_t] */
	const float *scales;      /* [n,3] */
	const uint16_t *hidden;   /* bf16 [n,H_t] post-norm, prompt rows, or NULL */
	const uint32_t *topk_ids; const float *topk_logprob; /* [n,topk], generated rows */
	uint32_t next_token;     /* the token after the last row */
};
void tap_rows(struct tap *t, int handle, const struct tap_row_group *g);
/* A round that starts at row position row_pos proposed ids[0..len), of which accepted were taken. parent (node or -1) NULL: a chain. */
void tap_round(struct tap *t, int handle, uint32_t row_pos, const uint32_t *ids, const int16_t *parent, int len, int accepted, uint32_t version, bool mixed_kv);
/* Rows of it did not arrive in time: the rest of it is dropped, and counted with what found the ring full. */
void tap_miss(struct tap *t, int handle);
void tap_end(struct tap *t, int handle, const struct round_record *parts, int n_parts); /* one round record per version used */
void tap_set_enabled(struct tap *t, bool on);
void tap_set_sample(struct tap *t, double share); /* from the next request on; any thread */

struct tap_stats { uint64_t records, bytes, delivered, rounds, dropped_ring, dropped_queue, dropped_broker, dropped_size, requests_traced, requests_skipped; bool broker_down; };
void tap_stats(struct tap *t, struct tap_stats *ret);
