/* One round: propose, one forward of the target over every session's rows, verify,
 * extend the drafts, hand out the tokens.
 *
 * Decoding sessions bring their root and their chain; prompts share what budget.c gives them:
 * a quarter goes to the first in rank, the rest to those with the least left to read, so that a short prompt
 * does not wait for a long one and a long one does not wait for ever. A row's logits do not
 * depend on who else is in the batch (kernels/ops.h), so neither do the tokens.
 */
#include <string.h>
#include "daemon/base/clock.h"
#include "serve/engine_core.h"
#include "serve/fault.h"
#include "serve/logprobs.h"
#include "serve/probe.h"
#include "serve/tap.h"
#include "serve/verify.h"

void rows_reset(struct rows *b)
{
	b->M = b->n_seqs = b->n_logits = 0;
}

void rows_add_at(struct rows *b, uint32_t id, int pos, int place, const uint32_t *pages)
{
	b->ids[b->M] = id;
	b->pos[b->M] = (uint32_t)pos;
	b->slots[b->M++] = pages_slot(pages, place);
}

void rows_add(struct rows *b, uint32_t id, int pos, const uint32_t *pages)
{
	rows_add_at(b, id, pos, pos, pages);
}

void rows_seq(struct rows *b, const uint32_t *pages, int n_past, int n_rows)
{
	b->seqs[b->n_seqs++] = (struct attn_seq){.pages = pages, .n_past = n_past, .row0 = b->M - n_rows, .n_rows = n_rows};
}

void rows_tree(struct rows *b, const int16_t *parent, int tree0)
{
	b->seqs[b->n_seqs - 1].parent = parent;
	b->seqs[b->n_seqs - 1].tree0 = tree0;
}

/* Root and tree: a node's position is its depth's, its place the next one. */
static void add_decoding(struct rows *b, const struct session *s)
{
	int pos[ENGINE_MAX_NODES];
	rows_add(b, s->tokens[s->n_kv], s->n_kv, s->pages);
	for (int i = 0; i < s->n_proposed; i++) {
		pos[i] = s->parent[i] < 0 ? s->n_kv + 1 : pos[s->parent[i]] + 1;
		rows_add_at(b, s->proposed[i], pos[i], s->n_kv + 1 + i, s->pages);
	}
}

/* Rows [row0, M) are s's; take logits from the last n_logits of them. */
static void add_piece(struct engine *g, struct session *s, int row0, int n_logits)
{
	struct rows *b = &g->tb;
	struct piece *p = &g->pieces[g->n_pieces++];
	*p = (struct piece){.s = s, .row0 = row0, .n_rows = b->M - row0, .n_past = s->n_kv, .prefill = session_prefilling(s),
			    .logit0 = n_logits ? b->n_logits : -1};
	for (int i = n_logits; i > 0; i--)
		b->logit_rows[b->n_logits++] = (uint32_t)(b->M - i);
	rows_seq(b, s->pages, s->n_kv, p->n_rows);
}

/* Rows of each prompt in this round, by place in g->active. */
static void share(struct engine *g, int budget, int give[static ENGINE_MAX_SEQS])
{
	struct session *on[ENGINE_MAX_SEQS];
	int first = -1;
	for (int i = 0; i < g->n_active; i++) {
		struct session *s = g->active[i];
		on[i] = session_prefilling(s) && !reuse_preparing(s) ? s : NULL;
		give[i] = 0;
		first = first < 0 && on[i] ? i : first;
	}
	if (first < 0 || budget < 1)
		return;
	int left = on[first]->n_fill - on[first]->n_kv, quarter = (budget + 3) / 4;
	give[first] = left < quarter ? left : quarter;
	budget -= give[first];
	while (budget > 0) {
		int best = -1, least = 0;
		for (int i = 0; i < g->n_active; i++) {
			int rest = on[i] ? on[i]->n_fill - on[i]->n_kv - give[i] : 0;
			if (rest > 0 && (best < 0 || rest < least))
				best = i, least = rest;
		}
		if (best < 0)
			return;
		int n = least < budget ? least : budget;
		give[best] += n;
		budget -= n;
	}
}

