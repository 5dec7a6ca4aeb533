/* Arms of a canary (arm.h). */
#include "daemon/base/fnv.h"
#include "serve/arm.h"

bool arm_is_canary(const char *salt, uint32_t permille, const char *conversation, const char *request)
{
	uint64_t h = fnv1a_text(fnv1a_text(fnv1a_text(FNV1A, salt), ":"), *conversation ? conversation : request);

	h ^= h >> 33;
	h *= 0xff51afd7ed558ccdu;
	h ^= h >> 33;
	h *= 0xc4ceb9fe1a85ec53u;
	h ^= h >> 33;
	return h % 1000 < permille; /* the remainder's bias is 1e-16 */
}
