/* Drafting: chains before the target's forward, extends after it.
 *
 * Sessions are batched per slot. A chain's first token is already known from the
 * last extend; each further step feeds the token and the feedback before it. A chain is cut where it could not be
 * served: at max_tokens, and after a token that ends the text. Anything that
 * goes wrong in a draft (a failed operation, logits that are not finite) costs that
 * session its draft and nothing else.
 */
#include <string.h>
#include "serve/engine_core.h"

uint32_t session_version(const struct engine *g, const struct session *s)
{
	return s->slot < 0 ? 0 : g->slots.s[s->slot].version;
}

static void leave_slot(struct engine *g, struct session *s)
{
	if (s->slot >= 0)
		g->slots.s[s->slot].requests--;
	s->slot = -1;
	s->first = DRAFT_NONE; /* it was the old version's word */
	s->move_at = 0;
}

void draft_drop(struct engine *g, struct session *s)
{
	leave_slot(g, s);
	s->draft_ok = false;
}

void draft_move(struct engine *g, struct session *s, int to)
{
	if (s->req.no_draft || s->slot == to) {
		s->move_at = 0;
		return;
	}
	bool untouched = s->n_kv == 0;
	if (to < 0) {
		draft_drop(g, s);
		return;
	}
	if (!s->draft_ok && !untouched)
		return; /* without draft KV for its past it stays plain */
	int from = s->slot;
	leave_slot(g, s);
	s->slot = to;
	s->draft_ok = true;
	s->mixed = s->mixed || !untouched;
	g->slots.s[to].requests++;
	reuse_carry(g, s, from);
}

static bool ends_text(const struct engine *g, const struct session *s, uint32_t id)
{
	for (int i = 0; i < g->o.n_eog && !s->req.ignore_eos; i++)
		if (g->o.eog_ids[i] == id)
			return true;
	return false;
}

/* How many proposals could still be served: the round itself emits one token more. */
static int chain_want(const struct engine *g, const struct session *s)
{
	int most = session_left(s) - 1, room = session_room(s);
	most = most < room ? most : room;
	return most < g->k ? most : g->k;
}

/* Keep in `on` only the sessions whose chain goes on after n proposals, and gather their feedback
 * rows from src. Returns how many. */
static int narrow(struct engine *g, struct session **on, int n, int have, const real *src, int ld_seat, real *dst)
{
	uint32_t from[ENGINE_MAX_SEQS];
	int m = 0;
	for (int i = 0; i < n; i++) {
		struct session *s = on[i];
		if (s->n_proposed != have || have >= chain_want(g, s) || ends_text(g, s, s->proposed[have - 1]))
			continue;
		from[m] = (uint32_t)(ld_seat ? s->seat : i);
		on[m++] = s;
	}
	if (m && g->o.dev->ops->copy_rows(g->o.dev, dst, g->Hd, src, g->Hd, from, m, g->Hd))
		return 0;
	return m;
}

static void propose_slot(struct engine *g, int slot)
{
	struct slot *sl = &g->slots.s[slot];
	struct session *on[ENGINE_MAX_SEQS];
	uint32_t next[ENGINE_MAX_SEQS];
	int n = 0, turn = 0;
	for (int i = 0; i < g->n_active; i++) {
		struct session *s = g->active[i];
		if (s->slot != slot || session_prefilling(s) || reuse_preparing(s) || s->first == DRAFT_NONE || chain_want(g, s) < 1)
			continue;
		s->proposed[0] = s->first;
		s->n_proposed = 1;
		s->proposer = sl->version;
		on[n++] = s;
	}
	n = narrow(g, on, n, 1, g->fb, 1, g->chain[0]);
	for (int have = 1; n > 0; have++) {
		struct rows *b = &g->db;
		rows_reset(b);
		for (int i = 0; i < n; i++) {
			int pos = on[i]->n_kv - 1 + have;
			rows_add(b, on[i]->proposed[have - 1], pos, on[i]->draft_pages);
			rows_seq(b, on[i]->draft_pages, pos, 1);
		}
		struct draft_rows r = {.M = b->M, .ids = b->ids, .pos = b->pos, .slots = b->slots, .seqs = b->seqs, .n_seqs = b->n_seqs};
		int bad = sl->kind->step(sl->x, &g->slots.kv, &r, g->chain[turn], next);
		for (int i = 0; i < n; i++) {
			if (bad || next[i] >= (uint32_t)g->V)
				draft_drop(g, on[i]); /* what it proposed so far may stand */
			else
				on[i]->proposed[on[i]->n_proposed++] = next[i];
		}
		if (bad)
			return;
		n = narrow(g, on, n, have + 1, g->chain[turn], 0, g->chain[1 - turn]);
		turn = 1 - turn;
	}
}

