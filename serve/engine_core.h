/* Internal to the engine: its whole state, and the steps of a round.
 *
 * engine.c owns the thread, the queue and the commands; propose.c, round.c,
 * capture.c are the round. Everything below `---- engine thread ----` is touched by
 * that thread only and is sized once, in engine_new.
 */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "kernels/model/llama.h"
#include "serve/engine.h"
#include "serve/pages.h"
#include "serve/sample.h"
#include "serve/session.h"
#include "serve/slots.h"

enum { ENGINE_RING = 1024 };

/* One session's rows in the current target batch. */
struct piece {
	struct session *s;
	int row0, n_rows; /* in the batch */
	int logit0;       /* first logit row, -1 = none wanted */
	int n_past;       /* n_kv before the round */
	int emitted;      /* tokens this round produced */
	int accepted;     /* proposals among them */
	bool prefill;
	bool done;
	enum finish why;
};

/* Index arrays of a batch; `cap` rows, ENGINE_MAX_SEQS sequences. */
struct rows {
	int M, n_seqs, n_logits;
	uint32_t *ids, *pos, *slots, *logit_rows, *gather;
	struct attn_seq seqs[ENGINE_MAX_SEQS];
};

enum cmd_kind { CMD_INSTALL, CMD_ACTIVATE, CMD_UNLOAD };
struct cmd { /* on its caller's stack; the engine answers through done */
	struct cmd *next;
	enum cmd_kind kind;
	int slot;
	struct slot_load *load;
	uint32_t version, deadline_ms;
	bool move_all;
	int result;
	struct errtext *e;
	bool done;
};

struct engine {
	struct engine_options o;
	int V, H, max_rows;
	pthread_t thread;
	bool started;

	pthread_mutex_t lock;
	pthread_cond_t wake, answered;
	bool stop;
	uint64_t next_handle;
	struct session *waiting, **waiting_tail;
	int n_waiting;
	struct session *active[ENGINE_MAX_SEQS]; /* changed under the lock, by the engine only */
	int n_active;
	struct cmd *cmds, **cmds_tail;
	struct slots slots; /* reserve and abandon under the lock */
	struct engine_status pub;
	float ring_ms[ENGINE_RING], ring_gap[ENGINE_RING];
	unsigned ring_n; /* rounds ever entered */
	atomic_int draft_k;

	/* ---- engine thread ---- */
	struct kv_pool kv;
	struct pages pages;
	bool seat_used[ENGINE_MAX_SEQS];
	struct sampler *sampler;
	struct rows tb, db; /* target batch, draft batch */
	struct piece pieces[ENGINE_MAX_SEQS];
	int n_pieces;
	int k;              /* chain length of this round */
	real *features, *hidden, *logits; /* [max_rows,3H] [max_rows,H] [max logits,V] */
	real *d_features;                 /* [max_rows,3H] gathered for a draft */
	real *fb, *fb_out, *chain[2];     /* [max_seqs,Hd]: by seat; of an extend; of a running chain */
	int Hd;                           /* width the four were made for, 0 = not made */
	uint32_t *cap_ids; float *cap_val, *cap_lse; /* [max logits,topk] for the tap */
	float round_gap_ms;
	struct { uint64_t prompt, generated, rounds, proposing, proposed, accepted, at[ENGINE_MAX_K], prop_at[ENGINE_MAX_K]; } sum;
};

void *engine_main(void *engine); /* engine.c: the thread */

/* propose.c: chains for every decoding session that can have one; fills s->proposed. */
void propose_all(struct engine *g);
/* Write draft KV for the rows this round made real, and learn each one's next first proposal. */
void extend_all(struct engine *g);
/* This session decodes plainly from here on. */
void draft_drop(struct engine *g, struct session *s);
/* Move to slot `to` (-1 = plain), keeping draft KV. */
void draft_move(struct engine *g, struct session *s, int to);
uint32_t session_version(const struct engine *g, const struct session *s);

/* round.c: one round over g->active; sessions that ended are in pieces[] with done set. 0 or
 * -errno when the target itself failed (every session in the batch is then done). */
int round_run(struct engine *g);
void rows_reset(struct rows *b);
/* One row of a sequence; the caller closes the sequence with rows_seq. */
void rows_add(struct rows *b, uint32_t id, int pos, const uint32_t *pages);
void rows_seq(struct rows *b, const uint32_t *pages, int n_past, int n_rows);

/* capture.c: what the tap hears. */
void capture_begin(struct engine *g, struct session *s);
void capture_rows(struct engine *g, const struct piece *p);
void capture_end(struct engine *g, struct session *s);
