/* Drafting before the target's forward: trees of proposals (of chains that a device draws alone: chain.c).
 *
 * Sessions are batched per slot, and level by level. What may follow the root is already known from the
 * last extend; each further level feeds the tokens and the feedback that led to them. In the draft's KV
 * the nodes it ran lie behind the real rows, and the next extend writes over them. A path is cut where it could not be
 * served: at max_tokens, and after a token that ends the text. Anything that
 * goes wrong in a draft (a failed operation, logits that are not finite) costs that
 * session its draft and nothing else.
 */
#include "serve/engine_core.h"
#include "serve/fault.h"

uint32_t session_version(const struct engine *g, const struct session *s)
{
	return s->slot < 0 ? 0 : g->slots.s[s->slot].version;
}

struct draft *draft_weights(const struct engine *g, const struct slot *s)
{
	for (int i = 0; i < N_SLOTS && (FAULT(FAULT_WRONG_WEIGHTS) || FAULT(FAULT_NOT_UPDATED)); i++)
		if (g->slots.s[i].state == SLOT_READY && &g->slots.s[i] != s && (FAULT(FAULT_WRONG_WEIGHTS) || i == g->slots.previous))
			return g->slots.s[i].x;
	return s->x;
}

static void leave_slot(struct engine *g, struct session *s)
{
	if (s->slot >= 0)
		g->slots.s[s->slot].requests--;
	s->slot = -1;
	s->first[0] = DRAFT_NONE; /* it was the old version's word */
	s->due = -1;
	s->move_at = 0;
}

void draft_drop(struct engine *g, struct session *s)
{
	leave_slot(g, s);
	s->draft_ok = false;
	s->n_pending = 0;
}

void draft_move(struct engine *g, struct session *s, int to)
{
	if (s->req.no_draft || s->req.probe || s->slot == to) {
		s->move_at = 0;
		return;
	}
	bool untouched = s->n_kv == 0, lost = !s->draft_ok && !untouched;
	if (to < 0) {
		draft_drop(g, s);
		return;
	}
	if (lost && session_prefilling(s))
		return; /* later */
	int from = s->slot;
	leave_slot(g, s);
	s->slot = to;
	s->draft_ok = true;
	s->mixed = !lost && (s->mixed || !untouched);
	g->slots.s[to].requests++;
	if (!lost)
		reuse_carry(g, s, from);
	else if (!reuse_regain(g, s))
		draft_drop(g, s); /* without draft KV for its past it stays plain */
}

/* What s may propose in this round: no more than could be served (the round itself emits one token more), and
 * no more nodes than there are places in its pages. */
static struct draft_shape shape_of(const struct session *s)
{
	struct draft_shape h = s->shape;
	int deepest = session_left(s) - 1, room = session_room(s);
	h.depth = h.depth < deepest ? h.depth : deepest;
	h.nodes = h.nodes < room ? h.nodes : room;
	if (h.nodes < 1)
		h.depth = 0;
	if (h.depth <= 1 && h.width > h.nodes)
		h.width = h.nodes;
	return h;
}

/* The level's nodes of one session enter the draft batch; from: which row of the level before fed each. */
static void add_level(struct engine *g, const struct session *s, const struct tree *t, int base, uint32_t *from)
{
	struct rows *b = &g->db;
	int width = t->n_live;
	for (int i = 0; i < width; i++) {
		const struct tree_cand *c = &t->c[t->live[i]];
		int above = c->parent < 0 ? 0 : t->c[c->parent].run - t->above_run;
		from[b->M] = (uint32_t)(base + above);
		rows_add_at(b, c->id, s->n_kv - 1 + c->depth, s->n_kv + c->run, s->draft_pages);
	}
	rows_seq(b, s->draft_pages, s->n_kv + t->level_run, width);
	if (t->shape.width > 1)
		rows_tree(b, t->run_parent, s->n_kv);
}

/* One level of every tree in `on`; false when no tree grows any more. base: each one's first row in src, and then in the
 * chain buffer `turn`. */
