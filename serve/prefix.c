/* Nodes live in one array and are found by a hash of their path; equality is of parent and tokens. */
#include <stdlib.h>
#include <string.h>
#include "serve/prefix.h"

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
	return x ^ (x >> 32);
}

static uint64_t path_of(const struct prefix *t, int at, uint64_t salt, const uint32_t *key)
{
	uint64_t h = at == PREFIX_ROOT ? mix(salt + 0x9e3779b97f4a7c15u) : t->nodes[at].path;
	for (int i = 0; i < PREFIX_KEY; i++)
		h = mix(h ^ key[i]) + 0x9e3779b97f4a7c15u;
	return h;
}

static int *bucket_of(const struct prefix *t, uint64_t path)
{
	return &t->buckets[path & (uint64_t)(t->n_buckets - 1)];
}

int prefix_init(struct prefix *t, struct pages *pages)
{
	int n = pages->n_total, buckets = 16;
	while (buckets < n)
		buckets *= 2;
	*t = (struct prefix){.pages = pages, .n_buckets = buckets, .free = -1, .oldest = -1, .newest = -1};
	t->nodes = calloc((size_t)n, sizeof *t->nodes);
	t->buckets = malloc((size_t)buckets * sizeof *t->buckets);
	if (!t->nodes || !t->buckets) {
		free(t->nodes);
		free(t->buckets);
		*t = (struct prefix){0};
		return -ENOMEM;
	}
	for (int i = 0; i < buckets; i++)
		t->buckets[i] = -1;
	for (int i = n - 1; i >= 0; i--) {
		t->nodes[i].chain = t->free;
		t->free = i;
	}
	return 0;
}

/* ---- the list of the idle ---- */

static void idle_add(struct prefix *t, int i)
{
	struct prefix_node *n = &t->nodes[i];
	n->idle = true;
	n->newer = -1;
	n->older = t->newest;
	*(t->newest >= 0 ? &t->nodes[t->newest].newer : &t->oldest) = i;
	t->newest = i;
	t->n_idle++;
}

static void idle_remove(struct prefix *t, int i)
{
	struct prefix_node *n = &t->nodes[i];
	*(n->older >= 0 ? &t->nodes[n->older].newer : &t->oldest) = n->newer;
	*(n->newer >= 0 ? &t->nodes[n->newer].older : &t->newest) = n->older;
	n->idle = false;
	t->n_idle--;
}

/* ---- nodes ---- */

int prefix_child(const struct prefix *t, int at, uint64_t salt, const uint32_t *key)
{
	uint64_t path = path_of(t, at, salt, key);
	for (int i = *bucket_of(t, path); i >= 0; i = t->nodes[i].chain) {
		const struct prefix_node *n = &t->nodes[i];
		if (n->path == path && n->parent == at && memcmp(n->key, key, sizeof n->key) == 0)
			return i;
	}
	return -1;
}

/* The node's own reference: the page leaves the node. */
static void page_out(struct prefix *t, int i)
{
	uint32_t page = t->nodes[i].page;
	if (t->nodes[i].idle)
		idle_remove(t, i);
	t->pages->info[page].node = -1;
	pages_unref(t->pages, page);
}

/* Whoever brings a page holds it: it is not idle yet. */
static void page_in(struct prefix *t, int i, uint32_t page)
{
	pages_ref(t->pages, page);
	t->pages->info[page].node = i;
	t->nodes[i].page = page;
}

int prefix_add(struct prefix *t, int at, uint64_t salt, const uint32_t *key, uint32_t page)
{
	int i = t->free;
	struct prefix_node *n = &t->nodes[i];
	uint64_t path = path_of(t, at, salt, key);
	int *bucket = bucket_of(t, path);
	t->free = n->chain;
	*n = (struct prefix_node){.path = path, .gen = n->gen + 1, .parent = at, .child = -1, .next = -1, .prev = -1, .chain = *bucket, .used = true};
	memcpy(n->key, key, sizeof n->key);
	*bucket = i;
	if (at >= 0) {
		n->next = t->nodes[at].child;
		if (n->next >= 0)
			t->nodes[n->next].prev = i;
		t->nodes[at].child = i;
	}
	page_in(t, i, page);
	t->n_nodes++;
	return i;
}

void prefix_swap(struct prefix *t, int node, uint32_t page)
{
	page_out(t, node);
	page_in(t, node, page);
}

static void drop_leaf(struct prefix *t, int i)
{
	struct prefix_node *n = &t->nodes[i];
	int *link = bucket_of(t, n->path);
	while (*link != i)
		link = &t->nodes[*link].chain;
	*link = n->chain;
	if (n->next >= 0)
		t->nodes[n->next].prev = n->prev;
	if (n->prev >= 0)
		t->nodes[n->prev].next = n->next;
	else if (n->parent >= 0)
		t->nodes[n->parent].child = n->next;
	page_out(t, i);
	n->used = false;
	n->chain = t->free;
	t->free = i;
	t->n_nodes--;
	t->evicted++;
}

/* An inner node, with all that hangs from it; pages that sessions hold stay theirs. */
static void drop_branch(struct prefix *t, int i)
{
	for (int at = i;;) {
		while (t->nodes[at].child >= 0)
			at = t->nodes[at].child;
		int up = t->nodes[at].parent;
		drop_leaf(t, at);
		if (at == i)
			return;
		at = up;
	}
}

/* ---- sessions ---- */

void prefix_ref(struct prefix *t, uint32_t page)
{
	int node = t->pages->info[page].node;
	if (node >= 0 && t->nodes[node].idle)
		idle_remove(t, node);
	pages_ref(t->pages, page);
}

void prefix_unref(struct prefix *t, uint32_t page)
{
	int node = t->pages->info[page].node;
	if (pages_unref(t->pages, page) == 1 && node >= 0)
		idle_add(t, node);
}

/* An idle inner node has an idle child that is older, but for one case: its page was
 * swapped while somebody still reads the old one and has gone on below it. Such a branch is cut only
 * when there is nothing else. */
bool prefix_evict(struct prefix *t)
{
	for (int i = t->oldest; i >= 0; i = t->nodes[i].newer)
		if (t->nodes[i].child < 0) {
			drop_leaf(t, i);
			return true;
		}
	if (t->oldest < 0)
		return false;
	drop_branch(t, t->oldest);
	return true;
}

void prefix_done(struct prefix *t)
{
	for (int i = 0; t->nodes && i < t->pages->n_total; i++)
		if (t->nodes[i].used)
			drop_branch(t, i);
	free(t->nodes);
	free(t->buckets);
	*t = (struct prefix){0};
}
