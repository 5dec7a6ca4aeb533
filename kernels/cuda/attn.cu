/* Paged keys and values, and attention over them for decoding, verifying and prefill.
 *
 * Pages are [page][kv head][page_tok][d]. A block of threads takes one tile: rows of
 * one sequence times the query heads of one kv head, against 256 positions (a
 * split), so that one long sequence still fills the device. A row that spans more
 * than one split leaves partial results, which a second kernel merges in order; the
 * splits are cut at absolute positions, so a row's bits do not depend on its tile. A
 * prompt's rows may go another way to the same merge (prompt.cu).
 *
 * Trees: from position tree0 on, the keys a row sees lie in the places its path
 * names, so there the tile's rows take turns, each loading its own path's keys.
 */
#include "kernels/cuda/paged.cuh"

static __global__ void kv_write_kernel(struct ck_kv kv, const float *k, const float *v, int ld, const uint32_t *slots, size_t total)
{
	size_t width = (size_t)kv.n_kv * (size_t)kv.d;
	for (size_t at = grid_first(); at < total; at += grid_step()) {
		size_t m = at / width, i = at % width, from = m * (size_t)ld + i;
		uint32_t slot = slots[m];
		size_t to = place_at(&kv, slot / (uint32_t)kv.page_tok, (int)(slot % (uint32_t)kv.page_tok), (int)(i / (size_t)kv.d)) + i % (size_t)kv.d;
		put(kv.k, kv.wide, to, k[from]);
		put(kv.v, kv.wide, to, v[from]);
	}
}

cudaError_t ck_kv_write(cudaStream_t s, const struct ck_kv *kv, const float *k, const float *v, int ld, const uint32_t *slots, int M)
{
	size_t total = (size_t)M * (size_t)(kv->n_kv * kv->d);
	LAUNCH(kv_write_kernel, grid_for(total), THREADS, 0, s, *kv, k, v, ld, slots, total);
	return cudaGetLastError();
}

/* One half of kv_copy: gather places into tmp, or scatter tmp to places. */
static __global__ void kv_move_kernel(struct ck_kv kv, void *tmp, size_t layer_elems, const uint32_t *slots, size_t per_layer, size_t total, int scatter)
{
	size_t width = (size_t)kv.n_kv * (size_t)kv.d;
	for (size_t at = grid_first(); at < total; at += grid_step()) {
		size_t layer = at / per_layer, m = at % per_layer / width, i = at % width;
		uint32_t slot = slots[m];
		size_t place = layer * layer_elems + i % (size_t)kv.d +
			       place_at(&kv, slot / (uint32_t)kv.page_tok, (int)(slot % (uint32_t)kv.page_tok), (int)(i / (size_t)kv.d));
		void *to = scatter ? kv.k : tmp;
		const void *from = scatter ? tmp : kv.k;
		size_t a = scatter ? place : at, b = scatter ? at : place;
		if (kv.wide)
			((float *)to)[a] = ((const float *)from)[b];
		else
			((uint16_t *)to)[a] = ((const uint16_t *)from)[b];
	}
}

cudaError_t ck_kv_copy(cudaStream_t s, void *pages, void *tmp, int wide, int n_layer, size_t layer_elems, int n_kv, int d, int page_tok,
		       const uint32_t *to, const uint32_t *from, int n)
{
	struct ck_kv kv = {pages, pages, wide, n_kv, d, page_tok};
	size_t per_layer = (size_t)n * (size_t)(n_kv * d), total = per_layer * (size_t)n_layer;
	LAUNCH(kv_move_kernel, grid_for(total), THREADS, 0, s, kv, tmp, layer_elems, from, per_layer, total, 0);
	LAUNCH(kv_move_kernel, grid_for(total), THREADS, 0, s, kv, tmp, layer_elems, to, per_layer, total, 1);
	return cudaGetLastError();
}

/* Positions [first, first+count) as row r sees them, into shared k and v. All threads take part. */
static __device__ void load_keys(float *k, float *v, const struct ck_attn *a, const struct ck_row *r, int head, int first, int count)
{
	int d = a->kv.d;
	__syncthreads(); /* the block before may still be read */
	for (int i = (int)threadIdx.x; i < count * d; i += THREADS) {
		int j = i / d, c = i % d, place = first + j;
		if (place >= r->tree0)
			place = r->tree0 + a->paths[r->path + place - r->tree0];
		size_t at = place_at(&a->kv, a->pages[r->pages + place / a->kv.page_tok], place % a->kv.page_tok, head) + (size_t)c;
		k[j * (d + 1) + c] = element(a->kv.k, a->kv.wide, at);
		v[j * (d + 1) + c] = element(a->kv.v, a->kv.wide, at);
	}
	__syncthreads();
}

struct attn_tile {
	struct ck_tile t;
	int rows, kv_head, group; /* query rows of the tile: n * heads */
};

static __device__ inline int tile_row(const struct attn_tile *x, int i)
{
	return x->t.row + i / x->t.heads;
}

static __device__ inline int tile_head(const struct attn_tile *x, int i)
{
	return x->kv_head * x->group + x->t.head0 + i % x->t.heads;
}

