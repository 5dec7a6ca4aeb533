/* The tokenizer of a GGUF file: vocabulary, added tokens, byte alphabet.
 *
 * GPT-2's vocabularies are written in an alphabet in which each byte is one
 * printable character (a space is "Ġ"); every token is turned back into its bytes once,
 * at load. Text is cut at added tokens first (leftmost, longest), then into pieces
 * (pretokenize.c), then merged (bpe.c). Control tokens are found only when asked for,
 * so text that a user wrote can never become one; user-defined tokens always.
 */
#include "serve/tokenizer.h"
#include <stdlib.h>
#include <string.h>
#include "daemon/base/sha.h"
#include "schemas/gguf.h"
#include "serve/bpe.h"
#include "serve/pretokenize.h"

#define NO_ID UINT32_MAX

enum { MAX_VOCAB = 1 << 21, TYPE_NORMAL = 1, TYPE_CONTROL = 3, TYPE_USER = 4 };

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
	bool split_digits;
	size_t longest; /* bytes of the longest token */
	int64_t eos, bos;
	uint32_t eog[8];
	int n_eog;
	char sha[65];
};

static size_t hash_text(const char *p, size_t n)
{
	uint64_t h = 0xcbf29ce484222325u;

	for (size_t i = 0; i < n; i++)
		h = (h ^ (uint8_t)p[i]) * 0x100000001b3u;
	return (size_t)(h ^ h >> 31);
}

static uint32_t find_text(const struct tokenizer *t, const char *p, size_t n)
{
	for (size_t i = hash_text(p, n) & t->mask; t->index[i] != NO_ID; i = (i + 1) & t->mask) {
		const struct token *k = &t->tokens[t->index[i]];
		if (k->text_len == n && memcmp(k->text, p, n) == 0)
			return t->index[i];
	}
	return NO_ID;
}

/* The alphabet: printable Latin-1 bytes stand for themselves, the other 68 are
 * U+0100, U+0101, ... in order. */
static void byte_alphabet(uint32_t ret_code[256])
{
	uint32_t next = 0x100;

	for (uint32_t b = 0; b < 256; b++) {
		bool plain = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
		ret_code[b] = plain ? b : next++;
	}
}

static size_t alphabet_utf8(uint32_t code, char out[2])
{
	if (code < 0x80) {
		out[0] = (char)code;
		return 1;
	}
	out[0] = (char)(0xc0 | code >> 6);
	out[1] = (char)(0x80 | (code & 0x3f));
	return 2;
}

/* The bytes a token stands for. A text with a character outside the alphabet
 * (added tokens) is its own bytes. */
static int token_bytes(struct token *k, const int16_t byte_of[0x180])
{
	const uint8_t *p = (const uint8_t *)k->text;
	uint32_t n = 0;

	k->bytes = malloc((size_t)k->text_len + 1);
	if (!k->bytes)
		return -ENOMEM;
	for (uint32_t i = 0; i < k->text_len;) {
		uint32_t code = p[i], len = 1;
		if (p[i] >= 0xc0 && p[i] < 0xe0 && i + 1 < k->text_len) {
			code = (uint32_t)(p[i] & 0x1f) << 6 | (p[i + 1] & 0x3f);
			len = 2;
		}
		if (p[i] >= 0xe0 || code >= 0x180 || byte_of[code] < 0) {
			memcpy(k->bytes, k->text, k->text_len);
			k->bytes_len = k->text_len;
			return 0;
		}
		k->bytes[n++] = (char)byte_of[code];
		i += len;
	}
	k->bytes_len = n;
	return 0;
}

static int read_token(struct tokenizer *t, const struct gguf *g, uint32_t i, const int16_t byte_of[0x180], struct errtext *e)
{
	struct token *k = &t->tokens[i];
	const char *p;
	size_t n;
	int64_t type = TYPE_NORMAL;
	int r = gguf_array_str(g, "tokenizer.ggml.tokens", i, &p, &n);

	if (r < 0 || n > 1 << 20)
		return errtext_set(e, -EINVAL, "token %u of the model file is not a text", i);
	if (gguf_array_len(g, "tokenizer.ggml.token_type") > 0 && gguf_array_i64(g, "tokenizer.ggml.token_type", i, &type) < 0)
		return errtext_set(e, -EINVAL, "the model file's list of token types is shorter than its vocabulary");
	k->text = malloc(n + 1);
	if (!k->text)
		return -ENOMEM;
	memcpy(k->text, p, n);
	k->text[n] = 0;
	k->text_len = (uint32_t)n;
	k->type = (int)type;
	if ((r = token_bytes(k, byte_of)) < 0)
		return r;
	if (k->bytes_len > t->longest)
		t->longest = k->bytes_len;
	return 0;
}

