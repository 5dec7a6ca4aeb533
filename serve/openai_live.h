/* Inside of openai: its state and the life of one request. Not for others. */
#pragma once
#include <pthread.h>
#include "serve/openai.h"
#include "serve/toolcall.h"

struct openai {
	struct openai_options o;
	struct front_metrics *metrics;
	char domains[OPENAI_MAX_DOMAINS][32];
	int n_domains;
	int64_t created; /* s since 1970 */
	struct completion *live; /* list */
	int n_live;
	struct loop_timer *sweep;
	unsigned sweeps;
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
	struct token_logprob *lp; /* owned, 1 + top_logprobs a token of inbox; NULL when not asked for */
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
	uint64_t first_us, last_us; /* of tokens */
	const char *reason; /* finish_reason once known */
	bool role_sent, finish_sent, ended; /* ended: the engine is done with it */
	struct toolcall_watch watch; /* of a forced call */
	json_t *calls;               /* owned; found when the answer was complete */
	size_t offset;               /* characters of the tokens told: text_offset */
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
	bool late;      /* the deadline has passed */
	uint64_t deadline_us; /* 0 = none */
	struct loop_timer *deadline; /* owned, or NULL */
	struct choice *choices;
	int n_choices;
};

/* completion.c: takes *q. Always ends in a reply, now or later. */
void completion_start(struct openai *o, struct http_request *h, struct openai_request *q);
void completion_drain(struct completion *c); /* take what the engine has sent, show it, end: the posted one, or when the loop has stopped */
void completion_sweep(struct completion *c); /* the same when no drain is on its way; may free c */
void completion_cancel(struct completion *c); /* everything that still runs */

/* openai_health.c: what the server says of its own state. */
void reply_live(struct openai *o, struct http_request *h);
void reply_ready(struct openai *o, struct http_request *h);

/* openai_headers.c: what a client says about its request outside the body. */
int MUSTCHECK openai_read_headers(struct completion *c, struct engine_request *r, struct openai_error *e);
/* The bearer token, or NULL. */
const char *openai_bearer(const struct http_request *h);

/* openai_logprobs.c: tokens [from, n_tokens) of a choice, in the shape of its endpoint; NULL when not asked for. */
json_t *logprobs_json(struct choice *x, int from);

/* openai_reply.c */
void reply_json(struct http_request *h, int status, json_t *j /* taken */);
void reply_error(struct openai *o, struct http_request *h, const struct openai_error *e);
void reply_whole(struct completion *c); /* ends c->http */
/* Chunks of what is new; false: the reader was cut and c->http is NULL. */
bool reply_chunk(struct completion *c, struct choice *x);
bool reply_end(struct completion *c); /* usage and [DONE]; ends c->http */
void reply_broken(struct completion *c, int status, const char *message); /* an error in mid-stream */
