/* Reading a run back (learn/join.h): its records decoded and laid end to end. */
#include <stdlib.h>
#include <string.h>

#include "learn/history.h"
#include "learn/join.h"

void joined_done(struct joined *j)
{
	free(j->ids);
	free(j->pos);
	free(j->mask);
	free(j->features);
	free(j->gen_row);
	free(j->topk_ids);
	free(j->topk_lp);
	free(j->hid_row);
	free(j->hidden);
	free(j->round_start);
	free(j->round_len);
	free(j->round_accepted);
	free(j->round_version);
	memset(j, 0, sizeof *j);
}

/* A record and which of its rows are wanted. */
struct piece {
	struct trace_record r;
	int lo, hi;
	bool own; /* the run's, not its history's */
};

static int generated(const struct trace_record *r, int lo, int hi)
{
	int n = 0;
	for (int t = lo; t < hi; t++)
		n += r->loss_mask[t] != 0;
	return n;
}

/* Room for what the pieces hold together. */
static int reserve(struct joined *j, const struct piece *v, int n)
{
	size_t rows = 0, gen = 0, hid = 0, rounds = 0;
	for (int i = 0; i < n; i++) {
		int g = generated(&v[i].r, v[i].lo, v[i].hi);
		rows += (size_t)(v[i].hi - v[i].lo);
		gen += (size_t)g;
		hid += v[i].r.last_hidden ? (size_t)(v[i].hi - v[i].lo - g) : 0;
		rounds += v[i].own ? (size_t)v[i].r.S : 0;
		if (v[i].r.T_gen)
			j->K = v[i].r.K;
	}
	j->H = v[0].r.H_t;
	j->H3 = 3 * j->H;
	j->ids = malloc((rows + 1) * sizeof *j->ids);
	j->pos = malloc(rows * sizeof *j->pos);
	j->mask = malloc(rows);
	j->features = malloc(rows * (size_t)j->H3 * sizeof *j->features);
	j->gen_row = malloc(rows * sizeof *j->gen_row);
	j->topk_ids = malloc((gen * (size_t)j->K + 1) * sizeof *j->topk_ids);
	j->topk_lp = malloc((gen * (size_t)j->K + 1) * sizeof *j->topk_lp);
	j->hid_row = malloc(rows * sizeof *j->hid_row);
	j->hidden = malloc((hid * (size_t)j->H + 1) * sizeof *j->hidden);
	j->round_start = malloc((rounds + 1) * sizeof *j->round_start);
	j->round_len = malloc(rounds + 1);
	j->round_accepted = malloc(rounds + 1);
	j->round_version = malloc((rounds + 1) * sizeof *j->round_version);
	return j->ids && j->pos && j->mask && j->features && j->gen_row && j->topk_ids && j->topk_lp && j->hid_row && j->hidden && j->round_start && j->round_len && j->round_accepted &&
			       j->round_version
		       ? 0 : -ENOMEM;
}

/* Each proposal but the first hangs from the one before it. */
static bool is_chain(const struct trace_record *r, int s)
{
	for (int i = 0; r->draft_parent && i < r->round_len[s]; i++)
		if (r->draft_parent[(size_t)s * (size_t)r->k + (size_t)i] != (uint8_t)(i - 1))
			return false;
	return true;
}

static void append_rounds(struct joined *j, const struct trace_record *r, size_t at)
{
	for (int s = 0; s < r->S; s++) {
		if (!record_round_is_chain(r, s))
			continue;
		j->round_start[j->n_rounds] = (uint32_t)at + r->round_start[s];
		j->round_len[j->n_rounds] = r->round_len[s];
		j->round_accepted[j->n_rounds] = r->accepted[s];
		j->round_version[j->n_rounds++] = r->round_flags[s] & 1 || !is_chain(r, s) ? 0 : r->round_version[s];
	}
}

static void append(struct joined *j, const struct piece *p)
{
	const struct trace_record *r = &p->r;
	size_t lo = (size_t)p->lo, T = (size_t)(p->hi - p->lo), at = (size_t)j->n, K = (size_t)j->K, H = (size_t)j->H;
	memcpy(j->ids + at, r->token_ids + lo, T * sizeof *j->ids);
	j->ids[at + T] = p->hi < r->T ? r->token_ids[p->hi] : r->next_token; /* what follows overwrites it */
	memcpy(j->pos + at, r->positions + lo, T * sizeof *j->pos);
	memcpy(j->mask + at, r->loss_mask + lo, T);
	memcpy(j->features + at * (size_t)j->H3, r->features + lo * (size_t)j->H3, T * (size_t)j->H3 * sizeof *j->features);
	bool taught = r->T_gen && r->K;
	int gen = j->n_gen, hid = j->n_hid;
	for (size_t t = 0; t < T; t++) {
		bool g = r->loss_mask[lo + t];
		j->gen_row[at + t] = g && taught ? gen++ : -1;
		j->hid_row[at + t] = !g && r->last_hidden ? hid++ : -1;
	}
	size_t gen0 = (size_t)generated(r, 0, p->lo), hid0 = lo - gen0;
	if (gen > j->n_gen) {
		memcpy(j->topk_ids + (size_t)j->n_gen * K, r->topk_ids + gen0 * K, (size_t)(gen - j->n_gen) * K * sizeof *j->topk_ids);
		memcpy(j->topk_lp + (size_t)j->n_gen * K, r->topk_logprob + gen0 * K, (size_t)(gen - j->n_gen) * K * sizeof *j->topk_lp);
	}
	if (hid > j->n_hid)
		memcpy(j->hidden + (size_t)j->n_hid * H, r->last_hidden + hid0 * H, (size_t)(hid - j->n_hid) * H * sizeof *j->hidden);
	if (p->own)
		append_rounds(j, r, at);
	else
		j->history += (int)T;
	j->n_gen = gen;
	j->n_hid = hid;
	j->n += (int)T;
}

