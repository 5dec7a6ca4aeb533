/* What this proves: what st_write writes, st_parse reads back whole, aligned and in the
 * promised order; and every way a header can lie is refused without touching data.
 * The hostile cases follow the list in ops.md §3 (those of the safetensors project). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "schemas/safetensors.h"

/* A blob from header text and n data bytes. header_len < 0: the text's own length. */
static uint8_t *blob(const char *header, long header_len, size_t n_data, size_t *ret_len)
{
	size_t h = strlen(header);
	uint64_t n = header_len < 0 ? h : (uint64_t)header_len;
	uint8_t *p = calloc(1, 8 + h + n_data);

	for (int i = 0; i < 8; i++)
		p[i] = (uint8_t)(n >> (8 * i));
	memcpy(p + 8, header, h);
	*ret_len = 8 + h + n_data;
	return p;
}

static int parse(const char *header, size_t n_data, struct errtext *e)
{
	size_t len;
	uint8_t *p = blob(header, -1, n_data, &len);
	struct st_file *f = NULL;
	int r = st_parse(p, len, &f, e);

	assert_int_equal(r == 0, f != NULL);
	st_free(f);
	free(p);
	return r;
}

static void test_round_trip(void **state)
{
	(void)state;
	uint8_t bytes[3] = {1, 2, 3};
	uint16_t half[6] = {1, 2, 3, 4, 5, 6};
	uint32_t words[2] = {0xdeadbeef, 7};
	int64_t wide[2] = {-1, 5};
	const struct st_out t[] = {
		{"b", ST_U8, 1, {3}, bytes},         {"h", ST_BF16, 2, {2, 3}, half},   {"w", ST_U32, 1, {2}, words},
		{"q\"uote\n", ST_I64, 1, {2}, wide}, {"none", ST_F32, 2, {0, 4}, NULL}, {"scalar", ST_U32, 0, {0}, words},
	};
	const struct st_meta_kv meta[] = {{"format", "pt"}, {"key", "ünicode \\ \""}};
	struct st_file *f;

	for (int align = 8; align <= 64; align *= 8) {
		struct buf out = BUF_INIT(0);
		assert_int_equal(st_write(&out, t, 6, meta, 2, align), 0);
		struct buf head = BUF_INIT(0), again = BUF_INIT(0);
		struct fs_part part[7];
		assert_int_equal(st_lay_out(&head, t, 6, meta, 2, align, part), 0); /* the same bytes, in their places */
		for (int i = 0; i < 7; i++)
			assert_int_equal(buf_append(&again, part[i].data, part[i].len), 0);
		assert_int_equal(again.len, out.len);
		assert_memory_equal(again.data, out.data, out.len);
		buf_done(&head);
		buf_done(&again);
		assert_int_equal(st_parse(out.data, out.len, &f, NULL), 0);
		assert_int_equal(st_count(f), 6);
		assert_string_equal(st_meta(f, "key"), meta[1].value);
		assert_null(st_meta(f, "nothing"));
		assert_null(st_find(f, "nothing"));
		for (int i = 0; i < 6; i++) {
			const struct st_tensor *x = st_find(f, t[i].name);
			assert_non_null(x);
			assert_int_equal(x->dtype, t[i].dtype);
			assert_int_equal(x->n_dims, t[i].n_dims);
			for (int d = 0; d < x->n_dims; d++)
				assert_int_equal(x->shape[d], t[i].shape[d]);
			if (x->bytes)
				assert_memory_equal(x->data, t[i].data, x->bytes);
			/* descending element size makes every tensor naturally aligned */
			assert_int_equal((size_t)(x->data - out.data) % st_dtype_size(x->dtype), 0);
		}
		assert_int_equal((size_t)(st_at(f, 0)->data - out.data) % (size_t)align, 0);
		assert_null(st_at(f, 6));
		assert_null(st_at(f, -1));
		st_free(f);
		buf_done(&out);
	}
}

static void test_writer_refuses(void **state)
{
	(void)state;
	uint8_t x[4] = {0};
	const struct st_out twice[] = {{"a", ST_U8, 1, {1}, x}, {"a", ST_U8, 1, {1}, x}};
	const struct st_out reserved = {"__metadata__", ST_U8, 1, {1}, x};
	const struct st_out huge = {"a", ST_F64, 2, {1ull << 62, 8}, x};
	const struct st_meta_kv not_utf8 = {"k", "\xff"};
	struct buf out = BUF_INIT(64);

	assert_int_equal(st_write(&out, twice, 2, NULL, 0, 8), -EINVAL);
	assert_int_equal(st_write(&out, &reserved, 1, NULL, 0, 8), -EINVAL);
	assert_int_equal(st_write(&out, &huge, 1, NULL, 0, 8), -EINVAL);
	assert_int_equal(st_write(&out, twice, 1, &not_utf8, 1, 8), -EINVAL);
	assert_int_equal(st_write(&out, twice, 1, NULL, 0, 8), -E2BIG); /* the buffer's own bound */
	assert_int_equal(out.len, 0);
	buf_done(&out);
}

