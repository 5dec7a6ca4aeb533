/* Making a tokenizer: vocabulary, byte alphabet, merges, added tokens, the hash over all.
 *
 * GPT-2's vocabularies are written in an alphabet in which each byte is one
 * printable character (a space is "Ġ"); every token is turned back into its bytes once,
 * here.
 */
#include <stdlib.h>
#include <string.h>
#include "daemon/base/fnv.h"
#include "daemon/base/sha.h"
#include "serve/tokenizer_build.h"

enum { MAX_VOCAB = 1 << 21 };

static size_t hash_text(const char *p, size_t n)
{
	uint64_t h = fnv1a(FNV1A, p, n);

	return (size_t)(h ^ h >> 31);
}

uint32_t tokenizer_find(const struct tokenizer *t, const char *p, size_t n)
{
	for (size_t i = hash_text(p, n) & t->mask; t->index[i] != NO_ID; i = (i + 1) & t->mask) {
		const struct token *k = &t->tokens[t->index[i]];
		if (k->text_len == n && memcmp(k->text, p, n) == 0)
			return t->index[i];
	}
	return NO_ID;
}

uint32_t tokenizer_find_whole(const struct tokenizer *t, const char *p, size_t n)
{
	for (size_t i = hash_text(p, n) & t->mask; t->whole[i] != NO_ID; i = (i + 1) & t->mask) {
		const struct token *k = &t->tokens[t->whole[i]];
		if (k->bytes_len == n && memcmp(k->bytes, p, n) == 0)
			return t->whole[i];
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

static int read_token(struct tokenizer *t, const struct vocab *v, uint32_t i, const int16_t byte_of[0x180], struct errtext *e)
{
	struct token *k = &t->tokens[i];
	const char *p;
	size_t n;
	int64_t type = TYPE_NORMAL;
	int r = v->token(v->ctx, i, &p, &n, &type);

	if (r < 0 || n > 1 << 20)
		return errtext_set(e, -EINVAL, "token %u of the model's vocabulary is not a text with a type", i);
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

static void index_put(uint32_t *index, size_t mask, const char *p, size_t n, uint32_t id)
{
	size_t at = hash_text(p, n) & mask;

	while (index[at] != NO_ID)
		at = (at + 1) & mask;
	index[at] = id;
}

static int read_vocab(struct tokenizer *t, const struct vocab *v, const uint32_t code[256], struct errtext *e)
{
	int16_t byte_of[0x180];
	size_t cap = 16;
	int r;

	if (v->n_tokens == 0 || v->n_tokens > MAX_VOCAB)
		return errtext_set(e, -EINVAL, "the model holds no vocabulary of a sensible size (%llu tokens)", (unsigned long long)v->n_tokens);
	while (cap < 2 * v->n_tokens)
		cap *= 2;
	t->mask = cap - 1;
	t->tokens = calloc(v->n_tokens, sizeof *t->tokens);
	t->index = malloc(cap * sizeof *t->index);
	t->whole = t->pre == PRE_LLAMA3 ? malloc(cap * sizeof *t->whole) : NULL;
	if (!t->tokens || !t->index || (t->pre == PRE_LLAMA3 && !t->whole))
		return -ENOMEM;
	memset(t->index, 0xff, cap * sizeof *t->index);
	if (t->whole)
		memset(t->whole, 0xff, cap * sizeof *t->whole);
	memset(byte_of, 0xff, sizeof byte_of);
	for (int b = 0; b < 256; b++)
		byte_of[code[b]] = (int16_t)b;
	for (uint32_t i = 0; i < v->n_tokens; i++) {
		const struct token *k = &t->tokens[i];
		t->n_tokens = i + 1;
		if ((r = read_token(t, v, i, byte_of, e)) < 0)
			return r;
		index_put(t->index, t->mask, k->text, k->text_len, i);
		if (t->whole && k->type == TYPE_NORMAL)
			index_put(t->whole, t->mask, k->bytes, k->bytes_len, i);
	}
	return 0;
}

/* "left right" -> ids of the two and of their union */
static int read_merge(const struct tokenizer *t, const struct vocab *v, uint64_t i, struct bpe_merge *ret, struct errtext *e)
{
	const char *p, *space;
	char both[1024];
	size_t n, left;

	if (v->merge(v->ctx, i, &p, &n) < 0 || n < 3 || n > sizeof both)
		return errtext_set(e, -EINVAL, "merge %llu of the model is not a text", (unsigned long long)i);
	space = memchr(p + 1, ' ', n - 1);
	if (!space)
		return errtext_set(e, -EINVAL, "merge %llu of the model has no space", (unsigned long long)i);
	left = (size_t)(space - p);
	memcpy(both, p, left);
	memcpy(both + left, space + 1, n - left - 1);
	ret->left = tokenizer_find(t, p, left);
	ret->right = tokenizer_find(t, space + 1, n - left - 1);
	ret->result = tokenizer_find(t, both, n - 1);
	if (ret->left == NO_ID || ret->right == NO_ID || ret->result == NO_ID)
		return errtext_set(e, -EINVAL, "merge %llu of the model names a token that is not in the vocabulary", (unsigned long long)i);
	return 0;
}

static int read_merges(struct tokenizer *t, const struct vocab *v, const uint32_t code[256], struct errtext *e)
{
	uint64_t n = v->n_merges;
	struct bpe_merge *m;
	uint32_t byte_id[256];
	char one[2];
	int r = 0;

	if (n > 2 * (uint64_t)MAX_VOCAB)
		return errtext_set(e, -EINVAL, "the model lists too many merges (%llu)", (unsigned long long)n);
	m = calloc(n + 1, sizeof *m);
	if (!m)
		return -ENOMEM;
	for (int b = 0; b < 256; b++)
		byte_id[b] = tokenizer_find(t, one, alphabet_utf8(code[b], one));
	for (uint64_t i = 0; i < n && r == 0; i++)
		r = read_merge(t, v, i, &m[i], e);
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
	if (id >= 0 && id < t->n_tokens && !tokenizer_is_eog(t, (uint32_t)id) && t->n_eog < MAX_EOG)
		t->eog[t->n_eog++] = (uint32_t)id;
}

static void read_ends(struct tokenizer *t, const struct vocab *v)
{
	static const char *const names[] = {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end|>"};

	t->eos = v->eos >= 0 && v->eos < t->n_tokens ? v->eos : -1;
	t->bos = v->bos >= 0 && v->bos < t->n_tokens ? v->bos : -1;
	t->add_bos = v->add_bos && t->bos >= 0;
	add_eog(t, t->eos);
	for (int i = 0; i < v->n_eog; i++)
		add_eog(t, v->eog[i]);
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
static int hash_all(struct tokenizer *t, const struct vocab *v)
{
	struct sha *s = sha_new();

	if (!s)
		return -ENOMEM;
	hash_u32(s, t->n_tokens);
	for (uint32_t i = 0; i < t->n_tokens; i++) {
		hash_u32(s, t->tokens[i].text_len);
		sha_update(s, t->tokens[i].text, t->tokens[i].text_len);
		hash_u32(s, (uint32_t)t->tokens[i].type);
	}
	hash_u32(s, (uint32_t)v->n_merges);
	for (uint64_t i = 0; i < v->n_merges; i++) {
		const char *p = "";
		size_t len = 0;
		if (v->merge(v->ctx, i, &p, &len) < 0)
			len = 0; /* cannot happen: read_merges has been through */
		hash_u32(s, (uint32_t)len);
		sha_update(s, p, len);
	}
	hash_u32(s, (uint32_t)v->n_pre);
	sha_update(s, v->pre, v->n_pre);
	hash_u32(s, (uint32_t)t->eos);
	hash_u32(s, (uint32_t)t->bos);
	sha_final_hex(s, t->sha);
	sha_free(s);
	return 0;
}

static int read_pre(struct tokenizer *t, const struct vocab *v, struct errtext *e)
{
	for (int i = 0; i < PRE_N; i++)
		if (strlen(pre_name((enum pre)i)) == v->n_pre && memcmp(pre_name((enum pre)i), v->pre, v->n_pre) == 0) {
			t->pre = (enum pre)i;
			return 0;
		}
	return errtext_set(e, -ENOTSUP, "pre-tokenizer '%.*s' is not known; known are gpt-2, smollm, llama-bpe and qwen2",
			   (int)(v->n_pre > 64 ? 64 : v->n_pre), v->pre);
}

static int build(struct tokenizer *t, const struct vocab *v, struct errtext *e)
{
	uint32_t code[256];
	int r;

	byte_alphabet(code);
	if ((r = read_pre(t, v, e)) < 0 || (r = read_vocab(t, v, code, e)) < 0 || (r = read_merges(t, v, code, e)) < 0 || (r = read_added(t)) < 0)
		return r;
	if (t->pre == PRE_QWEN2)
		t->longest *= 3; /* NFC may make one byte of three */
	read_ends(t, v);
	return hash_all(t, v);
}

int tokenizer_build(const struct vocab *v, struct tokenizer **ret, struct errtext *e)
{
	struct tokenizer *t = calloc(1, sizeof *t);
	int r = t ? build(t, v, e) : -ENOMEM;

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
	free(t->whole);
	free(t->added);
	bpe_free(t->bpe);
	free(t);
	return NULL;
}
