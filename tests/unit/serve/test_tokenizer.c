/* The tokenizer equals Hugging Face `tokenizers` on the committed vectors: on the toy
 * model's vocabulary always, on SmolLM2's where REDRAFT_MODEL names the file; read from a folder's
 * tokenizer.json with the pre-tokenizers of Llama 3 and Qwen2 (NFC included) in ids and in borders. Then what
 * vectors do not show: text that spells a control token stays text unless asked, decoding
 * gives back what was encoded, invalid UTF-8 is refused, long words are not quadratic, and the
 * hash depends on the vocabulary.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "daemon/base/clock.h"
#include "daemon/base/fs.h"
#include "schemas/hf_folder.h"
#include "serve/nfc.h"
#include "serve/pretokenize.h"
#include "tests/unit/serve/vectors.h"

static struct tokenizer *toy;

static int setup(void **state)
{
	(void)state;
	toy = toy_tokenizer();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	toy = tokenizer_free(toy);
	return 0;
}

static void check_vector(void *arg, const json_t *v)
{
	const json_t *text = json_object_get(v, "text"), *want = json_object_get(v, "ids");
	uint32_t *ids;
	size_t n;

	assert_int_equal(0, tokenizer_encode(arg, json_string_value(text), json_string_length(text), json_is_true(json_object_get(v, "special")),
					     SIZE_MAX, &ids, &n));
	if (n != json_array_size(want))
		fail_msg("%zu ids, expected %zu, for: %s", n, json_array_size(want), json_string_value(text));
	for (size_t i = 0; i < n; i++)
		if ((json_int_t)ids[i] != json_integer_value(json_array_get(want, i)))
			fail_msg("id %zu is %u, expected %lld, for: %s", i, ids[i], (long long)json_integer_value(json_array_get(want, i)),
				 json_string_value(text));
	free(ids);
}

static void test_toy_vectors(void **state)
{
	(void)state;
	assert_true(vectors_each("tests/reference/tokenizer/vectors/toy.jsonl", check_vector, toy) >= 100);
}

static void test_smollm2_vectors(void **state)
{
	const char *path = getenv("REDRAFT_MODEL");
	struct tokenizer *t;

	(void)state;
	if (!path) {
		print_message("skipped: REDRAFT_MODEL is not set\n");
		skip();
	}
	t = load_tokenizer(path);
	assert_int_equal(49152, tokenizer_vocab(t));
	assert_true(tokenizer_is_eog(t, 2) && tokenizer_is_eog(t, 0) && !tokenizer_is_eog(t, 1) && !tokenizer_is_eog(t, 100));
	assert_true(vectors_each("tests/reference/tokenizer/vectors/smollm2.jsonl", check_vector, t) >= 300);
	tokenizer_free(t);
}

/* ---- folders ---- */

static struct tokenizer *folder_tokenizer(const char *arch)
{
	char dir[64], cmd[256];
	struct hf_folder *f = NULL;
	struct tokenizer *t = NULL;
	struct errtext e = {""};

	(void)snprintf(dir, sizeof dir, "/tmp/redraft-folder-%d", (int)getpid());
	(void)snprintf(cmd, sizeof cmd, "python3 tests/fixtures/toy_folder.py %s --arch %s", dir, arch);
	assert_int_equal(0, system(cmd));
	if (hf_open(dir, &f, &e) < 0 || tokenizer_from_hf(hf_tokenizer(f), hf_config(f)->eos_ids, hf_config(f)->n_eos, &t, &e) < 0)
		fail_msg("%s", e.text);
	hf_free(f);
	assert_int_equal(0, fs_remove_tree(dir));
	return t;
}

struct folder_check {
	struct tokenizer *t;
	enum pre pre;
};

