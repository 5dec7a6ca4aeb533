/* GPT-2's expression by hand:
 *
 *   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * A matcher of this size is shorter than the calls around a regular expression
 * library, needs no JIT, and takes its classes from a table whose Unicode version
 * is known (unicode_ranges.h: letters and numbers of Unicode 16.0, the numeric
 * characters of 17.0; the same as `tokenizers` 0.23 uses).
 *
 * With the Digits step on, a numeric character ends the segment that the expression
 * sees, so "\s+(?!\S)" takes all of a run of spaces before a digit, not all but one.
 */
#include "serve/pretokenize.h"
#include <string.h>
#include "serve/unicode_ranges.h"

enum class { C_OTHER, C_LETTER, C_NUMBER, C_SPACE, C_LATE /* numeric to the Digits step, OTHER to the expression */ };

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

static bool in_ranges(const struct unicode_range *r, size_t n, uint32_t c)
{
	size_t lo = 0, hi = n;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		if (c > r[mid].last)
			lo = mid + 1;
		else if (c < r[mid].first)
			hi = mid;
		else
			return true;
	}
	return false;
}

static bool is_space(uint32_t c)
{
	return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
	       c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static enum class classify(uint32_t c)
{
	if (c < 0x80) {
		if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z')
			return C_LETTER;
		if (c >= '0' && c <= '9')
			return C_NUMBER;
		return is_space(c) ? C_SPACE : C_OTHER;
	}
	if (is_space(c))
		return C_SPACE;
	if (in_ranges(unicode_letter, N_OF(unicode_letter), c))
		return C_LETTER;
	if (in_ranges(unicode_number, N_OF(unicode_number), c))
		return C_NUMBER;
	return in_ranges(unicode_numeric_late, N_OF(unicode_numeric_late), c) ? C_LATE : C_OTHER;
}

/* The character at p (valid UTF-8); *ret_len its bytes. */
static uint32_t decode(const uint8_t *p, size_t *ret_len)
{
	if (p[0] < 0x80) {
		*ret_len = 1;
		return p[0];
	}
	if (p[0] < 0xe0) {
		*ret_len = 2;
		return (uint32_t)(p[0] & 0x1f) << 6 | (p[1] & 0x3f);
	}
	if (p[0] < 0xf0) {
		*ret_len = 3;
		return (uint32_t)(p[0] & 0x0f) << 12 | (uint32_t)(p[1] & 0x3f) << 6 | (p[2] & 0x3f);
	}
	*ret_len = 4;
	return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3f) << 12 | (uint32_t)(p[2] & 0x3f) << 6 | (p[3] & 0x3f);
}

struct text {
	const uint8_t *p;
	size_t n;
	bool split_digits;
};

/* Class at pos, or -1 where the segment ends (end of text, or a numeric
 * character when those are split off). */
static int class_at(const struct text *t, size_t pos, size_t *ret_len)
{
	enum class c;

	*ret_len = 0;
	if (pos >= t->n)
		return -1;
	c = classify(decode(t->p + pos, ret_len));
	if (t->split_digits && (c == C_NUMBER || c == C_LATE))
		return -1;
	return c == C_LATE ? C_OTHER : (int)c;
}

static size_t run_of(const struct text *t, size_t pos, int want)
{
	size_t len;

	while (class_at(t, pos, &len) == want)
		pos += len;
	return pos;
}

/* Length of a contraction at pos, or 0. */
static size_t contraction(const struct text *t, size_t pos)
{
	static const char *const list[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};

	for (size_t i = 0; i < N_OF(list); i++) {
		size_t len = strlen(list[i]);
		if (t->n - pos >= len && memcmp(t->p + pos, list[i], len) == 0)
			return len;
	}
	return 0;
}

/* A run of white space: all of it at the end of the segment; otherwise all but its
 * last character, which may belong to the next piece; a single one stands alone. */
static size_t space_end(const struct text *t, size_t pos)
{
	size_t at = pos, last = pos, len;

	while (class_at(t, at, &len) == C_SPACE) {
		last = at;
		at += len;
	}
	if (class_at(t, at, &len) < 0 || last == pos)
		return at;
	return last;
}

size_t pretokenize_next(const uint8_t *p, size_t n, size_t pos, bool split_digits)
{
	struct text t = {p, n, split_digits};
	size_t len, next_len, skip;
	int c = class_at(&t, pos, &len), next;

	if (c < 0)
		return pos + len; /* a numeric character */
	if (p[pos] == '\'' && (skip = contraction(&t, pos)) > 0)
		return pos + skip;
	if (c != C_SPACE)
		return run_of(&t, pos, c);
	if (p[pos] == ' ') {
		next = class_at(&t, pos + 1, &next_len);
		if (next >= 0 && next != C_SPACE)
			return run_of(&t, pos + 1, next);
	}
	return space_end(&t, pos);
}

/* Bytes that a lead byte announces, or 0 when it cannot lead. */
static size_t lead_length(uint8_t b)
{
	if (b < 0x80)
		return 1;
	if (b >= 0xc2 && b < 0xe0)
		return 2;
	if (b >= 0xe0 && b < 0xf0)
		return 3;
	return b >= 0xf0 && b < 0xf5 ? 4 : 0;
}

bool utf8_valid(const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n;) {
		size_t len = lead_length(p[i]);
		if (len == 0 || len > n - i)
			return false;
		for (size_t k = 1; k < len; k++)
			if ((p[i + k] & 0xc0) != 0x80)
				return false;
		if ((p[i] == 0xe0 && p[i + 1] < 0xa0) || (p[i] == 0xed && p[i + 1] >= 0xa0) || (p[i] == 0xf0 && p[i + 1] < 0x90) ||
		    (p[i] == 0xf4 && p[i + 1] >= 0x90))
			return false;
		i += len;
	}
	return true;
}
