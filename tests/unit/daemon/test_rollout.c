/* The rollout function, three ways:
 *  - every sequence of events up to a depth, from several starts, against what must
 *    always hold (one live version, at most one on canary and none while pinned or held, nothing quarantined serves, pins are kept, a
 *    rollback is never refused, stale answers change nothing, an alarm holds); with a canary and without;
 *  - long random walks with a fixed seed, against the same;
 *  - the table of daemon/README.md as named scenarios.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
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

static void start(struct rollout *r)
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

static const struct ro_action *verdict_of(uint32_t version)
{
	for (int i = 0; i < acts.n; i++)
		if (acts.a[i].kind == RO_DO_VERDICT && acts.a[i].version == version)
			return &acts.a[i];
	return NULL;
}

static enum version_state state_of(const struct rollout *r, uint32_t n)
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
static void canaried(struct rollout *r, enum ro_result result)
{
	char salt[RO_SALT];

	assert_int_equal(r->op.phase, RO_CANARYING);
	snprintf(salt, sizeof salt, "%s", asked_salt(r));
	EV(r, .kind = RO_CANARIED, .id = r->op.id, .version = r->op.version, .permille = asked(r), .salt = salt, .result = result);
}

/* Bring version n (the next) live along the plain way; the server is at `generation`. */
static void go_live(struct rollout *r, uint64_t generation)
{
	uint32_t n = r->s.next_number;

	now += 1000; /* past any interval */
	EV(r, .kind = RO_SUBMITTED, .version = n, .parent = r->s.live);
	assert_non_null(find(RO_DO_EVALUATE));
	EV(r, .kind = RO_EVALUATED, .id = r->eval.id, .result = RO_OK, .text = "better");
	assert_non_null(find(RO_DO_LOAD));
	EV(r, .kind = RO_LOADED, .id = r->op.id, .version = n, .result = RO_OK);
	for (int i = 0; i < r->rules.n_steps; i++) {
		canaried(r, RO_OK);
		EV(r, .kind = RO_JUDGED, .version = n, .permille = r->s.canary.permille, .result = RO_OK, .text = "no harm seen");
	}
	assert_non_null(find(RO_DO_ACTIVATE));
	EV(r, .kind = RO_ACTIVATED, .id = r->op.id, .result = RO_OK, .generation = generation);
	assert_int_equal(r->s.live, n);
}

static void up(struct rollout *r)
{
	EV(r, .kind = RO_SERVER);
	EV(r, .kind = RO_LEARNER);
}

/* ---- what always holds ---- */

static void check(const struct rollout *r, const struct rollout *before, const struct ro_event *ev)
{
	int n_live = 0, n_previous = 0, n_candidates = 0, n_gated = 0, n_canary = 0;
	bool answered = false;

	for (int i = 0; i < r->s.n_versions; i++) {
		const struct version_entry *v = &r->s.versions[i];

		assert_true(i == 0 || v->number > r->s.versions[i - 1].number);
		assert_true(v->number < r->s.next_number);
		n_live += v->state == VS_LIVE;
		n_previous += v->state == VS_PREVIOUS;
		n_candidates += v->state == VS_CANDIDATE;
		n_gated += v->state == VS_GATED;
		n_canary += v->state == VS_CANARY;
	}
	assert_true(n_live == (r->s.live != 0) && n_previous == (r->s.previous != 0));
	assert_true(n_candidates <= 1 && n_gated <= 1);
	assert_int_equal(n_canary, r->s.canary.version != 0);
	if (r->s.canary.version) {
		assert_int_equal(state_of(r, r->s.canary.version), VS_CANARY);
		assert_true(r->s.canary.permille && r->s.canary.salt[0] && !r->s.pin && !r->s.hold);
	}
	assert_true(!r->s.alarm[0] || r->s.hold || before->s.hold != r->s.hold || !before->s.hold); /* only an operator goes on under an alarm */
	if (r->s.live)
		assert_int_equal(state_of(r, r->s.live), VS_LIVE);
	if (r->s.previous)
		assert_int_equal(state_of(r, r->s.previous), VS_PREVIOUS);
	if (r->s.pin && r->s.pin != r->s.live)
		fail_msg("event %d: pinned %u, live %u", ev->kind, r->s.pin, r->s.live);
	for (int i = 0; i < acts.n; i++) {
		const struct ro_action *x = &acts.a[i];

		if (x->kind == RO_DO_LOAD || x->kind == RO_DO_ACTIVATE || x->kind == RO_DO_CANARY) {
			assert_true(r->op.phase == (x->kind == RO_DO_LOAD ? RO_LOADING : x->kind == RO_DO_CANARY ? RO_CANARYING : RO_ACTIVATING));
			assert_int_equal(x->id, r->op.id);
			assert_true(!x->version || r->op.why == RO_WHY_OPERATOR || state_of(r, x->version) != VS_QUARANTINED);
		}
		if (x->kind == RO_DO_ANSWER && x->verb == RO_ROLLBACK) {
			answered = true;
			assert_true(!x->error || strcmp(x->error, "io.redraft.Busy"));
		}
	}
	if ((ev->kind == RO_ACTIVATED || ev->kind == RO_CANARIED) && ev->id != before->op.id) { /* stale: nothing but what was due anyway */
		assert_int_equal(before->s.live, r->s.live);
		assert_true(before->op.phase == RO_IDLE || before->op.id == r->op.id);
	}
	if (ev->kind == RO_ROLLBACK) /* taken, whatever else is going on */
		assert_true(answered || (r->op.phase != RO_IDLE && r->op.why == RO_WHY_BACK));
	if (before->s.pin && before->s.pin == r->s.pin) /* nothing but an operator moves a pinned live */
		assert_int_equal(before->s.live, r->s.live);
	assert_true(acts.n < RO_MAX_ACTIONS);
}

enum { N_PLAIN = 28, N_MOVES = 41 }; /* the first ones need no canary */

/* The i-th possible move in state r; answers fit what is out, or are stale. */
static struct ro_event move(const struct rollout *r, int i)
{
	uint32_t op = r->op.id, eval = r->eval.id, last = r->s.next_number - 1;
	uint64_t gen = r->serve_generation + 1;

