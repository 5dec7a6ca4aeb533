/* Features on their way into a record and out of it (schemas/record_payload.h).
 *
 * A bf16's high byte is its sign and most of its exponent, and a model's features use few of them: zstd's
 * entropy coder takes that plane to 40 % of its size. There is nothing for it to match, and looking costs: of the
 * levels 1 is the smallest and the fastest, and with the shortest table and the longest match as small in a third of
 * the time (3.6 against 10.7 us a row of 576, 29.5 % against 29.7 % saved). The low byte is mantissa and does not shrink.
 * 8-bit kinds: code = round(x / scale), ties to even, scale = the largest of the row's boundary over the largest code.
 */
#include "schemas/record_payload.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>
#include "schemas/draft_layout.h"

static float from_bf16(uint16_t h)
{
	union {
		uint32_t u;
		float f;
	} x = {.u = (uint32_t)h << 16};

	return x.f;
}

/* ---- e4m3: 1-4-3, bias 7, no infinity, 0x7f is NaN, 448 the largest ---- */

static float e4m3(uint8_t b)
{
	int exp = b >> 3 & 15, man = b & 7;
	float v = exp ? ldexpf((float)(8 + man), exp - 10) : ldexpf((float)man, -9);

	if ((b & 0x7f) == 0x7f)
		v = NAN;
	return b & 0x80 ? -v : v;
}

static uint8_t to_e4m3(float f)
{
	union {
		float f;
		uint32_t u;
	} x = {.f = f};
	uint32_t sign = x.u >> 24 & 0x80u, a = x.u & 0x7fffffffu, code;

	if (a > 0x7f800000u)
		return 0x7f;
	if (a < 0x3c800000u) { /* below 2^-6: units of 2^-9; adding 2^14 leaves them in the low bits, rounded to even */
		x.u = a;
		x.f += 0x1p14f;
		return (uint8_t)(sign | (x.u - 0x46800000u));
	}
	code = ((a + 0x7ffffu + (a >> 20 & 1)) >> 20) - (120u << 3);
	return (uint8_t)(sign | (code > 0x7e ? 0x7e : code));
}

static float largest(const uint16_t *bf16, size_t n)
{
	uint32_t top = 0; /* of bf16 without sign, order is that of the bits */

	for (size_t i = 0; i < n; i++)
		top = (bf16[i] & 0x7fffu) > top ? bf16[i] & 0x7fffu : top;
	return from_bf16((uint16_t)top);
}

void record_code_rows(enum record_payload kind, const uint16_t *bf16, size_t n, size_t H, uint8_t *code, float *scale)
{
	bool fp8 = kind == RECORD_FP8;

	for (size_t row = 0; row < n / H; row++) {
		const uint16_t *x = bf16 + row * H;
		uint8_t *c = code + row * H;
		float top = largest(x, H), s = top > 0 ? top / (fp8 ? 448.0f : 127.0f) : 1;
		if (!isfinite(top))
			s = NAN; /* what is not finite stays so, and the reader refuses it as it does in bf16 */
		else if (s < 0x1p-126f)
			s = 0x1p-126f; /* its reciprocal must be finite */
		float inverse = 1 / s;
		scale[row] = s;
		for (size_t i = 0; i < H && fp8; i++)
			c[i] = to_e4m3(from_bf16(x[i]) * inverse);
		for (size_t i = 0; i < H && !fp8; i++) {
			union {
				float f;
				uint32_t u;
			} v = {.f = from_bf16(x[i]) * inverse + 0x1.8p23f}; /* the integer, ties to even, is in the low bits */
			c[i] = (uint8_t)v.u;
		}
	}
}

/* Bytes written, 0 when it could not be done. */
static size_t squeeze(uint8_t *out, size_t room, const uint8_t *in, size_t n)
{
	ZSTD_CCtx *c = ZSTD_createCCtx();
	size_t r = 0;

	if (c && !ZSTD_isError(ZSTD_CCtx_setParameter(c, ZSTD_c_compressionLevel, 1)) && !ZSTD_isError(ZSTD_CCtx_setParameter(c, ZSTD_c_minMatch, 7)) &&
	    !ZSTD_isError(ZSTD_CCtx_setParameter(c, ZSTD_c_hashLog, 6)))
		r = ZSTD_compress2(c, out, room, in, n);
	(void)ZSTD_freeCCtx(c);
	return ZSTD_isError(r) ? 0 : r;
}

int record_pack_features(enum record_payload kind, const uint16_t *bf16, size_t n, size_t H_t, struct packed_features *ret)
{
	struct packed_features p = {.kind = kind};
	size_t room = kind == RECORD_PLANES ? n + ZSTD_compressBound(n) : n / H_t * sizeof(float);
	uint8_t *m;

	if (kind == RECORD_BF16) {
		*ret = p;
		return 0;
	}
	m = p.owned = malloc(n + room);
	if (!m)
		return -ENOMEM;
	if (kind == RECORD_PLANES) {
		uint8_t *lo = m, *hi = m + n, *zip = hi + n;
		for (size_t i = 0; i < n; i++) {
			lo[i] = (uint8_t)bf16[i];
			hi[i] = (uint8_t)(bf16[i] >> 8);
		}
		p.code = lo;
		p.zstd = zip;
		p.zstd_bytes = squeeze(zip, ZSTD_compressBound(n), hi, n);
		if (!p.zstd_bytes || p.zstd_bytes >= n) { /* no memory, or noise */
			free(m);
			p = (struct packed_features){.kind = RECORD_BF16};
		}
	} else {
		float *scale = (float *)(void *)m; /* first, so that it is aligned */
		p.scale = scale;
		p.code = m + room;
		record_code_rows(kind, bf16, n, H_t, m + room, scale);
	}
	*ret = p;
	return 0;
}

static int widen_planes(uint16_t *out, const uint8_t *hi, size_t hi_bytes, const uint8_t *lo, bool zipped, size_t n)
{
	if (zipped) { /* into the upper half of out: from there the bytes spread downwards without meeting each other */
		uint8_t *room = (uint8_t *)out + n;
		if (ZSTD_getFrameContentSize(hi, hi_bytes) != n || ZSTD_decompress(room, n, hi, hi_bytes) != n)
			return -EINVAL;
		hi = room;
	}
	for (size_t i = 0; i < n; i++)
		out[i] = (uint16_t)(hi[i] << 8 | lo[i]);
	return 0;
}

int record_widen_features(uint16_t *out, const struct st_tensor *feat, const struct st_tensor *lo, const float *scale, bool zipped, size_t n,
			  size_t H_t)
{
	float value[256];

	if (feat->dtype == ST_BF16) {
		memcpy(out, feat->data, n * 2);
		return 0;
	}
	if (feat->dtype == ST_U8)
		return widen_planes(out, feat->data, feat->bytes, lo->data, zipped, n);
	for (int i = 0; i < 256; i++)
		value[i] = feat->dtype == ST_I8 ? (float)(int8_t)i : e4m3((uint8_t)i);
	for (size_t row = 0; row < n / H_t; row++)
		for (size_t i = row * H_t; i < (row + 1) * H_t; i++)
			out[i] = draft_to_bf16(value[feat->data[i]] * scale[row]);
	return 0;
}
