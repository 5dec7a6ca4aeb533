/* Where a TTT computation lives: the flat layout of the parameters, and one arena
 * of activations cut into the arrays of learn/ttt.h.
 *
 * The arena is cut by the same function twice: once from a null base to learn its
 * size, once for real. It only grows; a batch that fits reuses it.
 */
#include <stdlib.h>
#include <string.h>
#include "learn/ttt.h"

enum {
	HEAD_CHUNK = 512, /* rows of logits at a time: 16 MB at V_d 8192; each time the head is read twice and its gradient once */
	ALIGN = 16,       /* reals: arrays start on a cache line */
};

void draft_layout_init(const struct eagle3_config *c, struct draft_layout *ret)
{
	size_t at = 0;
	for (int i = 0; i < E3_N_ALL; i++) {
		eagle3_tensor_shape(c, (enum eagle3_tensor)i, &ret->rows[i], &ret->cols[i]);
		ret->off[i] = at;
		at += (size_t)ret->rows[i] * (size_t)ret->cols[i];
	}
	ret->total = at;
}

static int check(const struct eagle3_config *c, const int64_t *d2t, struct errtext *e)
{
	if (c->norm_before_fc && c->fc_norm)
		return errtext_set(e, -EINVAL, "draft has both norm_before_fc and fc_norm, which exclude each other");
	if (c->H < 1 || c->H_t < 1 || c->I < 1 || c->n_head < 1 || c->n_kv < 1 || c->hd < 2 || c->hd % 2 || c->n_head % c->n_kv ||
	    c->V_d < 1 || c->V_d > c->V)
		return errtext_set(e, -EINVAL, "draft has an impossible shape (H %d, heads %d/%d x %d, vocabulary %d of %d)", c->H, c->n_head,
				   c->n_kv, c->hd, c->V_d, c->V);
	for (int i = 0; i < c->V_d; i++)
		if (d2t[i] + i < 0 || d2t[i] + i >= c->V || (i && d2t[i] < d2t[i - 1]))
			return errtext_set(e, -EINVAL, "draft vocabulary: entry %d maps to token %lld, out of order or beyond %d", i,
					   (long long)d2t[i] + i, c->V);
	return 0;
}

int ttt_new(struct dev *d, const struct eagle3_config *c, const int64_t *d2t, const uint16_t *embedding, enum ttt_mode mode, struct ttt **ret,
	    struct errtext *e)
{
	int r = check(c, d2t, e);
	if (r < 0)
		return r;
	struct ttt *t = calloc(1, sizeof *t);
	if (!t)
		return -ENOMEM;
	t->d = d;
	t->c = *c;
	t->embedding = embedding;
	t->mode = mode;
	t->head_chunk = HEAD_CHUNK;
	draft_layout_init(c, &t->lay);
	size_t n = t->lay.total, bytes = n * sizeof(real);
	t->w = d->ops->alloc(d, bytes);
	t->dw = mode == TTT_TRAIN ? d->ops->alloc(d, bytes) : NULL;
	t->d2t = malloc((size_t)c->V_d * sizeof *t->d2t);
	t->inv_freq = malloc((size_t)(c->hd / 2) * sizeof *t->inv_freq);
	if (!t->w || (mode == TTT_TRAIN && !t->dw) || !t->d2t || !t->inv_freq) {
		ttt_free(t);
		return errtext_set(e, -ENOMEM, "out of memory for a draft of %zu parameters%s%s", n, *d->error ? ": " : "", d->error);
	}
	memcpy(t->d2t, d2t, (size_t)c->V_d * sizeof *t->d2t);
	rope_table(&c->rope, c->hd, t->inv_freq, &t->mscale);
	if (mode == TTT_TRAIN && (r = ttt_set_ranks(t, NULL, 1, 1, e)) < 0) {
		ttt_free(t);
		return r;
	}
	*ret = t;
	return 0;
}

