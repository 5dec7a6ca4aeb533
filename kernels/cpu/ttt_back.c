/* TTT attention, backward (eagle3.md 3.5), with the merged output O and log-sum-exp M:
 *   delta_t = dO_t . O_t,  P = exp(S - M),  dS = P (dO V' - delta)
 *   dV += P' dO,  dQ += scale dS K,  dK += scale dS' Q
 *
 * Blocks of 48 query rows meet blocks of 64 keys, all five products by the register
 * tiles; S and dP of one pair of blocks are all that is ever stored. One piece of
 * work is (query head, every other query block), with dK and dV of its own; the
 * pieces are added in order at the end, so that any number of threads gives the
 * same sums. A diagonal key belongs to one row: those are done row by row.
 */
#include "kernels/cpu/ttt.h"
#include <math.h>
#include <string.h>

enum { BQ = 48, BK = 64, SPLITS = 2 };

/* One query head's operands, padded to dp channels and np rows, in a thread's memory */
struct head {
	const struct ttt_job *j;
	int h, np, nkp, dp; /* query rows and keys, rounded up */
	real *q, *dO; /* [np][dp]; q times scale */
	real *k; /* [nkp][dp] */
	real *kt, *vt; /* panels of keys, [nkp/nr][hd][nr] */
	real *delta; /* [np] */
	real *s, *dp_; /* [BQ][BK]: S then P; dP then dS */
	real *dq; /* [BQ][dp] */
	real *dk, *dv; /* [nkp][dp], this piece's */
};

static size_t head_reals(int np, int nkp, int dp, int hd)
{
	return (size_t)np * (2 * (size_t)dp + 1) + (size_t)nkp * ((size_t)dp + 2 * (size_t)hd) + 2 * BQ * BK + BQ * (size_t)dp;
}

static void head_memory(struct head *a, real *mem)
{
	size_t rows = (size_t)a->np * (size_t)a->dp, keys = (size_t)a->nkp * (size_t)a->dp, panels = (size_t)a->nkp * (size_t)a->j->hd;
	a->q = mem;
	a->dO = a->q + rows;
	a->k = a->dO + rows;
	a->kt = a->k + keys;
	a->vt = a->kt + panels;
	a->s = a->vt + panels;
	a->dp_ = a->s + BQ * BK;
	a->dq = a->dp_ + BQ * BK;
	a->delta = a->dq + BQ * (size_t)a->dp;
}

static void head_load(struct head *a, int h)
{
	const struct ttt_job *j = a->j;
	size_t hd = (size_t)j->hd, dp = (size_t)a->dp, n = (size_t)j->n, kvs = (size_t)j->nkv * hd,
	       kv_at = (size_t)(h / (j->nh / j->nkv)) * hd;
	size_t nk = (size_t)j->nk, have = cpu_round_up(nk, (size_t)j->k->nr), tail = ((size_t)a->nkp - have) * hd;

	a->h = h;
	memset(a->q, 0, (2 * (size_t)a->np + (size_t)a->nkp) * dp * sizeof(real)); /* q, dO, k lie in a row */
	for (size_t t = 0; t < n; t++) {
		size_t th = (t * (size_t)j->nh + (size_t)h) * hd;
		memcpy(a->q + t * dp, j->q + th, hd * sizeof(real));
		j->k->scale(a->q + t * dp, j->scale, (int)hd);
		memcpy(a->dO + t * dp, j->dout + th, hd * sizeof(real));
		a->delta[t] = j->k->dot(j->dout + th, j->o + th, (int)hd);
	}
	for (size_t i = 0; i < nk; i++)
		memcpy(a->k + i * dp, j->kv->k[0] + i * kvs + kv_at, hd * sizeof(real));
	cpu_pack(a->kt, j->k->nr, j->kv->k[0] + kv_at, 1, kvs, j->nk, j->hd);
	cpu_pack(a->vt, j->k->nr, j->kv->v[0] + kv_at, 1, kvs, j->nk, j->hd);
	memset(a->kt + have * hd, 0, tail * sizeof(real));
	memset(a->vt + have * hd, 0, tail * sizeof(real));
}

/* C [rows, cols] = or += A B, rows in tiles */
static void rows_product(const struct head *a, int rows, struct cpu_product p)
{
	const struct cpu_kernels *k = a->j->k;
	for (int r = 0; r < rows; r += k->mr) {
		struct cpu_product q = p;
		q.R = cpu_min(k->mr, rows - r);
		q.C += (size_t)r * p.ldc;
		q.A += (size_t)r * p.as_m;
		k->product_f32(&q);
	}
}

