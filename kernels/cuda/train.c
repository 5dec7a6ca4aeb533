/* Training's operations that are more than one launch. */
#include <math.h>
#include <string.h>
#include "kernels/cuda/cuda.h"

_Static_assert((int)CK_MAX_STEPS == (int)TTT_MAX_STEPS, "kern.h repeats ops.h, which C++ does not read");
_Static_assert((int)CK_MIX == (int)DISTILL_MIX && (int)CK_LOG_ALPHA == (int)DISTILL_LOG_ALPHA && (int)CK_REVERSE_KL == (int)DISTILL_REVERSE_KL &&
		       (int)CK_HARD == (int)DISTILL_HARD, "and so does its kind of loss");

static bool ttt_bad(const struct ttt_kv *kv, const uint32_t *seg, int n, int nh, int nkv, int hd)
{
	if (n < 0 || nkv <= 0 || nh <= 0 || nh % nkv || nh / nkv > CK_TILE || hd <= 0 || hd > CK_MAX_D || kv->n_steps < 1 || kv->n_steps > TTT_MAX_STEPS)
		return true;
	for (int t = 0; seg && t < n; t++)
		if (seg[t] > (uint32_t)t)
			return true;
	return false;
}

static bool ttt_bad_block(const struct ttt_block *b, int n, int nh, int nkv, int hd)
{
	const struct ttt_kv none = {.n_steps = 1};
	if (ttt_bad(&none, NULL, n, nh, nkv, hd) || b->n < 0)
		return true;
	for (int t = 0; t < n; t++)
		if (b->lo[t] > b->hi[t] || b->hi[t] > (uint32_t)b->n)
			return true;
	return false;
}

static int ttt_of(struct dev *d, struct ck_ttt *t, const struct ttt_kv *kv, const real *q, const uint32_t *seg, int n, int nh, int nkv, int hd, real scale)
{
	*t = (struct ck_ttt){.q = q, .n_steps = kv->n_steps, .n = n, .nk = n, .nh = nh, .nkv = nkv, .hd = hd, .scale = scale};
	for (int i = 0; i < kv->n_steps; i++) {
		t->k[i] = kv->k[i];
		t->v[i] = kv->v[i];
		t->dk[i] = kv->dk[i];
		t->dv[i] = kv->dv[i];
	}
	return seg ? cuda_stage_ids(d, seg, n, &t->seg) : 0;
}

/* bf16 copies of `count` of an array each, for the tensor cores, into one scratch with `more` bytes behind them; *ret_more is there. Nothing of it
 * where the arithmetic is f32's, or heads are of a width that ttt_tensor.cu does not know. */
struct rounded {
	const uint16_t **to;
	const float *from;
	size_t n;
};

static int round_off(struct dev *d, const struct ck_ttt *t, const struct rounded *x, int count, size_t more, void **ret_more)
{
	bool tensor = cuda_of(d)->q.math == MATH_FAST && ck_tensor(t->hd);
	size_t bytes = 0;
	void *at = NULL;
	for (int i = 0; i < count && tensor; i++)
		bytes += cuda_round_up(x[i].n * 2, 256);
	int r = bytes + more ? cuda_scratch(d, bytes + more, &at) : 0;
	if (r)
		return r;
	if (more)
		*ret_more = (char *)at + bytes;
	for (int i = 0; i < count && tensor && !r; i++) {
		*x[i].to = at;
		r = cuda_done(d, ck_pack_bf16(cuda_of(d)->stream, at, x[i].from, x[i].n), "ttt_attn: bf16");
		at = (char *)at + cuda_round_up(x[i].n * 2, 256);
	}
	return r;
}

static int forward(struct dev *d, struct ck_ttt *t, real *out, real *lse, const char *what)
{
	size_t n = (size_t)t->nk * (size_t)(t->nkv * t->hd);
	const struct rounded x[] = {{&t->kb, t->k[0], n}, {&t->vb, t->v[0], n}};
	int r = round_off(d, t, x, 2, 0, NULL);
	t->o = out;
	t->l = lse;
	return r ? r : cuda_done(d, ck_ttt_forward(cuda_of(d)->stream, t), what);
}

int cuda_ttt_attn(struct dev *d, real *out, real *lse, const real *q, const struct ttt_kv *kv, const uint32_t *seg, int n, int nh, int nkv, int hd, real scale)
{
	struct ck_ttt t;
	if (ttt_bad(kv, seg, n, nh, nkv, hd))
		return cuda_bad(d, "ttt_attn");
	if (!n)
		return 0;
	int r = ttt_of(d, &t, kv, q, seg, n, nh, nkv, hd, scale);
	return r ? r : forward(d, &t, out, lse, "ttt_attn");
}

