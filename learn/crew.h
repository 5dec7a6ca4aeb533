/* The ranks that share steps: rank 0 leads, the others follow.
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
#include "daemon/base/conf.h"
#include "kernels/comm.h"
#include "learn/trainer.h"

enum crew_op { CREW_NEW, CREW_PARAMS, CREW_STATE, CREW_GRADIENTS, CREW_STEP, CREW_FREE, CREW_END };

enum { CREW_MAX_GROUPS = 64 /* as a step takes so many windows */ };

struct crew_part {
	const void *p;
	size_t bytes;
};

/* The keys of a program that may be one of several ranks; at(f) is the offset of field f of its struct crew_conf. */
struct crew_conf {
	int64_t data, ulysses, timeout_s, count, rank;
	char *meet, *secret_file;
};
#define CREW_KEYS(at)                                                                                                                                                         \
	{"ranks.count", CONF_INT, at(count), "1", 1, COMM_MAX_RANKS, NULL, false, "ranks", "with a GPU each: so many processes share each step (on processors, mpirun says it)"}, \
	{"ranks.rank", CONF_INT, at(rank), "0", 0, COMM_MAX_RANKS - 1, NULL, false, "", "which of them this one is; 0 leads"}, \
	{"ranks.meet", CONF_STRING, at(meet), "", 0, 0, NULL, false, "", "where they find each other, at rank 0: the path of a socket, or host:port"}, \
	{"ranks.secret_file", CONF_STRING, at(secret_file), "", 0, 0, NULL, false, "", "a file with what all ranks know and nobody else; needed where ranks.meet is not on this machine"}, \
	{"ranks.data", CONF_INT, at(data), "1", 1, CREW_MAX_GROUPS, NULL, false, "groups", "the ranks are so many groups, and a step trains so many sequences, each shared by one group"}, \
	{"ranks.ulysses", CONF_INT, at(ulysses), "1", 1, COMM_MAX_RANKS, NULL, false, "ranks", "of the ranks that share a sequence, so many swap rows for heads; the rest form a ring"}, \
	{"ranks.timeout_s", CONF_INT, at(timeout_s), "600", 0, 1e7, NULL, false, "s", "a rank that waits longer for another, at the start or inside a step, gives up; 0 = never"}

/* Which ranks we are one of: of ranks.count that meet, or what mpirun started; else this process alone. May wait for the others, timeout_s at most. -errno with e. */
int MUSTCHECK crew_open(const struct crew_conf *k, struct comm **ret, struct errtext *e);
/* What a rank computes with: ranks that met, a GPU each (of those visible, the one of its place on its machine; sets CUDA_VISIBLE_DEVICES); under mpirun
 * processors, auto too. o->threads 0 = all processors, or its share of those of its machine. -EINVAL, -ENOTSUP with e: o->kind is not that. */
int MUSTCHECK crew_device(const struct comm *c, struct dev_options *o, struct errtext *e);
/* dev_new, and then all ranks join their devices. Who fails tells the others. c NULL: alone. */
int MUSTCHECK crew_dev_new(struct comm *c, const struct dev_options *o, struct dev **ret, struct errtext *e);
/* What must be equal on all ranks for equal sums: the kind of device and the path it computes by. */
static inline int64_t crew_machine(const struct dev *d)
{
	return (int64_t)d->kind * 256 + (int64_t)d->isa;
}
/* Rank 0 tells the others; on other ranks, and when there are none, 0 and nothing happens. trainer: which one; n: a number with it. */
int MUSTCHECK crew_tell(struct comm *c, enum crew_op op, int trainer, int64_t n, const struct crew_part *parts, int n_parts);
/* What a follower must have itself: the target's embedding and head, bf16 [V,H_t], as in rank 0's frozen file. */
struct crew_target {
	const uint16_t *embedding, *head;
	int V, H_t;
};
/* The other ranks: do as told until CREW_END (0) or failure (-errno with e). */
int MUSTCHECK crew_follow(struct comm *c, struct dev *d, const struct crew_target *target, struct errtext *e);
/* When a rank is done. Rank 0: the others go home. why: it did not go well; where that came before the group had begun, the others are told. A
 * group that is broken needs no telling. */
void crew_end(struct comm *c, const char *why);
