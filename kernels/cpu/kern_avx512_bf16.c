/* What AVX512_BF16 adds to the AVX-512 path: products in pairs, vdpbf16ps, tiles of 6 x 32.
 *
 * bf16 weights are packed in pairs of k and meet activations rounded to
 * bf16; keys and values in bf16 stay interleaved and meet f32 numbers. Training's
 * fast products pack f32 numbers of both sides into pairs (pack_pairs). Tiles of more than six rows were slower here.
 */
#if defined(__AVX512F__) && defined(__AVX512BF16__) && !defined(REDRAFT_DOUBLE)
#include <immintrin.h>
#include <string.h>
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/tile.h"

enum { VL = 16, NR = 2 * VL, MR = 6 };

static inline __mmask16 lanes(int n) /* the first n of 16 */
{
	return (__mmask16)((1u << cpu_max(0, cpu_min(n, 16))) - 1);
}

/* clang-format off */
/* As tile_step() and tile() of kern.inc, two k at a time: a row of a panel is nr pairs */
TILE void pairs_step(const int R, const int P, __m512 acc[MR][4], const uint16_t *a, size_t as, const uint16_t *B, size_t panel)
{
	__m512bh b[4];

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

/* Weights come from DRAM, a panel after the other. Where several tiles meet a panel, up to four of them ask for parts of the next
 * one into L2 (p->ahead), so that memory does not rest while they have this one from there. A tile without such a part
 * fetches a little ahead in its own panel. */
TILE void pairs_tile(const int R, const int P, const struct cpu_product *p, float *C, const uint16_t *B, int cols)
{
	enum { NEAR = 2048 / sizeof(uint16_t) };
	const uint16_t *a = (const uint16_t *)(const void *)p->A;
	const size_t next = 2 * p->as_k;
	int k = 0;
	__m512 acc[MR][4];

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
		for (size_t far = 0; k + 4 <= p->K; k += 4, far += 64) {
			__builtin_prefetch(p->ahead[0] + far, 0, 2);
			__builtin_prefetch(p->ahead[1] + far, 0, 2);
			for (int i = 0; i < 2; i++, a += next, B += 2 * NR)
				pairs_step(R, P, acc, a, p->as_m, B, p->ps);
		}
	for (; k < p->K; k += 2, a += next, B += 2 * NR) {
		UNROLL
		for (int j = 0; j < P; j++) {
			__builtin_prefetch(B + (size_t)j * p->ps + NEAR);
			__builtin_prefetch(B + (size_t)j * p->ps + NEAR + NR);
		}
		pairs_step(R, P, acc, a, p->as_m, B, p->ps);
	}
	UNROLL
	for (int j = 0; j < 2 * P; j++) {
		__mmask16 have = lanes(cols - j * VL);
		UNROLL
		for (int r = 0; r < R; r++) {
			float *c = C + (size_t)r * p->ldc + j * VL;
			_mm512_mask_storeu_ps(c, have, p->add ? _mm512_add_ps(_mm512_maskz_loadu_ps(have, c), acc[r][j]) : acc[r][j]);
		}
	}
}
/* clang-format on */

/* Two panels side by side where the caller gives as many: operands from a cache then meet half as many loads of A. */
TILE void pairs_tiles(const int R, const struct cpu_product *p)
{
	const uint16_t *B = p->B;
	float *C = p->C;
	int cols = p->cols;

	for (; cols > NR; cols -= 2 * NR, C += 2 * NR, B += 2 * p->ps)
		pairs_tile(R, 2, p, C, B, cols);
	if (cols > 0)
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

/* ---- f32 numbers into strips of pairs ---- */

enum { PAIRS_AT_ONCE = 4, PAIR_COLUMNS = 16 };

/* js == 1: pairs of two rows; the second may be missing */
static void pack_pair_rows(uint16_t *dst, int w, const float *src, size_t ks, int n, int kc)
{
	size_t even = (size_t)cpu_even(kc);
	for (int k0 = 0; k0 < kc; k0 += 2 * PAIRS_AT_ONCE)
		for (int j = 0; j < n; j += w)
			for (int k = k0; k < kc && k < k0 + 2 * PAIRS_AT_ONCE; k += 2) {
				const float *s = src + (size_t)k * ks + (size_t)j;
				uint16_t *d = dst + (size_t)j * even + (size_t)k * (size_t)w;
				for (int i = 0; i < w; i += PAIR_COLUMNS) {
					__mmask16 have = lanes(cpu_min(w, n - j) - i);
					__m256bh a = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(have, s + i));
					__m256bh b = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(k + 1 < kc ? have : 0, s + ks + i));
					__m512i low = _mm512_cvtepu16_epi32((__m256i)a), high = _mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)b), 16);
					_mm512_mask_storeu_epi32(d + 2 * i, lanes(w - i), _mm512_or_si512(low, high));
				}
			}
}

