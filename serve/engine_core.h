/* Internal to the engine: its whole state, and the steps of a round.
 *
 * engine.c owns the thread and the commands, admit.c the queue; room.c and reuse.c hand out
 * pages, budget.c says how many prompt rows a round may take; propose.c, round.c, capture.c are the round. Everything below `---- engine thread ----` is touched by
 * that thread only and is sized once, in engine_new.
 */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "kernels/model/llama.h"
#include "serve/budget.h"
#include "serve/controller.h"
#include "serve/engine.h"
#include "serve/keep.h"
#include "serve/pages.h"
#include "serve/prefix.h"
#include "serve/sample.h"
#include "serve/session.h"
#include "serve/slots.h"
#include "serve/told.h"
#include "serve/verify.h"

enum { ENGINE_RING = 1024, N_FLOWS = 256 };

/* The account of one client at one priority (admit.c). */
struct flow {
	uint64_t client;
	int priority, users; /* users: its requests that wait or run; 0 = may be forgotten */
	double vtime;        /* what it had, by its weight */
};

/* One session's rows in the current target batch. */
struct piece {
	struct session *s;
	int row0, n_rows; /* in the batch */
	int out0;         /* first of those of its rows that have an output, which are its last */
	int logit0;       /* first logit row, -1 = none wanted */
	int n_past;       /* n_kv before the round */
	int needs;        /* what its draws go by (sample.h) */
	int drawn0;       /* first of the device's draws, -1 = none */
	int emitted;      /* tokens this round produced */
	int accepted;     /* proposals among them, */
	int path[ENGINE_MAX_K]; /* these nodes */
	bool prefill;
	bool done;
	enum finish why;
};

/* What drafts said that the host may not have seen yet (chain.c). Rows 0.. of ids and logp are TREE_WIDTH wide and one for each last
 * extend; then comes a level of trees, then a token a row of chains. `first` has what of it the device goes on with: extends, then chains. */
struct words {
	uint32_t *ids; float *logp; /* alloc_shared */
	uint32_t *first;            /* alloc: [max_seqs * ENGINE_MAX_K] */
	int n_due, n_chained;       /* rows in use: of extends; of chains */
};

/* What parts of the round took, known after its wait (costs.c): entry i lies between stamps 2i and 2i+1. */
struct costs {
	struct { enum ctl_cost what; int rows; } of[OP_STAMPS / 2];
	int n;
};

/* Position of the first token that is drawn for it. */
static inline uint32_t piece_position(const struct piece *p)
{
	return (uint32_t)(p->n_past + (p->prefill ? p->n_rows : 1));
}

/* Which of its rows the i-th emitted token was drawn from. */
static inline int piece_row(const struct piece *p, int i)
{
	return i ? 1 + p->path[i - 1] : 0;
}

/* Index arrays of a batch; `cap` rows, ENGINE_MAX_SEQS sessions, each with two sequences at most. */
struct rows {
	int M, n_seqs, n_logits;
	uint32_t *ids, *pos, *slots, *logit_rows; /* logit_rows: of the target batch's, which of out_rows */
	struct attn_seq seqs[2 * ENGINE_MAX_SEQS];
	int n_out, n_out_seqs; /* of the target batch: rows with an output (llama.h) */
	uint32_t *out_rows;
	struct attn_seq out_seqs[2 * ENGINE_MAX_SEQS];
};

enum cmd_kind { CMD_INSTALL, CMD_ACTIVATE, CMD_CANARY, CMD_UNLOAD, CMD_TRIM };
struct cmd { /* on its caller's stack; the engine answers through done */
	struct cmd *next;
	enum cmd_kind kind;
	int slot;
	struct slot_load *load;
	uint32_t version, deadline_ms, permille;
	const char *salt;
	bool move_all;
	int result;
	struct errtext *e;
	bool done;
};

struct engine {
	struct engine_options o;
	int V, H, max_rows, max_piece; /* max_piece: rows of one decoding session */
	pthread_t thread;
	bool started;

