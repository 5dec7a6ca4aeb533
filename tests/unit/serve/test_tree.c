/* Trees: whom the draft runs next, what is kept, in which order.
 *
 * Worked by hand: pruning of what cannot make it, ties, cuts at a token that ends the text, chains. Then
 * 2,000 random drafts, with many ties: what is kept is closed under parents, as deep as it may be, and the same as if
 * nothing had been pruned on the way.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>
#include "serve/draft.h"
#include "serve/tree.h"
#include "tests/unit/serve/toy.h"

static bool never(const void *arg, uint32_t id)
{
	(void)arg;
	(void)id;
	return false;
}

static bool is(const void *arg, uint32_t id)
{
	return id == *(const uint32_t *)arg;
}

static void test_by_hand(void **state)
{
	(void)state;
	struct tree t;
	const struct draft_shape shape = {2, 3, 4};
	tree_start(&t, shape, (uint32_t[]){10, 11}, (float[]){-0.1f, -2.0f});
	assert_int_equal(tree_next(&t, 99, never, NULL), 2);
	assert_int_equal(t.live[0], 0);
	tree_note(&t, 0, (uint32_t[]){20, 21}, (float[]){-0.2f, -1.0f});  /* -0.3, -1.1 */
	tree_note(&t, 1, (uint32_t[]){22, 23}, (float[]){-0.5f, -9.0f});  /* -2.5, -11 */
	/* best so far: 10, 20, 21, 11, ...: with four nodes, what follows 11's children can never be kept */
	assert_int_equal(tree_next(&t, 99, never, NULL), 2);
	assert_int_equal(t.c[t.live[0]].id, 20);
	assert_int_equal(t.c[t.live[1]].id, 21);
	assert_int_equal(t.run_parent[2], 0);
	assert_int_equal(t.run_parent[3], 0);
	tree_note(&t, 0, (uint32_t[]){30, 31}, (float[]){-0.9f, -3.0f});  /* -1.2, -3.3 */
	tree_note(&t, 1, (uint32_t[]){32, 33}, (float[]){-0.05f, -3.0f}); /* -1.15, -4.1 */
	assert_int_equal(tree_next(&t, 99, never, NULL), 0);              /* depth 3 it is */
	uint32_t ids[ENGINE_MAX_NODES];
	int16_t parent[ENGINE_MAX_NODES];
	uint8_t rank[ENGINE_MAX_NODES];
	assert_int_equal(tree_pick(&t, 99, ids, parent, rank), 4);
	assert_memory_equal(ids, ((uint32_t[]){10, 20, 21, 32}), 16);
	assert_memory_equal(parent, ((int16_t[]){-1, 0, 0, 2}), 8);
	assert_memory_equal(rank, ((uint8_t[]){0, 1, 2, 3}), 4);
	assert_int_equal(tree_pick(&t, 2, ids, parent, rank), 2); /* fewer places than the shape says */
}

static void test_ends_and_room(void **state)
{
	(void)state;
	struct tree t;
	uint32_t end = 10, ids[ENGINE_MAX_NODES];
	int16_t parent[ENGINE_MAX_NODES];
	uint8_t rank[ENGINE_MAX_NODES];
	tree_start(&t, (struct draft_shape){2, 4, 6}, (uint32_t[]){10, 11}, (float[]){-0.1f, -0.2f});
	assert_int_equal(tree_next(&t, 99, is, &end), 1);
	assert_int_equal(t.c[t.live[0]].id, 11);
	tree_note(&t, 0, (uint32_t[]){DRAFT_NONE, 5}, (float[]){NAN, 0});
	assert_int_equal(tree_next(&t, 99, is, &end), 0);
	assert_int_equal(tree_pick(&t, 99, ids, parent, rank), 2);
	tree_start(&t, (struct draft_shape){2, 4, 6}, (uint32_t[]){10, 11}, (float[]){-0.1f, -0.2f});
	assert_int_equal(tree_next(&t, 1, never, NULL), 1); /* one place left */
	tree_start(&t, (struct draft_shape){0}, (uint32_t[]){10, 11}, (float[]){-0.1f, -0.2f});
	assert_int_equal(tree_next(&t, 99, never, NULL), 0);
	assert_int_equal(tree_pick(&t, 99, ids, parent, rank), 0);
	tree_start(&t, (struct draft_shape){1, 3, 3}, (uint32_t[]){7}, (float[]){-4});
	for (uint32_t i = 0; tree_next(&t, 99, never, NULL); i++)
		tree_note(&t, 0, &i, (float[]){1e-7f}); /* a hair above 0 counts as 0: no child beats its parent */
	assert_int_equal(tree_pick(&t, 99, ids, parent, rank), 3);
	assert_memory_equal(ids, ((uint32_t[]){7, 0, 1}), 12);
	assert_memory_equal(parent, ((int16_t[]){-1, 0, 1}), 6);
}

