/* A fleet: a leader's word survives the record and nothing else passes for one; a follower goes where its leader is, past gate and
 * canary, back with it at once, and stays where its own operator held it. (Several real daemons: tests/system/test_fleet.py.)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "schemas/fleet.h"
#include "tests/unit/daemon/rollout_drive.h"

#define HASH "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static void a_word_and_what_is_none(void **state)
{
	const struct fleet_word w = {.target_fp = HASH, .epoch = 7, .run = "r", .host = "h", .generation = 3, .live = 4, .weights_sha = HASH};
	static const char *const none[] = {
		"", "{}", "null", "[1]", "junk", "{\"schema\":2}",
		"{\"schema\":1,\"target_fp\":\"" HASH "\",\"epoch\":0,\"run\":\"r\",\"host\":\"h\",\"generation\":1,\"live\":0,\"weights_sha\":\"\"}",
		"{\"schema\":1,\"target_fp\":\"" HASH "\",\"epoch\":1,\"run\":\"\",\"host\":\"h\",\"generation\":1,\"live\":0,\"weights_sha\":\"\"}",
		"{\"schema\":1,\"target_fp\":\"" HASH "\",\"epoch\":1,\"run\":\"r\",\"host\":\"h\",\"generation\":1,\"live\":3,\"weights_sha\":\"\"}",
		"{\"schema\":1,\"target_fp\":\"" HASH "\",\"epoch\":1,\"run\":\"r\",\"host\":\"h\",\"generation\":1,\"live\":0,\"weights_sha\":\"" HASH "\"}",
		"{\"schema\":1,\"target_fp\":\"" HASH "\",\"epoch\":1,\"run\":\"r\",\"host\":\"h\",\"generation\":1,\"live\":-3,\"weights_sha\":\"" HASH "\"}",
		"{\"schema\":1,\"target_fp\":\"../" HASH "\",\"epoch\":1,\"run\":\"r\",\"host\":\"h\",\"generation\":1,\"live\":0,\"weights_sha\":\"\"}",
		"{\"schema\":1,\"target_fp\":\"" HASH "\",\"epoch\":1,\"epoch\":2,\"run\":\"r\",\"host\":\"h\",\"generation\":1,\"live\":0,\"weights_sha\":\"\"}",
		/* what is not said is not 0 */
		"{\"schema\":1,\"target_fp\":\"" HASH "\",\"epoch\":1,\"run\":\"r\",\"host\":\"h\",\"generation\":1,\"weights_sha\":\"\"}",
		"{\"schema\":1,\"target_fp\":\"" HASH "\",\"epoch\":1,\"run\":\"r\",\"host\":\"h\",\"generation\":1,\"live\":\"4\",\"weights_sha\":\"\"}",
		"{\"schema\":1,\"target_fp\":\"" HASH "\",\"epoch\":1,\"run\":\"r\",\"host\":\"h\",\"live\":0,\"weights_sha\":\"\"}",
	};
	struct fleet_word back;
	struct errtext e;
	char text[1024];

	(void)state;
	assert_int_equal(fleet_word_encode(&w, text, sizeof text), 0);
	assert_int_equal(fleet_word_decode(text, strlen(text), &back, &e), 0);
	assert_string_equal(back.target_fp, HASH);
	assert_string_equal(back.weights_sha, HASH);
	assert_true(back.epoch == 7 && back.live == 4 && back.generation == 3 && !strcmp(back.run, "r") && !strcmp(back.host, "h"));
	assert_int_equal(fleet_word_encode(&w, text, 20), -ENOMEM);
	for (size_t i = 0; i < sizeof none / sizeof *none; i++)
		if (fleet_word_decode(none[i], strlen(none[i]), &back, &e) != -EINVAL)
			fail_msg("taken for a word: %s", none[i]);
	assert_int_equal(back.epoch, 7); /* untouched */
}

static void follow_to(struct rollout *r, uint32_t version)
{
	EV(r, .kind = RO_FOLLOW, .version = version, .text = "leader");
}

