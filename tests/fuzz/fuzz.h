/* One harness a parser. Under libFuzzer its entry is LLVMFuzzerTestOneInput; in the
 * replay test (tests/unit/schemas/test_fuzz_corpus.c) all of them share one binary. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef FUZZ_REPLAY
#define FUZZ(name) static int fuzz_##name(const uint8_t *data, size_t size)
#else
#define FUZZ(name)                                                                                                                        \
	int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);                                                                     \
	int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
#endif

/* What the parser promised does not hold: stop where a debugger can look. */
#define FUZZ_CHECK(x)                                                                                                                     \
	do {                                                                                                                              \
		if (!(x)) {                                                                                                               \
			(void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x);                                                     \
			abort();                                                                                                          \
		}                                                                                                                         \
	} while (0)
