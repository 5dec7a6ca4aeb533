/* The AVX2 + FMA path: 8 lanes, 6 x 16 tiles (12 accumulators of 16 registers). */
#if defined(__AVX2__) && defined(__FMA__) && !defined(REDRAFT_DOUBLE)
#include <immintrin.h>
#define VL           8
#define MR           6
#define KERN_NAME    cpu_kernels_avx2
/* named, not left to contraction: the law of order must not hang on an optimizer */
#define FMA(a, b, c) ((vf)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define VMAX(a, b)   ((vf)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define VMIN(a, b)   ((vf)_mm256_min_ps((__m256)(a), (__m256)(b)))
#define VSQRT(a)     ((vf)_mm256_sqrt_ps((__m256)(a)))
#include "kernels/cpu/kern.inc"
#endif
