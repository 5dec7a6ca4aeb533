/* Tensors of an EAGLE-3 draft checkpoint (eagle3.md §1.1): the table that the
 * reader and the writer share. Room-internal. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "schemas/draft_config.h"

enum { DRAFT_MAX_TENSORS = 20 };

struct draft_slot {
	const char *name; /* canonical */
	int rows, cols; /* vectors: rows 1 */
};

/* The draft's own float tensors for this config, in file order; returns how many. */
int draft_layout(const struct draft_config *c, struct draft_slot ret[static DRAFT_MAX_TENSORS]);
/* Canonical form of a name found in a file: prefixes and aliases resolved, into ret.
 * 0; 1 = to be dropped silently; -ENAMETOOLONG. */
int draft_canonical_name(const char *name, char *ret, size_t size);
/* d2t's law: used = i + d2t[i] strictly ascending and below vocab. */
int MUSTCHECK draft_check_d2t(const int64_t *d2t, int n, int vocab, struct errtext *e);
/* config.json text with a given torch_dtype */
int MUSTCHECK draft_config_text(const struct draft_config *c, const char *torch_dtype, char **ret, struct errtext *e);

static inline uint16_t draft_to_bf16(float f) /* nearest even */
{
	union {
		float f;
		uint32_t u;
	} x = {.f = f};

	if ((x.u & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)(x.u >> 16 | 0x40u);
	return (uint16_t)((x.u + 0x7fffu + (x.u >> 16 & 1u)) >> 16);
}
