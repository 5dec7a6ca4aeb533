/* TTT attention, forward and backward: against a naive double reference whose
 * backward is written from the softmax's own definition; a sequence cut in two, whose
 * later rows meet the earlier keys as a block of their own, equals the whole; against finite
 * differences (double build); packing by segments equals separate runs, to the bit where the other run changes; the same
 * bits for any number of threads and any call.
 *
 * "avx512 fast" has the products of the backward pass in bf16, "cuda fast" the whole trunk, on tensor cores: q, k, v and dO rounded to bf16, then P and dS. The bounds of what that may do, of a tensor's largest: where
 * the inputs are bf16 as they stand, scores are f32's, and so is the log-sum-exp; out and the gradients have the rounding of P and dS, 2^-9 of
 * each factor: 4e-3. Else every factor is off by up to 2^-9, a score of 64 products by some 2^-9 of itself: 1e-2 of out and the log-sum-exp, 2e-2 of the gradients.
 */
#include "kt.h"

struct problem {
	int n, nh, nkv, hd, steps;
	real scale;
	uint32_t *seg;
	real *q, *dout;
	struct ttt_kv kv;
};

struct bounds {
	double out, lse, grad;
	bool bf16; /* inputs are */
};
static const struct bounds exact = {3e-6, 2e-6, 5e-6, false}, bf16_inputs = {4e-3, 2e-6, 4e-3, true}, f32_inputs = {1e-2, 1e-2, 2e-2, false};
/* the CPU's forward pass is exact; what it rounds is q times scale, once more than q */
static const struct bounds cpu_bf16_inputs = {3e-6, 2e-6, 6e-3, true}, cpu_f32_inputs = {3e-6, 2e-6, 2e-2, false};

/* The inputs of a problem become what bf16 can say */
static void to_bf16(real *x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		x[i] = (real)bf16_to_f32(f32_to_bf16((float)x[i]));
}

static void problem_new(struct problem *p, int n, int nh, int nkv, int hd, int steps, bool packed)
{
	*p = (struct problem){.n = n, .nh = nh, .nkv = nkv, .hd = hd, .steps = steps, .scale = (real)(1 / sqrt(hd))};
	size_t qn = (size_t)(n * nh * hd), kn = (size_t)(n * nkv * hd);
	if (packed) {
		p->seg = malloc((size_t)n * sizeof *p->seg);
		assert_non_null(p->seg);
		for (int t = 0; t < n; t++)
			p->seg[t] = (uint32_t)(t < n / 3 ? 0 : t < n / 2 ? n / 3 : n / 2);
	}
	p->q = kt_reals(qn, 2);
	p->dout = kt_reals(qn, 1);
	p->kv.n_steps = steps;
	for (int i = 0; i < steps; i++) {
		p->kv.k[i] = kt_reals(kn, 2);
		p->kv.v[i] = kt_reals(kn, 1);
		p->kv.dk[i] = kt_reals(kn, 0);
		p->kv.dv[i] = kt_reals(kn, 0);
	}
}

static void problem_done(struct problem *p)
{
	kt_free(p->seg);
	kt_free(p->q);
	kt_free(p->dout);
	for (int i = 0; i < p->steps; i++) {
		kt_free((void *)(uintptr_t)p->kv.k[i]);
		kt_free((void *)(uintptr_t)p->kv.v[i]);
		kt_free(p->kv.dk[i]);
		kt_free(p->kv.dv[i]);
	}
}

/* Score list of row t, head h: trunk rows, then diagonals */
static int keys_of(const struct problem *p, int t, int h, const real **k, const real **v, size_t *at, int *step)
{
	int kvh = h / (p->nh / p->nkv), m = 0;
	for (int i = p->seg ? (int)p->seg[t] : 0; i <= t; i++, m++)
		at[m] = (size_t)((i * p->nkv + kvh) * p->hd), step[m] = 0;
	for (int j = 1; j < p->steps; j++, m++)
		at[m] = (size_t)((t * p->nkv + kvh) * p->hd), step[m] = j;
	for (int i = 0; i < m; i++)
		k[i] = p->kv.k[step[i]] + at[i], v[i] = p->kv.v[step[i]] + at[i];
	return m;
}

