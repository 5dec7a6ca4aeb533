/* Who owns which rows (learn/seqpar.h), and small sums over ranks. */
#include <stdlib.h>
#include <string.h>

#include "learn/seqpar_priv.h"
#include "learn/ttt.h"

static int check_grid(const struct comm *c, int D, int U, const struct eagle3_config *cfg, struct errtext *e)
{
	if (c->size % D)
		return errtext_set(e, -EINVAL, "data is %d: it must divide the %d ranks", D, c->size);
	if (c->size / D % U)
		return errtext_set(e, -EINVAL, "ulysses is %d: it must divide the %d ranks%s; ring is the rest", U, c->size / D, D > 1 ? " of a group" : "");
	if (cfg->n_head % U || (cfg->n_kv % U && U % cfg->n_kv))
		return errtext_set(e, -EINVAL, "ulysses is %d: it must divide the draft's %d heads, and divide or be divided by its %d key heads; take more of ring instead", U,
				   cfg->n_head, cfg->n_kv);
	return 0;
}

int seqpar_new(struct dev *d, struct comm *c, int data, int ulysses, const struct eagle3_config *cfg, struct seqpar **ret, struct errtext *e)
{
	c = c ? c : comm_self();
	int D = data < 1 ? 1 : data, U = ulysses < 1 ? 1 : ulysses, r = check_grid(c, D, U, cfg, e);
	if (r)
		return r;
	int S = c->size / D, R = S / U;
	if (c->size > 1 && d->own_memory && c->d != d)
		return errtext_set(e, -ENOTSUP, "%d ranks by %s share rows through ordinary memory, and this device has its own: device = cpu", c->size, c->ops->name);
	if (R > 1 && !d->ops->ttt_attn_more)
		return errtext_set(e, -ENOTSUP, "this device cannot share a sequence by ring; take ulysses = %d", S);
	struct seqpar *sp = calloc(1, sizeof *sp);
	struct seq_part *part = calloc((size_t)D, sizeof *part);
	if (!sp || !part) {
		free(sp);
		free(part);
		return -ENOMEM;
	}
	*sp = (struct seqpar){.d = d, .c = c, .n_groups = D, .group = c->rank / S, .part = part, .n_head = cfg->n_head, .n_kv = cfg->n_kv, .hd = cfg->hd,
			      .q_heads = cfg->n_head / U, .kv_heads = cfg->n_kv < U ? 1 : cfg->n_kv / U};
	/* neighbours are a team: they exchange most; then those of a ring */
	int u = c->rank % U, row = c->rank % S / U, first = sp->group * S;
	sp->heads = (struct comm_group){.c = c, .n = U, .me = u};
	sp->ring = (struct comm_group){.c = c, .n = R, .me = row};
	for (int i = 0; i < U; i++)
		sp->heads.rank[i] = first + row * U + i;
	for (int i = 0; i < R; i++)
		sp->ring.rank[i] = first + i * U + u;
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
	free(sp->part);
	free(sp);
	return NULL;
}

static int clamp(int x, int most)
{
	return x < 0 ? 0 : x < most ? x : most;
}

static const struct seq_part *my_part(const struct seqpar *sp)
{
	return &sp->part[sp->group];
}

/* First row, of the part p, of the s-th block of ring rank r. */
static int block_first(const struct seqpar *sp, const struct seq_part *p, int r, int s)
{
	int block = s ? 2 * sp->ring.n - 1 - r : r;
	return block * sp->heads.n * p->chunk;
}

/* Rows of the block that exist at step k. */
static int block_rows(const struct seqpar *sp, const struct seq_part *p, int r, int s, int k)
{
	return clamp(p->n - k - block_first(sp, p, r, s), sp->heads.n * p->chunk);
}

int seqpar_block(const struct seqpar *sp, int r, int s, int *ret_first)
{
	*ret_first = block_first(sp, my_part(sp), r, s);
	return block_rows(sp, my_part(sp), r, s, 0);
}

