/* What this proves: metadata of every type is found and nothing else; every tensor of the
 * toy model (all six types, q and k interleaved) equals what tests/fixtures/toy_model.py
 * computed for it, bit for bit; blocks of every quantised type expand as the PyPI package `gguf`
 * expands them (tests/reference/gguf); truncated or lying files are refused. With
 * REDRAFT_MODEL set to SmolLM2-135M-Instruct.Q4_1.gguf: all its tensors hash to the
 * value that tests/fixtures/gguf_reference.py and the PyPI package `gguf` agree on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "daemon/base/fs.h"
#include "schemas/draft_config.h"
#include "schemas/draft_layout.h"
#include "schemas/gguf.h"
#include "schemas/gguf_file.h"
#include "schemas/safetensors.h"

#define SMOLLM2_SHA "26ad3b82c813793c6a59066d38d6cca3741e235e4be6ee949eca1ae33ee67774"

static char dir[] = "/tmp/redraft-test-gguf-XXXXXX";
static char toy[64], expect[64], made[64];

static int setup(void **state)
{
	char cmd[256];

	(void)state;
	if (!mkdtemp(dir))
		return -1;
	(void)snprintf(toy, sizeof toy, "%s/toy.gguf", dir);
	(void)snprintf(expect, sizeof expect, "%s/toy.safetensors", dir);
	(void)snprintf(made, sizeof made, "%s/made.gguf", dir);
	(void)snprintf(cmd, sizeof cmd, "python3 tests/fixtures/toy_model.py %s --hf %s", toy, expect);
	return system(cmd) == 0 ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	return fs_remove_tree(dir);
}

static void test_toy_tensors(void **state)
{
	(void)state;
	struct gguf *g;
	struct fs_map map;
	struct st_file *st;
	struct errtext e = {""};

	if (gguf_open(toy, &g, &e) < 0)
		fail_msg("%s", e.text);
	assert_int_equal(fs_map(expect, &map), 0);
	assert_int_equal(st_parse(map.data, map.len, &st, &e), 0);
	assert_int_equal(st_count(st), 74);
	for (int i = 0; i < st_count(st); i++) {
		const struct st_tensor *t = st_at(st, i);
		int rows, cols;
		uint16_t *got;
		assert_int_equal(gguf_read_hf(g, t->name, &rows, &cols, &got, &e), 0);
		assert_int_equal(rows, t->n_dims == 1 ? 1 : (int)t->shape[0]);
		assert_int_equal(cols, (int)t->shape[t->n_dims - 1]);
		assert_int_equal(t->bytes, (size_t)rows * (size_t)cols * 2);
		if (memcmp(got, t->data, t->bytes) != 0)
			fail_msg("%s differs", t->name);
		free(got);
	}
	int rows, cols;
	uint16_t *got;
	assert_int_equal(gguf_read_hf(g, "lm_head.weight", &rows, &cols, &got, &e), -ENOENT); /* tied */
	assert_int_equal(gguf_read_hf(g, "model.layers.8.input_layernorm.weight", &rows, &cols, &got, &e), -ENOENT);
	assert_int_equal(gguf_read_hf(g, "model.layers.x", &rows, &cols, &got, &e), -ENOENT);
	assert_int_equal(gguf_read_hf(g, "output_norm.weight", &rows, &cols, &got, &e), 0); /* as it stands */
	free(got);
	st_free(st);
	fs_unmap(&map);
	gguf_free(g);
}

