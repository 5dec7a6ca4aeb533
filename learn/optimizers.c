/* AdamW and Muon.
 *
 * AdamW: bias-corrected, decoupled decay of 0 (eagle3.md §3.7), the op does it.
 *
 * Muon moves a matrix along the nearest orthogonal one to its momentum, so every
 * direction advances alike. What was chosen, for each matrix W [r,c] but the head:
 *   m = 0.95 m + 0.05 g;  u = 0.05 g + 0.95 m               (Nesterov)
 *   X = u / (|u| + 1e-7), then muon_iters times X = aX + (bA + cA^2) X, A = X X^T,
 *       (a,b,c) = (3.4445, -4.7750, 2.0315)                 (Newton-Schulz, f32)
 *   W -= muon_lr * factor * sqrt(max(1, r/c)) * X
 * A tall matrix uses A = X^T X from the right instead, which is the same map on
 * its transpose. q, k, v and gate, up are matrices of their own. Head and norms
 * are AdamW's: the head's rows are classes, not directions of a map.
 *
 * Clipping comes first and for all tensors together. Muon's direction does not
 * feel the size of one gradient, only its size relative to the momentum.
 */
#include <math.h>
#include <stdlib.h>
#include "learn/optimizers.h"
#include "learn/schedule.h"

struct optimizer {
	struct dev *d;
	struct draft_layout lay;
	struct train_options opt;
	int64_t step;   /* steps done */
	real *m, *v;    /* [total] each */
	real *x, *y;    /* Muon: the largest matrix */
	real *a, *b;    /* Muon: [s,s], s its shorter side */
};

bool optimizer_is_muon(enum optimizer_kind kind, enum eagle3_tensor i)
{
	if (kind != OPT_MUON)
		return false;
	switch (i) {
	case E3_FC:
	case E3_Q:
	case E3_K:
	case E3_V:
	case E3_O:
	case E3_GATE:
	case E3_UP:
	case E3_DOWN:
		return true;
	default:
		return false;
	}
}

static int muon_scratch(struct optimizer *o)
{
	size_t whole = 0, square = 0;
	for (int i = 0; i < E3_N_TENSORS; i++) {
		if (!optimizer_is_muon(o->opt.optimizer, (enum eagle3_tensor)i))
			continue;
		size_t r = (size_t)o->lay.rows[i], c = (size_t)o->lay.cols[i], s = r < c ? r : c;
		whole = r * c > whole ? r * c : whole;
		square = s * s > square ? s * s : square;
	}
	if (!whole)
		return 0;
	o->x = o->d->ops->alloc(o->d, whole * sizeof(real));
	o->y = o->d->ops->alloc(o->d, whole * sizeof(real));
	o->a = o->d->ops->alloc(o->d, square * sizeof(real));
	o->b = o->d->ops->alloc(o->d, square * sizeof(real));
	return o->x && o->y && o->a && o->b ? 0 : -ENOMEM;
}

int optimizer_new(struct dev *d, const struct draft_layout *lay, const struct train_options *opt, struct optimizer **ret)
{
	struct optimizer *o = calloc(1, sizeof *o);
	if (!o)
		return -ENOMEM;
	o->d = d;
	o->lay = *lay;
	o->opt = *opt;
	o->m = d->ops->alloc(d, lay->total * sizeof(real));
	o->v = d->ops->alloc(d, lay->total * sizeof(real));
	if (!o->m || !o->v || muon_scratch(o) < 0) {
		optimizer_free(o);
		return -ENOMEM;
	}
	*ret = o;
	return 0;
}

struct optimizer *optimizer_free(struct optimizer *o)
{
	if (!o)
		return NULL;
	real *all[] = {o->m, o->v, o->x, o->y, o->a, o->b};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		o->d->ops->free(o->d, all[i]);
	free(o);
	return NULL;
}

/* x [r,c] in place to its orthogonal factor (nearly: after five rounds singular values above 0.003 of the norm land
 * in about [0.7, 1.2], after three those above 0.03; smaller ones are lifted 41-fold). */
