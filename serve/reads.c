/* What the host reads of a round's forward, queued with it, so that the one wait of the round is enough.
 *
 * Features, hidden states and logits lie in the device's memory. Of the logits the host gets the likeliest tokens of each
 * row, as many as the round asks for: that is all that a greedy draw, a draw among the k best, log-probabilities and (capture.c) the tap need.
 * Draws that weigh the whole vocabulary are made on the device, of every row of a tree, since which of them will be reached
 * is not known yet. Whole rows come only where penalties or a bias change them (sample.h). Features for the tap are packed on the device as
 * soon as the last of them is there, several blocks before the logits are, and travel beside the rest: nothing waits
 * for them but the tap, at the end of the round, and that not for long.
 * A host that can read the device's memory (the CPU) reads rows in place; all else is the same.
 */
#include <errno.h>
#include <stdlib.h>
#include "daemon/base/clock.h"
#include "serve/engine_core.h"
#include "serve/tap.h"

/* At the end of a round the tap does without what is not there after so long and so many looks: the time alone may have been somebody else's. */
enum { LATE_US = 5000, LATE_ASKS = 100 };

/* A GPU makes 8-bit payloads itself; bf16 rows are then only kept. Codes and scales are taken along together: scales lie behind the codes of all rows. */
static int packed_new(struct engine *g, size_t rows)
{
	struct dev *d = g->o.dev;
	size_t W = (size_t)(N_BOUNDARIES * g->H);
	bool coded = d->own_memory && tap_payload(g->o.tap) >= RECORD_FP8, as_bf16 = !coded || g->keep.W, hidden = tap_wants_hidden(g->o.tap);
	if (coded)
		g->packed.codes = d->ops->alloc_shared(d, rows * (W + N_BOUNDARIES * sizeof(float)) + sizeof(float));
	if (as_bf16)
		g->packed.features = d->ops->alloc_shared(d, rows * W * sizeof(uint16_t));
	if (hidden)
		g->packed.hidden = d->ops->alloc_shared(d, rows * (size_t)g->H * sizeof(uint16_t));
	return (coded && !g->packed.codes) || (as_bf16 && !g->packed.features) || (hidden && !g->packed.hidden) ? -ENOMEM : 0;
}

int reads_new(struct engine *g, int n_logits)
{
	struct dev *d = g->o.dev;
	const struct ops *o = d->ops;
	size_t rows = (size_t)g->max_rows, L = (size_t)n_logits, W = (size_t)(N_BOUNDARIES * g->H), best = (size_t)SAMPLE_BEST;
	g->features = o->alloc(d, rows * W * sizeof(real));
	g->d_features = o->alloc(d, rows * W * sizeof(real));
	g->hidden = o->alloc(d, rows * (size_t)g->H * sizeof(real));
	g->logits = o->alloc(d, L * (size_t)g->V * sizeof(real));
	g->given = d->own_memory ? o->alloc_shared(d, rows * W * sizeof(real)) : g->d_features;
	g->whole = d->own_memory ? o->alloc_shared(d, L * (size_t)g->V * sizeof(real)) : g->logits;
	g->best.ids = o->alloc_shared(d, L * best * sizeof(uint32_t));
	g->best.vals = o->alloc_shared(d, L * best * sizeof(float));
	g->best.lse = o->alloc_shared(d, L * sizeof(float));
	g->drawn.ids = o->alloc_shared(d, L * sizeof(uint32_t));
	g->drawn.vals = o->alloc_shared(d, L * sizeof(float));
	g->drawn.how = calloc(L, sizeof *g->drawn.how);
	if (!g->features || !g->d_features || !g->hidden || !g->logits || !g->given || !g->whole || !g->best.ids || !g->best.vals || !g->best.lse ||
	    !g->drawn.ids || !g->drawn.vals || !g->drawn.how)
		return -ENOMEM;
	return g->o.tap ? packed_new(g, rows) : 0;
}

void reads_free(struct engine *g)
{
	struct dev *d = g->o.dev;
	void *const arrays[] = {g->features, g->d_features, g->hidden, g->logits, g->best.ids, g->best.vals, g->best.lse, g->drawn.ids, g->drawn.vals,
				g->packed.features, g->packed.hidden, g->packed.codes};
	for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
		d->ops->free(d, arrays[i]);
	free(g->drawn.how);
	if (d->own_memory) {
		d->ops->free(d, g->given);
		d->ops->free(d, g->whole);
	}
}

/* ---- for the tap ---- */

/* The rows from the first traced session's to the last's: of the batch, or of those with an output. */
static int traced_rows(const struct engine *g, bool out, int *ret_n)
{
	int from = 0, to = 0;
	for (int i = 0; i < g->n_pieces; i++) {
		const struct piece *p = &g->pieces[i];
		if (!p->s->traced)
			continue;
		int row0 = out ? p->out0 : p->row0;
		from = to ? from : row0;
		to = row0 + p->n_rows;
	}
	*ret_n = to - from;
	return from;
}

/* n rows of `each` times H values; what cannot be packed is missed by the tap, and by nobody else. */
static void pack(struct engine *g, void *to, enum pack_kind kind, const real *x, int n, int each, int H)
{
	if (n && !g->packed.missed)
		g->packed.missed = g->o.dev->ops->pack(g->o.dev, to, kind, x, n * each, H, &g->packed.ticket) != 0;
}