struct reference {
	double *out, *lse, *dq, *dk[TTT_MAX_STEPS], *dv[TTT_MAX_STEPS];
};

static void reference_new(struct reference *r, const struct problem *p)
{
	size_t qn = (size_t)(p->n * p->nh * p->hd), kn = (size_t)(p->n * p->nkv * p->hd);
	*r = (struct reference){.out = kt_doubles(qn), .lse = kt_doubles((size_t)(p->n * p->nh)), .dq = kt_doubles(qn)};
	for (int i = 0; i < p->steps; i++)
		r->dk[i] = kt_doubles(kn), r->dv[i] = kt_doubles(kn);
	enum { MAX = 400 };
	const real *k[MAX], *v[MAX];
	size_t at[MAX];
	int step[MAX];
	double w[MAX], dw[MAX];
	assert_true(p->n + p->steps < MAX);
	for (int t = 0; t < p->n; t++)
		for (int h = 0; h < p->nh; h++) {
			size_t th = (size_t)((t * p->nh + h) * p->hd);
			const real *q = p->q + th, *dO = p->dout + th;
			int m = keys_of(p, t, h, k, v, at, step);
			double max = -1e300, sum = 0, mean = 0;
			for (int i = 0; i < m; i++) {
				w[i] = 0;
				for (int c = 0; c < p->hd; c++)
					w[i] += (double)q[c] * (double)k[i][c] * (double)p->scale;
				max = w[i] > max ? w[i] : max;
			}
			for (int i = 0; i < m; i++)
				sum += w[i] = exp(w[i] - max);
			r->lse[t * p->nh + h] = max + log(sum);
			for (int i = 0; i < m; i++) {
				w[i] /= sum;
				dw[i] = 0;
				for (int c = 0; c < p->hd; c++) {
					r->out[th + (size_t)c] += w[i] * (double)v[i][c];
					dw[i] += (double)dO[c] * (double)v[i][c];
					r->dv[step[i]][at[i] + (size_t)c] += w[i] * (double)dO[c];
				}
				mean += w[i] * dw[i]; /* softmax's backward: ds = w (dw - sum w dw) */
			}
			for (int i = 0; i < m; i++)
				for (int c = 0; c < p->hd; c++) {
					double ds = w[i] * (dw[i] - mean) * (double)p->scale;
					r->dq[th + (size_t)c] += ds * (double)k[i][c];
					r->dk[step[i]][at[i] + (size_t)c] += ds * (double)q[c];
				}
		}
}

static void reference_done(struct reference *r, const struct problem *p)
{
	kt_free(r->out);
	kt_free(r->lse);
	kt_free(r->dq);
	for (int i = 0; i < p->steps; i++)
		kt_free(r->dk[i]), kt_free(r->dv[i]);
}

static int forward(struct dev *d, const struct problem *p, real *out, real *lse)
{
	return d->ops->ttt_attn(d, out, lse, p->q, &p->kv, p->seg, p->n, p->nh, p->nkv, p->hd, p->scale);
}

static int backward(struct dev *d, const struct problem *p, real *dq, const real *out, const real *lse)
{
	return d->ops->ttt_attn_backward(d, dq, &p->kv, p->dout, out, lse, p->q, p->seg, p->n, p->nh, p->nkv, p->hd, p->scale);
}

