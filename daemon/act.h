/* What the daemon does: it feeds events to the rollout and carries its actions out.
 *
 * Holds the store, the engine, the learner's outbox and the people who wait for an
 * answer. Nobody needs to be there: a missing server or learner is looked for once a
 * second. Threads: the loop's; a submission is verified on a thread of its own so
 * that a rollback never waits for a hash.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "daemon/canary.h"
#include "daemon/freeze.h"
#include "daemon/gate.h"
#include "daemon/rollout.h"
#include "daemon/store.h"

struct act;
struct loop;
struct metrics;

struct act_options {
	const char *store, *serve_socket, *learn_socket; /* borrowed for the act's life */
	struct gate_rules gate;
	struct rollout_rules rules;
	struct canary_rules canary; /* requests: of each step */
	struct freeze freeze;
	struct store_limits limits; /* need_bytes is found anew each time, from min_free */
	double min_free;            /* share of the store's file system that is kept free; 0: not looked at */
	struct probe_rules { /* act_probe.h */
		uint64_t every_us;   /* 0: only when asked */
		double features, al; /* how far they may move: shares of their own size */
	} probe;
	uint64_t compare_us; /* between two comparisons of served and replayed */
	int gate_k;        /* chain length of the gate */
	uint64_t poll_us;  /* how often server and learner are looked for */
};

int MUSTCHECK act_new(struct loop *l, const struct act_options *o, struct metrics *m, struct act **ret, struct errtext *e);
/* A reload: all of o but paths, gate_k and poll_us holds from now on. */
void act_set_rules(struct act *a, const struct act_options *o);
/* After the loop has stopped and before it is freed. Answers who still waits. */
struct act *act_free(struct act *a);

/* An operator's answer: error NULL = done; text says more. quarantined: rollback. */
typedef void act_answer(void *arg, const char *error, const char *text, uint32_t quarantined);
typedef void act_probed(void *arg, json_t *outcome, const char *error, const char *text); /* act_probe.h */
void act_promote(struct act *a, uint32_t version, int64_t expected, act_answer *answer, void *arg);
/* request: the caller's name for it, "" = none; who asks the server itself under that name moves nothing twice. */
void act_rollback(struct act *a, const char *who, const char *request, act_answer *answer, void *arg);
void act_pin(struct act *a, uint32_t version, act_answer *answer, void *arg);
void act_unpin(struct act *a, act_answer *answer, void *arg);
void act_hold(struct act *a, const char *why, act_answer *answer, void *arg);
void act_release(struct act *a, act_answer *answer, void *arg);
void act_pause(struct act *a, const char *why, act_answer *answer, void *arg);
void act_resume(struct act *a, act_answer *answer, void *arg);
/* The fleet's leader (its name, for people) is at this version; said again until we are. */
void act_follow(struct act *a, uint32_t version, const char *leader);
/* What the watcher says, once a second: the level of drift, and a sentence when something changed ("" = no).
 * Tells the learner, and when a fall begins asks it whether the engine does what the weights say (act_drift.c). */
void act_drift(struct act *a, int level, const char *text);
int act_drift_level(const struct act *a);
const char *act_decay(const struct act *a); /* the alarm that stands, "" = none: what was found */
/* error NULL: it is this version. io.redraft.BadVersion: what it is was refused, and would be again. io.redraft.Busy: it was not looked at to the end, by a
 * stop or the trouble of this machine's disk or memory, and lies in incoming as before: to be asked again. */
typedef void act_submitted(void *arg, uint32_t version, const char *error, const char *text);
/* number 0: the next one. -EBUSY: another submission is being verified. -ENAMETOOLONG: path. -ENOMEM. Otherwise answers once. */
int MUSTCHECK act_submit(struct act *a, const char *path, uint32_t number, act_submitted *answer, void *arg);

const struct rollout *act_rollout(const struct act *a);
struct store *act_store(struct act *a);
const char *act_target_fp(const struct act *a); /* "" = unknown */
json_t *act_serve_status(const struct act *a);  /* borrowed; last known, NULL = never */
json_t *act_learn_status(const struct act *a);
const char *act_last_event(const struct act *a);
/* Each sentence as it is said, to one listener; heard NULL: to nobody. What moved has moved by then. */
enum act_news { ACT_NEWS_ROLLOUT, ACT_NEWS_DRIFT, ACT_NEWS_DECAY, ACT_NEWS_KAFKA, ACT_NEWS_LEARNER };
typedef void act_heard(void *arg, enum act_news kind, const char *text);
void act_on_news(struct act *a, act_heard *heard, void *arg);
