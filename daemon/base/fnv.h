/* FNV-1a of 64 bits: for tables in memory and for shares that several processes must agree on. Not against an adversary, and its high bits are poor
 * for short keys: who takes a share or a remainder mixes the result once more.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define FNV1A 0xcbf29ce484222325u /* where a hash begins */

static inline uint64_t fnv1a(uint64_t h, const void *p, size_t n)
{
	for (const uint8_t *b = (const uint8_t *)p; n--; b++)
		h = (h ^ *b) * 0x100000001b3u;
	return h;
}

static inline uint64_t fnv1a_text(uint64_t h, const char *s)
{
	return fnv1a(h, s, strlen(s));
}
