/* Copying a block of a row-major matrix into strips of w columns, k-major.
 *
 * Two cases by which way is contiguous in the source. Along j (a strip's own
 * direction): a few rows at a time over all strips, so that a cache line is read
 * once. Along k: 4 x 4 and 2 x 4 transpositions in registers, a cache line of each column at a
 * time, the next one fetched meanwhile. Strips that lack columns are padded with 0.
 */
#include "kernels/cpu/cpu.h"
#include <string.h>

#pragma GCC diagnostic ignored "-Wpsabi"

typedef real v4 __attribute__((vector_size(4 * sizeof(real))));
typedef real v4u __attribute__((vector_size(4 * sizeof(real)), aligned(sizeof(real)), may_alias));
typedef real v2 __attribute__((vector_size(2 * sizeof(real))));
typedef real v2u __attribute__((vector_size(2 * sizeof(real)), aligned(sizeof(real)), may_alias));
#ifdef REDRAFT_DOUBLE
typedef int64_t i4 __attribute__((vector_size(32)));
#else
typedef int32_t i4 __attribute__((vector_size(16)));
#endif

enum { ROWS_AT_ONCE = 8, LINE = 16 };

static inline void copy_row(real *dst, const real *src, int w)
{
	int j = 0;
	for (; j + 4 <= w; j += 4)
		*(v4u *)(dst + j) = *(const v4u *)(src + j);
	for (; j + 2 <= w; j += 2)
		*(v2u *)(dst + j) = *(const v2u *)(src + j);
	for (; j < w; j++)
		dst[j] = src[j];
}

/* js == 1: src(k, j) = src[k*ks + j] */
static void pack_rows(real *dst, int w, const real *src, size_t ks, int n, int kc)
{
	for (int k0 = 0; k0 < kc; k0 += ROWS_AT_ONCE) {
		int k1 = cpu_min(kc, k0 + ROWS_AT_ONCE);
		for (int j = 0; j < n; j += w) {
			int have = cpu_min(w, n - j);
			real *d = dst + (size_t)j * (size_t)kc + (size_t)k0 * (size_t)w;
			for (int k = k0; k < k1; k++, d += w) {
				const real *s = src + (size_t)k * ks + (size_t)j;
				if (have == w) {
					copy_row(d, s, w);
					continue;
				}
				for (int i = 0; i < w; i++)
					d[i] = i < have ? s[i] : 0;
			}
		}
	}
}

static inline void transpose4(real *dst, int w, const real *src, size_t js)
{
	v4 a = *(const v4u *)src, b = *(const v4u *)(src + js), c = *(const v4u *)(src + 2 * js), d = *(const v4u *)(src + 3 * js);
	v4 ab0 = __builtin_shuffle(a, b, (i4){0, 4, 1, 5}), ab1 = __builtin_shuffle(a, b, (i4){2, 6, 3, 7});
	v4 cd0 = __builtin_shuffle(c, d, (i4){0, 4, 1, 5}), cd1 = __builtin_shuffle(c, d, (i4){2, 6, 3, 7});
	*(v4u *)dst = __builtin_shuffle(ab0, cd0, (i4){0, 1, 4, 5});
	*(v4u *)(dst + w) = __builtin_shuffle(ab0, cd0, (i4){2, 3, 6, 7});
	*(v4u *)(dst + 2 * w) = __builtin_shuffle(ab1, cd1, (i4){0, 1, 4, 5});
	*(v4u *)(dst + 3 * w) = __builtin_shuffle(ab1, cd1, (i4){2, 3, 6, 7});
}

static inline void transpose2(real *dst, int w, const real *src, size_t js)
{
	v4 a = *(const v4u *)src, b = *(const v4u *)(src + js);
	v4 ab0 = __builtin_shuffle(a, b, (i4){0, 4, 1, 5}), ab1 = __builtin_shuffle(a, b, (i4){2, 6, 3, 7});
	*(v2u *)dst = (v2){ab0[0], ab0[1]};
	*(v2u *)(dst + w) = (v2){ab0[2], ab0[3]};
	*(v2u *)(dst + 2 * w) = (v2){ab1[0], ab1[1]};
	*(v2u *)(dst + 3 * w) = (v2){ab1[2], ab1[3]};
}

/* Columns [j, have) of k rows [0, kc): what the transpositions leave, and the padding */
static void pack_rest(real *dst, int w, const real *src, size_t js, int have, int j, int kc)
{
	for (int k = 0; k < kc; k++)
		for (int i = j; i < w; i++)
			dst[(size_t)k * (size_t)w + (size_t)i] = i < have ? src[(size_t)i * js + (size_t)k] : 0;
}

/* ks == 1: src(k, j) = src[j*js + k] */
static void pack_columns(real *dst, int w, const real *src, size_t js, int n, int kc)
{
	for (int j0 = 0; j0 < n; j0 += w) {
		int have = cpu_min(w, n - j0);
		real *d = dst + (size_t)j0 * (size_t)kc;
		const real *s = src + (size_t)j0 * js;
		for (int k0 = 0, kn; k0 < kc; k0 += kn, d += (size_t)kn * (size_t)w, s += kn) {
			kn = kc - k0 < LINE ? kc - k0 : LINE;
			int j = 0, whole = kn / 4 * 4;
			for (; j + 4 <= have; j += 4) {
				for (int i = 0; i < 4; i++)
					__builtin_prefetch(s + (size_t)(j + i) * js + 4 * LINE);
				for (int k = 0; k < whole; k += 4)
					transpose4(d + (size_t)k * (size_t)w + j, w, s + (size_t)j * js + k, js);
			}
			for (; j + 2 <= have; j += 2) {
				__builtin_prefetch(s + (size_t)j * js + 4 * LINE);
				__builtin_prefetch(s + (size_t)(j + 1) * js + 4 * LINE);
				for (int k = 0; k < whole; k += 4)
					transpose2(d + (size_t)k * (size_t)w + j, w, s + (size_t)j * js + k, js);
			}
			pack_rest(d, w, s, js, have, j, whole);
			pack_rest(d + (size_t)whole * (size_t)w, w, s + whole, js, have, 0, kn - whole);
		}
	}
}

void cpu_pack(real *dst, int w, const real *src, size_t ks, size_t js, int n, int kc)
{
	if (js == 1)
		pack_rows(dst, w, src, ks, n, kc);
	else
		pack_columns(dst, w, src, js, n, kc);
}