static int read_vocab(struct tokenizer *t, const struct gguf *g, const uint32_t code[256], struct errtext *e)
{
	uint64_t n = gguf_array_len(g, "tokenizer.ggml.tokens");
	int16_t byte_of[0x180];
	size_t cap = 16;
	int r;

	if (n == 0 || n > MAX_VOCAB)
		return errtext_set(e, -EINVAL, "the model file holds no vocabulary of a sensible size (%llu tokens)", (unsigned long long)n);
	while (cap < 2 * n)
		cap *= 2;
	t->mask = cap - 1;
	t->tokens = calloc(n, sizeof *t->tokens);
	t->index = malloc(cap * sizeof *t->index);
	if (!t->tokens || !t->index)
		return -ENOMEM;
	memset(t->index, 0xff, cap * sizeof *t->index);
	memset(byte_of, 0xff, sizeof byte_of);
	for (int b = 0; b < 256; b++)
		byte_of[code[b]] = (int16_t)b;
	for (uint32_t i = 0; i < n; i++) {
		t->n_tokens = i + 1;
		if ((r = read_token(t, g, i, byte_of, e)) < 0)
			return r;
		size_t at = hash_text(t->tokens[i].text, t->tokens[i].text_len) & t->mask;
		while (t->index[at] != NO_ID)
			at = (at + 1) & t->mask;
		t->index[at] = i;
	}
	return 0;
}

/* "left right" -> ids of the two and of their union */
static int read_merge(const struct tokenizer *t, const struct gguf *g, uint64_t i, struct bpe_merge *ret, struct errtext *e)
{
	const char *p, *space;
	char both[1024];
	size_t n, left;

	if (gguf_array_str(g, "tokenizer.ggml.merges", i, &p, &n) < 0 || n < 3 || n > sizeof both)
		return errtext_set(e, -EINVAL, "merge %llu of the model file is not a text", (unsigned long long)i);
	space = memchr(p + 1, ' ', n - 1);
	if (!space)
		return errtext_set(e, -EINVAL, "merge %llu of the model file has no space", (unsigned long long)i);
	left = (size_t)(space - p);
	memcpy(both, p, left);
	memcpy(both + left, space + 1, n - left - 1);
	ret->left = find_text(t, p, left);
	ret->right = find_text(t, space + 1, n - left - 1);
	ret->result = find_text(t, both, n - 1);
	if (ret->left == NO_ID || ret->right == NO_ID || ret->result == NO_ID)
		return errtext_set(e, -EINVAL, "merge %llu of the model file names a token that is not in the vocabulary", (unsigned long long)i);
	return 0;
}

static int read_merges(struct tokenizer *t, const struct gguf *g, const uint32_t code[256], struct errtext *e)
{
	uint64_t n = gguf_array_len(g, "tokenizer.ggml.merges");
	struct bpe_merge *m;
	uint32_t byte_id[256];
	char one[2];
	int r = 0;

	if (n > 2 * (uint64_t)MAX_VOCAB)
		return errtext_set(e, -EINVAL, "the model file lists too many merges (%llu)", (unsigned long long)n);
	m = calloc(n + 1, sizeof *m);
	if (!m)
		return -ENOMEM;
	for (int b = 0; b < 256; b++)
		byte_id[b] = find_text(t, one, alphabet_utf8(code[b], one));
	for (uint64_t i = 0; i < n && r == 0; i++)
		r = read_merge(t, g, i, &m[i], e);
	if (r == 0)
		r = bpe_new(byte_id, m, n, &t->bpe);
	free(m);
	return r;
}

static int longer_first(const void *x, const void *y, void *arg)
{
	const struct tokenizer *t = arg;
	uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
	uint32_t la = t->tokens[a].text_len, lb = t->tokens[b].text_len;

	if (la != lb)
		return la > lb ? -1 : 1;
	return a < b ? -1 : a > b;
}

