/* Replayed accept length (contracts.md "Replayed AL"): what a draft would have had
 * accepted on tokens that are already known.
 *
 * Row t of TTT step k is the served chain's draft token k+1 after prefix t+1, so
 * the chain from every row can be followed in one batch: step 0 for all rows (they
 * are the trunk), then at each step only the rows whose proposals have all been
 * right so far, for the rest of a chain that has failed decides nothing. Those
 * rows are gathered for the matrix products and spread out again for attention,
 * whose op wants query row t beside trunk row t; the gaps hold finite numbers that
 * nobody reads, and see themselves alone, so that a short answer to a long prompt costs what its own rows do. Then the rounds are walked: start at t, a accepted, next t+a+1.
 *
 * Proposal j of row t stands for x_{t+2+j}: at most n-1-t of them can be judged,
 * and a row with none makes no round.
 */
#include <math.h>
#include <stdlib.h>
#include "learn/ttt.h"

struct replay {
	struct ttt *t;
	const struct replay_request *r;
	uint8_t *limit;         /* [n] proposals of a round that starts at row t; 0 = none starts there */
	uint8_t *hits;          /* [n] how many of them are right, from the first on */
	uint32_t *rows, *from;  /* [n] rows still right, and where each lay in the step before */
	uint32_t *seg;          /* [n] from where each row sees: from the beginning if it is one of rows, else itself alone */
	int m;                  /* how many */
	int n_steps;
};

static int min_int(int a, int b)
{
	return a < b ? a : b;
}

/* Which rows start a round, and how far each may go. */
static int set_limits(struct replay *p, int k)
{
	const struct replay_request *r = p->r;
	if (r->round_start) {
		for (int i = 0; i < r->n_rounds; i++) {
			if (r->round_start[i] >= (uint32_t)r->n)
				return -EINVAL;
			int t = (int)r->round_start[i];
			p->limit[t] = (uint8_t)min_int(min_int(r->round_len[i], TTT_MAX_STEPS), r->n - 1 - t);
		}
	} else {
		for (int t = r->first_round_row; t < r->n; t++)
			p->limit[t] = (uint8_t)min_int(k, r->n - 1 - t);
	}
	for (int t = 0; t < r->n; t++) {
		if (!p->limit[t])
			continue;
		p->from[p->m] = p->rows[p->m] = (uint32_t)t;
		p->m++;
		p->n_steps = p->limit[t] > p->n_steps ? p->limit[t] : p->n_steps;
	}
	return 0;
}

/* q, k, v of the gathered rows to where attention looks for them. rows NULL: they are all rows. */
static int spread(struct ttt *t, struct ttt_step *s, const uint32_t *inverse, int n)
{
	const struct ops *o = t->d->ops;
	int Q = ttt_width_q(t), KV = ttt_width_kv(t), QKV = ttt_width_qkv(t);
	TRY(o->copy_rows(t->d, s->q, Q, t->qkv, QKV, inverse, n, Q));
	TRY(o->copy_rows(t->d, s->k, KV, t->qkv + Q, QKV, inverse, n, KV));
	return o->copy_rows(t->d, s->v, KV, t->qkv + Q + KV, QKV, inverse, n, KV);
}

/* Attention of step k for the first n rows, of which only p->rows matter after step 0. */
static int step_attention(struct replay *p, int k, int n)
{
	struct ttt *t = p->t;
	struct ttt_step *s = &t->step[k];
	struct ttt_kv kv;
	if (k == 0) {
		TRY(ttt_project(t, 0, s->g, NULL, 0, n, p->r->pos));
		TRY(spread(t, s, NULL, n));
	} else {
		TRY(ttt_project(t, k, t->e, p->rows, 0, p->m, p->r->pos));
		for (int i = 0; i < n; i++)
			t->inverse[i] = 0;
		for (int i = 0; i < p->m; i++)
			t->inverse[p->rows[i]] = (uint32_t)i;
		TRY(spread(t, s, t->inverse, n));
	}
	for (int i = 0; i < n; i++)
		p->seg[i] = (uint32_t)i;
	for (int i = 0; i < p->m; i++)
		p->seg[p->rows[i]] = 0;
	ttt_kv_of(t, k, &kv);
	return t->d->ops->ttt_attn(t->d, s->attn, s->lse, s->q, &kv, p->seg, n, t->c.n_head, t->c.n_kv, t->c.hd,
				   (real)(1 / sqrt((double)t->c.hd)));
}

