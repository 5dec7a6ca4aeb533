/* TTT attention, backward (eagle3.md 3.5), with the merged output O and log-sum-exp M:
 *   delta_t = dO_t . O_t,  P = exp(S - M),  dS = P (dO V' - delta)
 *   dV += P' dO,  dQ += scale dS K,  dK += scale dS' Q
 *
 * Blocks of 48 query rows meet blocks of 64 keys, all five products by the register
 * tiles; S and dP of one pair of blocks are all that is ever stored. One piece of
 * work is (query head, every other query block), with dK and dV of its own; the
 * pieces are added in order at the end, so that any number of threads gives the
 * same sums. A diagonal key belongs to one row: those are done row by row. Fast
 * arithmetic rounds both sides of those five products to bf16 (gemm.c).
 */
#include "kernels/cpu/ttt.h"
#include <math.h>
#include <string.h>

enum { BQ = 48, BK = 64, SPLITS = 2 };

/* One query head's operands, padded with 0 to dp channels and np rows, in a thread's memory. In bf16 (the job's `pairs`) each lies
 * once more for each way in which a product reads it; the f32 ones are what those are packed of. */
struct head {
	const struct ttt_job *j;
	int h, np, nkp, dp, even; /* query rows and keys, channels, rounded up; hd as packed */
	size_t elem;
	real *q, *dO;       /* [np][dp]; q times scale */
	real *k;            /* [nkp][dp] */
	void *kt, *vt;      /* panels of keys, [nkp/nr][even][nr] */
	uint16_t *q_rows, *dO_rows;    /* pairs: [np][even] */
	uint16_t *q_in, *dO_in, *k_in; /* pairs: panels of channels, [dp/nr][np or nkp][nr] */
	uint16_t *p_turned, *ds_turned, *ds_rows; /* pairs: P and dS of a block: strips of mr keys, [BK/mr][rows][mr]; rows [rows][BK] */
	real *delta;        /* [np] */
	real *s, *dp_;      /* [BQ][BK]: S then P; dP then dS */
	real *dq;           /* [BQ][dp] */
	real *dk, *dv;      /* [nkp][dp], this piece's */
};

enum { TURNED = BQ * (BK + CPU_MAX_MR) };

static void *take(char *mem, size_t *at, size_t bytes)
{
	void *p = mem ? mem + *at : NULL;
	*at += cpu_round_up(bytes, 64);
	return p;
}

/* Its memory from mem on; with mem NULL only how much it is. */
static size_t head_memory(struct head *a, char *mem)
{
	size_t rows = (size_t)a->np * (size_t)a->dp, keys = (size_t)a->nkp * (size_t)a->dp, panels = (size_t)a->nkp * (size_t)a->even, h = a->j->pairs ? sizeof(uint16_t) : 0;
	size_t at = 0;
	a->q = take(mem, &at, rows * sizeof(real));
	a->dO = take(mem, &at, rows * sizeof(real));
	a->k = take(mem, &at, keys * sizeof(real));
	a->kt = take(mem, &at, panels * a->elem);
	a->vt = take(mem, &at, panels * a->elem);
	a->q_rows = take(mem, &at, (size_t)a->np * (size_t)a->even * h);
	a->dO_rows = take(mem, &at, (size_t)a->np * (size_t)a->even * h);
	a->q_in = take(mem, &at, rows * h);
	a->dO_in = take(mem, &at, rows * h);
	a->k_in = take(mem, &at, keys * h);
	a->p_turned = take(mem, &at, TURNED * h);
	a->ds_turned = take(mem, &at, TURNED * h);
	a->ds_rows = take(mem, &at, BQ * BK * h);
	a->s = take(mem, &at, BQ * BK * sizeof(real));
	a->dp_ = take(mem, &at, BQ * BK * sizeof(real));
	a->dq = take(mem, &at, BQ * (size_t)a->dp * sizeof(real));
	a->delta = take(mem, &at, (size_t)a->np * sizeof(real));
	return at;
}

static struct head head_of(const struct ttt_job *j)
{
	struct head a = {.j = j, .np = (int)cpu_round_up((size_t)j->n, BK), .nkp = (int)cpu_round_up((size_t)j->nk, BK), .dp = (int)cpu_round_up((size_t)j->hd, (size_t)j->k->nr),
			 .even = j->pairs ? cpu_even(j->hd) : j->hd, .elem = j->pairs ? sizeof(uint16_t) : sizeof(real)};
	return a;
}

