/* The part of cuda_bf16.h that kernels/cuda uses, as tests/cuemu gives it on a CPU. */
#pragma once
#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
	uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
	__nv_bfloat16 x, y;
};

static inline float __bfloat162float(__nv_bfloat16 h)
{
	uint32_t u = (uint32_t)h.bits << 16;
	float f;
	memcpy(&f, &u, sizeof f);
	return f;
}

/* Nearest even; every NaN becomes the same one */
static inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
	uint32_t u;
	memcpy(&u, &f, sizeof u);
	if ((u & 0x7fffffffu) > 0x7f800000u)
		return __nv_bfloat16{0x7fff};
	return __nv_bfloat16{(uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16)};
}

static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
	return __nv_bfloat162{__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
