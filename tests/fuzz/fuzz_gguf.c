/* Everything a GGUF offers can be read to its last byte. The file is a memfd. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "schemas/gguf.h"
#include "tests/fuzz/fuzz.h"

static unsigned gguf_sum(const char *s, size_t n)
{
	unsigned sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += (uint8_t)s[i];
	return sum;
}

static unsigned gguf_walk(const struct gguf *g)
{
	static const char *const keys[] = {"general.architecture", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "llama.attention.head_count", "f", "k"};
	static const char *const tensors[] = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "model.layers.0.self_attn.q_proj.weight",
					      "model.layers.0.self_attn.k_proj.weight", "model.layers.0.mlp.up_proj.weight", "model.layers.0.x", "a"};
	unsigned sum = 0;

	for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
		const char *s;
		size_t len;
		uint64_t u;
		double d;
		int64_t v;
		if (gguf_str(g, keys[i], &s, &len) == 0)
			sum += gguf_sum(s, len);
		sum += gguf_u64(g, keys[i], &u) == 0;
		sum += gguf_f64(g, keys[i], &d) == 0;
		uint64_t n = gguf_array_len(g, keys[i]);
		for (uint64_t j = 0; j < n && j < 5000; j++) {
			if (gguf_array_str(g, keys[i], j, &s, &len) == 0)
				sum += gguf_sum(s, len);
			if (gguf_array_i64(g, keys[i], j, &v) == 0)
				sum += (unsigned)v;
		}
		if (n && gguf_array_i64(g, keys[i], n - 1, &v) == 0)
			sum += (unsigned)v;
	}
	for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
		int rows, cols;
		uint16_t *w;
		if (gguf_read_hf(g, tensors[i], &rows, &cols, &w, NULL) == 0) {
			FUZZ_CHECK(rows > 0 && cols > 0);
			sum += gguf_sum((const char *)w, 2 * (size_t)rows * (size_t)cols);
			free(w);
		}
	}
	return sum;
}

FUZZ(gguf)
{
	struct gguf *g;
	struct errtext e = {""};
	char path[64];
	int fd = memfd_create("gguf", MFD_CLOEXEC);
	volatile unsigned sink;

	FUZZ_CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
	(void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	if (gguf_open(path, &g, &e) == 0) {
		sink = gguf_walk(g);
		(void)sink;
		gguf_free(g);
	} else {
		FUZZ_CHECK(e.text[0]);
	}
	(void)close(fd);
	return 0;
}
