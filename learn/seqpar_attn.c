/* Attention over ranks (learn/seqpar.h): rows for heads and back, and the ring. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "learn/seqpar_priv.h"
#include "learn/ttt.h"

/* ---- Ulysses: rows for heads ---- */

static int field_width(const struct seqpar *sp, const struct seq_field *f)
{
	return (f->kv ? sp->kv_heads : sp->q_heads) * sp->hd;
}

/* Column among the rows' heads at which those of member u begin. */
static int field_col(const struct seqpar *sp, const struct seq_field *f, int u)
{
	int head = f->kv ? u * sp->n_kv / sp->heads.n : u * sp->q_heads;
	return f->col + head * sp->hd;
}

/* Row `there` at which span s of member u begins. */
static int there_row(const struct seqpar *sp, int u, int s, int k)
{
	int at = 0;
	for (int i = 0; i <= s; i++)
		for (int p = 0; p < (i < s ? sp->heads.n : u); p++)
			at += seqpar_own_of(sp, p, i, k);
	return at;
}

static int rows_of(const struct seqpar *sp, int u, int k)
{
	int n = 0;
	for (int s = 0; s < sp->n_spans; s++)
		n += seqpar_own_of(sp, u, s, k);
	return n;
}

/* My rows' heads of member u, packed; or unpacked into them. */
static int move_rows(const struct seqpar *sp, int k, const struct seq_field *f, int u, real *packed, bool pack)
{
	int W = field_width(sp, f), col = field_col(sp, f, u);
	for (int s = 0; s < sp->n_spans; s++) {
		int own = seqpar_own(sp, s, k);
		real *rows = f->rows + (size_t)sp->span[s].at * (size_t)f->ld + col;
		TRY(pack ? sp->d->ops->copy_rows(sp->d, packed, W, rows, f->ld, NULL, own, W) : sp->d->ops->copy_rows(sp->d, rows, f->ld, packed, W, NULL, own, W));
		packed += (size_t)own * (size_t)W;
	}
	return 0;
}

/* Member u's rows for my heads, into `there` or out of it. */
static int move_there(const struct seqpar *sp, int k, const struct seq_field *f, int u, real *packed, bool in)
{
	int W = field_width(sp, f);
	for (int s = 0; s < sp->n_spans; s++) {
		int own = seqpar_own_of(sp, u, s, k);
		real *there = f->there + (size_t)there_row(sp, u, s, k) * (size_t)W;
		TRY(in ? sp->d->ops->copy_rows(sp->d, there, W, packed, W, NULL, own, W) : sp->d->ops->copy_rows(sp->d, packed, W, there, W, NULL, own, W));
		packed += (size_t)own * (size_t)W;
	}
	return 0;
}

static size_t width_of_all(const struct seqpar *sp, const struct seq_field *f, int n_fields)
{
	size_t w = 0;
	for (int i = 0; i < n_fields; i++)
		w += (size_t)field_width(sp, &f[i]);
	return w;
}

static int reserve_exchange(struct seqpar *sp, size_t width)
{
	size_t want = (size_t)(sp->n_spans * sp->part[sp->group].chunk * sp->heads.n) * width;
	if (want <= sp->exchange_cap)
		return 0;
	sp->d->ops->free(sp->d, sp->send);
	sp->d->ops->free(sp->d, sp->recv);
	sp->send = sp->d->ops->alloc(sp->d, want * sizeof(real));
	sp->recv = sp->d->ops->alloc(sp->d, want * sizeof(real));
	sp->exchange_cap = sp->send && sp->recv ? want : 0;
	return sp->exchange_cap ? 0 : -ENOMEM;
}

/* To each other member out[u] rows of the send buffer, from each in[u] rows into the receive buffer; one after the
 * other in both. My own part is put where it would arrive. ret_at [U]: where each member's part begins in recv. */
struct swap {
	size_t width;
	int out[COMM_MAX_RANKS], in[COMM_MAX_RANKS];
	real *to[COMM_MAX_RANKS], *from[COMM_MAX_RANKS];
};

static void swap_lay(const struct seqpar *sp, struct swap *x)
{
	size_t out = 0, in = 0;
	for (int u = 0; u < sp->heads.n; u++) {
		x->to[u] = sp->send + out;
		x->from[u] = sp->recv + in;
		out += (size_t)x->out[u] * x->width;
		in += (size_t)x->in[u] * x->width;
	}
	x->to[sp->heads.me] = x->from[sp->heads.me];
}