	pthread_mutex_t lock;
	pthread_cond_t wake, answered;
	bool stop, draining;
	uint64_t drain_until, next_handle;
	struct session *waiting, **waiting_tail; /* new ones, as they came */
	int n_waiting;
	struct session *resting; /* those that lost their pages, by rank; changed by the engine only */
	int n_resting;
	struct session *active[ENGINE_MAX_SEQS]; /* by rank; changed under the lock, by the engine only */
	int n_active;
	struct cmd *cmds, **cmds_tail;
	struct slots slots; /* reserve and abandon under the lock */
	struct engine_status pub;
	float ring_ms[ENGINE_RING], ring_gap[ENGINE_RING];
	unsigned ring_n; /* rounds ever entered */
	atomic_int draft_k, draft_mode;

	/* ---- engine thread ---- */
	struct kv_pool kv;
	struct pages pages;
	struct prefix prefix;
	struct keep keep;
	struct told told;
	struct budget budget;
	struct flow flows[N_FLOWS];
	double vnow; /* of the flow last admitted */
	bool seat_used[ENGINE_MAX_SEQS];
	struct sampler *sampler;
	struct rows tb, db; /* target batch, draft batch */
	struct piece pieces[ENGINE_MAX_SEQS];
	int n_pieces;
	int n_decode_rows, n_prompt_rows; /* of this round's batch */
	struct controller ctl;
	struct tree trees[ENGINE_MAX_SEQS];
	int width; /* of the widest tree of the slot that proposes */
	struct words words;
	struct costs costs;
	real *features, *hidden, *logits; /* device: [max_rows,3H] [max_rows,H] [max logits,V] */
	real *d_features;                 /* device: [max_rows,3H] gathered for a draft */
	real *given, *whole;              /* the host's side of d_features and logits; the same where it reads the device's memory */
	struct { uint32_t *ids; float *vals, *lse; int K; } best; /* of each row of logits; K a row */
	struct { uint32_t *ids; float *vals; struct draw *how; int n; } drawn; /* by the device; one a row that was to be drawn from; how: host */
	struct { /* for the tap, and to be kept; by row of the batch, but for codes, and hidden by rows with an output */
		uint16_t *features, *hidden; /* bf16; features NULL where nobody needs them so */
		uint8_t *codes; float *scales; /* where the device makes an 8-bit payload itself: of the rows from `from` on; else NULL */
		int from;
		uint64_t ticket;
		bool missed;
	} packed;
	real *pending;                    /* [max_seqs,SESSION_PENDING,3H] by seat; made with the first draft */
	real *fb, *fb_out, *chain[2];     /* [max_seqs*TREE_WIDTH,Hd]: by seat; of an extend; of two levels by turns */
	int Hd;                           /* width the four were made for, 0 = not made */
	uint32_t *cap_ids; float *cap_val; /* [max_piece,topk] for the tap */
	float round_gap_ms;
	struct { uint64_t asked, reused, preempted, prompt, generated, rounds, proposing, proposed, accepted, at[ENGINE_MAX_K], prop_at[ENGINE_MAX_K]; } sum;
};

void *engine_main(void *engine); /* engine.c: the thread */
void finish(struct engine *g, struct session *s, enum finish why, const char *error);
/* Out of active, which keeps its order. */
void remove_active(struct engine *g, struct session *s);

/* admit.c: new and resting sessions take seats while there are seats and pages. */
void admit(struct engine *g);
/* Cancelled, overdue and drained ones leave. */
void reap(struct engine *g);
void flow_charge(struct engine *g, const struct session *s, double cost);
void flow_leave(struct engine *g, struct session *s);

/* room.c: pages for the rows of the coming round. */
void room_plan(struct engine *g);
/* n more pages at the end of s's table, evicting what is idle; false and nothing taken when there are not so many. */
bool room_take(struct engine *g, struct session *s, int n);
/* s gives up its pages and its seat and rests until they come back. */
void room_preempt(struct engine *g, struct session *s);

/* reuse.c: sessions and the prefix tree. */
/* Pages for all that s has to read, as many of them as possible from the tree; false: not now. */
bool reuse_enter(struct engine *g, struct session *s);
void reuse_leave(struct engine *g, struct session *s); /* every page goes back */
/* Before a round: prompts go on from pages that others finished; reused pages get their draft KV, the tap their rows. */
void reuse_prepare(struct engine *g);
/* Not yet: nothing of it may be run in this round. */
bool reuse_preparing(const struct session *s);
void reuse_commit(struct engine *g, struct session *s); /* after a round: full pages enter the tree */
/* s drafts from another slot now: its draft KV comes along from `from`'s plane. */
void reuse_carry(struct engine *g, struct session *s, int from);
/* s, decoding, has no draft KV: it is made anew from what was kept of its rows. False: not enough was kept. */
bool reuse_regain(struct engine *g, struct session *s);

