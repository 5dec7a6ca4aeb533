/* What this proves: every input in tests/fuzz/corpus, found by fuzzing and kept for the paths it
 * takes through a parser, is handled as the harnesses demand: refused with a sentence, or
 * parsed into something that keeps the parser's promises. `make fuzz` searches for more. */
#define FUZZ_REPLAY
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "tests/fuzz/fuzz_draft_config.c"
#include "tests/fuzz/fuzz_gguf.c"
#include "tests/fuzz/fuzz_hf.c"
#include "tests/fuzz/fuzz_manifest.c"
#include "tests/fuzz/fuzz_record.c"
#include "tests/fuzz/fuzz_fleet.c"
#include "tests/fuzz/fuzz_round.c"
#include "tests/fuzz/fuzz_rpc.c"
#include "tests/fuzz/fuzz_safetensors.c"
#include "tests/fuzz/replay.h"

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

static void test_fleet(void **state)
{
	(void)state;
	replay("fleet", fuzz_fleet);
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

static void test_hf(void **state)
{
	(void)state;
	replay("hf", fuzz_hf);
}

static void test_rpc(void **state)
{
	(void)state;
	replay("rpc", fuzz_rpc);
}

static void test_manifest(void **state)
{
	(void)state;
	replay("manifest", fuzz_manifest);
	assert_int_equal(fs_remove_tree(fuzz_folder()), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_safetensors),  cmocka_unit_test(test_record), cmocka_unit_test(test_round), cmocka_unit_test(test_fleet),
		cmocka_unit_test(test_rpc), cmocka_unit_test(test_manifest), cmocka_unit_test(test_draft_config), cmocka_unit_test(test_gguf), cmocka_unit_test(test_hf),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
