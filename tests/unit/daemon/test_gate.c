/* The gate: under no difference it passes at most alpha of all candidates however
 * often it looks (simulated, skewed and lumpy differences included); a consistent gain is
 * seen within a demo's number of requests; bounds against values worked out by hand;
 * one worse domain vetoes; replies that are no use are refused.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "daemon/gate.h"

static const struct gate_rules rules = {.min_requests = 8, .alpha = 0.05, .clip = 0.5, .first_min_al = 1.2};
static uint64_t seed = 20260131;

static double uniform(void)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (double)(seed >> 11) / 9007199254740992.0;
}

static double normal(void)
{
	double u = uniform(), v = uniform();

	return sqrt(-2 * log(u + 1e-300)) * cos(6.283185307179586 * v);
}

static double clip1(double x)
{
	return x < -1 ? -1 : x > 1 ? 1 : x;
}

/* mean zero, within [-1, 1], each in its own unpleasant way */
static double null_draw(int kind)
{
	switch (kind) {
	case 0: return clip1(0.4 * normal());
	case 1: return uniform() < 0.5 ? -1 : 1;
	case 2: return uniform() < 0.1 ? 0.9 : -0.1; /* rare large gains, mostly small losses */
	case 3: return uniform() < 0.1 ? -0.9 : 0.1; /* the dangerous one: looks better until it does not */
	default: return uniform() < 0.9 ? 0 : uniform() < 0.5 ? -0.5 : 0.5;
	}
}

static void false_acceptances_are_rare(void **state)
{
	enum { RUNS = 1000, N = 80 };
	static const double alphas[] = {0.05, 0.2};
	double x[N];

	(void)state;
	for (int a = 0; a < 2; a++)
		for (int kind = 0; kind < 5; kind++) {
			int wrong = 0;

			for (int run = 0; run < RUNS; run++) {
				bool passed = false;

				for (int n = 0; n < N; n++) { /* looking after every single request */
					x[n] = null_draw(kind);
					if (n >= 4 && !passed)
						passed = gate_evidence(x, n + 1, 0) >= -log(alphas[a]);
				}
				wrong += passed;
			}
			print_message("alpha %.2f, kind %d: %.3f passed\n", alphas[a], kind, (double)wrong / RUNS);
			/* alpha and three standard errors */
			assert_true((double)wrong / RUNS <= alphas[a] + 3 * sqrt(alphas[a] * (1 - alphas[a]) / RUNS));
		}
}

/* How many requests until a gain of 0.1 with a spread of 0.15 (accept length) is seen? */
static void a_consistent_gain_is_seen(void **state)
{
	enum { RUNS = 300, N = 60 };
	double x[N];
	int needed[2] = {0, 0};
	static const double alphas[] = {0.05, 0.2};

	(void)state;
	for (int a = 0; a < 2; a++)
		for (int run = 0; run < RUNS; run++) {
			int n = 0;

			while (n < N) {
				x[n++] = clip1((0.1 + 0.15 * normal()) / 0.5);
				if (n >= 8 && gate_lower(x, n, alphas[a]) > 0)
					break;
			}
			needed[a] += n;
		}
	print_message("requests needed on average: %.1f at alpha 0.05, %.1f at 0.2\n", needed[0] / (double)RUNS,
		      needed[1] / (double)RUNS);
	assert_true(needed[0] / (double)RUNS < 30);
	assert_true(needed[1] / (double)RUNS < 18);
}

/* All x equal to 1: the capital for stake c is (1 - c + 2c/(1+m))^n; for n = 1 the average over
 * 0.3, 0.6, 0.9 is 1 - 0.6 + 1.2/(1+m). Set to 1/alpha = 2: m = 1.2/1.6 - 1 = -0.25. */
static void bounds_by_hand(void **state)
{
	double one[1] = {1}, many[400];

	(void)state;
	assert_true(fabs(gate_lower(one, 1, 0.5) - -0.25) < 1e-9);
	assert_true(gate_lower(one, 0, 0.05) < -1 + 1e-9);
	for (int i = 0; i < 400; i++)
		many[i] = 1;
	assert_true(gate_lower(many, 400, 0.05) > 0.95);
	for (int i = 0; i < 400; i++)
		many[i] = i % 2 ? 0.3 : 0.1;
	assert_true(gate_lower(many, 400, 0.05) > 0.1 && gate_lower(many, 400, 0.05) < 0.2);
	for (int i = 0; i < 400; i++)
		many[i] = -1;
	assert_true(gate_lower(many, 400, 0.05) < -0.99);
}