static void check_folder_vector(void *arg, const json_t *v)
{
	const struct folder_check *c = arg;
	const json_t *text = json_object_get(v, "text"), *ends = json_object_get(v, "ends");
	struct buf b = BUF_INIT(0);
	size_t at = 0;

	check_vector(c->t, v);
	if (c->pre == PRE_QWEN2)
		assert_int_equal(0, nfc_append(&b, json_string_value(text), json_string_length(text)));
	else
		assert_int_equal(0, buf_append(&b, json_string_value(text), json_string_length(text)));
	for (size_t i = 0; i < json_array_size(ends); i++) {
		if (at >= b.len)
			fail_msg("too few bytes, for: %s", json_string_value(text));
		at = pretokenize_next(c->pre, b.data, b.len, at);
		if ((json_int_t)at != json_integer_value(json_array_get(ends, i)))
			fail_msg("piece %zu ends at %zu, expected %lld, for: %s", i, at, (long long)json_integer_value(json_array_get(ends, i)),
				 json_string_value(text));
	}
	if (json_array_size(ends) > 0)
		assert_int_equal(at, b.len);
	buf_done(&b);
}

static void test_folder_vectors(void **state)
{
	struct folder_check llama = {folder_tokenizer("llama"), PRE_LLAMA3}, qwen = {folder_tokenizer("qwen2"), PRE_QWEN2};

	(void)state;
	assert_true(vectors_each("tests/reference/tokenizer/vectors/folder-llama.jsonl", check_folder_vector, &llama) >= 200);
	assert_true(vectors_each("tests/reference/tokenizer/vectors/folder-qwen2.jsonl", check_folder_vector, &qwen) >= 200);
	/* what the folder's other files say */
	assert_int_equal(608, tokenizer_vocab(qwen.t));
	assert_string_equal("[PAD605]", tokenizer_text(qwen.t, 605));
	assert_int_equal(1, tokenizer_bos(llama.t));
	assert_int_equal(-1, tokenizer_bos(qwen.t));
	assert_true(tokenizer_is_eog(llama.t, 2) && tokenizer_is_eog(llama.t, 0) && !tokenizer_is_eog(llama.t, 1));
	tokenizer_free(llama.t);
	tokenizer_free(qwen.t);
}

static void encode(const char *text, size_t len, bool special, uint32_t **ids, size_t *n)
{
	assert_int_equal(0, tokenizer_encode(toy, text, len, special, SIZE_MAX, ids, n));
}

static void test_control_text_is_text_unless_asked(void **state)
{
	static const char text[] = "<|im_end|>";
	int64_t end = tokenizer_special(toy, text);
	uint32_t *ids;
	size_t n, len;

	(void)state;
	assert_true(end >= 0);
	assert_int_equal(-1, tokenizer_special(toy, "the"));
	encode(text, strlen(text), true, &ids, &n);
	assert_int_equal(1, n);
	assert_int_equal(end, ids[0]);
	free(ids);
	encode(text, strlen(text), false, &ids, &n);
	assert_true(n > 1);
	for (size_t i = 0; i < n; i++)
		assert_int_not_equal(end, ids[i]);
	free(ids);
	assert_string_equal("", tokenizer_token(toy, (uint32_t)end, &len));
	assert_int_equal(0, len);
	assert_string_equal("", tokenizer_token(toy, UINT32_MAX, &len));
}

static void test_decoding_gives_back_the_text(void **state)
{
	static const char text[] = "Tab\t na\xc3\xafve \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7 \xe4\xbd\xa0\xe5\xa5\xbd 123\r\n\r\n  x\xc2\xa0\xe2\x80\xa8y";
	char out[256];
	uint32_t *ids;
	size_t n, at = 0;

	(void)state;
	encode(text, sizeof text - 1, false, &ids, &n);
	for (size_t i = 0; i < n; i++) {
		size_t len;
		const char *p = tokenizer_token(toy, ids[i], &len);
		memcpy(out + at, p, len);
		at += len;
	}
	assert_int_equal(sizeof text - 1, at);
	assert_memory_equal(text, out, at);
	free(ids);
}

