/* Paged attention: online softmax over blocks of 128 keys at absolute positions.
 *
 * A row's result depends on its own keys alone: scores are panel products (one
 * chain over d), each 32-key page of V is one chain, blocks are merged in order.
 * A row that shares a tile with a longer one gets keys it may not see with weight
 * exactly 0 (their scores are replaced, not scaled, so stale memory is harmless),
 * and adding 0 changes nothing. Threads take runs of query rows as they come to
 * them: what a row costs depends on more than its keys (does its context lie in a
 * cache, do neighbours share it).
 */
#include "kernels/cpu/attn.h"
#include <math.h>
#include <string.h>

size_t attn_block_reals(const struct cpu_kernels *k, int d)
{
	return (size_t)ATTN_ROWS * ((size_t)d + cpu_round_up((size_t)d, (size_t)k->nr) + CPU_ATTN_BLOCK);
}

void attn_block_memory(struct attn_block *b, const struct cpu_kernels *k, int d, real *mem)
{
	b->s = mem;
	b->out = b->s + (size_t)ATTN_ROWS * CPU_ATTN_BLOCK;
	b->q = b->out + (size_t)ATTN_ROWS * cpu_round_up((size_t)d, (size_t)k->nr);
}

static void product(const struct cpu_kernels *k, const struct cpu_product *p, enum dtype type)
{
	if (type == DT_BF16)
		k->product_bf16(p);
	else
		k->product_f32(p);
}

static const void *page_of(const struct cpu_kernels *k, const struct attn_block *b, int i, bool v)
{
	const struct kv_pool *p = b->pool;
	int per = p->page_tok / CPU_PAGE; /* pool pages may be several of our 32 keys */
	size_t within = (size_t)(i % per) * CPU_PAGE * (size_t)(v ? k->nr : p->d) * dtype_size(p->type); /* V panels span the whole pool page */
	if (b->tail && i / per >= b->tail_page)
		return attn_tail_page(k, b, i / per, v) + within;
	uint32_t page = b->pages ? b->pages[i / per] : (uint32_t)(i / per);
	return (const char *)cpu_kv_head(k, p, b->layer, page, b->head, v) + within;
}

static void mask(real *s, int n, int lo, int hi)
{
	for (int i = 0; i < cpu_min(lo, n); i++)
		s[i] = -(real)INFINITY;
	for (int i = cpu_max(hi + 1, 0); i < n; i++)
		s[i] = -(real)INFINITY;
}

/* Rows [r0, r0+R) against the keys of one block, whose first key is at `first` */
static void attn_tile(const struct cpu_kernels *k, struct attn_block *b, int r0, int R, int first)
{
	const struct kv_pool *p = b->pool;
	size_t d = (size_t)p->d, dp = cpu_round_up(d, (size_t)k->nr), nr = (size_t)k->nr;
	real *s = b->s + (size_t)r0 * CPU_ATTN_BLOCK, *out = b->out + (size_t)r0 * dp;
	int lo = b->lo[r0], hi = b->hi[r0];

	for (int r = r0; r < r0 + R; r++) {
		lo = cpu_min(lo, b->lo[r]);
		hi = cpu_max(hi, b->hi[r]);
	}
	if (hi < first || lo >= first + CPU_ATTN_BLOCK)
		return;
	int keys = cpu_min(CPU_ATTN_BLOCK, hi - first + 1), pages = (keys + CPU_PAGE - 1) / CPU_PAGE;
	for (int i = 0; i < pages; i++) {
		struct cpu_product q = {
			.R = R,
			.cols = CPU_PAGE,
			.K = p->d,
			.C = s + i * CPU_PAGE,
			.ldc = CPU_ATTN_BLOCK,
			.A = b->q + (size_t)r0 * d,
			.as_m = d,
			.as_k = 1,
			.B = page_of(k, b, first / CPU_PAGE + i, false),
			.bs = nr,
			.ps = d * nr,
		};
		product(k, &q, p->type);
	}
	for (int r = 0; r < R; r++) {
		real *sr = s + (size_t)r * CPU_ATTN_BLOCK;
		mask(sr, pages * CPU_PAGE, b->lo[r0 + r] - first, b->hi[r0 + r] - first);
		k->softmax_step(sr, pages * CPU_PAGE, &b->st[r0 + r]);
		if (b->st[r0 + r].scale != 1)
			k->scale(out + (size_t)r * dp, b->st[r0 + r].scale, (int)dp);
	}
	for (int i = 0; i < pages; i++) {
		struct cpu_product v = {
			.R = R,
			.cols = (int)dp,
			.K = cpu_min(CPU_PAGE, keys - i * CPU_PAGE),
			.add = true,
			.C = out,
			.ldc = dp,
			.A = s + i * CPU_PAGE,
			.as_m = CPU_ATTN_BLOCK,
			.as_k = 1,
			.B = page_of(k, b, first / CPU_PAGE + i, true),
			.bs = nr,
			.ps = (size_t)p->page_tok * nr,
		};
		product(k, &v, p->type);
	}
}