static void the_order_is_no_matter(void **state)
{
	double a[50], b[50];

	(void)state;
	for (int i = 0; i < 50; i++)
		a[i] = b[49 - i] = clip1(0.1 + 0.3 * normal());
	assert_true(fabs(gate_lower(a, 50, 0.05) - gate_lower(b, 50, 0.05)) < 1e-9);
}

static int fill(struct gate_pair *p, int at, int n, const char *domain, double live, double candidate)
{
	for (int i = 0; i < n; i++) {
		p[at] = (struct gate_pair){.rounds = 10, .live_al = live, .candidate_al = candidate};
		snprintf(p[at++].domain, sizeof p->domain, "%s", domain);
	}
	return at;
}

static void decisions(void **state)
{
	struct gate_pair p[200] = {0};
	struct gate_verdict v;
	int n;

	(void)state;
	gate_decide(&rules, p, 0, 1, &v);
	assert_int_equal(v.outcome, GATE_UNDECIDED);
	n = fill(p, 0, 7, "tools", 1.4, 1.8);
	gate_decide(&rules, p, n, 1, &v);
	assert_int_equal(v.outcome, GATE_UNDECIDED);
	assert_non_null(strstr(v.reason, "7 held-out requests of the 8 needed"));
	n = fill(p, 0, 12, "tools", 1.4, 1.8);
	gate_decide(&rules, p, n, 1, &v);
	assert_int_equal(v.outcome, GATE_ACCEPT);
	assert_true(v.all.lower > 0 && v.all.lower < 0.4 && fabs(v.all.difference - 0.4) < 1e-9);
	n = fill(p, 0, 12, "tools", 1.8, 1.4);
	gate_decide(&rules, p, n, 1, &v);
	assert_int_equal(v.outcome, GATE_REJECT);
	n = fill(p, 0, 12, "tools", 1.5, 1.5);
	gate_decide(&rules, p, n, 1, &v);
	assert_int_equal(v.outcome, GATE_UNDECIDED);
	struct gate_rules lenient = rules;
	lenient.margin = 0.2; /* the same pairs: no better, but not worse by more than 0.2 */
	n = fill(p, 0, 40, "tools", 1.5, 1.5);
	gate_decide(&rules, p, n, 1, &v);
	assert_int_equal(v.outcome, GATE_UNDECIDED);
	gate_decide(&lenient, p, n, 1, &v);
	assert_int_equal(v.outcome, GATE_ACCEPT);
	assert_non_null(strstr(v.reason, "worse by at most"));
	n = fill(p, 0, 40, "tools", 1.8, 1.4);
	gate_decide(&lenient, p, n, 1, &v);
	assert_int_equal(v.outcome, GATE_REJECT);
	/* better on the whole, worse in one domain beyond doubt */
	n = fill(p, 0, 60, "tools", 1.4, 1.9);
	n = fill(p, n, 20, "code", 1.9, 1.4);
	gate_decide(&rules, p, n, 1, &v);
	assert_int_equal(v.outcome, GATE_REJECT);
	assert_non_null(strstr(v.reason, "domain code worse"));
	assert_int_equal(v.n_domains, 2);
	/* one odd request cannot decide */
	n = fill(p, 0, 20, "tools", 1.5, 1.5);
	p[0].candidate_al = 60;
	gate_decide(&rules, p, n, 1, &v);
	assert_int_equal(v.outcome, GATE_UNDECIDED);
}

static void the_first_version_must_pay(void **state)
{
	struct gate_pair p[10];
	struct gate_verdict v;
	int n = fill(p, 0, 10, "tools", 1.0, 1.25);

	(void)state;
	gate_decide(&rules, p, n, 0, &v);
	assert_int_equal(v.outcome, GATE_ACCEPT);
	fill(p, 0, 10, "tools", 1.0, 1.15);
	gate_decide(&rules, p, n, 0, &v);
	assert_int_equal(v.outcome, GATE_REJECT);
	assert_non_null(strstr(v.reason, "1.150"));
}

static int read(const char *text, struct errtext *e)
{
	struct gate_pair p[4];
	json_t *j = json_loads(text, JSON_DECODE_ANY, NULL);
	int r;

	assert_non_null(j);
	r = gate_read_pairs(j, p, 4, e);
	json_decref(j);
	return r;
}

