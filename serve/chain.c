/* Chains that a device draws by itself.
 *
 * Where the host cannot see what a draft says before it waits (a GPU), a chain is queued whole: each step embeds what
 * the step before chose, from the device's memory, and the target's forward embeds the proposals from there too. So the extends of a round, the chains of the next and its
 * verification are waited for together, once. How long a chain gets is known beforehand (shape, pages, max_tokens); what is not, a token that ends
 * the text or logits that are not finite, is looked at afterwards: the rest of that chain was computed for nothing, and is not
 * proposed. The tree is then grown from what was drawn as propose.c grows it, so that the proposals are the same. Rows that nobody looks at
 * change no other row's bits (ops.h).
 * On a CPU there is nothing to wait for, and a chain goes level by level like any tree.
 */
#include <string.h>
#include "serve/engine_core.h"
#include "serve/fault.h"

int words_new(struct engine *g)
{
	struct dev *d = g->o.dev;
	size_t n = (size_t)g->o.max_seqs, rows = n * (TREE_WIDTH + TREE_WIDTH * TREE_WIDTH + ENGINE_MAX_K);
	g->words.ids = d->ops->alloc_shared(d, rows * sizeof *g->words.ids);
	g->words.logp = d->ops->alloc_shared(d, rows * sizeof *g->words.logp);
	g->words.first = d->ops->alloc(d, n * ENGINE_MAX_K * sizeof *g->words.first);
	return g->words.ids && g->words.logp && g->words.first ? 0 : -ENOMEM;
}

void words_free(struct engine *g)
{
	struct dev *d = g->o.dev;
	d->ops->free(d, g->words.ids);
	d->ops->free(d, g->words.logp);
	d->ops->free(d, g->words.first);
}

struct draft_word words_due(const struct engine *g)
{
	size_t at = (size_t)g->words.n_due * TREE_WIDTH;
	return (struct draft_word){.width = TREE_WIDTH, .ids = g->words.ids + at, .logp = g->words.logp + at, .first = g->words.first + g->words.n_due};
}

struct draft_word words_level(const struct engine *g, int width)
{
	size_t at = (size_t)g->o.max_seqs * TREE_WIDTH;
	return (struct draft_word){.width = width, .ids = g->words.ids + at, .logp = g->words.logp + at};
}

static size_t chain_row(const struct engine *g, int row)
{
	return (size_t)g->o.max_seqs * (TREE_WIDTH + TREE_WIDTH * TREE_WIDTH) + (size_t)row;
}

static uint32_t chain_id(const struct engine *g, int row)
{
	return OP_GIVEN | (uint32_t)(g->o.max_seqs + row);
}

void words_take(struct engine *g, bool waited)
{
	int due = 0;
	for (int i = 0; i < g->n_active; i++)
		due += g->active[i]->due >= 0;
	bool bad = due && !waited && g->o.dev->ops->sync(g->o.dev);
	for (int i = 0; i < g->n_active && due; i++) {
		struct session *s = g->active[i];
		size_t at = (size_t)s->due * TREE_WIDTH;
		if (s->due < 0)
			continue;
		memcpy(s->first, g->words.ids + at, sizeof s->first);
		memcpy(s->first_logp, g->words.logp + at, sizeof s->first_logp);
		for (int j = 0; j < TREE_WIDTH && FAULT(FAULT_CORRUPT_D2T); j++)
			s->first[j] = (s->first[j] + 7) % (uint32_t)g->V;
		s->due = -1;
		if (bad || s->first[0] >= (uint32_t)g->V)
			draft_drop(g, s);
	}
}

/* Level `level` of the chains: rows of those that are long enough; from: where the feedback of each lies in the level before. Returns whether that is where it is to lie. */
static bool add_level(struct engine *g, struct session **on, const int *len, int n, int level, int *row, uint32_t *from)
{
	struct rows *b = &g->db;
	bool same = level > 1;
	rows_reset(b);
	for (int i = 0; i < n; i++) {
		struct session *s = on[i];
		if (len[i] <= level)
			continue;
		from[b->M] = (uint32_t)(level > 1 ? row[i] : s->seat);
		same = same && from[b->M] == (uint32_t)b->M;
		row[i] = b->M;
		rows_add_at(b, s->chain[level - 1], s->n_kv - 1 + level, s->n_kv + level - 1, s->draft_pages);
		rows_seq(b, s->draft_pages, s->n_kv + level - 1, 1);
	}
	return same;
}

void chain_queue(struct engine *g, struct slot *sl, struct session **on, const struct draft_shape *shape, int n)
{
	const struct ops *o = g->o.dev->ops;
	uint32_t from[ENGINE_MAX_SEQS];
	int len[ENGINE_MAX_SEQS], row[ENGINE_MAX_SEQS], turn = 0;
	const real *src = g->fb;
	for (int i = 0; i < n; i++) {
		struct session *s = on[i];
		len[i] = shape[i].depth < shape[i].nodes ? shape[i].depth : shape[i].nodes;
		s->used = shape[i];
		s->proposer = sl->version;
		s->chain[0] = s->due >= 0 ? OP_GIVEN | (uint32_t)s->due : s->first[0];
		s->chained = 1;
	}
	for (int level = 1; level < ENGINE_MAX_K; level++) {
		struct rows *b = &g->db;
		bool same = add_level(g, on, len, n, level, row, from);
		if (!b->M)
			return;
		size_t at = chain_row(g, g->words.n_chained);
		struct draft_word w = {.width = 1, .ids = g->words.ids + at, .logp = g->words.logp + at, .first = g->words.first + g->o.max_seqs + g->words.n_chained};
		struct draft_rows r = {.M = b->M, .ids = b->ids, .pos = b->pos, .slots = b->slots, .given = g->words.first, .seqs = b->seqs, .n_seqs = b->n_seqs};
		int cost = cost_begin(g, CTL_STEP, b->M);
		turn ^= !same;
		bool bad = !same && o->copy_rows(g->o.dev, g->chain[turn], g->Hd, src, g->Hd, from, b->M, g->Hd);
		src = g->chain[turn];
		bad = bad || sl->kind->step(draft_weights(g, sl), &g->slots.kv, &r, &w, g->chain[turn]);
		cost_end(g, cost);
		for (int i = 0; i < n; i++) {
			if (len[i] <= level)
				continue;
			if (bad) {
				on[i]->chained = len[i] = 0;
				draft_drop(g, on[i]);
			} else
				on[i]->chain[on[i]->chained++] = chain_id(g, g->words.n_chained + row[i]);
		}
		g->words.n_chained += b->M;
	}
}

void chain_take(struct engine *g, struct piece *p)
{
	struct session *s = p->s;
	struct tree *t = &g->trees[0];
	if (!s->chained)
		return;
	tree_start(t, s->used, s->first, s->first_logp);
	for (int i = 1; i < s->chained && tree_next(t, session_room(s) + 1 - t->n_run, session_ends, s); i++) {
		size_t at = chain_row(g, (int)(s->chain[i] & ~OP_GIVEN) - g->o.max_seqs);
		if (g->words.ids[at] >= (uint32_t)g->V) {
			draft_drop(g, s); /* what it proposed so far may stand */
			break;
		}
		tree_note(t, 0, g->words.ids + at, g->words.logp + at);
	}
	take_tree(s, t, t->shape.nodes, s->proposer);
	memcpy(g->tb.ids + p->row0 + 1, s->proposed, (size_t)s->n_proposed * sizeof *s->proposed);
	s->chained = 0;
}
