/* The portable path: 4 lanes, whatever the compiler makes of them. The only path
 * of the double build. */
#define VL           4
#define MR           6
#define KERN_NAME    cpu_kernels_portable
#define FMA(a, b, c) ((a) * (b) + (c))
#include "kernels/cpu/kern.inc"