/* Greedy proposals from h2 [m,H]; keeps the rows that are right and may go on. */
static int judge(struct replay *p, int k, const real *h2)
{
	struct ttt *t = p->t;
	int H = t->c.H, V = t->c.V_d, kept = 0;
	for (int at = 0, part; at < p->m; at += part) {
		part = min_int(p->m - at, t->head_chunk);
		TRY(ttt_logits(t, h2 + (size_t)at * (size_t)H, NULL, part));
		TRY(t->d->ops->topk(t->d, t->argmax, NULL, NULL, t->logits, V, part, V, 1));
		for (int i = 0; i < part; i++) {
			uint32_t row = p->rows[at + i];
			if (t->d2t[t->argmax[i]] + (int64_t)t->argmax[i] != (int64_t)p->r->ids[row + 2 + (uint32_t)k])
				continue;
			if (++p->hits[row] == p->limit[row])
				continue;
			p->rows[kept] = row; /* kept <= at+i: only entries already read are overwritten */
			p->from[kept++] = (uint32_t)(at + i);
		}
	}
	p->m = kept;
	return 0;
}

static int follow_chains(struct replay *p)
{
	struct ttt *t = p->t;
	const struct ops *o = t->d->ops;
	int H = t->c.H, Q = ttt_width_q(t);
	/* the feature stream of the gathered rows: t->e into a step, t->en out of it (their first use is over) */
	for (int k = 0; k < p->n_steps && p->m; k++) {
		int n = k == 0 ? p->r->n : (int)p->rows[p->m - 1] + 1;
		const struct ttt_step *s = &t->step[k];
		TRY(o->copy_rows(t->d, t->e, H, k == 0 ? s->g : t->en, H, p->from, p->m, H));
		if (k && t->c.norm_output)
			TRY(ttt_feed_back(t, t->e, t->e, p->m));
		TRY(step_attention(p, k, n));
		TRY(o->copy_rows(t->d, t->dattn, Q, s->attn, Q, p->rows, p->m, Q));
		TRY(ttt_block(t, t->e, t->dattn, s->h1, s->gu, t->en, p->m));
		TRY(judge(p, k, t->en));
	}
	return 0;
}

static void count_round(const struct replay *p, uint32_t row, struct replay_result *res)
{
	res->rounds++;
	res->accepted += p->hits[row];
	for (int j = 0; j < p->limit[row]; j++)
		res->proposed_at[j]++;
	for (int j = 0; j < p->hits[row]; j++)
		res->accepted_at[j]++;
}

static void walk(const struct replay *p, struct replay_result *res)
{
	const struct replay_request *r = p->r;
	if (r->round_start) {
		for (int i = 0; i < r->n_rounds; i++) {
			if (p->limit[r->round_start[i]])
				count_round(p, r->round_start[i], res);
			if (r->round_accepted)
				r->round_accepted[i] = p->hits[r->round_start[i]];
		}
		return;
	}
	for (uint32_t row = (uint32_t)r->first_round_row; row < (uint32_t)r->n && p->limit[row]; row += 1u + p->hits[row])
		count_round(p, row, res);
}

static int run(struct replay *p, const real *weights, int k, struct replay_result *ret)
{
	struct ttt *t = p->t;
	struct replay_result res = {0};
	TRY(set_limits(p, k));
	if (p->m) {
		TRY(t->d->ops->upload(t->d, t->w, weights, t->lay.total * sizeof(real)));
		TRY(ttt_begin(t, p->r->n, p->n_steps, p->r->ids, p->r->features));
		TRY(follow_chains(p));
		walk(p, &res);
	}
	*ret = res;
	return 0;
}

int replay_accept_length(struct dev *d, const struct eagle3_config *c, const real *weights, const int64_t *d2t,
			 const uint16_t *embedding_bf16, const struct replay_request *r, int k, struct replay_result *ret)
{
	if (r->n < 1 || k < 1 || k > TTT_MAX_STEPS || r->first_round_row < 0)
		return -EINVAL;
	size_t n = (size_t)r->n;
	struct replay p = {.r = r};
	int res = ttt_new(d, c, d2t, embedding_bf16, TTT_FORWARD, &p.t, NULL);
	if (res < 0)
		return res;
	p.limit = calloc(n, sizeof *p.limit);
	p.hits = calloc(n, sizeof *p.hits);
	p.rows = calloc(n, sizeof *p.rows);
	p.from = calloc(n, sizeof *p.from);
	p.seg = calloc(n, sizeof *p.seg);
	res = p.limit && p.hits && p.rows && p.from && p.seg ? run(&p, weights, k, ret) : -ENOMEM;
	free(p.seg);
	free(p.limit);
	free(p.hits);
	free(p.rows);
	free(p.from);
	ttt_free(p.t);
	return res;
}
