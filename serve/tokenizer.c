/* Text to ids, ids to bytes.
 *
 * Text is cut at added tokens first (leftmost, longest), then into pieces
 * (pretokenize.c), then merged (bpe.c). Control tokens are found only when asked for,
 * so text that a user wrote can never become one; user-defined tokens always. Llama 3's rule: a piece
 * that is a token as it stands is not merged.
 */
#include "serve/tokenizer.h"
#include <stdlib.h>
#include <string.h>
#include "serve/nfc.h"
#include "serve/tokenizer_build.h"

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

static int encode_pieces(const struct tokenizer *t, struct bpe_scratch *s, const char *text, size_t len, size_t most, uint32_t *ids, size_t *n)
{
	for (size_t at = 0; at < len;) {
		size_t end = pretokenize_next(t->pre, (const uint8_t *)text, len, at), got = 0;
		uint32_t whole = t->whole ? tokenizer_find_whole(t, text + at, end - at) : NO_ID;
		int r = 0;
		if (most != SIZE_MAX && end - at > TOKENIZER_WORD)
			return -EMSGSIZE;
		if (whole != NO_ID)
			ids[*n + got++] = whole;
		else
			r = bpe_piece(t->bpe, s, (const uint8_t *)text + at, end - at, ids + *n, &got);
		if (r < 0)
			return r;
		*n += got;
		at = end;
		if (*n > most)
			return -E2BIG;
	}
	return 0;
}

/* Text between added tokens; Qwen2's is normalised first (a composed character has no more bytes than its parts,
 * but a few singletons are longer than what they stand in for: ids has room for three times the text). */
static int encode_plain(const struct tokenizer *t, struct bpe_scratch *s, const char *text, size_t len, size_t most, uint32_t *ids, size_t *n)
{
	struct buf normal = BUF_INIT(0);
	size_t ascii = 0;
	int r;

	while (ascii < len && (uint8_t)text[ascii] < 0x80)
		ascii++;
	if (t->pre != PRE_QWEN2 || ascii == len)
		return encode_pieces(t, s, text, len, most, ids, n);
	r = nfc_append(&normal, text, len);
	if (r == 0)
		r = encode_pieces(t, s, (const char *)normal.data, normal.len, most, ids, n);
	buf_done(&normal);
	return r;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool special, size_t most, uint32_t **ret_ids, size_t *ret_n)
{
	struct bpe_scratch s = {0};
	uint32_t *ids, id;
	size_t n = 0, from = 0;
	int r = 0;

	if (!utf8_valid((const uint8_t *)text, len))
		return -EILSEQ;
	/* a token stands for one byte at least; NFC makes at most three bytes of one */
	ids = malloc(((t->pre == PRE_QWEN2 ? 3 : 1) * len + 1) * sizeof *ids);
	if (!ids)
		return -ENOMEM;
	for (size_t at = 0; at < len && r == 0 && n <= most;) {
		const struct token *k = added_at(t, text + at, len - at, special, &id);
		if (!k) {
			at++;
			continue;
		}
		r = encode_plain(t, &s, text + from, at - from, most, ids, &n);
		ids[n++] = id;
		from = at += k->text_len;
	}
	if (r == 0)
		r = n > most ? -E2BIG : encode_plain(t, &s, text + from, len - from, most, ids, &n);
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
	uint32_t id = tokenizer_find(t, text, strlen(text));

	return id != NO_ID && t->tokens[id].type == TYPE_CONTROL ? (int64_t)id : -1;
}

void tokenizer_sha(const struct tokenizer *t, char ret_hex[static 65])
{
	memcpy(ret_hex, t->sha, 65);
}

int64_t tokenizer_bos(const struct tokenizer *t)
{
	return t->add_bos ? t->bos : -1;
}
