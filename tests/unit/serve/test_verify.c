/* Draw, then compare: what is emitted are the target's own draws, proposals only
 * decide how many. Full, partial and no agreement; a right proposal behind a wrong one is not
 * taken; text ends at an end token even when more was proposed; with no proposals one
 * token comes out. In a tree the child that was drawn is followed, whichever it is, and nothing of the other branches.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>
#include "serve/verify.h"

enum { V = 16 };
static const int16_t chain[] = {-1, 0, 1, 2};
static const struct sampling greedy = {.top_p = 1};

static bool is_end(const void *arg, uint32_t id)
{
	return id == *(const uint32_t *)arg;
}

static struct verdict run(const uint32_t *target, int rows, const uint32_t *proposed, int len, uint32_t end)
{
	real logits[8 * V] = {0};
	for (int i = 0; i < rows; i++)
		logits[i * V + (int)target[i]] = 4;
	struct sampler *s = sampler_new(V);
	struct verdict v = verify_tree(s, &(struct drawn_from){.rows = logits, .V = V}, &greedy, &(struct history){0}, 10, proposed, chain, len, is_end, &end);
	sampler_free(s);
	return v;
}

static void expect(struct verdict v, int accepted, int n, const uint32_t *ids)
{
	assert_int_equal(v.accepted, accepted);
	assert_int_equal(v.n, n);
	assert_memory_equal(v.ids, ids, (size_t)n * sizeof *ids);
}

static void test_chain(void **state)
{
	(void)state;
	const uint32_t target[] = {3, 5, 7, 9}, all[] = {3, 5, 7}, some[] = {3, 6, 7}, none[] = {4, 5, 7};
	expect(run(target, 4, all, 3, 15), 3, 4, target);
	expect(run(target, 4, some, 3, 15), 1, 2, target);
	expect(run(target, 4, none, 3, 15), 0, 1, target);
	expect(run(target, 1, NULL, 0, 15), 0, 1, target);
}

static void test_end(void **state)
{
	(void)state;
	const uint32_t target[] = {3, 5, 7, 9}, all[] = {3, 5, 7};
	expect(run(target, 4, all, 3, 5), 2, 2, target);
	expect(run(target, 4, all, 3, 3), 1, 1, target);
	expect(run(target, 4, all, 3, 9), 3, 4, target);
}

static void test_positions(void **state)
{
	(void)state;
	/* every draw uses its own position's number: equals drawing one by one */
	real logits[4 * V];
	for (int i = 0; i < 4 * V; i++)
		logits[i] = (real)((i * 7919) % 13) / 6;
	struct sampling how = {.temperature = 1, .top_p = 1, .seed = 77};
	struct sampler *s = sampler_new(V);
	uint32_t end = 99, want[4];
	for (uint32_t i = 0; i < 4; i++)
		want[i] = sample_token(s, logits + i * V, &how, 20 + i);
	expect(verify_tree(s, &(struct drawn_from){.rows = logits, .V = V}, &how, &(struct history){0}, 20, want, chain, 3, is_end, &end), 3, 4, want);
	sampler_free(s);
}

static void test_history(void **state)
{
	(void)state;
	/* each draw's history holds what was emitted before it in the round: under a strong penalty the same row
	 * gives another token at each place, as decoding one by one does */
	real logits[4 * V];
	for (int i = 0; i < 4 * V; i++)
		logits[i] = (real)(4 - i % V);
	struct sampling how = {.top_p = 1, .presence = 9};
	const uint32_t before[] = {5, 1}, want[] = {0, 2, 3, 4}, stale[] = {0, 0, 0}; /* 1 was generated before */
	struct history h = {before, 1, 2};
	struct sampler *s = sampler_new(V);
	uint32_t end = 99;
	expect(verify_tree(s, &(struct drawn_from){.rows = logits, .V = V}, &how, &h, 2, want, chain, 3, is_end, &end), 3, 4, want);
	expect(verify_tree(s, &(struct drawn_from){.rows = logits, .V = V}, &how, &h, 2, stale, chain, 3, is_end, &end), 1, 2, want);
	sampler_free(s);
}

static void test_tree(void **state)
{
	(void)state;
	/* root -> {2, 3}; 2 -> {5}; 3 -> {5, 6}; the second 5 -> {9}. Node i's row says what is drawn after it. */
	const uint32_t ids[] = {2, 5, 3, 5, 9, 6};
	const int16_t parent[] = {-1, 0, -1, 2, 3, 2};
	const uint32_t after[7] = {3, 5, 11, 5, 9, 7, 12}, want[] = {3, 5, 9, 7};
	real logits[7 * V] = {0};
	uint32_t end = 99;
	struct sampler *s = sampler_new(V);
	for (int i = 0; i < 7; i++)
		logits[i * V + (int)after[i]] = 4;
	struct verdict v = verify_tree(s, &(struct drawn_from){.rows = logits, .V = V}, &greedy, &(struct history){0}, 10, ids, parent, 6, is_end, &end);
	expect(v, 3, 4, want);
	const int path[] = {2, 3, 4};
	assert_memory_equal(v.path, path, sizeof path);
	logits[0 * V + 4] = 9; /* none of the children */
	const uint32_t other[] = {4};
	expect(verify_tree(s, &(struct drawn_from){.rows = logits, .V = V}, &greedy, &(struct history){0}, 10, ids, parent, 6, is_end, &end), 0, 1, other);
	logits[0 * V + 4] = 0;
	end = 5; /* the text ends inside the tree */
	expect(verify_tree(s, &(struct drawn_from){.rows = logits, .V = V}, &greedy, &(struct history){0}, 10, ids, parent, 6, is_end, &end), 2, 2, want);
	sampler_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_chain), cmocka_unit_test(test_end), cmocka_unit_test(test_positions), cmocka_unit_test(test_tree),
					   cmocka_unit_test(test_history)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
