/* Collectives over post and wait (kernels/comm.h).
 *
 * Groups are small (a sequence is shared by 2 to 16 ranks): no trees. What the host knows goes by way of
 * rank 0, the devices' straight from rank to rank. A sum is cut into one slice a rank; each
 * rank adds the others' slices to its own in the order of ranks and hands the
 * result round, in pieces, so that the scratch stays small.
 */
#include "kernels/comm.h"

#include <string.h>

#include "kernels/ops.h"

enum { SUM_SLICE = 1 << 18 /* reals of one rank at a time */ };

void comm_abort(struct comm *c, const char *why)
{
	if (c->size == 1)
		return;
	(void)comm_fail(c, -ECONNABORTED, "rank %d of %d gave up: %s", c->rank, c->size, why);
	c->ops->abort(c);
}

struct comm *comm_free(struct comm *c)
{
	if (c && c->size > 1)
		c->ops->free(c);
	return NULL;
}

int comm_device(struct comm *c, struct dev *d, struct errtext *e)
{
	int r = 0;
	if (c->size > 1 && c->ops->device)
		r = c->ops->device(c, d, e);
	else if (c->size > 1 && d->own_memory)
		r = errtext_set(e, -ENOTSUP, "ranks by %s share what lies in ordinary memory, and this device has its own: take device = cpu, or start the ranks without a launcher", c->ops->name);
	if (!r)
		c->d = d;
	return r;
}

int comm_post(struct comm *c, enum comm_memory where, const struct comm_out *out, int n_out, const struct comm_in *in, int n_in)
{
	return c->failed ? c->failed : c->ops->post(c, where, out, n_out, in, n_in);
}

int comm_wait(struct comm *c)
{
	return c->failed ? c->failed : c->ops->wait(c);
}

static int exchange(struct comm *c, enum comm_memory where, const struct comm_out *out, int n_out, const struct comm_in *in, int n_in)
{
	int r = comm_post(c, where, out, n_out, in, n_in);
	return r ? r : comm_wait(c);
}

int comm_broadcast(struct comm *c, void *p, size_t bytes)
{
	struct comm_out out[COMM_MAX_RANKS];
	struct comm_in in = {0, p, bytes};
	if (c->size == 1)
		return 0;
	if (c->rank)
		return exchange(c, COMM_HOST, NULL, 0, &in, 1);
	for (int i = 1; i < c->size; i++)
		out[i - 1] = (struct comm_out){i, p, bytes};
	return exchange(c, COMM_HOST, out, c->size - 1, NULL, 0);
}

int comm_all_gather(struct comm *c, const void *mine, void *ret_all, size_t bytes)
{
	struct comm_out out = {0, mine, bytes};
	struct comm_in in[COMM_MAX_RANKS];
	char *all = ret_all;
	int r;
	memcpy(all + (size_t)c->rank * bytes, mine, bytes);
	for (int p = 1; p < c->size; p++)
		in[p - 1] = (struct comm_in){p, all + (size_t)p * bytes, bytes};
	r = c->rank ? exchange(c, COMM_HOST, &out, 1, NULL, 0) : exchange(c, COMM_HOST, NULL, 0, in, c->size - 1);
	return r ? r : comm_broadcast(c, all, (size_t)c->size * bytes);
}

int comm_barrier(struct comm *c)
{
	char mine = 0, all[COMM_MAX_RANKS] = {0};
	return comm_all_gather(c, &mine, all, 1);
}

/* The others, each once, starting with my neighbour, so that no rank is everybody's first. */
static int other(const struct comm *c, int i)
{
	return (c->rank + 1 + i) % c->size;
}

/* Slice i of x [n] has len reals at i * len; the last ones may be short or empty. */
static size_t slice_of(size_t n, size_t len, int i)
{
	size_t from = (size_t)i * len;
	return from >= n ? 0 : n - from < len ? n - from : len;
}

/* One piece of at most size * SUM_SLICE reals; got [size][len] is scratch. */
static int sum_piece(struct comm *c, struct dev *d, real *x, size_t n, real *got, size_t len)
{
	const struct ops *o = d->ops;
	struct comm_out out[COMM_MAX_RANKS];
	struct comm_in in[COMM_MAX_RANKS];
	size_t mine = slice_of(n, len, c->rank);
	int k = c->size - 1;
	for (int i = 0; i < k; i++) {
		int p = other(c, i);
		out[i] = (struct comm_out){p, x + (size_t)p * len, slice_of(n, len, p) * sizeof *x};
		in[i] = (struct comm_in){p, got + (size_t)p * len, mine * sizeof *x};
	}
	int r = exchange(c, COMM_DEVICE, out, k, in, k);
	if (!r && mine)
		r = o->copy_rows(d, got + (size_t)c->rank * len, (int)len, x + (size_t)c->rank * len, (int)len, NULL, 1, (int)mine);
	for (int i = 1; i < c->size && !r && mine; i++)
		r = o->add(d, got, got + (size_t)i * len, mine);
	if (!r && mine)
		r = o->copy_rows(d, x + (size_t)c->rank * len, (int)len, got, (int)len, NULL, 1, (int)mine);
	for (int i = 0; i < k && !r; i++) {
		int p = other(c, i);
		out[i] = (struct comm_out){p, got, mine * sizeof *x};
		in[i] = (struct comm_in){p, x + (size_t)p * len, slice_of(n, len, p) * sizeof *x};
	}
	return r ? r : exchange(c, COMM_DEVICE, out, k, in, k);
}

int comm_sum(struct comm *c, struct dev *d, real *x, size_t n)
{
	if (c->size == 1)
		return 0;
	size_t piece = (size_t)c->size * SUM_SLICE;
	size_t most = n < piece ? n : piece, most_len = (most + (size_t)c->size - 1) / (size_t)c->size;
	real *got = d->ops->alloc(d, (size_t)c->size * most_len * sizeof *got);
	int r = got ? 0 : -ENOMEM;
	for (size_t at = 0, part; at < n && !r; at += part) {
		part = n - at < piece ? n - at : piece;
		r = sum_piece(c, d, x + at, part, got, (part + (size_t)c->size - 1) / (size_t)c->size);
	}
	d->ops->free(d, got);
	return r;
}