static int newton_schulz(struct optimizer *o, int r, int c)
{
	const real ka = (real)3.4445, kb = (real)-4.7750, kc = (real)2.0315;
	const struct ops *p = o->d->ops;
	struct dev *d = o->d;
	bool tall = r > c;
	int s = tall ? c : r, l = tall ? r : c;
	for (int i = 0; i < o->opt.muon_iters; i++) {
		/* a = X X^T (or X^T X)                    [s,s] */
		TRY(p->gemm(d, o->a, s, tall, o->x, c, !tall, o->x, c, s, s, l, false));
		/* b = kb a + kc a a */
		TRY(p->gemm(d, o->b, s, false, o->a, s, false, o->a, s, s, s, s, false));
		TRY(p->axpby(d, o->b, kb, o->a, kc, (size_t)s * (size_t)s));
		/* x = ka x + b x (or x b) */
		if (tall)
			TRY(p->gemm(d, o->y, c, false, o->x, c, false, o->b, s, r, c, s, false));
		else
			TRY(p->gemm(d, o->y, c, false, o->b, s, false, o->x, c, r, c, s, false));
		TRY(p->axpby(d, o->x, 1, o->y, ka, (size_t)r * (size_t)c));
	}
	return 0;
}

static int muon_tensor(struct optimizer *o, int i, real *w, const real *g, real gscale, double factor)
{
	const struct ops *p = o->d->ops;
	int r = o->lay.rows[i], c = o->lay.cols[i];
	size_t off = o->lay.off[i], n = (size_t)r * (size_t)c;
	real mu = o->opt.muon_momentum, fresh = (1 - mu) * gscale;
	double sum;
	TRY(p->axpby(o->d, o->m + off, fresh, g + off, mu, n));
	TRY(p->copy_rows(o->d, o->x, c, o->m + off, c, NULL, r, c));
	TRY(p->axpby(o->d, o->x, fresh, g + off, mu, n));
	TRY(p->sumsq(o->d, &sum, o->x, n));
	TRY(p->axpby(o->d, o->x, 0, g + off, (real)(1 / (sqrt(sum) + 1e-7)), n));
	TRY(newton_schulz(o, r, c));
	double stretch = r > c ? sqrt((double)r / (double)c) : 1;
	return p->axpby(o->d, w + off, (real)(-(double)o->opt.muon_lr * factor * stretch), o->x, 1, n);
}

/* AdamW on tensors [first, end): neighbours in the flat array, so one call. */
static int adamw_run(struct optimizer *o, int first, int end, real *w, const real *g, real gscale, double factor)
{
	const struct train_options *t = &o->opt;
	size_t off = o->lay.off[first], n = (end < E3_N_TENSORS ? o->lay.off[end] : o->lay.total) - off;
	return o->d->ops->adamw(o->d, w + off, o->m + off, o->v + off, g + off, n, (real)((double)t->lr * factor), t->beta1, t->beta2, t->eps, 0,
				gscale, o->step + 1);
}

int optimizer_step(struct optimizer *o, real *w, const real *g, double grad_norm)
{
	double clip = (double)o->opt.clip, scale = clip / (grad_norm + 1e-6);
	real gscale = clip > 0 && scale < 1 ? (real)scale : 1;
	double factor = schedule_factor(o->step, o->opt.warmup_steps, o->opt.total_steps, (double)o->opt.first);
	for (int i = 0, end; i < E3_N_TENSORS; i = end) {
		end = i + 1;
		if (optimizer_is_muon(o->opt.optimizer, (enum eagle3_tensor)i)) {
			TRY(muon_tensor(o, i, w, g, gscale, factor));
			continue;
		}
		while (end < E3_N_TENSORS && !optimizer_is_muon(o->opt.optimizer, (enum eagle3_tensor)end))
			end++;
		TRY(adamw_run(o, i, end, w, g, gscale, factor));
	}
	o->step++;
	return 0;
}

size_t optimizer_n_state(const struct optimizer *o)
{
	return 2 * o->lay.total;
}

int optimizer_save(struct optimizer *o, real *ret_state, int64_t *ret_step)
{
	size_t bytes = o->lay.total * sizeof(real);
	TRY(o->d->ops->download(o->d, ret_state, o->m, bytes));
	TRY(o->d->ops->download(o->d, ret_state + o->lay.total, o->v, bytes));
	*ret_step = o->step;
	return 0;
}

int optimizer_load(struct optimizer *o, const real *state, int64_t step)
{
	size_t bytes = o->lay.total * sizeof(real);
	real *zero = NULL;
	if (!state && !(zero = calloc(o->lay.total, sizeof *zero)))
		return -ENOMEM;
	int r = o->d->ops->upload(o->d, o->m, state ? state : zero, bytes);
	if (r >= 0)
		r = o->d->ops->upload(o->d, o->v, state ? state + o->lay.total : zero, bytes);
	free(zero);
	if (r < 0)
		return r;
	o->step = step;
	return 0;
}