static void replies_are_checked(void **state)
{
	struct errtext e;

	(void)state;
	assert_int_equal(read("[]", &e), 0);
	assert_int_equal(read("[{\"domain\":\"a\",\"rounds\":3,\"live_al\":1,\"candidate_al\":1.5}]", &e), 1);
	assert_int_equal(read("{}", &e), -EINVAL);
	assert_int_equal(read("[3]", &e), -EINVAL);
	assert_int_equal(read("[{\"domain\":\"a\",\"rounds\":3,\"live_al\":0.9,\"candidate_al\":1.5}]", &e), -EINVAL);
	assert_int_equal(read("[{\"domain\":\"a\",\"rounds\":0,\"live_al\":1,\"candidate_al\":1.5}]", &e), -EINVAL);
	assert_int_equal(read("[{\"domain\":\"a\",\"rounds\":3,\"live_al\":1,\"candidate_al\":\"1\"}]", &e), -EINVAL);
	assert_int_equal(read("[{\"domain\":\"0123456789012345678901234567890123456789\",\"rounds\":3,\"live_al\":1,"
			      "\"candidate_al\":1}]", &e), -EINVAL);
}

static void json(void **state)
{
	struct gate_pair p[12];
	struct gate_verdict v;
	int n = fill(p, 0, 12, "code", 1.4, 1.8);
	json_t *j;

	(void)state;
	gate_decide(&rules, p, n, 1, &v);
	j = gate_json(&rules, &v);
	assert_string_equal(json_string_value(json_object_get(j, "verdict")), "accepted");
	assert_int_equal(json_integer_value(json_object_get(json_object_get(json_object_get(j, "domains"), "code"), "requests")), 12);
	json_decref(j);
}

static void lengths_looks_and_least_gain(void **state)
{
	struct gate_rules least = rules;
	struct gate_pair p[200];
	struct gate_verdict v;
	struct errtext e;

	(void)state;
	for (int i = 0; i < 200; i++) { /* better by 0.06 but at length 3, where it is worse by 0.2 */
		p[i] = (struct gate_pair){.domain = "d", .length = i % 10 ? 0 : 3, .rounds = 20, .live_al = 1.5, .candidate_al = 1.5 + (i % 10 ? 0.06 : -0.2) + 0.02 * normal()};
	}
	gate_decide(&rules, p, 200, 1, &v);
	assert_int_equal(v.outcome, GATE_REJECT);
	assert_non_null(strstr(v.reason, "context 3 worse"));
	assert_int_equal(v.n_lengths, 2);
	gate_decide(&rules, p, 60, 1, &v); /* six requests at that length: not sure, and not passed over */
	assert_int_equal(v.outcome, GATE_UNDECIDED);
	assert_non_null(strstr(v.reason, "context 3 looks worse"));
	for (int i = 0; i < 200; i++)
		p[i].candidate_al = 1.56 + 0.02 * normal();
	gate_decide(&rules, p, 200, 1, &v);
	assert_int_equal(v.outcome, GATE_ACCEPT);
	least.min_gain = 0.15;
	gate_decide(&least, p, 200, 1, &v);
	assert_int_equal(v.outcome, GATE_REJECT);
	assert_non_null(strstr(v.reason, "not worth a switch"));
	least.min_gain = 0.05;
	gate_decide(&least, p, 200, 1, &v);
	assert_int_equal(v.outcome, GATE_ACCEPT);
	json_t *j = json_pack("[{s:s, s:i, s:i, s:f, s:f}, {s:s, s:i, s:f, s:f}]", "domain", "d", "context", 5, "rounds", 3, "live_al", 1.0, "candidate_al", 1.0, "domain", "d",
			      "rounds", 3, "live_al", 1.0, "candidate_al", 1.0);
	assert_int_equal(gate_read_pairs(j, p, 200, &e), 2);
	assert_int_equal(p[0].length, 5);
	assert_int_equal(p[1].length, -1);
	json_decref(j);
}