static int swap_do(struct seqpar *sp, const struct swap *x)
{
	struct comm_out out[COMM_MAX_RANKS];
	struct comm_in in[COMM_MAX_RANKS];
	int n = 0, U = sp->heads.n;
	for (int i = 1; i < U; i++) { /* my neighbour first, so that no rank is everybody's first */
		int u = (sp->heads.me + i) % U, p = sp->heads.rank[u];
		out[n] = (struct comm_out){p, x->to[u], (size_t)x->out[u] * x->width * sizeof(real)};
		in[n++] = (struct comm_in){p, x->from[u], (size_t)x->in[u] * x->width * sizeof(real)};
	}
	TRY(comm_post(sp->c, COMM_DEVICE, out, n, in, n));
	return comm_wait(sp->c);
}

int seqpar_to_heads(struct seqpar *sp, int k, const struct seq_field *f, int n_fields)
{
	struct swap x = {.width = width_of_all(sp, f, n_fields)};
	int U = sp->heads.n, mine = rows_of(sp, sp->heads.me, k);
	if (U == 1) { /* all heads are here: own rows, one span behind the other */
		for (int i = 0; i < n_fields; i++)
			TRY(move_rows(sp, k, &f[i], 0, f[i].there, true));
		return 0;
	}
	TRY(reserve_exchange(sp, x.width));
	for (int u = 0; u < U; u++) {
		x.out[u] = mine;
		x.in[u] = rows_of(sp, u, k);
	}
	swap_lay(sp, &x);
	for (int u = 0; u < U; u++) {
		real *to = x.to[u];
		for (int i = 0; i < n_fields; to += (size_t)mine * (size_t)field_width(sp, &f[i]), i++)
			TRY(move_rows(sp, k, &f[i], u, to, true));
	}
	TRY(swap_do(sp, &x));
	for (int u = 0; u < U; u++) {
		real *from = x.from[u];
		for (int i = 0; i < n_fields; from += (size_t)x.in[u] * (size_t)field_width(sp, &f[i]), i++)
			TRY(move_there(sp, k, &f[i], u, from, true));
	}
	return 0;
}

/* What came back from members that hold the same kv head is added to the first of them. */
static int add_replicas(struct seqpar *sp, const struct swap *x, const struct seq_field *f, int n_fields, int mine)
{
	int U = sp->heads.n, copies = U / sp->n_kv;
	for (int u = 0; copies > 1 && u < U; u++) {
		real *first = x->from[u - u % copies], *from = x->from[u];
		for (int i = 0; i < n_fields; i++) {
			size_t n = (size_t)mine * (size_t)field_width(sp, &f[i]);
			if (f[i].kv && u % copies)
				TRY(sp->d->ops->add(sp->d, first, from, n));
			first += n;
			from += n;
		}
	}
	return 0;
}

/* Rows of nobody and halos take part in nothing: they read as 0. */
static int zero_dead(struct seqpar *sp, int k, const struct seq_field *f, int width)
{
	int from = 0, end = sp->n_local - k;
	for (int s = 0; s <= sp->n_spans; s++) {
		int to = s < sp->n_spans ? sp->span[s].at : end;
		for (int row = from; row < to && row < end; row++)
			TRY(sp->d->ops->zero(sp->d, f->rows + (size_t)row * (size_t)f->ld + f->col, (size_t)width * sizeof(real)));
		if (s < sp->n_spans)
			from = to + seqpar_own(sp, s, k);
	}
	return 0;
}

int seqpar_to_rows(struct seqpar *sp, int k, const struct seq_field *f, int n_fields)
{
	struct swap x = {.width = width_of_all(sp, f, n_fields)};
	int U = sp->heads.n, mine = rows_of(sp, sp->heads.me, k);
	for (int i = 0; i < n_fields && !seqpar_alone(sp); i++)
		TRY(zero_dead(sp, k, &f[i], (f[i].kv ? sp->n_kv : sp->n_head) * sp->hd));
	if (U == 1) {
		for (int i = 0; i < n_fields; i++)
			TRY(move_rows(sp, k, &f[i], 0, f[i].there, false));
		return 0;
	}
	TRY(reserve_exchange(sp, x.width));
	for (int u = 0; u < U; u++) {
		x.out[u] = rows_of(sp, u, k);
		x.in[u] = mine;
	}
	swap_lay(sp, &x);
	for (int u = 0; u < U; u++) {
		real *to = x.to[u];
		for (int i = 0; i < n_fields; to += (size_t)x.out[u] * (size_t)field_width(sp, &f[i]), i++)
			TRY(move_there(sp, k, &f[i], u, to, false));
	}
	TRY(swap_do(sp, &x));
	TRY(add_replicas(sp, &x, f, n_fields, mine));
	for (int u = 0; u < U; u++) {
		real *from = x.from[u];
		bool again = sp->n_kv < U && u % (U / sp->n_kv);
		for (int i = 0; i < n_fields; from += (size_t)mine * (size_t)field_width(sp, &f[i]), i++)
			if (!f[i].kv || !again)
				TRY(move_rows(sp, k, &f[i], u, from, false));
	}
	return 0;
}

