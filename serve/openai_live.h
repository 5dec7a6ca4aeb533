/* Inside of openai: its state and the life of one request. Not for others. */
#pragma once
#include <pthread.h>
#include "serve/openai.h"

struct openai {
	struct openai_options o;
	struct front_metrics *metrics;
	char domains[OPENAI_MAX_DOMAINS][32];
	int n_domains;
	int64_t created; /* s since 1970 */
	struct completion *live; /* list */
	int n_live;
	struct loop_timer *sweep;
	bool draining;
	void (*on_idle)(void *arg);
	void *idle_arg;
};

struct choice {
	struct completion *c;
	int index, prompt;
	uint64_t handle;
	bool submitted;
	/* From the engine's thread, under c->lock. inbox holds every token there can be. */
	uint32_t *inbox; /* owned */
	int cap, n_in;
	bool in_done;
	enum finish in_why;
	struct request_stats in_stats;
	char in_error[160];
	/* The loop's. */
	struct textout out;
	int n_taken;   /* of inbox */
	int n_tokens;  /* that count: up to the end */
	int n_told;    /* of them told in a stream's token_ids */
	uint64_t last_us;
	const char *reason; /* finish_reason once known */
	bool role_sent, finish_sent, ended; /* ended: the engine is done with it */
};

struct completion {
	struct openai *o;
	struct completion *next, **link;
	struct http_request *http; /* NULL once answered or gone */
	struct openai_request q;
	char id[48], domain[32];
	int64_t created;
	uint64_t start_us;
	pthread_mutex_t lock;
	bool posted; /* under lock: a drain is on its way to the loop */
	bool streaming; /* the head has been sent */
	struct choice *choices;
	int n_choices;
};

/* completion.c: takes *q. Always ends in a reply, now or later. */
void completion_start(struct openai *o, struct http_request *h, struct openai_request *q);
void completion_drain(struct completion *c); /* take what the engine has sent, show it, end: the posted one, or when the loop has stopped */
void completion_sweep(struct completion *c); /* the same when no drain is on its way; may free c */
void completion_cancel(struct completion *c); /* everything that still runs */

/* openai_reply.c */
void reply_json(struct http_request *h, int status, json_t *j /* taken */);
void reply_error(struct openai *o, struct http_request *h, const struct openai_error *e);
void reply_whole(struct completion *c); /* ends c->http */
/* Chunks of what is new; false: the reader was cut and c->http is NULL. */
bool reply_chunk(struct completion *c, struct choice *x);
bool reply_end(struct completion *c); /* usage and [DONE]; ends c->http */
void reply_broken(struct completion *c, const char *message); /* an error in mid-stream */