static void build_batch(struct engine *g)
{
	struct rows *b = &g->tb;
	int give[ENGINE_MAX_SEQS];
	rows_reset(b);
	g->n_pieces = 0;
	for (int i = 0; i < g->n_active; i++) {
		struct session *s = g->active[i];
		int row0 = b->M;
		if (session_prefilling(s) || reuse_preparing(s))
			continue;
		add_decoding(b, s);
		add_piece(g, s, row0, b->M - row0);
		if (s->branches && s->n_proposed)
			rows_tree(b, s->parent, s->n_kv + 1);
	}
	g->n_decode_rows = b->M;
	share(g, budget_rows(&g->budget, b->M, g->o.prefill_chunk), give);
	for (int i = 0; i < g->n_active; i++) {
		struct session *s = g->active[i];
		int row0 = b->M;
		if (!give[i])
			continue;
		for (int j = 0; j < give[i]; j++)
			rows_add(b, s->tokens[s->n_kv + j], s->n_kv + j, s->pages);
		/* what is read again already has its next token */
		add_piece(g, s, row0, s->n_kv + give[i] == s->n_tokens ? 1 : 0);
	}
	g->n_prompt_rows = b->M - g->n_decode_rows;
}

static bool features_wanted(const struct engine *g)
{
	for (int i = 0; i < g->n_pieces; i++)
		if (g->pieces[i].s->slot >= 0 || g->pieces[i].s->traced || g->pieces[i].s->req.probe)
			return true;
	return false;
}

/* Of prompt rows, and of generated ones too, which will be prompt rows of the next request. */
static bool hidden_wanted(const struct engine *g)
{
	for (int i = 0; i < g->n_pieces; i++)
		if (g->pieces[i].s->traced && tap_wants_hidden(g->o.tap))
			return true;
	return false;
}

static int forward(struct engine *g)
{
	struct rows *b = &g->tb;
	if (!b->M)
		return 0;
	struct llama_batch lb = {.M = b->M, .ids = b->ids, .pos = b->pos, .slots = b->slots, .seqs = b->seqs, .n_seqs = b->n_seqs,
				 .logit_rows = b->logit_rows, .n_logits = b->n_logits};
	int r = llama_forward(g->o.target, &g->kv, &lb, features_wanted(g) ? g->features : NULL, hidden_wanted(g) ? g->hidden : NULL, g->logits);
	return r ? r : g->o.dev->ops->sync(g->o.dev); /* the one wait of a round: the host draws from the logits */
}

static bool ends(const void *session, uint32_t id)
{
	return session_ends(session, id);
}

static void count(struct engine *g, const struct session *s, int accepted)
{
	g->sum.rounds++;
	g->sum.proposing += s->n_proposed > 0;
	g->sum.proposed += (uint64_t)s->n_proposed;
	g->sum.accepted += (uint64_t)accepted;
	for (int i = 0; s->n_proposed && i < s->depth; i++)
		g->sum.prop_at[i]++;
	for (int i = 0; i < accepted; i++)
		g->sum.at[i]++;
}

/* Bring the rows of an accepted path together behind the root, as if they had been a chain: keys and
 * values, features, and what else is still asked for. Sources only lie behind their destinations. */
static int straighten(struct engine *g, const struct piece *p, const struct verdict *v)
{
	const struct session *s = p->s;
	const struct ops *o = g->o.dev->ops;
	struct rows *b = &g->tb;
	uint32_t to[ENGINE_MAX_K], from[ENGINE_MAX_K];
	int n = 0, W = N_BOUNDARIES * g->H, r = 0;
	bool logits = s->traced || s->req.on_logprobs;
	for (int i = 0; i < v->accepted && !r; i++) {
		uint32_t at = (uint32_t)(p->row0 + 1 + i), src = (uint32_t)(p->row0 + 1 + v->path[i]), lsrc = (uint32_t)(p->logit0 + 1 + v->path[i]);
		if (src == at)
			continue;
		to[n] = b->slots[at];
		from[n++] = b->slots[src];
		b->ids[at] = b->ids[src];
		b->pos[at] = b->pos[src];
		r = o->copy_rows(g->o.dev, g->features + (size_t)at * (size_t)W, W, g->features, W, &src, 1, W);
		if (!r && s->traced)
			r = o->copy_rows(g->o.dev, g->hidden + (size_t)at * (size_t)g->H, g->H, g->hidden, g->H, &src, 1, g->H);
		if (!r && logits)
			r = o->copy_rows(g->o.dev, g->logits + (size_t)(p->logit0 + 1 + i) * (size_t)g->V, g->V, g->logits, g->V, &lsrc, 1, g->V);
	}
	r = !r && n ? o->kv_copy(g->o.dev, &g->kv, to, from, n) : r;
	return r || !n ? r : o->sync(g->o.dev); /* the tap and log-probabilities read what was moved */
}

