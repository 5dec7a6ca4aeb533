/* Shared between rollout.c and rollout_*.c only. */
#pragma once
#include "daemon/rollout.h"

struct ro_action *ro_do(struct ro_actions *a, enum ro_action_kind kind, uint32_t version);
void PRINTF(2, 3) ro_say(struct ro_actions *a, const char *fmt, ...);
void PRINTF(4, 5) ro_mark(struct rollout *r, uint32_t version, enum version_state state, const char *fmt, ...);
void PRINTF(4, 5) ro_verdict(struct ro_actions *a, uint32_t version, const char *verdict, const char *fmt, ...);
void PRINTF(4, 5) ro_answer(struct ro_actions *a, enum ro_event_kind verb, const char *error, const char *fmt, ...);
uint32_t ro_older(const struct rollout *r, uint32_t below);
/* A canary and a gated version were judged against what was live: a new live makes the newest a candidate again. */
void ro_set_live(struct rollout *r, uint32_t version, struct ro_actions *a);
void ro_rebase(struct rollout *r, struct ro_actions *a, const char *why);
bool ro_was_rolled_back(const struct version_entry *v); /* and so what is made from it goes nowhere */
/* Candidates and gated versions were made from what is being left: none may go live. */
void ro_drop_pending(struct rollout *r, struct ro_actions *a, const char *why);
void ro_op_end(struct rollout *r);
/* An operation against the server begins: what is asked of it, under a new id. */
struct ro_action *ro_begin(struct rollout *r, struct ro_actions *a, enum ro_phase phase, enum ro_action_kind kind, uint32_t version);
void ro_load(struct rollout *r, struct ro_actions *a, enum ro_why why, uint32_t version);
/* Reason of a version that must not be gone on from; the prefix is read back. */
void PRINTF(4, 5) ro_quarantine(struct rollout *r, struct ro_actions *a, uint32_t version, const char *fmt, ...);
void ro_unfit(struct rollout *r, uint32_t version, const char *why, struct ro_actions *a);
uint32_t ro_newest(const struct rollout *r, enum version_state state);
void ro_activate(struct rollout *r, struct ro_actions *a, uint32_t version, bool all, bool checked);

uint32_t ro_home(const struct rollout *r); /* where the learner is sent back to; 0 = there is nothing it could go on from */

/* rollout_judge.c */
int ro_on_submitted(struct rollout *r, const struct ro_event *ev, struct ro_actions *a);
void ro_on_evaluated(struct rollout *r, const struct ro_event *ev, struct ro_actions *a);
void ro_rejected(struct rollout *r, uint32_t version, const char *why, struct ro_actions *a);
/* What was accepted, or serves a few, against another live than the new one: the newest is judged anew. */
void ro_judge_anew(struct rollout *r, struct ro_actions *a);
void ro_too_old(struct rollout *r, uint64_t now_us, struct ro_actions *a); /* rollout.max_age_s */

/* rollout_canary.c */
/* Judged by the canary alone. */
bool ro_unproven(const struct version_entry *v);
void ro_canary_begin(struct rollout *r, const struct ro_event *ev, struct ro_actions *a); /* op.version is loaded */
/* The server's canary is what the state says. */
bool ro_canary_agrees(const struct rollout *r);
void ro_canary_ask(struct rollout *r, struct ro_actions *a); /* for what the state says */
void ro_canary_forget(struct rollout *r); /* the state has none from now on; the versions' own states are the caller's */
/* No canary from now on; its version waits again, or gives way to a newer one that does. */
void ro_canary_stop(struct rollout *r, const char *why, struct ro_actions *a);
void ro_on_canaried(struct rollout *r, const struct ro_event *ev, struct ro_actions *a);
void ro_on_judged(struct rollout *r, const struct ro_event *ev, struct ro_actions *a);
/* What the server holds, by its own word or by an answer. */
void ro_server_canary(struct rollout *r, uint32_t version, uint32_t permille, const char *salt);

void ro_on_alarm(struct rollout *r, const struct ro_event *ev, struct ro_actions *a);
void ro_on_collapsed(struct rollout *r, const struct ro_event *ev, struct ro_actions *a);
void ro_on_promote(struct rollout *r, const struct ro_event *ev, struct ro_actions *a);
void ro_on_rollback(struct rollout *r, const struct ro_event *ev, struct ro_actions *a);
void ro_on_follow(struct rollout *r, const struct ro_event *ev, struct ro_actions *a);
void ro_on_pin(struct rollout *r, const struct ro_event *ev, struct ro_actions *a);
void ro_on_unpin(struct rollout *r, const struct ro_event *ev, struct ro_actions *a);
void ro_on_hold(struct rollout *r, const struct ro_event *ev, struct ro_actions *a);
void ro_on_pause(struct rollout *r, const struct ro_event *ev, struct ro_actions *a);
void ro_on_resume(struct rollout *r, struct ro_actions *a);
void ro_on_release(struct rollout *r, struct ro_actions *a);
void ro_back_loaded(struct rollout *r, const struct ro_event *ev, struct ro_actions *a);
void ro_back_activated(struct rollout *r, const struct ro_event *ev, struct ro_actions *a);
/* Was the server moved back, by an operator or by us, from something that our journal does not know as left? */
bool ro_gone_back(const struct rollout *r, const struct ro_event *ev);
/* The server was moved while nobody told us: take it as said. What was gone back from is quarantined. */
void ro_adopt(struct rollout *r, const struct ro_event *ev, struct ro_actions *a);
