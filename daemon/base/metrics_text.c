/* Prometheus' text as OpenMetrics: the same figures in a stricter dress. A counter's family loses its _total, the bounds
 * of a histogram are written as floats, and an end is marked, so that a page that was cut off is seen to be.
 */
#include "daemon/base/metrics.h"
#include <string.h>

/* "# HELP name_total text": the name without its end, then the rest. */
static int text_family(struct buf *out, const char *line, size_t n)
{
	const char *name = line + 7, *end = memchr(name, ' ', n - 7);
	size_t k = end ? (size_t)(end - name) : n - 7;

	if (k > 6 && !memcmp(name + k - 6, "_total", 6))
		k -= 6;
	else
		return buf_append(out, line, n);
	return buf_append(out, line, 7) || buf_append(out, name, k) ? -ENOMEM : buf_append(out, name + k + 6, n - 7 - k - 6);
}

/* A sample; le="5" becomes le="5.0", not what only ends in le. */
static int text_sample(struct buf *out, const char *line, size_t n)
{
	const char *first = memmem(line, n, "{le=\"", 5), *le = first ? first : memmem(line, n, ",le=\"", 5), *end;

	le = le ? le + 5 : line + n;
	end = memchr(le, '"', n - (size_t)(le - line));
	if (!end || memchr(le, '.', (size_t)(end - le)) || memchr(le, 'I', (size_t)(end - le)) || memchr(le, 'e', (size_t)(end - le)))
		return buf_append(out, line, n);
	return buf_append(out, line, (size_t)(end - line)) || buf_append(out, ".0", 2) ? -ENOMEM : buf_append(out, end, n - (size_t)(end - line));
}

bool metrics_wants_open(const char *accept)
{
	return accept && strstr(accept, "application/openmetrics-text") != NULL;
}

int metrics_openmetrics(const struct buf *text, struct buf *out)
{
	const char *at = (const char *)text->data, *end = at + text->len;
	int r = 0;

	while (!r && at < end) {
		const char *nl = memchr(at, '\n', (size_t)(end - at));
		size_t n = nl ? (size_t)(nl - at) + 1 : (size_t)(end - at);

		if (n > 8 && (!memcmp(at, "# HELP ", 7) || !memcmp(at, "# TYPE ", 7)))
			r = text_family(out, at, n);
		else
			r = text_sample(out, at, n);
		at += n;
	}
	return r ? r : buf_puts(out, "# EOF\n");
}
