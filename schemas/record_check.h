/* The parts of record decoding that look at values; used by record.c only. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "schemas/record.h"
#include "schemas/safetensors.h"

int MUSTCHECK record_parse_meta(const struct st_file *f, struct trace_meta *ret, struct errtext *e);
int MUSTCHECK record_check_values(const struct trace_record *r, uint32_t vocab, struct errtext *e);
