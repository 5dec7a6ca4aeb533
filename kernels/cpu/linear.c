/* y = x w^T over packed weights: decode, verify and prefill.
 *
 * Order of one element: y (or 0) + chain over k-block 0 + chain over k-block 1 ...,
 * blocks by cpu_kblock(K). That is the same for one row and for 500, so M changes
 * no bit. Few rows: straight from x, a panel is read once for up to mr rows. Many
 * rows: x is copied into tiles of mr rows first, and blocks of tiles that fit L2
 * pass over a panel while it sits in L1. Threads take runs of panels.
 */
#include "kernels/cpu/cpu.h"
#include <string.h>

enum { L2_BYTES = 256 << 10 }; /* of x per block of rows */

struct linear_job {
	const struct cpu_kernels *k;
	const struct weight *w;
	real *y;
	size_t ldy;
	const real *x; /* few: as given; many: tiles [ceil(M/mr)][K][mr] */
	size_t ldx;
	const real *src; /* many: as given, to be packed */
	real *tiles;
	uint16_t *x16; /* dot_pairs: x rounded, [M][Kp] */
	int M, Kp;
	bool add;
};

/* One k-block [k0, ..) of panels [p0, p1) against rows [m0, m0+R). A is at k 0. */
static void linear_tile(const struct linear_job *j, int p0, int p1, int k0, int m0, int R, const real *A, size_t as_m, size_t as_k,
			const char *const ahead[static CPU_STREAMS])
{
	const struct weight *w = j->w;
	int nr = j->k->nr;
	size_t panel = (size_t)nr * (size_t)w->K, elem = dtype_size(w->type);
	struct cpu_product p = {
		.R = R,
		.cols = cpu_min(w->N, p1 * nr) - p0 * nr,
		.K = cpu_min(cpu_kblock(w->K), w->K - k0),
		.add = j->add || k0 > 0,
		.C = j->y + (size_t)m0 * j->ldy + (size_t)p0 * (size_t)nr,
		.ldc = j->ldy,
		.A = A + (size_t)k0 * as_k,
		.as_m = as_m,
		.as_k = as_k,
		.B = (const char *)w->packed + ((size_t)p0 * panel + (size_t)k0 * (size_t)nr) * elem,
		.bs = (size_t)nr,
		.ps = panel,
	};
	memcpy(p.ahead, ahead, sizeof p.ahead);
	if (w->type == DT_BF16)
		j->k->product_bf16(&p);
	else
		j->k->product_f32(&p);
}

/* Panels go in fours. While one of them is worked on, a quarter of each panel of the next four is fetched; two groups
 * of rows fetch two panels each. Past a thread's last panel nothing is fetched, but a thread that works alone asks for the
 * bytes that follow the matrix: weights lie in the order in which they are used. */
static void linear_ahead(const struct linear_job *j, int p, int from, int to, int k0, int group, int groups, bool alone, const char **ret)
{
	size_t K = (size_t)j->w->K, panel = (size_t)j->k->nr * K * sizeof(uint16_t);
	int i = (p - from) % CPU_STREAMS, next = p - i + CPU_STREAMS, each = CPU_STREAMS / groups;

	if (j->w->type != DT_BF16 || (next >= to && !alone))
		return;
	for (int s = 0; s < CPU_STREAMS; s++) {
		int q = next + group * each + s % each;
		if (next < to && q >= to)
			q = to - 1;
		ret[s] = (const char *)j->w->packed + (size_t)q * panel + ((size_t)i * K + (size_t)k0) * CPU_AHEAD;
	}
}

static void linear_few(void *ctx, int t, int n)
{
	const struct linear_job *j = ctx;
	int nr = j->k->nr, mr = j->k->mr, K = j->w->K, kb = cpu_kblock(K), from, to;
	int groups = (j->M + mr - 1) / mr, step = CPU_PANELS((j->M + groups - 1) / groups);

	cpu_split(j->w->N, nr, t, n, &from, &to);
	from /= nr;
	to = (to + nr - 1) / nr;
	for (int p = from; p < to; p += step)
		for (int k0 = 0; k0 < K; k0 += kb)
			for (int g = 0; g < groups; g++) {
				int m0 = j->M * g / groups, m1 = j->M * (g + 1) / groups;
				const char *ahead[CPU_STREAMS] = {NULL};
				if (step == 1)
					linear_ahead(j, p, from, to, k0, g, groups, n == 1, ahead);
				linear_tile(j, p, cpu_min(p + step, to), k0, m0, m1 - m0, j->x + (size_t)m0 * j->ldx, j->ldx, 1, ahead);
			}
}

static void linear_pack_x(void *ctx, int t, int n)
{
	const struct linear_job *j = ctx;
	int mr = j->k->mr, K = j->w->K, from, to;

	cpu_split(j->M, mr, t, n, &from, &to);
	if (from < to)
		cpu_pack(j->tiles + (size_t)from * (size_t)K, mr, j->src + (size_t)from * j->ldx, 1, j->ldx, to - from, K);
}

