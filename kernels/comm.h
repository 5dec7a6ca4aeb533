/* Ranks: processes that compute one thing together, as a table of how bytes travel.
 *
 * A back end does four things: start sends and receives, wait for them, end the
 * whole group, go away. What is made of that (broadcast, all-to-all, sums) is
 * written once, in comm.c, in an order fixed by rank: a sum is the same bits on
 * every rank and in every run.
 *
 *   comm_self     one rank, this process; costs nothing
 *   comm_threads  ranks as threads of one process: tests
 *   comm_mpi      ranks on processors: Open MPI, in a shared object of its own that is loaded
 *                 when a launcher started us (redraft-mpi.so); no program needs MPI
 *   comm_nccl     ranks with a GPU each: NCCL, loaded from there; no program needs NCCL
 *
 * Bytes lie in the memory of the device that computes (activations, gradients) or in the host's (orders, batches, small
 * sums). To threads and MPI the two are one. NCCL carries the first; the second goes through sockets between rank 0 and
 * each other rank, so one end of a message in host memory is rank 0.
 *
 * Threads: one at a time uses a comm. Messages between two ranks arrive in the
 * order of their posts. One post may be under way; it is waited for before the
 * next. What is sent stays unchanged, what is received unread, until then.
 *
 * Failure is for good: once a call failed (-ECONNABORTED: a rank is gone or gave
 * up; -ECANCELED: *stop was set while waiting; -ETIMEDOUT) every later one fails,
 * and c->error says why in a sentence. A rank that fails elsewhere must call
 * comm_abort, or the others wait for it.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "kernels/dev.h"

enum { COMM_MAX_RANKS = 256 };

struct comm_out { /* bytes for a peer, which is another rank */
	int peer;
	const void *p;
	size_t bytes;
};
struct comm_in {
	int peer;
	void *p;
	size_t bytes; /* as many as the peer sends */
};

enum comm_memory { COMM_HOST, COMM_DEVICE /* of the dev of comm_device */ };

struct comm;
struct comm_ops {
	const char *name;
	int (*post)(struct comm *c, enum comm_memory where, const struct comm_out *out, int n_out, const struct comm_in *in, int n_in);
	int (*wait)(struct comm *c);
	void (*abort)(struct comm *c); /* the other ranks' calls fail soon; may end this process */
	void (*free)(struct comm *c);
	int (*device)(struct comm *c, struct dev *d, struct errtext *e); /* NULL: device memory is ordinary memory */
};

struct comm {
	const struct comm_ops *ops;
	void *impl;
	int rank, size;
	int local, here;          /* ranks on this machine, and which of them this one is */
	struct dev *d;            /* of comm_device */
	int failed;               /* 0, or the errno of the first failure */
	const volatile int *stop; /* NULL, or: when it becomes nonzero, waits end, at once or after a short grace */
	int timeout_s;            /* longest wait for a peer inside a step; 0 = for ever */
	char error[192];
};

/* Some ranks of a comm, in an order of their own. */
struct comm_group {
	struct comm *c;
	int n, me; /* me: my place in rank[] */
	int rank[COMM_MAX_RANKS];
};

/* Is r such a failure? Then no further step can be taken. */
static inline bool comm_lost(int r)
{
	return r == -ECONNABORTED || r == -ECANCELED || r == -ETIMEDOUT;
}

struct comm *comm_self(void); /* one for the process; never freed */
int MUSTCHECK comm_threads_new(int n, struct comm **ret /* [n], one for each thread */);
/* What the launcher started us as: mpi under mpirun, else self. -EINVAL with e: no redraft-mpi.so, or it or MPI does not start; -ENOMEM with e. */
int MUSTCHECK comm_open(struct comm **ret, struct errtext *e);
/* Ranks that have found each other (learn/meet.h). fd: of rank 0 [size], a connected stream to each rank, its own -1; of the others [1], to
 * rank 0. The comm's from now on, also on failure. */
int MUSTCHECK comm_nccl_new(int rank, int size, const int *fd, struct comm **ret);
/* All ranks call, once, before anything of a device's memory is sent: d is what this one computes with. -ENOTSUP with e: this comm
 * and that kind of device do not go together; else why the ranks' devices cannot be joined, which fails the comm. */
int MUSTCHECK comm_device(struct comm *c, struct dev *d, struct errtext *e);
struct comm *comm_free(struct comm *c); /* NULL and comm_self are fine */

int MUSTCHECK comm_post(struct comm *c, enum comm_memory where, const struct comm_out *out, int n_out, const struct comm_in *in, int n_in);
int MUSTCHECK comm_wait(struct comm *c);
/* Notes the first failure and returns it. Inline, for back ends in shared objects of their own. */
static inline int PRINTF(3, 4) comm_fail(struct comm *c, int r, const char *fmt, ...)
{
	if (c->failed)
		return c->failed;
	va_list ap;
	va_start(ap, fmt);
	(void)vsnprintf(c->error, sizeof c->error, fmt, ap);
	va_end(ap);
	return c->failed = r;
}
void comm_abort(struct comm *c, const char *why);

/* Host memory; all ranks call. */
int MUSTCHECK comm_broadcast(struct comm *c, void *p, size_t bytes); /* from rank 0 */
int MUSTCHECK comm_barrier(struct comm *c);
int MUSTCHECK comm_all_gather(struct comm *c, const void *mine, void *ret_all /* [size][bytes] */, size_t bytes);

/* Device memory: x [n] becomes the sum over ranks, ((x_0 + x_1) + x_2) + ... */
int MUSTCHECK comm_sum(struct comm *c, struct dev *d, real *x, size_t n);
