/* The prefix tree against a model that cannot be wrong.
 *
 * The model is a list of (salt, tokens) with the page each was added with. 60,000 random steps
 * add histories page by page as sessions do, follow what is there, hold and release it, swap pages and
 * evict. After each: a lookup finds exactly what the model holds; a page has one reference for the tree
 * and one for each session that holds it; pages are free or referenced, never both; what is evicted was
 * held by nobody and is the least recently released leaf. At the end, with all sessions gone, every page is free
 * or in the tree, and evicting them all frees every page. Histories come from a small alphabet, so that
 * they share prefixes, also ones that differ in nothing but the token after a page.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "serve/prefix.h"

enum { PAGES = 48, SESSIONS = 6, DEPTH = 6, TOKENS = DEPTH * PAGE_TOK + 1, STEPS = 60000 };

struct known { bool used; uint64_t salt, released; int depth, node; uint32_t page, tokens[TOKENS]; };
struct holder { int depth; uint64_t salt; int node; uint32_t pages[DEPTH], tokens[TOKENS]; };

static struct { struct pages pages; struct prefix tree; struct known known[PAGES]; struct holder s[SESSIONS]; uint64_t rng, clock; } x;

static uint32_t draw(uint32_t n)
{
	x.rng = x.rng * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(x.rng >> 33) % n;
}

/* Tokens of a page come from two patterns, the first of each page from two more: few histories, many meetings. */
static void draw_tokens(struct holder *h)
{
	h->salt = draw(2);
	for (int i = 0; i < TOKENS; i++)
		h->tokens[i] = i % PAGE_TOK ? 7 : draw(2);
}

static struct known *model_find(uint64_t salt, const uint32_t *tokens, int depth)
{
	for (int i = 0; i < PAGES; i++)
		if (x.known[i].used && x.known[i].salt == salt && x.known[i].depth == depth &&
		    memcmp(x.known[i].tokens, tokens, ((size_t)depth * PAGE_TOK + 1) * sizeof *tokens) == 0)
			return &x.known[i];
	return NULL;
}

static int holders_of(uint32_t page)
{
	int n = 0;
	for (int i = 0; i < SESSIONS; i++)
		for (int d = 0; d < x.s[i].depth; d++)
			n += x.s[i].pages[d] == page;
	return n;
}

static bool has_child(const struct known *k)
{
	for (int i = 0; i < PAGES; i++)
		if (x.known[i].used && x.known[i].salt == k->salt && x.known[i].depth == k->depth + 1 &&
		    memcmp(x.known[i].tokens, k->tokens, ((size_t)k->depth * PAGE_TOK + 1) * sizeof(uint32_t)) == 0)
			return true;
	return false;
}

static void evict_one(void)
{
	struct known *best = NULL;
	int nodes = x.tree.n_nodes, idle = x.tree.n_idle;
	for (int i = 0; i < PAGES; i++) {
		struct known *k = &x.known[i];
		if (k->used && !holders_of(k->page) && !has_child(k) && (!best || k->released < best->released))
			best = k;
	}
	if (!prefix_evict(&x.tree)) {
		assert_null(best);
		assert_int_equal(idle, 0);
		return;
	}
	if (best) {
		assert_int_equal(x.tree.n_nodes, nodes - 1);
		assert_int_equal(prefix_child(&x.tree, best->depth > 1 ? model_find(best->salt, best->tokens, best->depth - 1)->node : PREFIX_ROOT, best->salt,
					      best->tokens + (best->depth - 1) * PAGE_TOK), -1);
		best->used = false;
		return;
	}
	for (int i = 0; i < PAGES; i++) /* a branch was cut: ask the tree what it still has */
		if (x.known[i].used && !(x.tree.nodes[x.known[i].node].used && x.tree.nodes[x.known[i].node].page == x.known[i].page))
			x.known[i].used = false;
	assert_true(x.tree.n_nodes < nodes);
}

static bool take(uint32_t *ret)
{
	while (!x.pages.n_free && x.tree.n_idle)
		evict_one();
	return pages_take(&x.pages, ret, 1);
}

static void release(struct holder *h)
{
	for (int d = h->depth - 1; d >= 0; d--) {
		prefix_unref(&x.tree, h->pages[d]);
		for (int i = 0; i < PAGES; i++)
			if (x.known[i].used && x.known[i].page == h->pages[d])
				x.known[i].released = ++x.clock;
	}
	h->depth = 0;
}