/* P and dS of query rows [q0, q0+rows) against keys [k0, k0+BK) */
static void head_scores(struct head *a, int q0, int rows, int k0)
{
	const struct ttt_job *j = a->j;
	size_t dp = (size_t)a->dp, hd = (size_t)j->hd, nr = (size_t)j->k->nr;
	struct cpu_product p = {.cols = BK,
				.K = j->hd,
				.C = a->s,
				.ldc = BK,
				.A = a->q + (size_t)q0 * dp,
				.as_m = dp,
				.as_k = 1,
				.B = a->kt + (size_t)k0 * hd,
				.bs = nr,
				.ps = nr * hd};

	rows_product(a, rows, p);
	p.C = a->dp_;
	p.A = a->dO + (size_t)q0 * dp;
	p.B = a->vt + (size_t)k0 * hd;
	rows_product(a, rows, p);
	for (int r = 0; r < rows; r++) {
		int t = q0 + r, lo = ttt_first_key(j, t) - k0, hi = ttt_last_key(j, t) - k0;
		real *s = a->s + (size_t)r * BK, *ds = a->dp_ + (size_t)r * BK;
		for (int i = 0; i < cpu_min(lo, BK); i++)
			s[i] = -(real)INFINITY;
		for (int i = cpu_max(hi + 1, 0); i < BK; i++)
			s[i] = -(real)INFINITY;
		j->k->softmax_back(s, ds, s, ds, j->l[(size_t)t * (size_t)j->nh + (size_t)a->h], a->delta[t], BK);
	}
}

static void head_blocks(struct head *a, int q0, int rows)
{
	const struct ttt_job *j = a->j;
	size_t dp = (size_t)a->dp, nr = (size_t)j->k->nr;
	int lo = ttt_first_key(j, q0), hi = ttt_last_key(j, q0);

	for (int r = 1; r < rows; r++) {
		lo = cpu_min(lo, ttt_first_key(j, q0 + r));
		hi = cpu_max(hi, ttt_last_key(j, q0 + r));
	}
	memset(a->dq, 0, (size_t)rows * dp * sizeof(real));
	for (int k0 = lo / BK * BK; k0 <= hi; k0 += BK) {
		head_scores(a, q0, rows, k0);
		/* dV [keys] += P' dO;  dK += dS' Q;  dQ += dS K */
		rows_product(a, BK,
			     (struct cpu_product){.cols = a->dp,
						  .K = rows,
						  .add = true,
						  .C = a->dv + (size_t)k0 * dp,
						  .ldc = dp,
						  .A = a->s,
						  .as_m = 1,
						  .as_k = BK,
						  .B = a->dO + (size_t)q0 * dp,
						  .bs = dp,
						  .ps = nr});
		rows_product(a, BK,
			     (struct cpu_product){.cols = a->dp,
						  .K = rows,
						  .add = true,
						  .C = a->dk + (size_t)k0 * dp,
						  .ldc = dp,
						  .A = a->dp_,
						  .as_m = 1,
						  .as_k = BK,
						  .B = a->q + (size_t)q0 * dp,
						  .bs = dp,
						  .ps = nr});
		rows_product(a, rows,
			     (struct cpu_product){.cols = a->dp,
						  .K = BK,
						  .add = true,
						  .C = a->dq,
						  .ldc = dp,
						  .A = a->dp_,
						  .as_m = BK,
						  .as_k = 1,
						  .B = a->k + (size_t)k0 * dp,
						  .bs = dp,
						  .ps = nr});
	}
	for (int r = 0; r < rows; r++) {
		real *dq = j->dq + ((size_t)(q0 + r) * (size_t)j->nh + (size_t)a->h) * (size_t)j->hd;
		for (int c = 0; c < j->hd; c++)
			dq[c] = (j->lo ? dq[c] : 0) + a->dq[(size_t)r * dp + (size_t)c] * j->scale;
	}
}

static void back_pieces(void *ctx, int t, int n)
{
	struct ttt_job *j = ctx;
	struct head a = {.j = j, .np = (int)cpu_round_up((size_t)j->n, BK), .nkp = (int)cpu_round_up((size_t)j->nk, BK),
			 .dp = (int)cpu_round_up((size_t)j->hd, (size_t)j->k->nr)};
	size_t piece = (size_t)a.nkp * (size_t)a.dp;
	int loaded = -1;

	head_memory(&a, j->mem + (size_t)t * j->reals);
	for (int i, end; cpu_next(&j->next, j->nh * SPLITS, 1, 2 * SPLITS, n, &i, &end);)
		for (; i < end; i++) {
			if (i / SPLITS != loaded)
				head_load(&a, i / SPLITS);
			loaded = i / SPLITS;
			a.dk = j->part_k + (size_t)i * piece;
			a.dv = j->part_v + (size_t)i * piece;
			memset(a.dk, 0, piece * sizeof(real));
			memset(a.dv, 0, piece * sizeof(real));
			for (int q0 = i % SPLITS * BQ; q0 < j->n; q0 += SPLITS * BQ)
				head_blocks(&a, q0, cpu_min(BQ, j->n - q0));
		}
}