/* ---- reading ---- */

struct reading {
	struct pool *pool;
	uint32_t vocab;
	struct buf blob;
	struct piece *v;
	int n, from; /* pieces; row of the run at which its own begin */
};

/* Rows [lo, hi) of a run as pieces, its own as whole records. Records outside them are not read, or, where their rows are not known, let go at once. */
static int read_rows(struct reading *x, const struct run *r, int lo, int hi, bool own)
{
	int at = 0;
	struct piece *v = realloc(x->v, (size_t)(x->n + r->n_refs) * sizeof *v);
	if (!v)
		return -ENOMEM;
	x->v = v;
	for (int i = 0; i < r->n_refs && at < hi; i++) {
		struct piece *p = &v[x->n];
		if (r->rows[i] && at + r->rows[i] <= lo) {
			at += r->rows[i];
			continue;
		}
		int k = pool_read(x->pool, r->refs[i], &x->blob);
		if (!k)
			k = record_decode(x->blob.data, x->blob.len, x->vocab, &p->r, NULL);
		if (k)
			return k == -ENOMEM ? k : -EIO;
		p->lo = lo > at ? lo - at : 0;
		p->hi = hi - at < p->r.T ? hi - at : p->r.T;
		p->own = own;
		at += p->r.T;
		if (p->lo >= p->hi) {
			record_done(&p->r);
			continue;
		}
		if (own) { /* rounds count from the first row of their record */
			x->from = x->n && v[x->n - 1].own ? x->from : at - p->r.T;
			p->lo = 0;
			p->hi = p->r.T;
		}
		x->n++;
		if (p->r.H_t != v[0].r.H_t)
			return -EIO;
		for (int k0 = x->n - 2; k0 >= 0 && p->r.T_gen; k0--)
			if (v[k0].r.T_gen) { /* one depth of the teacher throughout */
				if (v[k0].r.K != p->r.K)
					return -EIO;
				break;
			}
	}
	return at >= hi ? 0 : -EIO;
}

/* The nearest max_rows of the history, oldest first. */
static int read_history(struct reading *x, const struct history *h, int max_rows)
{
	int left = h->total < max_rows ? h->total : max_rows, from = 0, skip[HISTORY_MAX_LINKS], r = 0;
	while (from < h->n && left > 0) {
		skip[from] = h->rows[from] > left ? h->rows[from] - left : 0;
		left -= h->rows[from] - skip[from];
		from++;
	}
	for (int i = from - 1; i >= 0 && !r; i--)
		r = read_rows(x, h->link[i], skip[i], h->rows[i], false);
	return r;
}

static bool consecutive(const struct joined *j)
{
	for (int i = 1; i < j->n; i++)
		if (j->pos[i] != j->pos[i - 1] + 1)
			return false;
	return true;
}

int joined_load_rows(struct pool *p, const struct history *h, int max_rows, const struct run *r, int lo, int hi, uint32_t vocab, struct joined *ret)
{
	struct reading x = {.pool = p, .vocab = vocab, .blob = BUF_INIT(0)};
	struct joined j = {0};
	int k = h && max_rows > 0 ? read_history(&x, h, max_rows) : 0;
	if (!k)
		k = read_rows(&x, r, lo > 0 ? lo : 0, hi < r->n ? hi : r->n, true);
	if (!k)
		k = x.n ? reserve(&j, x.v, x.n) : -EIO;
	j.from = x.from;
	for (int i = 0; i < x.n && !k; i++)
		append(&j, &x.v[i]);
	if (!k && !consecutive(&j))
		k = -EIO;
	for (int i = 0; i < x.n; i++)
		record_done(&x.v[i].r);
	free(x.v);
	buf_done(&x.blob);
	if (k) {
		joined_done(&j);
		return k;
	}
	*ret = j;
	return 0;
}

enum { ROUND_REACH = 256 /* rows from a round's first to the one it was refused at, and more */ };

int joined_load_window(struct pool *p, const struct history *h, int lead, const struct run *r, int row0, int n, uint32_t vocab, struct joined *ret)
{
	return joined_load_rows(p, h, lead - row0, r, row0 - lead - ROUND_REACH, row0 + n + 2, vocab, ret);
}

int joined_load_after(struct pool *p, const struct history *h, int max_rows, const struct run *r, uint32_t vocab, struct joined *ret)
{
	return joined_load_rows(p, h, max_rows, r, 0, r->n, vocab, ret);
}

int joined_load(struct pool *p, const struct run *r, uint32_t vocab, struct joined *ret)
{
	return joined_load_after(p, NULL, 0, r, vocab, ret);
}
