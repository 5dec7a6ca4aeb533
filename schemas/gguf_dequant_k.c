/* GGUF's "K" formats: blocks of 256 values in 16 groups of 16, value = dl q - ml.
 *
 * Each kind differs only in how a block gives its quants q and the scale dl and
 * offset ml of a group (kinds with groups of 32 give two groups the same pair):
 *
 *   Q2_K  84 B  16 x (4-bit scale, 4-bit min), 64 x four 2-bit q, f16 d, f16 dmin
 *   Q3_K 110 B  32 high bits, 64 x four 2-bit q, 16 x 6-bit scale - 32, f16 d
 *   Q4_K 144 B  f16 d, f16 dmin, 8 x (6-bit scale, 6-bit min), 128 x two 4-bit q
 *   Q5_K 176 B  as Q4_K with 32 bytes of fifth bits before the q
 *   Q6_K 210 B  128 low nibbles, 64 high pairs, 16 x i8 scale, f16 d; q - 32
 *
 * Every product and the difference round to f32 in this order, so that the result equals
 * that of a reference that dequantises to f32.
 */
#include "schemas/gguf_file.h"

#include <string.h>
#include "schemas/draft_layout.h"
#include "schemas/record.h"

enum { VALUES = 256, GROUP = 16, GROUPS = VALUES / GROUP };

struct block {
	int8_t q[VALUES];
	float dl[GROUPS], ml[GROUPS];
};

static float half_at(const uint8_t *p)
{
	return f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

static void unpack_q2(const uint8_t *p, struct block *b)
{
	float d = half_at(p + 80), dmin = half_at(p + 82);

	for (int i = 0; i < GROUPS; i++) {
		b->dl[i] = d * (float)(p[i] & 15);
		b->ml[i] = dmin * (float)(p[i] >> 4);
	}
	for (int i = 0; i < VALUES; i++)
		b->q[i] = (int8_t)(p[16 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3);
}

static void unpack_q3(const uint8_t *p, struct block *b)
{
	const uint8_t *high = p, *qs = p + 32, *sc = p + 96;
	float d = half_at(p + 108);

	for (int i = 0; i < GROUPS; i++) {
		int low = sc[i % 8] >> (i / 8 * 4) & 15, top = sc[8 + i % 4] >> (i / 4 * 2) & 3;
		b->dl[i] = d * (float)((low | top << 4) - 32);
		b->ml[i] = 0;
	}
	for (int i = 0; i < VALUES; i++) {
		int q = qs[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
		b->q[i] = (int8_t)(q - (high[i % 32] >> (i / 32) & 1 ? 0 : 4));
	}
}

/* The eight (scale, min) pairs of Q4_K and Q5_K: 6 bits each in 12 bytes. */
static void scales_45(const uint8_t *p, struct block *b)
{
	const uint8_t *s = p + 4;
	float d = half_at(p), dmin = half_at(p + 2);

	for (int i = 0; i < 8; i++) {
		int j = i % 4;
		int scale = i < 4 ? s[j] & 63 : (s[8 + j] & 15) | (s[j] >> 6) << 4;
		int min = i < 4 ? s[4 + j] & 63 : s[8 + j] >> 4 | (s[4 + j] >> 6) << 4;
		b->dl[2 * i] = b->dl[2 * i + 1] = d * (float)scale;
		b->ml[2 * i] = b->ml[2 * i + 1] = dmin * (float)min;
	}
}

static void unpack_q45(const uint8_t *p, struct block *b, bool fifth)
{
	const uint8_t *high = p + 16, *qs = p + (fifth ? 48 : 16);

	scales_45(p, b);
	for (int i = 0; i < VALUES; i++) {
		int q = qs[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
		if (fifth)
			q |= (high[i % 32] >> (i / 32) & 1) << 4;
		b->q[i] = (int8_t)q;
	}
}

static void unpack_q6(const uint8_t *p, struct block *b)
{
	const uint8_t *low = p, *high = p + 128, *sc = p + 192;
	float d = half_at(p + 208);

	for (int i = 0; i < GROUPS; i++) {
		b->dl[i] = d * (float)(int8_t)sc[i];
		b->ml[i] = 0;
	}
	for (int i = 0; i < VALUES; i++) {
		int l = low[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15;
		int h = high[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
		b->q[i] = (int8_t)((l | h << 4) - 32);
	}
}

void gguf_expand_k(uint32_t type, const uint8_t *src, size_t n, uint16_t *dst)
{
	struct block b;

	for (size_t k = 0; k < n / VALUES; k++, src += gguf_block_bytes(type), dst += VALUES) {
		switch (type) {
		case GT_Q2_K:
			unpack_q2(src, &b);
			break;
		case GT_Q3_K:
			unpack_q3(src, &b);
			break;
		case GT_Q4_K:
		case GT_Q5_K:
			unpack_q45(src, &b, type == GT_Q5_K);
			break;
		default:
			unpack_q6(src, &b);
			break;
		}
		for (int i = 0; i < VALUES; i++)
			dst[i] = draft_to_bf16(b.dl[i / GROUP] * (float)b.q[i] - b.ml[i / GROUP]);
	}
}
