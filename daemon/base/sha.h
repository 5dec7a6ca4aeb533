/* SHA-256 and HMAC-SHA-256 (libcrypto), as bytes and as lower-case hex. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "daemon/base/err.h"

enum { SHA_BYTES = 32, SHA_HEX = 65 };

struct sha; /* running hash, owned by the caller through sha_new/sha_free */
struct sha *sha_new(void); /* NULL when out of memory */
void sha_update(struct sha *s, const void *p, size_t n);
void sha_final_hex(struct sha *s, char ret_hex[static SHA_HEX]); /* then only sha_free */
struct sha *sha_free(struct sha *s);

void sha_hex(const void *p, size_t n, char ret_hex[static SHA_HEX]);
int MUSTCHECK sha_file_hex(const char *path, char ret_hex[static SHA_HEX]); /* -errno */
bool sha_same(const char a[static SHA_HEX], const char b[static SHA_HEX]); /* no sooner for a better guess */
void sha_hmac_hex(const void *key, size_t n_key, const void *p, size_t n, char ret_hex[static SHA_HEX]);

/* Is it one as hex, lower case? NULL is none. */
static inline bool sha_is_hex(const char *s)
{
	return s && strlen(s) == SHA_HEX - 1 && strspn(s, "0123456789abcdef") == SHA_HEX - 1;
}
