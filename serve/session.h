/* One request inside the engine: its tokens, its pages, which draft it uses and
 * what is to be told about it afterwards.
 *
 * Names as in eagle3.md §2.1: n_kv rows have been through the target (and have
 * features); tokens[0..n_tokens) are known. Rows up to n_fill are read in chunks: the prompt,
 * or, of a session that lost its pages, all it had; afterwards n_tokens = n_kv + 1, the last one being
 * the root of the next round.
 *
 * Threads: made by the submitting thread, then the engine's alone, but for
 * `cancelled`.
 */
#pragma once
#include <stdatomic.h>
#include "schemas/round.h"
#include "serve/draft.h"
#include "serve/engine.h"
#include "serve/pages.h"
#include "serve/tree.h"

enum {
	SESSION_SLACK = 64, /* rows of proposals past the last token there can be */
	SESSION_PENDING = PAGE_TOK + ENGINE_MAX_K + 1, /* rows whose extend may wait */
};

struct session {
	struct session *next; /* in a queue */
	uint64_t handle;
	atomic_bool cancelled;
	struct engine_request req; /* prompt points into tokens */

	uint32_t *tokens; /* [n_prompt + max_tokens], owned */
	struct token_bias *bias; /* owned copy, what req.sampling points to */
	uint32_t *ends; /* owned; ids that end its text, n_ends of them */
	int n_ends;
	int n_prompt, n_tokens, n_kv, n_fill;
	uint32_t *pages;       /* [cap_pages] table, owned; n_pages are there */
	uint32_t *draft_pages; /* the same pages in the plane of its slot */
	int n_pages, cap_pages;
	int seat; /* row of the engine's per-sequence arrays, -1 = not running */

	/* scheduling */
	int flow;       /* whose account it is on (admit.c) */
	int64_t rank;   /* smaller goes first; never changes */
	bool begun;     /* it had a seat before */

	/* prefix (reuse.c) */
	uint64_t salt;
	int node;          /* where pages[0..n_path) end in the tree, PREFIX_ROOT = nowhere yet */
	uint32_t node_gen;
	int n_path;
	int n_drafted;     /* pages of a reused prefix whose draft KV was seen to */
	int n_told;        /* rows the tap has, from position 0 on */

	/* drafting */
	int slot;           /* of the version it drafts with, -1 = plain */
	bool draft_ok;      /* draft KV holds rows 0..n_kv-1, but for the last n_pending */
	int n_pending;      /* whose features are kept (extend.c) */
	int ctl_key;        /* account of its version and domain */
	struct draft_shape shape, used; /* what it may propose in the coming round; what the round's tree was grown to */
	bool mixed;         /* ... partly written by another version */
	uint64_t move_at;   /* µs: change to the live version then; 0 = never */
	uint32_t first[TREE_WIDTH]; /* what may follow the root, known from the last extend; first[0] may be DRAFT_NONE */
	int due;            /* the same, as row `due` of the engine's words, still to be taken (chain.c); -1 = it was */
	float first_logp[TREE_WIDTH];
	uint32_t proposed[ENGINE_MAX_NODES]; /* this round's tree */
	int16_t parent[ENGINE_MAX_NODES];    /* node, or -1: the root */
	uint8_t node_rank[ENGINE_MAX_NODES]; /* nodes the draft was surer of */
	int n_proposed, depth;               /* depth: of its longest path */
	bool branches;                       /* it is no chain */
	uint32_t proposer; /* version that proposed them */
	int chained;                         /* proposals of this round's chain that the device still has (chain.c); 0 = none */
	uint32_t chain[ENGINE_MAX_K];        /* their ids as embed takes them */

	/* accounts */
	struct request_stats stats;
	struct round_record parts[8]; /* one per version used */
	int n_parts;
	int tap; /* handle, -1 = none */
	bool traced;
	uint64_t born_us, emitted_us; /* submit; last tokens out (0 = none yet) */
};

/* tokens and pages allocated, prompt copied. eog: the model's end-of-text tokens. -ENOMEM, -EINVAL (no prompt, no tokens wanted). */
int MUSTCHECK session_new(const struct engine_request *r, const uint64_t *eog, int n_eog, struct session **ret);
struct session *session_free(struct session *s);
/* Does id end its text? Of the type that tree_next and verify_tree ask through. */
static inline bool session_ends(const void *session, uint32_t id)
{
	const struct session *s = (const struct session *)session;
	for (int i = 0; i < s->n_ends; i++)
		if (s->ends[i] == id)
			return true;
	return false;
}
static inline bool session_prefilling(const struct session *s)
{
	return s->n_kv < s->n_fill;
}
/* The table of its slot's plane: one draft pool holds a plane of n_total pages a slot. */
static inline void session_point(struct session *s, int n_total)
{
	for (int i = 0; i < s->n_pages; i++)
		s->draft_pages[i] = s->pages[i] + (uint32_t)((s->slot < 0 ? 0 : s->slot) * n_total);
}
/* Positions that its pages cover beyond the root of the next round: room for proposals. */
static inline int session_room(const struct session *s)
{
	return s->n_pages * PAGE_TOK - s->n_kv - 1;
}
/* Tokens it may still emit. */
static inline int session_left(const struct session *s)
{
	return s->n_prompt + s->req.max_tokens - s->n_tokens;
}
/* The account of one version (0 = plain): the same for as long as the version stays the same. */
struct round_record *session_part(struct session *s, uint32_t version, int k);
/* Enter one emission of n tokens at `now`; depth, the positions that were proposed for, and proposed are 0 when nothing was. */
void session_account(struct session *s, uint32_t version, int k, int depth, int proposed, bool branches, int accepted, int n, uint64_t now);
/* Fill what the parts share, before they are handed to the tap. */
void session_close_parts(struct session *s);
