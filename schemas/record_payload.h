/* How features travel in a record: bf16, bf16 in byte planes with the high one compressed (lossless), or 8 bits with
 * a scale a row and boundary. Used by record.c; the kinds are record.h's enum record_payload. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "schemas/record.h"
#include "schemas/safetensors.h"

/* Features of n values, H_t to a scale, as they go into the record. One allocation, owned. */
struct packed_features {
	enum record_payload kind; /* BF16 when planes would not have been smaller: then nothing else is set */
	const uint8_t *code;      /* 8-bit kinds: [n]; planes: the low bytes */
	const float *scale;       /* 8-bit kinds: [n/H_t] */
	const uint8_t *zstd;      /* planes: the high bytes, one zstd frame */
	size_t zstd_bytes;
	void *owned;
};
/* Of an 8-bit kind alone: code [n], scale [n/H_t]. Row by row, so rows may come in any portions. */
void record_code_rows(enum record_payload kind, const uint16_t *bf16, size_t n, size_t H_t, uint8_t *code, float *scale);
int MUSTCHECK record_pack_features(enum record_payload kind, const uint16_t *bf16, size_t n, size_t H_t, struct packed_features *ret);

/* As stored to bf16 [n]. feat: BF16, I8 or F8_E4M3 with scale [n/H_t], or U8: the high bytes with lo, compressed when
 * zipped (then feat's shape is its own). -EINVAL: the compressed bytes are not n bytes' worth. */
int MUSTCHECK record_widen_features(uint16_t *out, const struct st_tensor *feat, const struct st_tensor *lo, const float *scale, bool zipped, size_t n,
				    size_t H_t);
