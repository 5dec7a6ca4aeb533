/* Merging by rank.
 *
 * Short pieces (nearly all) are scanned for their best pair again and again:
 * quadratic in at most 32 symbols and free of any bookkeeping. Longer ones keep the
 * candidate pairs in a heap ordered by (rank, place) over a linked list of symbols; an
 * entry whose pair has changed meanwhile is recognised by its remembered result
 * and skipped. Both orders are the same, so the cut between them is only speed.
 */
#include "serve/bpe.h"
#include <stdlib.h>
#include <string.h>

enum { SHORT = 32 };

struct slot {
	uint64_t pair; /* left << 32 | right; NONE = empty */
	uint32_t rank, result;
};

#define NONE UINT64_MAX

struct bpe {
	uint32_t byte_id[256];
	struct slot *table;
	size_t mask;
};

struct bpe_symbol {
	uint32_t id; /* UINT32_MAX = merged into its left neighbour */
	uint32_t prev, next;
};

struct bpe_entry {
	uint32_t rank, at, result;
};

static size_t hash_pair(uint64_t pair)
{
	pair ^= pair >> 29;
	pair *= 0xbf58476d1ce4e5b9u;
	return (size_t)(pair ^ pair >> 32);
}

static const struct slot *find(const struct bpe *b, uint32_t left, uint32_t right)
{
	uint64_t pair = (uint64_t)left << 32 | right;

	for (size_t i = hash_pair(pair) & b->mask;; i = (i + 1) & b->mask) {
		if (b->table[i].pair == pair)
			return &b->table[i];
		if (b->table[i].pair == NONE)
			return NULL;
	}
}

int bpe_new(const uint32_t byte_id[256], const struct bpe_merge *merges, size_t n_merges, struct bpe **ret)
{
	struct bpe *b = calloc(1, sizeof *b);
	size_t cap = 16;

	while (cap < 2 * n_merges + 2)
		cap *= 2;
	if (!b || !(b->table = malloc(cap * sizeof *b->table))) {
		free(b);
		return -ENOMEM;
	}
	b->mask = cap - 1;
	memcpy(b->byte_id, byte_id, sizeof b->byte_id);
	for (size_t i = 0; i < cap; i++)
		b->table[i].pair = NONE;
	for (size_t k = 0; k < n_merges; k++) {
		uint64_t pair = (uint64_t)merges[k].left << 32 | merges[k].right;
		size_t i = hash_pair(pair) & b->mask;
		while (b->table[i].pair != NONE && b->table[i].pair != pair)
			i = (i + 1) & b->mask;
		/* a pair listed twice: the later one counts, as in a map built in order */
		b->table[i] = (struct slot){pair, (uint32_t)k, merges[k].result};
	}
	*ret = b;
	return 0;
}

struct bpe *bpe_free(struct bpe *b)
{
	if (b)
		free(b->table);
	free(b);
	return NULL;
}

void bpe_scratch_done(struct bpe_scratch *s)
{
	free(s->sym);
	free(s->heap);
	*s = (struct bpe_scratch){0};
}

static size_t piece_short(const struct bpe *b, uint32_t *ids, size_t n)
{
	for (;;) {
		const struct slot *best = NULL;
		size_t at = 0;

		for (size_t i = 0; i + 1 < n; i++) {
			const struct slot *s = find(b, ids[i], ids[i + 1]);
			if (s && (!best || s->rank < best->rank)) {
				best = s;
				at = i;
			}
		}
		if (!best)
			return n;
		ids[at] = best->result;
		memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
		n--;
	}
}

static int before(const struct bpe_entry *x, const struct bpe_entry *y)
{
	return x->rank != y->rank ? x->rank < y->rank : x->at < y->at;
}

