/* Sessions and the prefix tree: pages in, pages out, and what reused pages still lack.
 *
 * A session starts on the longest path of the tree that it may use and goes on from pages that others
 * finish while it waits for its turn; pages that it fills enter the tree at once. What may be used
 * depends on what is still owed for a page: the tap must be told its rows when the request is traced and no
 * earlier request of the conversation told them (then its features must have been kept), and a
 * drafting session needs its slot's KV there: written by the same version, or rebuilt from the
 * features, or, where there are none, copied from another version's (its rounds are flagged, as
 * after a switch). Nothing of a session runs before its reused pages have all that.
 */
#include <string.h>
#include "serve/engine_core.h"

enum { PREPARE_ROWS = 512 /* told or rebuilt between two rounds */ };

static struct page *page_of(struct engine *g, const struct session *s, int i)
{
	return &g->pages.info[s->pages[i]];
}

static uint8_t bit_of(const struct session *s)
{
	return (uint8_t)(s->slot < 0 ? 0 : 1u << s->slot);
}

static bool on_path(const struct engine *g, const struct session *s)
{
	return s->n_path == 0 || prefix_alive(&g->prefix, s->node, s->node_gen);
}

/* The node after s's path, or -1. */
static int next_node(const struct engine *g, const struct session *s)
{
	return prefix_child(&g->prefix, s->n_path ? s->node : PREFIX_ROOT, s->salt, s->tokens + s->n_path * PAGE_TOK);
}

static void step_to(struct engine *g, struct session *s, int node)
{
	s->node = node;
	s->node_gen = g->prefix.nodes[node].gen;
	s->n_path++;
}

static bool usable(const struct engine *g, const struct session *s, int node, bool traced)
{
	const struct page *p = &g->pages.info[g->prefix.nodes[node].page];
	if (traced && !p->featured && s->n_told < (s->n_path + 1) * PAGE_TOK)
		return false;
	return s->slot < 0 || p->featured || p->drafted;
}

/* Go on along the tree: table entries from n_path on are replaced or added. One row at least is left to
 * run, as the last one's logits are needed. */
static void follow(struct engine *g, struct session *s, bool traced, const struct told_one *told)
{
	while ((s->n_path + 1) * PAGE_TOK < s->n_tokens && on_path(g, s)) {
		int node = next_node(g, s), i = s->n_path;
		if (node < 0)
			return;
		if (told && i < told->n && s->n_told == i * PAGE_TOK && told->path[i] == g->prefix.nodes[node].path)
			s->n_told += PAGE_TOK;
		if (!usable(g, s, node, traced))
			return;
		prefix_ref(&g->prefix, g->prefix.nodes[node].page);
		if (i < s->n_pages)
			prefix_unref(&g->prefix, s->pages[i]);
		else
			s->n_pages++;
		s->pages[i] = g->prefix.nodes[node].page;
		step_to(g, s, node);
	}
}

bool reuse_enter(struct engine *g, struct session *s)
{
	bool traced = s->begun ? s->traced : capture_wanted(g, s);
	const struct told_one *told = s->begun || !traced ? NULL : told_find(&g->told, told_key(&s->req));
	s->n_fill = s->emitted_us ? s->n_tokens - 1 : s->n_prompt;
	s->slot = s->req.no_draft ? -1 : s->req.probe ? slots_find(&g->slots, s->req.probe_version) : slots_arm(&g->slots, s->req.conversation, s->req.request_id);
	if (s->slot >= 0 && g->slots.s[s->slot].state != SLOT_READY)
		s->slot = -1;
	s->draft_ok = s->slot >= 0;
	if (g->o.prefix != PREFIX_OFF && !s->req.probe)
		follow(g, s, traced, told);
	int need = pages_for(s->n_fill + 1) - s->n_pages;
	bool fits = need + g->n_active <= g->pages.n_free + g->prefix.n_idle && room_take(g, s, need);
	if (!fits) {
		if (!s->begun)
			s->n_told = 0;
		reuse_leave(g, s);
		s->slot = -1;
		return false;
	}
	s->traced = traced;
	s->n_kv = s->n_path * PAGE_TOK;
	s->n_told = !s->begun && s->n_told > s->n_kv ? s->n_kv : s->n_told;
	session_point(s, g->pages.n_total);
	return true;
}

