/* What this proves: every input in tests/fuzz/corpus, found by fuzzing and kept for the paths it
 * takes through a parser, is handled as the harnesses demand: refused with a sentence, or
 * parsed into something that keeps the parser's promises. `make fuzz` searches for more. */
#define FUZZ_REPLAY
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <dirent.h>
#include <limits.h>
#include "daemon/base/fs.h"
#include "tests/fuzz/fuzz_draft_config.c"
#include "tests/fuzz/fuzz_gguf.c"
#include "tests/fuzz/fuzz_record.c"
#include "tests/fuzz/fuzz_round.c"
#include "tests/fuzz/fuzz_safetensors.c"

static void replay(const char *name, int (*one)(const uint8_t *data, size_t size))
{
	char path[PATH_MAX];
	struct dirent *d;
	int n = 0;

	(void)snprintf(path, sizeof path, "tests/fuzz/corpus/%s", name);
	DIR *dir = opendir(path);
	assert_non_null(dir);
	while ((d = readdir(dir))) {
		struct fs_map map;
		if (d->d_name[0] == '.')
			continue;
		(void)snprintf(path, sizeof path, "tests/fuzz/corpus/%s/%s", name, d->d_name);
		assert_int_equal(fs_map(path, &map), 0);
		uint8_t *copy = malloc(map.len + 1); /* of its exact size, so that ASan sees a read past the end */
		assert_non_null(copy);
		if (map.len)
			memcpy(copy + 1, map.data, map.len); /* and unaligned, as payloads are */
		(void)one(copy + 1, map.len);
		free(copy);
		fs_unmap(&map);
		n++;
	}
	(void)closedir(dir);
	print_message("%s: %d inputs\n", name, n);
	assert_true(n > 0);
}

static void test_safetensors(void **state)
{
	(void)state;
	replay("safetensors", fuzz_safetensors);
}

static void test_record(void **state)
{
	(void)state;
	replay("record", fuzz_record);
}

static void test_round(void **state)
{
	(void)state;
	replay("round", fuzz_round);
}

static void test_draft_config(void **state)
{
	(void)state;
	replay("draft_config", fuzz_draft_config);
}

static void test_gguf(void **state)
{
	(void)state;
	replay("gguf", fuzz_gguf);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_safetensors),  cmocka_unit_test(test_record), cmocka_unit_test(test_round),
		cmocka_unit_test(test_draft_config), cmocka_unit_test(test_gguf),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
