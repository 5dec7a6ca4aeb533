/* Room-internal: what a tokenizer is made of, and what it is made from. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "serve/bpe.h"
#include "serve/pretokenize.h"
#include "serve/tokenizer.h"

#define NO_ID UINT32_MAX

enum { TYPE_NORMAL = 1, TYPE_CONTROL = 3, TYPE_USER = 4, MAX_EOG = 8 };

/* A vocabulary in a file of some kind. token and merge give the i-th text, not NUL-terminated, or an error. */
struct vocab {
	const void *ctx;
	uint64_t n_tokens, n_merges;
	int (*token)(const void *ctx, uint64_t i, const char **ret, size_t *ret_len, int64_t *ret_type);
	int (*merge)(const void *ctx, uint64_t i, const char **ret, size_t *ret_len);
	const char *pre; /* name of the pre-tokenizer */
	size_t n_pre;
	int64_t bos, eos; /* -1 = none */
	bool add_bos;
	int64_t eog[MAX_EOG]; /* more tokens that end a generation */
	int n_eog;
};

int MUSTCHECK tokenizer_build(const struct vocab *v, struct tokenizer **ret, struct errtext *e);

struct token {
	char *text; /* owned; as in the file, NUL-terminated */
	char *bytes; /* owned; what it stands for */
	uint32_t text_len, bytes_len;
	int type;
};

struct tokenizer {
	struct token *tokens;
	uint32_t n_tokens;
	uint32_t *index; /* open hash of ids by text */
	size_t mask;
	struct bpe *bpe;
	uint32_t *added; /* control and user-defined tokens, longest first */
	size_t n_added;
	bool first_byte[256]; /* some added token starts so */
	enum pre pre;
	bool add_bos;
	uint32_t *whole; /* Llama 3: open hash of ids by bytes, for pieces that are a token as they stand; NULL else */
	size_t longest; /* bytes of the longest token */
	int64_t eos, bos;
	uint32_t eog[MAX_EOG];
	int n_eog;
	char sha[65];
};

/* Id of the token with this text, or NO_ID. */
uint32_t tokenizer_find(const struct tokenizer *t, const char *p, size_t n);
/* Id of the ordinary token that stands for these bytes, or NO_ID. t->whole must be there. */
uint32_t tokenizer_find_whole(const struct tokenizer *t, const char *p, size_t n);
