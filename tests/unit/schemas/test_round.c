/* What this proves: a round record survives JSON exactly, readers ignore unknown keys, every
 * missing or impossible field is refused, and accept length counts the bonus token. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "schemas/round.h"

static struct round_record sample(void)
{
	struct round_record r = {
		.target_fp = "ab",
		.producer = "uuid",
		.request = "r1",
		.conversation = "c\"1",
		.domain = "code",
		.tenant = "",
		.seq = 1ull << 40,
		.part = 1,
		.version = 7,
		.last = true,
		.context_bucket = 3,
		.k = 3,
		.rounds = 10,
		.proposed = {9, 9, 8},
		.accepted = {6, 4, 2},
		.tree_proposed = {5, 5, 4},
		.tree_accepted = {4, 3, 2},
		.tokens = 22,
		.prompt_tokens = 900,
		.ttft_ms = 123.25,
		.dropped_records = 2,
	};
	for (uint32_t i = 0; i <= ROUND_TPOT_EDGES; i++)
		r.tpot_ms[i] = i * i;
	return r;
}

static void test_round_trip(void **state)
{
	(void)state;
	struct round_record r = sample(), d;
	struct buf out = BUF_INIT(0);

	memset(&d, 0, sizeof d);
	assert_int_equal(round_encode(&out, &r), 0);
	assert_int_equal(round_decode(out.data, out.len, &d, NULL), 0);
	assert_int_equal(memcmp(&r, &d, sizeof r), 0);
	buf_clear(&out);
	r.k = 0; /* a request that was decoded plainly */
	assert_int_equal(round_encode(&out, &r), 0);
	assert_int_equal(round_decode(out.data, out.len, &d, NULL), 0);
	assert_int_equal(d.proposed[0], 0);
	buf_clear(&out);
	r.ttft_ms = NAN;
	assert_int_equal(round_encode(&out, &r), -EINVAL);
	r = sample();
	strcpy(r.tenant, "\xff");
	assert_int_equal(round_encode(&out, &r), -EINVAL);
	assert_int_equal(out.len, 0);
	buf_done(&out);
}

static void test_accept_length(void **state)
{
	(void)state;
	struct round_record r = sample();

	assert_true(!(fabs(round_accept_length(&r) - (1 + 12.0 / 9)) > 1e-12));
	r.proposed[0] = 0;
	assert_true(isnan(round_accept_length(&r)));
}

static int decode_changed(const char *key, json_t *value, struct errtext *e)
{
	struct round_record r = sample(), d;
	struct buf out = BUF_INIT(0);

	assert_int_equal(round_encode(&out, &r), 0);
	json_t *o = json_loadb((char *)out.data, out.len, 0, NULL);
	if (value)
		json_object_set_new(o, key, value);
	else
		json_object_del(o, key);
	char *text = json_dumps(o, 0);
	int rc = round_decode(text, strlen(text), &d, e);
	free(text);
	json_decref(o);
	buf_done(&out);
	return rc;
}

static void test_refuses(void **state)
{
	(void)state;
	static const char *const keys[] = {"schema",  "target_fp", "producer", "seq",      "request", "conversation",
					   "part",    "last",      "version",  "domain",   "tenant",  "context_bucket",
					   "k",       "rounds",    "proposed", "accepted", "tokens",  "prompt_tokens",
					   "ttft_ms", "tpot_ms",   "drops"};
	struct round_record d;

	for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
		struct errtext e = {""};
		assert_int_equal(decode_changed(keys[i], NULL, &e), -EINVAL);
		assert_non_null(strstr(e.text, keys[i]));
		assert_int_equal(decode_changed(keys[i], json_object(), &e), -EINVAL);
		assert_int_equal(decode_changed(keys[i], json_integer(-1), &e), -EINVAL);
	}
	assert_int_equal(decode_changed("schema", json_integer(2), NULL), -EINVAL);
	assert_int_equal(decode_changed("k", json_integer(17), NULL), -EINVAL);
	assert_int_equal(decode_changed("context_bucket", json_integer(8), NULL), -EINVAL);
	assert_int_equal(decode_changed("proposed", json_pack("[i,i]", 1, 1), NULL), -EINVAL);
	assert_int_equal(decode_changed("accepted", json_pack("[i,i,i]", 10, 0, 0), NULL), -EINVAL);
	assert_int_equal(decode_changed("proposed", json_pack("[i,i,i]", 11, 9, 9), NULL), -EINVAL);
	/* rounds that branched: some of the proposals and acceptances, never more, and neither are the others */
	assert_int_equal(decode_changed("tree_accepted", NULL, NULL), -EINVAL);
	assert_int_equal(decode_changed("tree_proposed", json_pack("[i,i,i]", 10, 5, 4), NULL), -EINVAL);
	assert_int_equal(decode_changed("tree_accepted", json_pack("[i,i,i]", 4, 5, 2), NULL), -EINVAL);
	assert_int_equal(decode_changed("tree_proposed", json_pack("[i,i,i]", 3, 5, 4), NULL), -EINVAL);
	assert_int_equal(decode_changed("tree_accepted", json_pack("[i,i,i]", 1, 3, 2), NULL), -EINVAL);
	assert_int_equal(decode_changed("tree_accepted", json_pack("[i,i,i]", 2, 3, 2), NULL), 0);
	assert_int_equal(decode_changed("unknown", json_true(), NULL), 0);
	assert_int_equal(round_decode("", 0, &d, NULL), -EINVAL);
	assert_int_equal(round_decode("[]", 2, &d, NULL), -EINVAL);
	char *big = malloc(70000);
	memset(big, ' ', 70000);
	assert_int_equal(round_decode(big, 70000, &d, NULL), -E2BIG);
	free(big);
}

/* Bucket b begins at 128 << b tokens, the first at 0, and the last has no end. */
static void test_bucket(void **state)
{
	(void)state;
	assert_int_equal(round_bucket(0), 0);
	for (int b = 1; b < ROUND_BUCKETS; b++) {
		assert_int_equal(round_bucket((128 << b) - 1), b - 1);
		assert_int_equal(round_bucket(128 << b), b);
	}
	assert_int_equal(round_bucket(INT64_C(1) << 40), ROUND_BUCKETS - 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_accept_length),
		cmocka_unit_test(test_bucket),
		cmocka_unit_test(test_refuses),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
