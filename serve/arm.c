/* Arms of a canary (arm.h). */
#include "serve/arm.h"

/* FNV-1a over all bytes, then a finaliser: FNV alone leaves the high bits of short keys poor. */
static uint64_t fold(uint64_t h, const char *s)
{
	for (; *s; s++)
		h = (h ^ (uint8_t)*s) * 0x100000001b3u;
	return h;
}

bool arm_is_canary(const char *salt, uint32_t permille, const char *conversation, const char *request)
{
	uint64_t h = fold(fold(fold(0xcbf29ce484222325u, salt), ":"), *conversation ? conversation : request);

	h ^= h >> 33;
	h *= 0xff51afd7ed558ccdu;
	h ^= h >> 33;
	h *= 0xc4ceb9fe1a85ec53u;
	h ^= h >> 33;
	return h % 1000 < permille; /* the remainder's bias is 1e-16 */
}