static void check_to(struct dev *d, int n, int nh, int nkv, int hd, int steps, bool packed, struct bounds tol)
{
	struct problem p;
	struct reference ref;
	problem_new(&p, n, nh, nkv, hd, steps, packed);
	size_t qn = (size_t)(n * nh * hd), kn = (size_t)(n * nkv * hd), ln = (size_t)(n * nh);
	if (tol.bf16) {
		to_bf16(p.q, qn);
		to_bf16(p.dout, qn);
		for (int i = 0; i < steps; i++)
			to_bf16((real *)(uintptr_t)p.kv.k[i], kn), to_bf16((real *)(uintptr_t)p.kv.v[i], kn);
	}
	reference_new(&ref, &p);
	real *out = kt_reals(qn, 1), *lse = kt_reals(ln, 1), *dq = kt_reals(qn, 1);
	assert_int_equal(forward(d, &p, out, lse), 0);
	kt_close(out, ref.out, qn, KT_TOL(tol.out));
	kt_close(lse, ref.lse, ln, KT_TOL(tol.lse));
	/* dk and dv are added to: start from 0.5 */
	for (int i = 0; i < steps; i++)
		for (size_t x = 0; x < kn; x++) {
			p.kv.dk[i][x] = p.kv.dv[i][x] = (real)0.5;
			ref.dk[i][x] += 0.5;
			ref.dv[i][x] += 0.5;
		}
	assert_int_equal(backward(d, &p, dq, out, lse), 0);
	kt_close(dq, ref.dq, qn, KT_TOL(tol.grad));
	for (int i = 0; i < steps; i++) {
		kt_close(p.kv.dk[i], ref.dk[i], kn, KT_TOL(tol.grad));
		kt_close(p.kv.dv[i], ref.dv[i], kn, KT_TOL(tol.grad));
	}
	kt_free(out);
	kt_free(lse);
	kt_free(dq);
	reference_done(&ref, &p);
	problem_done(&p);
}

static void check(struct dev *d, int n, int nh, int nkv, int hd, int steps, bool packed)
{
	check_to(d, n, nh, nkv, hd, steps, packed, exact);
}

/* Both widths that tensor cores have kernels for; lengths around a tile of 64, and one row; heads that share keys; and a width that stays f32 on a GPU, an odd one on the CPU */
static void in_bf16(void **state)
{
	struct dev *d = kt_dev(state, 1);
	kt_seed(15);
	for (int inputs = 0; inputs < 2; inputs++) {
		bool cpu = d->kind == DEV_CPU;
		struct bounds tol = inputs ? cpu ? cpu_f32_inputs : f32_inputs : cpu ? cpu_bf16_inputs : bf16_inputs;
		check_to(d, 200, 6, 2, 64, 4, true, tol);
		check_to(d, 129, 3, 3, 128, 3, false, tol);
		check_to(d, 64, 5, 1, 128, 1, true, tol);
		check_to(d, 63, 2, 2, 64, 2, false, tol);
		if (!cpu || !inputs) /* a single row's gradient is a small difference of large numbers, of which the CPU rounds the trunk's alone */
			check_to(d, 1, 2, 1, 128, 3, false, tol);
	}
	if (d->kind == DEV_CUDA) {
		check(d, 70, 4, 2, 32, 3, true);
	} else {
		check_to(d, 70, 4, 2, 32, 3, true, cpu_f32_inputs);
		check_to(d, 101, 3, 1, 33, 2, true, cpu_f32_inputs);
	}
	dev_free(d);
}

/* A row whose query or whose keys are NaN is NaN, and says so of the gradients; the rows before it are not. */
static void nan_shows(void **state)
{
	enum { N = 90, BAD = 70, NH = 2, HD = 64 };
	struct dev *d = kt_dev(state, 1);
	struct problem p;
	kt_seed(18);
	for (int which = 0; which < 2; which++) {
		problem_new(&p, N, NH, 1, HD, 2, false);
		real *x = which ? (real *)(uintptr_t)p.kv.k[0] + BAD * HD : p.q + BAD * NH * HD, *out = kt_reals(N * NH * HD, 1), *lse = kt_reals(N * NH, 1), *dq = kt_reals(N * NH * HD, 1);
		x[3] = (real)NAN;
		assert_int_equal(forward(d, &p, out, lse), 0);
		assert_int_equal(backward(d, &p, dq, out, lse), 0);
		for (int h = 0; h < (which ? NH : 1); h++) { /* one head has that query, both that key */
			assert_true(isnan(out[(BAD * NH + h) * HD]) && isnan(lse[BAD * NH + h]) && isnan(dq[(BAD * NH + h) * HD]));
			assert_true(!isnan(out[(63 * NH + h) * HD]) && !isnan(lse[63 * NH + h]) && !isnan(dq[(63 * NH + h) * HD]));
		}
		assert_true(isnan(p.kv.dv[0][0]));
		kt_free(out);
		kt_free(lse);
		kt_free(dq);
		problem_done(&p);
	}
	dev_free(d);
}

