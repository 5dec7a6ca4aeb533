/* Who owns which rows (learn/seqpar.h), and small sums over ranks. */
#include <stdlib.h>
#include <string.h>

#include "learn/seqpar_priv.h"
#include "learn/ttt.h"

static int check_grid(const struct comm *c, int U, const struct eagle3_config *cfg, struct errtext *e)
{
	if (U < 1 || c->size % U)
		return errtext_set(e, -EINVAL, "ulysses is %d: it must divide the %d ranks; ring is the rest", U, c->size);
	if (cfg->n_head % U || (cfg->n_kv % U && U % cfg->n_kv))
		return errtext_set(e, -EINVAL, "ulysses is %d: it must divide the draft's %d heads, and divide or be divided by its %d key heads; take more of ring instead", U,
				   cfg->n_head, cfg->n_kv);
	return 0;
}

int seqpar_new(struct dev *d, struct comm *c, int ulysses, const struct eagle3_config *cfg, struct seqpar **ret, struct errtext *e)
{
	c = c ? c : comm_self();
	int U = ulysses < 1 ? 1 : ulysses, R = c->size / U, r = check_grid(c, U, cfg, e);
	if (r)
		return r;
	if (c->size > 1 && d->own_memory && c->d != d)
		return errtext_set(e, -ENOTSUP, "%d ranks by %s share rows through ordinary memory, and this device has its own: device = cpu", c->size, c->ops->name);
	if (R > 1 && !d->ops->ttt_attn_more)
		return errtext_set(e, -ENOTSUP, "this device cannot share a sequence by ring; take ulysses = %d", c->size);
	struct seqpar *sp = calloc(1, sizeof *sp);
	if (!sp)
		return -ENOMEM;
	*sp = (struct seqpar){.d = d, .c = c, .n_head = cfg->n_head, .n_kv = cfg->n_kv, .hd = cfg->hd, .q_heads = cfg->n_head / U, .kv_heads = cfg->n_kv < U ? 1 : cfg->n_kv / U};
	/* ranks of a group are neighbours: they exchange most */
	int u = c->rank % U, row = c->rank / U;
	sp->heads = (struct comm_group){.c = c, .n = U, .me = u};
	sp->ring = (struct comm_group){.c = c, .n = R, .me = row};
	for (int i = 0; i < U; i++)
		sp->heads.rank[i] = row * U + i;
	for (int i = 0; i < R; i++)
		sp->ring.rank[i] = i * U + u;
	*ret = sp;
	return 0;
}

struct seqpar *seqpar_free(struct seqpar *sp)
{
	if (!sp)
		return NULL;
	real *dev[] = {sp->send, sp->recv, sp->kv[0], sp->kv[1], sp->dkv[0], sp->dkv[1], sp->dkv[2]};
	for (size_t i = 0; i < sizeof dev / sizeof *dev; i++)
		sp->d->ops->free(sp->d, dev[i]);
	const struct train_batch *b = &sp->batch;
	const void *host[] = {sp->att_seg, sp->lo, sp->hi, sp->local, b->ids, b->pos, b->seg, b->features, b->mask, b->weight, b->teacher.ids, b->teacher.p, b->teacher.mass,
			      b->y, b->in_vocab, sp->states.row, sp->states.z};
	for (size_t i = 0; i < sizeof host / sizeof *host; i++)
		free((void *)(uintptr_t)host[i]);
	free(sp);
	return NULL;
}

static int clamp(int x, int most)
{
	return x < 0 ? 0 : x < most ? x : most;
}

/* First row of the s-th block of ring rank r. */
static int block_first(const struct seqpar *sp, int r, int s)
{
	int block = s ? 2 * sp->ring.n - 1 - r : r;
	return block * sp->heads.n * sp->chunk;
}

/* Rows of the block that exist at step k. */
static int block_rows(const struct seqpar *sp, int r, int s, int k)
{
	return clamp(sp->n - k - block_first(sp, r, s), sp->heads.n * sp->chunk);
}