/* The first tiles of a panel fetch a share of the next one each. */
static void linear_next(const struct linear_job *j, int p, int to, int k0, int tile, const char **ret)
{
	size_t K = (size_t)j->w->K, panel = (size_t)j->k->nr * K * sizeof(uint16_t);

	if (j->w->type != DT_BF16 || tile >= CPU_STREAMS || (p + 1) * j->k->nr >= to)
		return;
	for (int s = 0; s < CPU_STREAMS; s++)
		ret[s] = (const char *)j->w->packed + (size_t)(p + 1) * panel + ((size_t)tile * K + (size_t)k0) * CPU_AHEAD;
}

static void linear_many(void *ctx, int t, int n)
{
	const struct linear_job *j = ctx;
	int nr = j->k->nr, mr = j->k->mr, K = j->w->K, kb = cpu_kblock(K), from, to;
	int block = cpu_max(mr, L2_BYTES / (K * (int)sizeof(real)) / mr * mr);

	cpu_split(j->w->N, nr, t, n, &from, &to);
	for (int b = 0; b < j->M; b += block)
		for (int p = from / nr; p * nr < to; p++)
			for (int m = b; m < cpu_min(j->M, b + block); m += mr)
				for (int k0 = 0; k0 < K; k0 += kb) {
					const char *ahead[CPU_STREAMS] = {NULL};
					linear_next(j, p, to, k0, (m - b) / mr, ahead);
					linear_tile(j, p, p + 1, k0, m, cpu_min(mr, j->M - m), j->tiles + (size_t)m * (size_t)K, 1, (size_t)mr, ahead);
				}
}

static void linear_round_x(void *ctx, int t, int n)
{
	const struct linear_job *j = ctx;
	int from, to, K = j->w->K;

	cpu_split(j->M, 1, t, n, &from, &to);
	for (int m = from; m < to; m++) {
		uint16_t *row = j->x16 + (size_t)m * (size_t)j->Kp;
		j->k->round_bf16(row, j->src + (size_t)m * j->ldx, K);
		if (j->Kp > K)
			row[K] = 0;
	}
}

static void linear_pairs(void *ctx, int t, int n)
{
	const struct linear_job *j = ctx;
	const struct weight *w = j->w;
	int nr = j->k->nr, mr = j->k->mr, from, to, step = j->M == 1 ? 4 : 2;
	int block = cpu_max(mr, L2_BYTES / (j->Kp * 2) / mr * mr), kb = cpu_kblock(w->K);
	size_t panel = (size_t)nr * (size_t)j->Kp;

	cpu_split(w->N, nr, t, n, &from, &to);
	for (int b = 0; b < j->M; b += block)
		for (int c = from; c < to; c += step * nr)
			for (int m = b; m < cpu_min(j->M, b + block); m += mr)
				for (int k0 = 0; k0 < j->Kp; k0 += kb) {
					struct cpu_product q = {
						.R = cpu_min(mr, j->M - m),
						.cols = cpu_min(step * nr, to - c),
						.K = cpu_min(kb, j->Kp - k0),
						.add = j->add || k0 > 0,
						.C = j->y + (size_t)m * j->ldy + (size_t)c,
						.ldc = j->ldy,
						.A = (const real *)(const void *)(j->x16 + (size_t)m * (size_t)j->Kp + k0),
						.as_m = (size_t)j->Kp,
						.as_k = 1,
						.B = (const uint16_t *)w->packed + (size_t)(c / nr) * panel + (size_t)k0 * (size_t)nr,
						.ps = panel,
					};
					j->k->product_pairs(&q);
				}
}

int cpu_linear(struct dev *d, real *y, int ldy, const struct weight *w, const real *x, int ldx, int M, bool add)
{
	const struct cpu_kernels *k = cpu_of(d)->k;

	if (M < 0 || !w->packed || ldy < w->N || ldx < w->K)
		return cpu_bad(d, "linear");
	if (M == 0)
		return 0;
	double work = 2.0 * M * w->N * w->K, copy = 4.0 * M * w->K;
	struct linear_job j = {
		.k = k,
		.w = w,
		.y = y,
		.ldy = (size_t)ldy,
		.x = x,
		.ldx = (size_t)ldx,
		.src = x,
		.M = M,
		.Kp = (int)cpu_round_up((size_t)w->K, 2),
		.add = add,
	};
	if (w->type == DT_BF16 && k->dot_pairs) {
		j.x16 = cpu_scratch(d, (size_t)M * (size_t)j.Kp * sizeof *j.x16);
		if (!j.x16)
			return -ENOMEM;
		cpu_run(d, copy, linear_round_x, &j);
		cpu_run(d, work, linear_pairs, &j);
		return 0;
	}
	if (M <= 2 * k->mr) {
		cpu_run(d, work, linear_few, &j);
		return 0;
	}
	j.tiles = cpu_scratch(d, cpu_round_up((size_t)M, (size_t)k->mr) * (size_t)w->K * sizeof *j.tiles);
	if (!j.tiles)
		return -ENOMEM;
	cpu_run(d, copy, linear_pack_x, &j);
	cpu_run(d, work, linear_many, &j);
	return 0;
}