void reuse_leave(struct engine *g, struct session *s)
{
	for (int i = s->n_pages - 1; i >= 0; i--) /* leaf first: prefix.h */
		prefix_unref(&g->prefix, s->pages[i]);
	s->n_pages = s->n_path = s->n_drafted = 0;
	s->node = PREFIX_ROOT;
}

/* ---- what reused pages lack ---- */

bool reuse_preparing(const struct session *s)
{
	return (s->slot >= 0 && s->n_drafted < s->n_path) || (s->traced && s->n_told < s->n_kv);
}

/* Draft KV of pages [i, i+n), from kept features. */
static bool rebuild(struct engine *g, struct session *s, int i, int n)
{
	struct slot *sl = &g->slots.s[s->slot];
	struct rows *b = &g->db;
	int row0 = i * PAGE_TOK;
	rows_reset(b);
	if (g->o.dev->ops->sync(g->o.dev)) /* what reads `given` now is over before it is written */
		return false;
	for (int p = 0; p < n; p++) {
		keep_get(&g->keep, s->pages[i + p] * PAGE_TOK, PAGE_TOK, g->given + (size_t)p * PAGE_TOK * (size_t)g->keep.W);
		for (int t = row0 + p * PAGE_TOK; t < row0 + (p + 1) * PAGE_TOK; t++)
			rows_add(b, s->tokens[t + 1], t, s->draft_pages);
	}
	struct draft_rows r = {.M = b->M, .ids = b->ids, .pos = b->pos, .slots = b->slots, .seqs = b->seqs, .features = g->given, .last_rows = b->logit_rows};
	if (sl->kind->extend(draft_weights(g, sl), &g->slots.kv, &r, NULL, NULL))
		return false;
	for (int p = 0; p < n; p++)
		page_of(g, s, i + p)->drafted |= bit_of(s);
	return true;
}

static bool copy_page(struct engine *g, const struct session *s, int i, int from, int rows)
{
	uint32_t src[PAGE_TOK], dst[PAGE_TOK];
	for (int j = 0; j < rows; j++) {
		src[j] = (s->pages[i] + (uint32_t)(from * g->pages.n_total)) * PAGE_TOK + (uint32_t)j;
		dst[j] = s->draft_pages[i] * PAGE_TOK + (uint32_t)j;
	}
	return g->o.dev->ops->kv_copy(g->o.dev, &g->slots.kv, dst, src, rows) == 0;
}

static int lowest_bit(uint8_t bits)
{
	int i = 0;
	while (!(bits >> i & 1))
		i++;
	return i;
}

/* How many pages from n_drafted on, at most `most`, are to be rebuilt together. */
static int to_rebuild(struct engine *g, const struct session *s, int most)
{
	int n = 0;
	while (n < most && s->n_drafted + n < s->n_path) {
		const struct page *p = page_of(g, s, s->n_drafted + n);
		if (p->drafted & bit_of(s) || !p->featured)
			break;
		n++;
	}
	return n;
}

static int prepare_draft(struct engine *g, struct session *s, int rows)
{
	int left = rows, most = g->max_rows / PAGE_TOK;
	while (s->slot >= 0 && s->n_drafted < s->n_path && left > 0) {
		struct page *p = page_of(g, s, s->n_drafted);
		int n = to_rebuild(g, s, most);
		if (n && !rebuild(g, s, s->n_drafted, n)) {
			draft_drop(g, s);
		} else if (!n && !(p->drafted & bit_of(s))) {
			s->mixed = true;
			if (!p->drafted || !copy_page(g, s, s->n_drafted, lowest_bit(p->drafted), PAGE_TOK))
				draft_drop(g, s); /* the slot it was drafted for is gone */
		}
		s->n_drafted += n ? n : 1;
		left -= n * PAGE_TOK;
	}
	return rows - left;
}

