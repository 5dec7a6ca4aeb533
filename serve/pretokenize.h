/* Splitting text into the pieces inside which merges may happen.
 *
 * Two steps, as Hugging Face `tokenizers` runs them for the smollm pre-tokenizer: every
 * numeric character is a piece of its own, then GPT-2's expression runs over what
 * lies between. Threads: pure functions.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Is this valid UTF-8 (no overlong forms, no surrogates, at most U+10FFFF)? */
bool utf8_valid(const uint8_t *p, size_t n);

/* End of the piece that starts at pos (pos < n); text is valid UTF-8.
 * split_digits: the Digits step is on (smollm) or not (plain GPT-2). */
size_t pretokenize_next(const uint8_t *p, size_t n, size_t pos, bool split_digits);
