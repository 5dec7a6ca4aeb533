/* How a register tile's source becomes straight code: a function whose sizes are constants of each instance is inlined whole, its
 * loops unrolled, so that what it adds to lies in registers.
 *
 * Under the sanitizer one instance with run-time sizes does (same order, same bits): forty unrolled ones take it minutes to compile.
 */
#pragma once
#define INLINE static inline __attribute__((always_inline))
#ifdef __SANITIZE_ADDRESS__
#define TILE static __attribute__((noinline))
#define UNROLL
#else
#define TILE   INLINE
#define UNROLL _Pragma("GCC unroll 16")
#endif