void attn_block_run(const struct cpu_kernels *k, struct attn_block *b)
{
	int lo = b->lo[0], hi = b->hi[0], tiles = (b->R + k->mr - 1) / k->mr;

	memset(b->out, 0, (size_t)b->R * cpu_round_up((size_t)b->pool->d, (size_t)k->nr) * sizeof *b->out);
	for (int r = 0; r < b->R; r++) {
		b->st[r] = (struct cpu_softmax){.max = -(real)INFINITY};
		lo = cpu_min(lo, b->lo[r]);
		hi = cpu_max(hi, b->hi[r]);
	}
	for (int first = lo / CPU_ATTN_BLOCK * CPU_ATTN_BLOCK; first <= hi; first += CPU_ATTN_BLOCK)
		for (int r0 = 0, left = tiles, R; left; r0 += R, left--) { /* none much smaller than the others */
			R = (b->R - r0 + left - 1) / left;
			attn_tile(k, b, r0, R, first);
		}
}

struct attn_job {
	const struct cpu_kernels *k;
	real *out;
	size_t ldo;
	const real *q;
	size_t ldq;
	const struct kv_pool *pool;
	int layer, n_seqs, nh;
	const struct attn_seq *seqs;
	const struct attn_paths *paths; /* [n_seqs], or NULL: no sequence is a tree */
	real scale;
	real *mem; /* a block's memory for each thread */
	char *tails; /* a tail's for each thread */
	int total; /* query rows, of all heads */
	_Atomic int next;
};

/* Query rows of a sequence in work order: kv head, then position (of a tree: path), then head
 * of the group; i of [0, n_rows*nh). */
static void attn_flush(const struct attn_job *j, struct attn_block *b, const struct attn_seq *s, const struct attn_paths *t, int i0, char *tail)
{
	int d = j->pool->d, group = j->nh / j->pool->n_kv, per = s->n_rows * group;
	size_t dp = cpu_round_up((size_t)d, (size_t)j->k->nr);

	b->head = i0 / per;
	b->tail = NULL;
	if (t)
		attn_tail(j->k, b, s, t->end[i0 % per / group], tail);
	for (int r = 0; r < b->R; r++) {
		int i = (i0 + r) % per, at = i / group, row = t ? t->row[at] : at, h = b->head * group + i % group;
		const real *q = j->q + (size_t)(s->row0 + row) * j->ldq + (size_t)h * (size_t)d;
		b->lo[r] = 0;
		b->hi[r] = t ? t->hi[at] : s->n_past + row;
		for (int c = 0; c < d; c++)
			b->q[(size_t)r * (size_t)d + (size_t)c] = q[c] * j->scale;
	}
	attn_block_run(j->k, b);
	for (int r = 0; r < b->R; r++) {
		int i = (i0 + r) % per, at = i / group, row = t ? t->row[at] : at, h = b->head * group + i % group;
		real *out = j->out + (size_t)(s->row0 + row) * j->ldo + (size_t)h * (size_t)d;
		real inv = 1 / b->st[r].sum;
		for (int c = 0; c < d; c++)
			out[c] = b->out[(size_t)r * dp + (size_t)c] * inv;
	}
}

static bool new_path(const struct attn_paths *t, int at)
{
	return t && at && t->end[at] != t->end[at - 1];
}