/* Query rows of the tile that this warp holds and that are of batch row `only` (-1: all) go over one block of keys. */
static __device__ inline void attend_rows(struct softmax_row *st, const struct ck_attn *a, const struct attn_tile *x, const float *q, const float *k, const float *v,
					  float *p, int first, int only)
{
	int warp = (int)threadIdx.x / WARP;
	UNROLL
	for (int i = 0; i < PER_WARP; i++) {
		int qr = warp + i * CK_WARPS;
		if (qr >= x->rows || (only >= 0 && tile_row(x, qr) != only))
			continue;
		int hi = a->rows[tile_row(x, qr)].hi - first;
		if (hi >= 0)
			attend(&st[i], q + qr * a->kv.d, k, v, p, a->kv.d, 0, min_int(hi, CK_BLOCK - 1));
	}
}

static __global__ void attn_kernel(struct ck_attn a)
{
	DYNAMIC_SHARED(mem);
	struct attn_tile x;
	int d = a.kv.d, hi = 0;
	x.t = a.tiles[blockIdx.x];
	if (!x.t.n) /* of a graph with room for longer contexts */
		return;
	x.kv_head = (int)blockIdx.y;
	x.group = a.nh / a.kv.n_kv;
	x.rows = x.t.n * x.t.heads;
	float *k = mem, *v = k + CK_BLOCK * (d + 1), *q = v + CK_BLOCK * (d + 1), *p = q + CK_TILE * d + (int)threadIdx.x / WARP * WARP;
	struct softmax_row st[PER_WARP];
	UNROLL
	for (int i = 0; i < PER_WARP; i++)
		softmax_clear(&st[i]);
	for (int i = (int)threadIdx.x; i < x.rows * d; i += THREADS)
		q[i] = a.q[(size_t)tile_row(&x, i / d) * (size_t)a.ldq + (size_t)(tile_head(&x, i / d) * d + i % d)] * a.scale;
	for (int i = 0; i < x.t.n; i++)
		hi = hi > a.rows[x.t.row + i].hi ? hi : a.rows[x.t.row + i].hi;
	const struct ck_row *r0 = &a.rows[x.t.row];
	int end = min_int(hi + 1, (x.t.split + 1) * CK_SPLIT);
	for (int first = x.t.split * CK_SPLIT; first < end; first += CK_BLOCK) {
		if (first + CK_BLOCK <= r0->tree0) {
			load_keys(k, v, &a, r0, x.kv_head, first, min_int(CK_BLOCK, hi + 1 - first));
			attend_rows(st, &a, &x, q, k, v, p, first, -1);
			continue;
		}
		for (int i = 0; i < x.t.n; i++) {
			const struct ck_row *r = &a.rows[x.t.row + i];
			load_keys(k, v, &a, r, x.kv_head, first, min_int(CK_BLOCK, r->hi + 1 - first));
			attend_rows(st, &a, &x, q, k, v, p, first, x.t.row + i);
		}
	}
	UNROLL
	for (int i = 0; i < PER_WARP; i++) {
		int qr = (int)threadIdx.x / WARP + i * CK_WARPS;
		if (qr < x.rows)
			leave(&a, tile_row(&x, qr), tile_head(&x, qr), x.t.split, &st[i]);
	}
}

/* One warp a (row, head): its splits in order */
static __global__ void merge_kernel(struct ck_attn a)
{
	int row = (int)blockIdx.x, head = (int)(blockIdx.y * CK_WARPS + threadIdx.x / WARP), d = a.kv.d, lane = (int)threadIdx.x % WARP;
	const struct ck_row *r = &a.rows[row];
	if (r->splits < 2 || head >= a.nh)
		return;
	struct softmax_row st;
	softmax_clear(&st);
	for (int s = 0; s < r->splits; s++) {
		const float *part = a.parts + ((size_t)r->part + (size_t)(s * a.nh + head)) * (size_t)(d + 2);
		float mx = fmaxf(st.max, part[0]), keep = expf(st.max - mx), take = expf(part[0] - mx);
		st.max = mx;
		st.sum = st.sum * keep + part[1] * take;
		UNROLL
		for (int i = 0; i < CHANNELS; i++)
			if (lane + i * WARP < d)
				st.acc[i] = st.acc[i] * keep + part[2 + lane + i * WARP] * take;
	}
	UNROLL
	for (int i = 0; i < CHANNELS; i++)
		if (lane + i * WARP < d)
			a.out[(size_t)row * (size_t)a.ldo + (size_t)(head * d + lane + i * WARP)] = st.acc[i] / st.sum;
}

static cudaError_t attn_tiles(cudaStream_t s, const struct ck_attn *a)
{
	size_t shared = sizeof(float) * (size_t)(2 * CK_BLOCK * (a->kv.d + 1) + CK_TILE * a->kv.d + CK_WARPS * WARP);
	cudaError_t e = cudaFuncSetAttribute((const void *)attn_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
	if (e != cudaSuccess)
		return e;
	LAUNCH(attn_kernel, dim3((unsigned)a->n_tiles, (unsigned)a->kv.n_kv), THREADS, shared, s, *a);
	return cudaGetLastError();
}

cudaError_t ck_attn(cudaStream_t s, const struct ck_attn *a)
{
	cudaError_t e = a->n_tiles ? attn_tiles(s, a) : cudaSuccess;
	if (e == cudaSuccess && a->n_prompt)
		e = ck_attn_prompt(s, a);
	if (e != cudaSuccess)
		return e;
	if (a->parts)
		LAUNCH(merge_kernel, dim3((unsigned)a->M, (unsigned)(a->nh + CK_WARPS - 1) / CK_WARPS), THREADS, 0, s, *a);
	return cudaGetLastError();
}
