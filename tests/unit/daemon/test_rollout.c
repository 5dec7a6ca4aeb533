/* The rollout function along the table of daemon/README.md, as named scenarios: candidates, promotions, rollbacks and what
 * operators say. The canary and the policy are in test_rollout_canary.c, what always holds in test_rollout_walks.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "tests/unit/daemon/rollout_drive.h"

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
	loaded(&r, 1);
	assert_false(find(RO_DO_ACTIVATE)->all);
	assert_true(find(RO_DO_ACTIVATE)->checked);
	activated(&r, 7);
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
	live(&r, 1);
	passes(&r, 2);
	assert_null(find(RO_DO_LOAD));
	assert_string_equal(verdict_of(2)->verdict, "accepted"); /* it waits, the learner need not */
	now += 90; /* 95 to 105 with jitter */
	EV(&r, .kind = RO_TICK);
	assert_null(find(RO_DO_LOAD));
	now += 16;
	EV(&r, .kind = RO_TICK);
	assert_int_equal(find(RO_DO_LOAD)->version, 2);
	loaded(&r, 2);
	activated(&r, 2);
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
	live(&r, 1);
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
	live(&r, 2);
	EV(&r, .kind = RO_ROLLBACK);
	activated(&r, 3);
	assert_int_equal(state_of(&r, 2), VS_QUARANTINED);
	EV(&r, .kind = RO_SUBMITTED, .version = 3, .parent = 2);
	assert_int_equal(state_of(&r, 3), VS_REJECTED);
	assert_null(find(RO_DO_EVALUATE));
	assert_string_equal(verdict_of(3)->verdict, "superseded");
	assert_int_equal(find(RO_DO_REBASE)->version, 1);
	EV(&r, .kind = RO_SUBMITTED, .version = 4, .parent = 1);
	assert_int_equal(state_of(&r, 4), VS_CANDIDATE);
	EV(&r, .kind = RO_ROLLBACK); /* and the first one too: nothing is left to go on from, so its children are judged */
	activated(&r, 4);
	assert_int_equal(r.s.live, 0);
	EV(&r, .kind = RO_SUBMITTED, .version = 5, .parent = 1);
	assert_int_equal(state_of(&r, 5), VS_CANDIDATE);
	rollout_done(&r);
}

static void three_rejections_rebase(void **state)
{
	struct rollout r;

	(void)state;
	live(&r, 1);
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
	live(&r, 2);
	EV(&r, .kind = RO_SUBMITTED, .version = 3, .parent = 2);
	promoted(&r, 1, 3);
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
	live(&r, 3);
	for (uint32_t left = 3; left > 0; left--) {
		EV(&r, .kind = RO_ROLLBACK);
		assert_int_equal(find(RO_DO_ACTIVATE)->version, left - 1);
		assert_true(find(RO_DO_ACTIVATE)->all);
		assert_false(find(RO_DO_ACTIVATE)->checked);
		activated(&r, 10 - left);
		assert_int_equal(r.s.live, left - 1);
		assert_int_equal(state_of(&r, left), VS_QUARANTINED);
		assert_string_equal(verdict_of(left)->verdict, "quarantined");
		assert_int_equal(find(RO_DO_ANSWER)->version, left);
		assert_null(find(RO_DO_ANSWER)->error);
		assert_ptr_equal(find(RO_DO_ANSWER), &acts.a[0]); /* before the state is written and anything is told */
		if (left > 1)
			assert_int_equal(find(RO_DO_REBASE)->version, left - 1);
	}
	EV(&r, .kind = RO_ROLLBACK); /* nothing left: done, nothing quarantined */
	activated(&r, 10);
	assert_null(find(RO_DO_ANSWER)->error);
	assert_int_equal(find(RO_DO_ANSWER)->version, 0);
	/* it was a mistake: an operator may take one out of quarantine, nobody else */
	promoted(&r, 3, 11);
	rollout_done(&r);
}