static bool grow_level(struct engine *g, struct slot *sl, struct session **on, int n, int *base, const real *src, real *dst)
{
	uint32_t from[ENGINE_MAX_SEQS * TREE_WIDTH];
	struct rows *b = &g->db;
	rows_reset(b);
	for (int i = 0; i < n; i++) {
		struct tree *t = &g->trees[i];
		int room = session_room(on[i]) + 1 - t->n_run, row0 = b->M;
		if (on[i]->slot < 0 || !tree_next(t, room, session_ends, on[i])) {
			t->n_live = 0;
			continue;
		}
		add_level(g, on[i], t, base[i], from);
		base[i] = row0;
	}
	if (!b->M)
		return false;
	struct draft_rows r = {.M = b->M, .ids = b->ids, .pos = b->pos, .slots = b->slots, .seqs = b->seqs, .n_seqs = b->n_seqs};
	struct draft_word w = words_level(g, g->width);
	int width = g->width, cost = cost_begin(g, CTL_STEP, b->M);
	bool bad = g->o.dev->ops->copy_rows(g->o.dev, dst, g->Hd, src, g->Hd, from, b->M, g->Hd) ||
		   sl->kind->step(draft_weights(g, sl), &g->slots.kv, &r, &w, dst);
	cost_end(g, cost);
	bad = g->o.dev->ops->sync(g->o.dev) || bad;
	for (int i = 0; i < b->M * width && FAULT(FAULT_CORRUPT_D2T); i++)
		w.ids[i] = (w.ids[i] + 7) % (uint32_t)g->V;
	for (int i = 0; i < n; i++)
		for (int k = 0; k < g->trees[i].n_live; k++) {
			int at = (base[i] + k) * width;
			if (bad || w.ids[at] >= (uint32_t)g->V)
				draft_drop(g, on[i]); /* what it proposed so far may stand */
			else
				tree_note(&g->trees[i], k, w.ids + at, w.logp + at);
		}
	return !bad;
}

void take_tree(struct session *s, const struct tree *t, int nodes, uint32_t version)
{
	int depth[ENGINE_MAX_NODES];
	s->n_proposed = tree_pick(t, nodes, s->proposed, s->parent, s->node_rank);
	s->proposer = version;
	s->used = t->shape;
	s->depth = 0;
	s->branches = false;
	for (int i = 0; i < s->n_proposed; i++) {
		depth[i] = s->parent[i] < 0 ? 1 : depth[s->parent[i]] + 1;
		s->depth = depth[i] > s->depth ? depth[i] : s->depth;
		s->branches = s->branches || s->parent[i] != i - 1;
	}
}

/* Who proposes from a slot, and what; g->width becomes the widest. */
static int gather(struct engine *g, int slot, struct session **on, struct draft_shape *shape)
{
	int n = 0;
	g->width = 1;
	for (int i = 0; i < g->n_active; i++) {
		struct session *s = g->active[i];
		if (s->slot != slot || session_prefilling(s) || reuse_preparing(s) || (s->first[0] == DRAFT_NONE && s->due < 0))
			continue;
		shape[n] = shape_of(s);
		if (shape[n].depth < 1)
			continue;
		g->width = shape[n].width > g->width ? shape[n].width : g->width;
		on[n++] = s;
	}
	return n;
}

static void propose_slot(struct engine *g, int slot)
{
	struct slot *sl = &g->slots.s[slot];
	struct session *on[ENGINE_MAX_SEQS];
	struct draft_shape shape[ENGINE_MAX_SEQS];
	int base[ENGINE_MAX_SEQS], turn = 0, n = gather(g, slot, on, shape);
	uint32_t version = sl->version;
	if (g->o.dev->own_memory && g->width == 1 && !FAULT(FAULT_CORRUPT_D2T)) {
		chain_queue(g, sl, on, shape, n);
		return;
	}
	words_take(g, false);
	n = gather(g, slot, on, shape); /* less those that turned out to have nothing to say */
	for (int i = 0; i < n; i++) {
		tree_start(&g->trees[i], shape[i], on[i]->first, on[i]->first_logp);
		base[i] = on[i]->seat;
	}
	for (const real *src = g->fb; n && grow_level(g, sl, on, n, base, src, g->chain[turn]); turn = 1 - turn)
		src = g->chain[turn];
	for (int i = 0; i < n; i++)
		take_tree(on[i], &g->trees[i], g->trees[i].shape.nodes, version);
}

void propose_all(struct engine *g)
{
	g->words.n_chained = 0;
	for (int i = 0; i < g->n_active; i++)
		g->active[i]->n_proposed = g->active[i]->chained = 0;
	for (int i = 0; i < N_SLOTS; i++)
		if (g->slots.s[i].state == SLOT_READY && g->slots.s[i].requests)
			propose_slot(g, i);
}
