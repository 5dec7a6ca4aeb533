/* Driving the rollout function in tests: rules, events in, actions out, and the usual ways. Header only, so that each test
 * binary stays one file.
 */
#pragma once
#include "daemon/rollout.h"

static const struct rollout_rules rules = {.interval_us = 100, .max_wait_us = 50, .retry_us = 10, .rejects_to_rebase = 3};
static const struct rollout_rules canary_rules = {.interval_us = 100, .max_wait_us = 50, .retry_us = 10, .rejects_to_rebase = 3,
						  .n_steps = 2, .permille = {50, 250}, .step_us = 500, .max_age_us = 5000};
static struct ro_actions acts;

/* ---- driving ---- */

static void start_by(struct rollout *r, const struct rollout_rules *by)
{
	struct store_state s = {.next_number = 1};

	rollout_init(r, &s, by, 0);
}

static inline void start(struct rollout *r)
{
	start_by(r, &rules);
}

static uint64_t now = 1;

static void apply(struct rollout *r, struct ro_event ev)
{
	ev.now_us = now;
	assert_int_equal(rollout_apply(r, &ev, &acts), 0);
}
#define EV(r, ...) apply(r, (struct ro_event){__VA_ARGS__})

static const struct ro_action *find(enum ro_action_kind kind)
{
	for (int i = 0; i < acts.n; i++)
		if (acts.a[i].kind == kind)
			return &acts.a[i];
	return NULL;
}

static inline const struct ro_action *verdict_of(uint32_t version)
{
	for (int i = 0; i < acts.n; i++)
		if (acts.a[i].kind == RO_DO_VERDICT && acts.a[i].version == version)
			return &acts.a[i];
	return NULL;
}

static inline enum version_state state_of(const struct rollout *r, uint32_t n)
{
	const struct version_entry *v = rollout_find(r, n);

	assert_non_null(v);
	return v->state;
}

/* What the server is asked for, or would be. */
static uint32_t asked(const struct rollout *r)
{
	return !r->op.version ? 0 : r->s.canary.version ? r->s.canary.permille : r->rules.permille[0];
}

static const char *asked_salt(const struct rollout *r)
{
	return !r->op.version ? "" : r->s.canary.version ? r->s.canary.salt : "first";
}

/* The server answers the Canary call that is out. */
static inline void canaried(struct rollout *r, enum ro_result result)
{
	char salt[RO_SALT];

	assert_int_equal(r->op.phase, RO_CANARYING);
	snprintf(salt, sizeof salt, "%s", asked_salt(r));
	EV(r, .kind = RO_CANARIED, .id = r->op.id, .version = r->op.version, .permille = asked(r), .salt = salt, .result = result);
}

/* What was asked of the server last, done. */
static inline void loaded(struct rollout *r, uint32_t n)
{
	EV(r, .kind = RO_LOADED, .id = r->op.id, .version = n, .result = RO_OK);
}

static inline void activated(struct rollout *r, uint64_t generation)
{
	EV(r, .kind = RO_ACTIVATED, .id = r->op.id, .result = RO_OK, .generation = generation);
}

/* Bring version n (the next) live along the plain way; the server is at `generation`. */
static inline void go_live(struct rollout *r, uint64_t generation)
{
	uint32_t n = r->s.next_number;

	now += 1000; /* past any interval */
	EV(r, .kind = RO_SUBMITTED, .version = n, .parent = r->s.live);
	assert_non_null(find(RO_DO_EVALUATE));
	EV(r, .kind = RO_EVALUATED, .id = r->eval.id, .result = RO_OK, .text = "better");
	assert_non_null(find(RO_DO_LOAD));
	loaded(r, n);
	for (int i = 0; i < r->rules.n_steps; i++) {
		canaried(r, RO_OK);
		EV(r, .kind = RO_JUDGED, .version = n, .permille = r->s.canary.permille, .result = RO_OK, .text = "no harm seen");
	}
	assert_non_null(find(RO_DO_ACTIVATE));
	activated(r, generation);
	assert_int_equal(r->s.live, n);
}

static inline void up(struct rollout *r)
{
	EV(r, .kind = RO_SERVER);
	EV(r, .kind = RO_LEARNER);
}

/* By these rules, with both there, versions 1 to n live one after the other; the last of them is at generation n. */
static inline void live_by(struct rollout *r, const struct rollout_rules *by, uint32_t n)
{
	start_by(r, by);
	up(r);
	for (uint32_t i = 1; i <= n; i++)
		go_live(r, i);
}

static inline void live(struct rollout *r, uint32_t n)
{
	live_by(r, &rules, n);
}

/* Version n, made from live, passes the gate. */
static inline void passes(struct rollout *r, uint32_t n)
{
	EV(r, .kind = RO_SUBMITTED, .version = n, .parent = r->s.live);
	EV(r, .kind = RO_EVALUATED, .id = r->eval.id, .result = RO_OK, .text = "better");
}

/* An operator makes version n live, at `generation`. */
static inline void promoted(struct rollout *r, uint32_t n, uint64_t generation)
{
	EV(r, .kind = RO_PROMOTE, .version = n, .expected = -1);
	loaded(r, n);
	activated(r, generation);
	assert_int_equal(r->s.live, n);
}
