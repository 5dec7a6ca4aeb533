/* The AVX-512 path (F, BW, VL, DQ, BF16): 16 lanes, tiles of 6 x 32. Its bf16
 * weights are packed in pairs of k for vdpbf16ps and meet activations rounded to
 * bf16; keys and values in bf16 stay interleaved and meet f32 numbers.
 */
#if defined(__AVX512F__) && defined(__AVX512BF16__) && !defined(REDRAFT_DOUBLE)
#include <immintrin.h>
#define VL           16
#define MR           6
#define KERN_NAME    cpu_kernels_avx512
#define FMA(a, b, c) ((vf)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define VMAX(a, b)   ((vf)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define VMIN(a, b)   ((vf)_mm512_min_ps((__m512)(a), (__m512)(b)))
#define KERN_EXTRAS  .dot_pairs = true, .product_pairs = product_pairs,

struct cpu_product;
static void product_pairs(const struct cpu_product *p);
#define VSQRT(a) ((vf)_mm512_sqrt_ps((__m512)(a)))
#include "kernels/cpu/kern.inc"

/* clang-format off */
/* As tile_step() and tile() of kern.inc, two k at a time: a row of a panel is nr pairs */
TILE void pairs_step(const int R, const int P, __m512 acc[MR][8], const uint16_t *a, size_t as, const uint16_t *B, size_t panel)
{
	__m512bh b[8];

	UNROLL
	for (int j = 0; j < P; j++) {
		b[2 * j] = (__m512bh)_mm512_loadu_si512(B + (size_t)j * panel);
		b[2 * j + 1] = (__m512bh)_mm512_loadu_si512(B + (size_t)j * panel + NR);
	}
	UNROLL
	for (int r = 0; r < R; r++) {
		int32_t pair;
		memcpy(&pair, a + (size_t)r * as, sizeof pair);
		__m512bh x = (__m512bh)_mm512_set1_epi32(pair);
		UNROLL
		for (int j = 0; j < 2 * P; j++)
			acc[r][j] = _mm512_dpbf16_ps(acc[r][j], x, b[j]);
	}
}

TILE void pairs_tile(const int R, const int P, const struct cpu_product *p, real *C, const uint16_t *B, int cols)
{
	enum { NEAR = 512 };
	const uint16_t *a = (const uint16_t *)(const void *)p->A;
	int k = 0;
	__m512 acc[MR][8];

	UNROLL
	for (int r = 0; r < R; r++)
		UNROLL
		for (int j = 0; j < 2 * P; j++)
			acc[r][j] = _mm512_setzero_ps();
	UNROLL
	for (int r = 0; r < R; r++)
		UNROLL
		for (int j = 0; j < 2 * P; j++)
			__builtin_prefetch(C + (size_t)r * p->ldc + j * VL, 1);
	if (P == 1 && p->ahead[0])
		for (size_t far = 0; k + 4 <= p->K; k += 4, far += 64)
			for (int i = 0; i < CPU_STREAMS; i += 2, a += 2, B += 2 * NR) {
				__builtin_prefetch(p->ahead[i] + far);
				__builtin_prefetch(p->ahead[i + 1] + far);
				pairs_step(R, P, acc, a, p->as_m, B, p->ps);
			}
	for (; k < p->K; k += 2, a += 2, B += 2 * NR) {
		UNROLL
		for (int j = 0; j < P && P > 1; j++) {
			__builtin_prefetch(B + (size_t)j * p->ps + NEAR);
			__builtin_prefetch(B + (size_t)j * p->ps + NEAR + NR);
		}
		pairs_step(R, P, acc, a, p->as_m, B, p->ps);
	}
	UNROLL
	for (int r = 0; r < R; r++)
		UNROLL
		for (int j = 0; j < P; j++)
			tile_store(C + (size_t)r * p->ldc + j * NR, (vf)acc[r][2 * j], (vf)acc[r][2 * j + 1], cols - j * NR, p->add);
}
/* clang-format on */

TILE void pairs_tiles(const int R, const struct cpu_product *p)
{
	const int P = R == 1 ? CPU_PANELS(1) : 2; /* where the caller gives as many */
	const uint16_t *B = p->B;
	real *C = p->C;
	int cols = p->cols;

	for (; cols > (P - 1) * NR; cols -= P * NR, C += P * NR, B += (size_t)P * p->ps)
		pairs_tile(R, P, p, C, B, cols);
	for (; cols > 0; cols -= NR, C += NR, B += p->ps)
		pairs_tile(R, 1, p, C, B, cols);
}

static void product_pairs(const struct cpu_product *p)
{
	switch (p->R) {
	case 1:
		pairs_tiles(1, p);
		break;
	case 2:
		pairs_tiles(2, p);
		break;
	case 3:
		pairs_tiles(3, p);
		break;
	case 4:
		pairs_tiles(4, p);
		break;
	case 5:
		pairs_tiles(5, p);
		break;
	default:
		pairs_tiles(6, p);
		break;
	}
}
#endif