static void rollback_cancels_a_load(void **state)
{
	struct rollout r;
	uint32_t load;

	(void)state;
	live(&r, 2);
	now += 1000;
	passes(&r, 3);
	load = find(RO_DO_LOAD)->id;
	EV(&r, .kind = RO_ROLLBACK);
	assert_int_equal(find(RO_DO_ACTIVATE)->version, 1);
	EV(&r, .kind = RO_LOADED, .id = load, .version = 3, .result = RO_OK); /* late */
	assert_int_equal(find(RO_DO_UNLOAD)->version, 3);
	assert_null(find(RO_DO_ACTIVATE));
	activated(&r, 3);
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
	live(&r, 2);
	EV(&r, .kind = RO_SUBMITTED, .version = 3, .parent = 2);
	EV(&r, .kind = RO_PROMOTE, .version = 3, .expected = -1);
	loaded(&r, 3);
	old = find(RO_DO_ACTIVATE)->id;
	EV(&r, .kind = RO_ROLLBACK);
	EV(&r, .kind = RO_ACTIVATED, .id = old, .result = RO_OK, .generation = 3); /* 3 was live for a moment */
	assert_null(find(RO_DO_ANSWER));
	assert_int_equal(r.s.live, 2);
	activated(&r, 4);
	assert_int_equal(r.s.live, 1);
	assert_int_equal(r.s.generation, 4);
	rollout_done(&r);
}

static void rollback_cancels_an_operator(void **state)
{
	struct rollout r;

	(void)state;
	live(&r, 2);
	EV(&r, .kind = RO_PROMOTE, .version = 1, .expected = -1);
	EV(&r, .kind = RO_ROLLBACK);
	assert_int_equal(find(RO_DO_ANSWER)->verb, RO_PROMOTE);
	assert_string_equal(find(RO_DO_ANSWER)->error, "io.redraft.Busy");
	EV(&r, .kind = RO_ROLLBACK); /* impatient: the same rollback */
	assert_null(find(RO_DO_ACTIVATE));
	activated(&r, 3);
	assert_int_equal(r.s.live, 1);
	rollout_done(&r);
}

