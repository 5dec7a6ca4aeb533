/* tokenizer.json (a byte-level BPE) with what tokenizer_config.json adds.
 *
 * The vocabulary comes out as GGUF writes it, so that both give one fingerprint: ids 0 .. n-1 without a hole
 * (unused rows of the embedding are "[PAD<id>]", kind HF_UNUSED), added tokens HF_CONTROL when special or
 * spelt <|...|>, else HF_USER; merges as "left right"; the pre-tokenizer under llama.cpp's name.
 * What changes ids and is not computed (other models, normalisers but NFC, other splitting
 * expressions, added tokens that strip) is refused by name. Threads: read-only after parsing.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "daemon/base/err.h"

enum { HF_NORMAL = 1, HF_CONTROL = 3, HF_USER = 4, HF_UNUSED = 5 }; /* GGUF's numbers */

struct hf_token {
	const char *text; /* into the parsed tree */
	uint32_t len;
	int kind;
};

struct hf_tokenizer {
	struct hf_token *tokens; /* [n_tokens] */
	uint32_t n_tokens;
	const char **merges;     /* [n_merges], NUL-terminated "left right" */
	uint32_t n_merges;
	const char *pre;         /* "gpt-2", "smollm", "llama-bpe", "qwen2" */
	bool add_bos;            /* a raw prompt begins with bos_id */
	int64_t bos_id, eos_id;  /* -1 = none */
	char *chat_template;     /* from tokenizer_config.json, or NULL */
	void *owned[4];          /* the trees and texts the pointers go into */
};

/* config: tokenizer_config.json or NULL. vocab: rows of the embedding; bos_id, eos_id: config.json's, used where
 * tokenizer_config.json names none (-1 = none). */
int MUSTCHECK hf_tokenizer_parse(const char *json, size_t len, const char *config, size_t n_config, int vocab, int64_t bos_id, int64_t eos_id,
				 struct hf_tokenizer **ret, struct errtext *e);
struct hf_tokenizer *hf_tokenizer_free(struct hf_tokenizer *t);
