/* Text out of tokens.
 *
 * A token may end in the middle of a character and a character may never be completed:
 * bytes wait in `partial` until they decide. What cannot be UTF-8 becomes U+FFFD,
 * one for each longest broken beginning, as Rust's and Python's decoders do.
 */
#include "serve/textout.h"
#include <string.h>
#include "serve/tokenizer.h"

static const char REPLACEMENT[] = "\xef\xbf\xbd";

void textout_done(struct textout *o)
{
	buf_done(&o->text);
}

/* How is the character that begins p[0..n): complete (its length), incomplete so far
 * (0), or broken (minus the length of the broken beginning)? */
static int character(const uint8_t *p, size_t n)
{
	size_t want = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;

	if (want == 0)
		return -1;
	for (size_t i = 1; i < want && i < n; i++) {
		uint8_t lo = 0x80, hi = 0xbf;
		if (i == 1) {
			lo = p[0] == 0xe0 ? 0xa0 : p[0] == 0xf0 ? 0x90 : 0x80;
			hi = p[0] == 0xed ? 0x9f : p[0] == 0xf4 ? 0x8f : 0xbf;
		}
		if (p[i] < lo || p[i] > hi)
			return -(int)i;
	}
	return n >= want ? (int)want : 0;
}

static int add_byte(struct textout *o, uint8_t b)
{
	int r, c;

	o->partial[o->n_partial++] = b;
	c = character(o->partial, o->n_partial);
	if (c == 0)
		return 0;
	r = c > 0 ? buf_append(&o->text, o->partial, (size_t)c) : buf_append(&o->text, REPLACEMENT, 3);
	if (r < 0)
		return r;
	if (c > 0 || (size_t)-c == o->n_partial) {
		o->n_partial = 0;
		return 0;
	}
	/* the last byte broke what came before; it may begin something itself */
	o->n_partial = 0;
	return add_byte(o, b);
}

/* Find the earliest stop string that ends after byte `from` and cut there. */
static bool find_stop(struct textout *o, size_t from)
{
	size_t best = SIZE_MAX;

	for (int i = 0; i < o->n_stops; i++) {
		size_t n = strlen(o->stops[i]), at = from >= o->floor + n - 1 ? from - (n - 1) : o->floor;
		const uint8_t *hit = o->text.len - at >= n ? memmem(o->text.data + at, o->text.len - at, o->stops[i], n) : NULL;
		if (hit && (size_t)(hit - o->text.data) < best)
			best = (size_t)(hit - o->text.data);
	}
	if (best == SIZE_MAX)
		return false;
	o->text.len = best;
	o->stopped = true;
	o->n_partial = 0;
	return true;
}

int textout_add(struct textout *o, uint32_t id)
{
	size_t n, before = o->text.len;
	const char *p = tokenizer_token(o->tokenizer, id, &n);

	if (o->stopped)
		return TEXTOUT_STOP;
	for (size_t i = 0; i < n; i++) {
		int r = add_byte(o, (uint8_t)p[i]);
		if (r < 0)
			return r;
	}
	if (o->quiet > 0) {
		o->quiet--;
		return 0;
	}
	return o->text.len > before && find_stop(o, before) ? TEXTOUT_STOP : 0;
}

int textout_finish(struct textout *o)
{
	size_t before = o->text.len;
	int r = o->n_partial > 0 ? buf_append(&o->text, REPLACEMENT, 3) : 0;

	o->n_partial = 0;
	if (r < 0)
		return r;
	return o->text.len > before && find_stop(o, before) ? TEXTOUT_STOP : 0;
}

int textout_begin(struct textout *o, const char *p, size_t n)
{
	int r = buf_append(&o->text, p, n);

	if (r == 0)
		o->floor = o->text.len;
	return r;
}

int textout_add_shown(struct textout *o, uint32_t id)
{
	size_t n;
	int r;

	(void)tokenizer_token(o->tokenizer, id, &n);
	if (n > 0)
		return textout_add(o, id);
	r = textout_finish(o);
	return r == 0 ? buf_puts(&o->text, tokenizer_text(o->tokenizer, id)) : r;
}

/* Bytes at the end of the text that begin `word`. */
static size_t begun(const struct textout *o, const char *word)
{
	size_t have = o->text.len - o->floor, n = strlen(word) - 1;

	for (n = n < have ? n : have; n > 0; n--)
		if (memcmp(o->text.data + o->text.len - n, word, n) == 0)
			return n;
	return 0;
}

/* How much of the text is certain to stay. */
static size_t certain(const struct textout *o)
{
	size_t most = 0, n, first = o->floor;

	if (o->text.len == 0)
		return 0;
	if (o->fence) {
		const uint8_t *at = memmem(o->text.data, o->text.len, o->fence, strlen(o->fence));
		if (at)
			return (size_t)(at - o->text.data);
		while (first < o->text.len && strchr(" \t\r\n", o->text.data[first]))
			first++;
		if (first == o->text.len || o->text.data[first] == '{')
			return o->floor;
		most = begun(o, o->fence);
	}
	for (int i = 0; i < o->n_stops && !o->stopped; i++)
		most = (n = begun(o, o->stops[i])) > most ? n : most;
	return o->text.len - most;
}

const char *textout_take(struct textout *o, bool all, size_t *ret_len)
{
	size_t end = all ? o->text.len : certain(o), from = o->shown;

	if (end < from)
		end = from;
	*ret_len = end - from;
	o->shown = end;
	return o->text.data ? (const char *)o->text.data + from : "";
}