static int backward(struct dev *d, struct ck_ttt *t, real *dq, const real *dout, const real *out, const real *lse, const char *what)
{
	size_t n = (size_t)t->nk * (size_t)(t->nkv * t->hd), rows = (size_t)t->n * (size_t)t->nh;
	const struct rounded x[] = {{&t->kb, t->k[0], n}, {&t->vb, t->v[0], n}, {&t->qb, t->q, rows * (size_t)t->hd}, {&t->dob, dout, rows * (size_t)t->hd}};
	void *delta;
	int r = round_off(d, t, x, 4, rows * sizeof(float), &delta);
	if (r)
		return r;
	t->dq = dq;
	t->dout = dout;
	t->out = out;
	t->lse = lse;
	t->delta = delta;
	return cuda_done(d, ck_ttt_backward(cuda_of(d)->stream, t), what);
}

int cuda_ttt_attn_backward(struct dev *d, real *dq, const struct ttt_kv *kv, const real *dout, const real *out, const real *lse, const real *q, const uint32_t *seg, int n,
			   int nh, int nkv, int hd, real scale)
{
	struct ck_ttt t;
	if (ttt_bad(kv, seg, n, nh, nkv, hd))
		return cuda_bad(d, "ttt_attn_backward");
	if (!n)
		return 0;
	int r = ttt_of(d, &t, kv, q, seg, n, nh, nkv, hd, scale);
	return r ? r : backward(d, &t, dq, dout, out, lse, "ttt_attn_backward");
}

static int ttt_of_block(struct dev *d, struct ck_ttt *t, const struct ttt_block *b, const real *q, int n, int nh, int nkv, int hd, real scale)
{
	*t = (struct ck_ttt){.k = {b->k}, .v = {b->v}, .dk = {b->dk}, .dv = {b->dv}, .q = q, .n_steps = 1, .n = n, .nk = b->n, .nh = nh, .nkv = nkv, .hd = hd, .scale = scale};
	int r = cuda_stage_ids(d, b->lo, n, &t->lo);
	return r ? r : cuda_stage_ids(d, b->hi, n, &t->hi);
}

int cuda_ttt_attn_more(struct dev *d, real *out, real *lse, const real *q, const struct ttt_block *b, int n, int nh, int nkv, int hd, real scale)
{
	struct ck_ttt t;
	if (ttt_bad_block(b, n, nh, nkv, hd))
		return cuda_bad(d, "ttt_attn_more");
	if (!n || !b->n)
		return 0;
	int r = ttt_of_block(d, &t, b, q, n, nh, nkv, hd, scale);
	return r ? r : forward(d, &t, out, lse, "ttt_attn_more");
}

int cuda_ttt_attn_more_backward(struct dev *d, real *dq, const struct ttt_block *b, const real *dout, const real *out, const real *lse, const real *q, int n, int nh,
				int nkv, int hd, real scale)
{
	struct ck_ttt t;
	if (ttt_bad_block(b, n, nh, nkv, hd))
		return cuda_bad(d, "ttt_attn_more_backward");
	if (!n || !b->n)
		return 0;
	int r = ttt_of_block(d, &t, b, q, n, nh, nkv, hd, scale);
	return r ? r : backward(d, &t, dq, dout, out, lse, "ttt_attn_more_backward");
}

enum { DENSE_OFF = 64 << 20 }; /* bytes of `off` at a time for a dense teacher */

/* Where a call's results lie: [m] each, then what the kernel keeps of the teacher's columns */
struct results {
	float *loss, *alpha, *off;
	uint32_t *argmax;
};

/* Rows [i, i+n) of the call, few enough that a sparse teacher fits the ring; a dense one is on the device already */
static int distill_rows(struct dev *d, real *logits, const struct results *to, const struct teacher *q, int r0, const real *w, int i, int n, int Vd, struct distill how)
{
	size_t row = (size_t)(r0 + i), at = row * (size_t)q->K, count = (size_t)n * (size_t)q->K;
	const void *ids = NULL, *p = q->p + at, *wd = NULL, *mass = NULL;
	int r = q->ids ? cuda_stage(d, q->ids + at, count * sizeof *q->ids, &ids) : 0;
	if (!r && q->ids)
		r = cuda_stage(d, q->p + at, count * sizeof *q->p, &p);
	r = r ? r : cuda_stage(d, w + i, (size_t)n * sizeof *w, &wd);
	if (!r && q->mass)
		r = cuda_stage(d, q->mass + row, (size_t)n * sizeof *q->mass, &mass);
	if (r)
		return r;
	struct ck_distill c = {.logits = logits + (size_t)i * (size_t)Vd, .loss = to->loss + i, .alpha = to->alpha + i, .argmax = to->argmax + i, .off = to->off, .ids = ids, .p = p,
			       .w = wd, .mass = mass, .floor = DISTILL_FLOOR, .kind = (enum ck_distill_kind)how.kind, .kl = how.kl, .m = n, .K = q->K, .Vd = Vd};
	return cuda_done(d, ck_distill(cuda_of(d)->stream, &c), "distill");
}

