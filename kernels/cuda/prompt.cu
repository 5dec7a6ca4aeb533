/* Paged attention of a prompt's rows on tensor cores: q, k, v and P rounded to bf16, sums in f32 (tensor_attn.cuh).
 *
 * A block of threads takes a tile of 64 slots, the query heads of one kv head at so many positions as go in, against a split of
 * positions; rows with more splits than one leave partial results for attn.cu to merge. Tiles, blocks of keys and splits all begin at
 * absolute positions, and a slot without a row in this batch is zero: so a row's place in its tile and all that is summed into it are a
 * function of its own position and keys, however its prompt is cut into chunks and whatever shares the batch.
 *
 * A block of keys that not all positions of the tile see has factors 0 in P, and 0 times a value that is not finite is NaN. There such a value is
 * taken as 0 and its key as NaN, which makes NaN of the rows that see it and of no others.
 */
#include "kernels/cuda/paged.cuh"
#include "kernels/cuda/tensor_attn.cuh"

enum { HALF_TILE = TILE / 2 /* keys that lie in one page */ };
static_assert((int)TILE == (int)CK_PROMPT_TILE && CK_PROMPT_SPLIT % TILE == 0, "as plan.c cuts them");

/* Slot i is query head i % heads at position pos0 + i / heads, row row0 + i / heads of the batch where that is a row of the tile. */
struct prompt_tile {
	struct ck_tile t;
	int pos0, row0, last; /* last: position of the tile's last row */
	int head;             /* first query head */
	const uint32_t *pages;
};

static __device__ inline struct prompt_tile find_tile(const struct ck_attn *a, struct ck_tile t)
{
	const struct ck_row *r = &a->rows[t.row];
	int group = a->nh / a->kv.n_kv, skip = r->hi % (TILE / min_int(group, TILE));
	struct prompt_tile x;
	x.t = t;
	x.pos0 = r->hi - skip;
	x.row0 = t.row - skip;
	x.last = r->hi + t.n - 1;
	x.head = (int)blockIdx.y * group + t.head0;
	x.pages = a->pages + r->pages;
	return x;
}

/* The batch row of a slot, or -1 */
static __device__ inline int slot_row(const struct prompt_tile *x, int slot)
{
	int row = x->row0 + slot / x->t.heads;
	return row >= x->t.row && row < x->t.row + x->t.n ? row : -1;
}

template <int HD> static __device__ inline void load_queries(bf16 *to, const struct ck_attn *a, const struct prompt_tile *x)
{
	int lane = (int)threadIdx.x % WARP;
	UNROLL_BY(1)
	for (int i = (int)threadIdx.x / WARP; i < TILE; i += FWD_THREADS / WARP) {
		int row = slot_row(x, i);
		const float *q = a->q + (size_t)max_int(row, 0) * (size_t)a->ldq + (size_t)((x->head + i % x->t.heads) * HD);
		UNROLL
		for (int c = 0; c < HD; c += WARP)
			to[i * wide<HD>::H + c + lane] = __float2bfloat16_rn(row < 0 ? 0 : q[c + lane]);
	}
}

/* Eight elements as bf16 */
static __device__ inline uint4 eight(const void *p, int f32, size_t at)
{
	if (!f32)
		return *(const uint4 *)((const uint16_t *)p + at);
	float4 a = *(const float4 *)((const float *)p + at), b = *(const float4 *)((const float *)p + at + 4);
	return {two_bf16(a.x, a.y), two_bf16(a.z, a.w), two_bf16(b.x, b.y), two_bf16(b.z, b.w)};
}

static __device__ inline bool two_finite(unsigned u)
{
	return (u & 0x7f80u) != 0x7f80u && (u & 0x7f800000u) != 0x7f800000u;
}

/* The 32 keys or values at `at`, of which n are there; the rest are zero. mark (or NULL): their keys, where a value that is not finite shows */
template <int HD> static __device__ inline void load_half(bf16 *to, const void *from, int f32, size_t at, int n, bf16 *mark)
{
	enum { H = wide<HD>::H };
	UNROLL_BY(2) /* more would spill registers */
	for (int i = (int)threadIdx.x; i < HALF_TILE * HD / 8; i += FWD_THREADS) {
		int r = i / (HD / 8), c = i % (HD / 8) * 8;
		uint4 x = {0, 0, 0, 0};
		if (r < n)
			x = eight(from, f32, at + (size_t)(r * HD + c));
		if (mark && !(two_finite(x.x) && two_finite(x.y) && two_finite(x.z) && two_finite(x.w))) {
			x = {0, 0, 0, 0};
			mark[r * H] = __float2bfloat16_rn(NAN);
		}
		*(uint4 *)(to + r * H + c) = x;
	}
}