	switch (i) {
	case 0: return (struct ro_event){.kind = RO_SUBMITTED, .version = r->s.next_number, .parent = r->s.live};
	case 1: return (struct ro_event){.kind = RO_EVALUATED, .id = eval, .result = RO_OK, .text = "x"};
	case 2: return (struct ro_event){.kind = RO_EVALUATED, .id = eval, .result = RO_BAD, .text = "x"};
	case 3: return (struct ro_event){.kind = RO_EVALUATED, .id = eval, .result = RO_LATER, .text = "x"};
	case 4: return (struct ro_event){.kind = RO_EVALUATED, .id = eval - 1, .result = RO_OK};
	case 5: return (struct ro_event){.kind = RO_LOADED, .id = op, .version = r->op.version, .result = RO_OK};
	case 6: return (struct ro_event){.kind = RO_LOADED, .id = op, .version = r->op.version, .result = RO_MISMATCH};
	case 7: return (struct ro_event){.kind = RO_LOADED, .id = op, .version = r->op.version, .result = RO_BAD};
	case 8: return (struct ro_event){.kind = RO_LOADED, .id = op, .version = r->op.version, .result = RO_LATER};
	case 9: return (struct ro_event){.kind = RO_LOADED, .id = op, .version = r->op.version, .result = RO_NOBODY};
	case 10: return (struct ro_event){.kind = RO_LOADED, .id = op - 1, .version = last, .result = RO_OK};
	case 11: return (struct ro_event){.kind = RO_ACTIVATED, .id = op, .result = RO_OK, .generation = gen};
	case 12: return (struct ro_event){.kind = RO_ACTIVATED, .id = op, .result = RO_BAD};
	case 13: return (struct ro_event){.kind = RO_ACTIVATED, .id = op, .result = RO_GENERATION};
	case 14: return (struct ro_event){.kind = RO_ACTIVATED, .id = op, .result = RO_NOBODY};
	case 15: return (struct ro_event){.kind = RO_ACTIVATED, .id = op, .result = RO_HUNG};
	case 16: return (struct ro_event){.kind = RO_ACTIVATED, .id = op - 1, .result = RO_OK, .generation = gen};
	case 17: return (struct ro_event){.kind = RO_TICK};
	case 18: return (struct ro_event){.kind = RO_SERVER, .version = r->s.live, .generation = r->s.generation};
	case 19: return (struct ro_event){.kind = RO_SERVER, .version = r->s.previous, .generation = gen, .by_operator = true};
	case 20: return (struct ro_event){.kind = RO_SERVER, .version = last, .generation = gen, .by_daemon = true};
	case 21: return (struct ro_event){.kind = RO_SERVER_GONE};
	case 22: return (struct ro_event){.kind = RO_LEARNER};
	case 23: return (struct ro_event){.kind = RO_LEARNER_GONE};
	case 24: return (struct ro_event){.kind = RO_PROMOTE, .version = last, .expected = -1};
	case 25: return (struct ro_event){.kind = RO_ROLLBACK};
	case 26: return (struct ro_event){.kind = RO_PIN};
	case 27: return (struct ro_event){.kind = RO_UNPIN};
	case 28: return (struct ro_event){.kind = RO_CANARIED, .id = op, .version = r->op.version, .permille = asked(r), .salt = asked_salt(r), .result = RO_OK};
	case 29: return (struct ro_event){.kind = RO_CANARIED, .id = op, .result = RO_BAD};
	case 30: return (struct ro_event){.kind = RO_CANARIED, .id = op, .result = RO_HUNG};
	case 31: return (struct ro_event){.kind = RO_CANARIED, .id = op - 1, .version = last, .permille = 9, .salt = "old", .result = RO_OK};
	case 32: return (struct ro_event){.kind = RO_JUDGED, .version = r->s.canary.version, .permille = r->s.canary.permille, .result = RO_OK, .text = "x"};
	case 33: return (struct ro_event){.kind = RO_JUDGED, .version = r->s.canary.version, .permille = r->s.canary.permille, .result = RO_BAD, .text = "x"};
	case 34: return (struct ro_event){.kind = RO_JUDGED, .version = r->s.canary.version, .permille = r->s.canary.permille, .result = RO_LATER, .text = "x"};
	case 35: return (struct ro_event){.kind = RO_ALARM, .text = "x"};
	case 36: return (struct ro_event){.kind = RO_COLLAPSED, .version = r->s.live, .text = "x"};
	case 37: return (struct ro_event){.kind = RO_HOLD};
	case 38: return (struct ro_event){.kind = RO_RELEASE};
	case 39: return (struct ro_event){.kind = RO_EVALUATED, .id = eval, .result = RO_UNFIT, .text = "x"};
	default: return (struct ro_event){.kind = RO_TICK, .frozen = true};
	}
}

static void copy(struct rollout *dst, const struct rollout *src)
{
	*dst = *src;
	assert_int_equal(store_state_copy(&dst->s, &src->s), 0);
}

#ifdef __SANITIZE_ADDRESS__
enum { DEPTH = 3, AT_LEAST = 100000 }; /* the sanitizer is after memory, not after logic */
#else
enum { DEPTH = 4, AT_LEAST = 4000000 };
#endif

static unsigned long tried;

static void explore_by(const struct rollout *r, int n_moves, int depth)
{
	for (int i = 0; depth && i < n_moves; i++) {
		struct rollout next;
		struct ro_event ev = move(r, i);

		copy(&next, r);
		ev.now_us = now; /* its texts are those of r, which does not change */
		assert_int_equal(rollout_apply(&next, &ev, &acts), 0);
		check(&next, r, &ev);
		tried++;
		now += 60;
		explore_by(&next, n_moves, depth - 1);
		now -= 60;
		rollout_done(&next);
	}
}

static void explore(const struct rollout *r, int depth)
{
	explore_by(r, N_PLAIN, depth);
}

static void every_short_sequence(void **state)
{
	struct rollout r;

	(void)state;
	tried = 0;
	start(&r);
	explore(&r, DEPTH);
	up(&r);
	explore(&r, DEPTH);
	go_live(&r, 1);
	go_live(&r, 2);
	explore(&r, DEPTH); /* live 2, previous 1 */
	EV(&r, .kind = RO_SUBMITTED, .version = 3, .parent = 2);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_OK, .text = "better");
	explore(&r, DEPTH); /* gated, waiting for its turn */
	now += 1000;
	EV(&r, .kind = RO_TICK);
	assert_int_equal(r.op.phase, RO_LOADING);
	explore(&r, DEPTH);
	EV(&r, .kind = RO_LOADED, .id = r.op.id, .version = 3, .result = RO_OK);
	assert_int_equal(r.op.phase, RO_ACTIVATING);
	explore(&r, DEPTH);
	EV(&r, .kind = RO_ROLLBACK);
	assert_int_equal(r.op.why, RO_WHY_BACK);
	explore(&r, DEPTH);
	rollout_done(&r);
	print_message("%lu steps\n", tried);
	assert_true(tried > AT_LEAST);
}

static void every_short_sequence_with_a_canary(void **state)
{
	struct rollout r;

	(void)state;
	tried = 0;
	start_by(&r, &canary_rules);
	up(&r);
	go_live(&r, 1);
	go_live(&r, 2);
	now += 1000;
	EV(&r, .kind = RO_SUBMITTED, .version = 3, .parent = 2);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_OK, .text = "better");
	EV(&r, .kind = RO_LOADED, .id = r.op.id, .version = 3, .result = RO_OK);
	assert_int_equal(r.op.phase, RO_CANARYING);
	explore_by(&r, N_MOVES, DEPTH - 1);
	canaried(&r, RO_OK);
	assert_int_equal(state_of(&r, 3), VS_CANARY);
	explore_by(&r, N_MOVES, DEPTH - 1);
	EV(&r, .kind = RO_SUBMITTED, .version = 4, .parent = 3); /* the next one is accepted meanwhile */
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_OK, .text = "better");
	explore_by(&r, N_MOVES, DEPTH - 1);
	EV(&r, .kind = RO_JUDGED, .version = 3, .permille = 50, .result = RO_OK, .text = "x");
	explore_by(&r, N_MOVES, DEPTH - 1); /* growing */
	rollout_done(&r);
	print_message("%lu steps\n", tried);
	assert_true(tried > AT_LEAST / 20);
}

/* The move that answers what is out, or brings something on. */
static int helpful(const struct rollout *r)
{
	return r->op.phase == RO_LOADING ? 5 : r->op.phase == RO_ACTIVATING ? 11 : r->op.phase == RO_CANARYING ? 28 : r->eval.running ? 1 : r->s.hold || r->s.pin ? 27 :
	       !r->serve_up ? 18 : !r->learn_up ? 22 : r->s.canary.version ? 32 : 0;
}

