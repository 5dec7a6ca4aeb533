/* Byte-level BPE from the vocabulary and merges of a GGUF file or a Hugging Face folder,
 * equal to Hugging Face `tokenizers` on any text (pre-tokenizers gpt-2, smollm, llama-bpe, qwen2). Threads: read-only after load; any number may encode and decode. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/buf.h"

struct gguf;
struct hf_tokenizer;
struct tokenizer;
int MUSTCHECK tokenizer_load(const struct gguf *g, struct tokenizer **ret, struct errtext *e);
/* eog: ids that end a generation besides the tokenizer's own */
int MUSTCHECK tokenizer_from_hf(const struct hf_tokenizer *h, const int64_t *eog, int n_eog, struct tokenizer **ret, struct errtext *e);
struct tokenizer *tokenizer_free(struct tokenizer *t);
/* ids malloc'd. special: special tokens in the text are recognised (rendered
 * templates) or treated as plain text (user content). Invalid UTF-8: -EILSEQ.
 * most: -E2BIG as soon as there are more ids than that, so that a long text costs what a text of so many ids does; -EMSGSIZE: a word (what is merged
 * as one) of more than TOKENIZER_WORD bytes. SIZE_MAX: neither. */
enum { TOKENIZER_WORD = 256 << 10 };
int MUSTCHECK tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool special, size_t most, uint32_t **ret_ids, size_t *ret_n);
/* bytes of one token (may end inside a UTF-8 sequence); special tokens give "" */
const char *tokenizer_token(const struct tokenizer *t, uint32_t id, size_t *ret_len);
/* the token as the vocabulary writes it ("Ġthe"), NULL past its end */
const char *tokenizer_text(const struct tokenizer *t, uint32_t id);
size_t tokenizer_longest(const struct tokenizer *t); /* bytes of the longest token: n bytes give at least n / longest ids */
uint32_t tokenizer_vocab(const struct tokenizer *t);
bool tokenizer_is_eog(const struct tokenizer *t, uint32_t id); /* ends a generation */
int64_t tokenizer_special(const struct tokenizer *t, const char *text); /* id, or -1 */
/* SHA-256 over vocabulary, merges, special ids: goes into target_fp */
void tokenizer_sha(const struct tokenizer *t, char ret_hex[static 65]);
/* id that a raw text begins with (Llama 3), or -1 */
int64_t tokenizer_bos(const struct tokenizer *t);
