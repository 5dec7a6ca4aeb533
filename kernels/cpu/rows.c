/* Row operations and their backward halves: threads take runs of rows (or of
 * columns, where a sum runs over rows).
 */
#include "kernels/cpu/cpu.h"
#include <string.h>

struct rows_job {
	const struct cpu_kernels *k;
	real *y, *y2;
	const real *x, *x2, *g, *rstd;
	real *ret_rstd;
	const uint32_t *rows;
	size_t ldy, ldx, ldx2, n_elems;
	real eps, a, b;
	int M, n;
};

static void rmsnorm_part(void *ctx, int t, int n)
{
	const struct rows_job *j = ctx;
	int from, to;
	cpu_split(j->M, 1, t, n, &from, &to);
	for (int m = from; m < to; m++) {
		real r = j->k->rmsnorm(j->y + (size_t)m * j->ldy, j->x + (size_t)m * j->ldx, j->g, j->eps, j->n);
		if (j->ret_rstd)
			j->ret_rstd[m] = r;
	}
}

int cpu_rmsnorm(struct dev *d, real *y, int ldy, real *rstd, const real *x, int ldx, const real *g, real eps, int M, int H)
{
	if (M < 0 || H <= 0 || ldy < H || ldx < H)
		return cpu_bad(d, "rmsnorm");
	struct rows_job j = {.k = cpu_of(d)->k,
			     .y = y,
			     .ldy = (size_t)ldy,
			     .ret_rstd = rstd,
			     .x = x,
			     .ldx = (size_t)ldx,
			     .g = g,
			     .eps = eps,
			     .M = M,
			     .n = H};
	cpu_run(d, 8.0 * M * H, rmsnorm_part, &j);
	return 0;
}

static void silu_part(void *ctx, int t, int n)
{
	const struct rows_job *j = ctx;
	int from, to;
	cpu_split(j->M * j->n, 64, t, n, &from, &to);
	for (int i = from; i < to;) { /* a thread's part may begin and end inside a row */
		int m = i / j->n, c = i % j->n, len = cpu_min(j->n - c, to - i);
		const real *gu = j->x + (size_t)m * 2 * (size_t)j->n + c;
		j->k->silu_gate(j->y + i, gu, gu + j->n, len);
		i += len;
	}
}

int cpu_silu_gate(struct dev *d, real *y, const real *gu, int M, int I)
{
	if (M < 0 || I <= 0 || (int64_t)M * I > INT32_MAX)
		return cpu_bad(d, "silu_gate");
	struct rows_job j = {.k = cpu_of(d)->k, .y = y, .x = gu, .M = M, .n = I};
	cpu_run(d, 30.0 * M * I, silu_part, &j);
	return 0;
}

static void silu_back_part(void *ctx, int t, int n)
{
	const struct rows_job *j = ctx;
	int from, to;
	cpu_split(j->M, 1, t, n, &from, &to);
	for (int m = from; m < to; m++) {
		real *dgu = j->y + (size_t)m * 2 * (size_t)j->n;
		const real *gu = j->x + (size_t)m * 2 * (size_t)j->n;
		j->k->silu_gate_back(dgu, dgu + j->n, j->x2 + (size_t)m * (size_t)j->n, gu, gu + j->n, j->n);
	}
}

int cpu_silu_gate_backward(struct dev *d, real *dgu, const real *dy, const real *gu, int M, int I)
{
	if (M < 0 || I <= 0)
		return cpu_bad(d, "silu_gate_backward");
	struct rows_job j = {.k = cpu_of(d)->k, .y = dgu, .x = gu, .x2 = dy, .M = M, .n = I};
	cpu_run(d, 40.0 * M * I, silu_back_part, &j);
	return 0;
}

static void axpby_part(void *ctx, int t, int n)
{
	const struct rows_job *j = ctx;
	size_t units = (j->n_elems + 63) / 64;
	size_t from = units * (size_t)t / (size_t)n * 64, to = units * ((size_t)t + 1) / (size_t)n * 64;
	to = to < j->n_elems ? to : j->n_elems;
	if (from < to)
		j->k->axpby(j->y + from, j->a, j->x + from, j->b, to - from);
}