/* A binary heap; its memory was reserved for the most entries there can be. */
static void heap_push(struct bpe_entry *heap, size_t *n, struct bpe_entry x)
{
	size_t i = (*n)++;

	while (i > 0 && before(&x, &heap[(i - 1) / 2])) {
		heap[i] = heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	heap[i] = x;
}

static struct bpe_entry heap_pop(struct bpe_entry *heap, size_t *n)
{
	struct bpe_entry top = heap[0], x = heap[--*n];
	size_t i = 0;

	for (size_t child; (child = 2 * i + 1) < *n; i = child) {
		if (child + 1 < *n && before(&heap[child + 1], &heap[child]))
			child++;
		if (!before(&heap[child], &x))
			break;
		heap[i] = heap[child];
	}
	heap[i] = x;
	return top;
}

static int reserve(struct bpe_scratch *s, size_t n)
{
	if (s->cap < n) {
		void *p = realloc(s->sym, n * sizeof *s->sym);
		if (!p)
			return -ENOMEM;
		s->sym = p;
		s->cap = n;
	}
	/* n - 1 pairs at first; each of at most n - 1 merges takes one entry out and puts two in */
	if (s->heap_cap < 2 * n) {
		void *p = realloc(s->heap, 2 * n * sizeof *s->heap);
		if (!p)
			return -ENOMEM;
		s->heap = p;
		s->heap_cap = 2 * n;
	}
	return 0;
}

static void push_pair(const struct bpe *b, struct bpe_scratch *s, size_t *n_heap, uint32_t left, uint32_t right)
{
	const struct slot *m = find(b, s->sym[left].id, s->sym[right].id);

	if (m)
		heap_push(s->heap, n_heap, (struct bpe_entry){m->rank, left, m->result});
}

static void merge_all(const struct bpe *b, struct bpe_scratch *s, size_t n)
{
	const uint32_t end = UINT32_MAX;
	size_t n_heap = 0;

	for (size_t i = 0; i + 1 < n; i++)
		push_pair(b, s, &n_heap, (uint32_t)i, (uint32_t)i + 1);
	while (n_heap > 0) {
		struct bpe_entry e = heap_pop(s->heap, &n_heap);
		struct bpe_symbol *x = &s->sym[e.at], *y;
		const struct slot *m;

		if (x->id == UINT32_MAX || x->next == end)
			continue;
		y = &s->sym[x->next];
		m = find(b, x->id, y->id);
		if (!m || m->result != e.result) /* the pair has changed since */
			continue;
		x->id = m->result;
		y->id = UINT32_MAX;
		x->next = y->next;
		if (x->next != end) {
			s->sym[x->next].prev = e.at;
			push_pair(b, s, &n_heap, e.at, x->next);
		}
		if (x->prev != end)
			push_pair(b, s, &n_heap, x->prev, e.at);
	}
}

static int piece_long(const struct bpe *b, struct bpe_scratch *s, uint32_t *ids, size_t n, size_t *ret_n)
{
	size_t k = 0;
	int r = n >= UINT32_MAX / 2 ? -E2BIG : reserve(s, n);

	if (r < 0)
		return r;
	for (size_t i = 0; i < n; i++)
		s->sym[i] = (struct bpe_symbol){ids[i], i == 0 ? UINT32_MAX : (uint32_t)i - 1, i + 1 == n ? UINT32_MAX : (uint32_t)i + 1};
	merge_all(b, s, n);
	for (uint32_t i = 0; i != UINT32_MAX; i = s->sym[i].next)
		ids[k++] = s->sym[i].id;
	*ret_n = k;
	return 0;
}

int bpe_piece(const struct bpe *b, struct bpe_scratch *s, const uint8_t *p, size_t n, uint32_t *out, size_t *ret_n)
{
	size_t k = 0;

	for (size_t i = 0; i < n; i++)
		if (b->byte_id[p[i]] != UINT32_MAX)
			out[k++] = b->byte_id[p[i]];
	if (k > SHORT)
		return piece_long(b, s, out, k, ret_n);
	*ret_n = k < 2 ? k : piece_short(b, out, k);
	return 0;
}
