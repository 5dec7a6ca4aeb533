/* What this proves: the hash does not depend on the order tensors were added, depends on
 * every byte, name, dtype and shape, and is the one that fingerprint.c's comment defines
 * (an independent value made with Python's hashlib). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>
#include "schemas/draft_config.h"

static const uint16_t a[6] = {1, 2, 3, 4, 5, 6};
static const int64_t b[2] = {-1, 7};

static void hash(int order, const char *name, const char *dtype, uint64_t d0, uint64_t d1, uint16_t last, char ret[65])
{
	uint64_t shape_a[2] = {d0, d1}, shape_b = 2;
	uint16_t data[6];
	struct fp *f = fp_new();

	memcpy(data, a, sizeof a);
	data[5] = last;
	for (int i = 0; i < 2; i++) {
		if (i == order)
			assert_int_equal(fp_add(f, name, dtype, shape_a, 2, data, sizeof data), 0);
		else
			assert_int_equal(fp_add(f, "b", "I64", &shape_b, 1, b, sizeof b), 0);
	}
	assert_int_equal(fp_final_hex(f, ret), 0);
	fp_free(f);
}

static void test_hash(void **state)
{
	(void)state;
	char x[65], y[65];

	hash(0, "a", "BF16", 2, 3, 6, x);
	assert_string_equal(x, "f7847a90832a539a28881149101eec255372695fdf72f52986061281f77e045a");
	hash(1, "a", "BF16", 2, 3, 6, y);
	assert_string_equal(x, y);
	hash(0, "c", "BF16", 2, 3, 6, y);
	assert_string_not_equal(x, y);
	hash(0, "a", "F16", 2, 3, 6, y);
	assert_string_not_equal(x, y);
	hash(0, "a", "BF16", 3, 2, 6, y);
	assert_string_not_equal(x, y);
	hash(0, "a", "BF16", 2, 3, 7, y);
	assert_string_not_equal(x, y);
}

static void test_edges(void **state)
{
	(void)state;
	char x[65] = "untouched", y[65];
	uint64_t shape[9] = {1};
	struct fp *f = fp_new(), *g = fp_new();

	assert_int_equal(fp_add(f, "a", "U8", shape, 9, a, 1), -EINVAL);
	assert_int_equal(fp_add_bf16(f, "v", 1, 6, a), 0); /* one row: a vector */
	shape[0] = 6;
	assert_int_equal(fp_add(g, "v", "BF16", shape, 1, a, 12), 0);
	assert_int_equal(fp_final_hex(f, x), 0);
	assert_int_equal(fp_final_hex(g, y), 0);
	assert_string_equal(x, y);
	assert_int_equal(fp_add_bf16(g, "v", 1, 6, a), 0);
	assert_int_equal(fp_final_hex(g, y), -EINVAL); /* one name twice */
	fp_free(f);
	fp_free(g);
	fp_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_hash), cmocka_unit_test(test_edges)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
