/* Features as the tap sends them (schemas/record.md): bf16, its two byte planes, or e4m3
 * with a scale for each boundary's H values. Packed on the device, so that what crosses
 * to the pinned ring is half or a quarter of the floats.
 */
#include "kernels/cuda/kern.cuh"

static __global__ void pack_bf16_kernel(uint16_t *y, const float *x, size_t n)
{
	for (size_t i = grid_first(); i < n; i += grid_step())
		y[i] = float_bf16(x[i]);
}

cudaError_t ck_pack_bf16(cudaStream_t s, uint16_t *y, const float *x, size_t n)
{
	LAUNCH(pack_bf16_kernel, grid_for(n), THREADS, 0, s, y, x, n);
	return cudaGetLastError();
}

static __global__ void pack_planes_kernel(uint8_t *hi, uint8_t *lo, const float *x, size_t n)
{
	for (size_t i = grid_first(); i < n; i += grid_step()) {
		uint16_t h = float_bf16(x[i]);
		hi[i] = (uint8_t)(h >> 8);
		lo[i] = (uint8_t)h;
	}
}

cudaError_t ck_pack_planes(cudaStream_t s, uint8_t *hi, uint8_t *lo, const float *x, size_t n)
{
	LAUNCH(pack_planes_kernel, grid_for(n), THREADS, 0, s, hi, lo, x, n);
	return cudaGetLastError();
}

/* Nearest even; past 448 the largest, as conversion to e4m3 "satfinite" does. NaN is 0x7f. */
static __device__ inline uint8_t float_e4m3(float f)
{
	union bits32 x;
	x.f = f;
	uint8_t sign = (uint8_t)(x.u >> 24 & 0x80);
	float a = fabsf(f);
	if (!(a == a))
		return 0x7f;
	if (a >= 464) /* half way to 480, which does not exist */
		return sign | 0x7e;
	if (a < 0.015625f) /* below 2^-6: steps of 2^-9 */
		return (uint8_t)(sign | (uint8_t)rintf(a * 512));
	x.f = a;
	x.u += 0x7ffffu + (x.u >> 20 & 1u); /* 3 bits of mantissa stay */
	uint32_t e4m3 = (x.u >> 20) - ((127 - 7) << 3);
	return (uint8_t)(sign | (e4m3 > 0x7e ? 0x7e : e4m3));
}

static __global__ void pack_fp8_kernel(uint8_t *y, float *scales, const float *x, int H)
{
	__shared__ float red[THREADS / WARP];
	const float *xr = x + (size_t)blockIdx.x * (size_t)H;
	uint8_t *yr = y + (size_t)blockIdx.x * (size_t)H;
	float mx = 0;
	for (int i = (int)threadIdx.x; i < H; i += THREADS)
		mx = fmaxf(mx, fabsf(xr[i]));
	mx = block_max(mx, red);
	float scale = mx > 0 ? mx / 448 : 1;
	for (int i = (int)threadIdx.x; i < H; i += THREADS)
		yr[i] = float_e4m3(xr[i] / scale);
	if (threadIdx.x == 0)
		scales[blockIdx.x] = scale;
}

cudaError_t ck_pack_fp8(cudaStream_t s, uint8_t *y, float *scales, const float *x, int M, int H)
{
	LAUNCH(pack_fp8_kernel, (unsigned)M, THREADS, 0, s, y, scales, x, H);
	return cudaGetLastError();
}
