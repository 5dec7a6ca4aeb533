/* Whatever parses lies inside the blob, without overlap, and its last byte is the blob's. */
#include <string.h>
#include "schemas/safetensors.h"
#include "tests/fuzz/fuzz.h"

FUZZ(safetensors)
{
	struct st_file *f;
	struct errtext e = {""};
	size_t total = 0;

	if (st_parse(data, size, &f, &e) < 0) {
		FUZZ_CHECK(e.text[0] && memchr(e.text, 0, sizeof e.text));
		return 0;
	}
	const uint8_t *at = data + size;
	for (int i = st_count(f); i-- > 0;) {
		const struct st_tensor *t = st_at(f, i);
		FUZZ_CHECK(st_find(f, t->name) == t);
		FUZZ_CHECK(t->data >= data && t->data + t->bytes == at);
		uint64_t n = st_dtype_size(t->dtype);
		for (int d = 0; d < t->n_dims; d++)
			n *= t->shape[d];
		FUZZ_CHECK(n == t->bytes);
		at = t->data;
		total += t->bytes;
	}
	FUZZ_CHECK(total <= size);
	(void)st_meta(f, "format");
	st_free(f);
	return 0;
}
