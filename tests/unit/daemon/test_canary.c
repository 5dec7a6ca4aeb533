/* The canary's test: what it must call, what it must not, and what counts.
 *
 *  - harm of each sort is called by its name: fewer tokens a round, lost drafts, slower tokens, slower first tokens;
 *  - a version that is the same, better, or worse by less than the margin is let through, although it is looked at after
 *    every request; a hundred identical requests claim no certainty;
 *  - nobody is judged before 30 requests of both arms, parts after the first and other versions do not count;
 *  - `proven` asks for more than the absence of harm.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>
#include "daemon/canary.h"
#include "tests/bench/traffic.h"

struct arm { double p, round_ms, ttft_ms, lost; };
static const struct arm plain = {0.4, 45, 100, 0};
static char text[CANARY_TEXT];

static struct round_record one(const struct arm *a, uint32_t version)
{
	struct round_record r = {.version = version};
	double p = acceptance(0.4) * a->p / 0.4;

	request(&r, p, rounds_of_one(), a->round_ms);
	r.last = uniform() >= a->lost;
	r.ttft_ms = a->ttft_ms * exp(0.5 * normal());
	return r;
}

/* n requests of the canary against 3n of live; at the first harm, its place; else 0 and *ret the last outcome. */
static int run(const struct arm *on, int n, enum canary_outcome *ret)
{
	struct canary c;

	canary_start(&c, 8, 7);
	for (int i = 0; i < 4 * n; i++) {
		bool canary = i % 4 == 3;
		struct round_record r = one(canary ? on : &plain, canary ? 8 : 7);

		canary_take(&c, &r);
		*ret = canary_judge(&canary_defaults, &c, false, text);
		if (*ret == CANARY_HARM)
			return i / 4 + 1;
	}
	return 0;
}

static void harm_is_called_by_its_name(void **state)
{
	static const struct { struct arm arm; const char *word; } cases[] = {
		{{0.2, 45, 100, 0}, "tokens, "}, {{0.4, 45, 100, 0.4}, "lost their draft"}, {{0.4, 90, 100, 0}, "of its tokens took over"},
		{{0.4, 45, 400, 0}, "first tokens took over"},
	};
	enum canary_outcome out;

	(void)state;
	seed(3);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		int at = run(&cases[i].arm, 500, &out);

		assert_in_range(at, CANARY_LEAST, 200);
		if (!strstr(text, cases[i].word))
			fail_msg("'%s' does not say '%s'", text, cases[i].word);
		assert_non_null(strstr(text, "version 7"));
	}
}

static void no_harm_is_let_through(void **state)
{
	static const struct arm cases[] = {{0.4, 45, 100, 0}, {0.5, 45, 100, 0}, {0.4, 45, 100, 0.02}, {0.39, 46, 103, 0}};
	enum canary_outcome out;

	(void)state;
	seed(4);
	for (int k = 0; k < 20; k++) {
		if (run(&cases[k % 4], 300, &out))
			fail_msg("case %d: %s", k % 4, text);
		assert_int_equal(out, CANARY_ENOUGH);
		assert_non_null(strstr(text, "no harm seen"));
	}
}

/* 1 of 29 would be judged; equal requests have no spread of their own. */
static void few_and_equal_requests(void **state)
{
	struct round_record good = {.version = 7, .last = true, .rounds = 10, .k = 1, .proposed = {10}, .accepted = {10}}, bad = {.version = 8, .last = true, .rounds = 10, .k = 1};
	struct canary c;

	(void)state;
	canary_start(&c, 8, 7);
	for (int i = 0; i < CANARY_LEAST - 1; i++) {
		canary_take(&c, &good);
		canary_take(&c, &bad);
		assert_int_equal(canary_judge(&canary_defaults, &c, false, text), CANARY_GOES_ON);
	}
	canary_take(&c, &good);
	canary_take(&c, &bad);
	assert_int_equal(canary_judge(&canary_defaults, &c, false, text), CANARY_HARM); /* half of the tokens, sure by then */
	bad.accepted[0] = 9;
	bad.proposed[0] = 10;
	canary_start(&c, 8, 7);
	for (int i = 0; i < 40; i++) { /* 5 % fewer, always: forty are not enough to know */
		canary_take(&c, &good);
		canary_take(&c, &bad);
		assert_int_equal(canary_judge(&canary_defaults, &c, false, text), CANARY_GOES_ON);
	}
}

static void what_counts(void **state)
{
	struct round_record r = {.version = 8, .part = 1, .last = true, .rounds = 3, .k = 1};
	struct canary c;

	(void)state;
	canary_start(&c, 8, 7);
	canary_take(&c, &r);
	r.part = 0;
	r.version = 6;
	canary_take(&c, &r);
	assert_int_equal(c.arm[0].requests + c.arm[1].requests, 0);
	r.version = 7;
	canary_take(&c, &r);
	r.version = 8;
	r.rounds = 0; /* one token was all it wanted: nothing to say of a round */
	canary_take(&c, &r);
	assert_int_equal(c.arm[0].requests, 1);
	assert_int_equal(c.arm[1].requests, 1);
	assert_int_equal(c.arm[1].yield.n, 0);
	canary_start(&c, 0, 7); /* none runs */
	r.version = 0;
	canary_take(&c, &r);
	assert_int_equal(c.arm[0].requests + c.arm[1].requests, 0);
}

static void proven_asks_for_more(void **state)
{
	struct canary c;
	int n = 0;

	(void)state;
	seed(5);
	canary_start(&c, 8, 7);
	for (; n < 20000; n++) {
		struct round_record r = one(&plain, n % 2 ? 8 : 7);

		canary_take(&c, &r);
		if (canary_judge(&canary_defaults, &c, true, text) == CANARY_ENOUGH)
			break;
	}
	assert_in_range(n / 2, canary_defaults.requests + 100, 9000);
	assert_int_equal(canary_judge(&canary_defaults, &c, false, text), CANARY_ENOUGH);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(harm_is_called_by_its_name), cmocka_unit_test(no_harm_is_let_through),
					   cmocka_unit_test(few_and_equal_requests), cmocka_unit_test(what_counts), cmocka_unit_test(proven_asks_for_more)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