static void walk(const struct rollout_rules *by, uint64_t seed, int walks, unsigned long *promoted, unsigned long *rolled, unsigned long *canaries)
{
	for (int w = 0; w < walks; w++) {
		struct rollout r, before;

		start_by(&r, by);
		now = 1;
		for (int i = 0; i < 300; i++) {
			struct ro_event ev;

			seed = seed * 6364136223846793005u + 1442695040888963407u;
			ev = move(&r, by->n_steps && seed >> 63 ? helpful(&r) : (int)((seed >> 33) % N_MOVES));
			ev.now_us = now += (seed >> 20) % 40;
			ev.random = (uint32_t)(seed >> 7);
			copy(&before, &r);
			if (ev.salt == r.s.canary.salt)
				ev.salt = before.s.canary.salt; /* not from what is being changed */
			assert_int_equal(rollout_apply(&r, &ev, &acts), 0);
			check(&r, &before, &ev);
			*promoted += r.s.live > before.s.live;
			*rolled += before.s.live && r.s.live < before.s.live;
			*canaries += r.s.canary.version && r.s.canary.version != before.s.canary.version;
			rollout_done(&before);
		}
		rollout_done(&r);
	}
}

static void random_walks(void **state)
{
	uint64_t seed = 20260131;
	unsigned long promoted = 0, rolled = 0, canaries = 0;

	(void)state;
	print_message("seed %llu\n", (unsigned long long)seed);
	walk(&rules, seed, 3000, &promoted, &rolled, &canaries);
	print_message("%lu times forward, %lu back\n", promoted, rolled);
	assert_true(promoted > 1000 && rolled > 1000); /* the walks go somewhere */
	assert_int_equal(canaries, 0);
	promoted = rolled = 0;
	walk(&canary_rules, seed + 1, 4000, &promoted, &rolled, &canaries);
	print_message("with a canary: %lu begun, %lu times forward, %lu back\n", canaries, promoted, rolled);
	assert_true(promoted > 500 && rolled > 500 && canaries > 2000);
}

/* ---- scenarios ---- */

static void plain_way(void **state)
{
	struct rollout r;

	(void)state;
	start(&r);
	up(&r);
	EV(&r, .kind = RO_SUBMITTED, .version = 1);
	assert_int_equal(r.s.base, 1);
	assert_int_equal(find(RO_DO_EVALUATE)->against, 0);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_OK, .text = "pays");
	assert_int_equal(find(RO_DO_LOAD)->version, 1);
	assert_null(verdict_of(1)); /* told when it is live */
	EV(&r, .kind = RO_LOADED, .id = r.op.id, .version = 1, .result = RO_OK);
	assert_false(find(RO_DO_ACTIVATE)->all);
	assert_true(find(RO_DO_ACTIVATE)->checked);
	EV(&r, .kind = RO_ACTIVATED, .id = r.op.id, .result = RO_OK, .generation = 7);
	assert_string_equal(verdict_of(1)->verdict, "accepted");
	assert_int_equal(r.s.generation, 7);
	assert_non_null(find(RO_DO_SAVE));
	rollout_done(&r);
}

/* A reload: what is already waiting for its interval waits by the new one, counted from the same moment. */
static void other_rules_from_now_on(void **state)
{
	struct rollout_rules other = {.interval_us = 30, .max_wait_us = 5, .retry_us = 1, .rejects_to_rebase = 9};
	struct rollout r;
	uint64_t due;

	(void)state;
	start(&r);
	rollout_set_rules(&r, &other);
	assert_int_equal(r.next_promotion_us, 0); /* nothing has gone live: nothing waits */
	assert_int_equal(r.rules.rejects_to_rebase, 9);
	rollout_set_rules(&r, &rules);
	up(&r);
	go_live(&r, 1);
	due = r.next_promotion_us;
	rollout_set_rules(&r, &other);
	assert_int_equal(r.next_promotion_us, due - 70);
	rollout_set_rules(&r, &rules);
	assert_int_equal(r.next_promotion_us, due);
	rollout_done(&r);
}

static void the_interval_holds(void **state)
{
	struct rollout r;

	(void)state;
	start(&r);
	up(&r);
	go_live(&r, 1);
	EV(&r, .kind = RO_SUBMITTED, .version = 2, .parent = 1);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_OK, .text = "better");
	assert_null(find(RO_DO_LOAD));
	assert_string_equal(verdict_of(2)->verdict, "accepted"); /* it waits, the learner need not */
	now += 90; /* 95 to 105 with jitter */
	EV(&r, .kind = RO_TICK);
	assert_null(find(RO_DO_LOAD));
	now += 16;
	EV(&r, .kind = RO_TICK);
	assert_int_equal(find(RO_DO_LOAD)->version, 2);
	EV(&r, .kind = RO_LOADED, .id = r.op.id, .version = 2, .result = RO_OK);
	EV(&r, .kind = RO_ACTIVATED, .id = r.op.id, .result = RO_OK, .generation = 2);
	assert_null(verdict_of(2)); /* once */
	assert_int_equal(state_of(&r, 1), VS_PREVIOUS);
	rollout_done(&r);
}

static void undecided_then_superseded(void **state)
{
	struct rollout r;

	(void)state;
	start(&r);
	up(&r);
	EV(&r, .kind = RO_SUBMITTED, .version = 1);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_LATER, .text = "few");
	assert_int_equal(state_of(&r, 1), VS_CANDIDATE);
	assert_null(find(RO_DO_EVALUATE));
	now += 11;
	EV(&r, .kind = RO_TICK);
	assert_non_null(find(RO_DO_EVALUATE));
	now += 60;
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_LATER, .text = "few");
	assert_int_equal(state_of(&r, 1), VS_REJECTED);
	assert_string_equal(verdict_of(1)->verdict, "superseded");
	rollout_done(&r);
}

/* Nothing further will be held out: looking again would say the same. */
static void undecided_on_all_there_is(void **state)
{
	struct rollout r;

	(void)state;
	start(&r);
	up(&r);
	go_live(&r, 1);
	EV(&r, .kind = RO_SUBMITTED, .version = 2, .parent = 1);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_LATER, .full = true, .text = "between");
	assert_int_equal(state_of(&r, 2), VS_REJECTED);
	assert_string_equal(verdict_of(2)->verdict, "superseded");
	assert_non_null(strstr(verdict_of(2)->text, "all the requests held out; between"));
	assert_non_null(find(RO_DO_SAVE));
	EV(&r, .kind = RO_SUBMITTED, .version = 3, .parent = 2); /* no reason to go back */
	assert_int_equal(state_of(&r, 3), VS_CANDIDATE);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_OK, .full = true, .text = "better");
	assert_int_equal(state_of(&r, 3), VS_GATED);
	rollout_done(&r);
}

/* A learner that did not hear of a rollback sends a child of what was left. */
static void a_child_of_what_was_rolled_back(void **state)
{
	struct rollout r;

	(void)state;
	start(&r);
	up(&r);
	go_live(&r, 1);
	go_live(&r, 2);
	EV(&r, .kind = RO_ROLLBACK);
	EV(&r, .kind = RO_ACTIVATED, .id = r.op.id, .result = RO_OK, .generation = 3);
	assert_int_equal(state_of(&r, 2), VS_QUARANTINED);
	EV(&r, .kind = RO_SUBMITTED, .version = 3, .parent = 2);
	assert_int_equal(state_of(&r, 3), VS_REJECTED);
	assert_null(find(RO_DO_EVALUATE));
	assert_string_equal(verdict_of(3)->verdict, "superseded");
	assert_int_equal(find(RO_DO_REBASE)->version, 1);
	EV(&r, .kind = RO_SUBMITTED, .version = 4, .parent = 1);
	assert_int_equal(state_of(&r, 4), VS_CANDIDATE);
	EV(&r, .kind = RO_ROLLBACK); /* and the first one too: nothing is left to go on from, so its children are judged */
	EV(&r, .kind = RO_ACTIVATED, .id = r.op.id, .result = RO_OK, .generation = 4);
	assert_int_equal(r.s.live, 0);
	EV(&r, .kind = RO_SUBMITTED, .version = 5, .parent = 1);
	assert_int_equal(state_of(&r, 5), VS_CANDIDATE);
	rollout_done(&r);
}