/* Lane c of row r becomes lane r of row c. */
static inline void transpose16(__m512i v[16])
{
	__m512i t[16];
	for (int i = 0; i < 16; i += 2) {
		t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
		t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
	}
	for (int i = 0; i < 16; i += 4)
		for (int h = 0; h < 2; h++) {
			v[i + 2 * h] = _mm512_unpacklo_epi64(t[i + h], t[i + 2 + h]);
			v[i + 2 * h + 1] = _mm512_unpackhi_epi64(t[i + h], t[i + 2 + h]);
		}
	for (int i = 0; i < 4; i++)
		for (int h = 0; h < 2; h++) {
			t[8 * h + i] = _mm512_shuffle_i32x4(v[8 * h + i], v[8 * h + 4 + i], 0x88);
			t[8 * h + 4 + i] = _mm512_shuffle_i32x4(v[8 * h + i], v[8 * h + 4 + i], 0xdd);
		}
	for (int i = 0; i < 8; i++) {
		v[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
		v[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
	}
}

/* 32 numbers from s on, of which the first n are there, the others 0 */
static inline __m512i round_32(const float *s, int n)
{
	return (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(lanes(n - 16), s + 16), _mm512_maskz_loadu_ps(lanes(n), s));
}

/* ks == 1, strips of one: rows of pairs */
static void pack_pair_row(uint16_t *dst, const float *src, size_t js, int n, int kc)
{
	int even = cpu_even(kc);
	for (int j = 0; j < n; j++)
		for (int k = 0; k < even; k += 32)
			_mm512_mask_storeu_epi32(dst + (size_t)j * (size_t)even + k, lanes((even - k) / 2), round_32(src + (size_t)j * js + k, kc - k));
}

/* ks == 1: of 16 columns, 16 pairs each, turned */
static void pack_pair_columns(uint16_t *dst, int w, const float *src, size_t js, int n, int kc)
{
	enum { K = 2 * PAIR_COLUMNS, AHEAD = 4 * 16 };
	size_t even = (size_t)cpu_even(kc);
	for (int j = 0; j < n; j += w)
		for (int k = 0; k < kc; k += K)
			for (int i = 0; i < w; i += PAIR_COLUMNS) {
				__m512i v[16];
				for (int c = 0; c < 16; c++) {
					bool is = i + c < w && j + i + c < n;
					const float *s = src + (size_t)(is ? j + i + c : j) * js + (size_t)k;
					__builtin_prefetch(s + AHEAD);
					__builtin_prefetch(s + AHEAD + 16);
					v[c] = round_32(s, is ? kc - k : 0);
				}
				transpose16(v);
				for (int p = 0; p < 16 && k + 2 * p < kc; p++)
					_mm512_mask_storeu_epi32(dst + (size_t)j * even + (size_t)(k + 2 * p) * (size_t)w + 2 * i, lanes(w - i), v[p]);
			}
}

static void pack_pairs(uint16_t *dst, int w, const float *src, size_t ks, size_t js, int n, int kc)
{
	if (js == 1)
		pack_pair_rows(dst, w, src, ks, n, kc);
	else if (w == 1)
		pack_pair_row(dst, src, js, n, kc);
	else
		pack_pair_columns(dst, w, src, js, n, kc);
}

void cpu_kernels_add_pairs(struct cpu_kernels *k)
{
	k->mr = MR;
	k->dot_pairs = true;
	k->product_pairs = product_pairs;
	k->pack_pairs = pack_pairs;
}
#endif
