/* Splitting text into the pieces inside which merges may happen, as Hugging Face `tokenizers` does for the
 * pre-tokenizers named after GPT-2, SmolLM, Llama 3 and Qwen2. Threads: pure functions.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Is this valid UTF-8 (no overlong forms, no surrogates, at most U+10FFFF)? */
bool utf8_valid(const uint8_t *p, size_t n);

enum pre { PRE_GPT2, PRE_SMOLLM /* digits one by one first */, PRE_LLAMA3, PRE_QWEN2, PRE_N };
const char *pre_name(enum pre p); /* as GGUF has it in tokenizer.ggml.pre: "gpt-2", "smollm", "llama-bpe", "qwen2" */

/* End of the piece that starts at pos (pos < n); text is valid UTF-8. */
size_t pretokenize_next(enum pre pre, const uint8_t *p, size_t n, size_t pos);
