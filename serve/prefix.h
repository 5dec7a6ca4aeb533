/* Prefixes that are still there: a radix tree over full pages.
 *
 * An edge is one page: its PAGE_TOK tokens and the one that follows, because the draft's
 * last row of a page has seen that one (it pairs f_t with x_{t+1}). A node is therefore a
 * whole history, from position 0 to the end of its page, under one salt; its KV is what
 * anybody with that history would compute, bit for bit. Different salts never meet.
 *
 * A node holds one reference to its page. A page that nobody else references is idle and may be
 * evicted, the least recently released first, leaves before their parents. Pages are released leaf
 * first, so that a parent is always younger than what hangs from it.
 * Threads: the engine's.
 */
#pragma once
#include "serve/pages.h"

enum { PREFIX_KEY = PAGE_TOK + 1, PREFIX_ROOT = -1 };

struct prefix_node {
	uint32_t key[PREFIX_KEY];
	uint64_t path; /* hash of salt and all tokens up to here */
	uint32_t gen;  /* counts the node's lives: who remembers a node remembers this too */
	uint32_t page;
	int parent, child, next, prev; /* tree: siblings are a list; -1 = none */
	int chain;                     /* next in the hash bucket */
	int older, newer;              /* list of the idle */
	bool used, idle;
};

struct prefix {
	struct pages *pages;
	struct prefix_node *nodes; /* [pages->n_total]: a node needs a page of its own */
	int *buckets, n_buckets;
	int free;           /* list through chain */
	int oldest, newest; /* idle ones */
	int n_nodes, n_idle;
	uint64_t evicted;   /* pages, ever */
};

int MUSTCHECK prefix_init(struct prefix *t, struct pages *pages);
void prefix_done(struct prefix *t); /* before pages_done; gives the pages back */
/* The node below `at` (PREFIX_ROOT: the first page, under salt) that key leads to, or -1. */
int prefix_child(const struct prefix *t, int at, uint64_t salt, const uint32_t *key);
/* A new node there (none may exist), which takes a reference to page. */
int prefix_add(struct prefix *t, int at, uint64_t salt, const uint32_t *key, uint32_t page);
/* The node holds another page with the same tokens from now on. */
void prefix_swap(struct prefix *t, int node, uint32_t page);
/* References of sessions, on pages inside the tree or not. */
void prefix_ref(struct prefix *t, uint32_t page);
void prefix_unref(struct prefix *t, uint32_t page);
/* Free one idle page; false when there is none. */
bool prefix_evict(struct prefix *t);
static inline bool prefix_alive(const struct prefix *t, int node, uint32_t gen)
{
	return node >= 0 && t->nodes[node].used && t->nodes[node].gen == gen;
}