int seqpar_block(const struct seqpar *sp, int r, int s, int *ret_first)
{
	*ret_first = block_first(sp, r, s);
	return block_rows(sp, r, s, 0);
}

/* Rows of span s of member u of my group at step k. */
int seqpar_own_of(const struct seqpar *sp, int u, int s, int k)
{
	return clamp(sp->n - k - block_first(sp, sp->ring.me, s) - u * sp->chunk, sp->chunk);
}

int seqpar_own(const struct seqpar *sp, int s, int k)
{
	return seqpar_own_of(sp, sp->heads.me, s, k);
}

int seqpar_att_of(const struct seqpar *sp, int r, int k)
{
	int n = 0;
	for (int s = 0; s < sp->n_spans; s++)
		n += block_rows(sp, r, s, k);
	return n;
}

int seqpar_att(const struct seqpar *sp, int k)
{
	return seqpar_att_of(sp, sp->ring.me, k);
}

/* Room for the host arrays of the attention's rows. */
static int reserve(struct seqpar *sp)
{
	if (seqpar_alone(sp) || sp->att_rows <= sp->cap_att)
		return 0;
	uint32_t **all[] = {&sp->att_seg, &sp->lo, &sp->hi, &sp->local};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		free(*all[i]);
		*all[i] = calloc((size_t)sp->att_rows, sizeof **all[i]);
	}
	sp->cap_att = sp->att_seg && sp->lo && sp->hi && sp->local ? sp->att_rows : 0;
	return sp->cap_att ? 0 : -ENOMEM;
}

void seqpar_spans(const struct seqpar *sp, int rank, struct seq_span ret[SEQ_SPANS])
{
	int at = 0;
	for (int s = 0; s < sp->n_spans; s++) {
		int first = block_first(sp, rank / sp->heads.n, s) + rank % sp->heads.n * sp->chunk, own = clamp(sp->n - first, sp->chunk);
		ret[s] = (struct seq_span){.first = first, .own = own, .at = at, .rows = own ? clamp(sp->n - first, sp->chunk + sp->n_steps - 1) : 0};
		at += ret[s].rows;
	}
}

void seqpar_blocks(const struct seqpar *sp, int rank, struct seq_span ret[SEQ_SPANS])
{
	int at = 0, r = rank / sp->heads.n;
	for (int s = 0; s < sp->n_spans; s++) {
		int rows = block_rows(sp, r, s, 0);
		ret[s] = (struct seq_span){.first = block_first(sp, r, s), .own = rows, .at = at, .rows = rows};
		at += rows;
	}
}

int seqpar_plan(struct seqpar *sp, int n, int n_steps)
{
	int U = sp->heads.n, R = sp->ring.n;
	if (n < 1 || n_steps < 1)
		return -EINVAL;
	sp->n = n;
	sp->n_steps = n_steps < n ? n_steps : n;
	sp->n_spans = R > 1 ? 2 : 1;
	int parts = sp->n_spans * R * U;
	sp->chunk = (n + parts - 1) / parts;
	sp->n_local = 0;
	seqpar_spans(sp, sp->c->rank, sp->span);
	for (int s = 0; s < sp->n_spans; s++)
		sp->n_local += sp->span[s].rows;
	if (sp->n_local < sp->n_steps)
		sp->n_local = sp->n_steps; /* rows of nobody, so that each step has one */
	sp->att_rows = seqpar_att(sp, 0);
	sp->att_most = 0;
	for (int r = 0; r < R; r++)
		sp->att_most = seqpar_att_of(sp, r, 0) > sp->att_most ? seqpar_att_of(sp, r, 0) : sp->att_most;
	return reserve(sp);
}

int seqpar_total(struct seqpar *sp, double *v, int n)
{
	double all[COMM_MAX_RANKS * 8];
	if (seqpar_alone(sp))
		return 0;
	if (n > 8)
		return -EINVAL;
	TRY(comm_all_gather(sp->c, v, all, (size_t)n * sizeof *v));
	for (int i = 0; i < n; i++) {
		v[i] = all[i];
		for (int r = 1; r < sp->c->size; r++)
			v[i] += all[r * n + i];
	}
	return 0;
}