static void three_rejections_rebase(void **state)
{
	struct rollout r;

	(void)state;
	start(&r);
	up(&r);
	go_live(&r, 1);
	for (int i = 0; i < 3; i++) {
		EV(&r, .kind = RO_SUBMITTED, .version = r.s.next_number, .parent = 1);
		EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_BAD, .text = "worse");
		assert_true((find(RO_DO_REBASE) != NULL) == (i == 2));
	}
	assert_int_equal(find(RO_DO_REBASE)->version, 1);
	rollout_done(&r);
}

static void live_changed_meanwhile(void **state)
{
	struct rollout r;

	(void)state;
	start(&r);
	up(&r);
	go_live(&r, 1);
	go_live(&r, 2);
	EV(&r, .kind = RO_SUBMITTED, .version = 3, .parent = 2);
	EV(&r, .kind = RO_PROMOTE, .version = 1, .expected = -1);
	EV(&r, .kind = RO_LOADED, .id = r.op.id, .version = 1, .result = RO_OK);
	EV(&r, .kind = RO_ACTIVATED, .id = r.op.id, .result = RO_OK, .generation = 3);
	assert_int_equal(r.s.live, 1);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_OK, .text = "better than 2");
	assert_int_equal(state_of(&r, 3), VS_CANDIDATE);
	assert_int_equal(find(RO_DO_EVALUATE)->against, 1);
	rollout_done(&r);
}

static void wrong_weights_are_rejected(void **state)
{
	struct rollout r;

	(void)state;
	start(&r);
	up(&r);
	EV(&r, .kind = RO_SUBMITTED, .version = 1);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_OK, .text = "pays");
	EV(&r, .kind = RO_LOADED, .id = r.op.id, .version = 1, .result = RO_MISMATCH, .text = "other weights");
	assert_int_equal(find(RO_DO_UNLOAD)->version, 1);
	assert_string_equal(verdict_of(1)->verdict, "rejected");
	assert_int_equal(r.s.live, 0);
	assert_null(find(RO_DO_LOAD));
	rollout_done(&r);
}

/* back, further back, then no draft; each time what is left is quarantined */
static void rollback_goes_down(void **state)
{
	struct rollout r;

	(void)state;
	start(&r);
	up(&r);
	go_live(&r, 1);
	go_live(&r, 2);
	go_live(&r, 3);
	for (uint32_t left = 3; left > 0; left--) {
		EV(&r, .kind = RO_ROLLBACK);
		assert_int_equal(find(RO_DO_ACTIVATE)->version, left - 1);
		assert_true(find(RO_DO_ACTIVATE)->all);
		assert_false(find(RO_DO_ACTIVATE)->checked);
		EV(&r, .kind = RO_ACTIVATED, .id = r.op.id, .result = RO_OK, .generation = 10 - left);
		assert_int_equal(r.s.live, left - 1);
		assert_int_equal(state_of(&r, left), VS_QUARANTINED);
		assert_string_equal(verdict_of(left)->verdict, "quarantined");
		assert_int_equal(find(RO_DO_ANSWER)->version, left);
		assert_null(find(RO_DO_ANSWER)->error);
		if (left > 1)
			assert_int_equal(find(RO_DO_REBASE)->version, left - 1);
	}
	EV(&r, .kind = RO_ROLLBACK); /* nothing left: done, nothing quarantined */
	EV(&r, .kind = RO_ACTIVATED, .id = r.op.id, .result = RO_OK, .generation = 10);
	assert_null(find(RO_DO_ANSWER)->error);
	assert_int_equal(find(RO_DO_ANSWER)->version, 0);
	/* it was a mistake: an operator may take one out of quarantine, nobody else */
	EV(&r, .kind = RO_PROMOTE, .version = 3, .expected = -1);
	EV(&r, .kind = RO_LOADED, .id = r.op.id, .version = 3, .result = RO_OK);
	EV(&r, .kind = RO_ACTIVATED, .id = r.op.id, .result = RO_OK, .generation = 11);
	assert_int_equal(r.s.live, 3);
	rollout_done(&r);
}

static void rollback_cancels_a_load(void **state)
{
	struct rollout r;
	uint32_t load;

	(void)state;
	start(&r);
	up(&r);
	go_live(&r, 1);
	go_live(&r, 2);
	now += 1000;
	EV(&r, .kind = RO_SUBMITTED, .version = 3, .parent = 2);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_OK, .text = "better");
	load = find(RO_DO_LOAD)->id;
	EV(&r, .kind = RO_ROLLBACK);
	assert_int_equal(find(RO_DO_ACTIVATE)->version, 1);
	EV(&r, .kind = RO_LOADED, .id = load, .version = 3, .result = RO_OK); /* late */
	assert_int_equal(find(RO_DO_UNLOAD)->version, 3);
	assert_null(find(RO_DO_ACTIVATE));
	EV(&r, .kind = RO_ACTIVATED, .id = r.op.id, .result = RO_OK, .generation = 3);
	assert_int_equal(r.s.live, 1);
	assert_int_equal(state_of(&r, 3), VS_REJECTED); /* a child of what was left */
	assert_string_equal(verdict_of(3)->verdict, "superseded");
	now += 100000;
	EV(&r, .kind = RO_TICK);
	assert_null(find(RO_DO_LOAD));
	rollout_done(&r);
}

static void a_stale_activation_is_no_answer(void **state)
{
	struct rollout r;
	uint32_t old;

	(void)state;
	start(&r);
	up(&r);
	go_live(&r, 1);
	go_live(&r, 2);
	EV(&r, .kind = RO_SUBMITTED, .version = 3, .parent = 2);
	EV(&r, .kind = RO_PROMOTE, .version = 3, .expected = -1);
	EV(&r, .kind = RO_LOADED, .id = r.op.id, .version = 3, .result = RO_OK);
	old = find(RO_DO_ACTIVATE)->id;
	EV(&r, .kind = RO_ROLLBACK);
	EV(&r, .kind = RO_ACTIVATED, .id = old, .result = RO_OK, .generation = 3); /* 3 was live for a moment */
	assert_null(find(RO_DO_ANSWER));
	assert_int_equal(r.s.live, 2);
	EV(&r, .kind = RO_ACTIVATED, .id = r.op.id, .result = RO_OK, .generation = 4);
	assert_int_equal(r.s.live, 1);
	assert_int_equal(r.s.generation, 4);
	rollout_done(&r);
}

