/* GGUF block formats to bf16.
 *
 *   Q8_0  f16 d, 32 x i8            value = d q
 *   Q4_0  f16 d, 16 bytes           value = d (q - 8)
 *   Q4_1  f16 d, f16 m, 16 bytes    value = d q + m
 *   Q5_0  f16 d, 32 bits, 16 bytes  value = d (q - 16)
 *   Q5_1  f16 d, f16 m, the same    value = d q + m
 *   Q2_K ... Q6_K                   gguf_dequant_k.c
 *
 * In the 4-bit kinds byte j holds value j in its low and value j + 16 in its high
 * half; in the 5-bit kinds bit j of the 32 is the fifth of value j. A 4-bit block has 16 possible values, so these are rounded to bf16 once and
 * looked up 32 times. d q is exact in f32; the one sum rounds to f32 first, so
 * the result equals that of any reference that dequantises to f32.
 */
#include "schemas/gguf_file.h"

#include <string.h>
#include "schemas/draft_layout.h"
#include "schemas/record.h"

enum { BLOCK = 32 };

static const struct {
	uint16_t values, bytes; /* of a block */
} kinds[] = {
	[GT_F32] = {1, 4},      [GT_F16] = {1, 2},      [GT_BF16] = {1, 2},     [GT_Q4_0] = {BLOCK, 18}, [GT_Q4_1] = {BLOCK, 20},
	[GT_Q5_0] = {BLOCK, 22}, [GT_Q5_1] = {BLOCK, 24}, [GT_Q8_0] = {BLOCK, 34}, [GT_Q2_K] = {256, 84},  [GT_Q3_K] = {256, 110},
	[GT_Q4_K] = {256, 144}, [GT_Q5_K] = {256, 176}, [GT_Q6_K] = {256, 210}, [GT_I64] = {1, 8},
};

size_t gguf_block_values(uint32_t type)
{
	return type < sizeof kinds / sizeof kinds[0] ? kinds[type].values : 0;
}

size_t gguf_block_bytes(uint32_t type)
{
	return type < sizeof kinds / sizeof kinds[0] ? kinds[type].bytes : 0;
}

const char *gguf_type_name(uint32_t type)
{
	static const char *const names[] = {
		[0] = "F32",      [1] = "F16",     [2] = "Q4_0",     [3] = "Q4_1",   [6] = "Q5_0",    [7] = "Q5_1",   [8] = "Q8_0",
		[9] = "Q8_1",     [10] = "Q2_K",   [11] = "Q3_K",    [12] = "Q4_K",  [13] = "Q5_K",   [14] = "Q6_K",  [15] = "Q8_K",
		[16] = "IQ2_XXS", [17] = "IQ2_XS", [18] = "IQ3_XXS", [19] = "IQ1_S", [20] = "IQ4_NL", [21] = "IQ3_S", [22] = "IQ2_S",
		[23] = "IQ4_XS",  [24] = "I8",     [25] = "I16",     [26] = "I32",   [27] = "I64",    [28] = "F64",   [29] = "IQ1_M",
		[30] = "BF16",    [34] = "TQ1_0",  [35] = "TQ2_0",   [39] = "MXFP4",
	};

	return type < sizeof names / sizeof names[0] && names[type] ? names[type] : "?";
}

static float half_at(const uint8_t *p)
{
	uint16_t h;

	memcpy(&h, p, 2);
	return f16_to_f32(h);
}

static void expand_nibbles(const uint8_t *q, const uint16_t table[static 16], uint16_t *dst)
{
	for (int j = 0; j < BLOCK / 2; j++) {
		dst[j] = table[q[j] & 15];
		dst[j + BLOCK / 2] = table[q[j] >> 4];
	}
}

static void expand_q4(const uint8_t *p, size_t n, uint16_t *dst, bool has_min)
{
	uint16_t table[16];

	for (size_t b = 0; b < n / BLOCK; b++) {
		float d = half_at(p), m = has_min ? half_at(p + 2) : 0;
		for (int q = 0; q < 16; q++) {
			float v = d * (float)(has_min ? q : q - 8);
			table[q] = draft_to_bf16(has_min ? v + m : v);
		}
		expand_nibbles(p + (has_min ? 4 : 2), table, dst + b * BLOCK);
		p += has_min ? 20 : 18;
	}
}

static void expand_q8(const uint8_t *p, size_t n, uint16_t *dst)
{
	for (size_t b = 0; b < n / BLOCK; b++, p += 34) {
		float d = half_at(p);
		for (int j = 0; j < BLOCK; j++)
			dst[b * BLOCK + (size_t)j] = draft_to_bf16(d * (float)(int8_t)p[2 + j]);
	}
}

static void expand_q5(const uint8_t *p, size_t n, uint16_t *dst, bool has_min)
{
	for (size_t b = 0; b < n / BLOCK; b++, p += has_min ? 24 : 22, dst += BLOCK) {
		const uint8_t *high = p + (has_min ? 4 : 2), *low = high + 4;
		float d = half_at(p), m = has_min ? half_at(p + 2) : 0;
		for (int j = 0; j < BLOCK; j++) {
			int q = (low[j % 16] >> (j / 16 * 4) & 15) | (high[j / 8] >> (j % 8) & 1) << 4;
			float v = d * (float)(has_min ? q : q - 16);
			dst[j] = draft_to_bf16(has_min ? v + m : v);
		}
	}
}

void gguf_expand(uint32_t type, const uint8_t *src, size_t n, uint16_t *dst)
{
	switch (type) {
	case GT_F32:
		for (size_t i = 0; i < n; i++) {
			float v;
			memcpy(&v, src + 4 * i, 4);
			dst[i] = draft_to_bf16(v);
		}
		break;
	case GT_F16:
		for (size_t i = 0; i < n; i++)
			dst[i] = draft_to_bf16(half_at(src + 2 * i));
		break;
	case GT_BF16:
		memcpy(dst, src, 2 * n);
		break;
	case GT_Q4_0:
		expand_q4(src, n, dst, false);
		break;
	case GT_Q4_1:
		expand_q4(src, n, dst, true);
		break;
	case GT_Q5_0:
		expand_q5(src, n, dst, false);
		break;
	case GT_Q5_1:
		expand_q5(src, n, dst, true);
		break;
	case GT_Q8_0:
		expand_q8(src, n, dst);
		break;
	default:
		gguf_expand_k(type, src, n, dst);
		break;
	}
}
