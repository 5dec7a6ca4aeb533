/* C = op(A) op(B): training's matrix product, any transposition.
 *
 * A block of B at a time becomes panels, which stay in L3. Then threads take rows of C: each packs
 * the rows of A that it needs into tiles in its own L2, and takes the next rows when it is
 * done, fewer towards the end, so that a thread whose processor somebody else wants holds
 * nobody up for long. An element is the sum over k-blocks of one chain each, so neither the
 * blocking of M and N nor the threads change a bit.
 *
 * Strict: numbers are f32. Fast, where the path has vdpbf16ps: both sides are rounded to bf16 as they
 * are packed, in pairs of k (cpu.h), and sums stay f32: twice the products a cycle. Panels then go two
 * by two, which reads A half as often.
 */
#include "kernels/cpu/cpu.h"
#include <string.h>

enum {
	GEMM_ROWS = 96,    /* of C at a time: they meet a panel while it is in L1 */
	GEMM_NC = 2048,    /* columns of B packed at a time, and */
	GEMM_B = 2 << 20,  /* numbers at most, or one k-block */
};

struct gemm_job {
	const struct cpu_kernels *k;
	real *C;
	size_t ldc, lda;
	const real *A, *B;
	size_t ks, js;      /* op(B)(k, j) = B[k*ks + j*js] */
	bool tA, add, pairs;
	int strip;          /* rows of A side by side: pairs of an A that is not transposed stay rows */
	int M, N, K, kb;
	size_t elem;        /* of what is packed: bf16 where pairs, else real */
	char *pa;           /* [threads][GEMM_ROWS][kb] packed blocks of A */
	char *pb;           /* panels of columns [n0, n0+nc), rows [k0, k0+kc) */
	int n0, nc, k0, kc;
	_Atomic int next;   /* row of C that nobody has */
};

/* As packed: pairs have an even number of k */
static int gemm_even(const struct gemm_job *j, int k)
{
	return j->pairs ? cpu_even(k) : k;
}

static void gemm_strips(const struct gemm_job *j, void *dst, int w, const real *src, size_t ks, size_t js, int n, int kc)
{
	if (j->pairs)
		j->k->pack_pairs(dst, w, src, ks, js, n, kc);
	else
		cpu_pack(dst, w, src, ks, js, n, kc);
}

static void gemm_pack(void *ctx, int t, int n)
{
	const struct gemm_job *j = ctx;
	int nr = j->k->nr, from, to;

	cpu_split(j->nc, nr, t, n, &from, &to);
	if (from < to)
		gemm_strips(j, j->pb + (size_t)from * (size_t)gemm_even(j, j->kc) * j->elem, nr, j->B + (size_t)j->k0 * j->ks + (size_t)(j->n0 + from) * j->js, j->ks, j->js,
			    to - from, j->kc);
}

/* Rows [r0, r1) of C and the k-block at k, of which A holds these rows in tiles */
static void gemm_tiles(const struct gemm_job *j, int r0, int r1, int k, const char *A)
{
	int nr = j->k->nr, mr = j->k->mr, wide = j->pairs ? 2 * nr : nr, kc = gemm_even(j, j->kc);
	struct cpu_product p = {.K = gemm_even(j, cpu_min(j->kb, j->k0 + j->kc - k)), .add = j->add || k > 0, .ldc = j->ldc, .as_k = (size_t)j->strip,
				.bs = (size_t)nr, .ps = (size_t)nr * (size_t)kc};

	p.as_m = j->strip == 1 ? (size_t)p.K : j->pairs ? 2 : 1;
	for (int c = 0; c < j->nc; c += wide) {
		p.cols = cpu_min(wide, j->nc - c);
		p.B = j->pb + ((size_t)(c / nr) * p.ps + (size_t)(k - j->k0) * (size_t)nr) * j->elem;
		for (int r = r0; r < r1; r += mr) {
			p.R = cpu_min(mr, r1 - r);
			p.C = j->C + (size_t)r * j->ldc + (size_t)(j->n0 + c);
			p.A = (const real *)(const void *)(A + (size_t)(r - r0) * (size_t)p.K * j->elem);
			for (int i = 0; i < p.R && p.add; i++) {
				__builtin_prefetch(p.C + (size_t)i * j->ldc);
				__builtin_prefetch(p.C + (size_t)i * j->ldc + (p.cols - 1));
			}
			if (j->pairs)
				j->k->product_pairs(&p);
			else
				j->k->product_f32(&p);
		}
	}
}

static void gemm_part(void *ctx, int t, int n)
{
	struct gemm_job *j = ctx;
	int r0, r1, mr = j->k->mr, end = j->k0 + j->kc;
	char *pa = j->pa + (size_t)t * GEMM_ROWS * (size_t)j->kb * j->elem;
	size_t ks = j->tA ? j->lda : 1, js = j->tA ? 1 : j->lda;

	while (cpu_next(&j->next, j->M, 2 * mr, GEMM_ROWS, n, &r0, &r1))
		for (int k = j->k0; k < end; k += j->kb) {
			gemm_strips(j, pa, j->strip, j->A + (size_t)k * ks + (size_t)r0 * js, ks, js, r1 - r0, cpu_min(j->kb, end - k));
			gemm_tiles(j, r0, r1, k, pa);
		}
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
		.M = M,
		.N = N,
		.K = K,
		.add = add,
		.B = B,
		.ks = tB ? 1 : (size_t)ldb,
		.js = tB ? (size_t)ldb : 1,
		.pairs = d->math == MATH_FAST, /* only where there are any (dev_cpu.c) */
	};
	if (M == 0 || N == 0)
		return 0;
	if (K == 0)
		return gemm_empty(&j);
	j.kb = cpu_kblock(K);
	j.strip = j.pairs && !tA ? 1 : j.k->mr;
	j.elem = j.pairs ? sizeof(uint16_t) : sizeof(real);
	int kc = cpu_min(K, cpu_max(1, GEMM_B / cpu_min(N, GEMM_NC) / j.kb) * j.kb);
	size_t pb = cpu_round_up(cpu_round_up((size_t)cpu_min(N, GEMM_NC), (size_t)j.k->nr) * (size_t)gemm_even(&j, kc) * j.elem, 64);
	j.pb = cpu_scratch(d, pb + (size_t)d->n_threads * GEMM_ROWS * (size_t)j.kb * j.elem);
	if (!j.pb)
		return -ENOMEM;
	j.pa = j.pb + pb;
	for (j.n0 = 0; j.n0 < N; j.n0 += GEMM_NC)
		for (j.k0 = 0; j.k0 < K; j.k0 += kc) {
			j.nc = cpu_min(GEMM_NC, N - j.n0);
			j.kc = cpu_min(kc, K - j.k0);
			j.next = 0;
			cpu_run(d, 2.0 * M * j.nc * j.kc, gemm_pack, &j);
			cpu_run(d, 2.0 * M * j.nc * j.kc, gemm_part, &j);
		}
	return 0;
}
