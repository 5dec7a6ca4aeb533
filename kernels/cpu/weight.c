/* Packed weights: [N outputs, K inputs] cut into panels of nr outputs.
 *
 * cpu.h gives the layouts. The last panel is padded with zero outputs, and K with
 * a zero for the paired layout. Host f32 is 4 bytes in every build; in memory an
 * f32 weight is `real`, so the double build's linear is exact in double.
 */
#include "kernels/cpu/cpu.h"
#include <string.h>

struct pack_job {
	const struct cpu_kernels *k;
	const struct weight *w;
	const void *src;
	enum dtype src_type;
	void *dst; /* unpack only */
};

/* Elements of one panel */
static size_t panel_elems(const struct cpu_kernels *k, const struct weight *w)
{
	bool pairs = k->dot_pairs && w->type == DT_BF16;
	return (size_t)k->nr * (pairs ? cpu_round_up((size_t)w->K, 2) : (size_t)w->K);
}

/* Where output j of a panel has input kk */
static size_t panel_at(const struct cpu_kernels *k, const struct weight *w, int j, int kk)
{
	if (w->type == DT_F32)
		return (size_t)kk * (size_t)k->nr + (size_t)j;
	if (k->dot_pairs)
		return (size_t)(kk / 2) * (size_t)k->nr * 2 + (size_t)j * 2 + (size_t)(kk % 2);
	return (size_t)kk * (size_t)k->nr + (size_t)cpu_lane(j, k->nr);
}

static uint16_t src_bf16(const struct pack_job *job, size_t i)
{
	if (job->src_type == DT_BF16)
		return ((const uint16_t *)job->src)[i];
	return f32_to_bf16(((const float *)job->src)[i]);
}

static float src_f32(const struct pack_job *job, size_t i)
{
	if (job->src_type == DT_BF16)
		return bf16_to_f32(((const uint16_t *)job->src)[i]);
	return ((const float *)job->src)[i];
}

static void pack_part(void *ctx, int t, int n)
{
	const struct pack_job *job = ctx;
	const struct weight *w = job->w;
	int nr = job->k->nr, from, to;

	cpu_split(w->N, nr, t, n, &from, &to);
	for (int i = from; i < to; i++) {
		size_t panel = (size_t)(i / nr) * panel_elems(job->k, w), row = (size_t)i * (size_t)w->K;
		for (int kk = 0; kk < w->K; kk++) {
			size_t at = panel + panel_at(job->k, w, i % nr, kk);
			if (w->type == DT_BF16)
				((uint16_t *)w->packed)[at] = src_bf16(job, row + (size_t)kk);
			else
				((real *)w->packed)[at] = src_f32(job, row + (size_t)kk);
		}
	}
}

int cpu_weight_pack(struct dev *d, struct weight *ret, enum dtype type, int N, int K, const void *src, enum dtype src_type)
{
	const struct cpu_kernels *k = cpu_of(d)->k;

	if (N <= 0 || K <= 0 || !src)
		return cpu_bad(d, "weight_pack");
	struct weight w = {.N = N, .K = K, .type = type};
	size_t panels = ((size_t)N + (size_t)k->nr - 1) / (size_t)k->nr;
	w.bytes = panels * panel_elems(k, &w) * dtype_size(type);
	w.packed = cpu_arena_alloc(&cpu_of(d)->chunk, w.bytes);
	if (!w.packed)
		return cpu_fail_memory(d, "weight", w.bytes);
	struct pack_job job = {.k = k, .w = &w, .src = src, .src_type = src_type};
	cpu_run(d, 4.0 * N * K, pack_part, &job);
	*ret = w;
	return 0;
}

static void unpack_part(void *ctx, int t, int n)
{
	const struct pack_job *job = ctx;
	const struct weight *w = job->w;
	int nr = job->k->nr, from, to;

	cpu_split(w->N, nr, t, n, &from, &to);
	for (int i = from; i < to; i++) {
		size_t panel = (size_t)(i / nr) * panel_elems(job->k, w), row = (size_t)i * (size_t)w->K;
		for (int kk = 0; kk < w->K; kk++) {
			size_t at = panel + panel_at(job->k, w, i % nr, kk);
			if (w->type == DT_BF16)
				((uint16_t *)job->dst)[row + (size_t)kk] = ((const uint16_t *)w->packed)[at];
			else
				((float *)job->dst)[row + (size_t)kk] = (float)((const real *)w->packed)[at];
		}
	}
}

int cpu_weight_unpack(struct dev *d, void *host_dst, const struct weight *w)
{
	if (!w->packed)
		return cpu_bad(d, "weight_unpack of an empty weight");
	struct pack_job job = {.k = cpu_of(d)->k, .w = w, .dst = host_dst};
	cpu_run(d, 4.0 * w->N * w->K, unpack_part, &job);
	return 0;
}

void cpu_weight_free(struct dev *d, struct weight *w)
{
	(void)d;
	cpu_arena_free(w->packed, w->bytes);
	*w = (struct weight){0};
}

static bool embed_id_fits(uint32_t id, const uint32_t *given, const struct weight *w)
{
	return id & OP_GIVEN ? given && given[id & ~OP_GIVEN] < (uint32_t)w->N : id < (uint32_t)w->N;
}

int cpu_embed(struct dev *d, real *y, const struct weight *w, const uint32_t *ids, const uint32_t *given, int M)
{
	const struct cpu_kernels *k = cpu_of(d)->k;

	for (int m = 0; m < M; m++)
		if (!embed_id_fits(ids[m], given, w))
			return cpu_bad(d, "embed: token id past the vocabulary");
	for (int m = 0; m < M; m++) {
		int i = (int)(ids[m] & OP_GIVEN ? given[ids[m] & ~OP_GIVEN] : ids[m]);
		size_t panel = (size_t)(i / k->nr) * panel_elems(k, w);
		real *row = y + (size_t)m * (size_t)w->K;
		for (int kk = 0; kk < w->K; kk++) {
			size_t at = panel + panel_at(k, w, i % k->nr, kk);
			row[kk] = w->type == DT_BF16 ? (real)bf16_to_f32(((const uint16_t *)w->packed)[at]) : ((const real *)w->packed)[at];
		}
	}
	return 0;
}
