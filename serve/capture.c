/* The engine's side of the tap: which rows and rounds a request leaves behind.
 *
 * A row is a position that went through the target and whose next token is known:
 * prompt rows, the root, accepted proposals. The last token of a request never gets
 * one. Nothing is computed for a request that is not traced.
 */
#include "serve/engine_core.h"
#include "serve/tap.h"

void capture_begin(struct engine *g, struct session *s)
{
	struct tap_request r = {.temperature = s->req.sampling.temperature, .traced = !s->req.no_trace, .k = g->k};
	if (!g->o.tap)
		return;
	snprintf(r.request, sizeof r.request, "%s", s->req.request_id);
	snprintf(r.conversation, sizeof r.conversation, "%s", s->req.conversation);
	snprintf(r.domain, sizeof r.domain, "%s", s->req.domain);
	snprintf(r.tenant, sizeof r.tenant, "%s", s->req.tenant);
	s->tap = tap_begin(g->o.tap, &r);
	/* The double build has no f32 rows to give; it exists for gradient checks only. */
	s->traced = s->tap >= 0 && tap_wants_rows(g->o.tap, s->tap) && sizeof(real) == sizeof(float);
}

/* The target's distribution after each of n rows, into the capture scratch. */
static int teacher(struct engine *g, const struct piece *p, int n)
{
	int K = tap_topk(g->o.tap);
	int r = g->o.dev->ops->topk(g->o.dev, g->cap_ids, g->cap_val, g->cap_lse, g->logits + (size_t)p->logit0 * (size_t)g->V,
				    g->V, n, g->V, K);
	for (int i = 0; !r && i < n; i++)
		for (int j = 0; j < K; j++)
			g->cap_val[i * K + j] -= g->cap_lse[i];
	return r;
}

void capture_rows(struct engine *g, const struct piece *p)
{
	struct session *s = p->s;
	if (!s->traced)
		return;
	if (!tap_wants_rows(g->o.tap, s->tap)) {
		s->traced = false; /* dropped: the rest of the request goes with it */
		return;
	}
	struct tap_row_group rows = {
		.n = p->prefill ? p->n_rows : p->emitted, .prompt = p->prefill,
		.ids = g->tb.ids + p->row0, .pos = g->tb.pos + p->row0,
		.features = (const float *)(const void *)(g->features + (size_t)p->row0 * (size_t)(N_BOUNDARIES * g->H)),
		.next_token = s->tokens[p->n_past + (p->prefill ? p->n_rows : p->emitted)],
	};
	if (p->prefill && tap_wants_hidden(g->o.tap))
		rows.hidden = (const float *)(const void *)(g->hidden + (size_t)p->row0 * (size_t)g->H);
	if (!p->prefill) {
		if (teacher(g, p, rows.n)) {
			s->traced = false;
			return;
		}
		rows.topk_ids = g->cap_ids;
		rows.topk_logprob = g->cap_val;
		if (s->n_proposed)
			tap_round(g->o.tap, s->tap, (uint32_t)(p->n_past - 1), s->proposed, s->n_proposed, p->accepted,
				  s->proposer, s->mixed);
	}
	tap_rows(g->o.tap, s->tap, &rows);
}

void capture_end(struct engine *g, struct session *s)
{
	if (!g->o.tap)
		return;
	session_close_parts(s);
	tap_end(g->o.tap, s->tap, s->parts, s->n_parts);
}