static void against_reference(void **state)
{
	struct dev *d = kt_dev(state, KT_MAX_THREADS);
	kt_seed(9);
	check(d, 1, 1, 1, 4, 1, false);
	check(d, 7, 2, 1, 6, 3, false);
	check(d, 200, 9, 3, 64, 7, false);
	check(d, 200, 9, 3, 64, 2, true);
	check(d, 133, 4, 4, 20, 4, true);
	check(d, 300, 3, 1, 16, 1, false);
	dev_free(d);
}

enum { RESULTS = 9 };

/* Forward and backward of 3 steps from zeroed gradients; ret: what came of it, row widths of ret_row */
static void both_ways(struct dev *d, struct problem *p, real *out, real *lse, real *dq, const real *ret[RESULTS], size_t ret_row[RESULTS])
{
	size_t qw = (size_t)(p->nh * p->hd), kw = (size_t)(p->nkv * p->hd);
	for (int i = 0; i < 3; i++) {
		memset(p->kv.dk[i], 0, (size_t)p->n * kw * sizeof(real));
		memset(p->kv.dv[i], 0, (size_t)p->n * kw * sizeof(real));
	}
	assert_int_equal(forward(d, p, out, lse), 0);
	assert_int_equal(backward(d, p, dq, out, lse), 0);
	const real *now[RESULTS] = {out, dq, lse, p->kv.dk[0], p->kv.dv[0], p->kv.dk[1], p->kv.dv[1], p->kv.dk[2], p->kv.dv[2]};
	for (int i = 0; i < RESULTS; i++) {
		ret[i] = now[i];
		ret_row[i] = i < 2 ? qw : i == 2 ? (size_t)p->nh : kw;
	}
}

static void same_for_any_threads(void **state)
{
	struct dev *d = kt_dev(state, KT_MAX_THREADS);
	struct problem p;
	kt_seed(10);
	problem_new(&p, 260, 6, 2, 32, 3, true);
	size_t qn = (size_t)(p.n * p.nh * p.hd), ln = (size_t)(p.n * p.nh), row[RESULTS];
	real *out = kt_reals(qn, 1), *lse = kt_reals(ln, 1), *dq = kt_reals(qn, 1), *first[RESULTS] = {0};
	const real *now[RESULTS];
	for (int t = 1; t <= kt_threads(d); t++) {
		dev_set_threads(d, t);
		both_ways(d, &p, out, lse, dq, now, row);
		for (int i = 0; i < RESULTS; i++) {
			if (!first[i])
				first[i] = kt_copy(now[i], (size_t)p.n * row[i]);
			kt_same_bits(now[i], first[i], (size_t)p.n * row[i]);
		}
	}
	for (int i = 0; i < RESULTS; i++)
		kt_free(first[i]);
	kt_free(out);
	kt_free(lse);
	kt_free(dq);
	problem_done(&p);
	dev_free(d);
}

