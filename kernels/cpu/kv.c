/* Paged keys and values, laid out so that attention is two panel products.
 *
 * For (layer, page, head): K as panels of nr keys, [page_tok/nr][d][nr], so that
 * scores of neighbouring keys are neighbouring lanes; V as panels of nr channels,
 * [ceil(d/nr)][page_tok][nr]. bf16 panels are interleaved as cpu.h says.
 */
#include "kernels/cpu/cpu.h"
#include <stdlib.h>
#include <string.h>

size_t cpu_kv_head_elems(const struct cpu_kernels *k, const struct kv_pool *p)
{
	return (size_t)p->page_tok * cpu_round_up((size_t)p->d, (size_t)k->nr);
}

static size_t head_index(const struct kv_pool *p, int layer, uint32_t page, int head)
{
	return ((size_t)layer * (size_t)p->n_pages + page) * (size_t)p->n_kv + (size_t)head;
}

static size_t k_at(const struct kv_pool *p, int nr, int tok, int c, bool bf16)
{
	int j = tok % nr;
	return (size_t)(tok / nr) * (size_t)p->d * (size_t)nr + (size_t)c * (size_t)nr + (size_t)(bf16 ? cpu_lane(j, nr) : j);
}

static size_t v_at(const struct kv_pool *p, int nr, int tok, int c, bool bf16)
{
	int j = c % nr;
	return (size_t)(c / nr) * (size_t)p->page_tok * (size_t)nr + (size_t)tok * (size_t)nr + (size_t)(bf16 ? cpu_lane(j, nr) : j);
}

int cpu_kv_new(struct dev *d, struct kv_pool *p)
{
	if (p->n_layer <= 0 || p->n_kv <= 0 || p->d <= 0 || p->n_pages <= 0 || p->page_tok <= 0 || p->page_tok % CPU_PAGE)
		return cpu_bad(d, "kv_new");
	size_t heads = (size_t)p->n_layer * (size_t)p->n_pages * (size_t)p->n_kv;
	size_t kb = heads * (size_t)p->page_tok * (size_t)p->d * dtype_size(p->type);
	size_t vb = heads * cpu_kv_head_elems(cpu_of(d)->k, p) * dtype_size(p->type);
	void *k = cpu_alloc_bytes(kb), *v = cpu_alloc_bytes(vb);
	if (!k || !v) {
		free(k);
		free(v);
		return cpu_fail_memory(d, "keys and values", kb + vb);
	}
	p->k = k;
	p->v = v;
	p->bytes = kb + vb;
	return 0;
}

void cpu_kv_free(struct dev *d, struct kv_pool *p)
{
	(void)d;
	free(p->k);
	free(p->v);
	p->k = p->v = NULL;
	p->bytes = 0;
}

/* One head of one position: k and v [d]. Keys lie nr apart from pk on, values in a piece of each panel from pv on; past d such a piece is 0. */
static void put_bf16(const struct cpu_kernels *kn, uint16_t *pk, uint16_t *pv, size_t panel, const real *k, const real *v, int d)
{
	int nr = kn->nr, half = nr / 2;
	for (int c = 0; c < d; c += nr, pv += panel) {
		uint16_t kc[CPU_MAX_NR], vc[CPU_MAX_NR] = {0};
		int n = cpu_min(nr, d - c);
		kn->round_bf16(kc, k + c, n);
		kn->round_bf16(vc, v + c, n);
		for (int j = 0; j < n; j++)
			pk[(size_t)(c + j) * (size_t)nr] = kc[j];
		for (int j = 0; j < half; j++) { /* cpu_lane() */
			pv[2 * j] = vc[j];
			pv[2 * j + 1] = vc[j + half];
		}
	}
}

static void put_real(int nr, real *pk, real *pv, size_t panel, const real *k, const real *v, int d)
{
	for (int c = 0; c < d; c++)
		pk[(size_t)c * (size_t)nr] = k[c];
	for (int c = 0; c < d; c += nr, pv += panel)
		memcpy(pv, v + c, (size_t)cpu_min(nr, d - c) * sizeof *pv);
}