/* not resident: load it; that fails too: no draft at all, then it is looked for below */
static void rollback_finds_a_way(void **state)
{
	struct rollout r;

	(void)state;
	live(&r, 2);
	EV(&r, .kind = RO_ROLLBACK);
	EV(&r, .kind = RO_ACTIVATED, .id = r.op.id, .result = RO_BAD, .text = "not loaded");
	assert_int_equal(find(RO_DO_LOAD)->version, 1);
	EV(&r, .kind = RO_LOADED, .id = r.op.id, .version = 1, .result = RO_MISMATCH, .text = "damaged");
	assert_int_equal(find(RO_DO_ACTIVATE)->version, 0);
	activated(&r, 3);
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
	live(&r, 2);
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
	passes(&r, 2);
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
	live(&r, 1);
	now += 1000;
	passes(&r, 2);
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

static void a_pause_judges_nothing(void **state)
{
	struct rollout r;

	(void)state;
	live(&r, 2);
	EV(&r, .kind = RO_PAUSE, .text = "the learner is being moved");
	assert_null(find(RO_DO_ANSWER)->error);
	EV(&r, .kind = RO_SUBMITTED, .version = 3, .parent = 2);
	assert_null(find(RO_DO_EVALUATE));
	now += 1000;
	EV(&r, .kind = RO_TICK);
	assert_null(find(RO_DO_EVALUATE));
	assert_int_equal(state_of(&r, 3), VS_CANDIDATE);
	EV(&r, .kind = RO_ROLLBACK); /* works all the same */
	assert_int_equal(find(RO_DO_ACTIVATE)->version, 1);
	activated(&r, 9);
	assert_int_equal(r.s.live, 1);
	EV(&r, .kind = RO_SUBMITTED, .version = 4, .parent = 1);
	EV(&r, .kind = RO_RESUME);
	assert_int_equal(find(RO_DO_EVALUATE)->version, 4);
	assert_false(r.s.paused);
	rollout_done(&r);
}

static void an_override_is_adopted(void **state)
{
	struct rollout r;

	(void)state;
	live(&r, 2);
	EV(&r, .kind = RO_SERVER, .version = 1, .generation = 2, .by_operator = true); /* equal generation: theirs wins */
	assert_int_equal(r.s.live, 1);
	assert_int_equal(state_of(&r, 2), VS_QUARANTINED);
	assert_true(r.s.hold);
	assert_int_equal(find(RO_DO_REBASE)->version, 1);
	assert_string_equal(verdict_of(2)->verdict, "quarantined");
	passes(&r, 3);
	now += 1000;
	EV(&r, .kind = RO_TICK);
	assert_null(find(RO_DO_LOAD)); /* held */
	EV(&r, .kind = RO_UNPIN);
	assert_int_equal(find(RO_DO_LOAD)->version, 3);
	rollout_done(&r);
}

/* Killed between the server's yes and our journal; before we are back, an operator rolls the server back to where our journal still is. */
static void an_override_of_what_the_journal_missed(void **state)
{
	struct rollout r;

	(void)state;
	live(&r, 2);
	passes(&r, 3);
	EV(&r, .kind = RO_SERVER, .version = 2, .generation = 2, .by_operator = true); /* as we know it: nothing was moved */
	assert_int_equal(state_of(&r, 3), VS_GATED);
	EV(&r, .kind = RO_SERVER, .version = 2, .generation = 4, .by_operator = true); /* to 3 by us, and back */
	assert_int_equal(r.s.live, 2);
	assert_int_equal(r.s.generation, 4);
	assert_int_equal(state_of(&r, 3), VS_QUARANTINED);
	assert_string_equal(verdict_of(3)->verdict, "quarantined");
	assert_int_equal(find(RO_DO_REBASE)->version, 2);
	assert_true(r.s.hold);
	rollout_done(&r);
}

/* A server that tells what it was moved back from: just that is quarantined, however often it was and whoever did it. */
static void what_was_left_while_we_were_away(void **state)
{
	static const uint32_t both[] = {3, 2}, four[] = {4}, two[] = {2};
	struct rollout r;

	(void)state;
	live(&r, 3); /* an operator, twice */
	EV(&r, .kind = RO_SERVER, .version = 1, .generation = 5, .by_operator = true, .left = both, .n_left = 2);
	assert_int_equal(r.s.live, 1);
	assert_int_equal(state_of(&r, 3), VS_QUARANTINED);
	assert_int_equal(state_of(&r, 2), VS_QUARANTINED);
	assert_true(r.s.hold);
	EV(&r, .kind = RO_RELEASE);
	EV(&r, .kind = RO_SERVER, .version = 1, .generation = 5, .by_operator = true, .left = both, .n_left = 2); /* known by now */
	assert_false(r.s.hold);
	rollout_done(&r);
	live(&r, 2); /* an operator promoted an older one, and we died before it was written: nobody went back */
	EV(&r, .kind = RO_SERVER, .version = 1, .generation = 3, .by_operator = true, .left = both, .n_left = 0);
	assert_int_equal(r.s.live, 1);
	assert_int_equal(state_of(&r, 2), VS_PREVIOUS);
	assert_false(r.s.hold);
	rollout_done(&r);
	live(&r, 2); /* a rollback of a server that could not load what should be live: nothing was left, and yet somebody said stop */
	EV(&r, .kind = RO_SERVER, .version = 0, .generation = 3, .by_operator = true, .left = both, .n_left = 0);
	assert_int_equal(r.s.live, 0);
	assert_true(r.s.hold);
	rollout_done(&r);
	live(&r, 2); /* we went back by ourselves (a collapse), and died before it was written: it does not come back */
	EV(&r, .kind = RO_SERVER, .version = 1, .generation = 3, .by_daemon = true, .left = two, .n_left = 1);
	assert_int_equal(r.s.live, 1);
	assert_int_equal(state_of(&r, 2), VS_QUARANTINED);
	assert_null(find(RO_DO_LOAD));
	assert_int_equal(find(RO_DO_REBASE)->version, 1);
	assert_false(r.s.hold);
	rollout_done(&r);
	live(&r, 2); /* the same, to no draft */
	EV(&r, .kind = RO_SERVER, .version = 0, .generation = 3, .by_daemon = true, .left = two, .n_left = 1);
	assert_int_equal(r.s.live, 0);
	assert_int_equal(state_of(&r, 2), VS_QUARANTINED);
	rollout_done(&r);
	live(&r, 2); /* 3 only waits; what went live unrecorded and was left is another one, unknown here */
	passes(&r, 3);
	EV(&r, .kind = RO_SERVER, .version = 2, .generation = 4, .by_operator = true, .left = four, .n_left = 1);
	assert_int_equal(state_of(&r, 3), VS_GATED);
	assert_int_equal(r.s.generation, 4);
	EV(&r, .kind = RO_SERVER, .version = 2, .generation = 6, .by_operator = true, .left = (uint32_t[]){4, 3}, .n_left = 2); /* and now 3 did */
	assert_int_equal(state_of(&r, 3), VS_QUARANTINED);
	assert_true(r.s.hold);
	rollout_done(&r);
}

/* We died between our journal and telling the learner: it is told when it is there, once, and only when it needs to be. */
static void a_learner_that_missed_a_rollback_is_told(void **state)
{
	struct rollout r;

	(void)state;
	live(&r, 2);
	EV(&r, .kind = RO_ROLLBACK);
	activated(&r, 9);
	r.home_said = false; /* another life of ours begins */
	r.learn_up = r.greeted = false;
	EV(&r, .kind = RO_LEARNER);
	assert_null(find(RO_DO_REBASE)); /* it does not know itself yet */
	EV(&r, .kind = RO_LEARNER, .parent = 2);
	assert_int_equal(find(RO_DO_REBASE)->version, 1);
	assert_string_equal(verdict_of(2)->verdict, "quarantined");
	EV(&r, .kind = RO_LEARNER, .parent = 2); /* and has not obeyed yet */
	assert_null(find(RO_DO_REBASE));
	r.home_said = false;
	EV(&r, .kind = RO_LEARNER, .parent = 1);
	assert_null(find(RO_DO_REBASE));
	EV(&r, .kind = RO_LEARNER, .parent = 2); /* nor later: it learns on from there by its own choice */
	assert_null(find(RO_DO_REBASE));
	rollout_done(&r);
}

/* What an operator's rollback with nothing live leaves is nothing: a first version that waits is not taken for it. */
static void a_rollback_of_nothing_blames_nobody(void **state)
{
	struct rollout r;

	(void)state;
	start(&r);
	EV(&r, .kind = RO_LEARNER);
	EV(&r, .kind = RO_SUBMITTED, .version = 1);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_OK, .text = "pays");
	assert_int_equal(state_of(&r, 1), VS_GATED);
	EV(&r, .kind = RO_SERVER, .version = 0, .generation = 1, .by_operator = true);
	assert_int_equal(state_of(&r, 1), VS_GATED);
	assert_int_equal(r.s.generation, 1);
	rollout_done(&r);
}

