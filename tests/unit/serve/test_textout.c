/* Text out of tokens: characters that cross token borders come whole, broken bytes become
 * U+FFFD one for each broken beginning, stop strings are found across borders and nothing of
 * them is ever shown, and what was held back for nothing comes later. Random splits
 * of random texts give the same as the text at once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "serve/textout.h"
#include "tests/unit/serve/vectors.h"

static struct tokenizer *toy;
static uint32_t byte_id[256];

/* Ids of single bytes, so that a test can break text wherever it likes. */
static int setup(void **state)
{
	(void)state;
	toy = toy_tokenizer();
	memset(byte_id, 0xff, sizeof byte_id);
	for (uint32_t i = 0; i < tokenizer_vocab(toy); i++) {
		size_t n;
		const char *p = tokenizer_token(toy, i, &n);
		if (n == 1)
			byte_id[(uint8_t)*p] = i;
	}
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	toy = tokenizer_free(toy);
	return 0;
}

struct shown {
	char text[512];
	size_t n;
};

static void take(struct textout *o, bool all, struct shown *s)
{
	size_t n;
	const char *p = textout_take(o, all, &n);

	memcpy(s->text + s->n, p, n);
	s->n += n;
	s->text[s->n] = 0;
}

/* Bytes one by one, taking after each; returns the index at which a stop was seen, or -1. */
static int feed(struct textout *o, const char *bytes, size_t n, struct shown *s)
{
	for (size_t i = 0; i < n; i++) {
		int r;
		assert_int_not_equal(UINT32_MAX, byte_id[(uint8_t)bytes[i]]);
		r = textout_add(o, byte_id[(uint8_t)bytes[i]]);
		take(o, false, s);
		if (r == TEXTOUT_STOP)
			return (int)i;
		assert_int_equal(0, r);
	}
	return -1;
}

static struct textout make(char (*stops)[TEXTOUT_MAX_STOP + 1], int n)
{
	return (struct textout){.tokenizer = toy, .stops = stops, .n_stops = n, .text = BUF_INIT(1 << 16)};
}

static void test_characters_come_whole(void **state)
{
	struct textout o = make(NULL, 0);
	struct shown s = {"", 0};

	(void)state;
	assert_int_equal(-1, feed(&o, "a\xf0\x9f\x98", 4, &s));
	assert_string_equal("a", s.text);
	assert_int_equal(-1, feed(&o, "\x80" "b\xc3", 3, &s));
	assert_string_equal("a\xf0\x9f\x98\x80" "b", s.text);
	assert_int_equal(0, textout_finish(&o));
	take(&o, true, &s);
	assert_string_equal("a\xf0\x9f\x98\x80" "b\xef\xbf\xbd", s.text);
	textout_done(&o);
}

static void test_broken_bytes_are_replaced(void **state)
{
	static const struct {
		const char *in, *out;
	} cases[] = {
		{"\xff", "\xef\xbf\xbd"},
		{"\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd"},
		{"\xe2\x82x", "\xef\xbf\xbdx"},
		{"\xf0\x9f\xf0\x9f\x98\x80", "\xef\xbf\xbd\xf0\x9f\x98\x80"},
		{"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
		{"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
		{"\xf4\x90x", "\xef\xbf\xbd\xef\xbf\xbdx"},
		{"\xe2\x82", "\xef\xbf\xbd"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct textout o = make(NULL, 0);
		struct shown s = {"", 0};
		assert_int_equal(-1, feed(&o, cases[i].in, strlen(cases[i].in), &s));
		assert_int_equal(0, textout_finish(&o));
		take(&o, true, &s);
		assert_string_equal(cases[i].out, s.text);
		textout_done(&o);
	}
}

static void test_stop_strings(void **state)
{
	static const struct {
		const char *in, *out;
		int at; /* index of the byte that completes the stop, -1 = none */
	} cases[] = {
		{"hello END there", "hello ", 8},
		{"ENEND", "EN", 4},
		{"EENDx", "E", 3},
		{"ababac!", "ab", 5},
		{"no stop EN", "no stop EN", -1},
		{"\xe2\x82\xac\xe2\x82\xac", "", 2},
		{"aba", "aba", -1},
		{"", "", -1},
	};
	char stops[3][TEXTOUT_MAX_STOP + 1] = {"END", "abac", "\xe2\x82\xac"};

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct textout o = make(stops, 3);
		struct shown s = {"", 0};
		assert_int_equal(cases[i].at, feed(&o, cases[i].in, strlen(cases[i].in), &s));
		if (!o.stopped)
			assert_int_equal(0, textout_finish(&o));
		take(&o, true, &s);
		assert_string_equal(cases[i].out, s.text);
		if (o.stopped)
			assert_int_equal(TEXTOUT_STOP, textout_add(&o, byte_id['x']));
		assert_int_equal(strlen(cases[i].out), o.text.len);
		textout_done(&o);
	}
}

/* Whatever the text: what was shown step by step is the text cut at the earliest stop. */
static void test_random_texts(void **state)
{
	char stops[2][TEXTOUT_MAX_STOP + 1] = {"aab", "ba"};
	unsigned seed = 20261129;

	(void)state;
	print_message("seed %u\n", seed);
	for (int round = 0; round < 2000; round++) {
		char text[64], *first = NULL;
		size_t n = (size_t)(rand_r(&seed) % 40);
		struct textout o = make(stops, round % 3);
		struct shown s = {"", 0};
		for (size_t i = 0; i < n; i++)
			text[i] = "abc"[rand_r(&seed) % (round % 2 ? 2 : 3)];
		text[n] = 0;
		/* the stop that ends first; of those that end together the earliest beginning */
		for (size_t end = 1; end <= n && !first; end++)
			for (int k = 0; k < o.n_stops; k++) {
				size_t len = strlen(stops[k]);
				char *at = end >= len ? text + end - len : NULL;
				if (at && memcmp(at, stops[k], len) == 0 && (!first || at < first))
					first = at;
			}
		(void)feed(&o, text, n, &s);
		assert_int_equal(first != NULL, o.stopped);
		take(&o, true, &s);
		if (first)
			*first = 0;
		assert_string_equal(text, s.text);
		textout_done(&o);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_characters_come_whole),
		cmocka_unit_test(test_broken_bytes_are_replaced),
		cmocka_unit_test(test_stop_strings),
		cmocka_unit_test(test_random_texts),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
