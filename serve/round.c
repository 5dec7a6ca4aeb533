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
	b->M = b->n_seqs = b->n_logits = b->n_out = b->n_out_seqs = 0;
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

void rows_last(struct rows *b, const uint32_t *pages, int place)
{
	b->seqs[b->n_seqs++] = (struct attn_seq){.pages = pages, .n_past = place, .row0 = b->n_logits, .n_rows = 1};
	b->logit_rows[b->n_logits++] = (uint32_t)(b->M - 1);
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
	for (int i = 0; i < s->chained; i++)
		rows_add(b, s->chain[i], s->n_kv + 1 + i, s->pages);
}

/* n rows of s from place `past` on are rows row0.. of a list. Of what is read again after its pages were lost, the prompt's are a sequence of their
 * own: the others are computed as they were when they were generated. How many sequences: 2 at most. */
static int seqs_of(const struct session *s, int past, int n, int row0, struct attn_seq *to)
{
	int given = s->n_prompt - past, k = 0;
	given = given < 0 ? 0 : given > n ? n : given;
	if (given)
		to[k++] = (struct attn_seq){.pages = s->pages, .n_past = past, .row0 = row0, .n_rows = given, .prompt = true};
	if (n > given)
		to[k++] = (struct attn_seq){.pages = s->pages, .n_past = past + given, .row0 = row0 + given, .n_rows = n - given};
	if (!session_prefilling(s) && s->branches && s->n_proposed)
		to[k - 1].parent = s->parent, to[k - 1].tree0 = s->n_kv + 1;
	return k;
}

/* Its final state is asked for by the tap: of a prompt's rows, and of generated ones too, which will be prompt rows of the next request. */
static bool hidden_of(const struct engine *g, const struct session *s)
{
	return s->traced && tap_wants_hidden(g->o.tap);
}

/* Rows [row0, M) are s's; take logits from the last n_logits of them. Those have an output, and where the final state is asked for all of them. */
static void add_piece(struct engine *g, struct session *s, int row0, int n_logits)
{
	struct rows *b = &g->tb;
	struct piece *p = &g->pieces[g->n_pieces++];
	int n = b->M - row0, n_out = hidden_of(g, s) ? n : n_logits;
	*p = (struct piece){.s = s, .row0 = row0, .n_rows = n, .n_past = s->n_kv, .prefill = session_prefilling(s), .out0 = b->n_out,
			    .logit0 = n_logits ? b->n_logits : -1};
	b->n_seqs += seqs_of(s, s->n_kv, n, row0, b->seqs + b->n_seqs);
	b->n_out_seqs += seqs_of(s, s->n_kv + n - n_out, n_out, b->n_out, b->out_seqs + b->n_out_seqs);
	for (int i = n_out; i > 0; i--)
		b->out_rows[b->n_out++] = (uint32_t)(b->M - i);
	for (int i = n_logits; i > 0; i--)
		b->logit_rows[b->n_logits++] = (uint32_t)(b->n_out - i);
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
	}
	g->n_decode_rows = b->M;
	int all_rows = g->n_pieces ? b->M * g->n_active / g->n_pieces : 0;
	share(g, budget_rows(&g->budget, b->M, all_rows, g->o.prefill_chunk), give);
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

/* Somebody looks at the features before the logits are there. */
static bool features_told(const struct engine *g)
{
	bool told = FAULT(FAULT_WRONG_BOUNDARY) || FAULT(FAULT_SHIFTED);
	for (int i = 0; i < g->n_pieces; i++)
		told = told || g->pieces[i].s->traced;
	return told;
}

static bool hidden_wanted(const struct engine *g)
{
	for (int i = 0; i < g->n_pieces; i++)
		if (hidden_of(g, g->pieces[i].s))
			return true;
	return false;
}

/* Injected faults of the target side: what the drafts get, the tap tells and the probes see alike. */
static int break_features(struct engine *g)
{
	struct dev *d = g->o.dev;
	int H = g->H, W = N_BOUNDARIES * H, n = g->tb.M - 1, r = 0;

	if (FAULT(FAULT_WRONG_BOUNDARY))
		r = d->ops->copy_rows(d, g->features + 2 * H, W, g->features, W, NULL, n + 1, H);
	if (FAULT(FAULT_SHIFTED)) {
		r = d->ops->copy_rows(d, g->d_features, W, g->features, W, NULL, n, W);
		r = r ? r : d->ops->copy_rows(d, g->features + W, W, g->d_features, W, NULL, n, W);
	}
	return r;
}

static int featured(void *engine)
{
	struct engine *g = engine;
	int r = break_features(g);

	reads_features(g);
	return r;
}