static void rollback_cancels_an_operator(void **state)
{
	struct rollout r;

	(void)state;
	start(&r);
	up(&r);
	go_live(&r, 1);
	go_live(&r, 2);
	EV(&r, .kind = RO_PROMOTE, .version = 1, .expected = -1);
	EV(&r, .kind = RO_ROLLBACK);
	assert_int_equal(find(RO_DO_ANSWER)->verb, RO_PROMOTE);
	assert_string_equal(find(RO_DO_ANSWER)->error, "io.redraft.Busy");
	EV(&r, .kind = RO_ROLLBACK); /* impatient: the same rollback */
	assert_null(find(RO_DO_ACTIVATE));
	EV(&r, .kind = RO_ACTIVATED, .id = r.op.id, .result = RO_OK, .generation = 3);
	assert_int_equal(r.s.live, 1);
	rollout_done(&r);
}

/* not resident: load it; that fails too: no draft at all, then it is looked for below */
static void rollback_finds_a_way(void **state)
{
	struct rollout r;

	(void)state;
	start(&r);
	up(&r);
	go_live(&r, 1);
	go_live(&r, 2);
	EV(&r, .kind = RO_ROLLBACK);
	EV(&r, .kind = RO_ACTIVATED, .id = r.op.id, .result = RO_BAD, .text = "not loaded");
	assert_int_equal(find(RO_DO_LOAD)->version, 1);
	EV(&r, .kind = RO_LOADED, .id = r.op.id, .version = 1, .result = RO_MISMATCH, .text = "damaged");
	assert_int_equal(find(RO_DO_ACTIVATE)->version, 0);
	EV(&r, .kind = RO_ACTIVATED, .id = r.op.id, .result = RO_OK, .generation = 3);
	assert_null(find(RO_DO_ANSWER)->error);
	assert_int_equal(find(RO_DO_LOAD)->version, 1); /* once more, off the hurry */
	EV(&r, .kind = RO_LOADED, .id = r.op.id, .version = 1, .result = RO_MISMATCH, .text = "damaged");
	assert_int_equal(state_of(&r, 1), VS_QUARANTINED);
	assert_int_equal(r.s.live, 0);
	assert_int_equal(r.serve_live, 0);
	rollout_done(&r);
}

static void rollback_without_server(void **state)
{
	struct rollout r;

	(void)state;
	start(&r);
	up(&r);
	go_live(&r, 1);
	go_live(&r, 2);
	EV(&r, .kind = RO_SERVER_GONE);
	EV(&r, .kind = RO_ROLLBACK);
	EV(&r, .kind = RO_ACTIVATED, .id = r.op.id, .result = RO_NOBODY);
	assert_int_equal(r.s.live, 1);
	assert_null(find(RO_DO_ANSWER)->error);
	assert_int_equal(r.s.generation, 3);
	EV(&r, .kind = RO_SERVER, .version = 1, .generation = 3); /* it started from the state */
	assert_null(find(RO_DO_LOAD));
	EV(&r, .kind = RO_SERVER, .version = 2, .generation = 2); /* one that was only cut off is moved */
	assert_int_equal(find(RO_DO_LOAD)->version, 1);
	rollout_done(&r);
}

static void pin_holds_and_unpin_frees(void **state)
{
	struct rollout r;

	(void)state;
	start(&r);
	up(&r);
	EV(&r, .kind = RO_PIN);
	assert_string_equal(find(RO_DO_ANSWER)->error, "io.redraft.BadVersion");
	go_live(&r, 1);
	now += 1000;
	EV(&r, .kind = RO_SUBMITTED, .version = 2, .parent = 1);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_OK, .text = "better");
	assert_int_equal(r.op.phase, RO_LOADING);
	EV(&r, .kind = RO_PIN);
	assert_null(find(RO_DO_ANSWER)->error);
	assert_int_equal(r.op.phase, RO_IDLE); /* the load was for nothing */
	now += 1000;
	EV(&r, .kind = RO_TICK);
	assert_null(find(RO_DO_LOAD));
	EV(&r, .kind = RO_PROMOTE, .version = 2, .expected = -1);
	assert_string_equal(find(RO_DO_ANSWER)->error, "io.redraft.BadVersion");
	EV(&r, .kind = RO_UNPIN);
	assert_int_equal(find(RO_DO_LOAD)->version, 2);
	rollout_done(&r);
}

static void hold_keeps_and_release_promotes(void **state)
{
	struct rollout r;

	(void)state;
	start(&r);
	up(&r);
	go_live(&r, 1);
	now += 1000;
	EV(&r, .kind = RO_SUBMITTED, .version = 2, .parent = 1);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_OK, .text = "better");
	assert_int_equal(r.op.phase, RO_LOADING);
	EV(&r, .kind = RO_HOLD, .text = "the engine is not to be trusted");
	assert_null(find(RO_DO_ANSWER)->error);
	assert_true(r.s.hold);
	assert_int_equal(r.op.phase, RO_IDLE); /* let go; the version stays gated */
	assert_int_equal(rollout_find(&r, 2)->state, VS_GATED);
	now += 1000000000;
	EV(&r, .kind = RO_TICK);
	assert_null(find(RO_DO_LOAD));
	EV(&r, .kind = RO_SUBMITTED, .version = 3, .parent = 1); /* judged all the same */
	assert_non_null(find(RO_DO_EVALUATE));
	EV(&r, .kind = RO_RELEASE);
	assert_false(r.s.hold);
	assert_int_equal(find(RO_DO_LOAD)->version, 2);
	rollout_done(&r);
}

static void promote_is_checked(void **state)
{
	struct rollout r;

	(void)state;
	start(&r);
	EV(&r, .kind = RO_PROMOTE, .version = 9, .expected = -1);
	assert_string_equal(find(RO_DO_ANSWER)->error, "io.redraft.BadVersion");
	up(&r);
	go_live(&r, 5);
	EV(&r, .kind = RO_PROMOTE, .version = 1, .expected = 4);
	assert_string_equal(find(RO_DO_ANSWER)->error, "io.redraft.GenerationMismatch");
	EV(&r, .kind = RO_PROMOTE, .version = 1, .expected = 5);
	assert_null(find(RO_DO_ANSWER)->error);
	EV(&r, .kind = RO_SUBMITTED, .version = 2, .parent = 1);
	EV(&r, .kind = RO_SERVER_GONE);
	EV(&r, .kind = RO_PROMOTE, .version = 2, .expected = -1);
	assert_string_equal(find(RO_DO_ANSWER)->error, "io.redraft.ServerAbsent");
	rollout_done(&r);
}

static void an_override_is_adopted(void **state)
{
	struct rollout r;

	(void)state;
	start(&r);
	up(&r);
	go_live(&r, 1);
	go_live(&r, 2);
	EV(&r, .kind = RO_SERVER, .version = 1, .generation = 2, .by_operator = true); /* equal generation: theirs wins */
	assert_int_equal(r.s.live, 1);
	assert_int_equal(state_of(&r, 2), VS_QUARANTINED);
	assert_true(r.s.hold);
	assert_int_equal(find(RO_DO_REBASE)->version, 1);
	assert_string_equal(verdict_of(2)->verdict, "quarantined");
	EV(&r, .kind = RO_SUBMITTED, .version = 3, .parent = 1);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_OK, .text = "better");
	now += 1000;
	EV(&r, .kind = RO_TICK);
	assert_null(find(RO_DO_LOAD)); /* held */
	EV(&r, .kind = RO_UNPIN);
	assert_int_equal(find(RO_DO_LOAD)->version, 3);
	rollout_done(&r);
}