static int read_added(struct tokenizer *t)
{
	t->added = malloc(((size_t)t->n_tokens + 1) * sizeof *t->added);
	if (!t->added)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->n_tokens; i++) {
		const struct token *k = &t->tokens[i];
		if ((k->type == TYPE_CONTROL || k->type == TYPE_USER) && k->text_len > 0) {
			t->added[t->n_added++] = i;
			t->first_byte[(uint8_t)k->text[0]] = true;
		}
	}
	qsort_r(t->added, t->n_added, sizeof *t->added, longer_first, t);
	return 0;
}

static void add_eog(struct tokenizer *t, int64_t id)
{
	if (id >= 0 && id < t->n_tokens && !tokenizer_is_eog(t, (uint32_t)id) && t->n_eog < 8)
		t->eog[t->n_eog++] = (uint32_t)id;
}

static void read_ends(struct tokenizer *t, const struct gguf *g)
{
	static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
	static const char *const names[] = {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end|>"};
	uint64_t id;

	t->eos = t->bos = -1;
	for (size_t i = 0; i < 3; i++)
		if (gguf_u64(g, keys[i], &id) == 0 && id < t->n_tokens)
			add_eog(t, (int64_t)id);
	if (gguf_u64(g, keys[0], &id) == 0 && id < t->n_tokens)
		t->eos = (int64_t)id;
	if (gguf_u64(g, "tokenizer.ggml.bos_token_id", &id) == 0 && id < t->n_tokens)
		t->bos = (int64_t)id;
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		add_eog(t, tokenizer_special(t, names[i]));
}

static void hash_u32(struct sha *s, uint32_t v)
{
	uint8_t b[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};

	sha_update(s, b, 4);
}

/* Everything that decides which ids a text gives: each token as length, text, type;
 * each merge as length, text; the pre-tokenizer; end and begin ids. */
static int hash_all(struct tokenizer *t, const struct gguf *g, const char *pre, size_t n_pre)
{
	struct sha *s = sha_new();
	uint64_t n = gguf_array_len(g, "tokenizer.ggml.merges");

	if (!s)
		return -ENOMEM;
	hash_u32(s, t->n_tokens);
	for (uint32_t i = 0; i < t->n_tokens; i++) {
		hash_u32(s, t->tokens[i].text_len);
		sha_update(s, t->tokens[i].text, t->tokens[i].text_len);
		hash_u32(s, (uint32_t)t->tokens[i].type);
	}
	hash_u32(s, (uint32_t)n);
	for (uint64_t i = 0; i < n; i++) {
		const char *p = "";
		size_t len = 0;
		if (gguf_array_str(g, "tokenizer.ggml.merges", i, &p, &len) < 0)
			len = 0; /* cannot happen: read_merges has been through */
		hash_u32(s, (uint32_t)len);
		sha_update(s, p, len);
	}
	hash_u32(s, (uint32_t)n_pre);
	sha_update(s, pre, n_pre);
	hash_u32(s, (uint32_t)t->eos);
	hash_u32(s, (uint32_t)t->bos);
	sha_final_hex(s, t->sha);
	sha_free(s);
	return 0;
}

static int load(struct tokenizer *t, const struct gguf *g, struct errtext *e)
{
	const char *model, *pre = "gpt-2";
	size_t n, n_pre = 5;
	uint32_t code[256];
	int r;

	if (gguf_str(g, "tokenizer.ggml.model", &model, &n) < 0 || n != 4 || memcmp(model, "gpt2", 4) != 0)
		return errtext_set(e, -EINVAL, "the model file's tokenizer is not a byte-level BPE (tokenizer.ggml.model gpt2)");
	if (gguf_str(g, "tokenizer.ggml.pre", &pre, &n_pre) < 0) {
		pre = "gpt-2";
		n_pre = 5;
	}
	t->split_digits = n_pre == 6 && memcmp(pre, "smollm", 6) == 0;
	if (!t->split_digits && !(n_pre == 5 && memcmp(pre, "gpt-2", 5) == 0))
		return errtext_set(e, -EINVAL, "pre-tokenizer '%.*s' is not known; known are smollm and gpt-2", (int)(n_pre > 64 ? 64 : n_pre),
				   pre);
	byte_alphabet(code);
	if ((r = read_vocab(t, g, code, e)) < 0 || (r = read_merges(t, g, code, e)) < 0 || (r = read_added(t)) < 0)
		return r;
	read_ends(t, g);
	return hash_all(t, g, pre, n_pre);
}

int tokenizer_load(const struct gguf *g, struct tokenizer **ret, struct errtext *e)
{
	struct tokenizer *t = calloc(1, sizeof *t);
	int r = t ? load(t, g, e) : -ENOMEM;

	if (r < 0) {
		if (r == -ENOMEM)
			errtext_set(e, r, "out of memory while reading the tokenizer");
		tokenizer_free(t);
		return r;
	}
	*ret = t;
	return 0;
}

struct tokenizer *tokenizer_free(struct tokenizer *t)
{
	if (!t)
		return NULL;
	for (uint32_t i = 0; i < t->n_tokens; i++) {
		free(t->tokens[i].text);
		free(t->tokens[i].bytes);
	}
	free(t->tokens);
	free(t->index);
	free(t->added);
	bpe_free(t->bpe);
	free(t);
	return NULL;
}

/* The added token at p, longest first, or NULL. */
static const struct token *added_at(const struct tokenizer *t, const char *p, size_t n, bool special, uint32_t *ret_id)
{
	if (!t->first_byte[(uint8_t)*p])
		return NULL;
	for (size_t i = 0; i < t->n_added; i++) {
		const struct token *k = &t->tokens[t->added[i]];
		if (k->text_len <= n && (special || k->type == TYPE_USER) && memcmp(k->text, p, k->text_len) == 0) {
			*ret_id = t->added[i];
			return k;
		}
	}
	return NULL;
}

static int encode_plain(const struct tokenizer *t, struct bpe_scratch *s, const char *text, size_t len, uint32_t *ids, size_t *n)
{
	for (size_t at = 0; at < len;) {
		size_t end = pretokenize_next((const uint8_t *)text, len, at, t->split_digits), got = 0;
		int r = bpe_piece(t->bpe, s, (const uint8_t *)text + at, end - at, ids + *n, &got);
		if (r < 0)
			return r;
		*n += got;
		at = end;
	}
	return 0;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool special, uint32_t **ret_ids, size_t *ret_n)
{
	struct bpe_scratch s = {0};
	uint32_t *ids, id;
	size_t n = 0, from = 0;
	int r = 0;

	if (!utf8_valid((const uint8_t *)text, len))
		return -EILSEQ;
	ids = malloc((len + 1) * sizeof *ids); /* a token stands for one byte at least */
	if (!ids)
		return -ENOMEM;
	for (size_t at = 0; at < len && r == 0;) {
		const struct token *k = added_at(t, text + at, len - at, special, &id);
		if (!k) {
			at++;
			continue;
		}
		r = encode_plain(t, &s, text + from, at - from, ids, &n);
		ids[n++] = id;
		from = at += k->text_len;
	}
	if (r == 0)
		r = encode_plain(t, &s, text + from, len - from, ids, &n);
	bpe_scratch_done(&s);
	if (r < 0) {
		free(ids);
		return r;
	}
	*ret_ids = ids;
	*ret_n = n;
	return 0;
}

const char *tokenizer_token(const struct tokenizer *t, uint32_t id, size_t *ret_len)
{
	if (id >= t->n_tokens || t->tokens[id].type == TYPE_CONTROL) {
		*ret_len = 0;
		return "";
	}
	*ret_len = t->tokens[id].bytes_len;
	return t->tokens[id].bytes;
}

const char *tokenizer_text(const struct tokenizer *t, uint32_t id)
{
	return id < t->n_tokens ? t->tokens[id].text : NULL;
}

uint32_t tokenizer_vocab(const struct tokenizer *t)
{
	return t->n_tokens;
}

size_t tokenizer_longest(const struct tokenizer *t)
{
	return t->longest;
}

bool tokenizer_is_eog(const struct tokenizer *t, uint32_t id)
{
	for (int i = 0; i < t->n_eog; i++)
		if (t->eog[i] == id)
			return true;
	return false;
}

int64_t tokenizer_special(const struct tokenizer *t, const char *text)
{
	uint32_t id = find_text(t, text, strlen(text));

	return id != NO_ID && t->tokens[id].type == TYPE_CONTROL ? (int64_t)id : -1;
}

void tokenizer_sha(const struct tokenizer *t, char ret_hex[static 65])
{
	memcpy(ret_hex, t->sha, 65);
}