int cuda_distill(struct dev *d, real *logits, real *loss, uint32_t *argmax, real *alpha, const struct teacher *q, int r0, const real *w, int m, int Vd, struct distill how)
{
	if (m < 0 || Vd <= 0 || r0 < 0 || r0 + m > q->n || q->K <= 0 || (!q->ids && q->K != Vd))
		return cuda_bad(d, "distill");
	for (size_t i = 0; q->ids && i < (size_t)m * (size_t)q->K; i++) {
		size_t at = (size_t)r0 * (size_t)q->K + i;
		if (q->ids[at] >= (uint32_t)Vd && q->p[at] != 0)
			return cuda_bad(d, "distill: teacher id past the draft vocabulary");
	}
	if (!m)
		return 0;
	int step = (q->ids ? STAGE_HALF / 4 : DENSE_OFF) / (q->K * 4);
	step = step < 1 ? 1 : step > m ? m : step;
	size_t n = (size_t)m, words = 3 * n + (size_t)step * (size_t)q->K;
	void *dev, *host;
	int r = cuda_scratch(d, words * 4, &dev);
	r = r ? r : cuda_back(d, 3 * n * 4, &host);
	if (r)
		return r;
	struct results to = {.loss = dev, .alpha = (float *)dev + n, .argmax = (uint32_t *)dev + 2 * n, .off = (float *)dev + 3 * n};
	for (int i = 0; i < m && !r; i += step)
		r = distill_rows(d, logits, &to, q, r0, w, i, cuda_min(step, m - i), Vd, how);
	r = r ? r : cuda_download(d, host, dev, 3 * n * 4);
	if (r)
		return r;
	if (loss)
		memcpy(loss, host, n * sizeof *loss);
	if (alpha)
		memcpy(alpha, (float *)host + n, n * sizeof *alpha);
	if (argmax)
		memcpy(argmax, (uint32_t *)host + 2 * n, n * sizeof *argmax);
	return 0;
}

int cuda_softmax(struct dev *d, real *y, int ldy, const real *x, int ldx, int M, int N)
{
	if (M < 0 || N <= 0 || ldy < N || ldx < N)
		return cuda_bad(d, "softmax");
	return M ? cuda_done(d, ck_softmax(cuda_of(d)->stream, y, ldy, x, ldx, M, N), "softmax") : 0;
}

int cuda_sumsq(struct dev *d, double *ret, const real *x, size_t n)
{
	size_t blocks = (n + CK_SUM_BLOCK - 1) / CK_SUM_BLOCK;
	void *dev, *host;
	double sum = 0;
	int r = cuda_scratch(d, blocks * sizeof(double) + 1, &dev);
	r = r ? r : cuda_back(d, blocks * sizeof(double) + 1, &host);
	if (!r && blocks) {
		r = cuda_done(d, ck_sumsq(cuda_of(d)->stream, dev, x, n), "sumsq");
		r = r ? r : cuda_download(d, host, dev, blocks * sizeof(double));
	}
	if (r)
		return r;
	for (size_t b = 0; b < blocks; b++)
		sum += ((const double *)host)[b];
	*ret = sum;
	return 0;
}

int cuda_adamw(struct dev *d, real *w, real *m, real *v, const real *g, size_t n, real lr, real beta1, real beta2, real eps, real wd, real gscale, int64_t step)
{
	if (step < 1)
		return cuda_bad(d, "adamw: steps count from 1");
	double c1 = 1 - pow((double)beta1, (double)step), c2 = 1 - pow((double)beta2, (double)step);
	struct ck_adamw c = {gscale, beta1, beta2, (float)((double)lr / c1), (float)(1 / c2), eps, (float)(1 - (double)lr * (double)wd)};
	return n ? cuda_done(d, ck_adamw(cuda_of(d)->stream, w, m, v, g, n, c), "adamw") : 0;
}
