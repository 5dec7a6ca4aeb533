/* What joins the GPUs of ranks: bytes from the memory of one device to that of another's.
 *
 * The table is filled by a device's back end (kernels/cuda/link.c: NCCL) and used by kernels/comm_nccl.c alone, which
 * decides what a failure means and how long is waited. Nothing here waits for another rank: what takes its time is begun,
 * and link_ops.done asks whether it is over.
 *
 * Threads: as the device's operations.
 */
#pragma once
#include "kernels/comm.h"

struct link;

struct link_about { /* must be equal on all ranks */
	int version; /* of the library: 22809 is NCCL 2.28.9 */
	int arch;    /* compute capability: 90 is 9.0 */
};

struct link_id { /* names a group; one rank makes it */
	char bytes[128];
};

struct link_ops {
	/* -ENOENT with e: no library, or one that is too old. */
	int (*about)(struct dev *d, struct link_about *ret, struct errtext *e);
	int (*id)(struct dev *d, struct link_id *ret, struct errtext *e);
	/* Begin to join the group. Also on failure *ret may be set; it is for close. */
	int (*join)(struct dev *d, const struct link_id *id, int rank, int size, struct link **ret, struct errtext *e);
	/* Begin messages from and to the device's memory, after what was queued on it before. Those between two ranks are in the order of the posts, and
	 * without bytes they are none. */
	int (*post)(struct link *l, const struct comm_out *out, int n_out, const struct comm_in *in, int n_in, struct errtext *e);
	/* 0: what was begun is over (what the device is given from now on sees it); -EINPROGRESS; or it failed, with e. */
	int (*done)(struct link *l, struct errtext *e);
	/* Ends what is under way, whatever the other ranks do. */
	struct link *(*close)(struct link *l);
};