void reuse_prepare(struct engine *g)
{
	int left = PREPARE_ROWS;
	for (int i = 0; i < g->n_active; i++) {
		struct session *s = g->active[i];
		if (g->o.prefix != PREFIX_OFF && !s->req.probe && session_prefilling(s) && s->n_kv == s->n_path * PAGE_TOK && s->n_kv < s->n_pages * PAGE_TOK) {
			int had = s->n_path;
			follow(g, s, s->traced, NULL);
			s->n_kv = s->n_path * PAGE_TOK;
			g->sum.reused += (uint64_t)(s->n_path - had) * PAGE_TOK * !s->emitted_us;
			s->stats.cached += (uint32_t)((s->n_path - had) * PAGE_TOK * !s->emitted_us);
			session_point(s, g->pages.n_total);
		}
		if (left > 0 && reuse_preparing(s)) {
			left -= prepare_draft(g, s, left);
			left -= left > 0 ? capture_reused(g, s, left) : 0;
		}
	}
}

/* ---- pages into the tree ---- */

/* Of two pages with the same tokens the tree keeps the one that can serve more. */
static void meet(struct engine *g, struct session *s, int node)
{
	uint32_t theirs = g->prefix.nodes[node].page, *mine = &s->pages[s->n_path];
	const struct page *t = &g->pages.info[theirs], *m = &g->pages.info[*mine];
	bool t_has_all = !(m->drafted & ~t->drafted) && (t->featured || !m->featured);
	if (!t_has_all) {
		prefix_swap(&g->prefix, node, *mine);
		return;
	}
	prefix_ref(&g->prefix, theirs);
	prefix_unref(&g->prefix, *mine);
	*mine = theirs;
}

void reuse_commit(struct engine *g, struct session *s)
{
	if (g->o.prefix == PREFIX_OFF || s->req.probe)
		return;
	int before = s->n_path;
	while ((s->n_path + 1) * PAGE_TOK <= s->n_kv && (s->n_path + 1) * PAGE_TOK < s->n_tokens && on_path(g, s)) {
		struct page *p = page_of(g, s, s->n_path);
		int node = next_node(g, s);
		if (s->slot >= 0 && s->draft_ok && !s->mixed)
			p->drafted |= bit_of(s);
		p->featured = s->traced && g->keep.W;
		if (node >= 0)
			meet(g, s, node);
		else
			node = prefix_add(&g->prefix, s->n_path ? s->node : PREFIX_ROOT, s->salt, s->tokens + s->n_path * PAGE_TOK, s->pages[s->n_path]);
		step_to(g, s, node);
		s->n_drafted = s->n_path;
	}
	if (s->n_path > before)
		session_point(s, g->pages.n_total);
}

void reuse_carry(struct engine *g, struct session *s, int from)
{
	session_point(s, g->pages.n_total);
	if (s->n_drafted < s->n_path) { /* none of its own rows was run: all is seen to anew */
		s->n_drafted = 0;
		return;
	}
	for (int i = 0; i < pages_for(s->n_kv); i++) {
		int rows = s->n_kv - i * PAGE_TOK < PAGE_TOK ? s->n_kv - i * PAGE_TOK : PAGE_TOK;
		if (!(page_of(g, s, i)->drafted & bit_of(s)) && !copy_page(g, s, i, from, rows)) {
			draft_drop(g, s);
			return;
		}
	}
}

/* Full pages are seen to as reused ones are; the rows after them wait for the next extend. */
bool reuse_regain(struct engine *g, struct session *s)
{
	const struct ops *o = g->o.dev->ops;
	int row0 = s->n_path * PAGE_TOK, n = s->n_kv - row0, W = g->keep.W;
	session_point(s, g->pages.n_total);
	if (!s->traced || !W || n > PAGE_TOK)
		return false;
	for (int i = 0; i < s->n_path; i++)
		if (!page_of(g, s, i)->featured)
			return false;
	if (n) { /* by way of `given`, as the host cannot write to what is pending */
		if (o->sync(g->o.dev))
			return false;
		keep_get(&g->keep, pages_slot(s->pages, row0), n, g->given);
		if (o->copy_rows(g->o.dev, extend_pending(g, s), W, g->given, W, NULL, n, W))
			return false;
	}
	s->n_pending = n;
	s->n_drafted = 0;
	return true;
}
