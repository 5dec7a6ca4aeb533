/* The rollout function, the canary and the policy: a canary grows, goes live, is taken back for harm; either side restarts, live
 * changes, the learner dies in the middle of it; freeze windows, maximum age; what was accepted against another live is judged
 * again; an alarm holds until release, a collapse goes back by itself.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "tests/unit/daemon/rollout_drive.h"

/* Live 1 (generation 1), version 2 on canary at the first step. */
static void on_canary(struct rollout *r)
{
	live_by(r, &canary_rules, 1);
	now += 1000;
	passes(r, 2);
	loaded(r, 2);
	canaried(r, RO_OK);
	assert_int_equal(state_of(r, 2), VS_CANARY);
}
#define JUDGED(r, res) EV(r, .kind = RO_JUDGED, .version = 2, .permille = (r)->s.canary.permille, .result = res, .text = "seen")

static void a_canary_grows_and_goes_live(void **state)
{
	struct rollout r;
	char salt[RO_SALT];

	(void)state;
	live_by(&r, &canary_rules, 1);
	now += 1000;
	passes(&r, 2);
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
	activated(&r, 2);
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

/* Harm that is seen while it is being made live: whatever comes of that, the server is brought back. */
static void harm_in_the_last_moment(void **state)
{
	struct rollout r;
	uint32_t old;

	(void)state;
	on_canary(&r);
	JUDGED(&r, RO_OK);
	canaried(&r, RO_OK);
	JUDGED(&r, RO_OK);
	old = find(RO_DO_ACTIVATE)->id;
	JUDGED(&r, RO_BAD);
	assert_int_equal(state_of(&r, 2), VS_QUARANTINED);
	EV(&r, .kind = RO_ACTIVATED, .id = old, .result = RO_OK, .generation = 2);
	assert_int_equal(r.s.live, 1);
	canaried(&r, RO_OK);
	EV(&r, .kind = RO_SERVER, .version = 2, .generation = 2, .by_daemon = true);
	assert_int_equal(state_of(&r, 2), VS_QUARANTINED);
	assert_int_equal(find(RO_DO_LOAD)->version, 1);
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
	live_by(&r, &canary_rules, 1);
	now += 1000;
	EV(&r, .kind = RO_SUBMITTED, .version = 2, .parent = 1);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_UNFIT, .text = "a tree");
	loaded(&r, 2);
	canaried(&r, RO_OK);
	for (int i = 0; i < 2; i++) { /* also when a hold has ended its canary and it begins anew */
		now += 4000;
		JUDGED(&r, RO_LATER);
		assert_int_equal(r.s.canary.permille, 50);
		if (i)
			break;
		EV(&r, .kind = RO_HOLD);
		canaried(&r, RO_OK);
		EV(&r, .kind = RO_RELEASE);
		loaded(&r, 2);
		canaried(&r, RO_OK);
		assert_int_equal(state_of(&r, 2), VS_CANARY);
	}
	JUDGED(&r, RO_OK);
	assert_int_equal(r.s.canary.permille, 250);
	rollout_done(&r);
	live(&r, 1);
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
	loaded(&r, 2);
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
	live_by(&r, &canary_rules, 2);
	now += 1000;
	passes(&r, 3);
	loaded(&r, 3);
	canaried(&r, RO_OK);
	promoted(&r, 1, 3);
	assert_int_equal(r.s.canary.version, 0);
	assert_int_equal(state_of(&r, 3), VS_CANDIDATE); /* judged anew, against what is live now */
	assert_int_equal(find(RO_DO_EVALUATE)->against, 1);
	rollout_done(&r);
	/* a rollback ends it too, and what was made from the version that is left does not come back */
	on_canary(&r);
	EV(&r, .kind = RO_ROLLBACK);
	activated(&r, 2);
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
	activated(&r, 2);
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
	live(&r, 1);
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
	live_by(&r, &canary_rules, 1);
	EV(&r, .kind = RO_HOLD);
	passes(&r, 2);
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
	live(&r, 2);
	EV(&r, .kind = RO_SUBMITTED, .version = 3, .parent = 2);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_OK, .text = "better than 2");
	assert_int_equal(state_of(&r, 3), VS_GATED);
	now += 1000;
	EV(&r, .kind = RO_TICK);
	assert_int_equal(r.op.phase, RO_LOADING);
	loaded(&r, 3);
	/* an operator moved the server while it was loaded: ours comes too late */
	EV(&r, .kind = RO_ACTIVATED, .id = r.op.id, .result = RO_GENERATION);
	EV(&r, .kind = RO_SERVER, .version = 1, .generation = 9, .by_operator = true);
	assert_int_equal(r.s.live, 1);
	assert_int_equal(state_of(&r, 3), VS_REJECTED); /* a child of what was left */
	EV(&r, .kind = RO_RELEASE);
	EV(&r, .kind = RO_SUBMITTED, .version = 4, .parent = 1);
	EV(&r, .kind = RO_EVALUATED, .id = r.eval.id, .result = RO_OK, .text = "better than 1");
	promoted(&r, 3, 10);
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
	live(&r, 2);
	EV(&r, .kind = RO_COLLAPSED, .version = 1, .text = "old news");
	assert_null(find(RO_DO_ACTIVATE));
	EV(&r, .kind = RO_PIN);
	EV(&r, .kind = RO_COLLAPSED, .version = 2, .text = "nothing is accepted");
	assert_null(find(RO_DO_ACTIVATE)); /* pinned by somebody who knows why */
	EV(&r, .kind = RO_UNPIN);
	EV(&r, .kind = RO_COLLAPSED, .version = 2, .text = "nothing is accepted");
	assert_int_equal(find(RO_DO_ACTIVATE)->version, 1);
	assert_false(find(RO_DO_ACTIVATE)->by_operator);
	activated(&r, 3);
	assert_int_equal(r.s.live, 1);
	assert_string_equal(rollout_find(&r, 2)->reason, "rolled back: nothing is accepted");
	assert_int_equal(find(RO_DO_REBASE)->version, 1);
	rollout_done(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_canary_grows_and_goes_live),
		cmocka_unit_test(harm_takes_it_back),
		cmocka_unit_test(harm_in_the_last_moment),
		cmocka_unit_test(few_requests_pass_by_time),
		cmocka_unit_test(not_replayable),
		cmocka_unit_test(server_restarts_in_mid_canary),
		cmocka_unit_test(a_canary_of_an_earlier_life_is_ended),
		cmocka_unit_test(daemon_restarts_in_mid_canary),
		cmocka_unit_test(live_changes_in_mid_canary),
		cmocka_unit_test(learner_dies_in_mid_canary),
		cmocka_unit_test(pin_hold_and_alarm_end_a_canary),
		cmocka_unit_test(a_freeze_window_lets_nothing_move),
		cmocka_unit_test(who_waits_too_long_is_superseded),
		cmocka_unit_test(gated_is_judged_again_when_live_changes),
		cmocka_unit_test(a_collapse_goes_back_by_itself),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
