/* Merges in the order of `tokenizers`: lowest rank first, leftmost of equals. On random
 * merge tables over a three-letter alphabet, pieces of 0 to 300 letters give what a plain
 * search for the best pair gives (which the short path also is, so lengths on both
 * sides of the border are drawn); bytes without an id vanish before anything merges.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "serve/bpe.h"

enum { MAX_TOKENS = 64, MAX_PIECE = 300, MAX_TEXT = 24 };

/* A vocabulary grown by random merges: ids 0..2 are the letters a, b, c. */
struct world {
	struct bpe_merge merges[2 * MAX_TOKENS];
	char text[MAX_TOKENS][MAX_TEXT + 1];
	int n_tokens, n_merges;
};

static int token_of(const struct world *w, const char *text)
{
	for (int i = 0; i < w->n_tokens; i++)
		if (strcmp(w->text[i], text) == 0)
			return i;
	return -1;
}

static void grow(struct world *w, unsigned *seed)
{
	*w = (struct world){.n_tokens = 3, .text = {"a", "b", "c"}};
	while (w->n_tokens < 40) {
		int l = rand_r(seed) % w->n_tokens, r = rand_r(seed) % w->n_tokens, known;
		char text[2 * MAX_TEXT + 1];
		bool again = false;
		(void)snprintf(text, sizeof text, "%s%s", w->text[l], w->text[r]);
		for (int i = 0; i < w->n_merges; i++)
			again |= w->merges[i].left == (uint32_t)l && w->merges[i].right == (uint32_t)r;
		if (strlen(text) > MAX_TEXT || again || w->n_merges == 2 * MAX_TOKENS)
			continue;
		known = token_of(w, text); /* two pairs may make the same token */
		if (known < 0) {
			known = w->n_tokens++;
			memcpy(w->text[known], text, strlen(text) + 1);
		}
		w->merges[w->n_merges++] = (struct bpe_merge){(uint32_t)l, (uint32_t)r, (uint32_t)known};
	}
}

static size_t search(const struct world *w, uint32_t *ids, size_t n)
{
	for (;;) {
		int best = w->n_merges;
		size_t at = 0;
		for (size_t i = 0; i + 1 < n; i++)
			for (int k = 0; k < best; k++)
				if (w->merges[k].left == ids[i] && w->merges[k].right == ids[i + 1]) {
					best = k;
					at = i;
				}
		if (best == w->n_merges)
			return n;
		ids[at] = w->merges[best].result;
		for (size_t i = at + 1; i + 1 < n; i++)
			ids[i] = ids[i + 1];
		n--;
	}
}

static void byte_ids(uint32_t ret[256])
{
	memset(ret, 0xff, 256 * sizeof *ret);
	for (uint32_t i = 0; i < 3; i++)
		ret['a' + i] = i;
}

static void test_equals_plain_search(void **state)
{
	unsigned seed = 20261129;
	struct bpe_scratch s = {0};
	uint32_t bytes[256];

	(void)state;
	print_message("seed %u\n", seed);
	byte_ids(bytes);
	for (int world = 0; world < 60; world++) {
		struct world w;
		struct bpe *b;
		grow(&w, &seed);
		assert_int_equal(0, bpe_new(bytes, w.merges, (size_t)w.n_merges, &b));
		for (int round = 0; round < 30; round++) {
			uint8_t text[MAX_PIECE];
			uint32_t want[MAX_PIECE], got[MAX_PIECE];
			size_t n = (size_t)rand_r(&seed) % (round % 3 ? 48 : MAX_PIECE), n_want, n_got = 0;
			int letters = 1 + rand_r(&seed) % 3; /* runs of one letter find wrong ties */
			for (size_t i = 0; i < n; i++) {
				want[i] = (uint32_t)(rand_r(&seed) % letters);
				text[i] = (uint8_t)('a' + want[i]);
			}
			n_want = search(&w, want, n);
			assert_int_equal(0, bpe_piece(b, &s, text, n, got, &n_got));
			assert_int_equal(n_want, n_got);
			assert_memory_equal(want, got, n_got * sizeof *got);
		}
		bpe_free(b);
	}
	bpe_scratch_done(&s);
}

static void test_unknown_bytes_vanish_first(void **state)
{
	struct bpe_merge ab = {0, 1, 7};
	struct bpe_scratch s = {0};
	uint32_t bytes[256], out[8];
	struct bpe *b;
	size_t n = 9;

	(void)state;
	byte_ids(bytes);
	assert_int_equal(0, bpe_new(bytes, &ab, 1, &b));
	assert_int_equal(0, bpe_piece(b, &s, (const uint8_t *)"a\x06" "b!", 4, out, &n));
	assert_int_equal(1, n);
	assert_int_equal(7, out[0]);
	assert_int_equal(0, bpe_piece(b, &s, (const uint8_t *)"!!", 2, out, &n));
	assert_int_equal(0, n);
	bpe_free(b);
	bpe_scratch_done(&s);
}

/* A pair listed twice: the later rank and result count, as in a map built in order. */
static void test_a_pair_listed_twice(void **state)
{
	struct bpe_merge m[] = {{0, 1, 7}, {1, 2, 8}, {0, 1, 9}};
	struct bpe_scratch s = {0};
	uint32_t bytes[256], out[8];
	struct bpe *b;
	size_t n;

	(void)state;
	byte_ids(bytes);
	assert_int_equal(0, bpe_new(bytes, m, 3, &b));
	assert_int_equal(0, bpe_piece(b, &s, (const uint8_t *)"abc", 3, out, &n));
	assert_int_equal(2, n);
	assert_int_equal(0, out[0]);
	assert_int_equal(8, out[1]);
	assert_int_equal(0, bpe_piece(b, &s, (const uint8_t *)"ab", 2, out, &n));
	assert_int_equal(1, n);
	assert_int_equal(9, out[0]);
	bpe_free(b);
	bpe_scratch_done(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_equals_plain_search),
		cmocka_unit_test(test_unknown_bytes_vanish_first),
		cmocka_unit_test(test_a_pair_listed_twice),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