/* ---- the ring ---- */

/* How many rows of ring rank r's blocks lie before row g of my part. */
static uint32_t rows_before(const struct seqpar *sp, int r, int64_t g)
{
	int64_t n = 0;
	for (int s = 0; s < sp->n_spans; s++) {
		int first, rows = seqpar_block(sp, r, s, &first);
		n += g <= first ? 0 : g - first < rows ? g - first : rows;
	}
	return (uint32_t)n;
}

/* Row of my part that row i of my team's blocks is. */
static int row_of(const struct seqpar *sp, int i)
{
	int first, rows = seqpar_block(sp, sp->ring.me, 0, &first);
	if (i >= rows && sp->n_spans > 1) {
		(void)seqpar_block(sp, sp->ring.me, 1, &first);
		i -= rows;
	}
	return first + i;
}

/* What of ring rank r's blocks my rows see. Blocks lie in the order of the part, so it is one range. */
static void ranges(struct seqpar *sp, int r, int m)
{
	for (int i = 0; i < m; i++) {
		sp->lo[i] = sp->has_seg ? rows_before(sp, r, sp->att_seg[i]) : 0;
		sp->hi[i] = rows_before(sp, r, row_of(sp, i) + 1);
	}
}

/* Packing as ttt_attn takes it: first row of the run among my team's own rows. */
static const uint32_t *own_seg(struct seqpar *sp, int m)
{
	if (seqpar_alone(sp))
		return sp->seg;
	for (int i = 0; i < m && sp->has_seg; i++)
		sp->local[i] = rows_before(sp, sp->ring.me, sp->att_seg[i]);
	return sp->has_seg ? sp->local : NULL;
}

static int reserve_ring(struct seqpar *sp)
{
	size_t want = 2 * (size_t)sp->att_most * (size_t)(sp->kv_heads * sp->hd);
	real **all[] = {&sp->kv[0], &sp->kv[1], &sp->dkv[0], &sp->dkv[1], &sp->dkv[2]};
	if (want <= sp->ring_cap)
		return 0;
	sp->ring_cap = want;
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		sp->d->ops->free(sp->d, *all[i]);
		if (!(*all[i] = sp->d->ops->alloc(sp->d, want * sizeof(real))))
			sp->ring_cap = 0;
	}
	return sp->ring_cap ? 0 : -ENOMEM;
}

/* Reals of k (or v) of ring rank r's blocks. */
static size_t block_reals(const struct seqpar *sp, int r)
{
	return (size_t)seqpar_att_of(sp, r, 0) * (size_t)(sp->kv_heads * sp->hd);
}

/* The ring rank whose block is here after s turns. */
static int visitor(const struct seqpar *sp, int s)
{
	return (sp->ring.me - s + sp->ring.n) % sp->ring.n;
}

/* Messages of one turn: to the next rank, from the one before. */
struct turn {
	struct comm_out out[3];
	struct comm_in in[3];
	int n_out, n_in;
};

static void turn_send(const struct seqpar *sp, struct turn *x, const real *p, size_t n)
{
	x->out[x->n_out++] = (struct comm_out){sp->ring.rank[(sp->ring.me + 1) % sp->ring.n], p, n * sizeof *p};
}

static void turn_receive(const struct seqpar *sp, struct turn *x, real *p, size_t n)
{
	x->in[x->n_in++] = (struct comm_in){sp->ring.rank[visitor(sp, 1)], p, n * sizeof *p};
}

/* Start turn s+1 of the keys: the block that is here goes on, the next one comes; into kv[s % 2]. */
static void turn_keys(struct seqpar *sp, const struct ttt *t, struct turn *x, int s)
{
	size_t have = block_reals(sp, visitor(sp, s)), comes = block_reals(sp, visitor(sp, s + 1));
	if (s + 1 >= sp->ring.n)
		return;
	if (s == 0) {
		turn_send(sp, x, t->step[0].k, have);
		turn_send(sp, x, t->step[0].v, have);
	} else
		turn_send(sp, x, sp->kv[(s - 1) % 2], 2 * have);
	if (s == 0) { /* as they were sent */
		turn_receive(sp, x, sp->kv[0], comes);
		turn_receive(sp, x, sp->kv[0] + comes, comes);
	} else
		turn_receive(sp, x, sp->kv[s % 2], 2 * comes);
}

