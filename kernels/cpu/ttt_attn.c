/* TTT attention, forward: a causal trunk plus one diagonal key per earlier step.
 *
 * The trunk is serving's own core (cpu/attn.c) over keys and values put into
 * pages; the diagonals are further steps of the same online softmax. A block of
 * keys of other ranks is a trunk without diagonals, whose result is merged with
 * what was there by the two log-sum-exps. The backward half is cpu/ttt_back.c.
 */
#include "kernels/cpu/ttt.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void ttt_pages(void *ctx, int t, int n)
{
	struct ttt_job *j = ctx;
	int from, to;
	cpu_split(j->nk, CPU_PAGE, t, n, &from, &to);
	for (int i = from; i < to; i++) {
		size_t at = (size_t)i * (size_t)(j->nkv * j->hd);
		cpu_kv_put(j->k, &j->pool, 0, (uint32_t)i, j->kv->k[0] + at, j->kv->v[0] + at);
	}
}

static void ttt_diagonals(const struct ttt_job *j, struct attn_block *b, int r, int t)
{
	size_t dp = cpu_round_up((size_t)j->hd, (size_t)j->k->nr);
	size_t at = ((size_t)t * (size_t)j->nkv + (size_t)b->head) * (size_t)j->hd;
	struct cpu_softmax *st = &b->st[r];
	real *out = b->out + (size_t)r * dp;

	for (int i = 1; i < j->kv->n_steps; i++) {
		real s = j->k->dot(b->q + (size_t)r * (size_t)j->hd, j->kv->k[i] + at, j->hd);
		real mx = s > st->max ? s : st->max;
		real keep = (real)exp((double)(st->max - mx)), w = (real)exp((double)(s - mx));
		j->k->scale(out, keep, j->hd);
		j->k->axpy(out, w, j->kv->v[i] + at, j->hd);
		st->sum = st->sum * keep + w;
		st->max = mx;
	}
}

static void put_row(const struct ttt_job *j, const struct attn_block *b, int r, size_t th)
{
	size_t dp = cpu_round_up((size_t)j->hd, (size_t)j->k->nr);
	for (int c = 0; c < j->hd; c++)
		j->out[th * (size_t)j->hd + (size_t)c] = b->out[(size_t)r * dp + (size_t)c] / b->st[r].sum;
	if (j->lse)
		j->lse[th] = b->st[r].max + (real)log((double)b->st[r].sum);
}

/* M' = log(e^M + e^m), out' = e^(M-M') out + e^(m-M') new;  new is b->out / sum, m = max + log sum */
static void merge_row(const struct ttt_job *j, const struct attn_block *b, int r, size_t th)
{
	size_t dp = cpu_round_up((size_t)j->hd, (size_t)j->k->nr);
	double sum = (double)b->st[r].sum, had = (double)j->lse[th], m = (double)b->st[r].max + log(sum);
	if (sum == 0)
		return; /* it sees nothing of this block */
	double top = had > m ? had : m, both = top + log(exp(had - top) + exp(m - top));
	j->k->scale(j->out + th * (size_t)j->hd, (real)exp(had - both), j->hd);
	j->k->axpy(j->out + th * (size_t)j->hd, (real)(exp(m - both) / sum), b->out + (size_t)r * dp, j->hd);
	j->lse[th] = (real)both;
}

static void ttt_rows(const struct ttt_job *j, struct attn_block *b, int t0, int rows)
{
	int group = j->nh / j->nkv, hd = j->hd;

	b->R = rows * group;
	for (int r = 0; r < b->R; r++) {
		int t = t0 + r / group;
		const real *q = j->q + ((size_t)t * (size_t)j->nh + (size_t)(b->head * group + r % group)) * (size_t)hd;
		b->lo[r] = ttt_first_key(j, t);
		b->hi[r] = ttt_last_key(j, t);
		for (int c = 0; c < hd; c++)
			b->q[(size_t)r * (size_t)hd + (size_t)c] = q[c] * j->scale;
	}
	attn_block_run(j->k, b);
	for (int r = 0; r < b->R; r++) {
		int t = t0 + r / group;
		size_t th = (size_t)t * (size_t)j->nh + (size_t)(b->head * group + r % group);
		if (j->lo) {
			merge_row(j, b, r, th);
			continue;
		}
		ttt_diagonals(j, b, r, t);
		put_row(j, b, r, th);
	}
}