static void our_own_switch_is_recognised(void **state)
{
	struct rollout r;

	(void)state;
	start(&r);
	up(&r);
	EV(&r, .kind = RO_SUBMITTED, .version = 1);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_OK, .text = "pays");
	/* killed here, after Activate and before the journal; started again */
	r.op.phase = RO_IDLE;
	r.serve_up = false;
	EV(&r, .kind = RO_SERVER, .version = 1, .generation = 1, .by_daemon = true);
	assert_int_equal(r.s.live, 1);
	assert_int_equal(r.s.generation, 1);
	assert_string_equal(verdict_of(1)->verdict, "accepted");
	rollout_done(&r);
}

static void lost_server_is_brought_back(void **state)
{
	struct rollout r;

	(void)state;
	start(&r);
	up(&r);
	go_live(&r, 1);
	EV(&r, .kind = RO_SERVER_GONE);
	EV(&r, .kind = RO_SERVER, .version = 0, .generation = 0);
	assert_int_equal(find(RO_DO_LOAD)->version, 1);
	EV(&r, .kind = RO_LOADED, .id = r.op.id, .version = 1, .result = RO_OK);
	assert_false(find(RO_DO_ACTIVATE)->checked);
	EV(&r, .kind = RO_ACTIVATED, .id = r.op.id, .result = RO_OK, .generation = 1);
	assert_int_equal(r.serve_live, 1);
	assert_null(verdict_of(1));
	rollout_done(&r);
}

static void newer_candidate_wins(void **state)
{
	struct rollout r;
	uint32_t old;

	(void)state;
	start(&r);
	up(&r);
	go_live(&r, 1);
	EV(&r, .kind = RO_SUBMITTED, .version = 2, .parent = 1);
	old = r.eval.id;
	EV(&r, .kind = RO_SUBMITTED, .version = 3, .parent = 1);
	assert_string_equal(verdict_of(2)->verdict, "superseded");
	EV(&r, .kind = RO_EVALUATED, .id = old, .result = RO_OK, .text = "about 2");
	assert_int_equal(state_of(&r, 3), VS_CANDIDATE);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_OK, .text = "about 3");
	assert_int_equal(state_of(&r, 3), VS_GATED);
	rollout_done(&r);
}

static void learner_that_missed_it_is_told(void **state)
{
	struct store_state s = {.next_number = 2, .n_versions = 1};
	struct rollout r;

	(void)state;
	s.versions = calloc(1, sizeof *s.versions);
	s.versions[0] = (struct version_entry){.number = 1, .state = VS_QUARANTINED, .reason = "why"};
	rollout_init(&r, &s, &rules, 0);
	EV(&r, .kind = RO_LEARNER);
	assert_string_equal(verdict_of(1)->verdict, "quarantined");
	EV(&r, .kind = RO_LEARNER);
	assert_null(verdict_of(1));
	rollout_done(&r);
}

/* ---- the canary ---- */

/* Live 1 (generation 1), version 2 on canary at the first step. */
static void on_canary(struct rollout *r)
{
	start_by(r, &canary_rules);
	up(r);
	go_live(r, 1);
	now += 1000;
	EV(r, .kind = RO_SUBMITTED, .version = 2, .parent = 1);
	EV(r, .kind = RO_EVALUATED, .id = r->eval.id, .result = RO_OK, .text = "better");
	EV(r, .kind = RO_LOADED, .id = r->op.id, .version = 2, .result = RO_OK);
	canaried(r, RO_OK);
	assert_int_equal(state_of(r, 2), VS_CANARY);
}
#define JUDGED(r, res) EV(r, .kind = RO_JUDGED, .version = 2, .permille = (r)->s.canary.permille, .result = res, .text = "seen")

static void a_canary_grows_and_goes_live(void **state)
{
	struct rollout r;
	char salt[RO_SALT];

	(void)state;
	start_by(&r, &canary_rules);
	up(&r);
	go_live(&r, 1);
	now += 1000;
	EV(&r, .kind = RO_SUBMITTED, .version = 2, .parent = 1);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_OK, .text = "better");
	EV(&r, .kind = RO_LOADED, .id = r.op.id, .version = 2, .result = RO_OK, .random = 77);
	assert_int_equal(find(RO_DO_CANARY)->permille, 50);
	assert_true(find(RO_DO_CANARY)->checked);
	assert_int_equal(r.s.canary.version, 0); /* the server first */
	snprintf(salt, sizeof salt, "%.32s", find(RO_DO_CANARY)->text);
	EV(&r, .kind = RO_CANARIED, .id = r.op.id, .version = 2, .permille = 50, .salt = salt, .result = RO_OK);
	assert_non_null(find(RO_DO_SAVE));
	assert_string_equal(verdict_of(2)->verdict, "accepted"); /* the learner need not wait */
	assert_int_equal(r.s.live, 1);
	JUDGED(&r, RO_LATER);
	assert_null(find(RO_DO_CANARY));
	JUDGED(&r, RO_OK);
	assert_int_equal(find(RO_DO_CANARY)->permille, 250);
	assert_string_equal(find(RO_DO_CANARY)->text, salt); /* who was in stays in */
	JUDGED(&r, RO_OK); /* the server has not said yes yet */
	assert_int_equal(r.s.canary.permille, 250);
	assert_null(find(RO_DO_ACTIVATE));
	canaried(&r, RO_OK);
	JUDGED(&r, RO_OK);
	assert_int_equal(find(RO_DO_ACTIVATE)->version, 2);
	EV(&r, .kind = RO_ACTIVATED, .id = r.op.id, .result = RO_OK, .generation = 2);
	assert_int_equal(r.s.live, 2);
	assert_int_equal(r.s.canary.version, 0);
	assert_null(verdict_of(2));
	rollout_done(&r);
}

static void harm_takes_it_back(void **state)
{
	struct rollout r;

	(void)state;
	on_canary(&r);
	EV(&r, .kind = RO_SUBMITTED, .version = 3, .parent = 2);
	JUDGED(&r, RO_BAD);
	assert_int_equal(find(RO_DO_CANARY)->version, 0);
	assert_int_equal(acts.a[0].kind, RO_DO_CANARY); /* serving first */
	assert_int_equal(r.s.live, 1);
	assert_int_equal(state_of(&r, 2), VS_QUARANTINED);
	assert_non_null(strstr(rollout_find(&r, 2)->reason, "canary: seen"));
	assert_string_equal(verdict_of(2)->verdict, "quarantined");
	assert_int_equal(state_of(&r, 3), VS_REJECTED); /* its child */
	assert_int_equal(find(RO_DO_REBASE)->version, 1);
	assert_non_null(find(RO_DO_SAVE));
	canaried(&r, RO_OK);
	EV(&r, .kind = RO_SUBMITTED, .version = 4, .parent = 2); /* a learner that did not hear of it */
	assert_int_equal(state_of(&r, 4), VS_REJECTED);
	EV(&r, .kind = RO_SUBMITTED, .version = 5, .parent = 1);
	assert_int_equal(state_of(&r, 5), VS_CANDIDATE);
	rollout_done(&r);
}

static void few_requests_pass_by_time(void **state)
{
	struct rollout r;

	(void)state;
	on_canary(&r);
	now += 499;
	JUDGED(&r, RO_LATER);
	assert_int_equal(r.s.canary.permille, 50);
	now += 1;
	JUDGED(&r, RO_LATER);
	assert_int_equal(r.s.canary.permille, 250);
	rollout_done(&r);
}

