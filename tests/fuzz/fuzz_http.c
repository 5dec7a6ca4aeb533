/* A head has one meaning or is refused with a status and a sentence; a chunked body is the same however it is cut
 * into reads. The input is a head, as far as its first empty line, and then chunks. */
#include <string.h>
#include "serve/http_parse.h"
#include "tests/fuzz/fuzz.h"

static void one_head(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1), *end = text + size;
	struct http_head h;
	const char *why = NULL;

	FUZZ_CHECK(text);
	memcpy(text, data, size);
	int status = http_head_parse(text, size, &h, &why);
	FUZZ_CHECK(status == 0 || (status >= 400 && status <= 599 && why && *why));
	if (status == 0) {
		FUZZ_CHECK(*h.method && h.method >= text && h.method < end && h.path);
		FUZZ_CHECK(h.n_fields <= HTTP_MAX_FIELDS && !(h.chunked && h.has_length) && (h.v11 || !h.chunked));
		FUZZ_CHECK(*h.path == '/' || *h.path == '*');
		for (const char *p = h.path; *p; p++)
			FUZZ_CHECK((unsigned char)*p >= 0x20 && *p != 0x7f);
		for (int i = 0; i < h.n_fields; i++) {
			FUZZ_CHECK(*h.fields[i].name && strpbrk(h.fields[i].value, "\r\n") == NULL);
			FUZZ_CHECK(http_head_get(&h, h.fields[i].name) != NULL);
		}
	}
	free(text);
}

/* Decode in reads of `step` bytes: the last status, what it used, and a sum over the data. */
static int decode(const uint8_t *data, size_t size, size_t step, size_t *ret_at, uint64_t *ret_sum)
{
	struct http_chunks c = {0};
	size_t at = 0, used, n;
	const uint8_t *p;
	int s = HTTP_CHUNKS_MORE;

	*ret_sum = 0;
	while (s == HTTP_CHUNKS_MORE && at < size) {
		size_t k = size - at < step ? size - at : step;
		s = http_chunks_step(&c, data + at, k, &used, &p, &n);
		if (s < 0)
			break;
		FUZZ_CHECK(used > 0 && used <= k && n <= used && (n == 0 || (p >= data + at && p + n <= data + at + k)));
		for (size_t i = 0; i < n; i++)
			*ret_sum = *ret_sum * 31 + p[i] + 1;
		at += used;
	}
	*ret_at = at;
	return s;
}

FUZZ(http)
{
	const uint8_t *end = memmem(data, size, "\r\n\r\n", 4);
	size_t head = end ? (size_t)(end - data) + 4 : size, at[2];
	uint64_t sum[2];

	one_head(data, head);
	int whole = decode(data + head, size - head, size + 1, &at[0], &sum[0]);
	int cut = decode(data + head, size - head, 1 + size % 7, &at[1], &sum[1]);
	FUZZ_CHECK(whole == cut && (whole < 0 || (at[0] == at[1] && sum[0] == sum[1])));
	return 0;
}
