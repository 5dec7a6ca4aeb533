/* The AVX-512 path (F, BW, VL, DQ): 16 lanes, tiles of 12 x 32 (24 accumulators of 32 registers). bf16 weights are widened and
 * meet f32 numbers, as on the AVX2 path. */
#if defined(__AVX512F__) && !defined(REDRAFT_DOUBLE)
#include <immintrin.h>
#define VL           16
#define MR           12
#define KERN_NAME    cpu_kernels_avx512
#define FMA(a, b, c) ((vf)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define VMAX(a, b)   ((vf)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define VMIN(a, b)   ((vf)_mm512_min_ps((__m512)(a), (__m512)(b)))
#define VSQRT(a)     ((vf)_mm512_sqrt_ps((__m512)(a)))
#include "kernels/cpu/kern.inc"
#endif
