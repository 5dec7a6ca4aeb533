/* The compute thread: owns the dev and the learner, takes commands.
 *
 * Between two steps it takes records, obeys commands, publishes and writes
 * checkpoints as the clock says; what the clock decides goes through the
 * journal like everything else. Answers come on the loop's thread.
 */
#pragma once
#include "learn/evaluate.h"
#include "learn/governor.h"
#include "learn/learner.h"

struct loop;

/* What of the options may change while we run: it decides when something is done, never what is trained. */
struct worker_pace {
	uint64_t publish_us, checkpoint_us;
	int64_t publish_min_steps;
	int gate_k;
	uint64_t max_age_us; /* of records in the pool; 0 = any */
	struct governor_options governor; /* max_rows as the learner's */
};

struct worker_options {
	struct learner_options learner;
	struct dev_options device;
	int nice;
	int policy;                /* SCHED_OTHER, SCHED_BATCH, SCHED_IDLE */
	const char *serve_socket;  /* serving's status socket, for the pace; "" = nobody is asked */
	uint64_t ask_us;           /* how often */
	struct worker_pace pace;
	const char *daemon_socket; /* whom to Submit to */
	const char *follow;        /* repeat this journal and stop */
	int follow_print;          /* hash of the weights every so many steps */
};

enum command_kind { CMD_EVALUATE, CMD_COMPARE, CMD_VERDICT, CMD_REBASE, CMD_DRIFT, CMD_PAUSE, CMD_RESUME, CMD_PUBLISH, CMD_SUBMITTED, CMD_SUBMIT_FAILED, CMD_PACE, CMD_REPLAY, CMD_PURGE };

struct command {
	enum command_kind kind;
	uint32_t version, live;
	int k;
	bool pinned;             /* CMD_EVALUATE: on the pinned runs too, ... */
	struct evaluate_older older; /* ... with these versions */
	struct worker_pace pace; /* CMD_PACE */
	char text[200];
	/* On the loop's thread, once: error NULL = done, reply (borrowed, may be NULL) is the answer. May be NULL. */
	void (*done)(void *arg, json_t *reply, const char *error, const char *message);
	void *arg;
};

struct worker;
/* src is taken (freed at the end), fz borrowed. on_exit on the loop's thread, once, when the thread ended by itself, or from worker_stop when
 * it failed while it was stopping (a step of ranks that was broken off is none): code 0 (follow: repeated to the end), 1 (failed while running), 2 (bad state or config). */
int MUSTCHECK worker_start(const struct worker_options *o, struct loop *loop, struct source *src, const struct frozen *fz,
			   void (*on_exit)(void *arg, int code, const char *message), void *arg, struct worker **ret);
/* Ask to stop: a last checkpoint, then the thread ends. Waits for it. */
struct worker *worker_stop(struct worker *w);
int MUSTCHECK worker_post(struct worker *w, const struct command *c); /* loop thread; -EAGAIN: 64 wait already */
json_t *worker_status(struct worker *w); /* any thread; new reference */
uint64_t worker_beats(struct worker *w); /* grows while the thread turns or computes, inside a long step too; any thread */