/* The server does what it was asked for last. */
static void server_does(struct rollout *r, bool all)
{
	if (r->op.phase == RO_LOADING)
		loaded(r, r->op.version);
	assert_int_equal(r->op.phase, RO_ACTIVATING);
	assert_non_null(find(RO_DO_ACTIVATE));
	assert_int_equal(find(RO_DO_ACTIVATE)->all, all);
	activated(r, r->serve_generation + 1);
	assert_int_equal(r->op.phase, RO_IDLE);
}

static void a_follower_goes_where_its_leader_is(void **state)
{
	struct rollout_rules by = canary_rules;
	struct rollout r;

	(void)state;
	by.follows = true;
	start_by(&r, &by);
	follow_to(&r, 5); /* not there, no server */
	assert_int_equal(r.op.phase, RO_IDLE);
	up(&r);
	EV(&r, .kind = RO_SUBMITTED, .version = 5);
	assert_null(find(RO_DO_EVALUATE)); /* also where there is a learner: it is another's to judge */
	follow_to(&r, 5);
	server_does(&r, false); /* no gate, no canary */
	assert_int_equal(r.s.live, 5);
	EV(&r, .kind = RO_SUBMITTED, .version = 8, .parent = 5);
	follow_to(&r, 8);
	server_does(&r, false);
	assert_int_equal(r.s.previous, 5);
	follow_to(&r, 8);
	assert_int_equal(r.op.phase, RO_IDLE); /* it is there */
	EV(&r, .kind = RO_SUBMITTED, .version = 3); /* older than any here: the leader went far back */
	assert_int_equal(r.s.versions[0].number, 3);
	assert_int_equal(r.s.next_number, 9);
	follow_to(&r, 3);
	server_does(&r, true);
	assert_int_equal(r.s.live, 3);
	assert_int_equal(state_of(&r, 8), VS_QUARANTINED);
	assert_int_equal(state_of(&r, 5), VS_RETIRED);
	follow_to(&r, 0);
	server_does(&r, true);
	assert_int_equal(r.s.live, 0);
	assert_int_equal(state_of(&r, 3), VS_QUARANTINED);
	rollout_done(&r);
}

static void what_is_said_here_holds(void **state)
{
	struct rollout_rules by = rules;
	struct rollout r;

	(void)state;
	by.follows = true;
	start_by(&r, &by);
	EV(&r, .kind = RO_SERVER);
	for (uint32_t n = 1; n <= 2; n++) {
		EV(&r, .kind = RO_SUBMITTED, .version = n, .parent = n - 1);
		follow_to(&r, n);
		server_does(&r, false);
	}
	EV(&r, .kind = RO_ROLLBACK, .text = "operator");
	server_does(&r, true);
	assert_int_equal(r.s.live, 1);
	assert_true(r.s.hold);
	follow_to(&r, 2);
	assert_int_equal(r.op.phase, RO_IDLE);
	EV(&r, .kind = RO_PROMOTE, .version = 2, .expected = -1); /* theirs too */
	server_does(&r, false);
	assert_true(r.s.hold);
	EV(&r, .kind = RO_RELEASE);
	follow_to(&r, 1);
	server_does(&r, true);
	EV(&r, .kind = RO_PIN);
	follow_to(&r, 2);
	assert_int_equal(r.op.phase, RO_IDLE);
	EV(&r, .kind = RO_UNPIN);
	follow_to(&r, 2);
	EV(&r, .kind = RO_LOADED, .id = r.op.id, .version = 2, .result = RO_MISMATCH, .text = "other weights");
	assert_int_equal(r.op.phase, RO_IDLE);
	assert_int_equal(r.s.live, 1);
	follow_to(&r, 2);
	assert_int_equal(r.op.phase, RO_IDLE); /* not at once again */
	rollout_done(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(a_word_and_what_is_none), cmocka_unit_test(a_follower_goes_where_its_leader_is),
					   cmocka_unit_test(what_is_said_here_holds)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
