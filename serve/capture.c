/* The engine's side of the tap: which rows and rounds a request leaves behind.
 *
 * A row is a position that went through the target and whose next token is known:
 * prompt rows, the root, accepted proposals. The last token of a request never gets
 * one. Nothing is computed for a request that is not traced. Rows of reused pages are told from
 * what was kept with the pages; a row that is computed again is not told again.
 */
#include <stdlib.h>
#include <string.h>
#include "serve/engine_core.h"
#include "serve/tap.h"

bool capture_wanted(struct engine *g, const struct session *s)
{
	struct tap_request r = {.traced = !s->req.no_trace};
	if (!g->o.tap || tap_topk(g->o.tap) > g->V)
		return false;
	snprintf(r.request, sizeof r.request, "%s", s->req.request_id);
	snprintf(r.conversation, sizeof r.conversation, "%s", s->req.conversation);
	return tap_traces(g->o.tap, &r);
}

void capture_begin(struct engine *g, struct session *s)
{
	struct tap_request r = {.temperature = s->req.sampling.temperature, .traced = s->traced, .k = g->ctl.max_depth};
	if (!g->o.tap || s->req.probe)
		return;
	snprintf(r.request, sizeof r.request, "%s", s->req.request_id);
	snprintf(r.conversation, sizeof r.conversation, "%s", s->req.conversation);
	snprintf(r.domain, sizeof r.domain, "%s", s->req.domain);
	snprintf(r.tenant, sizeof r.tenant, "%s", s->req.tenant);
	const struct told_one *told = s->n_told ? told_find(&g->told, told_key(&s->req)) : NULL;
	if (told)
		snprintf(r.parent, sizeof r.parent, "%s %d", told->request, s->n_told);
	s->tap = tap_begin(g->o.tap, &r);
	s->traced = s->traced && s->tap >= 0 && tap_wants_rows(g->o.tap, s->tap);
}

/* The target's distribution after each of n emitted rows from `skip` on, as the tap takes it. A device of its own memory has it of all rows since the
 * forward (reads.c); where logits are read in place it is worked out now, for these rows alone. */
static int teacher(struct engine *g, const struct piece *p, int skip, int n)
{
	struct dev *d = g->o.dev;
	struct drawn_from from = reads_of(g, p);
	int K = tap_topk(g->o.tap);
	for (int i = 0, m; i < n; i += m) { /* m rows that lie one after the other */
		int row = piece_row(p, skip + i);
		size_t at = (size_t)row;
		uint32_t *ids = g->cap_ids + i * K;
		float *val = g->cap_val + i * K, lse[ENGINE_MAX_K + 1];
		for (m = 1; !d->own_memory && i + m < n && piece_row(p, skip + i + m) == row + m; m++)
			continue;
		if (d->own_memory) {
			memcpy(ids, from.ids + at * (size_t)from.K, (size_t)K * sizeof *ids);
			memcpy(val, from.vals + at * (size_t)from.K, (size_t)K * sizeof *val);
			lse[0] = from.lse[at];
		} else {
			int r = d->ops->topk(d, ids, val, lse, g->logits + ((size_t)p->logit0 + at) * (size_t)g->V, g->V, m, g->V, K);
			if (r)
				return r;
		}
		for (int j = 0; j < m * K; j++)
			val[j] -= lse[j / K];
	}
	return 0;
}

/* False when the tap gave the request up: the rest of it is dropped too. */
static bool still_traced(struct engine *g, struct session *s)
{
	if (s->traced && !tap_wants_rows(g->o.tap, s->tap))
		s->traced = false;
	return s->traced;
}

static uint16_t *feature_row(const struct engine *g, int row)
{
	return g->packed.features + (size_t)row * (size_t)(N_BOUNDARIES * g->H);
}

/* All rows of a traced piece have an output then. */
static uint16_t *hidden_row(const struct engine *g, const struct piece *p, int row)
{
	return tap_wants_hidden(g->o.tap) ? g->packed.hidden + (size_t)(p->out0 + row - p->row0) * (size_t)g->H : NULL;
}

static uint8_t *code_row(const struct engine *g, int row)
{
	return g->packed.codes + (size_t)(row - g->packed.from) * (size_t)(N_BOUNDARIES * g->H);
}

static float *scale_row(const struct engine *g, int row)
{
	return g->packed.scales + (size_t)(row - g->packed.from) * N_BOUNDARIES;
}

