/* Features as the tap takes them along: bf16, or 8 bits with a scale for each boundary's H values, so that
 * what crosses to the host is half or a quarter of the floats. 8 bits are made of the bf16, by the
 * arithmetic of schemas/record_payload.c step by step: no sum follows a product, so nothing can be contracted, and
 * what a NaN looks like is said, not left to the device.
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

/* Nearest even; past 448 the largest, as conversion to e4m3 "satfinite" does. */
static __device__ inline uint8_t float_e4m3(float f)
{
	union bits32 x;
	x.f = f;
	uint8_t sign = (uint8_t)(x.u >> 24 & 0x80);
	float a = fabsf(f);
	if (a >= 464) /* half way to 480, which does not exist */
		return sign | 0x7e;
	if (a < 0.015625f) /* below 2^-6: steps of 2^-9 */
		return (uint8_t)(sign | (uint8_t)rintf(a * 512));
	x.f = a;
	x.u += 0x7ffffu + (x.u >> 20 & 1u); /* 3 bits of mantissa stay */
	uint32_t e4m3 = (x.u >> 20) - ((127 - 7) << 3);
	return (uint8_t)(sign | (e4m3 > 0x7e ? 0x7e : e4m3));
}

static __global__ void pack_8bit_kernel(uint8_t *y, float *scales, const float *x, int H, int whole)
{
	__shared__ float red[THREADS / WARP];
	const float *xr = x + (size_t)blockIdx.x * (size_t)H;
	uint8_t *yr = y + (size_t)blockIdx.x * (size_t)H;
	float most = 0;
	for (int i = (int)threadIdx.x; i < H; i += THREADS)
		most = fmaxf(most, (float)(float_bf16(xr[i]) & 0x7fff)); /* of bf16 without sign, order is that of the bits: NaN last */
	uint16_t bits = (uint16_t)block_max(most, red);
	float top = bf16_float(bits), scale = top > 0 ? top / (whole ? 127.0f : 448.0f) : 1;
	bool finite = bits < 0x7f80;
	union bits32 nan;
	nan.u = 0x7fc00000;
	scale = !finite ? nan.f : scale < 0x1p-126f ? 0x1p-126f : scale;
	float inverse = 1 / scale;
	for (int i = (int)threadIdx.x; i < H; i += THREADS) {
		float v = bf16_float(float_bf16(xr[i])) * inverse;
		if (whole)
			yr[i] = finite ? (uint8_t)(int)rintf(v) : 0;
		else
			yr[i] = finite ? float_e4m3(v) : 0x7f;
	}
	if (threadIdx.x == 0)
		scales[blockIdx.x] = scale;
}

cudaError_t ck_pack_8bit(cudaStream_t s, uint8_t *y, float *scales, const float *x, int M, int H, int whole)
{
	LAUNCH(pack_8bit_kernel, (unsigned)M, THREADS, 0, s, y, scales, x, H, whole);
	return cudaGetLastError();
}
