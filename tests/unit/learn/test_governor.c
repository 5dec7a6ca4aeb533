/* The governor under a clock that the test turns: it stretches, pauses and resumes by serving's tail with hysteresis;
 * a tail that is not its fault does not starve it; without a server, or with nobody served, it holds nothing
 * back; by ratio it measures its base without us; memory makes steps smaller before it refuses; no gain lets it
 * sleep, drift wakes it; and it always says why. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>
#include "learn/governor.h"

enum { S = 1000000 };
static struct governor g;
static uint64_t now;
static struct governor_look look;

static void begin(struct governor_options o)
{
	o.least = o.least > 0 ? o.least : 0.1;
	o.max_rows = 1024;
	now = 1000ull * S;
	look = (struct governor_look){.there = true, .running = 1};
	governor_init(&g, &o, now);
}

/* n seconds at that time a round, 20 rounds a second, two tokens a round. */
static void serve(int n, double round_ms)
{
	for (int i = 0; i < n; i++) {
		now += S;
		look.rounds += 20;
		look.generated += 40;
		look.round_ms_p95 = round_ms;
		governor_saw(&g, now, &look, governor_may_step(&g, now));
	}
}

static enum governor_state state(void)
{
	char why[200] = "";
	governor_say(&g, now, why, sizeof why);
	assert_true(strlen(why) > 10);
	return governor_state(&g, now);
}

static bool says(const char *what)
{
	char why[200];
	governor_say(&g, now, why, sizeof why);
	return strstr(why, what) != NULL;
}

/* Two tokens a round: 60 ms a round are 30 a token. */
static void test_tail(void **unused)
{
	(void)unused;
	begin((struct governor_options){.tpot_p95_ms = 30});
	serve(10, 40);
	assert_int_equal(state(), GOVERNOR_FULL);
	serve(10, 58); /* 29: within, but not well under: nothing moves */
	assert_int_equal(state(), GOVERNOR_FULL);
	serve(4, 70); /* 35: over */
	assert_int_equal(state(), GOVERNOR_STRETCHED);
	assert_true(g.duty < 1 && says("35.0 ms"));
	double duty = g.duty;
	serve(1, 70); /* not before there are rounds that came after the change */
	assert_true(!(g.duty < duty));
	serve(4, 58); /* in between: it stays */
	assert_true(!(g.duty < duty) && !(g.duty > duty));
	serve(20, 70);
	assert_int_equal(state(), GOVERNOR_PAUSED);
	assert_false(governor_may_step(&g, now));
	assert_int_equal(g.pauses, 1);
	serve(4, 40); /* once is chance */
	assert_int_equal(state(), GOVERNOR_PAUSED);
	serve(4, 40);
	assert_int_equal(state(), GOVERNOR_STRETCHED);
	assert_true(!(g.duty > 0.2));
	serve(60, 40);
	assert_int_equal(state(), GOVERNOR_FULL);
}

/* Far over: no four seconds are waited for, nor for smaller steps down. */
static void test_far_over(void **unused)
{
	(void)unused;
	begin((struct governor_options){.tpot_p95_ms = 30});
	serve(8, 40);
	serve(1, 200);
	assert_int_equal(state(), GOVERNOR_PAUSED);
}

/* A pause that changes nothing: it is not us, and we go on a little; then the same again, never more than asked. */
static void test_not_us(void **unused)
{
	int paused = 0, learned = 0;
	(void)unused;
	begin((struct governor_options){.tpot_p95_ms = 30});
	for (int i = 0; i < 600; i++) {
		serve(1, 200);
		paused += state() == GOVERNOR_PAUSED;
		learned += state() == GOVERNOR_STRETCHED;
		if (state() == GOVERNOR_STRETCHED)
			assert_true(!(g.duty > 0.1));
	}
	assert_true(paused > 100 && learned > 300);
	assert_true(paused + learned >= 599);
}

/* Nobody there, nobody served, another life of the server: what was held back comes back. */
static void test_nobody(void **unused)
{
	(void)unused;
	begin((struct governor_options){.tpot_p95_ms = 30});
	serve(20, 200);
	assert_int_equal(state(), GOVERNOR_PAUSED);
	look.running = 0;
	for (int i = 0; i < 7; i++)
		governor_saw(&g, now += S, &look, false);
	assert_int_equal(state(), GOVERNOR_FULL);
	assert_true(says("nobody"));
	look.running = 1;
	serve(20, 200);
	assert_int_equal(state(), GOVERNOR_PAUSED);
	struct governor_look gone = {0};
	governor_saw(&g, now += S, &gone, false);
	assert_int_equal(state(), GOVERNOR_FULL);
	assert_true(says("does not answer"));
	serve(20, 200);
	look.rounds = look.generated = 0;
	governor_saw(&g, now += S, &look, false);
	assert_int_equal(state(), GOVERNOR_FULL);
	serve(20, 200);
	assert_int_equal(state(), GOVERNOR_PAUSED);
}