/* State files that add up for a reader and do not for a rollback: two live ones, a live one that is refused, previous the same as live. */
static void a_state_edited_by_hand_agrees_with_itself(void **state)
{
	static const struct version_entry lists[][4] = {
		{{.number = 1, .state = VS_LIVE}, {.number = 2, .state = VS_RETIRED}, {.number = 3, .state = VS_LIVE}, {.number = 4, .state = VS_CANARY}},
		{{.number = 1, .state = VS_PREVIOUS}, {.number = 2, .state = VS_RETIRED}, {.number = 3, .state = VS_QUARANTINED}, {.number = 4, .state = VS_CANDIDATE}},
		{{.number = 1, .state = VS_REJECTED}, {.number = 2, .state = VS_QUARANTINED}, {.number = 3, .state = VS_CANDIDATE}, {.number = 4, .state = VS_PREVIOUS}},
	};
	static const struct { uint32_t live, previous, pin, canary; uint32_t is_live, is_previous; enum version_state states[4]; } cases[] = {
		{3, 3, 1, 3, 3, 2, {VS_RETIRED, VS_PREVIOUS, VS_LIVE, VS_GATED}},
		{3, 0, 3, 0, 2, 1, {VS_PREVIOUS, VS_LIVE, VS_QUARANTINED, VS_CANDIDATE}},
		{3, 2, 0, 0, 3, 0, {VS_REJECTED, VS_QUARANTINED, VS_LIVE, VS_RETIRED}},
	};

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct store_state s = {.next_number = 5, .generation = 7, .live = cases[i].live, .previous = cases[i].previous, .pin = cases[i].pin, .n_versions = 4};
		struct rollout r;

		s.canary.version = cases[i].canary;
		s.versions = calloc(4, sizeof *s.versions);
		memcpy(s.versions, lists[i], sizeof lists[i]);
		rollout_init(&r, &s, &rules, 0);
		assert_int_equal(r.s.live, cases[i].is_live);
		assert_int_equal(r.s.previous, cases[i].is_previous);
		assert_int_equal(r.s.pin, 0);
		assert_int_equal(r.s.canary.version, 0);
		for (uint32_t v = 1; v <= 4; v++)
			assert_int_equal(state_of(&r, v), cases[i].states[v - 1]);
		rollout_done(&r);
	}
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
	live(&r, 1);
	EV(&r, .kind = RO_SERVER_GONE);
	EV(&r, .kind = RO_SERVER, .version = 0, .generation = 0);
	assert_int_equal(find(RO_DO_LOAD)->version, 1);
	loaded(&r, 1);
	assert_false(find(RO_DO_ACTIVATE)->checked);
	activated(&r, 1);
	assert_int_equal(r.serve_live, 1);
	assert_null(verdict_of(1));
	rollout_done(&r);
}

