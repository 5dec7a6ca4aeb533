/* The CPU back end's table: which file fills which slot of kernels/ops.h.
 *
 * Device memory is ordinary memory, so upload and download are copies.
 */
#include "kernels/cpu/cpu.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void *cpu_alloc(struct dev *d, size_t bytes)
{
	void *p = cpu_alloc_bytes(bytes);
	if (!p)
		(void)cpu_fail_memory(d, "device memory", bytes);
	return p;
}

static void cpu_free(struct dev *d, void *p)
{
	(void)d;
	free(p);
}

static int cpu_copy(struct dev *d, void *dst, const void *src, size_t bytes)
{
	(void)d;
	if (bytes)
		memcpy(dst, src, bytes);
	return 0;
}

static int cpu_zero(struct dev *d, void *p, size_t bytes)
{
	(void)d;
	if (bytes)
		memset(p, 0, bytes);
	return 0;
}

static int cpu_sync(struct dev *d)
{
	(void)d;
	return 0;
}

static int cpu_repeat(struct dev *d, const void *key, size_t n, int (*run)(void *arg), void *arg)
{
	(void)d, (void)key, (void)n;
	return run(arg);
}

static void cpu_stamp(struct dev *d, int i)
{
	struct timespec t;
	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	cpu_of(d)->stamps[i] = (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static double cpu_lapse(struct dev *d, int a, int b)
{
	return cpu_of(d)->stamps[b] - cpu_of(d)->stamps[a];
}

extern const struct ops ops_cpu;
const struct ops ops_cpu = {
	.alloc = cpu_alloc,
	.alloc_shared = cpu_alloc,
	.free = cpu_free,
	.upload = cpu_copy,
	.download = cpu_copy,
	.zero = cpu_zero,
	.sync = cpu_sync,
	.weight_pack = cpu_weight_pack,
	.weight_unpack = cpu_weight_unpack,
	.weight_free = cpu_weight_free,
	.repeat = cpu_repeat,
	.stamp = cpu_stamp,
	.lapse = cpu_lapse,
	.embed = cpu_embed,
	.linear = cpu_linear,
	.rmsnorm = cpu_rmsnorm,
	.rope = cpu_rope,
	.silu_gate = cpu_silu_gate,
	.add = cpu_add,
	.copy_rows = cpu_copy_rows,
	.topk = cpu_topk,
	.topk_async = cpu_topk,
	.topk_named = cpu_topk_named,
	.draw = cpu_draw,
	.kv_new = cpu_kv_new,
	.kv_free = cpu_kv_free,
	.kv_write = cpu_kv_write,
	.kv_copy = cpu_kv_copy,
	.attn = cpu_attn,
	.gemm = cpu_gemm,
	.rmsnorm_backward = cpu_rmsnorm_backward,
	.silu_gate_backward = cpu_silu_gate_backward,
	.ttt_attn = cpu_ttt_attn,
	.ttt_attn_backward = cpu_ttt_attn_backward,
	.ttt_attn_more = cpu_ttt_attn_more,
	.ttt_attn_more_backward = cpu_ttt_attn_more_backward,
	.softmax = cpu_softmax,
	.distill = cpu_distill,
	.pack = cpu_tap_pack,
	.packed = cpu_tap_packed,
	.axpby = cpu_axpby,
	.sumsq = cpu_sumsq,
	.adamw = cpu_adamw,
};