int seqpar_own_of(const struct seqpar *sp, int u, int s, int k)
{
	const struct seq_part *p = my_part(sp);
	return clamp(p->n - k - block_first(sp, p, sp->ring.me, s) - u * p->chunk, p->chunk);
}

int seqpar_own(const struct seqpar *sp, int s, int k)
{
	return seqpar_own_of(sp, sp->heads.me, s, k);
}

int seqpar_att_of(const struct seqpar *sp, int r, int k)
{
	int n = 0;
	for (int s = 0; s < sp->n_spans; s++)
		n += block_rows(sp, my_part(sp), r, s, k);
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
	int at = 0, U = sp->heads.n;
	const struct seq_part *p = &sp->part[rank / (U * sp->ring.n)];
	for (int s = 0; s < sp->n_spans; s++) {
		int first = block_first(sp, p, rank / U % sp->ring.n, s) + rank % U * p->chunk, own = clamp(p->n - first, p->chunk);
		ret[s] = (struct seq_span){.first = p->first + first, .own = own, .at = at, .rows = own ? clamp(p->n - first, p->chunk + sp->n_steps - 1) : 0};
		at += ret[s].rows;
	}
}

void seqpar_blocks(const struct seqpar *sp, int rank, struct seq_span ret[SEQ_SPANS])
{
	int at = 0, r = rank / sp->heads.n % sp->ring.n;
	const struct seq_part *p = &sp->part[rank / (sp->heads.n * sp->ring.n)];
	for (int s = 0; s < sp->n_spans; s++) {
		int rows = block_rows(sp, p, r, s, 0);
		ret[s] = (struct seq_span){.first = p->first + block_first(sp, p, r, s), .own = rows, .at = at, .rows = rows};
		at += rows;
	}
}

/* Parts when none may have more than `most` rows; NULL: only how many they would be. */
static int cut_by(const uint32_t *seg, int n, int most, struct seq_part *ret)
{
	int parts = 0, first = 0; /* of the part that is being filled */
	for (int run = 0, end; run < n; run = end) {
		for (end = run + 1; seg && end < n && seg[end] == seg[run]; end++)
			;
		end = seg ? end : n;
		if (end - first > most && run > first) {
			first = run;
			parts++;
		}
		if (ret)
			ret[parts].first = first, ret[parts].n = end - first;
	}
	return parts + 1;
}

static int longest_run(const uint32_t *seg, int n)
{
	int most = 1;
	for (int i = 0, first = 0; seg && i < n; i++) {
		first = i && seg[i] != seg[i - 1] ? i : first;
		most = i + 1 - first > most ? i + 1 - first : most;
	}
	return seg ? most : n;
}

void seqpar_cut(const uint32_t *seg, int n, int n_parts, struct seq_part *ret)
{
	int low = longest_run(seg, n), high = n; /* the least that is enough is in [low, high] */
	while (low < high) {
		int most = low + (high - low) / 2;
		if (cut_by(seg, n, most, NULL) <= n_parts)
			high = most;
		else
			low = most + 1;
	}
	for (int i = 0; i < n_parts; i++)
		ret[i].first = n, ret[i].n = 0;
	(void)cut_by(seg, n, low, ret);
}

int seqpar_plan(struct seqpar *sp, const struct seq_part *part, int n_steps)
{
	int U = sp->heads.n, R = sp->ring.n, n = part[sp->n_groups - 1].first + part[sp->n_groups - 1].n;
	if (n < 1 || n_steps < 1)
		return -EINVAL;
	sp->n = n;
	sp->n_steps = n_steps < n ? n_steps : n;
	sp->n_spans = R > 1 ? 2 : 1;
	int blocks = sp->n_spans * R * U;
	for (int i = 0; i < sp->n_groups; i++)
		sp->part[i] = (struct seq_part){part[i].first, part[i].n, (part[i].n + blocks - 1) / blocks};
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