void reads_features(struct engine *g)
{
	int n, from = traced_rows(g, false, &n);
	size_t W = (size_t)(N_BOUNDARIES * g->H), at = (size_t)from * W;
	g->packed.missed = false;
	if (g->packed.features)
		pack(g, g->packed.features + at, PACK_BF16, g->features + at, n, N_BOUNDARIES, g->H);
	if (!g->packed.codes)
		return;
	pack(g, g->packed.codes, tap_payload(g->o.tap) == RECORD_FP8 ? PACK_FP8 : PACK_INT8, g->features + at, n, N_BOUNDARIES, g->H);
	g->packed.scales = (float *)(void *)(g->packed.codes + ((size_t)n * W + 3) / 4 * 4);
	g->packed.from = from;
}

static void pack_hidden(struct engine *g)
{
	int n, from = traced_rows(g, true, &n);
	size_t at = (size_t)from * (size_t)g->H;
	pack(g, g->packed.hidden + at, PACK_BF16, g->hidden + at, n, 1, g->H);
}

bool reads_packed(struct engine *g)
{
	struct dev *d = g->o.dev;
	uint64_t since = 0;
	for (int asked = 1; !g->packed.missed && !d->ops->packed(d, g->packed.ticket); asked++) {
		since = since ? since : clock_us();
		g->packed.missed = asked >= LATE_ASKS && clock_us() - since > LATE_US;
	}
	return !g->packed.missed;
}

/* ---- for the draws ---- */

_Static_assert((int)SAMPLE_BEST >= (int)RECORD_MAX_TOPK && (int)SAMPLE_BEST >= (int)ENGINE_MAX_LOGPROBS, "what is read of a row holds whatever anybody asks for");

/* How many of the likeliest this round needs of a row, 0 = nobody needs any; and whether anybody normalises them. */
static int depth(const struct engine *g, bool *ret_lse)
{
	int K = 0;
	*ret_lse = false;
	for (int i = 0; i < g->n_pieces; i++) {
		const struct session *s = g->pieces[i].s;
		if (g->pieces[i].logit0 < 0)
			continue;
		int drawn = g->pieces[i].needs, traced = g->o.dev->own_memory && s->traced && !g->pieces[i].prefill ? tap_topk(g->o.tap) : 0;
		int told = !s->req.on_logprobs ? 0 : s->req.top_logprobs > 1 ? s->req.top_logprobs : 1; /* one at least comes with the normaliser */
		K = drawn > K ? drawn : K;
		K = traced > K ? traced : K;
		K = told > K ? told : K;
		*ret_lse = *ret_lse || traced || s->req.on_logprobs;
	}
	return K < g->V ? K : g->V;
}

/* The draws of a piece's n rows, or the rows themselves, for the host. */
static int read_rows(struct engine *g, struct piece *p, int n)
{
	struct dev *d = g->o.dev;
	size_t at = (size_t)p->logit0 * (size_t)g->V;
	if (p->needs == SAMPLE_ROW)
		return d->ops->copy_rows(d, g->whole + at, g->V, g->logits + at, g->V, NULL, n, g->V);
	if (p->needs != SAMPLE_DRAW)
		return 0;
	p->drawn0 = g->drawn.n;
	for (int i = p->logit0; i < p->logit0 + n; i++) {
		struct draw *how = &g->drawn.how[g->drawn.n++];
		*how = sample_draw(&p->s->req.sampling, g->tb.pos[g->tb.out_rows[g->tb.logit_rows[i]]] + 1);
		how->row = (uint32_t)i;
	}
	return 0;
}

int reads_logits(struct engine *g, bool with_hidden)
{
	struct dev *d = g->o.dev;
	const struct ops *o = d->ops;
	int r = 0;
	bool lse;
	if (with_hidden)
		pack_hidden(g);
	g->drawn.n = 0;
	for (int i = 0; i < g->n_pieces && !r; i++) {
		struct piece *p = &g->pieces[i];
		p->drawn0 = -1;
		if (p->logit0 < 0)
			continue;
		p->needs = sample_needs(&p->s->req.sampling, g->V, piece_position(p));
		if (d->own_memory)
			r = read_rows(g, p, p->prefill ? 1 : p->n_rows);
	}
	if (!r && g->drawn.n)
		r = o->draw(d, g->drawn.ids, g->drawn.vals, g->logits, g->V, g->drawn.how, g->drawn.n, g->V);
	g->best.K = depth(g, &lse);
	if (!r && g->best.K)
		r = o->topk_async(d, g->best.ids, g->best.vals, lse ? g->best.lse : NULL, g->logits, g->V, g->tb.n_logits, g->V, g->best.K);
	return r;
}

struct drawn_from reads_of(const struct engine *g, const struct piece *p)
{
	size_t at = (size_t)p->logit0, K = (size_t)g->best.K;
	bool drawn = p->drawn0 >= 0;
	return (struct drawn_from){.drawn = drawn ? g->drawn.ids + p->drawn0 : NULL, .drawn_vals = drawn ? g->drawn.vals + p->drawn0 : NULL,
				   .rows = !drawn && p->needs <= 0 ? g->whole + at * (size_t)g->V : NULL, .ids = g->best.ids + at * K, .vals = g->best.vals + at * K,
				   .lse = g->best.lse + at, .K = g->best.K, .V = g->V};
}

const real *reads_rows(struct engine *g, int row0, int n)
{
	struct dev *d = g->o.dev;
	size_t W = (size_t)(N_BOUNDARIES * g->H);
	const real *x = g->features + (size_t)row0 * W;
	if (!d->own_memory)
		return x;
	return d->ops->download(d, g->given, x, (size_t)n * W * sizeof *x) ? NULL : g->given;
}
