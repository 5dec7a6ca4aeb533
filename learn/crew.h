/* The ranks that share sequences: rank 0 leads, the others follow.
 *
 * Rank 0 runs the whole program: it reads records, builds batches, judges, writes
 * checkpoints, talks to the daemon. What its trainer is asked to do it tells the
 * others, who do the same with their rows. A follower holds weights and optimizer
 * state as rank 0 does, and knows nothing else; so everything said of resuming a
 * killed learner holds for a group: rank 0's checkpoint is the group's.
 *
 * When a rank fails, everybody's next call fails (kernels/comm.h) and the group ends.
 */
#pragma once
#include "kernels/comm.h"
#include "learn/trainer.h"

enum crew_op { CREW_NEW, CREW_PARAMS, CREW_STATE, CREW_GRADIENTS, CREW_STEP, CREW_FREE, CREW_END };

struct crew_part {
	const void *p;
	size_t bytes;
};

/* What a rank computes with. o->threads 0 = all processors, or its share of those of its machine. Several ranks share rows
 * through ordinary memory: auto is then the CPU, and cuda by name -ENOTSUP with e. */
int MUSTCHECK crew_device(const struct comm *c, struct dev_options *o, struct errtext *e);
/* Rank 0 tells the others; on other ranks, and when there are none, 0 and nothing happens. trainer: which one; n: a number with it. */
int MUSTCHECK crew_tell(struct comm *c, enum crew_op op, int trainer, int64_t n, const struct crew_part *parts, int n_parts);
/* What a follower must have itself: the target's embedding and head, bf16 [V,H_t], as in rank 0's frozen file. */
struct crew_target {
	const uint16_t *embedding, *head;
	int V, H_t;
};
/* The other ranks: do as told until CREW_END (0) or failure (-errno with e). */
int MUSTCHECK crew_follow(struct comm *c, struct dev *d, const struct crew_target *target, struct errtext *e);
/* Rank 0, when it is done, well or not: the others go home. A group that is broken needs no telling. */
void crew_end(struct comm *c);