void propose_all(struct engine *g)
{
	for (int i = 0; i < g->n_active; i++)
		g->active[i]->n_proposed = 0;
	if (g->k < 1)
		return;
	for (int i = 0; i < N_SLOTS; i++)
		if (g->slots.s[i].state == SLOT_READY && g->slots.s[i].requests)
			propose_slot(g, i);
}

/* ---- after the forward ---- */

/* An ended request's page that just became full goes into the tree: its draft KV is worth having. */
static bool fills_page(const struct piece *p)
{
	return p->n_past / PAGE_TOK < p->s->n_kv / PAGE_TOK;
}

/* Rows of the target batch as one draft batch: pairs (f_t, x_{t+1}) at position t. */
static int gather_rows(struct engine *g, int slot, struct session **on, uint32_t *last_rows)
{
	struct rows *b = &g->db;
	rows_reset(b);
	for (int i = 0; i < g->n_pieces; i++) {
		struct piece *p = &g->pieces[i];
		struct session *s = p->s;
		if ((p->done && !fills_page(p)) || s->slot != slot)
			continue;
		int n = p->prefill ? p->n_rows : p->emitted;
		for (int j = 0; j < n; j++) {
			int t = p->n_past + j;
			b->gather[b->M] = (uint32_t)(p->row0 + j);
			rows_add(b, s->tokens[t + 1], t, s->draft_pages);
		}
		on[b->n_seqs] = s;
		last_rows[b->n_seqs] = p->done || session_prefilling(s) ? UINT32_MAX : (uint32_t)(b->M - 1);
		rows_seq(b, s->draft_pages, p->n_past, n);
	}
	return b->M;
}

/* The features of the gathered rows: in place when they are one run, else copied together. */
static const real *gather_features(struct engine *g)
{
	struct rows *b = &g->db;
	int W = N_BOUNDARIES * g->H;
	bool run = true;
	for (int i = 1; i < b->M && run; i++)
		run = b->gather[i] == b->gather[0] + (uint32_t)i;
	if (run)
		return g->features + (size_t)b->gather[0] * (size_t)W;
	return g->o.dev->ops->copy_rows(g->o.dev, g->d_features, W, g->features, W, b->gather, b->M, W) ? NULL : g->d_features;
}

static void extend_slot(struct engine *g, int slot)
{
	struct slot *sl = &g->slots.s[slot];
	struct session *on[ENGINE_MAX_SEQS];
	uint32_t last_rows[ENGINE_MAX_SEQS], first[ENGINE_MAX_SEQS];
	struct rows *b = &g->db;
	if (!gather_rows(g, slot, on, last_rows))
		return;
	const real *f = gather_features(g);
	struct draft_rows r = {.M = b->M, .ids = b->ids, .pos = b->pos, .slots = b->slots, .seqs = b->seqs, .n_seqs = b->n_seqs,
			       .features = f, .last_rows = last_rows};
	bool bad = !f || sl->kind->extend(sl->x, &g->slots.kv, &r, first, g->fb_out);
	for (int i = 0; i < b->n_seqs; i++) {
		struct session *s = on[i];
		bool last = last_rows[i] != UINT32_MAX;
		if (bad || (last && first[i] >= (uint32_t)g->V)) {
			draft_drop(g, s);
			continue;
		}
		if (!last)
			continue;
		size_t at = (size_t)s->seat * (size_t)g->Hd, from = (size_t)i * (size_t)g->Hd;
		if (g->o.dev->ops->copy_rows(g->o.dev, g->fb + at, g->Hd, g->fb_out + from, g->Hd, NULL, 1, g->Hd))
			draft_drop(g, s);
		else
			s->first = first[i];
	}
}

void extend_all(struct engine *g)
{
	for (int i = 0; i < N_SLOTS; i++)
		if (g->slots.s[i].state == SLOT_READY && g->slots.s[i].requests)
			extend_slot(g, i);
}