int ttt_set_ranks(struct ttt *t, struct comm *c, int data, int ulysses, struct errtext *e)
{
	struct seqpar *sp = NULL;
	TRY(seqpar_new(t->d, c, data, ulysses, &t->c, &sp, e));
	seqpar_free(t->sp);
	t->sp = sp;
	return 0;
}

static void drop_arena(struct ttt *t)
{
	t->d->ops->free(t->d, t->arena);
	free(t->pos_k);
	free(t->rows);
	free(t->inverse);
	free(t->argmax);
	free(t->seg);
	free(t->weight);
	free(t->row_loss);
	free(t->row_alpha);
	free(t->host_e);
	t->arena = NULL;
	t->pos_k = t->rows = t->inverse = t->argmax = t->seg = NULL;
	t->weight = t->row_loss = t->row_alpha = t->host_e = NULL;
	t->cap_rows = t->cap_att = t->cap_steps = 0;
}

struct ttt *ttt_free(struct ttt *t)
{
	if (!t)
		return NULL;
	drop_arena(t);
	t->d->ops->free(t->d, t->w);
	t->d->ops->free(t->d, t->dw);
	seqpar_free(t->sp);
	t->d->ops->free(t->d, t->tz);
	t->d->ops->free(t->d, t->tp);
	free(t->d2t);
	free(t->inv_freq);
	free(t);
	return NULL;
}

/* Cut `count` reals off the arena at *at (base NULL: only count). */
static void take(real *base, size_t *at, real **ret, size_t count)
{
	*ret = base ? base + *at : NULL;
	*at += (count + ALIGN - 1) / ALIGN * ALIGN;
}

static void cut_steps(struct ttt *t, real *base, size_t *at, size_t n, size_t att, int n_steps)
{
	const struct eagle3_config *c = &t->c;
	size_t H = (size_t)c->H, Q = (size_t)ttt_width_q(t), att_q = att * (size_t)ttt_att_q(t), att_kv = att * (size_t)ttt_att_kv(t);
	bool train = t->mode == TTT_TRAIN;
	for (int k = 0; k < n_steps; k++) {
		struct ttt_step *s = &t->step[k];
		take(base, at, &s->k, att_kv);
		take(base, at, &s->v, att_kv);
		if (train || k == 0)
			take(base, at, &s->g, n * H);
		if (!train && k > 0) {
			s->q = t->step[0].q;
			s->attn = t->step[0].attn;
			s->lse = t->step[0].lse;
			s->h1 = t->step[0].h1;
			s->gu = t->step[0].gu;
			continue;
		}
		take(base, at, &s->q, att_q);
		take(base, at, &s->attn, n * Q);
		take(base, at, &s->lse, att_q / (size_t)c->hd);
		take(base, at, &s->h1, n * H);
		take(base, at, &s->gu, n * 2 * (size_t)c->I);
		if (train) {
			take(base, at, &s->dk, att_kv);
			take(base, at, &s->dv, att_kv);
		}
		if (train && c->norm_output)
			take(base, at, &s->h2, n * H);
	}
	if (train)
		take(base, at, &t->step[n_steps].g, n * H);
	for (int k = 0; k < n_steps && !c->norm_output; k++)
		t->step[k].h2 = t->step[k + 1].g;
}

/* What only drafts with norm flags need. */
static void cut_norms(struct ttt *t, real *base, size_t *at, size_t n)
{
	size_t F = 3 * (size_t)t->c.H_t;
	bool train = t->mode == TTT_TRAIN;
	if (t->lay.cols[E3_NORM_FC]) {
		take(base, at, &t->fn, n * F);
		take(base, at, &t->frstd, n * 3);
	}
	if (t->lay.cols[E3_NORM_FC] && train)
		take(base, at, &t->dfn, n * F);
	if (t->c.norm_output && train)
		take(base, at, &t->nx, n * (size_t)t->c.H);
}

