/* GGUF block formats to bf16.
 *
 *   Q8_0  f16 d, 32 x i8            value = d q
 *   Q4_0  f16 d, 16 bytes           value = d (q - 8)
 *   Q4_1  f16 d, f16 m, 16 bytes    value = d q + m
 *
 * In the 4-bit kinds byte j holds value j in its low and value j + 16 in its high
 * half. A block has 16 possible values, so these are rounded to bf16 once and
 * looked up 32 times. d q is exact in f32; the one sum rounds to f32 first, so
 * the result equals that of any reference that dequantises to f32.
 */
#include "schemas/gguf_file.h"

#include <string.h>
#include "schemas/draft_layout.h"
#include "schemas/record.h"

enum { BLOCK = 32 };

size_t gguf_block_values(uint32_t type)
{
	switch (type) {
	case GT_F32:
	case GT_F16:
	case GT_BF16:
		return 1;
	case GT_Q4_0:
	case GT_Q4_1:
	case GT_Q8_0:
		return BLOCK;
	}
	return 0;
}

size_t gguf_block_bytes(uint32_t type)
{
	switch (type) {
	case GT_F32:
		return 4;
	case GT_F16:
	case GT_BF16:
		return 2;
	case GT_Q4_0:
		return 18;
	case GT_Q4_1:
		return 20;
	case GT_Q8_0:
		return 34;
	}
	return 0;
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
	case GT_Q8_0:
		expand_q8(src, n, dst);
		break;
	}
}
