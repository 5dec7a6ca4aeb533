/* A corpus: recorded runs on disk that nobody adds to while they are trained from.
 *
 * One or more folders of pool segments (a learner's state_dir/pool, or what
 * `redraft-learn collect` wrote), read in the order of the list. Records are
 * validated and joined as the learner does it, so that a run here is a run there.
 * Threads: one owner.
 */
#pragma once
#include "learn/frozen.h"
#include "learn/join.h"

enum { CORPUS_MAX_POOLS = 64 };

struct corpus {
	const struct frozen *fz; /* borrowed */
	int n_pools;
	struct pool *pool[CORPUS_MAX_POOLS];
	struct runs runs;        /* ids ascend over all pools */
	int *pool_of, cap;       /* [runs.n] which pool a run lies in */
	struct join join;
	uint64_t records, refused; /* refused: malformed, of another target, or seen before */
	int64_t rows, generated;
	char why[256];           /* why the last one was refused */
	uint64_t *seen;          /* (partition, offset) of the pool being read: a table of 2^k keys, 0 = free */
	size_t n_seen, seen_cap;
};

/* dirs: folders, separated by white space. -EINVAL with e: one that holds no records. */
int MUSTCHECK corpus_open(const char *dirs, const struct frozen *fz, struct corpus *ret, struct errtext *e);
void corpus_close(struct corpus *c); /* safe on a zeroed struct and twice */
int MUSTCHECK corpus_load(struct corpus *c, int run, int max_history, struct joined *ret); /* -EIO: damaged */
/* Of it what a step on rows [row0, row0+n) needs, as joined_load_window. */
int MUSTCHECK corpus_load_window(struct corpus *c, int run, int lead, int row0, int n, struct joined *ret);
bool corpus_whole(const struct corpus *c, int run); /* its history is there from the first token on */
/* Token counts of one run, its prompt included, added to counts [V]. */
int MUSTCHECK corpus_count(struct corpus *c, int run, uint64_t *counts);

/* Record files into a pool folder, in the order of their names: patterns are globs, separated by white space. *ret_n: how many.
 * What is no record is refused with its name. */
int MUSTCHECK corpus_import(const char *patterns, struct pool *into, int *ret_n, struct errtext *e);
/* The other way: each record of dirs as dir/NNNNNNNN.safetensors. */
int MUSTCHECK corpus_export(const char *from, const char *dir, int64_t *ret_n, struct errtext *e);