/* Rows [from, to) of a sequence, in as few blocks as may be */
static void attn_rows(const struct attn_job *j, struct attn_block *b, const struct attn_seq *s, const struct attn_paths *t, int from, int to, char *tail)
{
	int group = j->nh / j->pool->n_kv, per = s->n_rows * group;

	b->pages = s->pages;
	for (int i = from, end; i < to; i = end) {
		int last = cpu_min(to, cpu_min(i + ATTN_ROWS, (i / per + 1) * per));
		for (end = i + 1; end < last && (end % group || !new_path(t, end % per / group)); end++) /* heads that share keys share their path */
			continue;
		b->R = end - i;
		attn_flush(j, b, s, t, i, tail);
	}
}

/* Rows that a thread takes at least: heads that share their keys, a tile of them or more, but no more than its share where all are few. */
static int attn_least(const struct attn_job *j, int threads)
{
	int group = j->nh / j->pool->n_kv, share = cpu_max(1, j->total / threads);
	return share < group ? share : cpu_min((int)cpu_round_up((size_t)j->k->mr, (size_t)group), share / group * group);
}

static void attn_part(void *ctx, int t, int n)
{
	struct attn_job *j = ctx;
	struct attn_block b = {.pool = j->pool, .layer = j->layer};
	char *tail = j->tails + (size_t)t * attn_tail_bytes(j->k, j->pool);
	int least = attn_least(j, n), from, to;

	attn_block_memory(&b, j->k, j->pool->d, j->mem + (size_t)t * attn_block_reals(j->k, j->pool->d));
	while (cpu_next(&j->next, j->total, least, j->total, n, &from, &to))
		for (int si = 0, at = 0; si < j->n_seqs && at < to; si++) {
			const struct attn_seq *s = &j->seqs[si];
			int rows = s->n_rows * j->nh;
			attn_rows(j, &b, s, s->parent ? &j->paths[si] : NULL, cpu_max(from - at, 0), cpu_min(to - at, rows), tail);
			at += rows;
		}
}

/* Order the rows of every tree; -EINVAL when one is none */
static int find_paths(struct attn_job *j, struct attn_paths *paths)
{
	j->paths = paths;
	for (int i = 0; i < j->n_seqs; i++)
		if (j->seqs[i].parent && attn_paths_make(&paths[i], &j->seqs[i]))
			return -EINVAL;
	return 0;
}

int cpu_attn(struct dev *d, real *out, int ldo, const real *q, int ldq, const struct kv_pool *p, int layer, const struct attn_seq *seqs,
	     int n_seqs, int nh, real scale)
{
	struct attn_job j = {
		.k = cpu_of(d)->k,
		.out = out,
		.ldo = (size_t)ldo,
		.q = q,
		.ldq = (size_t)ldq,
		.pool = p,
		.layer = layer,
		.n_seqs = n_seqs,
		.nh = nh,
		.seqs = seqs,
		.scale = scale,
	};
	if (nh <= 0 || nh % p->n_kv || layer < 0 || layer >= p->n_layer || ldo < nh * p->d || ldq < nh * p->d)
		return cpu_bad(d, "attn");
	size_t trees = 0;
	double keys = 0;
	for (int i = 0; i < n_seqs; i++) {
		const struct attn_seq *s = &seqs[i];
		trees += s->parent != NULL;
		if (s->n_rows < 0 || s->n_past < 0 || s->row0 < 0)
			return cpu_bad(d, "attn: sequence");
		for (int pg = 0; s->n_rows && pg <= (s->n_past + s->n_rows - 1) / p->page_tok; pg++)
			if (s->pages[pg] >= (uint32_t)p->n_pages)
				return cpu_bad(d, "attn: page past the pool");
		j.total += s->n_rows * nh;
		keys += (double)s->n_rows * nh * (s->n_past + 0.5 * s->n_rows + 64);
	}
	double work = 4.0 * keys * p->d;
	int threads = cpu_threads_for(d, work);
	size_t blocks = cpu_round_up((size_t)threads * attn_block_reals(j.k, p->d) * sizeof *j.mem, 64);
	size_t tails = trees ? (size_t)threads * attn_tail_bytes(j.k, p) : 0, paths = trees ? (size_t)n_seqs * sizeof *j.paths : 0;
	j.mem = cpu_scratch(d, blocks + tails + paths);
	if (!j.mem)
		return -ENOMEM;
	j.tails = (char *)j.mem + blocks;
	if (trees && find_paths(&j, (struct attn_paths *)(void *)(j.tails + tails)))
		return cpu_bad(d, "attn: tree");
	cpu_run(d, work, attn_part, &j);
	return 0;
}
