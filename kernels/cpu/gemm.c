/* C = op(A) op(B): training's matrix product, any transposition, f32.
 *
 * Blocks of B (kc x nc) and A (mc x kc) are packed on the fly into panels and
 * tiles that stay in L3; then threads each take a run of row tiles (or of panels,
 * when there are more of those). An element is the sum over k-blocks of one chain
 * each, so neither the blocking of M and N nor the threads change a bit.
 */
#include "kernels/cpu/cpu.h"
#include <string.h>

enum { GEMM_MC = 960, GEMM_NC = 1024, GEMM_L2_ROWS = 120 };

struct gemm_job {
	const struct cpu_kernels *k;
	real *C;
	size_t ldc, lda, ldb;
	const real *A, *B;
	bool tA, tB, add;
	int M, N, K;
	real *pa, *pb; /* packed blocks */
	int m0, mc, n0, nc, k0, kc; /* the current ones */
	bool pack_b;
};

static void gemm_pack(void *ctx, int t, int n)
{
	const struct gemm_job *j = ctx;
	int nr = j->k->nr, mr = j->k->mr, from, to;
	size_t kc = (size_t)j->kc;

	if (j->pack_b) {
		cpu_split(j->nc, nr, t, n, &from, &to);
		size_t ks = j->tB ? 1 : j->ldb, js = j->tB ? j->ldb : 1;
		if (from < to)
			cpu_pack(j->pb + (size_t)from * kc, nr, j->B + (size_t)j->k0 * ks + (size_t)(j->n0 + from) * js, ks, js, to - from,
				 j->kc);
	}
	cpu_split(j->mc, mr, t, n, &from, &to);
	size_t ks = j->tA ? j->lda : 1, js = j->tA ? 1 : j->lda;
	if (from < to)
		cpu_pack(j->pa + (size_t)from * kc, mr, j->A + (size_t)j->k0 * ks + (size_t)(j->m0 + from) * js, ks, js, to - from, j->kc);
}

static void gemm_tile(const struct gemm_job *j, int r, int c)
{
	int nr = j->k->nr, mr = j->k->mr;
	struct cpu_product p = {
		.R = cpu_min(mr, j->mc - r),
		.cols = cpu_min(nr, j->nc - c),
		.K = j->kc,
		.add = j->add || j->k0 > 0,
		.C = j->C + (size_t)(j->m0 + r) * j->ldc + (size_t)(j->n0 + c),
		.ldc = j->ldc,
		.A = j->pa + (size_t)r * (size_t)j->kc,
		.as_m = 1,
		.as_k = (size_t)mr,
		.B = j->pb + (size_t)c * (size_t)j->kc,
		.bs = (size_t)nr,
		.ps = (size_t)nr * (size_t)j->kc,
	};
	j->k->product_f32(&p);
}

static void gemm_part(void *ctx, int t, int n)
{
	const struct gemm_job *j = ctx;
	int nr = j->k->nr, mr = j->k->mr, r0 = 0, r1 = j->mc, c0 = 0, c1 = j->nc;

	if (j->mc / mr >= j->nc / nr)
		cpu_split(j->mc, mr, t, n, &r0, &r1);
	else
		cpu_split(j->nc, nr, t, n, &c0, &c1);
	for (int b = r0; b < r1; b += GEMM_L2_ROWS)
		for (int c = c0; c < c1; c += nr)
			for (int r = b; r < cpu_min(r1, b + GEMM_L2_ROWS); r += mr)
				gemm_tile(j, r, c);
}

/* K = 0: C = 0, or nothing when adding */
static int gemm_empty(const struct gemm_job *j)
{
	for (int m = 0; m < j->M && !j->add; m++)
		memset(j->C + (size_t)m * j->ldc, 0, (size_t)j->N * sizeof *j->C);
	return 0;
}

int cpu_gemm(struct dev *d, real *C, int ldc, bool tA, const real *A, int lda, bool tB, const real *B, int ldb, int M, int N, int K,
	     bool add)
{
	if (M < 0 || N < 0 || K < 0 || ldc < N || lda < (tA ? M : K) || ldb < (tB ? K : N))
		return cpu_bad(d, "gemm");
	struct gemm_job j = {
		.k = cpu_of(d)->k,
		.C = C,
		.ldc = (size_t)ldc,
		.tA = tA,
		.A = A,
		.lda = (size_t)lda,
		.tB = tB,
		.B = B,
		.ldb = (size_t)ldb,
		.M = M,
		.N = N,
		.K = K,
		.add = add,
	};
	if (M == 0 || N == 0)
		return 0;
	if (K == 0)
		return gemm_empty(&j);
	int kb = cpu_kblock(K);
	size_t pa = cpu_round_up((size_t)cpu_min(M, GEMM_MC), (size_t)j.k->mr) * (size_t)kb;
	size_t pb = cpu_round_up((size_t)cpu_min(N, GEMM_NC), (size_t)j.k->nr) * (size_t)kb;
	j.pb = cpu_scratch(d, (pa + pb + 16) * sizeof *j.pa);
	if (!j.pb)
		return -ENOMEM;
	j.pa = j.pb + cpu_round_up(pb, 16);
	for (j.n0 = 0; j.n0 < N; j.n0 += GEMM_NC)
		for (j.k0 = 0; j.k0 < K; j.k0 += kb)
			for (j.m0 = 0; j.m0 < M; j.m0 += GEMM_MC) {
				j.nc = cpu_min(GEMM_NC, N - j.n0);
				j.kc = cpu_min(kb, K - j.k0);
				j.mc = cpu_min(GEMM_MC, M - j.m0);
				j.pack_b = j.m0 == 0;
				double work = 2.0 * j.mc * j.nc * j.kc;
				cpu_run(d, work, gemm_pack, &j);
				cpu_run(d, work, gemm_part, &j);
			}
	return 0;
}