/* Older requests refuse what has surely forgotten, say how, and have no other say. */
static void pinned_requests(void **state)
{
	struct gate_pair p[200], older[200];
	struct gate_rules lenient = gate_defaults;
	struct gate_verdict v;
	json_t *j;
	int n, m;

	(void)state;
	n = fill(p, 0, 60, "code", 1.4, 1.6);
	m = fill(older, 0, 32, "tools", 1.5, 1.3);
	m = fill(older, m, 32, "code", 1.4, 1.6);
	m = fill(older, m, GATE_DOMAIN_MIN - 1, "chat", 1.6, 1.0); /* too few to tell */
	gate_decide(&gate_defaults, p, n, 1, &v);
	assert_int_equal(v.outcome, GATE_ACCEPT);
	assert_int_equal(v.n_pinned, 0);
	gate_guard(&gate_defaults, older, m, &v);
	assert_int_equal(v.outcome, GATE_REJECT);
	assert_non_null(strstr(v.reason, "older requests of domain tools: accept length 1.300 against 1.500 on 32 pinned: worse by at least 0."));
	assert_int_equal(v.n_pinned, 3);
	j = gate_json(&gate_defaults, &v);
	assert_int_equal(json_integer_value(json_object_get(json_object_get(json_object_get(j, "pinned"), "tools"), "requests")), 32);
	assert_true(fabs(json_real_value(json_object_get(json_object_get(json_object_get(j, "pinned"), "tools"), "difference")) - -0.2) < 1e-9);
	json_decref(j);
	/* within the margin: no say */
	lenient.pinned_margin = 0.25;
	gate_decide(&lenient, p, n, 1, &v);
	gate_guard(&lenient, older, m, &v);
	assert_int_equal(v.outcome, GATE_ACCEPT);
	/* better there is no evidence for it: undecided stays so */
	gate_decide(&gate_defaults, p, 4, 1, &v);
	m = fill(older, 0, 100, "tools", 1.3, 1.8);
	gate_guard(&gate_defaults, older, m, &v);
	assert_int_equal(v.outcome, GATE_UNDECIDED);
	assert_null(strstr(v.reason, "older"));
	/* lost bit by bit: none of it sure, all of it is; not held against who is better than live */
	n = fill(p, 0, 60, "code", 1.4, 1.6);
	for (int lost = 0; lost < 2; lost++) {
		m = fill(older, 0, 48, "tools", 1.30, lost ? 1.29 : 1.31);
		for (int i = 0; i < m; i++) {
			older[i].reference = 4;
			older[i].reference_al = 1.5;
		}
		gate_decide(&gate_defaults, p, n, 1, &v);
		gate_guard(&gate_defaults, older, m, &v);
		assert_int_equal(v.outcome, lost ? GATE_REJECT : GATE_ACCEPT);
		assert_true(v.before[0].requests == 48 && v.before[0].upper < 0 && v.reference[0] == 4);
		assert_true(v.pinned[0].lower < 0 && v.pinned[0].upper > 0);
	}
	assert_non_null(strstr(v.reason, "older requests of domain tools: accept length 1.290 against 1.500 of version 4 on 48 pinned: worse by at least 0."));
	j = gate_json(&gate_defaults, &v);
	assert_int_equal(json_integer_value(json_object_get(json_object_get(json_object_get(json_object_get(j, "pinned"), "tools"), "before"), "version")), 4);
	json_decref(j);
	/* a rejection keeps its own sentence; nobody pinned changes nothing */
	n = fill(p, 0, 60, "code", 1.6, 1.3);
	gate_decide(&gate_defaults, p, n, 1, &v);
	m = fill(older, 0, 32, "tools", 1.5, 1.2);
	gate_guard(&gate_defaults, older, m, &v);
	assert_int_equal(v.outcome, GATE_REJECT);
	assert_null(strstr(v.reason, "older"));
	n = fill(p, 0, 60, "code", 1.4, 1.6);
	gate_decide(&gate_defaults, p, n, 1, &v);
	gate_guard(&gate_defaults, older, 0, &v);
	assert_int_equal(v.outcome, GATE_ACCEPT);
}

/* Five domains, 48 requests each, a candidate that is no worse: refused no more often than one in twenty, lumpy differences included. */
static void pinned_requests_seldom_refuse(void **state)
{
	enum { RUNS = 400, EACH = 48 };
	static struct gate_pair p[5 * EACH];

	(void)state;
	for (int kind = 0; kind < 5; kind++) {
		int wrong = 0;

		for (int run = 0; run < RUNS; run++) {
			struct gate_verdict v = {.outcome = GATE_ACCEPT};

			for (int i = 0; i < 5 * EACH; i++) {
				p[i] = (struct gate_pair){.rounds = 10, .live_al = 2, .candidate_al = 2 - 0.25 * null_draw(kind)};
				snprintf(p[i].domain, sizeof p->domain, "d%d", i % 5);
			}
			gate_guard(&gate_defaults, p, 5 * EACH, &v);
			wrong += v.outcome == GATE_REJECT;
		}
		print_message("kind %d: %.3f refused\n", kind, (double)wrong / RUNS);
		assert_true((double)wrong / RUNS <= 0.05 + 3 * sqrt(0.05 * 0.95 / RUNS));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lengths_looks_and_least_gain), cmocka_unit_test(bounds_by_hand), cmocka_unit_test(the_order_is_no_matter), cmocka_unit_test(decisions),
		cmocka_unit_test(the_first_version_must_pay), cmocka_unit_test(replies_are_checked), cmocka_unit_test(json),
		cmocka_unit_test(a_consistent_gain_is_seen), cmocka_unit_test(false_acceptances_are_rare), cmocka_unit_test(pinned_requests), cmocka_unit_test(pinned_requests_seldom_refuse),
	};
	print_message("seed %llu\n", (unsigned long long)seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
