/* How ranks that no launcher started find each other: at a socket of rank 0.
 *
 * Every rank is started with the number of ranks, its own, and one place: the path of a UNIX socket, or host:port, where
 * rank 0 listens until all have come. A place on this machine needs nothing more (of a UNIX socket only our own user is let in);
 * any other needs a secret, which both sides prove to know without sending it. Who says the wrong thing, or nothing,
 * is turned away with a sentence and stops nobody.
 *
 * What comes of it is a connected stream between rank 0 and each other rank, which kernels/comm_nccl.c goes on with. (It is not
 * the daemon that brings ranks together: its door is a socket of one machine, `redraft-learn train` runs without one, and the
 * same connections must tell who is alive for as long as the group is, whether a daemon restarts or not.)
 *
 * Threads: the caller's. Blocks, at most timeout_s.
 */
#pragma once
#include "kernels/comm.h"

struct meet_options {
	int rank, size;
	const char *where;  /* "/run/x/meet" or "host:port" */
	const char *secret; /* NULL: none */
	int timeout_s;      /* 0: for ever */
};

/* -EINVAL: a setting is wrong or rank 0 said no; -ETIMEDOUT; other -errno; e says it. fd: of rank 0 [size], its own -1; of others [1].
 * local, here: how many ranks are on this machine, and which of them this is, in the order of ranks. */
int MUSTCHECK meet(const struct meet_options *o, int *ret_fd, int *ret_local, int *ret_here, struct errtext *e);