int cpu_axpby(struct dev *d, real *y, real a, const real *x, real b, size_t n)
{
	struct rows_job j = {.k = cpu_of(d)->k, .y = y, .x = x, .a = a, .b = b, .n_elems = n};
	cpu_run(d, 4.0 * (double)n, axpby_part, &j);
	return 0;
}

int cpu_add(struct dev *d, real *y, const real *x, size_t n)
{
	return cpu_axpby(d, y, 1, x, 1, n);
}

static void copy_part(void *ctx, int t, int n)
{
	const struct rows_job *j = ctx;
	int from, to;
	cpu_split(j->M, 1, t, n, &from, &to);
	for (int m = from; m < to; m++)
		memcpy(j->y + (size_t)m * j->ldy, j->x + (j->rows ? j->rows[m] : (size_t)m) * j->ldx, (size_t)j->n * sizeof *j->y);
}

int cpu_copy_rows(struct dev *d, real *y, int ldy, const real *x, int ldx, const uint32_t *rows, int M, int n)
{
	if (M < 0 || n < 0 || ldy < n || ldx < n)
		return cpu_bad(d, "copy_rows");
	struct rows_job j = {.y = y, .ldy = (size_t)ldy, .x = x, .ldx = (size_t)ldx, .rows = rows, .M = M, .n = n};
	cpu_run(d, 0.5 * M * n, copy_part, &j);
	return 0;
}

struct bf16_job {
	const struct cpu_kernels *k;
	uint16_t *to;
	const real *x;
	int n;
};

static void bf16_part(void *ctx, int t, int n)
{
	const struct bf16_job *j = ctx;
	int from, to;
	cpu_split(j->n, 64, t, n, &from, &to);
	j->k->round_bf16(j->to + from, j->x + from, to - from);
}

int cpu_tap_pack(struct dev *d, void *to, enum pack_kind kind, const real *x, int M, int H, uint64_t *ret_ticket)
{
	if (M < 1 || H < 1 || M > INT32_MAX / H)
		return cpu_bad(d, "pack");
	if (kind != PACK_BF16)
		return -ENOTSUP;
	struct bf16_job j = {.k = cpu_of(d)->k, .to = to, .x = x, .n = M * H};
	cpu_run(d, 1.0 * M * H, bf16_part, &j);
	*ret_ticket = 0;
	return 0;
}

bool cpu_tap_packed(struct dev *d, uint64_t ticket)
{
	(void)d;
	return ticket == 0;
}

static void rmsnorm_dx_part(void *ctx, int t, int n)
{
	const struct rows_job *j = ctx;
	int from, to;
	cpu_split(j->M, 1, t, n, &from, &to);
	for (int m = from; m < to; m++)
		j->k->rmsnorm_back(j->y + (size_t)m * j->ldy, j->x2 + (size_t)m * j->ldx2, j->x + (size_t)m * j->ldx, j->g, j->rstd[m],
				   j->n);
}

/* dg_i += sum_m dy_mi x_mi r_m: a thread owns columns and walks all rows in order */
static void rmsnorm_dg_part(void *ctx, int t, int n)
{
	const struct rows_job *j = ctx;
	int from, to;
	cpu_split(j->n, 16, t, n, &from, &to);
	for (int m = 0; m < j->M && from < to; m++)
		j->k->mul_axpy(j->y2 + from, j->rstd[m], j->x2 + (size_t)m * j->ldx2 + from, j->x + (size_t)m * j->ldx + from, to - from);
}

int cpu_rmsnorm_backward(struct dev *d, real *dx, int lddx, real *dg, const real *dy, int lddy, const real *x, int ldx, const real *g,
			 const real *rstd, int M, int H)
{
	if (M < 0 || H <= 0 || lddx < H || lddy < H || ldx < H)
		return cpu_bad(d, "rmsnorm_backward");
	struct rows_job j = {.k = cpu_of(d)->k,
			     .y = dx,
			     .ldy = (size_t)lddx,
			     .y2 = dg,
			     .x2 = dy,
			     .ldx2 = (size_t)lddy,
			     .x = x,
			     .ldx = (size_t)ldx,
			     .g = g,
			     .rstd = rstd,
			     .M = M,
			     .n = H};
	if (dx)
		cpu_run(d, 12.0 * M * H, rmsnorm_dx_part, &j);
	if (dg)
		cpu_run(d, 6.0 * M * H, rmsnorm_dg_part, &j);
	return 0;
}
