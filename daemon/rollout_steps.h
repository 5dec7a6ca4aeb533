/* Shared between rollout.c and rollout_verbs.c only. */
#pragma once
#include "daemon/rollout.h"

struct ro_action *ro_do(struct ro_actions *a, enum ro_action_kind kind, uint32_t version);
void PRINTF(2, 3) ro_say(struct ro_actions *a, const char *fmt, ...);
void PRINTF(4, 5) ro_mark(struct rollout *r, uint32_t version, enum version_state state, const char *fmt, ...);
void PRINTF(4, 5) ro_verdict(struct ro_actions *a, uint32_t version, const char *verdict, const char *fmt, ...);
void PRINTF(4, 5) ro_answer(struct ro_actions *a, enum ro_event_kind verb, const char *error, const char *fmt, ...);
uint32_t ro_older(const struct rollout *r, uint32_t below);
void ro_set_live(struct rollout *r, uint32_t version);
void ro_rebase(const struct rollout *r, struct ro_actions *a, const char *why);
/* Candidates and gated versions were made from what is being left: none may go live. */
void ro_drop_pending(struct rollout *r, struct ro_actions *a, const char *why);
void ro_op_end(struct rollout *r);
void ro_load(struct rollout *r, struct ro_actions *a, enum ro_why why, uint32_t version);
void ro_activate(struct rollout *r, struct ro_actions *a, uint32_t version, bool all, bool checked);

void ro_on_promote(struct rollout *r, const struct ro_event *ev, struct ro_actions *a);
void ro_on_rollback(struct rollout *r, const struct ro_event *ev, struct ro_actions *a);
void ro_on_pin(struct rollout *r, const struct ro_event *ev, struct ro_actions *a);
void ro_on_unpin(struct rollout *r, const struct ro_event *ev, struct ro_actions *a);
void ro_on_hold(struct rollout *r, const struct ro_event *ev, struct ro_actions *a);
void ro_on_release(struct rollout *r, struct ro_actions *a);
void ro_back_loaded(struct rollout *r, const struct ro_event *ev, struct ro_actions *a);
void ro_back_activated(struct rollout *r, const struct ro_event *ev, struct ro_actions *a);
/* The server was moved by an operator while nobody told us: take it as said. */
void ro_adopt_override(struct rollout *r, const struct ro_event *ev, struct ro_actions *a);
