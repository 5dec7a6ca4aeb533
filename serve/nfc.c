/* NFC: decompose, order the marks, compose.
 *
 * The text is worked through in runs that start at a character of class 0 which nothing before can change
 * (a starter); ASCII, nearly everything, is copied as it stands. Hangul is arithmetic, the rest tables made by a
 * script (unicode_nfc.h), equal to `tokenizers` on every code point.
 */
#include "serve/nfc.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "serve/unicode_nfc.h"
#include "serve/utf8.h"

static const uint32_t S = 0xac00, L = 0x1100, V = 0x1161, T = 0x11a7, N_L = 19, N_V = 21, N_T = 28, N_S = 11172;

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

static uint32_t class_of(uint32_t c)
{
	size_t lo = 0, hi = N_OF(nfc_class);

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		if (c > nfc_class[mid].last)
			lo = mid + 1;
		else if (c < nfc_class[mid].first)
			hi = mid;
		else
			return nfc_class[mid].class;
	}
	return 0;
}

static const struct nfc_decompose *decomposition(uint32_t c)
{
	size_t lo = 0, hi = N_OF(nfc_decompose);

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		if (nfc_decompose[mid].c == c)
			return &nfc_decompose[mid];
		if (nfc_decompose[mid].c < c)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

static uint32_t composition(uint32_t a, uint32_t b)
{
	size_t lo = 0, hi = N_OF(nfc_compose);

	if (a - L < N_L && b - V < N_V)
		return S + ((a - L) * N_V + (b - V)) * N_T;
	if (a - S < N_S && (a - S) % N_T == 0 && b - T - 1 < N_T - 1)
		return a + (b - T);
	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		const struct nfc_compose *x = &nfc_compose[mid];
		if (x->first == a && x->second == b)
			return x->c;
		if (x->first < a || (x->first == a && x->second < b))
			lo = mid + 1;
		else
			hi = mid;
	}
	return 0;
}

struct mark {
	uint32_t c, class, at; /* at: place before ordering, so that equals keep theirs */
};

struct run {
	struct mark *m;
	size_t n, cap;
};

/* c's full decomposition to the end of the run; a mark goes before those of a higher class. */
static int put(struct run *r, uint32_t c)
{
	const struct nfc_decompose *d = decomposition(c);
	int rc;

	if (d)
		return (rc = put(r, d->first)) < 0 || !d->second ? rc : put(r, d->second);
	if (c - S < N_S) {
		if ((rc = put(r, L + (c - S) / (N_V * N_T))) < 0 || (rc = put(r, V + (c - S) / N_T % N_V)) < 0)
			return rc;
		return (c - S) % N_T ? put(r, T + (c - S) % N_T) : 0;
	}
	if (r->n == r->cap) {
		size_t cap = r->cap ? 2 * r->cap : 64;
		void *grown = realloc(r->m, cap * sizeof *r->m);
		if (!grown)
			return -ENOMEM;
		r->m = grown;
		r->cap = cap;
	}
	r->m[r->n] = (struct mark){c, class_of(c), (uint32_t)r->n};
	r->n++;
	return 0;
}

static int by_class(const void *a, const void *b)
{
	const struct mark *x = a, *y = b;

	if (x->class != y->class)
		return x->class < y->class ? -1 : 1;
	return x->at < y->at ? -1 : x->at > y->at;
}

/* By insertion for the usual few; a client may make it long. */
static void order(struct mark *m, size_t n)
{
	if (n > 16) {
		qsort(m, n, sizeof *m, by_class);
		return;
	}
	for (size_t i = 1; i < n; i++)
		for (size_t k = i; k > 0 && m[k].class < m[k - 1].class; k--) {
			struct mark swap = m[k];
			m[k] = m[k - 1];
			m[k - 1] = swap;
		}
}

static void order_all(struct run *r)
{
	for (size_t i = 0; i < r->n;) {
		size_t end = i;
		while (end < r->n && r->m[end].class)
			end++;
		order(r->m + i, end - i);
		i = end + 1;
	}
}

/* Each mark joins the last starter unless one of its class or higher, or another starter, stands between. */
static void compose(struct run *r)
{
	size_t starter = SIZE_MAX, out = 0;
	uint32_t last = 0; /* class of what was kept last after the starter */

	for (size_t i = 0; i < r->n; i++) {
		struct mark x = r->m[i];
		bool adjacent = starter != SIZE_MAX && out == starter + 1;
		uint32_t c = starter != SIZE_MAX && (adjacent || last < x.class) ? composition(r->m[starter].c, x.c) : 0;
		if (c) {
			r->m[starter].c = c;
			continue;
		}
		if (x.class == 0)
			starter = out;
		last = x.class;
		r->m[out++] = x;
	}
	r->n = out;
}

static int flush(struct run *r, struct buf *out)
{
	int rc = 0;

	order_all(r);
	compose(r);
	for (size_t i = 0; i < r->n && rc == 0; i++) {
		uint8_t raw[4];
		rc = buf_append(out, raw, utf8_write(r->m[i].c, raw));
	}
	r->n = 0;
	return rc;
}

int nfc_append(struct buf *out, const char *text, size_t n)
{
	const uint8_t *p = (const uint8_t *)text;
	struct run r = {0};
	int rc = 0;

	for (size_t at = 0; at < n && rc == 0;) {
		size_t end = at, len;
		while (end < n && p[end] < 0x80)
			end++;
		if (end > at) { /* the last of them may take a mark */
			rc = flush(&r, out);
			rc = rc ? rc : buf_append(out, p + at, end - at - 1);
			rc = rc ? rc : put(&r, p[end - 1]);
			at = end;
			continue;
		}
		rc = put(&r, utf8_read(p + at, &len));
		at += len;
	}
	rc = rc ? rc : flush(&r, out);
	free(r.m);
	return rc;
}
