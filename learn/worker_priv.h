/* Between worker.c (the thread), worker_obey.c (what commands do) and worker_due.c (what the clock asks for). */
#pragma once
#include <pthread.h>
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "learn/pace.h"
#include "learn/worker.h"

struct worker {
	struct worker_options o;
	struct loop *loop;
	struct source *src;      /* owned */
	const struct frozen *fz;
	void (*on_exit)(void *arg, int code, const char *message);
	void *arg;

	/* the thread's own */
	struct dev *d;
	struct learner *l;
	struct pace *pace;       /* made and freed on the loop's thread */
	struct { uint32_t version; double gain; } judged; /* the last Evaluate against a live version */
	uint64_t expire_at;
	struct clock_sure sure;
	uint64_t started, published_at, checkpointed_at, submit_at, begin_at, status_at;
	int64_t checkpointed_step;
	bool submitting;         /* a Submit is under way on the loop's thread */
	struct command waiter;   /* Publish() that waits for the number; kind CMD_PUBLISH when there is one */
	bool has_waiter, asked;  /* asked: its candidate is not begun yet */
	struct log_repeat no_number, no_draft; /* what Submit, what looking for a draft came to */

	/* shared, under the lock */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct command queue[64];
	int head, n_queue;
	bool ended;
	volatile int stop;
	_Atomic uint64_t beats;            /* passes of the loop, entries repeated */
	_Atomic(struct dev *) counted;     /* d, for whoever counts its operations */
	json_t *status;
	int code;                /* set before the thread ends */
	bool told;               /* on_exit was called; loop's thread */
	struct errtext message;
};

void worker_answer(struct worker *w, const struct command *c, json_t *reply /* taken */, const char *error, const char *message);
json_t *worker_describe(struct worker *w);
/* worker_obey.c: 0, or what ends the thread; then nobody has been answered yet. */
int MUSTCHECK worker_obey(struct worker *w, const struct command *c, struct errtext *e);
/* worker_due.c */
int MUSTCHECK worker_due(struct worker *w, struct errtext *e);
void worker_publish_now(struct worker *w, const struct command *c);
void worker_answer_waiter(struct worker *w, json_t *reply /* taken */, const char *error, const char *message); /* of Publish(), if there is one */
int MUSTCHECK worker_submit_answer(struct worker *w, const struct command *c, struct errtext *e);