/* Draw, compare, enter the result; the tokens go out before the drafts are extended. */
static void settle(struct engine *g, struct piece *p)
{
	struct session *s = p->s;
	if (p->prefill) {
		s->n_kv += p->n_rows;
		flow_charge(g, s, p->n_rows);
		if (p->logit0 < 0)
			return;
		g->sum.prompt += s->req.probe ? 0 : (uint64_t)s->n_prompt;
	}
	int position = p->prefill ? s->n_kv : s->n_kv + 1;
	int len = p->prefill ? 0 : s->n_proposed;
	const real *logits = g->logits + (size_t)p->logit0 * (size_t)g->V;
	struct history h = {s->tokens, s->n_prompt, s->n_tokens};
	struct verdict v = verify_tree(g->sampler, logits, g->V, &s->req.sampling, &h, (uint32_t)position, s->proposed, s->parent, len, ends, s);
	if (len && !s->req.probe)
		controller_outcome(&g->ctl, s->ctl_key, s->used, s->parent, s->node_rank, len, v.path, v.accepted, v.n == v.accepted);
	if (len && s->branches && straighten(g, p, &v)) {
		p->done = true, p->why = FINISH_ERROR;
		return;
	}
	memcpy(s->tokens + s->n_tokens, v.ids, (size_t)v.n * sizeof *v.ids);
	s->n_tokens += v.n;
	p->emitted = v.n;
	p->accepted = v.accepted;
	g->sum.generated += s->req.probe ? 0 : (uint64_t)v.n;
	flow_charge(g, s, 2.0 * v.n);
	if (!p->prefill) {
		s->n_kv += v.n; /* the root and all emitted tokens but the last have been run */
		if (!s->req.probe)
			count(g, s, v.accepted);
	}
	if (session_ends(s, v.ids[v.n - 1]))
		p->done = true, p->why = FINISH_STOP;
	else if (session_left(s) < 1)
		p->done = true, p->why = FINISH_LENGTH;
	uint64_t now = clock_us();
	if (s->emitted_us && !s->req.probe && (float)(now - s->emitted_us) / 1e3f > g->round_gap_ms)
		g->round_gap_ms = (float)(now - s->emitted_us) / 1e3f;
	session_account(s, len ? s->proposer : session_version(g, s), g->ctl.max_depth, len ? s->depth : 0, len, len && s->branches, v.accepted, v.n, now);
	s->emitted_us = now;
	if (s->req.on_logprobs)
		logprobs_tell(g->o.dev, logits, g->V, v.ids, v.n, &s->req);
	s->req.on_tokens(s->req.arg, v.ids, v.n);
}

/* Injected faults of the target side: what the drafts get, the tap tells and the probes see alike. */
static void break_features(struct engine *g)
{
	size_t H = (size_t)g->H, W = N_BOUNDARIES * H;

	if ((!FAULT(FAULT_WRONG_BOUNDARY) && !FAULT(FAULT_SHIFTED)) || !features_wanted(g))
		return;
	for (int r = g->tb.M - 1; r >= 0; r--) {
		real *f = g->features + (size_t)r * W;

		if (FAULT(FAULT_WRONG_BOUNDARY))
			memcpy(f + 2 * H, f, H * sizeof *f);
		else if (r)
			memcpy(f, f - W, W * sizeof *f);
	}
}

int round_run(struct engine *g)
{
	g->round_gap_ms = 0;
	reuse_prepare(g);
	room_plan(g);
	propose_all(g);
	uint64_t start = clock_us();
	build_batch(g);
	int r = forward(g);
	if (r) {
		for (int i = 0; i < g->n_pieces; i++)
			g->pieces[i].done = true, g->pieces[i].why = FINISH_ERROR;
		return r;
	}
	break_features(g);
	for (int i = 0; i < g->n_pieces; i++) {
		const struct piece *p = &g->pieces[i];

		int prompt = p->s->n_prompt - p->n_past;

		if (p->s->req.probe && p->prefill)
			probe_rows(p->s->req.probe, p->n_past, p->n_rows < prompt ? p->n_rows : prompt, g->features + (size_t)p->row0 * (size_t)(N_BOUNDARIES * g->H), g->H);
		settle(g, &g->pieces[i]);
		capture_rows(g, &g->pieces[i]);
	}
	if (!g->n_prompt_rows)
		controller_cost(&g->ctl, CTL_VERIFY, g->n_decode_rows, (double)(clock_us() - start) / 1e3);
	extend_all(g);
	for (int i = 0; i < g->n_pieces; i++)
		reuse_commit(g, g->pieces[i].s);
	return 0;
}