/* costs.c: from here to cost_end, the device does something for so many rows; an index for cost_end. */
int cost_begin(struct engine *g, enum ctl_cost what, int rows);
void cost_end(struct engine *g, int i);
/* After the wait: tell the controller. The verification's ms come back instead, as the host's part is still to be added; below 0: unknown. */
double costs_take(struct engine *g);

/* chain.c: chains that the device draws without the host. */
int words_new(struct engine *g);
void words_free(struct engine *g);
struct draft_word words_due(const struct engine *g);   /* where the next extend leaves what follows its last rows */
struct draft_word words_level(const struct engine *g, int width); /* and a level of trees */
/* Wait for what is due and take it: sessions know what may follow their root, or lose their draft. waited: it is there already. */
void words_take(struct engine *g, bool waited);
/* Queue chains of shape[i] for n sessions of a slot. */
void chain_queue(struct engine *g, struct slot *sl, struct session **on, const struct draft_shape *shape, int n);
/* After the round's wait, and after words_take: what they came to is this round's proposals. */
void chain_take(struct engine *g, struct piece *p);

/* propose.c: trees for every decoding session that can have one; fills s->proposed. */
void propose_all(struct engine *g);
/* extend.c: after a round. Chooses who drafts in the next one and writes draft KV for rows that became real. */
void extend_all(struct engine *g);
/* Where the features of s's pending rows are kept, [SESSION_PENDING,3H], on the device. */
real *extend_pending(const struct engine *g, const struct session *s);
/* The weights that a slot drafts with: its own, unless a fault is injected. */
struct draft *draft_weights(const struct engine *g, const struct slot *s);
/* This session decodes plainly from here on. */
void draft_drop(struct engine *g, struct session *s);
/* Its proposals of this round are the tree's best. */
void take_tree(struct session *s, const struct tree *t, int nodes, uint32_t version);
/* Move to slot `to` (-1 = plain), keeping draft KV. A probe keeps the version it was asked for. */
void draft_move(struct engine *g, struct session *s, int to);
uint32_t session_version(const struct engine *g, const struct session *s);

/* round.c: one round over g->active; sessions that ended are in pieces[] with done set. 0 or
 * -errno when the target itself failed (every session in the batch is then done). */
int round_run(struct engine *g);
void rows_reset(struct rows *b);
/* One row of a sequence; the caller closes the sequence with rows_seq. */
void rows_add(struct rows *b, uint32_t id, int pos, const uint32_t *pages);
/* A row whose place among its sequence's pages is not its position. */
void rows_add_at(struct rows *b, uint32_t id, int pos, int place, const uint32_t *pages);
void rows_seq(struct rows *b, const uint32_t *pages, int n_past, int n_rows);
/* ... or, for an extend of a draft, with this if it continues into a proposal, at `place` its last row; else with nothing. */
void rows_last(struct rows *b, const uint32_t *pages, int place);
/* The sequence just closed is a tree from tree0 on; parent is borrowed until the forward is over. */
void rows_tree(struct rows *b, const int16_t *parent, int tree0);

/* reads.c: what the host reads of a forward. */
int reads_new(struct engine *g, int n_logits);
void reads_free(struct engine *g);
void reads_features(struct engine *g);                    /* features are queued: pack them */
int reads_logits(struct engine *g, bool with_hidden);     /* so is the rest: queue what the draws need */
struct drawn_from reads_of(const struct engine *g, const struct piece *p); /* after the round's wait */
bool reads_packed(struct engine *g);                      /* are the packed rows there? */
const real *reads_rows(struct engine *g, int row0, int n); /* features, for the host; waits; NULL: failed */

/* capture.c: what the tap hears. */
static inline uint64_t told_key(const struct engine_request *r)
{
	return told_hash(r->conversation) ^ told_hash(r->tenant) << 1;
}
bool capture_wanted(struct engine *g, const struct session *s); /* would it be traced? */
void capture_begin(struct engine *g, struct session *s);
/* Rows of reused pages that the tap does not have yet, at most n of them; how many. */
int capture_reused(struct engine *g, struct session *s, int n);
void capture_rows(struct engine *g); /* after a round: all that became real in it */
void capture_end(struct engine *g, struct session *s);
