/* Streams and their alarm: a fall is found and named, a recovery and a new version end it, quiet traffic
 * stays quiet, and what is no evidence is passed over. How deep and wide the server drafts is no drift: neither is
 * an alarm raised by a change of shape, nor is a fall hidden by one. What is decay, served against replayed, case by case. tests/bench/drift_sim.c measures how often and how soon.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "daemon/drift.h"
#include "schemas/round.h"

static uint64_t rng;

static double uniform(void)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (double)(rng >> 11) / 9007199254740992.0;
}

static struct round_record request(const char *domain, int bucket, uint32_t version, double p)
{
	struct round_record r = {.version = version, .context_bucket = bucket, .k = 3, .rounds = 20};

	(void)snprintf(r.domain, sizeof r.domain, "%s", domain);
	p += 0.2 * (uniform() - 0.5);
	for (int i = 0; i < 20; i++) {
		bool on = true;
		for (int j = 0; j < 3; j++) {
			r.proposed[j]++;
			on = on && uniform() < p;
			r.accepted[j] += on;
		}
	}
	return r;
}

/* n requests; the number of the first that raised (want 1) or ended (-1) an alarm, or -1 */
static int feed(struct drift *d, const char *domain, int bucket, uint32_t version, double p, int n, int want, char *text)
{
	for (int i = 0; i < n; i++) {
		struct round_record r = request(domain, bucket, version, p);
		int what = drift_take(d, &r, text);

		if (what == want)
			return i;
		assert_int_equal(what, 0);
	}
	return -1;
}

static struct drift *fresh(void)
{
	struct drift *d = NULL;

	rng = 12345;
	assert_int_equal(drift_new(&drift_defaults, &d), 0);
	return d;
}

static void found_named_and_over(void **state)
{
	struct drift *d = fresh();
	char text[DRIFT_TEXT] = "";
	int at;

	(void)state;
	assert_int_equal(feed(d, "tools", 1, 4, 0.5, 3000, 1, text), -1);
	assert_int_equal(feed(d, "code", 1, 4, 0.5, 4000, 1, text), -1);
	assert_int_equal(drift_level(d), 0);
	at = feed(d, "tools", 1, 4, 0.35, 400, 1, text);
	print_message("found after %d requests: %s\n", at, text);
	assert_true(at > 10 && at < 100);
	assert_non_null(strstr(text, "tools"));
	assert_non_null(strstr(text, "version 4"));
	assert_int_equal(drift_level(d), 1);
	assert_int_equal(feed(d, "tools", 1, 4, 0.35, 500, -1, text), -1); /* still low: one alarm, no second */
	at = feed(d, "tools", 1, 4, 0.5, 400, -1, text);
	assert_true(at >= 0 && at <= DRIFT_RECENT);
	assert_int_equal(drift_level(d), 0);
	at = feed(d, "tools", 1, 4, 0.35, 400, 1, text); /* and again */
	assert_true(at > 10 && at < 100);
	at = feed(d, "code", 1, 4, 0.3, 400, 1, text);
	assert_true(at > 5 && at < 100);
	assert_int_equal(drift_level(d), 3); /* all there is */
	drift_free(d);
}

static void a_new_version_starts_anew(void **state)
{
	struct drift *d = fresh();
	char text[DRIFT_TEXT] = "";

	(void)state;
	assert_int_equal(feed(d, "chat", 2, 7, 0.6, 1000, 1, text), -1);
	assert_true(feed(d, "chat", 2, 7, 0.3, 200, 1, text) > 0);
	assert_int_equal(feed(d, "chat", 2, 8, 0.3, 1, -1, text), 0);
	assert_non_null(strstr(text, "version 8"));
	assert_int_equal(drift_level(d), 0);
	assert_int_equal(feed(d, "chat", 2, 8, 0.3, 2000, 1, text), -1); /* low, but it never was higher */
	for (int i = 0; i < 40; i++) { /* the old one's last requests, between the new one's */
		assert_int_equal(feed(d, "chat", 2, 7, 0.05, 15, 1, text), -1);
		assert_int_equal(feed(d, "chat", 2, 8, 0.3, 1, 1, text), -1);
	}
	json_t *s = drift_streams(d);
	assert_int_equal(json_array_size(s), 1);
	assert_int_equal(json_integer_value(json_object_get(json_array_get(s, 0), "version")), 8);
	json_decref(s);
	assert_int_equal(feed(d, "chat", 2, 7, 0.6, 1000, 1, text), -1); /* rolled back: 7 is watched again */
	s = drift_streams(d);
	assert_int_equal(json_integer_value(json_object_get(json_array_get(s, 0), "version")), 7);
	json_decref(s);
	assert_true(feed(d, "chat", 2, 7, 0.3, 200, 1, text) > 0);
	drift_free(d);
}