static int forward(struct engine *g)
{
	struct rows *b = &g->tb;
	bool hidden = hidden_wanted(g);
	if (!b->M) {
		words_take(g, false);
		return 0;
	}
	int cost = cost_begin(g, CTL_VERIFY, b->M);
	struct llama_batch lb = {.M = b->M, .ids = b->ids, .pos = b->pos, .slots = b->slots, .given = g->words.first, .seqs = b->seqs, .n_seqs = b->n_seqs,
				 .n_out = b->n_out, .out_rows = b->n_out < b->M ? b->out_rows : NULL, .out_seqs = b->out_seqs, .n_out_seqs = b->n_out_seqs,
				 .logit_rows = b->logit_rows, .n_logits = b->n_logits, .featured = features_told(g) ? featured : NULL, .arg = g};
	int r = llama_forward(g->o.target, &g->kv, &lb, features_wanted(g) ? g->features : NULL, hidden ? g->hidden : NULL, g->logits);
	r = r ? r : reads_logits(g, hidden);
	cost_end(g, cost);
	r = r ? r : g->o.dev->ops->sync(g->o.dev); /* the one wait of a round: the host draws */
	if (r)
		return r;
	words_take(g, true);
	for (int i = 0; i < g->n_pieces; i++)
		chain_take(g, &g->pieces[i]);
	return 0;
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
 * values, features, what the tap is told of a row. Sources only lie behind their destinations. */
static int straighten(struct engine *g, const struct piece *p)
{
	const struct ops *o = g->o.dev->ops;
	struct rows *b = &g->tb;
	uint32_t to[ENGINE_MAX_K], from[ENGINE_MAX_K];
	int n = 0, W = N_BOUNDARIES * g->H, r = 0;
	for (int i = 0; i < p->accepted && !r; i++) {
		uint32_t at = (uint32_t)(p->row0 + 1 + i), src = (uint32_t)(p->row0 + 1 + p->path[i]);
		if (src == at)
			continue;
		to[n] = b->slots[at];
		from[n++] = b->slots[src];
		b->ids[at] = b->ids[src];
		b->pos[at] = b->pos[src];
		r = o->copy_rows(g->o.dev, g->features + (size_t)at * (size_t)W, W, g->features, W, &src, 1, W);
	}
	return !r && n ? o->kv_copy(g->o.dev, &g->kv, to, from, n) : r;
}

static void tell_logprobs(const struct piece *p, const struct drawn_from *from, const struct verdict *v)
{
	int rows[ENGINE_MAX_K + 1];
	for (int i = 0; i < v->n; i++)
		rows[i] = piece_row(p, i);
	logprobs_tell(from, rows, v->ids, v->n, &p->s->req);
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
	int len = p->prefill ? 0 : s->n_proposed;
	struct drawn_from from = reads_of(g, p);
	struct history h = {s->tokens, s->n_prompt, s->n_tokens};
	struct verdict v = verify_tree(g->sampler, &from, &s->req.sampling, &h, piece_position(p), s->proposed, s->parent, len, session_ends, s);
	p->accepted = v.accepted;
	memcpy(p->path, v.path, sizeof p->path);
	if (len && !s->req.probe)
		controller_outcome(&g->ctl, s->ctl_key, s->used, s->parent, s->node_rank, len, v.path, v.accepted, v.n == v.accepted);
	if (len && s->branches && straighten(g, p)) {
		p->done = true, p->why = FINISH_ERROR;
		return;
	}
	memcpy(s->tokens + s->n_tokens, v.ids, (size_t)v.n * sizeof *v.ids);
	s->n_tokens += v.n;
	p->emitted = v.n;
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
		tell_logprobs(p, &from, &v);
	s->req.on_tokens(s->req.arg, v.ids, v.n);
}

static void tell_probe(struct engine *g, const struct piece *p)
{
	int prompt = p->s->n_prompt - p->n_past, n = p->n_rows < prompt ? p->n_rows : prompt;
	const real *features = p->s->req.probe && p->prefill && n > 0 ? reads_rows(g, p->row0, n) : NULL;

	if (features)
		probe_rows(p->s->req.probe, p->n_past, n, features, g->H);
}

/* Rows of this round's batch, by what they cost: most of a prompt's go without the head and most of the last block. */
static int paid_rows(const struct engine *g)
{
	const struct llama_config *c = llama_cfg(g->o.target);
	double keys = (double)c->H * (c->n_head + 2.0 * c->n_kv) * c->hd, rest = (double)c->H * ((double)c->n_head * c->hd + 3.0 * c->I);
	double head = (double)c->H * c->V, body = (keys + rest) * c->n_layer;
	return (int)((g->tb.M * (body - rest) + g->tb.n_out * rest + g->tb.n_logits * head) / (body + head) + 0.5);
}

int round_run(struct engine *g)
{
	g->round_gap_ms = 0;
	reuse_prepare(g);
	room_plan(g);
	propose_all(g);
	uint64_t start = clock_us();
	build_batch(g);
	uint64_t asked = clock_us();
	int r = forward(g);
	uint64_t answered = clock_us();
	double device_ms = costs_take(g);
	if (r) {
		for (int i = 0; i < g->n_pieces; i++)
			g->pieces[i].done = true, g->pieces[i].why = FINISH_ERROR;
		return r;
	}
	for (int i = 0; i < g->n_pieces; i++) {
		tell_probe(g, &g->pieces[i]);
		settle(g, &g->pieces[i]);
	}
	if (device_ms >= 0) /* and what the host did alone */
		controller_cost(&g->ctl, CTL_VERIFY, paid_rows(g), device_ms + (double)(clock_us() - answered + asked - start) / 1e3);
	extend_all(g);
	capture_rows(g); /* now that the device is busy again, and what was packed beside all that is there */
	for (int i = 0; i < g->n_pieces; i++)
		reuse_commit(g, g->pieces[i].s);
	return 0;
}