/* Rows of one run packed behind another equal the run alone, to rounding */
static void packing(void **state)
{
	enum { N = 90, CUT = 37 };
	struct dev *d = kt_dev(state, 2);
	struct problem p;
	kt_seed(11);
	problem_new(&p, N, 4, 2, 16, 3, true);
	for (int t = 0; t < N; t++)
		p.seg[t] = t < CUT ? 0 : CUT;
	size_t w = 4 * 16, kw = 2 * 16;
	real *out = kt_reals(N * w, 1), *part = kt_reals(N * w, 1);
	assert_int_equal(forward(d, &p, out, NULL), 0);
	struct problem tail = p;
	tail.seg = NULL;
	tail.n = N - CUT;
	tail.q += CUT * w;
	for (int i = 0; i < 3; i++)
		tail.kv.k[i] += CUT * kw, tail.kv.v[i] += CUT * kw;
	assert_int_equal(forward(d, &tail, part, NULL), 0);
	double *want = kt_doubles((N - CUT) * w);
	for (size_t i = 0; i < (N - CUT) * w; i++)
		want[i] = (double)part[i];
	kt_close(out + CUT * w, want, (N - CUT) * w, KT_TOL(1e-6));
	kt_free(want);
	kt_free(out);
	kt_free(part);
	problem_done(&p);
	dev_free(d);
}

/* Rows [from, to) of a problem as one of their own. */
static struct problem part_of(const struct problem *p, int from, int to)
{
	struct problem part = *p;
	size_t q = (size_t)(from * p->nh * p->hd), k = (size_t)(from * p->nkv * p->hd);
	part.n = to - from;
	part.q += q;
	part.dout += q;
	for (int i = 0; i < p->steps; i++)
		part.kv.k[i] += k, part.kv.v[i] += k, part.kv.dk[i] += k, part.kv.dv[i] += k;
	if (p->seg) {
		part.seg = malloc((size_t)part.n * sizeof *part.seg);
		assert_non_null(part.seg);
		for (int t = 0; t < part.n; t++)
			part.seg[t] = (int)p->seg[from + t] > from ? p->seg[from + t] - (uint32_t)from : 0;
	}
	return part;
}

static void check_cut(struct dev *d, int n, int cut, int nh, int nkv, int hd, int steps, bool packed, struct bounds tol)
{
	(void)tol; /* the double build asks for the double's own */
	struct problem p;
	struct reference ref;
	problem_new(&p, n, nh, nkv, hd, steps, packed);
	reference_new(&ref, &p);
	struct problem a = part_of(&p, 0, cut), b = part_of(&p, cut, n);
	size_t qn = (size_t)(n * nh * hd), kn = (size_t)(n * nkv * hd), ln = (size_t)(n * nh), qa = (size_t)(cut * nh * hd), la = (size_t)(cut * nh);
	real *out = kt_reals(qn, 1), *lse = kt_reals(ln, 1), *dq = kt_reals(qn, 1);
	uint32_t *lo = calloc((size_t)b.n, sizeof *lo), *hi = calloc((size_t)b.n, sizeof *hi);
	assert_true(lo && hi);
	for (int t = 0; t < b.n; t++) {
		hi[t] = (uint32_t)cut;
		lo[t] = p.seg ? p.seg[cut + t] < hi[t] ? p.seg[cut + t] : hi[t] : 0; /* a run that begins later sees none */
	}
	const struct ttt_block block = {.n = cut, .k = p.kv.k[0], .v = p.kv.v[0], .dk = p.kv.dk[0], .dv = p.kv.dv[0], .lo = lo, .hi = hi};
	assert_int_equal(forward(d, &a, out, lse), 0);
	assert_int_equal(forward(d, &b, out + qa, lse + la), 0);
	assert_int_equal(d->ops->ttt_attn_more(d, out + qa, lse + la, b.q, &block, b.n, nh, nkv, hd, p.scale), 0);
	kt_close(out, ref.out, qn, KT_TOL(tol.out));
	kt_close(lse, ref.lse, ln, KT_TOL(tol.lse));
	assert_int_equal(backward(d, &a, dq, out, lse), 0);
	assert_int_equal(backward(d, &b, dq + qa, out + qa, lse + la), 0);
	assert_int_equal(d->ops->ttt_attn_more_backward(d, dq + qa, &block, b.dout, out + qa, lse + la, b.q, b.n, nh, nkv, hd, p.scale), 0);
	kt_close(dq, ref.dq, qn, KT_TOL(tol.grad));
	for (int i = 0; i < steps; i++) {
		kt_close(p.kv.dk[i], ref.dk[i], kn, KT_TOL(tol.grad));
		kt_close(p.kv.dv[i], ref.dv[i], kn, KT_TOL(tol.grad));
	}
	hi[b.n - 1] = (uint32_t)cut + 1; /* past the block */
	assert_int_equal(d->ops->ttt_attn_more(d, out + qa, lse + la, b.q, &block, b.n, nh, nkv, hd, p.scale), -EINVAL);
	kt_free(a.seg);
	kt_free(b.seg);
	kt_free(lo);
	kt_free(hi);
	kt_free(out);
	kt_free(lse);
	kt_free(dq);
	reference_done(&ref, &p);
	problem_done(&p);
}