/* A draft made of hashes, coarse so that ties are common: what follows a candidate depends on its path. */
static void follow(uint64_t path, int width, uint32_t *ids, float *logp)
{
	for (int i = 0; i < width; i++) {
		ids[i] = (uint32_t)(path % 97 * 8 + (uint64_t)i);
		logp[i] = -(float)(i ? 1 : 0) - (float)(toy_mix(path + (uint64_t)i) % 4) / 4;
	}
}

static void grow(struct tree *t, struct draft_shape shape, uint64_t seed)
{
	uint32_t ids[TREE_WIDTH];
	float logp[TREE_WIDTH];
	uint64_t path[TREE_CANDS];
	follow(seed, shape.width, ids, logp);
	tree_start(t, shape, ids, logp);
	for (int i = 0; i < t->n; i++)
		path[i] = toy_mix(seed ^ (uint64_t)(i + 1));
	while (tree_next(t, 99, never, NULL))
		for (int i = 0; i < t->n_live; i++) {
			int before = t->n;
			follow(path[t->live[i]], shape.width, ids, logp);
			tree_note(t, i, ids, logp);
			for (int j = before; j < t->n; j++)
				path[j] = toy_mix(path[t->live[i]] ^ (uint64_t)(j - before + 1));
		}
}

static void test_random(void **state)
{
	(void)state;
	int ran = 0, ran_all = 0;
	for (uint64_t seed = 1; seed <= 2000; seed++) {
		struct draft_shape shape = {1 + (int)(seed % TREE_WIDTH), 1 + (int)(toy_mix(seed) % ENGINE_MAX_K), 2 + (int)(toy_mix(seed + 9) % 15)};
		struct tree t, all;
		uint32_t ids[ENGINE_MAX_NODES], ids2[ENGINE_MAX_NODES];
		int16_t parent[ENGINE_MAX_NODES], parent2[ENGINE_MAX_NODES];
		uint8_t rank[ENGINE_MAX_NODES], rank2[ENGINE_MAX_NODES];
		grow(&t, shape, seed);
		grow(&all, (struct draft_shape){shape.width, shape.depth, 1000}, seed); /* nothing is pruned */
		int n = tree_pick(&t, 99, ids, parent, rank), met = 0, depth[ENGINE_MAX_NODES];
		assert_true(n <= shape.nodes && n >= 1);
		for (int i = 0; i < n; i++) {
			assert_true(parent[i] < i);
			depth[i] = parent[i] < 0 ? 1 : depth[parent[i]] + 1;
			assert_true(depth[i] <= shape.depth);
			met |= 1 << rank[i];
		}
		assert_int_equal(met, (1 << n) - 1); /* each rank once */
		assert_int_equal(tree_pick(&all, shape.nodes, ids2, parent2, rank2), n);
		assert_memory_equal(ids, ids2, (size_t)n * sizeof *ids);
		assert_memory_equal(parent, parent2, (size_t)n * sizeof *parent);
		ran += t.n_run, ran_all += all.n_run;
	}
	print_message("%d nodes run, %d without pruning\n", ran, ran_all);
	assert_true(ran < ran_all);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_by_hand), cmocka_unit_test(test_ends_and_room), cmocka_unit_test(test_random)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
