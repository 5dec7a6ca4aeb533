/* What always holds of the rollout function, whatever comes (one live version, at most one on canary and none while pinned or held,
 * nothing quarantined serves, pins are kept, a rollback is never refused, stale answers change nothing, an alarm holds):
 *  - every sequence of events up to a depth, from several starts, with a canary and without;
 *  - long random walks with fixed seeds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "tests/unit/daemon/rollout_drive.h"

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
	assert_true(!r->s.alarm[0] || before->s.alarm[0] || r->s.hold); /* an alarm holds */
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

enum { N_PLAIN = 28, N_MOVES = 43 }; /* the first ones need no canary */

/* The i-th possible move in state r; answers fit what is out, or are stale. */
static struct ro_event move(const struct rollout *r, int i)
{
	uint32_t op = r->op.id, eval = r->eval.id, last = r->s.next_number - 1;
	uint64_t gen = r->serve_generation + 1;
	static uint32_t left[2];

	left[0] = i == 40 ? r->s.live : last;
	left[1] = r->s.live;
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
	case 40: return (struct ro_event){.kind = RO_SERVER, .version = r->s.previous, .generation = gen, .by_daemon = true, .left = left, .n_left = 1};
	case 41: return (struct ro_event){.kind = RO_SERVER, .version = r->s.previous, .generation = gen, .by_operator = true, .left = left, .n_left = 2};
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
	passes(&r, 3);
	explore(&r, DEPTH); /* gated, waiting for its turn */
	now += 1000;
	EV(&r, .kind = RO_TICK);
	assert_int_equal(r.op.phase, RO_LOADING);
	explore(&r, DEPTH);
	loaded(&r, 3);
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
	live_by(&r, &canary_rules, 2);
	now += 1000;
	passes(&r, 3);
	loaded(&r, 3);
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
	walk(&rules, seed, 4500, &promoted, &rolled, &canaries);
	print_message("%lu times forward, %lu back\n", promoted, rolled);
	assert_true(promoted > 1000 && rolled > 1000); /* the walks go somewhere */
	assert_int_equal(canaries, 0);
	promoted = rolled = 0;
	walk(&canary_rules, seed + 1, 4000, &promoted, &rolled, &canaries);
	print_message("with a canary: %lu begun, %lu times forward, %lu back\n", canaries, promoted, rolled);
	assert_true(promoted > 500 && rolled > 500 && canaries > 2000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_short_sequence),
		cmocka_unit_test(every_short_sequence_with_a_canary),
		cmocka_unit_test(random_walks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