static void test_ratio(void **unused)
{
	(void)unused;
	begin((struct governor_options){.tpot_ratio = 1.5});
	serve(4, 80); /* 40 a token with us: no base yet, so a moment without us */
	assert_int_equal(state(), GOVERNOR_PAUSED);
	assert_true(says("measuring"));
	serve(4, 60); /* half of the rounds that this is of were still with us */
	assert_int_equal(state(), GOVERNOR_PAUSED);
	serve(4, 40);
	assert_true(governor_may_step(&g, now));
	assert_true(governor_objective(&g) > 29 && governor_objective(&g) < 31);
	serve(4, 50);
	assert_int_equal(state(), GOVERNOR_FULL);
	serve(4, 80);
	assert_int_equal(state(), GOVERNOR_STRETCHED);
	/* few rounds come while it measures: it does not wait for ever */
	begin((struct governor_options){.tpot_ratio = 1.5});
	serve(4, 80);
	int waited = 0;
	for (; !governor_may_step(&g, now) && waited < 100; waited++) {
		now += S;
		look.rounds += 3;
		look.generated += 3;
		governor_saw(&g, now, &look, false);
	}
	assert_true(waited < 40);
}

static void test_memory(void **unused)
{
	(void)unused;
	begin((struct governor_options){.memory_bytes = 100 << 20});
	governor_memory(&g, now += 10 * S, 90 << 20);
	assert_int_equal(g.rows, 1024);
	governor_memory(&g, now += 10 * S, 120 << 20);
	assert_int_equal(g.rows, 512);
	assert_true(governor_may_step(&g, now));
	assert_true(says("512 rows instead of 1024"));
	governor_memory(&g, now += 1 * S, 120 << 20); /* the change takes a moment to show */
	assert_int_equal(g.rows, 512);
	for (int i = 0; i < 4; i++)
		governor_memory(&g, now += 10 * S, 120 << 20);
	assert_int_equal(g.rows, 64);
	assert_int_equal(state(), GOVERNOR_REFUSED);
	assert_false(governor_may_step(&g, now));
	governor_memory(&g, now += 10 * S, 95 << 20);
	assert_int_equal(state(), GOVERNOR_REFUSED);
	governor_memory(&g, now += 10 * S, 60 << 20);
	assert_true(governor_may_step(&g, now));
	for (int i = 0; i < 50; i++)
		governor_memory(&g, now += 200ull * S, 60 << 20);
	assert_int_equal(g.rows, 1024);
	assert_int_equal(state(), GOVERNOR_FULL);
}

static void test_sleep(void **unused)
{
	(void)unused;
	begin((struct governor_options){.flat_after = 3, .flat_gain = 0.01, .nap_us = 100ull * S});
	governor_judged(&g, now, 0.001);
	governor_judged(&g, now, -0.2);
	governor_judged(&g, now, 0.05); /* that was one */
	governor_judged(&g, now, 0);
	governor_judged(&g, now, 0);
	assert_int_equal(state(), GOVERNOR_FULL);
	governor_judged(&g, now, 0);
	assert_int_equal(state(), GOVERNOR_ASLEEP);
	assert_true(says("3 candidates"));
	assert_true(governor_asleep(&g, now));
	now += 101ull * S;
	assert_int_equal(state(), GOVERNOR_FULL);
	governor_judged(&g, now, 0); /* still nothing: twice as long */
	now += 150ull * S;
	assert_int_equal(state(), GOVERNOR_ASLEEP);
	governor_drift(&g, 1);
	assert_int_equal(state(), GOVERNOR_FULL);
	for (int i = 0; i < 9; i++) /* nor does it sleep while there is drift */
		governor_judged(&g, now, 0);
	assert_int_equal(state(), GOVERNOR_FULL);
	governor_drift(&g, 0);
	for (int i = 0; i < 30; i++) {
		governor_judged(&g, now, 0);
		assert_true(g.asleep_until <= now + 1600ull * S);
	}
	assert_int_equal(state(), GOVERNOR_ASLEEP);
	struct governor_options awake = g.o;
	awake.flat_after = 0; /* it never does, from now on */
	governor_set(&g, &awake);
	assert_int_equal(state(), GOVERNOR_FULL);
	/* drift also dares more against the tail */
	begin((struct governor_options){.tpot_p95_ms = 30});
	governor_drift(&g, 2);
	serve(40, 70);
	assert_true(!(g.duty < 0.4));
	/* options under way: no objective, nothing held back */
	serve(40, 200);
	struct governor_options o = g.o;
	o.tpot_p95_ms = 0;
	governor_set(&g, &o);
	assert_int_equal(state(), GOVERNOR_FULL);
	assert_true(says("no objective"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_tail), cmocka_unit_test(test_far_over), cmocka_unit_test(test_not_us), cmocka_unit_test(test_nobody),
					   cmocka_unit_test(test_ratio), cmocka_unit_test(test_memory), cmocka_unit_test(test_sleep)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