/* What no replay can judge has to show that it does no harm, and without a canary it does not go live. */
static void not_replayable(void **state)
{
	struct rollout r;

	(void)state;
	start_by(&r, &canary_rules);
	up(&r);
	go_live(&r, 1);
	now += 1000;
	EV(&r, .kind = RO_SUBMITTED, .version = 2, .parent = 1);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_UNFIT, .text = "a tree");
	EV(&r, .kind = RO_LOADED, .id = r.op.id, .version = 2, .result = RO_OK);
	canaried(&r, RO_OK);
	now += 100000;
	JUDGED(&r, RO_LATER);
	assert_int_equal(r.s.canary.permille, 50);
	JUDGED(&r, RO_OK);
	assert_int_equal(r.s.canary.permille, 250);
	rollout_done(&r);
	start(&r);
	up(&r);
	go_live(&r, 1);
	EV(&r, .kind = RO_SUBMITTED, .version = 2, .parent = 1);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_UNFIT, .text = "a tree");
	assert_int_equal(state_of(&r, 2), VS_REJECTED);
	rollout_done(&r);
}

static void server_restarts_in_mid_canary(void **state)
{
	struct rollout r;
	char salt[RO_SALT];

	(void)state;
	on_canary(&r);
	memcpy(salt, r.s.canary.salt, sizeof salt);
	EV(&r, .kind = RO_SERVER_GONE);
	JUDGED(&r, RO_OK);
	assert_int_equal(r.s.canary.permille, 50); /* nothing grows on nobody */
	EV(&r, .kind = RO_SERVER, .version = 1, .generation = 1);
	assert_int_equal(find(RO_DO_LOAD)->version, 2);
	EV(&r, .kind = RO_LOADED, .id = r.op.id, .version = 2, .result = RO_OK);
	assert_int_equal(find(RO_DO_CANARY)->permille, 50);
	assert_string_equal(find(RO_DO_CANARY)->text, salt); /* the same conversations */
	canaried(&r, RO_OK);
	EV(&r, .kind = RO_SERVER, .version = 1, .generation = 1, .canary = 2, .permille = 50, .salt = salt);
	assert_null(find(RO_DO_LOAD));
	assert_null(find(RO_DO_CANARY));
	/* it comes back with a file that has rotted */
	EV(&r, .kind = RO_SERVER, .version = 1, .generation = 1);
	EV(&r, .kind = RO_LOADED, .id = r.op.id, .version = 2, .result = RO_MISMATCH, .text = "other weights");
	assert_int_equal(state_of(&r, 2), VS_REJECTED);
	assert_int_equal(r.s.canary.version, 0);
	rollout_done(&r);
}

/* Killed between the server's yes and the journal: it has a canary that the state knows nothing of. */
static void a_canary_of_an_earlier_life_is_ended(void **state)
{
	struct rollout r;

	(void)state;
	on_canary(&r);
	r.s.canary.version = 0;
	rollout_find(&r, 2)->state = VS_GATED;
	r.s.pin = 1;
	EV(&r, .kind = RO_SERVER, .version = 1, .generation = 1, .canary = 2, .permille = 50, .salt = "s");
	assert_int_equal(find(RO_DO_CANARY)->version, 0);
	canaried(&r, RO_OK);
	EV(&r, .kind = RO_SERVER, .version = 1, .generation = 1);
	assert_null(find(RO_DO_CANARY));
	rollout_done(&r);
	/* killed between the last activation and the journal: it is live by our own hand */
	on_canary(&r);
	r.serve_up = false;
	EV(&r, .kind = RO_SERVER, .version = 2, .generation = 2, .by_daemon = true);
	assert_int_equal(r.s.live, 2);
	assert_int_equal(r.s.canary.version, 0);
	rollout_done(&r);
}

static void daemon_restarts_in_mid_canary(void **state)
{
	struct store_state s;
	struct rollout r, again;

	(void)state;
	on_canary(&r);
	assert_int_equal(store_state_copy(&s, &r.s), 0);
	rollout_init(&again, &s, &canary_rules, now);
	EV(&again, .kind = RO_SERVER, .version = 1, .generation = 1, .canary = 2, .permille = 50, .salt = r.s.canary.salt);
	assert_null(find(RO_DO_CANARY)); /* as it was */
	JUDGED(&again, RO_OK);
	assert_int_equal(find(RO_DO_CANARY)->permille, 250);
	rollout_done(&again);
	/* a state that somebody has edited: both sides of the book are made to agree */
	assert_int_equal(store_state_copy(&s, &r.s), 0);
	s.canary.version = 0;
	rollout_init(&again, &s, &canary_rules, now);
	assert_int_equal(state_of(&again, 2), VS_GATED);
	rollout_done(&again);
	assert_int_equal(store_state_copy(&s, &r.s), 0);
	s.versions[1].state = VS_REJECTED;
	rollout_init(&again, &s, &canary_rules, now);
	assert_int_equal(again.s.canary.version, 0);
	rollout_done(&again);
	rollout_done(&r);
}

static void live_changes_in_mid_canary(void **state)
{
	struct rollout r;

	(void)state;
	start_by(&r, &canary_rules);
	up(&r);
	go_live(&r, 1);
	go_live(&r, 2);
	now += 1000;
	EV(&r, .kind = RO_SUBMITTED, .version = 3, .parent = 2);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_OK, .text = "better");
	EV(&r, .kind = RO_LOADED, .id = r.op.id, .version = 3, .result = RO_OK);
	canaried(&r, RO_OK);
	EV(&r, .kind = RO_PROMOTE, .version = 1, .expected = -1);
	EV(&r, .kind = RO_LOADED, .id = r.op.id, .version = 1, .result = RO_OK);
	EV(&r, .kind = RO_ACTIVATED, .id = r.op.id, .result = RO_OK, .generation = 3);
	assert_int_equal(r.s.live, 1);
	assert_int_equal(r.s.canary.version, 0);
	assert_int_equal(state_of(&r, 3), VS_CANDIDATE); /* judged anew, against what is live now */
	assert_int_equal(find(RO_DO_EVALUATE)->against, 1);
	rollout_done(&r);
	/* a rollback ends it too, and what was made from the version that is left does not come back */
	on_canary(&r);
	EV(&r, .kind = RO_ROLLBACK);
	EV(&r, .kind = RO_ACTIVATED, .id = r.op.id, .result = RO_OK, .generation = 2);
	assert_int_equal(r.s.live, 0);
	assert_int_equal(state_of(&r, 2), VS_REJECTED);
	assert_int_equal(r.s.canary.version, 0);
	rollout_done(&r);
}

static void learner_dies_in_mid_canary(void **state)
{
	struct rollout r;

	(void)state;
	on_canary(&r);
	EV(&r, .kind = RO_LEARNER_GONE);
	JUDGED(&r, RO_OK);
	canaried(&r, RO_OK);
	JUDGED(&r, RO_OK);
	EV(&r, .kind = RO_ACTIVATED, .id = r.op.id, .result = RO_OK, .generation = 2);
	assert_int_equal(r.s.live, 2);
	rollout_done(&r);
}

static void pin_hold_and_alarm_end_a_canary(void **state)
{
	struct rollout r;

	(void)state;
	for (int i = 0; i < 3; i++) {
		on_canary(&r);
		EV(&r, .kind = i == 0 ? RO_PIN : i == 1 ? RO_HOLD : RO_ALARM, .text = "why");
		assert_int_equal(find(RO_DO_CANARY)->version, 0);
		assert_int_equal(state_of(&r, 2), VS_GATED);
		assert_true((find(RO_DO_PAUSE) != NULL) == (i == 2));
		canaried(&r, RO_OK);
		now += 2000;
		EV(&r, .kind = RO_TICK);
		assert_null(find(RO_DO_LOAD));
		EV(&r, .kind = i == 0 ? RO_UNPIN : RO_RELEASE);
		assert_true((find(RO_DO_RESUME) != NULL) == (i == 2)); /* training goes on */
		assert_int_equal(r.s.alarm[0], 0);
		assert_int_equal(find(RO_DO_LOAD)->version, 2);
		rollout_done(&r);
	}
}

