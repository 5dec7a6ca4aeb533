/* Row operations: sizes checked, small arrays brought across, one or two launches. */
#include <string.h>
#include "kernels/cuda/cuda.h"
#include "kernels/draw.h"

int cuda_rmsnorm(struct dev *d, real *y, int ldy, real *rstd, const real *x, int ldx, const real *g, real eps, int M, int H)
{
	if (M < 0 || H <= 0 || ldy < H || ldx < H)
		return cuda_bad(d, "rmsnorm");
	return M ? cuda_done(d, ck_rmsnorm(cuda_of(d)->stream, y, ldy, rstd, x, ldx, g, eps, M, H), "rmsnorm") : 0;
}

int cuda_rmsnorm_backward(struct dev *d, real *dx, int lddx, real *dg, const real *dy, int lddy, const real *x, int ldx, const real *g, const real *rstd, int M, int H)
{
	cudaStream_t s = cuda_of(d)->stream;
	void *part;
	if (M < 0 || H <= 0 || lddx < H || lddy < H || ldx < H)
		return cuda_bad(d, "rmsnorm_backward");
	if (!M)
		return 0;
	int r = dx ? cuda_done(d, ck_rmsnorm_dx(s, dx, lddx, dy, lddy, x, ldx, g, rstd, M, H), "rmsnorm_backward") : 0;
	if (r || !dg)
		return r;
	r = cuda_scratch(d, (size_t)((M + CK_NORM_ROWS - 1) / CK_NORM_ROWS) * (size_t)H * sizeof(float), &part);
	return r ? r : cuda_done(d, ck_rmsnorm_dg(s, dg, part, dy, lddy, x, ldx, rstd, M, H), "rmsnorm_backward");
}

int cuda_rope(struct dev *d, real *x, int ldx, int nh, int hd, const uint32_t *pos, const real *inv_freq, real mscale, int M, bool inverse)
{
	const uint32_t *p;
	const void *f;
	if (M < 0 || nh <= 0 || hd <= 0 || hd % 2 || ldx < nh * hd)
		return cuda_bad(d, "rope");
	if (!M)
		return 0;
	int r = cuda_stage_ids(d, pos, M, &p);
	r = r ? r : cuda_stage(d, inv_freq, (size_t)(hd / 2) * sizeof *inv_freq, &f);
	return r ? r : cuda_done(d, ck_rope(cuda_of(d)->stream, x, ldx, nh, hd, p, f, mscale, M, inverse), "rope");
}

int cuda_silu_gate(struct dev *d, real *y, const real *gu, int M, int I)
{
	if (M < 0 || I <= 0)
		return cuda_bad(d, "silu_gate");
	return M ? cuda_done(d, ck_silu_gate(cuda_of(d)->stream, y, gu, M, I), "silu_gate") : 0;
}

int cuda_silu_gate_backward(struct dev *d, real *dgu, const real *dy, const real *gu, int M, int I)
{
	if (M < 0 || I <= 0)
		return cuda_bad(d, "silu_gate_backward");
	return M ? cuda_done(d, ck_silu_gate_back(cuda_of(d)->stream, dgu, dy, gu, M, I), "silu_gate_backward") : 0;
}

int cuda_axpby(struct dev *d, real *y, real a, const real *x, real b, size_t n)
{
	return n ? cuda_done(d, ck_axpby(cuda_of(d)->stream, y, a, x, b, n), "axpby") : 0;
}

int cuda_add(struct dev *d, real *y, const real *x, size_t n)
{
	return cuda_axpby(d, y, 1, x, 1, n);
}

int cuda_copy_rows(struct dev *d, real *y, int ldy, const real *x, int ldx, const uint32_t *rows, int M, int n)
{
	const uint32_t *on_dev = NULL;
	if (M < 0 || n < 0 || ldy < n || ldx < n)
		return cuda_bad(d, "copy_rows");
	if (!M || !n)
		return 0;
	int r = rows ? cuda_stage_ids(d, rows, M, &on_dev) : 0;
	return r ? r : cuda_done(d, ck_copy_rows(cuda_of(d)->stream, y, ldy, x, ldx, on_dev, M, n), "copy_rows");
}

int cuda_topk_async(struct dev *d, uint32_t *ids, float *vals, float *lse, const real *x, int ldx, int M, int N, int K)
{
	if (M < 0 || N <= 0 || K < 0 || K > N || K > CK_TOPK_MAX || ldx < N)
		return cuda_bad(d, "topk");
	return M ? cuda_done(d, ck_topk(cuda_of(d)->stream, ids, vals, lse, x, ldx, M, N, K), "topk") : 0;
}

int cuda_topk_named(struct dev *d, uint32_t *ids, float *logp, uint32_t *first, const real *x, int ldx, int M, int N, int K, const uint32_t *names)
{
	void *room;
	if (K < 1)
		return cuda_bad(d, "topk_named");
	size_t m = M > 0 ? (size_t)M : 0, mk = m * (size_t)K;
	int r = cuda_scratch(d, (2 * mk + m) * 4, &room);
	uint32_t *best = r ? NULL : room;
	float *vals = r ? NULL : (float *)room + mk, *lse = r ? NULL : vals + mk;
	r = r ? r : cuda_topk_async(d, best, vals, lse, x, ldx, M, N, K);
	return r || !M ? r : cuda_done(d, ck_name(cuda_of(d)->stream, ids, logp, first, best, vals, lse, names, M, N, K), "topk_named");
}

_Static_assert(sizeof(struct draw) == sizeof(struct ck_draw) && offsetof(struct draw, row) == offsetof(struct ck_draw, row), "one struct, under two names");
_Static_assert((int)DRAW_FAR == (int)CK_DRAW_FAR && DRAW_ONE == (uint64_t)1 << CK_DRAW_ONE_BITS && DRAW_ALL == (uint64_t)1 << CK_DRAW_ALL_BITS, "one rule");

int cuda_draw(struct dev *d, uint32_t *ids, float *vals, const real *x, int ldx, const struct draw *how, int M, int N)
{
	const void *on_dev;
	if (M < 0 || N <= 0 || N > DRAW_MOST || ldx < N)
		return cuda_bad(d, "draw");
	if (!M)
		return 0;
	int r = cuda_stage(d, how, (size_t)M * sizeof *how, &on_dev);
	return r ? r : cuda_done(d, ck_draw(cuda_of(d)->stream, ids, vals, x, ldx, on_dev, M, N), "draw");
}

/* By way of pinned room: ids [M,K], vals [M,K], lse [M], words of 4 bytes all of them */
int cuda_topk(struct dev *d, uint32_t *ids, float *vals, float *lse, const real *x, int ldx, int M, int N, int K)
{
	size_t m = M > 0 ? (size_t)M : 0, mk = m * (size_t)(K > 0 ? K : 0);
	void *room;
	int r = cuda_back(d, (2 * mk + m) * 4, &room);
	if (r)
		return r;
	uint32_t *i = room;
	float *v = (float *)room + mk, *l = v + mk;
	r = cuda_topk_async(d, ids ? i : NULL, vals ? v : NULL, lse ? l : NULL, x, ldx, M, N, K);
	r = r || !M ? r : cuda_wait(d, "topk");
	if (r)
		return r;
	if (ids)
		memcpy(ids, i, mk * sizeof *ids);
	if (vals)
		memcpy(vals, v, mk * sizeof *vals);
	if (lse)
		memcpy(lse, l, m * sizeof *lse);
	return 0;
}
