/* The AVX-512 path (F, BW, VL, BF16): 16 lanes, tiles of 6 x 32. */
#if defined(__AVX512F__) && defined(__AVX512BF16__) && !defined(REDRAFT_DOUBLE)
#include <immintrin.h>
#define VL           16
#define MR           6
#define KERN_NAME    cpu_kernels_avx512
#define FMA(a, b, c) ((vf)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define VMAX(a, b)   ((vf)_mm512_max_ps((__m512)(a), (__m512)(b)))
#include "kernels/cpu/kern.inc"
#endif
