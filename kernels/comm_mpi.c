/* Ranks over MPI (kernels/comm.h); built into redraft-mpi.so, never into a program.
 *
 * Messages are non-blocking sends and receives. A wait tests them in a loop, first
 * hot, then with naps: ranks share cores with a server, and a follower may wait for
 * minutes while rank 0 judges a draft. Naps also let it look at *stop, so that a
 * rank whose peer died says so instead of hanging until it is killed.
 */
#include <mpi.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/comm.h"

enum { PIECE = 1 << 30 /* MPI counts in int */ };

struct mpi {
	struct comm comm;
	MPI_Request *req; /* [cap], n under way */
	int n, cap;
};

static int mpi_error(struct comm *c, const char *what, int code)
{
	char text[MPI_MAX_ERROR_STRING] = "";
	int len = 0;
	(void)MPI_Error_string(code, text, &len);
	return comm_fail(c, -ECONNABORTED, "rank %d: %s: %.120s", c->rank, what, text);
}

static int request(struct comm *c, MPI_Request **ret)
{
	struct mpi *m = c->impl;
	if (m->n == m->cap) {
		int cap = m->cap ? 2 * m->cap : 64;
		MPI_Request *more = realloc(m->req, (size_t)cap * sizeof *more);
		if (!more)
			return comm_fail(c, -ENOMEM, "out of memory for %d messages", cap);
		m->req = more;
		m->cap = cap;
	}
	*ret = &m->req[m->n++];
	return 0;
}

static int mpi_post(struct comm *c, enum comm_memory where, const struct comm_out *out, int n_out, const struct comm_in *in, int n_in)
{
	MPI_Request *q = NULL;
	(void)where;
	for (int i = 0; i < n_in; i++)
		for (size_t at = 0; at < in[i].bytes; at += PIECE) {
			size_t left = in[i].bytes - at;
			int r = request(c, &q);
			if (r)
				return r;
			r = MPI_Irecv((char *)in[i].p + at, left < PIECE ? (int)left : PIECE, MPI_BYTE, in[i].peer, 0, MPI_COMM_WORLD, q);
			if (r != MPI_SUCCESS)
				return mpi_error(c, "receive", r);
		}
	for (int i = 0; i < n_out; i++)
		for (size_t at = 0; at < out[i].bytes; at += PIECE) {
			size_t left = out[i].bytes - at;
			int r = request(c, &q);
			if (r)
				return r;
			r = MPI_Isend((const char *)out[i].p + at, left < PIECE ? (int)left : PIECE, MPI_BYTE, out[i].peer, 0, MPI_COMM_WORLD, q);
			if (r != MPI_SUCCESS)
				return mpi_error(c, "send", r);
		}
	return 0;
}

static double now(void)
{
	struct timespec t;
	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Hot for 100 us, then giving way, then napping ever longer up to 1 ms. */
static void relax(double waited)
{
	if (waited < 100e-6)
		return;
	if (waited < 2e-3) {
		(void)sched_yield();
		return;
	}
	const struct timespec nap = {.tv_nsec = waited < 0.1 ? 50000 : 1000000};
	(void)nanosleep(&nap, NULL);
}

static int mpi_wait(struct comm *c)
{
	struct mpi *m = c->impl;
	double began = 0;
	for (;;) {
		int done = 0, r = MPI_Testall(m->n, m->req, &done, MPI_STATUSES_IGNORE);
		if (r != MPI_SUCCESS)
			return mpi_error(c, "wait", r);
		if (done)
			break;
		if (!(began > 0))
			began = now();
		double waited = now() - began;
		if (c->stop && *c->stop && waited > 0.3) /* peers that are well have that long to end the step */
			return comm_fail(c, -ECANCELED, "rank %d of %d was told to end while it waited for others", c->rank, c->size);
		if (c->timeout_s && waited > c->timeout_s)
			return comm_fail(c, -ETIMEDOUT, "rank %d of %d heard nothing from the others for %d s", c->rank, c->size, c->timeout_s);
		relax(waited);
	}
	m->n = 0;
	return 0;
}

static void mpi_abort(struct comm *c)
{
	(void)c;
	(void)MPI_Abort(MPI_COMM_WORLD, 1);
}

static void mpi_free(struct comm *c)
{
	struct mpi *m = c->impl;
	if (!c->failed)
		(void)MPI_Finalize(); /* with a peer gone it would wait for it */
	free(m->req);
	free(m);
}

static const struct comm_ops mpi_ops = {.name = "mpi", .post = mpi_post, .wait = mpi_wait, .abort = mpi_abort, .free = mpi_free};

__attribute__((visibility("default"))) int redraft_comm_mpi(struct comm **ret, struct errtext *e);
int redraft_comm_mpi(struct comm **ret, struct errtext *e)
{
	int provided = 0, r = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
	if (r != MPI_SUCCESS)
		return errtext_set(e, -EINVAL, "MPI does not start (%d)", r);
	struct mpi *m = calloc(1, sizeof *m);
	if (!m)
		return errtext_set(e, -ENOMEM, "out of memory");
	(void)MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	m->comm = (struct comm){.ops = &mpi_ops, .impl = m};
	(void)MPI_Comm_rank(MPI_COMM_WORLD, &m->comm.rank);
	(void)MPI_Comm_size(MPI_COMM_WORLD, &m->comm.size);
	MPI_Comm here;
	m->comm.local = m->comm.size;
	if (MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here) == MPI_SUCCESS) {
		(void)MPI_Comm_size(here, &m->comm.local);
		(void)MPI_Comm_rank(here, &m->comm.here);
		(void)MPI_Comm_free(&here);
	}
	*ret = &m->comm;
	return 0;
}
