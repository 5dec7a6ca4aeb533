/* What came before a run: the rows of its conversation that earlier requests recorded.
 *
 * Serving records a reused prefix once; a later round carries `parent` = "REQUEST ROWS" and its own rows alone. Its
 * true history is then the parent's first ROWS rows, whose own history may lie in the parent's parent. Resolved each
 * time it is needed, from the index alone, so that nothing has to be kept in step: a parent that closes late is
 * found, one that left the pool is missed, and both are the same after a crash.
 */
#pragma once
#include "learn/runs.h"

enum { HISTORY_MAX_LINKS = 64, HISTORY_MAX_ROWS = 16384 };

enum history_kind {
	HISTORY_WHOLE,   /* back to position 0, or nothing came before */
	HISTORY_UNNAMED, /* no parent is named: a part behind a gap, or a record without one */
	HISTORY_MISSING, /* the parent is not in the pool: never taken, refused, or gone with its segment */
	HISTORY_OPEN,    /* the parent has not closed yet */
	HISTORY_SHORT,   /* the parent ends before the rows that are named: its rest was lost */
	HISTORY_DEEP,    /* more links or rows than are followed */
	HISTORY_N
};

/* Links nearest first; link i gives its rows [0, rows[i]). Borrowed from the index: valid until that changes. */
struct history {
	enum history_kind kind;  /* why it goes no further */
	int n, total;            /* links; rows of all */
	const struct run *link[HISTORY_MAX_LINKS];
	int rows[HISTORY_MAX_LINKS];
};

struct join;
/* open (may be NULL): the parts that have not closed, to tell one that is late from one that is gone. */
void history_find(const struct runs *s, const struct join *open, const struct run *r, struct history *ret);
const char *history_word(enum history_kind k); /* "whole", "unnamed", ... */

/* A run that closes: its block hashes chained onto its conversation's (or its parent's) so that each stands for all
 * tokens before; then how many of its first rows another run of the pool has already. */
void history_chain(const struct runs *s, struct run *r);
int history_repeated(const struct runs *s, const struct run *r);
