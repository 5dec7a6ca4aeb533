/* Paged attention's host half: pages, and the tables that tell the kernel who sees whom.
 *
 * From the sequences of a batch come: for each batch row its position, splits and path;
 * the page tables side by side; and the tiles, each a few rows of one sequence in one
 * split of positions. All of it goes across as one array, which is the same for every layer of a round and
 * therefore sent once (memory.c).
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/cuda/cuda.h"

static size_t layer_elems(const struct kv_pool *p)
{
	return (size_t)p->n_pages * (size_t)p->n_kv * (size_t)p->page_tok * (size_t)p->d;
}

int cuda_kv_new(struct dev *d, struct kv_pool *p)
{
	if (p->n_layer <= 0 || p->n_kv <= 0 || p->d <= 0 || p->d > CK_MAX_D || p->n_pages <= 0 || p->page_tok <= 0 || p->page_tok % 32)
		return cuda_bad(d, "kv_new");
	size_t half = (size_t)p->n_layer * layer_elems(p) * dtype_size(p->type);
	void *k = cuda_alloc(d, half), *v = k ? cuda_alloc(d, half) : NULL;
	if (!v) {
		cuda_free(d, k);
		return d->lost ? -EIO : -ENOMEM;
	}
	p->k = k;
	p->v = v;
	p->bytes = 2 * half;
	return 0;
}

void cuda_kv_free(struct dev *d, struct kv_pool *p)
{
	cuda_free(d, p->k);
	cuda_free(d, p->v);
	p->k = p->v = NULL;
	p->bytes = 0;
}

static struct ck_kv layer_of(const struct kv_pool *p, int layer)
{
	size_t at = (size_t)layer * layer_elems(p) * dtype_size(p->type);
	return (struct ck_kv){(char *)p->k + at, (char *)p->v + at, p->type == DT_F32, p->n_kv, p->d, p->page_tok};
}

static bool slots_fit(const struct kv_pool *p, const uint32_t *slots, int n)
{
	for (int i = 0; i < n; i++)
		if (slots[i] >= (uint64_t)p->n_pages * (uint64_t)p->page_tok)
			return false;
	return true;
}

int cuda_kv_write(struct dev *d, struct kv_pool *p, int layer, const real *k, const real *v, int ld, const uint32_t *slots, int M)
{
	const uint32_t *on_dev;
	if (M < 0 || layer < 0 || layer >= p->n_layer || ld < p->n_kv * p->d)
		return cuda_bad(d, "kv_write");
	if (!slots_fit(p, slots, M))
		return cuda_bad(d, "kv_write: slot past the pool");
	if (!M)
		return 0;
	struct ck_kv kv = layer_of(p, layer);
	int r = cuda_stage_ids(d, slots, M, &on_dev);
	return r ? r : cuda_done(d, ck_kv_write(cuda_of(d)->stream, &kv, k, v, ld, on_dev, M), "kv_write");
}

int cuda_kv_copy(struct dev *d, struct kv_pool *p, const uint32_t *dst_slots, const uint32_t *src_slots, int n)
{
	const uint32_t *to, *from;
	void *tmp;
	if (n < 0 || !slots_fit(p, dst_slots, n) || !slots_fit(p, src_slots, n))
		return cuda_bad(d, "kv_copy: slot past the pool");
	if (!n)
		return 0;
	int r = cuda_stage_ids(d, dst_slots, n, &to);
	r = r ? r : cuda_stage_ids(d, src_slots, n, &from);
	r = r ? r : cuda_scratch(d, (size_t)n * (size_t)(p->n_layer * p->n_kv * p->d) * dtype_size(p->type), &tmp);
	for (int i = 0; i < 2 && !r; i++)
		r = cuda_done(d, ck_kv_copy(cuda_of(d)->stream, i ? p->v : p->k, tmp, p->type == DT_F32, p->n_layer, layer_elems(p), p->n_kv, p->d, p->page_tok, to, from, n),
			      "kv_copy");
	return r;
}

/* ---- who sees whom ---- */

struct plan {
	struct ck_row *rows;   /* [M] */
	struct ck_tile *tiles;
	uint32_t *pages;
	int16_t *paths;
	int M, n_tiles, n_pages, n_paths, n_parts;
};

static int tree_nodes(const struct attn_seq *s)
{
	return s->n_past + s->n_rows - s->tree0;
}

static bool tree_fits(const struct attn_seq *s)
{
	int n = tree_nodes(s);
	if (s->tree0 < 0 || s->tree0 > s->n_past + 1 || n < 0 || n > ATTN_TREE_MAX)
		return false;
	for (int i = 0; i < n; i++)
		if (s->parent[i] < -1 || s->parent[i] >= i)
			return false;
	return true;
}

static int pages_of(const struct attn_seq *s, const struct kv_pool *p)
{
	return s->n_rows ? (s->n_past + s->n_rows - 1) / p->page_tok + 1 : 0;
}

/* What is wrong with a sequence, or NULL; how much room its tables take at most goes into *room */
static const char *check_seq(const struct attn_seq *s, const struct kv_pool *p, int group, struct plan *room)
{
	if (s->n_rows < 0 || s->n_past < 0 || s->row0 < 0)
		return "attn: sequence";
	for (int i = 0; i < pages_of(s, p); i++)
		if (s->pages[i] >= (uint32_t)p->n_pages)
			return "attn: page past the pool";
	if (s->parent && !tree_fits(s))
		return "attn: tree";
	int heads = cuda_min(group, CK_TILE), splits = (s->n_past + s->n_rows) / CK_SPLIT + 1;
	room->n_pages += pages_of(s, p);
	room->n_paths += s->parent ? s->n_rows * ATTN_TREE_MAX : 0;
	room->n_tiles += s->n_rows * ((group + heads - 1) / heads) * splits;
	room->M = s->row0 + s->n_rows > room->M ? s->row0 + s->n_rows : room->M;
	return NULL;
}