/* The packed rows of an accepted path, behind the root. */
static void straighten(const struct engine *g, const struct piece *p)
{
	size_t W = (size_t)(N_BOUNDARIES * g->H), H = (size_t)g->H;
	for (int i = 1; i <= p->accepted; i++) {
		int to = p->row0 + i, from = p->row0 + piece_row(p, i);
		if (from == to)
			continue;
		if (g->packed.features)
			memcpy(feature_row(g, to), feature_row(g, from), W * sizeof(uint16_t));
		if (g->packed.codes) {
			memcpy(code_row(g, to), code_row(g, from), W);
			memcpy(scale_row(g, to), scale_row(g, from), N_BOUNDARIES * sizeof(float));
		}
		if (tap_wants_hidden(g->o.tap))
			memcpy(hidden_row(g, p, to), hidden_row(g, p, from), H * sizeof(uint16_t));
	}
}

/* Rows that are real now stay with their pages as long as those last. */
static void keep_rows(struct engine *g, const struct piece *p, int n)
{
	for (int j = 0; j < n; j++)
		keep_put(&g->keep, pages_slot(p->s->pages, p->n_past + j), feature_row(g, p->row0 + j), hidden_row(g, p, p->row0 + j));
}

int capture_reused(struct engine *g, struct session *s, int n)
{
	int told = 0;
	while (told < n && s->n_told < s->n_kv && still_traced(g, s)) {
		uint32_t pos[PAGE_TOK], at = pages_slot(s->pages, s->n_told);
		int rows = PAGE_TOK - s->n_told % PAGE_TOK;
		for (int j = 0; j < rows; j++)
			pos[j] = (uint32_t)(s->n_told + j);
		struct tap_row_group r = {
			.n = rows, .prompt = true, .ids = s->tokens + s->n_told, .pos = pos,
			.features = g->keep.features + (size_t)at * (size_t)g->keep.W,
			.hidden = g->keep.hidden ? g->keep.hidden + (size_t)at * (size_t)g->keep.H : NULL,
			.next_token = s->tokens[s->n_told + rows],
		};
		tap_rows(g->o.tap, s->tap, &r);
		s->n_told += rows;
		told += rows;
	}
	return told;
}

static void tell(struct engine *g, const struct piece *p)
{
	struct session *s = p->s;
	int n = p->prefill ? p->n_rows : p->emitted, skip = s->n_told - p->n_past;
	if (g->keep.W)
		keep_rows(g, p, n);
	if (skip >= n) /* recomputed */
		return;
	struct tap_row_group rows = {
		.n = n - skip, .prompt = p->prefill,
		.ids = g->tb.ids + p->row0 + skip, .pos = g->tb.pos + p->row0 + skip,
		.features = g->packed.codes ? NULL : feature_row(g, p->row0 + skip),
		.codes = g->packed.codes ? code_row(g, p->row0 + skip) : NULL, .scales = g->packed.codes ? scale_row(g, p->row0 + skip) : NULL,
		.next_token = s->tokens[p->n_past + n],
	};
	if (p->prefill)
		rows.hidden = hidden_row(g, p, p->row0 + skip);
	if (!p->prefill) {
		if (teacher(g, p, skip, rows.n)) {
			s->traced = false;
			return;
		}
		rows.topk_ids = g->cap_ids;
		rows.topk_logprob = g->cap_val;
		if (s->n_proposed)
			tap_round(g->o.tap, s->tap, (uint32_t)(p->n_past - 1), s->proposed, s->branches ? s->parent : NULL, s->n_proposed, p->accepted,
				  s->proposer, s->mixed);
	}
	tap_rows(g->o.tap, s->tap, &rows);
	s->n_told = p->n_past + n;
}

void capture_rows(struct engine *g)
{
	for (int i = 0; i < g->n_pieces; i++) {
		const struct piece *p = &g->pieces[i];
		if (!p->s->traced)
			continue;
		if (!reads_packed(g))
			tap_miss(g->o.tap, p->s->tap);
		if (!still_traced(g, p->s))
			continue;
		if (!p->prefill && p->s->branches)
			straighten(g, p);
		tell(g, p);
	}
}

/* The conversation's next request may go on from the full pages of this one. */
static void note_told(struct engine *g, const struct session *s)
{
	int n = s->n_path, at = s->node;
	uint64_t *path = n > 0 && prefix_alive(&g->prefix, s->node, s->node_gen) ? malloc((size_t)n * sizeof *path) : NULL;
	if (!path)
		return;
	for (int i = n - 1; i >= 0; i--) {
		path[i] = g->prefix.nodes[at].path;
		at = g->prefix.nodes[at].parent;
	}
	told_note(&g->told, told_key(&s->req), s->req.request_id, path, n);
	free(path);
}

void capture_end(struct engine *g, struct session *s)
{
	if (!g->o.tap || s->req.probe)
		return;
	if (*s->req.conversation && still_traced(g, s) && s->n_told >= s->n_path * PAGE_TOK)
		note_told(g, s);
	session_close_parts(s);
	tap_end(g->o.tap, s->tap, s->parts, s->n_parts);
}