/* Diagonal i of row t: w = exp(s - M), dv_i = w dO, ds = w (dO . v_i - delta) */
static void back_diagonals(const struct ttt_job *j, int t, int h)
{
	int hd = j->hd;
	size_t row = (size_t)t * (size_t)j->nh + (size_t)h, th = row * (size_t)hd;
	size_t at = ((size_t)t * (size_t)j->nkv + (size_t)(h / (j->nh / j->nkv))) * (size_t)hd;
	const real *q = j->q + th, *dO = j->dout + th;
	real delta = j->k->dot(dO, j->o + th, hd);

	for (int i = 1; i < j->kv->n_steps; i++) {
		real w = (real)exp((double)(j->k->dot(q, j->kv->k[i] + at, hd) * j->scale - j->l[row]));
		real ds = w * (j->k->dot(dO, j->kv->v[i] + at, hd) - delta) * j->scale;
		j->k->axpy(j->kv->dv[i] + at, w, dO, hd);
		j->k->axpy(j->kv->dk[i] + at, ds, q, hd);
		j->k->axpy(j->dq + th, ds, j->kv->k[i] + at, hd);
	}
}

/* Trunk: add the pieces of one key row in order. A thread owns rows. */
static void back_keys(void *ctx, int thread, int n)
{
	const struct ttt_job *j = ctx;
	int from, to, hd = j->hd;
	size_t dp = cpu_round_up((size_t)hd, (size_t)j->k->nr), piece = cpu_round_up((size_t)j->nk, BK) * dp;

	cpu_split(j->nk, 1, thread, n, &from, &to);
	for (int t = from; t < to; t++)
		for (int h = 0; h < j->nh; h++) {
			size_t at = ((size_t)t * (size_t)j->nkv + (size_t)(h / (j->nh / j->nkv))) * (size_t)hd;
			for (int s = 0; s < SPLITS; s++) {
				size_t from_part = (size_t)(h * SPLITS + s) * piece + (size_t)t * dp;
				j->k->axpy(j->kv->dk[0] + at, 1, j->part_k + from_part, hd);
				j->k->axpy(j->kv->dv[0] + at, 1, j->part_v + from_part, hd);
			}
		}
}

static void back_rows(void *ctx, int thread, int n)
{
	const struct ttt_job *j = ctx;
	int from, to;

	cpu_split(j->n, 1, thread, n, &from, &to);
	for (int t = from; t < to; t++)
		for (int h = 0; h < j->nh; h++)
			back_diagonals(j, t, h);
}

/* The rest of the job is filled in. work: of the pieces. */
static int backward(struct dev *d, struct ttt_job *j, double work)
{
	j->k = cpu_of(d)->k;
	size_t np = cpu_round_up((size_t)j->n, BK), nkp = cpu_round_up((size_t)j->nk, BK), dp = cpu_round_up((size_t)j->hd, (size_t)j->k->nr),
	       parts = (size_t)(j->nh * SPLITS) * nkp * dp;
	j->reals = cpu_round_up(head_reals((int)np, (int)nkp, (int)dp, j->hd), 16);
	j->part_k = cpu_scratch(d, (2 * parts + (size_t)d->n_threads * j->reals) * sizeof(real));
	if (!j->part_k)
		return -ENOMEM;
	j->part_v = j->part_k + parts;
	j->mem = j->part_v + parts;
	cpu_run(d, work, back_pieces, j);
	cpu_run(d, 4.0 * j->nk * j->nh * j->hd, back_keys, j);
	if (j->kv->n_steps > 1)
		cpu_run(d, 10.0 * j->n * j->nh * j->hd * j->kv->n_steps, back_rows, j);
	return 0;
}

int cpu_ttt_attn_backward(struct dev *d, real *dq, const struct ttt_kv *kv, const real *dout, const real *out, const real *lse,
			  const real *q, const uint32_t *seg, int n, int nh, int nkv, int hd, real scale)
{
	if (ttt_bad(kv, seg, n, nh, nkv, hd))
		return cpu_bad(d, "ttt_attn_backward");
	struct ttt_job j = {.kv = kv, .dq = dq, .q = q, .dout = dout, .o = out, .l = lse, .seg = seg, .n = n, .nk = n, .nh = nh, .nkv = nkv, .hd = hd, .scale = scale};
	return n ? backward(d, &j, 5.0 * n * n * nh * hd) : 0;
}

int cpu_ttt_attn_more_backward(struct dev *d, real *dq, const struct ttt_block *b, const real *dout, const real *out, const real *lse,
			       const real *q, int n, int nh, int nkv, int hd, real scale)
{
	if (ttt_bad_block(b, n, nh, nkv, hd))
		return cpu_bad(d, "ttt_attn_more_backward");
	const struct ttt_kv kv = {.n_steps = 1, .k = {b->k}, .v = {b->v}, .dk = {b->dk}, .dv = {b->dv}};
	struct ttt_job j = {.kv = &kv, .dq = dq, .q = q, .dout = dout, .o = out, .l = lse, .lo = b->lo, .hi = b->hi, .n = n, .nk = b->n, .nh = nh, .nkv = nkv, .hd = hd, .scale = scale};
	return n && b->n ? backward(d, &j, 10.0 * n * b->n * nh * hd) : 0;
}