static struct ttt_block block_here(const struct seqpar *sp, int s)
{
	const real *kv = sp->kv[(s - 1) % 2];
	return (struct ttt_block){.n = seqpar_att_of(sp, visitor(sp, s), 0), .k = kv, .v = kv + block_reals(sp, visitor(sp, s)), .lo = sp->lo, .hi = sp->hi};
}

static real scale_of(const struct seqpar *sp)
{
	return (real)(1 / sqrt((double)sp->hd));
}

int seqpar_attend(struct seqpar *sp, const struct ttt *t, int k, real *out, real *lse, const real *q)
{
	const struct ops *o = sp->d->ops;
	int m = seqpar_att(sp, k), R = sp->ring.n;
	struct ttt_kv kv;
	ttt_kv_of(t, k, &kv);
	if (R > 1)
		TRY(reserve_ring(sp));
	for (int s = 0; s < R; s++) {
		struct turn x = {0};
		turn_keys(sp, t, &x, s);
		TRY(comm_post(sp->c, COMM_DEVICE, x.out, x.n_out, x.in, x.n_in));
		if (s == 0)
			TRY(o->ttt_attn(sp->d, out, lse, q, &kv, own_seg(sp, m), m, sp->q_heads, sp->kv_heads, sp->hd, scale_of(sp)));
		else {
			ranges(sp, visitor(sp, s), m);
			const struct ttt_block b = block_here(sp, s);
			TRY(o->ttt_attn_more(sp->d, out, lse, q, &b, m, sp->q_heads, sp->kv_heads, sp->hd, scale_of(sp)));
		}
		TRY(comm_wait(sp->c));
	}
	return 0;
}

/* The gradient of the block that left a turn ago goes after it; that of the one that is here comes. */
static void turn_gradients(struct seqpar *sp, struct turn *x, int s, const real *sent, real *comes)
{
	turn_send(sp, x, sent, 2 * block_reals(sp, visitor(sp, s - 1)));
	turn_receive(sp, x, comes, 2 * block_reals(sp, visitor(sp, s)));
}

int seqpar_attend_backward(struct seqpar *sp, const struct ttt *t, int k, real *dq, const real *dout, const real *out, const real *lse, const real *q)
{
	const struct ops *o = sp->d->ops;
	int m = seqpar_att(sp, k), R = sp->ring.n;
	struct ttt_kv kv;
	ttt_kv_of(t, k, &kv);
	if (R > 1)
		TRY(reserve_ring(sp));
	for (int s = 0; s < R; s++) {
		struct turn x = {0};
		real *mine = sp->dkv[s % 2], *before = sp->dkv[(s + 1) % 2], *comes = sp->dkv[2];
		size_t n = block_reals(sp, visitor(sp, s));
		turn_keys(sp, t, &x, s);
		if (s > 1) /* my neighbour's share of it, and of all before him */
			turn_gradients(sp, &x, s, before, comes);
		TRY(comm_post(sp->c, COMM_DEVICE, x.out, x.n_out, x.in, x.n_in));
		if (s == 0)
			TRY(o->ttt_attn_backward(sp->d, dq, &kv, dout, out, lse, q, own_seg(sp, m), m, sp->q_heads, sp->kv_heads, sp->hd, scale_of(sp)));
		else {
			ranges(sp, visitor(sp, s), m);
			struct ttt_block b = block_here(sp, s);
			b.dk = mine;
			b.dv = mine + n;
			TRY(ttt_zero(t, mine, 2 * n));
			TRY(o->ttt_attn_more_backward(sp->d, dq, &b, dout, out, lse, q, m, sp->q_heads, sp->kv_heads, sp->hd, scale_of(sp)));
		}
		TRY(comm_wait(sp->c));
		if (s > 1)
			TRY(o->add(sp->d, mine, comes, 2 * n));
	}
	if (R == 1)
		return 0;
	/* the last turn takes each gradient home: visitor(R) is me again */
	struct turn x = {0};
	size_t n = block_reals(sp, sp->ring.me);
	turn_gradients(sp, &x, R, sp->dkv[(R - 1) % 2], sp->dkv[2]);
	TRY(comm_post(sp->c, COMM_DEVICE, x.out, x.n_out, x.in, x.n_in));
	TRY(comm_wait(sp->c));
	TRY(o->add(sp->d, t->step[0].dk, sp->dkv[2], n));
	return o->add(sp->d, t->step[0].dv, sp->dkv[2] + n, n);
}