static void test_accepts(void **state)
{
	(void)state;
	assert_int_equal(parse("{}", 0, NULL), 0);
	assert_int_equal(parse("{}      ", 0, NULL), 0); /* padded with spaces */
	assert_int_equal(parse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, NULL), 0);
	assert_int_equal(parse("{\"a\":{\"dtype\":\"F32\",\"shape\":[2,0],\"data_offsets\":[0,0]}}", 0, NULL), 0);
	assert_int_equal(parse("{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4],\"more\":1}}", 4, NULL), 0);
}

static void test_refuses(void **state)
{
	(void)state;
	static const struct {
		const char *header;
		size_t n_data;
	} bad[] = {
		{" {}", 0}, /* leading space */
		{"[]", 0},
		{"{", 0},
		{"{}}", 0},
		{"{}{}", 0},
		{"{\"a\":1}", 0},
		{"{\"a\":{}}", 0},
		{"{\"\xff\":1}", 0}, /* not UTF-8 */
		{"{\"__metadata__\":[]}", 0},
		{"{\"__metadata__\":{\"a\":1}}", 0},
		{"{}", 1}, /* bytes after the end */
		{"{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
		{"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 3}, /* incomplete */
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 5},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8}, /* hole at the start */
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1],\"data_offsets\":[0,4]}}", 4},
		/* products that overflow, alone and with the element size */
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[18446744073709551616],\"data_offsets\":[0,0]}}", 0},
		/* duplicate name; overlap; hole between */
		{"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,"
		 "1]}}",
		 1},
		{"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,"
		 "3]}}",
		 3},
		{"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,"
		 "2]}}",
		 2},
		{"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,"
		 "3]}}",
		 3},
	};

	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		struct errtext e = {""};
		if (parse(bad[i].header, bad[i].n_data, &e) != -EINVAL)
			fail_msg("accepted: %s", bad[i].header);
		assert_true(e.text[0]);
	}
}

static void test_header_length(void **state)
{
	(void)state;
	static const long lengths[] = {0, 1, 3, 1 << 20, (1 << 20) + 1, 100000000, 0x7fffffffffffffff};
	struct st_file *f = NULL;
	size_t len;

	for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
		uint8_t *p = blob("{}", lengths[i], 0, &len);
		assert_int_equal(st_parse(p, len, &f, NULL), -EINVAL);
		for (size_t cut = 0; cut < 8; cut++)
			assert_int_equal(st_parse(p, cut, &f, NULL), -EINVAL);
		free(p);
	}
	/* nesting that would exhaust a recursive parser */
	char *deep = malloc(1 << 20);
	memset(deep, '[', (1 << 20) - 1);
	deep[0] = '{';
	deep[(1 << 20) - 1] = 0;
	assert_int_equal(parse(deep, 0, NULL), -EINVAL);
	free(deep);
}

/* Every truncation of a good blob is refused; every single-byte change is refused or harmless. */
static void test_damage(void **state)
{
	(void)state;
	uint16_t half[8] = {0};
	const struct st_out t[] = {{"one", ST_U16, 1, {4}, half}, {"two", ST_U16, 2, {2, 2}, half}};
	struct buf out = BUF_INIT(0);
	struct st_file *f;

	assert_int_equal(st_write(&out, t, 2, NULL, 0, 8), 0);
	for (size_t n = 0; n < out.len; n++)
		assert_int_equal(st_parse(out.data, n, &f, NULL), -EINVAL);
	for (size_t i = 0; i < out.len; i++) {
		for (int bit = 0; bit < 8; bit++) {
			uint8_t *copy = malloc(out.len);
			memcpy(copy, out.data, out.len);
			copy[i] ^= (uint8_t)(1 << bit);
			if (st_parse(copy, out.len, &f, NULL) == 0) {
				for (int j = 0; j < st_count(f); j++)
					assert_true(st_at(f, j)->data + st_at(f, j)->bytes <= copy + out.len);
				st_free(f);
			}
			free(copy);
		}
	}
	buf_done(&out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip), cmocka_unit_test(test_writer_refuses), cmocka_unit_test(test_accepts),
		cmocka_unit_test(test_refuses),    cmocka_unit_test(test_header_length),  cmocka_unit_test(test_damage),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
