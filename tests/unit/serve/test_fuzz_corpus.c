/* What this proves: the inputs that fuzzing found for what clients send (heads, chunks, bodies, answers with tool
 * calls) are handled as the harnesses demand. `make fuzz` searches for more. */
#define FUZZ_REPLAY
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "tests/fuzz/fuzz_http.c"
#include "tests/fuzz/fuzz_request.c"
#include "tests/fuzz/replay.h"

static void test_http(void **state)
{
	(void)state;
	replay("http", fuzz_http);
}

static void test_request(void **state)
{
	(void)state;
	replay("request", fuzz_request);
}

static int forget(void **state)
{
	(void)state;
	tokenizer_free((struct tokenizer *)(uintptr_t)request_model.tokenizer);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_http), cmocka_unit_test(test_request)};

	return cmocka_run_group_tests(tests, NULL, forget);
}