static void newer_candidate_wins(void **state)
{
	struct rollout r;
	uint32_t old;

	(void)state;
	live(&r, 1);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(plain_way),
		cmocka_unit_test(other_rules_from_now_on),
		cmocka_unit_test(a_pause_judges_nothing),
		cmocka_unit_test(the_interval_holds),
		cmocka_unit_test(undecided_then_superseded),
		cmocka_unit_test(undecided_on_all_there_is),
		cmocka_unit_test(a_child_of_what_was_rolled_back),
		cmocka_unit_test(three_rejections_rebase),
		cmocka_unit_test(live_changed_meanwhile),
		cmocka_unit_test(wrong_weights_are_rejected),
		cmocka_unit_test(rollback_goes_down),
		cmocka_unit_test(rollback_cancels_a_load),
		cmocka_unit_test(a_stale_activation_is_no_answer),
		cmocka_unit_test(rollback_cancels_an_operator),
		cmocka_unit_test(rollback_finds_a_way),
		cmocka_unit_test(rollback_without_server),
		cmocka_unit_test(pin_holds_and_unpin_frees),
		cmocka_unit_test(hold_keeps_and_release_promotes),
		cmocka_unit_test(promote_is_checked),
		cmocka_unit_test(an_override_is_adopted), cmocka_unit_test(an_override_of_what_the_journal_missed),
		cmocka_unit_test(what_was_left_while_we_were_away), cmocka_unit_test(a_rollback_of_nothing_blames_nobody),
		cmocka_unit_test(a_learner_that_missed_a_rollback_is_told),
		cmocka_unit_test(a_state_edited_by_hand_agrees_with_itself),
		cmocka_unit_test(our_own_switch_is_recognised),
		cmocka_unit_test(lost_server_is_brought_back),
		cmocka_unit_test(newer_candidate_wins),
		cmocka_unit_test(learner_that_missed_it_is_told),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