/* ---- policy ---- */

static void a_freeze_window_lets_nothing_move(void **state)
{
	struct rollout r;

	(void)state;
	on_canary(&r);
	now += 10000;
	EV(&r, .kind = RO_JUDGED, .version = 2, .permille = 50, .result = RO_OK, .frozen = true);
	assert_int_equal(r.s.canary.permille, 50); /* it stays where it is */
	EV(&r, .kind = RO_JUDGED, .version = 2, .permille = 50, .result = RO_BAD, .frozen = true);
	assert_int_equal(state_of(&r, 2), VS_QUARANTINED); /* harm does not wait */
	rollout_done(&r);
	start(&r);
	up(&r);
	go_live(&r, 1);
	now += 1000;
	EV(&r, .kind = RO_SUBMITTED, .version = 2, .parent = 1, .frozen = true);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_OK, .text = "better", .frozen = true);
	assert_null(find(RO_DO_LOAD));
	EV(&r, .kind = RO_TICK);
	assert_int_equal(find(RO_DO_LOAD)->version, 2);
	rollout_done(&r);
}

static void who_waits_too_long_is_superseded(void **state)
{
	struct rollout r;

	(void)state;
	start_by(&r, &canary_rules);
	up(&r);
	go_live(&r, 1);
	EV(&r, .kind = RO_HOLD);
	EV(&r, .kind = RO_SUBMITTED, .version = 2, .parent = 1);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_OK, .text = "better");
	now += 4999;
	EV(&r, .kind = RO_TICK);
	assert_int_equal(state_of(&r, 2), VS_GATED);
	now += 1;
	EV(&r, .kind = RO_TICK);
	assert_int_equal(state_of(&r, 2), VS_REJECTED);
	assert_non_null(find(RO_DO_SAVE));
	rollout_done(&r);
}

/* Accepted against a live that is no more: judged again, before it goes live. */
static void gated_is_judged_again_when_live_changes(void **state)
{
	struct rollout r;

	(void)state;
	start(&r);
	up(&r);
	go_live(&r, 1);
	go_live(&r, 2);
	EV(&r, .kind = RO_SUBMITTED, .version = 3, .parent = 2);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_OK, .text = "better than 2");
	assert_int_equal(state_of(&r, 3), VS_GATED);
	now += 1000;
	EV(&r, .kind = RO_TICK);
	assert_int_equal(r.op.phase, RO_LOADING);
	EV(&r, .kind = RO_LOADED, .id = r.op.id, .version = 3, .result = RO_OK);
	/* an operator moved the server while it was loaded: ours comes too late */
	EV(&r, .kind = RO_ACTIVATED, .id = r.op.id, .result = RO_GENERATION);
	EV(&r, .kind = RO_SERVER, .version = 1, .generation = 9, .by_operator = true);
	assert_int_equal(r.s.live, 1);
	assert_int_equal(state_of(&r, 3), VS_REJECTED); /* a child of what was left */
	EV(&r, .kind = RO_RELEASE);
	EV(&r, .kind = RO_SUBMITTED, .version = 4, .parent = 1);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_OK, .text = "better than 1");
	EV(&r, .kind = RO_PROMOTE, .version = 3, .expected = -1);
	EV(&r, .kind = RO_LOADED, .id = r.op.id, .version = 3, .result = RO_OK);
	EV(&r, .kind = RO_ACTIVATED, .id = r.op.id, .result = RO_OK, .generation = 10);
	assert_int_equal(state_of(&r, 4), VS_CANDIDATE);
	assert_int_equal(find(RO_DO_EVALUATE)->against, 3);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_BAD, .text = "no better than 3");
	assert_int_equal(state_of(&r, 4), VS_REJECTED);
	rollout_done(&r);
}

static void a_collapse_goes_back_by_itself(void **state)
{
	struct rollout r;

	(void)state;
	start(&r);
	up(&r);
	go_live(&r, 1);
	go_live(&r, 2);
	EV(&r, .kind = RO_COLLAPSED, .version = 1, .text = "old news");
	assert_null(find(RO_DO_ACTIVATE));
	EV(&r, .kind = RO_PIN);
	EV(&r, .kind = RO_COLLAPSED, .version = 2, .text = "nothing is accepted");
	assert_null(find(RO_DO_ACTIVATE)); /* pinned by somebody who knows why */
	EV(&r, .kind = RO_UNPIN);
	EV(&r, .kind = RO_COLLAPSED, .version = 2, .text = "nothing is accepted");
	assert_int_equal(find(RO_DO_ACTIVATE)->version, 1);
	assert_false(find(RO_DO_ACTIVATE)->by_operator);
	EV(&r, .kind = RO_ACTIVATED, .id = r.op.id, .result = RO_OK, .generation = 3);
	assert_int_equal(r.s.live, 1);
	assert_string_equal(rollout_find(&r, 2)->reason, "rolled back: nothing is accepted");
	assert_int_equal(find(RO_DO_REBASE)->version, 1);
	rollout_done(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(plain_way), cmocka_unit_test(other_rules_from_now_on), cmocka_unit_test(the_interval_holds), cmocka_unit_test(undecided_then_superseded),
		cmocka_unit_test(undecided_on_all_there_is), cmocka_unit_test(a_child_of_what_was_rolled_back),
		cmocka_unit_test(three_rejections_rebase), cmocka_unit_test(live_changed_meanwhile),
		cmocka_unit_test(wrong_weights_are_rejected), cmocka_unit_test(rollback_goes_down),
		cmocka_unit_test(rollback_cancels_a_load), cmocka_unit_test(a_stale_activation_is_no_answer), cmocka_unit_test(rollback_cancels_an_operator),
		cmocka_unit_test(rollback_finds_a_way), cmocka_unit_test(rollback_without_server),
		cmocka_unit_test(pin_holds_and_unpin_frees), cmocka_unit_test(hold_keeps_and_release_promotes), cmocka_unit_test(promote_is_checked),
		cmocka_unit_test(an_override_is_adopted), cmocka_unit_test(our_own_switch_is_recognised),
		cmocka_unit_test(lost_server_is_brought_back), cmocka_unit_test(newer_candidate_wins),
		cmocka_unit_test(learner_that_missed_it_is_told), cmocka_unit_test(a_canary_grows_and_goes_live), cmocka_unit_test(harm_takes_it_back),
		cmocka_unit_test(few_requests_pass_by_time), cmocka_unit_test(not_replayable), cmocka_unit_test(server_restarts_in_mid_canary),
		cmocka_unit_test(a_canary_of_an_earlier_life_is_ended), cmocka_unit_test(daemon_restarts_in_mid_canary),
		cmocka_unit_test(live_changes_in_mid_canary), cmocka_unit_test(learner_dies_in_mid_canary),
		cmocka_unit_test(pin_hold_and_alarm_end_a_canary), cmocka_unit_test(a_freeze_window_lets_nothing_move),
		cmocka_unit_test(who_waits_too_long_is_superseded), cmocka_unit_test(gated_is_judged_again_when_live_changes),
		cmocka_unit_test(a_collapse_goes_back_by_itself), cmocka_unit_test(every_short_sequence), cmocka_unit_test(every_short_sequence_with_a_canary),
		cmocka_unit_test(random_walks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
