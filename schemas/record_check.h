/* The parts of record decoding that look at values; used by record.c only. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "schemas/record.h"
#include "schemas/safetensors.h"

int MUSTCHECK record_parse_meta(const struct st_file *f, struct trace_meta *ret, struct errtext *e);
/* feat as stored (BF16, I8, F8_E4M3, or U8 high bytes with lo) to bf16; scale [n/H_t] for the 8-bit kinds. */
void record_widen_features(uint16_t *out, const struct st_tensor *feat, const struct st_tensor *lo, const float *scale, size_t n,
			   size_t H_t);
int MUSTCHECK record_check_values(const struct trace_record *r, uint32_t vocab, struct errtext *e);