static void test_metadata(void **state)
{
	(void)state;
	struct gguf *g;
	uint64_t u = 77;
	double d = 0;
	int64_t i64;
	const char *s;
	size_t len;

	assert_int_equal(gguf_open(toy, &g, NULL), 0);
	assert_int_equal(gguf_u64(g, "llama.block_count", &u), 0);
	assert_int_equal(u, 8);
	assert_int_equal(gguf_u64(g, "tokenizer.ggml.add_bos_token", &u), 0);
	assert_int_equal(u, 0);
	assert_int_equal(gguf_f64(g, "llama.rope.freq_base", &d), 0);
	assert_true(d == 10000);
	assert_int_equal(gguf_f64(g, "llama.block_count", &d), 0);
	assert_true(d == 8);
	assert_int_equal(gguf_str(g, "tokenizer.ggml.pre", &s, &len), 0);
	assert_true(len == 6 && memcmp(s, "smollm", 6) == 0);
	assert_int_equal(gguf_u64(g, "llama.block", &u), -ENOENT);
	assert_int_equal(gguf_u64(g, "tokenizer.ggml.pre", &u), -EINVAL);
	assert_int_equal(gguf_str(g, "llama.block_count", &s, &len), -EINVAL);
	assert_int_equal(gguf_f64(g, "tokenizer.ggml.tokens", &d), -EINVAL);
	assert_int_equal(gguf_array_len(g, "tokenizer.ggml.tokens"), 600);
	assert_int_equal(gguf_array_len(g, "tokenizer.ggml.pre"), 0);
	assert_int_equal(gguf_array_str(g, "tokenizer.ggml.tokens", 1, &s, &len), 0);
	assert_true(len == 12 && memcmp(s, "<|im_start|>", 12) == 0);
	assert_int_equal(gguf_array_str(g, "tokenizer.ggml.tokens", 600, &s, &len), -ENOENT);
	assert_int_equal(gguf_array_str(g, "tokenizer.ggml.token_type", 0, &s, &len), -EINVAL);
	assert_int_equal(gguf_array_i64(g, "tokenizer.ggml.token_type", 2, &i64), 0);
	assert_int_equal(i64, 3);
	assert_int_equal(gguf_array_i64(g, "tokenizer.ggml.tokens", 2, &i64), -EINVAL);
	gguf_free(g);
	assert_int_equal(gguf_free(NULL) == NULL, 1);
}

static void test_blocks(void **state)
{
	(void)state;
	FILE *f = fopen("tests/reference/gguf/vectors.bin", "rb");
	char name[16];
	unsigned type, values, bytes;
	int kinds = 0;

	assert_non_null(f);
	while (fscanf(f, "%15s %u %u %u", name, &type, &values, &bytes) == 4) {
		uint8_t *raw = malloc(bytes);
		float *want = malloc(values * sizeof *want);
		uint16_t *got = malloc(values * sizeof *got);
		assert_int_equal(fgetc(f), '\n');
		assert_int_equal(fread(raw, 1, bytes, f), bytes);
		assert_int_equal(fread(want, sizeof *want, values, f), values);
		assert_string_equal(gguf_type_name(type), name);
		assert_int_equal(values / gguf_block_values(type) * gguf_block_bytes(type), bytes);
		gguf_expand(type, raw, values, got);
		for (unsigned i = 0; i < values; i++)
			if (got[i] != draft_to_bf16(want[i]))
				fail_msg("%s[%u] is %04x, expected %g", name, i, got[i], (double)want[i]);
		free(raw);
		free(want);
		free(got);
		kinds++;
	}
	fclose(f);
	assert_int_equal(kinds, 10);
	assert_int_equal(gguf_block_values(9), 0); /* Q8_1: refused */
	assert_int_equal(gguf_block_values(4), 0);
	assert_int_equal(gguf_block_values(1000), 0);
}

/* ---- files made here ---- */

static struct buf b;

static void u32(uint32_t v)
{
	assert_int_equal(buf_append(&b, &v, 4), 0);
}

static void u64(uint64_t v)
{
	assert_int_equal(buf_append(&b, &v, 8), 0);
}

static void str(const char *s)
{
	u64(strlen(s));
	assert_int_equal(buf_append(&b, s, strlen(s)), 0);
}

static void head(uint64_t n_t, uint64_t n_kv)
{
	buf_clear(&b);
	assert_int_equal(buf_append(&b, "GGUF", 4), 0);
	u32(3);
	u64(n_t);
	u64(n_kv);
}

static void tensor(const char *name, uint32_t dims, uint64_t d0, uint64_t d1, uint32_t type, uint64_t offset)
{
	str(name);
	u32(dims);
	u64(d0);
	if (dims > 1)
		u64(d1);
	for (uint32_t i = 2; i < dims; i++)
		u64(1);
	u32(type);
	u64(offset);
}

