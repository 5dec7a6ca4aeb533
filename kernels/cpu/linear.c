/* y = x w^T over packed weights: decode, verify and prefill.
 *
 * Order of one element: y (or 0) + chain over k-block 0 + chain over k-block 1 ...,
 * blocks by cpu_kblock(K). That is the same for one row and for 500, so M changes
 * no bit. A panel is read once for a block of rows, at most mr of them at a time and straight from x: they are as many streams, and
 * a copy in the order of use costs more than it gives. A block of rows is what L2 holds. Threads take runs of panels.
 */
#include "kernels/cpu/cpu.h"
#include <string.h>

enum {
	L2_BYTES = 320 << 10, /* of x per block of rows */
	LONE_ROWS = 4,        /* most rows of pairs that go as one tile */
};

struct linear_job {
	const struct cpu_kernels *k;
	const struct weight *w;
	void (*product)(const struct cpu_product *p);
	real *y;
	size_t ldy;
	const char *x;   /* as given, or x16 */
	size_t ldx, elem; /* of x */
	const real *src; /* dot_pairs: as given, to be rounded */
	size_t ld_src;
	uint16_t *x16; /* dot_pairs: [M][K] */
	int M, K; /* K as packed: even for dot_pairs */
	bool add;
};

/* Rows [m0, m1) against panels [from, to): what a thread does before the next block of rows */
struct linear_block {
	int m0, m1, from, to, step; /* step: panels side by side */
	bool alone;
};

/* How many tiles a block's rows make. One tile of five or six rows of pairs computes about as long as its panel takes to come, and overlaps the
 * two badly; two tiles of half the rows do it well, as the second finds the panel in L2. */
static int linear_tiles(const struct linear_job *j, int rows)
{
	int tiles = (rows + j->k->mr - 1) / j->k->mr;
	return j->x16 && tiles == 1 && rows > LONE_ROWS ? 2 : tiles;
}

/* While tiles work on a group of panels the next group is fetched, at four places at a time, which the tiles share: of four panels, or
 * with pairs the quarters of one. Past a thread's last panel nothing is fetched, but a thread
 * that works alone asks for the bytes that follow the matrix: weights lie in the order in which they are used. A lone tile of
 * pairs fetches for itself. */
static void linear_ahead(const struct linear_job *j, const struct linear_block *b, int p, int k, int tile, int tiles, const char **ret)
{
	size_t row = (size_t)j->k->nr * sizeof(uint16_t), each = row / CPU_STREAMS; /* bytes a k: of a panel, of a stream */
	int group = j->x16 ? 1 : CPU_STREAMS, i = (p - b->from) % group, next = p - i + group, n = 0;

	if (j->w->type != DT_BF16 || (next >= b->to && !b->alone) || (j->x16 && tiles == 1))
		return;
	for (int q = 0; q < CPU_STREAMS; q++) {
		int quarter = q * group + i, panel = next + quarter / CPU_STREAMS;
		if (next < b->to)
			panel = cpu_min(panel, b->to - 1);
		if (q * tiles / CPU_STREAMS == tile)
			ret[n++] = (const char *)j->w->packed + (size_t)panel * (size_t)j->K * row + ((size_t)(quarter % CPU_STREAMS) * (size_t)j->K + (size_t)k) * each;
	}
	for (int q = n; n && q < CPU_STREAMS; q++)
		ret[q] = ret[q - n];
}

/* All rows of the block against the panels from p on that lie side by side; no tile is much smaller than the others. */
static void linear_panel(const struct linear_job *j, const struct linear_block *b, int p)
{
	const struct weight *w = j->w;
	int nr = j->k->nr, kb = cpu_kblock(w->K), end = cpu_min(b->to, p + b->step);
	int tiles = linear_tiles(j, b->m1 - b->m0);
	size_t panel = (size_t)nr * (size_t)j->K;

	for (int k = 0; k < j->K; k += kb)
		for (int m = b->m0, R, tile = 0; m < b->m1; m += R, tile++) {
			R = (b->m1 - m + tiles - tile - 1) / (tiles - tile);
			struct cpu_product q = {
				.R = R,
				.cols = cpu_min(w->N, end * nr) - p * nr,
				.K = cpu_min(kb, j->K - k),
				.add = j->add || k > 0,
				.C = j->y + (size_t)m * j->ldy + (size_t)p * (size_t)nr,
				.ldc = j->ldy,
				.A = (const real *)(const void *)(j->x + ((size_t)m * j->ldx + (size_t)k) * j->elem),
				.as_m = j->ldx,
				.as_k = 1,
				.B = (const char *)w->packed + ((size_t)p * panel + (size_t)k * (size_t)nr) * dtype_size(w->type),
				.bs = (size_t)nr,
				.ps = panel,
			};
			if (b->step == 1)
				linear_ahead(j, b, p, k, tile, tiles, q.ahead);
			j->product(&q);
		}
}

static void linear_part(void *ctx, int t, int n)
{
	const struct linear_job *j = ctx;
	int nr = j->k->nr, mr = j->k->mr, rows = cpu_max(mr, L2_BYTES / (j->K * (int)j->elem) / mr * mr);
	struct linear_block b = {.alone = n == 1, .step = j->M == 1 && !j->x16 ? CPU_PANELS(1) : 1};

	cpu_split(j->w->N, nr, t, n, &b.from, &b.to);
	b.from /= nr;
	b.to = (b.to + nr - 1) / nr;
	for (; b.m0 < j->M; b.m0 = b.m1) {
		b.m1 = cpu_min(j->M, b.m0 + rows);
		for (int p = b.from; p < b.to; p += b.step)
			linear_panel(j, &b, p);
	}
}

static void linear_round_x(void *ctx, int t, int n)
{
	const struct linear_job *j = ctx;
	int from, to, K = j->w->K;

	cpu_split(j->M, 1, t, n, &from, &to);
	for (int m = from; m < to; m++) {
		uint16_t *row = j->x16 + (size_t)m * (size_t)j->K;
		j->k->round_bf16(row, j->src + (size_t)m * j->ld_src, K);
		if (j->K > K)
			row[K] = 0;
	}
}

int cpu_linear(struct dev *d, real *y, int ldy, const struct weight *w, const real *x, int ldx, int M, bool add)
{
	const struct cpu_kernels *k = cpu_of(d)->k;

	if (M < 0 || !w->packed || ldy < w->N || ldx < w->K)
		return cpu_bad(d, "linear");
	if (M == 0)
		return 0;
	struct linear_job j = {
		.k = k,
		.w = w,
		.product = w->type == DT_BF16 ? k->product_bf16 : k->product_f32,
		.y = y,
		.ldy = (size_t)ldy,
		.x = (const char *)x,
		.ldx = (size_t)ldx,
		.elem = sizeof *x,
		.M = M,
		.K = w->K,
		.add = add,
	};
	if (w->type == DT_BF16 && k->dot_pairs) {
		j.product = k->product_pairs;
		j.K = cpu_even(w->K);
		j.src = x;
		j.ld_src = (size_t)ldx;
		j.x16 = cpu_scratch(d, (size_t)M * (size_t)j.K * sizeof *j.x16);
		if (!j.x16)
			return -ENOMEM;
		cpu_run(d, 4.0 * M * w->K, linear_round_x, &j);
		j.x = (const char *)j.x16;
		j.ldx = (size_t)j.K;
		j.elem = sizeof *j.x16;
	}
	cpu_run(d, 2.0 * M * w->N * w->K, linear_part, &j);
	return 0;
}
