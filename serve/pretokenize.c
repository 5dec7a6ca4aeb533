/* The splitting expressions by hand. GPT-2's:
 *
 *   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * Llama 3's (Qwen2's takes one digit a piece instead of three):
 *
 *   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
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
#include "serve/utf8.h"

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
	c = classify(utf8_read(t->p + pos, ret_len));
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

static size_t next_gpt2(const struct text *t, size_t pos)
{
	size_t len, next_len, skip;
	int c = class_at(t, pos, &len), next;

	if (c < 0)
		return pos + len; /* a numeric character */
	if (t->p[pos] == '\'' && (skip = contraction(t, pos)) > 0)
		return pos + skip;
	if (c != C_SPACE)
		return run_of(t, pos, c);
	if (t->p[pos] == ' ') {
		next = class_at(t, pos + 1, &next_len);
		if (next >= 0 && next != C_SPACE)
			return run_of(t, pos + 1, next);
	}
	return space_end(t, pos);
}

/* A contraction whatever its case; U+017F is an s to a caseless match. */
static size_t contraction_any_case(const struct text *t, size_t pos)
{
	const uint8_t *p = t->p + pos + 1;
	size_t left = t->n - pos - 1;
	uint8_t a = left > 0 ? p[0] | 0x20 : 0, b = left > 1 ? p[1] | 0x20 : 0;

	if (left > 1 && p[0] == 0xc5 && p[1] == 0xbf)
		return 3;
	if (left > 0 && p[0] < 0x80 && (a == 's' || a == 't' || a == 'm' || a == 'd'))
		return 2;
	if (left > 1 && p[0] < 0x80 && p[1] < 0x80 && ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')))
		return 3;
	return 0;
}

static bool line_end(const struct text *t, size_t pos)
{
	return pos < t->n && (t->p[pos] == '\r' || t->p[pos] == '\n');
}

/* White space up to and with the last line end in it, if there is one; else as GPT-2's. */
static size_t lines_end(const struct text *t, size_t pos)
{
	size_t at = pos, last = 0, len;

	while (class_at(t, at, &len) == C_SPACE) {
		if (line_end(t, at))
			last = at + 1;
		at += len;
	}
	return last ? last : space_end(t, pos);
}

static size_t next_llama3(const struct text *t, size_t pos, int digits)
{
	size_t len, next_len, skip, end;
	int c = class_at(t, pos, &len), next = class_at(t, pos + len, &next_len);

	if (t->p[pos] == '\'' && (skip = contraction_any_case(t, pos)) > 0)
		return pos + skip;
	if (c == C_LETTER)
		return run_of(t, pos, C_LETTER);
	if (next == C_LETTER && c != C_NUMBER && !line_end(t, pos))
		return run_of(t, pos + len, C_LETTER);
	if (c == C_NUMBER) {
		for (end = pos; digits-- > 0 && class_at(t, end, &len) == C_NUMBER; end += len)
			;
		return end;
	}
	if (c == C_OTHER || (t->p[pos] == ' ' && next == C_OTHER)) {
		for (end = run_of(t, c == C_OTHER ? pos : pos + len, C_OTHER); line_end(t, end); end++)
			;
		return end;
	}
	return lines_end(t, pos);
}

const char *pre_name(enum pre p)
{
	static const char *const names[PRE_N] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};

	return names[p];
}

size_t pretokenize_next(enum pre pre, const uint8_t *p, size_t n, size_t pos)
{
	struct text t = {p, n, pre == PRE_SMOLLM};

	if (pre == PRE_LLAMA3 || pre == PRE_QWEN2)
		return next_llama3(&t, pos, pre == PRE_QWEN2 ? 1 : 3);
	return next_gpt2(&t, pos);
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