static void small_falls_and_no_evidence(void **state)
{
	struct drift *d = fresh();
	char text[DRIFT_TEXT] = "";
	struct round_record plain = request("tools", 0, 0, 0.5), silent = {.version = 3, .domain = "tools", .k = 3, .rounds = 9};

	(void)state;
	for (int i = 0; i < 500; i++) {
		assert_int_equal(drift_take(d, &plain, text), 0);
		assert_int_equal(drift_take(d, &silent, text), 0);
	}
	json_t *s = drift_streams(d);
	assert_int_equal(json_array_size(s), 0);
	json_decref(s);
	assert_int_equal(feed(d, "tools", 0, 3, 0.5, 2000, 1, text), -1);
	assert_int_equal(feed(d, "tools", 0, 3, 0.49, 4000, 1, text), -1);
	drift_free(d);
}

/* As draft.mode auto would have it: chains of `depth`, and among 16 rounds 15 trees, whose branches make them longer. */
static struct round_record shaped(double p, int depth, bool trees)
{
	struct round_record r = {.version = 5, .domain = "auto", .k = 6, .rounds = 32};

	p += 0.2 * (uniform() - 0.5);
	for (int i = 0; i < 32; i++) {
		bool on = true, tree = trees && i % 16;
		for (int j = 0; j < (tree ? 6 : depth); j++) {
			on = on && uniform() < (tree ? 1 - (1 - p) * (1 - p) : p);
			r.proposed[j]++;
			r.accepted[j] += on;
			r.tree_proposed[j] += tree;
			r.tree_accepted[j] += tree && on;
		}
	}
	return r;
}

static int feed_shape(struct drift *d, double p, int depth, bool trees, int n, char *text)
{
	for (int i = 0; i < n; i++) {
		struct round_record r = shaped(p, depth, trees);

		if (drift_take(d, &r, text))
			return i;
	}
	return -1;
}

static void a_change_of_shape_is_no_drift(void **state)
{
	static const struct { int depth; bool trees; } to[] = {{1, false}, {2, false}, {5, true}, {2, true}};
	char text[DRIFT_TEXT] = "";

	(void)state;
	for (size_t i = 0; i < sizeof to / sizeof *to; i++)
		for (int back = 0; back < 2; back++) {
			struct drift *d = fresh();
			int at;

			assert_int_equal(feed_shape(d, 0.5, back ? to[i].depth : 5, back && to[i].trees, 1500, text), -1);
			assert_int_equal(feed_shape(d, 0.5, back ? 5 : to[i].depth, !back && to[i].trees, 1500, text), -1);
			assert_int_equal(drift_level(d), 0);
			at = feed_shape(d, 0.3, back ? 5 : to[i].depth, !back && to[i].trees, 600, text); /* and a fall is one all the same */
			assert_in_range(at, 5, 500);
			drift_free(d);
		}
}

static void bounded(void **state)
{
	struct drift *d = fresh();
	char text[DRIFT_TEXT] = "", domain[16];
	struct buf b = BUF_INIT(1 << 20);

	(void)state;
	for (int i = 0; i < 300; i++) {
		(void)snprintf(domain, sizeof domain, "d%d", i);
		assert_int_equal(feed(d, domain, i % 8, 1, 0.5, 3, 1, text), -1);
	}
	json_t *s = drift_streams(d);
	assert_int_equal(json_array_size(s), DRIFT_STREAMS);
	json_decref(s);
	assert_int_equal(drift_print(d, &b), 0);
	assert_non_null(memmem(b.data, b.len, "redraft_drift_level 0", 21));
	buf_done(&b);
	drift_free(d);
}

static void drift_or_decay(void **state)
{
	static const struct { struct drift_compared c; bool decay; const char *why; } cases[] = {
		{{2.500, 2.501, 0.002, 0.004, 0.002, 64}, false, "ties that rounding decided"},
		{{2.5, 2.5, 0, 0, 0, 64}, false, "an engine that does what the weights say"},
		{{2.0, 2.5, 0.1, 0.3, 0.05, 64}, true, "fewer accepted"},
		{{2.5, 2.0, 0.1, 0.3, 0.05, 64}, true, "more than the weights can explain"},
		{{2.0, 2.5, 0.2, 0.2, 0.05, 64}, false, "neither is sure"},
		{{2.49, 2.50, 0.001, 0.02, 0.003, 64}, false, "sure, and too small to matter"},
		{{3.054, 2.881, 0.13, 0.177, 0.03, 64}, true, "another draft of nearly the same quality: right elsewhere"},
		{{2.5, 2.5, 0.1, 0.06, 0.004, 64}, false, "not surely more than ties"},
		{{1.0, 2.5, 0.01, 0.9, 0.01, 15}, false, "too few"},
		{{1.0, 2.5, 0.01, 0.9, 0.01, 16}, true, "enough"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (drift_is_decay(&cases[i].c) != cases[i].decay)
			fail_msg("%s", cases[i].why);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(found_named_and_over),
		cmocka_unit_test(a_new_version_starts_anew),
		cmocka_unit_test(small_falls_and_no_evidence),
		cmocka_unit_test(a_change_of_shape_is_no_drift),
		cmocka_unit_test(drift_or_decay),
		cmocka_unit_test(bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