/* Keys of a head as panels; those that are missing are 0. */
static void load_panels(const struct head *a, void *to, const real *keys)
{
	const struct ttt_job *j = a->j;
	size_t kvs = (size_t)(j->nkv * j->hd), have = cpu_round_up((size_t)j->nk, (size_t)j->k->nr);
	if (a->j->pairs)
		j->k->pack_pairs(to, j->k->nr, keys, 1, kvs, j->nk, j->hd);
	else
		cpu_pack(to, j->k->nr, keys, 1, kvs, j->nk, j->hd);
	memset((char *)to + have * (size_t)a->even * a->elem, 0, ((size_t)a->nkp - have) * (size_t)a->even * a->elem);
}

static void head_load(struct head *a, int h)
{
	const struct ttt_job *j = a->j;
	size_t hd = (size_t)j->hd, dp = (size_t)a->dp, n = (size_t)j->n, kvs = (size_t)j->nkv * hd,
	       kv_at = (size_t)(h / (j->nh / j->nkv)) * hd;

	a->h = h;
	memset(a->q, 0, (size_t)a->np * dp * sizeof(real));
	memset(a->dO, 0, (size_t)a->np * dp * sizeof(real));
	memset(a->k, 0, (size_t)a->nkp * dp * sizeof(real));
	for (size_t t = 0; t < n; t++) {
		size_t th = (t * (size_t)j->nh + (size_t)h) * hd;
		memcpy(a->q + t * dp, j->q + th, hd * sizeof(real));
		j->k->scale(a->q + t * dp, j->scale, (int)hd);
		memcpy(a->dO + t * dp, j->dout + th, hd * sizeof(real));
		a->delta[t] = j->k->dot(j->dout + th, j->o + th, (int)hd);
	}
	for (size_t i = 0; i < (size_t)j->nk; i++)
		memcpy(a->k + i * dp, j->kv->k[0] + i * kvs + kv_at, hd * sizeof(real));
	load_panels(a, a->kt, j->kv->k[0] + kv_at);
	load_panels(a, a->vt, j->kv->v[0] + kv_at);
	if (!a->j->pairs)
		return;
	j->k->pack_pairs(a->q_rows, 1, a->q, 1, dp, a->np, j->hd);
	j->k->pack_pairs(a->dO_rows, 1, a->dO, 1, dp, a->np, j->hd);
	j->k->pack_pairs(a->q_in, j->k->nr, a->q, dp, 1, a->dp, a->np);
	j->k->pack_pairs(a->dO_in, j->k->nr, a->dO, dp, 1, a->dp, a->np);
	j->k->pack_pairs(a->k_in, j->k->nr, a->k, dp, 1, a->dp, a->nkp);
}

/* The two sides of a product of blocks, as the tiles read them: distances in elements (cpu.h), `tile` from one tile's rows to the next's */
struct left {
	const void *at;
	size_t m, k, tile;
};
struct right {
	const void *at;
	size_t row, panel;
};

static struct left query_rows(const struct head *a, const real *x, const uint16_t *rows, int q0)
{
	size_t w = (size_t)(a->j->pairs ? a->even : a->dp), mr = (size_t)a->j->k->mr;
	return (struct left){a->j->pairs ? (const void *)(rows + (size_t)q0 * w) : x + (size_t)q0 * w, w, 1, mr * w};
}

static struct left turned(const struct head *a, const real *block, const uint16_t *strips, int rows)
{
	size_t mr = (size_t)a->j->k->mr;
	return a->j->pairs ? (struct left){strips, 2, mr, mr * (size_t)cpu_even(rows)} : (struct left){block, 1, BK, mr};
}

static struct right key_panels(const struct head *a, const void *panels, int k0)
{
	size_t nr = (size_t)a->j->k->nr, even = (size_t)a->even;
	return (struct right){(const char *)panels + (size_t)k0 * even * a->elem, nr, nr * even};
}

/* From row r0 of x [rows][dp] on, channels side by side */
static struct right channels(const struct head *a, const real *x, const uint16_t *panels, int rows, int r0)
{
	size_t nr = (size_t)a->j->k->nr, dp = (size_t)a->dp;
	return a->j->pairs ? (struct right){panels + (size_t)r0 * nr, nr, nr * (size_t)rows} : (struct right){x + (size_t)r0 * dp, dp, nr};
}