/* Data aligned to 32, n bytes of it; then open. */
static int finish(size_t n, struct gguf **ret, struct errtext *e)
{
	static const uint8_t zero[4096];

	assert_int_equal(buf_append(&b, zero, (32 - b.len % 32) % 32), 0);
	assert_int_equal(buf_append(&b, zero, n), 0);
	assert_int_equal(fs_write_atomic(made, b.data, b.len), 0);
	return gguf_open(made, ret, e);
}

static void test_value_types(void **state)
{
	(void)state;
	struct gguf *g;
	uint64_t u;
	int64_t v;
	double d;

	head(0, 7);
	str("i8"), u32(1), assert_int_equal(buf_append(&b, "\xff", 1), 0);
	str("u16"), u32(2), assert_int_equal(buf_append(&b, "\xff\xff", 2), 0);
	str("i64"), u32(11), u64(1ull << 40);
	str("u64"), u32(10), u64(UINT64_MAX);
	str("f64"), u32(12), u64(0x3ff8000000000000);
	str("a.i16"), u32(9), u32(3), u64(2), assert_int_equal(buf_append(&b, "\xfe\xff\x07\x00", 4), 0);
	str("a.str"), u32(9), u32(8), u64(2), str(""), str("xyz");
	assert_int_equal(finish(0, &g, NULL), 0);
	assert_int_equal(gguf_u64(g, "i8", &u), -EINVAL); /* negative */
	assert_int_equal(gguf_f64(g, "i8", &d), 0);
	assert_true(d == -1);
	assert_int_equal(gguf_u64(g, "u16", &u), 0);
	assert_int_equal(u, 65535);
	assert_int_equal(gguf_u64(g, "i64", &u), 0);
	assert_true(u == 1ull << 40);
	assert_int_equal(gguf_u64(g, "u64", &u), -EINVAL); /* beyond what we can say in 63 bits */
	assert_int_equal(gguf_f64(g, "f64", &d), 0);
	assert_true(d == 1.5);
	assert_int_equal(gguf_array_i64(g, "a.i16", 0, &v), 0);
	assert_int_equal(v, -2);
	const char *s;
	size_t len;
	assert_int_equal(gguf_array_str(g, "a.str", 1, &s, &len), 0);
	assert_true(len == 3 && memcmp(s, "xyz", 3) == 0);
	gguf_free(g);
}

static void refused(size_t n_data, const char *word)
{
	struct gguf *g = NULL;
	struct errtext e = {""};

	assert_int_equal(finish(n_data, &g, &e), -EINVAL);
	assert_null(g);
	if (!strstr(e.text, word))
		fail_msg("\"%s\" does not say %s", e.text, word);
}

static void test_refuses(void **state)
{
	(void)state;
	struct gguf *g;
	struct errtext e = {""};

	head(1, 0), tensor("a", 1, 32, 0, 9, 0), refused(4096, "Q8_1");
	head(1, 0), tensor("a", 1, 32, 0, 99, 0), refused(4096, "99");
	head(1, 0), tensor("a", 1, 33, 0, 2, 0), refused(4096, "blocks");
	head(1, 0), tensor("a", 1, 0, 0, 0, 0), refused(4096, "dimensions");
	head(1, 0), tensor("a", 2, 1ull << 40, 1, 0, 0), refused(4096, "dimensions");
	head(1, 0), tensor("a", 2, 0x7fffffff, 0x7fffffff, 0, 0), refused(4096, "end");
	head(1, 0), tensor("a", 1, 8, 0, 0, 4096), refused(4096, "end");
	head(1, 0), tensor("a", 1, 8, 0, 0, UINT64_MAX - 31), refused(4096, "end");
	head(1, 0), tensor("a", 1, 8, 0, 0, 4), refused(4096, "end"); /* misaligned */
	head(1, 0), tensor("a", 1, 1025, 0, 0, 0), refused(4096, "end");
	head(1, 0), tensor("a", 5, 8, 1, 0, 0), refused(4096, "damaged");
	head(1, 0), tensor("", 1, 8, 0, 0, 0), refused(4096, "damaged");
	head(2, 0), tensor("a", 1, 8, 0, 0, 0), tensor("a", 1, 8, 0, 0, 32), refused(4096, "twice");
	head(0, 2), str("k"), u32(4), u32(1), str("k"), u32(4), u32(1), refused(0, "twice");
	head(0, 1), str("k"), u32(13), u32(1), refused(0, "type");
	head(0, 1), str("k"), u32(9), u32(9), u64(1), refused(0, "type"); /* nested array */
	head(0, 1), str("k"), u32(9), u32(8), u64(1ull << 61), refused(0, "end");
	head(0, 1), str("k"), u32(9), u32(4), u64(1ull << 62), refused(0, "end");
	head(0, 1), str("k"), u32(8), u64(UINT64_MAX), refused(0, "end");
	head(0, 1), u64(1ull << 63), refused(64, "metadata");
	head(1ull << 60, 0), refused(64, "fit");
	head(0, 1ull << 60), refused(64, "fit");
	head(0, 1), str("general.alignment"), u32(4), u32(3), refused(0, "alignment");
	assert_int_equal(gguf_open("/nonexistent.gguf", &g, &e), -ENOENT);
	assert_non_null(strstr(e.text, "/nonexistent.gguf"));
	/* a value that is not finite is found when the tensor is read */
	head(1, 0), tensor("a", 1, 8, 0, 0, 0);
	assert_int_equal(finish(4096, &g, &e), 0);
	gguf_free(g);
	b.data[b.len - 4096 + 3] = 0x7f;
	b.data[b.len - 4096 + 2] = 0x80;
	assert_int_equal(fs_write_atomic(made, b.data, b.len), 0);
	assert_int_equal(gguf_open(made, &g, &e), 0);
	int rows, cols;
	uint16_t *p;
	assert_int_equal(gguf_read_hf(g, "a", &rows, &cols, &p, &e), -EINVAL);
	assert_non_null(strstr(e.text, "finite"));
	gguf_free(g);
	buf_done(&b);
}