/* All heads of one position: k and v [n_kv*d] */
void cpu_kv_put(const struct cpu_kernels *kn, struct kv_pool *p, int layer, uint32_t slot, const real *k, const real *v)
{
	uint32_t page = slot / (uint32_t)p->page_tok;
	int tok = (int)(slot % (uint32_t)p->page_tok);
	bool bf16 = p->type == DT_BF16;
	size_t nr = (size_t)kn->nr, panel = (size_t)p->page_tok * nr, k0 = k_at(p, kn->nr, tok, 0, bf16), v0 = (size_t)tok * nr;

	for (int h = 0; h < p->n_kv; h++, k += p->d, v += p->d) {
		void *hk = cpu_kv_head(kn, p, layer, page, h, false), *hv = cpu_kv_head(kn, p, layer, page, h, true);
		if (bf16)
			put_bf16(kn, (uint16_t *)hk + k0, (uint16_t *)hv + v0, panel, k, v, p->d);
		else
			put_real(kn->nr, (real *)hk + k0, (real *)hv + v0, panel, k, v, p->d);
	}
}

struct kv_write {
	const struct cpu_kernels *kn;
	struct kv_pool *p;
	int layer, M;
	size_t ld;
	const real *k, *v;
	const uint32_t *slots;
};

static void kv_write_part(void *ctx, int t, int n)
{
	const struct kv_write *j = ctx;
	int from, to;
	cpu_split(j->M, 8, t, n, &from, &to);
	for (int m = from; m < to; m++)
		cpu_kv_put(j->kn, j->p, j->layer, j->slots[m], j->k + (size_t)m * j->ld, j->v + (size_t)m * j->ld);
}

int cpu_kv_write(struct dev *d, struct kv_pool *p, int layer, const real *k, const real *v, int ld, const uint32_t *slots, int M)
{
	uint64_t n_slots = (uint64_t)p->n_pages * (uint64_t)p->page_tok;

	if (M < 0 || layer < 0 || layer >= p->n_layer || ld < p->n_kv * p->d)
		return cpu_bad(d, "kv_write");
	for (int m = 0; m < M; m++)
		if (slots[m] >= n_slots)
			return cpu_bad(d, "kv_write: slot past the pool");
	struct kv_write j = {.kn = cpu_of(d)->k, .p = p, .layer = layer, .M = M, .ld = (size_t)ld, .k = k, .v = v, .slots = slots};
	cpu_run(d, 16.0 * M * p->n_kv * p->d, kv_write_part, &j);
	return 0;
}

void *cpu_kv_head(const struct cpu_kernels *kn, const struct kv_pool *p, int layer, uint32_t page, int head, bool v)
{
	size_t elems = v ? cpu_kv_head_elems(kn, p) : (size_t)p->page_tok * (size_t)p->d;
	return (char *)(v ? p->v : p->k) + head_index(p, layer, page, head) * elems * dtype_size(p->type);
}

static void copy_elem(void *to, size_t at, const void *from, size_t i, enum dtype type)
{
	if (type == DT_BF16)
		((uint16_t *)to)[at] = ((const uint16_t *)from)[i];
	else
		((real *)to)[at] = ((const real *)from)[i];
}

void cpu_kv_move(const struct cpu_kernels *kn, const struct kv_pool *p, void *k, void *v, int to, const void *from_k, const void *from_v, int from)
{
	bool bf16 = p->type == DT_BF16;
	for (int c = 0; c < p->d; c++) {
		copy_elem(k, k_at(p, kn->nr, to, c, bf16), from_k, k_at(p, kn->nr, from, c, bf16), p->type);
		copy_elem(v, v_at(p, kn->nr, to, c, bf16), from_v, v_at(p, kn->nr, from, c, bf16), p->type);
	}
}

int cpu_kv_copy(struct dev *d, struct kv_pool *p, const uint32_t *dst_slots, const uint32_t *src_slots, int n)
{
	const struct cpu_kernels *kn = cpu_of(d)->k;
	uint64_t n_slots = (uint64_t)p->n_pages * (uint64_t)p->page_tok;
	uint32_t pt = (uint32_t)p->page_tok;

	for (int i = 0; i < n; i++)
		if (dst_slots[i] >= n_slots || src_slots[i] >= n_slots)
			return cpu_bad(d, "kv_copy: slot past the pool");
	for (int i = 0; i < n; i++)
		for (int lh = 0; lh < p->n_layer * p->n_kv; lh++) {
			int layer = lh / p->n_kv, h = lh % p->n_kv;
			uint32_t to = dst_slots[i] / pt, from = src_slots[i] / pt;
			cpu_kv_move(kn, p, cpu_kv_head(kn, p, layer, to, h, false), cpu_kv_head(kn, p, layer, to, h, true), (int)(dst_slots[i] % pt),
				    cpu_kv_head(kn, p, layer, from, h, false), cpu_kv_head(kn, p, layer, from, h, true), (int)(src_slots[i] % pt));
		}
	return 0;
}