static void cut_in_two(void **state)
{
	struct dev *d = kt_dev(state, KT_MAX_THREADS);
	kt_seed(14);
	check_cut(d, 200, 70, 9, 3, 64, 3, false, exact);
	check_cut(d, 200, 131, 4, 4, 20, 2, false, exact);
	check_cut(d, 150, 60, 4, 2, 16, 4, true, exact); /* a run begins before the cut, one after it */
	check_cut(d, 9, 8, 2, 1, 6, 1, false, exact);
	dev_free(d);
}

static void cut_in_bf16(void **state)
{
	struct dev *d = kt_dev(state, 1);
	kt_seed(16);
	check_cut(d, 200, 70, 6, 2, 64, 3, false, f32_inputs);
	check_cut(d, 150, 60, 4, 2, 128, 2, true, f32_inputs);
	check_cut(d, 9, 8, 2, 1, 64, 1, false, f32_inputs);
	dev_free(d);
}

/* Two runs in one pack: what the other one holds changes nothing of this one, to the bit; nor does asking again. */
static void no_leak(void **state)
{
	enum { N = 150, CUT = 83 };
	struct dev *d = kt_dev(state, 1);
	struct problem p;
	kt_seed(17);
	problem_new(&p, N, 4, 2, 64, 3, true);
	size_t w = 4 * 64, kw = 2 * 64;
	real *out = kt_reals(N * w, 1), *lse = kt_reals(N * 4, 1), *dq = kt_reals(N * w, 1), *first[RESULTS] = {0};
	const real *now[RESULTS];
	size_t row[RESULTS];
	for (int t = 0; t < N; t++)
		p.seg[t] = t < CUT ? 0 : CUT;
	for (int ask = 0; ask < 4; ask++) {
		int from = ask < 2 ? CUT : 0, to = ask < 2 ? N : CUT; /* of the run that stays */
		for (int t = 0; ask % 2 && t < N; t++)
			for (size_t c = 0; c < w && (t < from || t >= to); c++) {
				p.q[(size_t)t * w + c] *= -3;
				p.dout[(size_t)t * w + c] += 5;
				for (int i = 0; i < 3 && c < kw; i++) {
					((real *)(uintptr_t)p.kv.k[i])[(size_t)t * kw + c] += 7;
					((real *)(uintptr_t)p.kv.v[i])[(size_t)t * kw + c] *= 11;
				}
			}
		for (int again = 0; again < 2; again++) {
			both_ways(d, &p, out, lse, dq, now, row);
			for (int i = 0; i < RESULTS; i++) {
				if (ask % 2 == 0 && !again) {
					kt_free(first[i]);
					first[i] = kt_copy(now[i], N * row[i]);
				}
				kt_same_bits(now[i] + (size_t)from * row[i], first[i] + (size_t)from * row[i], (size_t)(to - from) * row[i]);
			}
		}
	}
	for (int i = 0; i < RESULTS; i++)
		kt_free(first[i]);
	kt_free(out);
	kt_free(lse);
	kt_free(dq);
	problem_done(&p);
	dev_free(d);
}