/* Keys and values [first, first+64) of those up to x->last. All threads take part, and have met before and after. */
template <int HD> static __device__ inline void load_keys(bf16 *K, bf16 *V, const struct ck_attn *a, const struct prompt_tile *x, int first)
{
	enum { H = wide<HD>::H };
	size_t at[2] = {0, 0};
	bool edge = first + TILE > x->pos0 + 1; /* a position of the tile does not see all of them */
	UNROLL
	for (int h = 0; h < 2; h++) {
		int place = first + h * HALF_TILE;
		if (place <= x->last)
			at[h] = place_at(&a->kv, x->pages[place / a->kv.page_tok], place % a->kv.page_tok, (int)blockIdx.y);
	}
	UNROLL
	for (int h = 0; h < 2; h++)
		load_half<HD>(K + h * HALF_TILE * H, a->kv.k, a->kv.wide, at[h], x->last + 1 - first - h * HALF_TILE, NULL);
	if (edge)
		__syncthreads();
	UNROLL
	for (int h = 0; h < 2; h++)
		load_half<HD>(V + h * HALF_TILE * H, a->kv.v, a->kv.wide, at[h], x->last + 1 - first - h * HALF_TILE, edge ? K + h * HALF_TILE * H : NULL);
	__syncthreads();
}

/* Position of the last row in the warp's slots; -1: they hold none */
static __device__ inline int last_of_warp(const struct prompt_tile *x, int slot0)
{
	int from = x->row0 + slot0 / x->t.heads, to = min_int(x->row0 + (slot0 + SUB - 1) / x->t.heads, x->t.row + x->t.n - 1);
	return to >= from && to >= x->t.row ? x->pos0 + to - x->row0 : -1;
}

template <int HD> struct prompt_memory {
	struct tensor_memory<HD> m;
	struct prompt_tile x; /* here, since registers are short */
};

template <int HD> static __global__ void __launch_bounds__(FWD_THREADS, 3) prompt_kernel(struct ck_attn a)
{
	DYNAMIC_SHARED(mem);
	struct prompt_memory<HD> *p = (struct prompt_memory<HD> *)mem;
	struct tensor_memory<HD> *m = &p->m;
	const struct prompt_tile *x = &p->x;
	enum { H = wide<HD>::H };
	struct ck_tile t = a.prompt[blockIdx.x];
	if (!t.n) /* of a graph with room for longer contexts */
		return;
	if (threadIdx.x == 0)
		p->x = find_tile(&a, t);
	__syncthreads();
	int warp = (int)threadIdx.x / WARP, mine = warp * SUB + (int)threadIdx.x % SUB, warp_last = last_of_warp(x, warp * SUB);
	int hi = slot_row(x, mine) < 0 ? -1 : x->pos0 + mine / x->t.heads, end = min_int(x->last + 1, (x->t.split + 1) * CK_PROMPT_SPLIT);
	bf16 *K = m->kv, *V = K + TILE * H;
	load_queries<HD>(K, &a, x);
	__syncthreads();
	factor_a q[HD / SUB];
	sums o[HD / SUB];
	begin_rows<HD>(q, o, K + warp * SUB * H);
	struct places at = find_places(m->S[warp], LD_S);
	struct online s = {-INFINITY, 0};
	for (int first = x->t.split * CK_PROMPT_SPLIT; first < end; first += TILE) {
		__syncthreads();
		load_keys<HD>(K, V, &a, x, first);
		if (first <= warp_last)
			attend_tile<HD>(o, &s, q, &at, K, V, m->S[warp], m->P[warp], m->keep[warp], 0, hi - first, a.scale * 1.44269504f /* log2 e */);
	}
	__syncthreads();
	float *rows = (float *)m->kv + warp * SUB * wide<HD>::F;
	lay_rows<HD>(rows, o);
	UNROLL_BY(1)
	for (int r = 0; r < SUB; r++) {
		struct softmax_row st = take_row<HD>(rows, &s, r);
		int slot = warp * SUB + r, row = slot_row(x, slot);
		if (row >= 0)
			leave(&a, row, x->head + slot % x->t.heads, x->t.split, &st);
	}
}

template <int HD> static cudaError_t launch(cudaStream_t s, const struct ck_attn *a)
{
	cudaError_t e = allow((const void *)prompt_kernel<HD>, sizeof(struct prompt_memory<HD>));
	if (e != cudaSuccess)
		return e;
	LAUNCH(prompt_kernel<HD>, dim3((unsigned)a->n_prompt, (unsigned)a->kv.n_kv), FWD_THREADS, sizeof(struct prompt_memory<HD>), s, *a);
	return cudaGetLastError();
}

cudaError_t ck_attn_prompt(cudaStream_t s, const struct ck_attn *a)
{
	return a->kv.d == 64 ? launch<64>(s, a) : launch<128>(s, a);
}
