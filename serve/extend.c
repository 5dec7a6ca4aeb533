/* After the target's forward: who drafts next, and draft KV for the rows that became real.
 *
 * A prompt's rows are extended at once, as they come in bulk. A decoding session's rows are kept (their
 * features, one page of them and a round at most) and extended when the session is about to draft, together with the
 * logits of the last one, or when they fill a page, together and without: so a session that does not draft pays next
 * to nothing, and can draft again at any time.
 */
#include <math.h>
#include <string.h>
#include "serve/engine_core.h"
#include "serve/fault.h"

/* Shapes for the coming round of everybody who could propose in it. */
static void choose(struct engine *g)
{
	struct ctl_session list[ENGINE_MAX_SEQS];
	struct session *on[ENGINE_MAX_SEQS];
	int n = 0, plain = 0;
	g->ctl.mode = (enum draft_mode)atomic_load_explicit(&g->draft_mode, memory_order_relaxed);
	g->ctl.max_depth = atomic_load_explicit(&g->draft_k, memory_order_relaxed);
	for (int i = 0; i < g->n_pieces; i++) {
		struct session *s = g->pieces[i].s;
		s->shape = (struct draft_shape){1, 0, 0};
		if (g->pieces[i].done || session_prefilling(s))
			continue;
		if (s->slot < 0) {
			plain++;
			continue;
		}
		if (s->req.probe) { /* always the same chain */
			s->shape = (struct draft_shape){1, g->ctl.max_depth, g->ctl.max_depth};
			continue;
		}
		s->ctl_key = controller_key(&g->ctl, session_version(g, s), s->req.domain);
		list[n].key = s->ctl_key;
		on[n++] = s;
	}
	controller_choose(&g->ctl, list, n, plain);
	for (int i = 0; i < n; i++)
		on[i]->shape = list[i].shape;
}

/* Does this round's last row of s fill a page, or one of those kept before? An ended request's too: it goes into the tree. */
static bool fills_page(const struct session *s)
{
	return (s->n_kv - s->n_pending) / PAGE_TOK < s->n_kv / PAGE_TOK;
}

real *extend_pending(const struct engine *g, const struct session *s)
{
	return g->pending + (size_t)s->seat * SESSION_PENDING * (size_t)(N_BOUNDARIES * g->H);
}

/* Keep what a decoding round made real. */
static int keep_rows(struct engine *g, const struct piece *p)
{
	struct session *s = p->s;
	int W = N_BOUNDARIES * g->H;
	int r = g->o.dev->ops->copy_rows(g->o.dev, extend_pending(g, s) + (size_t)s->n_pending * (size_t)W, W, g->features + (size_t)p->row0 * (size_t)W, W, NULL,
					 p->emitted, W);
	s->n_pending += p->emitted;
	return r;
}

/* Sessions gathered for one extend. */
struct batch {
	int n;
	struct session *on[ENGINE_MAX_SEQS];
	const real *from[ENGINE_MAX_SEQS]; /* features */
	int rows[ENGINE_MAX_SEQS];
	bool last[ENGINE_MAX_SEQS]; /* it continues into a proposal */
	bool prompts;
};

static const real *gather_features(struct engine *g, const struct batch *x)
{
	int W = N_BOUNDARIES * g->H, at = 0, r = 0;
	if (x->n == 1 && x->prompts && !FAULT(FAULT_OVERFLOW)) /* the few rows of others are brought to the same place whoever they are of */
		return x->from[0];
	for (int i = 0; i < x->n && !r; at += x->rows[i++])
		r = g->o.dev->ops->copy_rows(g->o.dev, g->d_features + (size_t)at * (size_t)W, W, x->from[i], W, NULL, x->rows[i], W);
	const real beyond = (real)INFINITY; /* what a number beyond half precision is stored as */
	for (int i = 0; i < at && FAULT(FAULT_OVERFLOW) && !r; i++)
		r = g->o.dev->ops->upload(g->o.dev, g->d_features + (size_t)i * (size_t)W, &beyond, sizeof beyond);
	return r ? NULL : g->d_features;
}