#ifdef REDRAFT_DOUBLE
static double loss_of(struct dev *d, const struct problem *p, real *out)
{
	double s = 0;
	assert_int_equal(forward(d, p, out, NULL), 0);
	for (int i = 0; i < p->n * p->nh * p->hd; i++)
		s += (double)out[i] * (double)p->dout[i];
	return s;
}

static void finite_differences(void **state)
{
	struct dev *d = kt_dev(state, 2);
	struct problem p;
	kt_seed(12);
	problem_new(&p, 40, 4, 2, 8, 3, true);
	size_t qn = (size_t)(p.n * p.nh * p.hd), kn = (size_t)(p.n * p.nkv * p.hd);
	real *out = kt_reals(qn, 1), *lse = kt_reals(qn, 1), *dq = kt_reals(qn, 1);
	assert_int_equal(forward(d, &p, out, lse), 0);
	assert_int_equal(backward(d, &p, dq, out, lse), 0);
	real *scratch = kt_reals(qn, 1);
	for (int trial = 0; trial < 140; trial++) {
		int which = trial % 7;
		size_t n = which == 0 ? qn : kn, i = kt_u32() % n;
		real *x = which == 0 ? p.q : (real *)(uintptr_t)(which < 4 ? p.kv.k[which - 1] : p.kv.v[which - 4]);
		real g = which == 0 ? dq[i] : which < 4 ? p.kv.dk[which - 1][i] : p.kv.dv[which - 4][i];
		double eps = 1e-5, keep = x[i];
		x[i] = keep + eps;
		double up = loss_of(d, &p, scratch);
		x[i] = keep - eps;
		double down = loss_of(d, &p, scratch);
		x[i] = keep;
		assert_true(!(fabs((up - down) / (2 * eps) - g) > 1e-8 + 1e-6 * fabs(g)) && isfinite(g));
	}
	kt_free(out);
	kt_free(lse);
	kt_free(dq);
	kt_free(scratch);
	problem_done(&p);
	dev_free(d);
}
#endif

static void bad_input(void **state)
{
	struct dev *d = kt_dev(state, 1);
	struct problem p;
	kt_seed(13);
	problem_new(&p, 4, 2, 2, 4, 2, true);
	real out[64], lse[16];
	p.seg[1] = 2; /* a run that begins after its own row */
	assert_int_equal(forward(d, &p, out, lse), -EINVAL);
	p.seg[1] = 0;
	p.nh = 3;
	assert_int_equal(forward(d, &p, out, lse), -EINVAL);
	p.nh = 2;
	p.kv.n_steps = 0;
	assert_int_equal(forward(d, &p, out, lse), -EINVAL);
	p.kv.n_steps = TTT_MAX_STEPS + 1;
	assert_int_equal(backward(d, &p, out, out, lse), -EINVAL);
	p.kv.n_steps = 2;
	p.n = 0;
	assert_int_equal(forward(d, &p, out, lse), 0);
	assert_int_equal(backward(d, &p, out, out, lse), 0);
	problem_done(&p);
	dev_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		KT_TESTS(against_reference), KT_TESTS(same_for_any_threads), KT_TESTS(packing), KT_TESTS(cut_in_two), KT_TESTS(no_leak), KT_TESTS(nan_shows), KT_TESTS(bad_input),
		KT_FAST(in_bf16), KT_FAST(cut_in_bf16), KT_FAST(no_leak), KT_FAST(nan_shows), KT_FAST(same_for_any_threads), KT_FAST(bad_input),
		KT_FAST_CPU(in_bf16), KT_FAST_CPU(cut_in_bf16), KT_FAST_CPU(no_leak), KT_FAST_CPU(nan_shows), KT_FAST_CPU(same_for_any_threads),
#ifdef REDRAFT_DOUBLE
		KT_TESTS(finite_differences),
#endif
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
