/* SHA-256 by libcrypto (it has the CPU's SHA instructions). libcrypto can only
 * fail here for want of memory, which sha_new reports; after that a failure
 * would be a programming error and the hash reads all zeros, which no file has.
 */
#include "daemon/base/sha.h"
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/base/fs.h"

struct sha {
	EVP_MD_CTX *ctx;
};

static void sha_to_hex(const uint8_t *raw, char *ret_hex)
{
	static const char digits[] = "0123456789abcdef";

	for (int i = 0; i < SHA_BYTES; i++) {
		ret_hex[2 * i] = digits[raw[i] >> 4];
		ret_hex[2 * i + 1] = digits[raw[i] & 15];
	}
	ret_hex[SHA_HEX - 1] = '\0';
}

struct sha *sha_new(void)
{
	struct sha *s = calloc(1, sizeof *s);

	if (!s)
		return NULL;
	s->ctx = EVP_MD_CTX_new();
	if (!s->ctx || EVP_DigestInit_ex(s->ctx, EVP_sha256(), NULL) != 1)
		return sha_free(s);
	return s;
}

void sha_update(struct sha *s, const void *p, size_t n)
{
	if (n)
		(void)EVP_DigestUpdate(s->ctx, p, n);
}

void sha_final_hex(struct sha *s, char ret_hex[static SHA_HEX])
{
	uint8_t raw[EVP_MAX_MD_SIZE] = {0};
	unsigned n = 0;

	(void)EVP_DigestFinal_ex(s->ctx, raw, &n);
	sha_to_hex(raw, ret_hex);
}

struct sha *sha_free(struct sha *s)
{
	if (s)
		EVP_MD_CTX_free(s->ctx);
	free(s);
	return NULL;
}

void sha_hex(const void *p, size_t n, char ret_hex[static SHA_HEX])
{
	uint8_t raw[EVP_MAX_MD_SIZE] = {0};
	unsigned len = 0;

	(void)EVP_Digest(n ? p : "", n, raw, &len, EVP_sha256(), NULL);
	sha_to_hex(raw, ret_hex);
}

int sha_file_hex(const char *path, char ret_hex[static SHA_HEX])
{
	struct fs_map m;
	int r = fs_map(path, &m);

	if (r < 0)
		return r;
	sha_hex(m.data, m.len, ret_hex);
	fs_unmap(&m);
	return 0;
}

bool sha_same(const char a[static SHA_HEX], const char b[static SHA_HEX])
{
	return CRYPTO_memcmp(a, b, SHA_HEX) == 0;
}

void sha_hmac_hex(const void *key, size_t n_key, const void *p, size_t n, char ret_hex[static SHA_HEX])
{
	uint8_t raw[EVP_MAX_MD_SIZE] = {0};
	unsigned len = 0;

	(void)HMAC(EVP_sha256(), n_key ? key : "", (int)n_key, n ? p : (const void *)"", n, raw, &len);
	sha_to_hex(raw, ret_hex);
}