/* C [rows, cols] = or += A B, rows in tiles */
static void product(const struct head *a, real *C, int rows, int cols, int K, bool add, struct left A, struct right B)
{
	const struct cpu_kernels *k = a->j->k;
	struct cpu_product p = {.cols = cols, .K = a->j->pairs ? cpu_even(K) : K, .add = add, .ldc = (size_t)cols, .as_m = A.m, .as_k = A.k, .B = B.at, .bs = B.row, .ps = B.panel};
	for (int r = 0; r < rows; r += k->mr) {
		p.R = cpu_min(k->mr, rows - r);
		p.C = C + (size_t)r * p.ldc;
		p.A = (const real *)(const void *)((const char *)A.at + (size_t)(r / k->mr) * A.tile * a->elem);
		if (a->j->pairs)
			k->product_pairs(&p);
		else
			k->product_f32(&p);
	}
}

/* P and dS of query rows [q0, q0+rows) against keys [k0, k0+BK) */
static void head_scores(struct head *a, int q0, int rows, int k0)
{
	const struct ttt_job *j = a->j;

	product(a, a->s, rows, BK, j->hd, false, query_rows(a, a->q, a->q_rows, q0), key_panels(a, a->kt, k0));
	product(a, a->dp_, rows, BK, j->hd, false, query_rows(a, a->dO, a->dO_rows, q0), key_panels(a, a->vt, k0));
	for (int r = 0; r < rows; r++) {
		int t = q0 + r, lo = ttt_first_key(j, t) - k0, hi = ttt_last_key(j, t) - k0;
		real *s = a->s + (size_t)r * BK, *ds = a->dp_ + (size_t)r * BK;
		for (int i = 0; i < cpu_min(lo, BK); i++)
			s[i] = -(real)INFINITY;
		for (int i = cpu_max(hi + 1, 0); i < BK; i++)
			s[i] = -(real)INFINITY;
		j->k->softmax_back(s, ds, s, ds, j->l[(size_t)t * (size_t)j->nh + (size_t)a->h], a->delta[t], BK);
	}
	if (!a->j->pairs)
		return;
	j->k->pack_pairs(a->p_turned, j->k->mr, a->s, BK, 1, BK, rows);
	j->k->pack_pairs(a->ds_turned, j->k->mr, a->dp_, BK, 1, BK, rows);
	j->k->pack_pairs(a->ds_rows, 1, a->dp_, 1, BK, rows, BK);
}

static void head_blocks(struct head *a, int q0, int rows)
{
	const struct ttt_job *j = a->j;
	size_t dp = (size_t)a->dp, mr = (size_t)j->k->mr;
	int lo = ttt_first_key(j, q0), hi = ttt_last_key(j, q0);

	for (int r = 1; r < rows; r++) {
		lo = cpu_min(lo, ttt_first_key(j, q0 + r));
		hi = cpu_max(hi, ttt_last_key(j, q0 + r));
	}
	memset(a->dq, 0, (size_t)rows * dp * sizeof(real));
	for (int k0 = lo / BK * BK; k0 <= hi; k0 += BK) {
		head_scores(a, q0, rows, k0);
		/* dV [keys] += P' dO;  dK += dS' Q;  dQ += dS K */
		product(a, a->dv + (size_t)k0 * dp, BK, a->dp, rows, true, turned(a, a->s, a->p_turned, rows), channels(a, a->dO, a->dO_in, a->np, q0));
		product(a, a->dk + (size_t)k0 * dp, BK, a->dp, rows, true, turned(a, a->dp_, a->ds_turned, rows), channels(a, a->q, a->q_in, a->np, q0));
		product(a, a->dq, rows, a->dp, BK, true, (struct left){a->j->pairs ? (const void *)a->ds_rows : a->dp_, BK, 1, mr * BK}, channels(a, a->k, a->k_in, a->nkp, k0));
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
	struct head a = head_of(j);
	size_t piece = (size_t)a.nkp * (size_t)a.dp;
	int loaded = -1;

	(void)head_memory(&a, (char *)(j->mem + (size_t)t * j->reals));
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
	j->pairs = d->math == MATH_FAST;
	struct head a = head_of(j);
	size_t parts = (size_t)(j->nh * SPLITS) * (size_t)a.nkp * (size_t)a.dp;
	j->reals = head_memory(&a, NULL) / sizeof(real);
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