static void plan_row(struct plan *x, const struct attn_seq *s, int i, int first_page, int nh)
{
	int node = s->parent ? s->n_past + i - s->tree0 : -1, depth = 0;
	struct ck_row *r = &x->rows[s->row0 + i];
	*r = (struct ck_row){.hi = s->n_past + i, .tree0 = s->parent ? s->tree0 : INT_MAX, .path = x->n_paths, .pages = first_page};
	for (int n = node; n >= 0; n = s->parent[n])
		depth++;
	if (node >= 0)
		r->hi = s->tree0 + depth - 1;
	x->n_paths += depth;
	for (int n = node, at = depth - 1; n >= 0; n = s->parent[n])
		x->paths[r->path + at--] = (int16_t)n;
	r->splits = r->hi / CK_SPLIT + 1;
	if (r->splits > 1) {
		r->part = x->n_parts;
		x->n_parts += r->splits * nh;
	}
}

static void plan_seq(struct plan *x, const struct attn_seq *s, const struct kv_pool *p, int nh)
{
	int group = nh / p->n_kv, heads = cuda_min(group, CK_TILE), per = CK_TILE / heads, first_page = x->n_pages;
	memcpy(x->pages + first_page, s->pages, (size_t)pages_of(s, p) * sizeof *x->pages);
	x->n_pages += pages_of(s, p);
	for (int i = 0; i < s->n_rows; i++)
		plan_row(x, s, i, first_page, nh);
	for (int i = 0; i < s->n_rows; i += per)
		for (int h = 0; h < group; h += heads) {
			int n = cuda_min(per, s->n_rows - i), splits = 1;
			for (int j = 0; j < n; j++)
				splits = x->rows[s->row0 + i + j].splits > splits ? x->rows[s->row0 + i + j].splits : splits;
			for (int k = 0; k < splits; k++)
				x->tiles[x->n_tiles++] = (struct ck_tile){s->row0 + i, n, h, cuda_min(heads, group - h), k};
		}
}

/* Sizes from `room`; all arrays in one block of host memory, *ret_bytes of it */
static int plan_memory(struct dev *d, struct plan *x, const struct plan *room, size_t *ret_bytes)
{
	struct cuda *c = cuda_of(d);
	size_t rows = cuda_round_up((size_t)room->M * sizeof *x->rows, 16), tiles = cuda_round_up((size_t)room->n_tiles * sizeof *x->tiles, 16);
	size_t pages = cuda_round_up((size_t)room->n_pages * sizeof *x->pages, 16), bytes = rows + tiles + pages + (size_t)room->n_paths * sizeof *x->paths;
	if (bytes > c->plan_bytes) {
		free(c->plan);
		c->plan_bytes = 0;
		c->plan = malloc(bytes + bytes / 4);
		if (!c->plan) {
			(void)cuda_done(d, cudaErrorMemoryAllocation, "attention's tables in host memory");
			return -ENOMEM;
		}
		c->plan_bytes = bytes + bytes / 4;
	}
	memset(c->plan, 0, bytes);
	*x = (struct plan){.M = room->M};
	x->rows = (struct ck_row *)(void *)c->plan;
	x->tiles = (struct ck_tile *)(void *)(c->plan + rows);
	x->pages = (uint32_t *)(void *)(c->plan + rows + tiles);
	x->paths = (int16_t *)(void *)(c->plan + rows + tiles + pages);
	*ret_bytes = bytes;
	return 0;
}

int cuda_attn(struct dev *d, real *out, int ldo, const real *q, int ldq, const struct kv_pool *p, int layer, const struct attn_seq *seqs, int n_seqs, int nh, real scale)
{
	struct plan x, room = {0};
	size_t bytes;
	if (nh <= 0 || nh % p->n_kv || layer < 0 || layer >= p->n_layer || ldo < nh * p->d || ldq < nh * p->d)
		return cuda_bad(d, "attn");
	for (int i = 0; i < n_seqs; i++) {
		const char *wrong = check_seq(&seqs[i], p, nh / p->n_kv, &room);
		if (wrong)
			return cuda_bad(d, wrong);
	}
	int r = plan_memory(d, &x, &room, &bytes);
	for (int i = 0; i < n_seqs && !r; i++)
		plan_seq(&x, &seqs[i], p, nh);
	if (r || !x.n_tiles)
		return r;
	const void *at;
	void *parts = NULL;
	const char *host = (const char *)x.rows;
	r = cuda_stage(d, host, bytes, &at);
	if (!r && x.n_parts)
		r = cuda_scratch(d, (size_t)x.n_parts * (size_t)(p->d + 2) * sizeof(float), &parts);
	if (r)
		return r;
	const char *dev = at;
	struct ck_attn a = {
		.kv = layer_of(p, layer),
		.rows = (const struct ck_row *)at,
		.tiles = (const struct ck_tile *)(const void *)(dev + ((const char *)x.tiles - host)),
		.pages = (const uint32_t *)(const void *)(dev + ((const char *)x.pages - host)),
		.paths = (const int16_t *)(const void *)(dev + ((const char *)x.paths - host)),
		.q = q,
		.ldq = ldq,
		.out = out,
		.ldo = ldo,
		.parts = parts,
		.nh = nh,
		.n_tiles = x.n_tiles,
		.M = x.M,
		.scale = scale,
	};
	return cuda_done(d, ck_attn(cuda_of(d)->stream, &a), "attn");
}