/* All arrays of n rows, `att` rows of attention and n_steps steps from base; the count of reals they take. */
static size_t cut(struct ttt *t, real *base, int n_rows, int att, int n_steps)
{
	const struct eagle3_config *c = &t->c;
	size_t n = (size_t)n_rows, H = (size_t)c->H, I = (size_t)c->I, Q = (size_t)ttt_width_q(t), QKV = (size_t)ttt_width_qkv(t);
	size_t chunk = (size_t)t->head_chunk, at = 0;
	cut_steps(t, base, &at, n, (size_t)att, n_steps);
	cut_norms(t, base, &at, n);
	take(base, &at, &t->f, n * 3 * (size_t)c->H_t);
	take(base, &at, &t->e, n * H);
	take(base, &at, &t->en, n * H);
	take(base, &at, &t->ew, n * QKV);
	take(base, &at, &t->norm, n * H);
	take(base, &at, &t->rstd, n);
	take(base, &at, &t->qkv, n * QKV);
	take(base, &at, &t->act, n * I);
	take(base, &at, &t->hrows, chunk * H);
	take(base, &at, &t->hnorm, chunk * H);
	take(base, &at, &t->logits, chunk * (size_t)c->V_d);
	take(base, &at, &t->dattn, n * Q); /* replay gathers attention's rows here */
	if (t->mode == TTT_TRAIN) {
		take(base, &at, &t->dq, (size_t)att * (size_t)ttt_att_q(t));
		if (!seqpar_alone(t->sp)) {
			take(base, &at, &t->mix, (size_t)att * (size_t)ttt_att_q(t));
			take(base, &at, &t->dmix, (size_t)att * (size_t)ttt_att_q(t));
		}
		take(base, &at, &t->dew, n * QKV);
		take(base, &at, &t->dh, n * H);
		take(base, &at, &t->dhead, (n + 1) * H);
		take(base, &at, &t->dhnorm, chunk * H);
		take(base, &at, &t->hrstd, chunk);
	}
	return at;
}

int ttt_reserve(struct ttt *t, int n, int n_steps)
{
	if (n < 1 || n_steps < 1 || n_steps > TTT_MAX_STEPS)
		return -EINVAL;
	int att = t->sp && !seqpar_alone(t->sp) ? t->sp->att_rows : n;
	if (t->arena && n <= t->cap_rows && att <= t->cap_att && n_steps <= t->cap_steps)
		return 0;
	/* a batch that is a little longer each time must not mean a new arena each time */
	int rows = (n + 127) / 128 * 128, steps = n_steps;
	att = (att + 127) / 128 * 128;
	rows = rows < t->cap_rows ? t->cap_rows : rows;
	att = att < t->cap_att ? t->cap_att : att;
	steps = steps < t->cap_steps ? t->cap_steps : steps;
	drop_arena(t);
	size_t m = (size_t)rows, h = m * (size_t)t->c.H;
	t->arena = t->d->ops->alloc(t->d, cut(t, NULL, rows, att, steps) * sizeof(real));
	t->pos_k = calloc(m, sizeof *t->pos_k);
	t->rows = calloc(m, sizeof *t->rows);
	t->inverse = calloc(m, sizeof *t->inverse);
	t->argmax = calloc(m, sizeof *t->argmax);
	t->seg = calloc(m, sizeof *t->seg);
	t->weight = calloc(m, sizeof *t->weight);
	t->row_loss = calloc(m, sizeof *t->row_loss);
	t->row_alpha = calloc(m, sizeof *t->row_alpha);
	t->host_e = calloc(h, sizeof *t->host_e);
	if (!t->arena || !t->pos_k || !t->rows || !t->inverse || !t->argmax || !t->seg || !t->weight || !t->row_loss || !t->row_alpha || !t->host_e) {
		drop_arena(t);
		return -ENOMEM;
	}
	(void)cut(t, t->arena, rows, att, steps);
	t->cap_rows = rows;
	t->cap_att = att;
	t->cap_steps = steps;
	return 0;
}

int ttt_zero(const struct ttt *t, real *p, size_t n)
{
	return t->d->ops->zero(t->d, p, n * sizeof(real));
}
