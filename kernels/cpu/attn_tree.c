/* Attention over a tree of proposals, with the bits of a chain.
 *
 * A sum's order is fixed by positions: 32 keys a chain of V, 128 a softmax step. Nodes lie
 * in places, several of one depth, so a path is first copied together: the page that
 * the tree begins in and those behind it, of one head, with the path's keys at their positions. Rows that
 * share a path share the copy, and what runs over it is the same code as for a chain. A path that already lies
 * where it would as a chain (the first one of a tree in depth-first order) is read in place.
 */
#include <string.h>
#include "kernels/cpu/attn.h"

static int parent_of(const struct attn_seq *s, int node)
{
	return s->parent[node];
}

static bool well_formed(const struct attn_seq *s)
{
	int n = s->n_past + s->n_rows - s->tree0;
	if (s->tree0 < 0 || s->tree0 > s->n_past + 1 || n < 0 || n > ATTN_TREE_MAX)
		return false;
	for (int i = 0; i < n; i++)
		if (parent_of(s, i) < -1 || parent_of(s, i) >= i)
			return false;
	return true;
}

int attn_paths_make(struct attn_paths *t, const struct attn_seq *s)
{
	int first = s->n_past - s->tree0, n = first + s->n_rows; /* node of row 0: -1 when that is the root */
	int at = 0, depth[ATTN_TREE_MAX];
	bool inner[ATTN_TREE_MAX] = {false}, taken[ATTN_TREE_MAX] = {false};

	if (!well_formed(s))
		return -1;
	for (int i = 0; i < n; i++) {
		int up = parent_of(s, i);
		depth[i] = up < 0 ? 0 : depth[up] + 1;
		if (up >= 0)
			inner[up] = true;
	}
	for (int end = cpu_max(first, 0); end < n; end++) {
		if (inner[end])
			continue;
		int from = at;
		for (int i = end; i >= first && i >= 0 && !taken[i]; i = parent_of(s, i)) {
			taken[i] = true;
			t->row[at] = (int16_t)(i - first);
			t->hi[at++] = s->tree0 + depth[i];
		}
		if (first < 0 && from == 0) { /* the root goes with the first path */
			t->row[at] = 0;
			t->hi[at++] = s->n_past;
		}
		for (int i = from; i < at; i++)
			t->end[i] = (int16_t)end;
	}
	if (!n) { /* a root alone */
		t->row[0] = 0;
		t->hi[0] = s->n_past;
		t->end[0] = -1;
	}
	return 0;
}

static size_t half_bytes(const struct cpu_kernels *k, const struct kv_pool *p)
{
	return cpu_round_up(cpu_kv_head_elems(k, p) * dtype_size(p->type), 64);
}

size_t attn_tail_bytes(const struct cpu_kernels *k, const struct kv_pool *p)
{
	return 2 * half_bytes(k, p) * (size_t)((ATTN_TREE_MAX + p->page_tok - 1) / p->page_tok + 1);
}

const char *attn_tail_page(const struct cpu_kernels *k, const struct attn_block *b, int page, bool v)
{
	return b->tail + half_bytes(k, b->pool) * (size_t)(2 * (page - b->tail_page) + v);
}

void attn_tail(const struct cpu_kernels *k, struct attn_block *b, const struct attn_seq *s, int end, char *mem)
{
	const struct kv_pool *p = b->pool;
	size_t half = half_bytes(k, p);
	int path[ATTN_TREE_MAX], n = 0;

	b->tail = NULL;
	for (int i = end; i >= 0; i = parent_of(s, i))
		path[n++] = i;
	if (end < n) /* depth n-1 is place end: all of it is in place */
		return;
	b->tail = mem;
	b->tail_page = s->tree0 / p->page_tok;
	int before = s->tree0 % p->page_tok;
	if (before) { /* the positions in front of the tree lie in the same page; what of the tree is copied along is overwritten or unseen */
		memcpy(mem, cpu_kv_head(k, p, b->layer, b->pages[b->tail_page], b->head, false), (size_t)p->page_tok * (size_t)p->d * dtype_size(p->type));
		memcpy(mem + half, cpu_kv_head(k, p, b->layer, b->pages[b->tail_page], b->head, true), cpu_kv_head_elems(k, p) * dtype_size(p->type));
	}
	for (int i = 0; i < n; i++) {
		int from = s->tree0 + path[n - 1 - i], to = before + i;
		uint32_t page = b->pages[from / p->page_tok];
		char *at = mem + 2 * half * (size_t)(to / p->page_tok);
		cpu_kv_move(k, p, at, at + half, to % p->page_tok, cpu_kv_head(k, p, b->layer, page, b->head, false),
			    cpu_kv_head(k, p, b->layer, page, b->head, true), from % p->page_tok);
	}
}