static void test_truncation(void **state)
{
	(void)state;
	struct fs_map map;
	struct gguf *g;

	assert_int_equal(fs_map(toy, &map), 0);
	for (size_t n = 0; n < map.len; n += n > 256 ? 997u : 1u) {
		assert_int_equal(fs_write_atomic(made, map.data, n), 0);
		assert_int_equal(gguf_open(made, &g, NULL), -EINVAL);
	}
	fs_unmap(&map);
}

static void test_real_model(void **state)
{
	(void)state;
	const char *path = getenv("REDRAFT_MODEL");
	static const char *const part[] = {"input_layernorm",  "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj",
					   "self_attn.v_proj", "self_attn.o_proj",         "mlp.gate_proj",    "mlp.up_proj",
					   "mlp.down_proj"};
	uint16_t *held[300];
	char name[300][64], hex[65];
	struct timespec t0, t1;
	struct gguf *g;
	struct errtext e = {""};
	int n = 0, rows, cols;

	if (!path) {
		print_message("REDRAFT_MODEL is not set\n");
		skip();
	}
	(void)clock_gettime(CLOCK_MONOTONIC, &t0);
	assert_int_equal(gguf_open(path, &g, &e), 0);
	struct fp *fp = fp_new();
	for (int l = -1; l < 30; l++) {
		for (int i = 0; i < (l < 0 ? 2 : 9); i++) {
			if (l < 0)
				strcpy(name[n], i ? "model.norm.weight" : "model.embed_tokens.weight");
			else
				(void)snprintf(name[n], sizeof name[n], "model.layers.%d.%s.weight", l, part[i]);
			if (gguf_read_hf(g, name[n], &rows, &cols, &held[n], &e) < 0)
				fail_msg("%s", e.text);
			assert_int_equal(fp_add_bf16(fp, name[n], rows, cols, held[n]), 0);
			n++;
		}
	}
	(void)clock_gettime(CLOCK_MONOTONIC, &t1);
	print_message("%d tensors in %.3f s\n", n, (double)(t1.tv_sec - t0.tv_sec) + 1e-9 * (double)(t1.tv_nsec - t0.tv_nsec));
	assert_int_equal(fp_final_hex(fp, hex), 0);
	assert_string_equal(hex, SMOLLM2_SHA);
	fp_free(fp);
	while (n-- > 0)
		free(held[n]);
	gguf_free(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_blocks), cmocka_unit_test(test_toy_tensors), cmocka_unit_test(test_metadata),   cmocka_unit_test(test_value_types),
		cmocka_unit_test(test_refuses),     cmocka_unit_test(test_truncation), cmocka_unit_test(test_real_model),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
