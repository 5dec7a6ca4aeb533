/* Counter random numbers: splitmix64's finalizer (Steele, Lea and Flood, "Fast splittable pseudorandom number generators"), a good hash of
 * a counter. Who draws keeps no state but what he counts: mix64 of (seed, stream, i) put together by odd multiples is the same in every
 * life and in any order. What is drawn this way is journalled or written down elsewhere, so it must never change.
 */
#pragma once
#include <stdint.h>

#define MIX_GOLDEN 0x9e3779b97f4a7c15u /* splitmix64's own step from one state to the next */
#define MIX_OTHER 0xd1342543de82ef95u  /* another odd multiple, for a second counter */

static inline uint64_t mix64(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}
