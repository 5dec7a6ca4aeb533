/* The K largest of a row and its log-sum-exp.
 *
 * One pass keeps a small heap whose root is the worst of the best: smaller value,
 * or same value and higher index. Blocks whose maximum cannot enter are passed
 * over with the vector kernel, so long rows cost little more than reading them.
 * NaN counts as -inf.
 */
#include "kernels/cpu/cpu.h"
#include <math.h>
#include <string.h>

enum { TOPK_BLOCK = 128 };

struct topk_entry {
	real v;
	uint32_t id;
};

struct topk_job {
	const struct cpu_kernels *k;
	uint32_t *ids;
	float *vals, *lse;
	const real *x;
	size_t ldx;
	int M, N, K;
	struct topk_entry *heaps; /* [M][K] */
};

static bool worse(struct topk_entry a, struct topk_entry b)
{
	return a.v < b.v || (a.v == b.v && a.id > b.id);
}

static void sift(struct topk_entry *h, int n, int i)
{
	for (;;) {
		int w = i, l = 2 * i + 1, r = l + 1;
		if (l < n && worse(h[l], h[w]))
			w = l;
		if (r < n && worse(h[r], h[w]))
			w = r;
		if (w == i)
			return;
		struct topk_entry t = h[i];
		h[i] = h[w];
		h[w] = t;
		i = w;
	}
}

static void topk_row(const struct topk_job *j, const real *x, struct topk_entry *h)
{
	int n = 0;

	for (int b = 0; b < j->N; b += TOPK_BLOCK) {
		int end = cpu_min(j->N, b + TOPK_BLOCK);
		if (n == j->K && !(j->k->row_max(x + b, end - b) > h[0].v))
			continue; /* equal values lose to the lower index already held */
		for (int i = b; i < end; i++) {
			struct topk_entry e = {.v = x[i] == x[i] ? x[i] : -(real)INFINITY, .id = (uint32_t)i};
			if (n < j->K) {
				h[n++] = e;
				if (n == j->K)
					for (int p = n / 2; p >= 0; p--)
						sift(h, n, p);
			} else if (worse(h[0], e)) {
				h[0] = e;
				sift(h, n, 0);
			}
		}
	}
	for (int p = n / 2; p >= 0; p--)
		sift(h, n, p);
	for (int m = n - 1; m > 0; m--) { /* worst to the back: sorted best first */
		struct topk_entry t = h[0];
		h[0] = h[m];
		h[m] = t;
		sift(h, m, 0);
	}
}

static void topk_part(void *ctx, int t, int n)
{
	const struct topk_job *j = ctx;
	int from, to;

	cpu_split(j->M, 1, t, n, &from, &to);
	for (int m = from; m < to; m++) {
		const real *x = j->x + (size_t)m * j->ldx;
		struct topk_entry *h = j->heaps + (size_t)m * (size_t)j->K;
		if (j->ids || j->vals)
			topk_row(j, x, h);
		for (int i = 0; i < j->K; i++) {
			if (j->ids)
				j->ids[(size_t)m * (size_t)j->K + (size_t)i] = h[i].id;
			if (j->vals)
				j->vals[(size_t)m * (size_t)j->K + (size_t)i] = (float)h[i].v;
		}
		if (j->lse) {
			real mx = j->k->row_max(x, j->N);
			j->lse[m] = (float)((double)mx + log((double)j->k->exp_sum(x, mx, j->N)));
		}
	}
}

int cpu_topk(struct dev *d, uint32_t *ids, float *vals, float *lse, const real *x, int ldx, int M, int N, int K)
{
	if (M < 0 || N <= 0 || K < 0 || K > N || ldx < N)
		return cpu_bad(d, "topk");
	struct topk_job j = {.k = cpu_of(d)->k,
			     .ids = K ? ids : NULL,
			     .vals = K ? vals : NULL,
			     .lse = lse,
			     .x = x,
			     .ldx = (size_t)ldx,
			     .M = M,
			     .N = N,
			     .K = K};
	j.heaps = cpu_scratch(d, (size_t)M * (size_t)K * sizeof *j.heaps + 1);
	if (!j.heaps)
		return -ENOMEM;
	cpu_run(d, (lse ? 20.0 : 3.0) * M * N, topk_part, &j);
	return 0;
}

int cpu_topk_named(struct dev *d, uint32_t *ids, float *logp, uint32_t *first, const real *x, int ldx, int M, int N, int K, const uint32_t *names)
{
	enum { ROWS = 64 };
	float lse[ROWS];
	if (K < 1 || M < 0)
		return cpu_bad(d, "topk_named");
	for (int m0 = 0; m0 < M; m0 += ROWS) {
		int n = M - m0 < ROWS ? M - m0 : ROWS;
		uint32_t *id = ids + (size_t)m0 * (size_t)K;
		float *lp = logp + (size_t)m0 * (size_t)K;
		int r = cpu_topk(d, id, lp, lse, x + (size_t)m0 * (size_t)ldx, ldx, n, N, K);
		if (r)
			return r;
		for (int i = 0; i < n * K; i++) {
			float l = lse[i / K];
			id[i] = isfinite(l) && id[i] < (uint32_t)N ? names[id[i]] : OP_NO_NAME;
			lp[i] -= l;
		}
		for (int i = 0; i < n && first; i++)
			first[m0 + i] = id[i * K] == OP_NO_NAME ? 0 : id[i * K];
	}
	return 0;
}
