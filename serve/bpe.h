/* Byte-pair merges over one piece of text, equal to Hugging Face `tokenizers`:
 * the pair of lowest rank first, the leftmost of equals. Threads: read-only
 * after bpe_new; the scratch belongs to one caller.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "daemon/base/err.h"

struct bpe;
struct bpe_merge {
	uint32_t left, right, result; /* ids; rank = place in the list */
};
/* byte_id: id of each of the 256 bytes, or UINT32_MAX where the vocabulary has
 * none (such bytes vanish, as they do there). Both copied. */
int MUSTCHECK bpe_new(const uint32_t byte_id[256], const struct bpe_merge *merges, size_t n_merges, struct bpe **ret);
struct bpe *bpe_free(struct bpe *b);

struct bpe_scratch {
	struct bpe_symbol *sym;
	size_t cap;
	struct bpe_entry *heap;
	size_t heap_cap;
};
void bpe_scratch_done(struct bpe_scratch *s);

/* Writes at most n ids to out; *ret_n how many. -ENOMEM. Time O(n log n). */
int MUSTCHECK bpe_piece(const struct bpe *b, struct bpe_scratch *s, const uint8_t *p, size_t n, uint32_t *out, size_t *ret_n);
