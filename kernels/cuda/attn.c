/* Paged attention's host half: pages, and the launch. The tables that tell the kernel who sees whom (plan.c) are the same for every
 * layer of a round and therefore sent once (memory.c).
 */
#include <stdlib.h>
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/plan.h"

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
	if (!r && cuda_of(d)->graphs.mode == GRAPH_NOTING)
		graph_note_ids(d, slots, M, (uint32_t)(p->n_pages * p->page_tok), false);
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

/* The tables' host memory, grown */
static int plan_memory(struct dev *d, size_t bytes)
{
	struct cuda *c = cuda_of(d);
	if (bytes <= c->plan_bytes)
		return 0;
	free(c->plan);
	c->plan_bytes = 0;
	c->plan = malloc(bytes + bytes / 4);
	if (!c->plan) {
		(void)cuda_done(d, cudaErrorMemoryAllocation, "attention's tables in host memory");
		return -ENOMEM;
	}
	c->plan_bytes = bytes + bytes / 4;
	return 0;
}

/* Tables of this batch, on the device; room becomes what is really used, but in a graph, which may be used with more. */
static int plan_across(struct dev *d, const struct attn_seq *seqs, int n_seqs, const struct plan_of *of, struct plan_room *room, struct ck_attn *a)
{
	const void *at = NULL;
	const char *in_graph = NULL;
	enum graph_mode mode = cuda_of(d)->graphs.mode;
	int r = mode == GRAPH_CAPTURING ? graph_plan(d, seqs, n_seqs, of, &in_graph, room) : plan_memory(d, plan_bytes(room));
	if (r)
		return r;
	a->n_tiles = room->tiles;
	a->n_prompt = room->prompt;
	plan_point(a, in_graph, room);
	if (in_graph)
		return 0;
	struct plan x = plan_fill(cuda_of(d)->plan, room, seqs, n_seqs, of);
	a->n_tiles = x.n_tiles;
	a->n_prompt = x.n_prompt;
	r = cuda_send(d, cuda_of(d)->plan, plan_bytes(room), &at);
	plan_point(a, at, room);
	room->parts = x.n_parts;
	return r ? r : mode == GRAPH_NOTING ? graph_note_plan(d, seqs, n_seqs, of) : 0;
}

int cuda_attn(struct dev *d, real *out, int ldo, const real *q, int ldq, const struct kv_pool *p, int layer, const struct attn_seq *seqs, int n_seqs, int nh, real scale)
{
	struct plan_room room;
	void *parts = NULL;
	if (nh <= 0 || nh % p->n_kv || layer < 0 || layer >= p->n_layer || ldo < nh * p->d || ldq < nh * p->d)
		return cuda_bad(d, "attn");
	struct plan_of of = {.pool = *p, .nh = nh, .tensor = cuda_of(d)->q.math == MATH_FAST && ck_tensor(p->d)};
	const char *wrong = plan_room(seqs, n_seqs, &of, &room);
	if (wrong)
		return cuda_bad(d, wrong);
	if (!room.tiles && !room.prompt)
		return 0;
	struct ck_attn a = {.kv = layer_of(p, layer), .q = q, .ldq = ldq, .out = out, .ldo = ldo, .nh = nh, .scale = scale};
	int r = plan_across(d, seqs, n_seqs, &of, &room, &a);
	if (!r && room.parts)
		r = cuda_scratch(d, (size_t)room.parts * (size_t)(p->d + 2) * sizeof(float), &parts);
	a.parts = parts;
	a.M = room.M;
	return r ? r : cuda_done(d, ck_attn(cuda_of(d)->stream, &a), "attn");
}
