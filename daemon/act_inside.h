/* Shared between act.c and its act_*.c only. */
#pragma once
#include <pthread.h>
#include "daemon/act.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/loop.h"
#include "daemon/engine/engine.h"

enum { ACT_MAX_WAITERS = 64, ACT_MAX_OUTBOX = 64 };

struct act_waiter {
	act_answer *answer;
	void *arg;
};

struct act_message { /* to the learner, in order */
	char method[48];
	json_t *params; /* owned */
};

struct act_collapse { /* of the live version */
	uint32_t version;
	uint32_t asked, back_to; /* what the replay that is out was asked of: live may be another one when it answers */
	double gate_al, seen_al;
	uint64_t again_us;
	bool asking;
};

struct act_probing {
	bool running, record;
	uint32_t version;
	int moved;        /* times running */
	uint64_t next_us; /* not before */
	char weights_sha[65], prompts_sha[65];
	act_probed *done; /* who asked, or NULL */
	void *arg;
};

struct act_evaluation { /* the one that is running */
	uint32_t id, version, against;
	uint64_t started_us;
	bool pinned; /* asked for the pinned requests too */
};

struct act_submission {
	pthread_t thread;
	bool running;
	char path[512], expect_fp[65];
	uint32_t number;
	struct store_taken taken;
	struct errtext e;
	int r;
	act_submitted *answer;
	void *arg;
};

struct act {
	struct act_options o;
	struct loop *loop;
	struct metrics *metrics;
	struct store *store;
	struct rollout r;
	struct engine engine;
	struct loop_timer *tick;
	bool dirty, save_failed;      /* the state is not on disk; it has been said */
	uint32_t engine_seq;          /* counts calls that move the server: older looks are stale */
	bool looking, asking;         /* a status call is out: server, learner */
	int serve_silent, learn_silent; /* time-outs running */
	uint32_t look_seq;
	json_t *serve_status, *learn_status; /* owned */
	char target_fp[65], last_event[RO_TEXT], notified[160];
	struct act_waiter promote, rollback[ACT_MAX_WAITERS], now;
	int n_rollback;
	enum ro_event_kind now_verb;
	struct act_message outbox[ACT_MAX_OUTBOX];
	int n_outbox;
	bool sending;
	struct act_evaluation eval;
	struct act_collapse collapse;
	struct act_probing probe;
	struct act_submission sub;
	struct log_repeat sub_fails; /* who hears Busy asks again in seconds */
	int drift;           /* level last told to the learner; -1: none yet, and it may remember one of an earlier life */
	bool comparing;      /* a comparison of served and replayed is out */
	uint64_t compare_us; /* not before */
	char canary_text[CANARY_TEXT];
	uint64_t collect_us; /* when the store is looked at again */
	struct clock_sure sure;
	act_heard *heard;    /* who listens to what is said, or NULL */
	void *heard_arg;
};

void act_event(struct act *a, struct ro_event *ev); /* fills time and randomness, applies, carries out */
void act_tell(struct act *a, const char *method, json_t *params /* taken */);
void act_say(struct act *a, enum act_news kind, const char *text); /* the last event from now on */
void act_send(struct act *a); /* the outbox, when the learner is there */
void act_look(struct act *a); /* at the server, unless one is out */
void act_load(struct act *a, const struct ro_action *x);
void act_activate(struct act *a, const struct ro_action *x);
void act_canary_call(struct act *a, const struct ro_action *x);
void act_compare(struct act *a); /* served against replayed, unless one is out */
void act_alarm(struct act *a, const char *text); /* unless one stands */
void act_evaluate(struct act *a, uint32_t id, uint32_t version, uint32_t against);
/* The learner replays both on the same held-out requests, and on its pinned ones; done gets a as its arg. What it answered, by the gate's rules: v says what
 * was measured, all zero when it is no use (logged). */
int MUSTCHECK act_ask_replay(struct act *a, uint32_t candidate, uint32_t live, bool pinned, void (*done)(void *arg, int r, json_t *params, const char *error));
enum ro_result act_judge(struct act *a, json_t *params, uint32_t against, struct gate_verdict *v);
void act_ask_learner(struct act *a);
/* act_submit.c: the parent, or a quarantined version that it was made from by way of rejected ones: the learner goes on from those too. */
uint32_t act_origin(struct act *a, uint32_t parent);
void act_learn_metrics(struct act *a);
void act_submit_join(struct act *a);
