/* SHA-256 against FIPS 180-2's vectors and HMAC against RFC 4231's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "daemon/base/sha.h"

static void vectors(void **state)
{
	char hex[SHA_HEX], again[SHA_HEX];
	struct sha *s;

	(void)state;
	sha_hex("abc", 3, hex);
	assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
	sha_hex(NULL, 0, hex);
	assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
	s = sha_new();
	assert_non_null(s);
	for (int i = 0; i < 1000000; i += 1000) {
		char block[1000];

		memset(block, 'a', sizeof block);
		sha_update(s, block, sizeof block);
	}
	sha_final_hex(s, again);
	assert_string_equal(again, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
	sha_free(s);
	sha_hmac_hex("Jefe", 4, "what do ya want for nothing?", 28, hex);
	assert_string_equal(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
	memcpy(again, hex, sizeof again);
	assert_true(sha_same(hex, again));
	again[SHA_HEX - 2] ^= 1;
	assert_false(sha_same(hex, again));
}

static void files(void **state)
{
	char path[] = "/tmp/redraft-test-sha-XXXXXX", hex[SHA_HEX] = "untouched";
	int fd = mkstemp(path);

	(void)state;
	assert_int_equal(write(fd, "abc", 3), 3);
	close(fd);
	assert_int_equal(sha_file_hex(path, hex), 0);
	assert_memory_equal(hex, "ba7816bf", 8);
	unlink(path);
	strcpy(hex, "untouched");
	assert_int_equal(sha_file_hex(path, hex), -ENOENT);
	assert_string_equal(hex, "untouched");
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(vectors), cmocka_unit_test(files)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