/* Sequence i of the batch, n-th of those with a last row, may go on: how, the device knows by now or later. */
static void note_first(struct engine *g, struct session *s, int n)
{
	size_t at = (size_t)s->seat * (size_t)g->Hd, from = (size_t)n * (size_t)g->Hd;
	if (g->o.dev->ops->copy_rows(g->o.dev, g->fb + at, g->Hd, g->fb_out + from, g->Hd, NULL, 1, g->Hd)) {
		draft_drop(g, s);
		return;
	}
	s->due = g->words.n_due + n;
}

static void run_batch(struct engine *g, struct slot *sl, struct batch *x)
{
	struct rows *b = &g->db;
	struct draft_word w = words_due(g);
	int n = 0;
	if (!x->n)
		return;
	int cost = x->prompts ? -1 : cost_begin(g, CTL_EXTEND, controller_extend_rows(b->M, b->n_seqs));
	struct draft_rows r = {.M = b->M, .ids = b->ids, .pos = b->pos, .slots = b->slots, .seqs = b->seqs, .n_seqs = b->n_seqs,
			       .features = gather_features(g, x), .last_rows = b->logit_rows};
	bool bad = !r.features || sl->kind->extend(draft_weights(g, sl), &g->slots.kv, &r, &w, g->fb_out);
	cost_end(g, cost);
	for (int i = 0; i < x->n; i++) {
		struct session *s = x->on[i];
		s->n_pending = 0;
		if (bad)
			draft_drop(g, s);
		else if (x->last[i])
			note_first(g, s, n++);
	}
	g->words.n_due += n;
	if (!g->o.dev->own_memory) /* it is there, and what is wrong with it is better known before the pages are kept */
		words_take(g, true);
	rows_reset(b);
	x->prompts = false;
	x->n = 0;
}

/* Rows t0.. of s, n of them, with features at `from`: pairs (f_t, x_{t+1}) at position t. */
static void add_rows(struct engine *g, struct slot *sl, struct batch *x, struct session *s, int t0, int n, const real *from, bool last)
{
	struct rows *b = &g->db;
	if (b->M + n > g->max_rows)
		run_batch(g, sl, x);
	for (int t = t0; t < t0 + n; t++)
		rows_add(b, s->tokens[t + 1], t, s->draft_pages);
	x->on[x->n] = s;
	x->from[x->n] = from;
	x->rows[x->n] = n;
	x->last[x->n++] = last;
	if (last)
		rows_last(b, s->draft_pages, t0 + n - 1);
}

static void extend_slot(struct engine *g, int slot)
{
	struct slot *sl = &g->slots.s[slot];
	struct batch x = {.n = 0};
	rows_reset(&g->db);
	for (int i = 0; i < g->n_pieces; i++) {
		struct piece *p = &g->pieces[i];
		struct session *s = p->s;
		if (s->slot != slot)
			continue;
		s->first[0] = DRAFT_NONE;
		s->due = -1;
		bool last = s->shape.depth > 0;
		if (p->prefill) {
			if (p->done && p->n_past / PAGE_TOK == s->n_kv / PAGE_TOK)
				continue;
			if (FAULT(FAULT_STALE_PAGE) && p->n_rows > 1) { /* only the last row's keys and values are written */
				size_t skip = (size_t)(p->n_rows - 1);

				add_rows(g, sl, &x, s, p->n_past + (int)skip, 1, g->features + ((size_t)p->row0 + skip) * (size_t)(N_BOUNDARIES * g->H), last);
				x.prompts = true;
				continue;
			}
			add_rows(g, sl, &x, s, p->n_past, p->n_rows, g->features + (size_t)p->row0 * (size_t)(N_BOUNDARIES * g->H), last);
			x.prompts = true;
			continue;
		}
		if (keep_rows(g, p))
			draft_drop(g, s);
		else if (last || fills_page(s))
			add_rows(g, sl, &x, s, s->n_kv - s->n_pending, s->n_pending, extend_pending(g, s), last);
	}
	run_batch(g, sl, &x);
}

void extend_all(struct engine *g)
{
	g->words.n_due = 0;
	choose(g);
	for (int i = 0; i < N_SLOTS; i++)
		if (g->slots.s[i].state == SLOT_READY && g->slots.s[i].requests)
			extend_slot(g, i);
}
