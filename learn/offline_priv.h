/* The run of learn/offline.c, and its state on disk (offline_state.c). */
#pragma once
#include "learn/offline.h"

struct lesson {
	int run, row0, n;         /* rows of the run with weight */
	struct batch_teacher *kept; /* owned; NULL: worked out again */
};

struct offline {
	const struct offline_options *o;
	struct dev *d;
	struct corpus *corpus, *judge;
	const struct offline_calls *calls;
	struct errtext *e;        /* of the call */
	uint8_t *held;            /* [corpus->runs.n] 1: judged, not trained */
	struct lesson *lesson;
	int n_lessons, *order;
	uint64_t cached;
	struct batcher batcher;
	struct trainer *t;
	real *anchor;             /* [draft.n] owned; NULL: none yet */
	struct draft draft;       /* what is judged and kept; w is the average, or a copy of the masters */
	struct offline_report rep;
	int64_t eval_at;
	int64_t done;             /* lessons behind us; stream: places of the corpus */
	int64_t turn;             /* lessons taken, those from before included */
	int64_t shuffled;         /* the epoch that order[] is of; -1: none yet */
	uint64_t spent_us;
};

/* Everything that decides what comes next, into o->state_dir; and the newest of it back. restore: 0 also when there is none
 * (x->done stays 0). -EINVAL with e: made with other options or another corpus. */
int MUSTCHECK offline_save(const struct offline *x, struct errtext *e);
int MUSTCHECK offline_restore(struct offline *x, struct errtext *e);