static void test_most(void **state)
{
	static const char text[] = "one two three, four five";
	uint32_t *ids = NULL;
	size_t all, n;
	char *word = malloc(TOKENIZER_WORD + 2);

	(void)state;
	encode(text, sizeof text - 1, true, &ids, &all);
	free(ids);
	ids = NULL;
	assert_true(all > 4);
	for (size_t most = 0; most < all; most++)
		assert_int_equal(-E2BIG, tokenizer_encode(toy, text, sizeof text - 1, true, most, &ids, &n));
	assert_null(ids);
	assert_int_equal(0, tokenizer_encode(toy, text, sizeof text - 1, true, all, &ids, &n));
	assert_int_equal(n, all);
	free(ids);
	ids = NULL;
	/* of added tokens alone */
	assert_int_equal(-E2BIG, tokenizer_encode(toy, "<|im_start|><|im_start|><|im_start|>", 36, true, 2, &ids, &n));
	assert_int_equal(0, tokenizer_encode(toy, "<|im_start|><|im_start|><|im_start|>", 36, true, 3, &ids, &n));
	assert_int_equal(n, 3);
	free(ids);
	ids = NULL;
	memset(word, 'a', TOKENIZER_WORD + 1);
	word[TOKENIZER_WORD + 1] = '\0';
	assert_int_equal(-EMSGSIZE, tokenizer_encode(toy, word, TOKENIZER_WORD + 1, true, 1 << 30, &ids, &n));
	assert_null(ids);
	assert_int_equal(0, tokenizer_encode(toy, word, TOKENIZER_WORD, true, 1 << 30, &ids, &n));
	free(ids);
	free(word);
}

static void test_invalid_utf8_is_refused(void **state)
{
	static const char *const bad[] = {"\xff", "a\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe0\x80\x80", "\x80", "\xf8\x88\x80\x80\x80", "\xe2\x82"};
	uint32_t *ids = NULL;
	size_t n;

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		assert_int_equal(-EILSEQ, tokenizer_encode(toy, bad[i], strlen(bad[i]), true, SIZE_MAX, &ids, &n));
	assert_null(ids);
	assert_true(utf8_valid((const uint8_t *)"\xf4\x8f\xbf\xbf\xef\xbf\xbf\xed\x9f\xbf", 10));
	encode("", 0, true, &ids, &n);
	assert_int_equal(0, n);
	free(ids);
}

/* One word of n letters, the time in µs. */
static uint64_t time_word(size_t n)
{
	char *text = malloc(n);
	uint64_t start = clock_us();
	uint32_t *ids;
	size_t got;

	for (size_t i = 0; i < n; i++)
		text[i] = "ethanolism"[i * 7 % 10];
	encode(text, n, true, &ids, &got);
	start = clock_us() - start;
	free(ids);
	free(text);
	return start;
}

static void test_a_long_word_is_not_quadratic(void **state)
{
	(void)state;
	/* 1 MB; a quadratic merge would need hours, a heap well under a second */
	assert_true(time_word(1 << 20) < 15000000);
}

static void test_short_and_long_path_agree(void **state)
{
	(void)state;
	/* The cut between scanning and heap is at 32 symbols: all lengths around it give a text
	 * whose tokens, decoded, are the text, and the longer starts as the shorter does for
	 * repeated letters. The vectors hold the exact expectations; this watches the border. */
	for (size_t n = 28; n < 40; n++) {
		char text[64];
		uint32_t *ids;
		size_t got, bytes = 0;
		memset(text, 'e', n);
		encode(text, n, false, &ids, &got);
		for (size_t i = 0; i < got; i++) {
			size_t len;
			(void)tokenizer_token(toy, ids[i], &len);
			bytes += len;
		}
		assert_int_equal(n, bytes);
		free(ids);
	}
}

static void test_hash_is_of_the_contents(void **state)
{
	struct tokenizer *again = toy_tokenizer();
	char a[65], b[65];

	(void)state;
	tokenizer_sha(toy, a);
	tokenizer_sha(again, b);
	assert_int_equal(64, strlen(a));
	assert_string_equal(a, b);
	tokenizer_free(again);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_toy_vectors), cmocka_unit_test(test_folder_vectors),
		cmocka_unit_test(test_smollm2_vectors),
		cmocka_unit_test(test_control_text_is_text_unless_asked),
		cmocka_unit_test(test_decoding_gives_back_the_text),
		cmocka_unit_test(test_most), cmocka_unit_test(test_invalid_utf8_is_refused),
		cmocka_unit_test(test_a_long_word_is_not_quadratic),
		cmocka_unit_test(test_short_and_long_path_agree),
		cmocka_unit_test(test_hash_is_of_the_contents),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