static struct known *model_add(const struct holder *h, int depth, int node, uint32_t page)
{
	int i = 0;
	while (x.known[i].used)
		i++;
	struct known *k = &x.known[i];
	*k = (struct known){.used = true, .salt = h->salt, .depth = depth, .node = node, .page = page};
	memcpy(k->tokens, h->tokens, sizeof k->tokens);
	return k;
}

/* One page on: what is there is shared (or, now and then, replaced by our own), what is not is added. */
static void grow(struct holder *h)
{
	int d = h->depth, at = d ? h->node : PREFIX_ROOT;
	uint32_t page;
	if (d && !(x.tree.nodes[at].used && model_find(h->salt, h->tokens, d) && model_find(h->salt, h->tokens, d)->node == at))
		return; /* its branch was cut */
	const uint32_t *key = h->tokens + d * PAGE_TOK;
	int node = prefix_child(&x.tree, at, h->salt, key);
	struct known *k = model_find(h->salt, h->tokens, d + 1);
	assert_int_equal(node >= 0, k != NULL);
	if (k && draw(4)) {
		assert_int_equal(node, k->node);
		prefix_ref(&x.tree, k->page);
		h->pages[h->depth++] = k->page;
		h->node = node;
		return;
	}
	if (!take(&page))
		return;
	h->pages[h->depth++] = page;
	if (d && !x.tree.nodes[at].used) { /* making room may have cut it */
		h->depth--;
		prefix_unref(&x.tree, page);
		return;
	}
	node = prefix_child(&x.tree, at, h->salt, key);
	k = model_find(h->salt, h->tokens, d + 1);
	assert_int_equal(node >= 0, k != NULL);
	if (k) {
		prefix_swap(&x.tree, node, page);
		k->page = page;
	} else {
		node = prefix_add(&x.tree, at, h->salt, key, page);
		(void)model_add(h, d + 1, node, page);
	}
	h->node = node;
}

static void check_all(void)
{
	int idle = 0, in_tree = 0, taken = 0;
	for (int i = 0; i < PAGES; i++) {
		const struct known *k = &x.known[i];
		if (!k->used)
			continue;
		in_tree++;
		idle += !holders_of(k->page);
		assert_int_equal(x.pages.info[k->page].node, k->node);
		assert_int_equal(x.tree.nodes[k->node].page, k->page);
	}
	for (uint32_t p = 0; p < PAGES; p++) {
		bool tree = false;
		for (int i = 0; i < PAGES; i++)
			tree |= x.known[i].used && x.known[i].page == p;
		assert_int_equal(x.pages.info[p].refs, holders_of(p) + tree);
		taken += x.pages.info[p].refs > 0;
	}
	assert_int_equal(x.pages.n_free, PAGES - taken);
	assert_int_equal(x.tree.n_nodes, in_tree);
	assert_int_equal(x.tree.n_idle, idle);
}

static void test_model(void **state)
{
	(void)state;
	int shared = 0;
	x.rng = 20261130;
	assert_int_equal(pages_init(&x.pages, PAGES), 0);
	assert_int_equal(prefix_init(&x.tree, &x.pages), 0);
	for (int step = 0; step < STEPS; step++) {
		struct holder *h = &x.s[draw(SESSIONS)];
		uint32_t what = draw(16);
		if (what == 0) {
			evict_one();
		} else if (what < 3 || h->depth == DEPTH) {
			release(h);
		} else {
			if (!h->depth)
				draw_tokens(h);
			grow(h);
		}
		if (step % 16 == 0)
			check_all();
		for (int d = 0; d < h->depth; d++)
			shared += holders_of(h->pages[d]) > 1;
	}
	for (int i = 0; i < SESSIONS; i++)
		release(&x.s[i]);
	check_all();
	assert_int_equal(x.pages.n_free + x.tree.n_idle, PAGES);
	print_message("%llu evicted, shared %d times\n", (unsigned long long)x.tree.evicted, shared);
	assert_true(x.tree.evicted > 1000 && shared > 10000);
	while (x.tree.n_idle)
		evict_one();
	assert_int_equal(x.pages.n_free, PAGES);
	prefix_done(&x.tree);
	pages_done(&x.pages);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_model)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