static void ttt_forward_part(void *ctx, int t, int n)
{
	struct ttt_job *j = ctx;
	struct attn_block b = {.pool = &j->pool};
	int rows = cpu_max(1, ATTN_ROWS / (j->nh / j->nkv)), blocks = (j->n + rows - 1) / rows;

	attn_block_memory(&b, j->k, j->hd, j->mem + (size_t)t * j->reals);
	/* later rows cost more: the last ones first */
	for (int i, end; cpu_next(&j->next, blocks * j->nkv, 1, 1, n, &i, &end);) {
		b.head = i % j->nkv;
		int t0 = (blocks - 1 - i / j->nkv) * rows;
		ttt_rows(j, &b, t0, cpu_min(rows, j->n - t0));
	}
}

bool ttt_bad(const struct ttt_kv *kv, const uint32_t *seg, int n, int nh, int nkv, int hd)
{
	if (n < 0 || nkv <= 0 || nh <= 0 || nh % nkv || nh / nkv > ATTN_ROWS || hd <= 0 || kv->n_steps < 1 || kv->n_steps > TTT_MAX_STEPS)
		return true;
	for (int t = 0; seg && t < n; t++)
		if (seg[t] > (uint32_t)t)
			return true;
	return false;
}

bool ttt_bad_block(const struct ttt_block *b, int n, int nh, int nkv, int hd)
{
	const struct ttt_kv none = {.n_steps = 1};
	if (ttt_bad(&none, NULL, n, nh, nkv, hd) || b->n < 0)
		return true;
	for (int t = 0; t < n; t++)
		if (b->lo[t] > b->hi[t] || b->hi[t] > (uint32_t)b->n)
			return true;
	return false;
}

/* The rest of the job is filled in: pages of the trunk keys, then every query row. */
static int forward(struct dev *d, struct ttt_job *j, double work)
{
	j->k = cpu_of(d)->k;
	j->pool = (struct kv_pool){.n_layer = 1,
				   .n_kv = j->nkv,
				   .d = j->hd,
				   .page_tok = CPU_PAGE,
				   .n_pages = (j->nk + CPU_PAGE - 1) / CPU_PAGE,
				   .type = DT_F32};
	j->reals = attn_block_reals(j->k, j->hd);
	size_t heads = (size_t)j->pool.n_pages * (size_t)j->nkv, ke = heads * CPU_PAGE * (size_t)j->hd, ve = heads * cpu_kv_head_elems(j->k, &j->pool);
	real *mem = cpu_scratch(d, (ke + ve + (size_t)d->n_threads * j->reals) * sizeof *mem);
	if (!mem)
		return -ENOMEM;
	memset(mem, 0, (ke + ve) * sizeof *mem); /* the last page's tail must be finite */
	j->pool.k = mem;
	j->pool.v = mem + ke;
	j->mem = mem + ke + ve;
	cpu_run(d, 4.0 * j->nk * j->nkv * j->hd, ttt_pages, j);
	cpu_run(d, work, ttt_forward_part, j);
	return 0;
}

int cpu_ttt_attn(struct dev *d, real *out, real *lse, const real *q, const struct ttt_kv *kv, const uint32_t *seg, int n, int nh, int nkv,
		 int hd, real scale)
{
	if (ttt_bad(kv, seg, n, nh, nkv, hd))
		return cpu_bad(d, "ttt_attn");
	struct ttt_job j = {.kv = kv, .out = out, .lse = lse, .q = q, .seg = seg, .n = n, .nk = n, .nh = nh, .nkv = nkv, .hd = hd, .scale = scale};
	return n ? forward(d, &j, 2.0 * n * n * nh * hd) : 0;
}

int cpu_ttt_attn_more(struct dev *d, real *out, real *lse, const real *q, const struct ttt_block *b, int n, int nh, int nkv, int hd, real scale)
{
	if (ttt_bad_block(b, n, nh, nkv, hd))
		return cpu_bad(d, "ttt_attn_more");
	const struct ttt_kv kv = {.n_steps = 1, .k = {b->k}, .v = {b->v}};
	struct ttt_job j = {.kv = &kv, .out = out, .lse = lse, .q = q, .lo = b->lo, .hi = b->hi, .n = n, .nk = b->n, .nh = nh, .nkv = nkv, .hd = hd, .scale = scale};
	return n && b->n ? forward(d, &j, 4.0 * n * b->n * nh * hd) : 0;
}
