/* The learner's state machine: journal in, weights out.
 *
 * Every change of state is one journal entry applied by learner_apply: records
 * taken, a step, a verdict, a rebase. Live, an entry is appended and synced
 * before it is applied; after a crash the entries behind the checkpoint are
 * applied again, and the same weights come out bit for bit, since a step
 * depends on state alone: never on time, threads or what else there was to read.
 * (Records are the one thing applied before their entry is synced: nothing
 * durable follows from them until the next entry is.)
 *
 * Threads: one owner, which owns the dev too.
 */
#pragma once
#include "learn/batch.h"
#include "learn/checkpoint.h"
#include "learn/history.h"
#include "learn/journal.h"
#include "learn/publish.h"
#include "learn/rules.h"
#include "learn/source.h"

struct learner_options {
	const char *state_dir, *store;
	const struct trainer_kind *kind;
	int grid[3];                  /* ranks, ulysses and data by which the steps of the journal are taken; set from train, {0} until a config says */
	char device[TRAINER_DEVICE_NAME]; /* on which they are taken, and how it adds, as far as that bears on bits; set by learner_open, "" where a journal does not say */
	struct train_options train;
	uint64_t seed;
	int pack_rows; /* a step takes further runs while they fit into so many rows, max_rows at most; 0 = one run a step */
	int draft_vocab, max_rows, history_rows, max_epochs, queue_max, heldout_max, heldout_domain_max, heldout_pinned;
	bool prompt_rows, whole_teacher, auto_init, dedup;
	double replay_share;
	double ema;                  /* decay a step of the averaged weights, which are what is published; 0 = the last weights are */
	double anchor;               /* each step draws the weights this far towards those that were last begun from or accepted; 0 = free */
	double max_scale;            /* features so many times larger or smaller than usual are refused; 0 = all are taken */
	double tenant_share;         /* of the rows of a window; 0 or 1 = any */
	int64_t tenant_window, request_rows; /* rows; of one request at most, 0 = any */
	double reject_weight;        /* of rows at which serving refused the draft; 0 = 1 */
	double spike;                /* a loss so many times the running mean is no step; 0 = any is */
	int64_t init_min_tokens;
	uint64_t pool_bytes;
	uint32_t segment_bytes;
	bool follow;                 /* repeat only: nothing leaves for the store */
	int replay_wait_ms;          /* how long a record of the journal may take to be read again; 0 = for ever */
	const volatile int *stop;    /* set: give up waiting (-EINTR); may be NULL */
	_Atomic uint64_t *beats;     /* grows while an open or a repeat makes progress or waits for the log; may be NULL */
};

enum { SEEN_PRODUCERS = 16, MAX_PARTITIONS = 1024 };

/* Where we are in one partition, and whom we heard there. */
struct cursor {
	int64_t next, last_offset; /* last_offset -1: nothing taken yet */
	char producer[40];         /* of the last record */
	uint64_t seq;
	struct { int64_t offset; char producer[40]; uint64_t seq; } mark; /* the last record as of the last look back; offset -1: none. Not in checkpoints */
	bool verify;               /* look back: compare the mark with what the log holds there before going on */
	int n_seen;
	struct { char producer[40]; uint64_t seq; } seen[SEEN_PRODUCERS];
};

/* All of one size: a checkpoint holds them as a list, in this order; new ones go last. */
struct learner_counts {
	uint64_t records, bytes, rows, set_aside, duplicates, offset_gaps, lost; /* lost: messages stepped over in gaps */
	uint64_t steps_bad, steps_empty, inexact;
	int64_t trained_tokens;
	uint64_t steps_spike, history_damaged;
	uint64_t history[HISTORY_N]; /* runs that closed, by how far their history went */
	uint64_t out[OUT_N];         /* what was left out, by rule */
	uint64_t repeated_rows;
	uint64_t shortened, shortened_rows; /* runs of which only the newest rows are learned from: their request had more than its most */
};

struct learner {
	struct learner_options o;
	struct dev *d;
	struct source *src;       /* borrowed; NULL while none */
	const struct frozen *fz;  /* borrowed */

	struct journal *journal;
	struct pool *pool;
	struct join join;
	struct runs runs;
	struct batcher batcher;

	struct cursor *at;        /* [n_parts] owned */
	int n_parts, turn;        /* turn: the partition that live reading starts with */
	char cluster[64];
	uint64_t *counts;         /* [V] tokens seen */
	int64_t counted;

	/* the draft */
	struct trainer *t;        /* NULL before there is one */
	real *average, *anchor;   /* [n_params] owned; NULL: none is kept */
	int64_t averaged;         /* steps since the average began */
	bool fresh;               /* made of nothing here, not a version that was begun from: it learns faster at first */
	bool anchored;            /* the anchor is worth holding on to: a version's, or accepted; not a first draft from nothing */
	struct draft_config file;
	int64_t *d2t;
	uint32_t base;            /* the version the weights descend from */

	/* what is being trained: a run longer than max_rows takes several steps */
	uint64_t cur_run;
	int cur_row;
	int64_t step;
	struct rules rules;
	double usual_loss;        /* running mean, spikes cut; 0 = not known */
	int64_t losses;           /* it stands for so many */

	/* the candidate that waits for its verdict. name "": none; sha "": its folder is not there, yet (writing) or at all; left: rebased since */
	struct { char name[96], sha[65]; uint32_t version; bool left, writing /* not in checkpoints: none is made then */; json_t *cut; } pending;
	struct replayed *replayed; /* what was replayed already (learn/evaluate.h); owned, not state: NULL until it is needed */
	int turned_away;          /* requests the held-out set had no room for, running; for Evaluate alone, so not in checkpoints */
	int64_t published_step;   /* step of the last J_PUBLISH */
	bool paused;
	int64_t drift;
	char config[JOURNAL_TEXT]; /* the options in force, as journalled */

	int64_t serial;           /* of the last checkpoint that is durable */
	struct saving *saving;    /* what is being written: a checkpoint or a candidate; or NULL */
	struct written {          /* for people */
		int64_t step;     /* of the last one; -1: none was written since the start */
		uint64_t bytes, stood_us, stood_cpu_us, took_us; /* its size; for how long training stood still for it, and our thread's processor time in that; from its beginning until it was durable */
		uint64_t failed;
		char error[sizeof(struct errtext)]; /* why the last one was not written, in plain ASCII; "": it was */
	} saved, candidate;
	uint32_t kept_first[2];   /* oldest segment that the two kept checkpoints need */
	bool repeating;           /* applying old entries */
	char device[TRAINER_DEVICE_NAME]; /* ours, as in the options */
	int64_t elsewhere;        /* steps repeated here that were taken on another device, or added in another order */
	struct learner_counts n;
	struct train_result last; /* of the last step with a result */
	double loss_mean, acc_mean; /* running, for people */
	uint64_t aside_bytes;
	int aside_files;
	char last_bad[160];       /* why the last record was set aside */
	char last_gap[256];       /* what was lost of the log last, and what follows; "" = nothing since the start */
	int64_t seen_s;           /* when the newest record read was written, s since 1970; for people */
	int64_t taken;            /* records of the J_TAKE being repeated, where it failed */
	bool anew;                /* a log was found to be another one: a checkpoint is due */
	uint64_t look_at, look_until; /* when to look back next; until when nothing is read for it */
};

/* Load the newest checkpoint and repeat the journal behind it. src may be NULL when the pool
 * holds all that must be read again. -EINVAL with e: wrong or damaged state. 1, with e: resumed, but not to the same bits: records
 * are gone, so the journal was cut there; or steps were repeated on another device than they were taken on, or by a program that adds in another order. */
enum { LEARNER_E_INEXACT = 1 };
int MUSTCHECK learner_open(const struct learner_options *o, struct dev *d, struct source *src, const struct frozen *fz,
			   struct learner **ret, struct errtext *e);
struct learner *learner_close(struct learner *l); /* begins nothing, but waits for a checkpoint that was copied and for a candidate */

/* How long ago the newest record read was written, s; 0 = not known. */
double learner_age_s(const struct learner *l);

/* Journal an entry, sync, apply. */
int MUSTCHECK learner_do(struct learner *l, const struct journal_entry *x, struct errtext *e);
int MUSTCHECK learner_apply(struct learner *l, const struct journal_entry *x, struct errtext *e);

/* Take at most max records that are there now; how many in *ret_n. */
int MUSTCHECK learner_consume(struct learner *l, int max, int *ret_n, struct errtext *e);
bool learner_can_step(struct learner *l);
int MUSTCHECK learner_step(struct learner *l, struct errtext *e);
/* No draft yet: a version of the store, or enough counted? Does what is possible; *ret_done. */
/* vocab_from: make the first draft now, counting the token ids of this file too ("" = none); NULL: when it is time. */
int MUSTCHECK learner_begin(struct learner *l, const char *vocab_from, bool *ret_done, struct errtext *e);
/* What was recorded before that second is forgotten: no run, no checkpoint, no byte in the pool holds it afterwards. */
int MUSTCHECK learner_expire(struct learner *l, int64_t before_s, struct errtext *e);
/* A candidate: the entry, a copy of the weights as they stand in this call, and pending. incoming/<name>/ is written beside training
 * (pending.writing); when learner_write_end has said 0, pending.sha is its weights' hash, or "" and candidate.error says why it
 * could not be written: journal J_WITHDRAW then. Waits for what is being written. */
int MUSTCHECK learner_publish(struct learner *l, struct errtext *e);
/* Version n's weights, fresh moments. Nothing is journalled before the version was read whole. */
int MUSTCHECK learner_rebase(struct learner *l, uint32_t n, struct errtext *e);

/* writer.c. One thing is written at a time. A checkpoint is made in three parts, of which the learner's thread does the second: memory for a copy, the copy,
 * the file. begin waits for what is written before it, and starts the first. */
int MUSTCHECK learner_checkpoint_begin(struct learner *l, struct errtext *e);
/* What is next, when it is time: a checkpoint's copy, of the state as it stands in this call; then nothing, until the files are durable. Called between any
 * two entries. 0: nothing is being written; the last checkpoint that was begun is durable. LEARNER_E_WRITING: not yet (never when told to wait). -errno with e, once: the
 * checkpoint could not be made; l->saved counts it. Until it has said 0, those before are what a start goes on from, and nothing that they need is removed. */
enum { LEARNER_E_WRITING = 1 };
int MUSTCHECK learner_write_end(struct learner *l, bool wait, struct errtext *e);
int MUSTCHECK learner_checkpoint(struct learner *l, struct errtext *e); /* both: the state as it stands is durable when it returns */
void learner_write_leave(struct learner *l); /* before the end: waits for the files; what is not copied yet is not, since an entry may have failed half-way */
size_t learner_copy_bytes(const struct learner *l); /* memory that the copy takes now */
/* Of J_PUBLISH: pending's folder is written, of the weights as they stand in this call. Nothing else is being written. */
void learner_candidate_begin(struct learner *l);
void learner_candidate_wait(struct learner *l); /* until it is not being written */
/* Repeat another journal from its first entry. each (may be NULL) after every step. */
int MUSTCHECK learner_follow(struct learner *l, const char *path, void (*each)(void *arg, struct learner *l), void *arg, struct errtext *e);

int learner_count(const struct learner *l, enum run_state s); /* runs in that state */
void learner_weights_sha(const struct learner *l, char ret_hex[static 65]); /* of masters and average; for tests and logs */
const real *learner_draft(const struct learner *l); /* what is published: the average where one is kept, else the masters; NULL: no memory */
json_t *learner_cut(const struct learner *l); /* {"cluster", "partitions": {"0": next, ...}} */

/* learner_step.c: J_STEP. */
int MUSTCHECK learner_apply_step(struct learner *l, const struct journal_entry *x, struct errtext *e);

/* learner_take.c: one record at (partition, offset) enters. */
int MUSTCHECK learner_take_one(struct learner *l, int partition, int64_t offset, int64_t time_s, const void *blob, size_t len);
/* -ENODATA: gone from the log; *ret_done records were taken before it. */
int MUSTCHECK learner_repeat_take(struct learner *l, const struct journal_entry *x, int64_t *ret_done, struct errtext *e);
int MUSTCHECK learner_cursors(struct learner *l, int n); /* at least n partitions */
void learner_look_back(struct learner *l);               /* is each log still the one that was read? asked before reading on */
void learner_release(struct learner *l);                 /* held-out runs become training runs, some of them pinned ones; no candidate */
int learner_run_closed(void *learner, struct run *r);

/* learner_state.c */
/* Room for what learner_copy will copy, which is the state at the end of the journal; nothing of it is shared. c: zeroed, or with a room. */
int MUSTCHECK learner_copy_room(const struct learner *l, struct checkpoint *c);
int MUSTCHECK learner_copy(struct learner *l, struct checkpoint *c, struct errtext *e);
int MUSTCHECK learner_restore(struct learner *l, int64_t *ret_journal, struct errtext *e); /* no checkpoint: *ret_journal = 0 */
/* What is kept beside the masters, where it is kept at all; NULL: it begins at w. */
struct learner_beside { const real *moments, *average, *anchor; int64_t trainer_step, averaged; };
/* beside NULL: another draft, everything begins anew. */
int MUSTCHECK learner_set_draft(struct learner *l, const struct draft_config *c, const int64_t *d2t, const real *w,
				const struct learner_beside *beside, struct errtext *e);
int MUSTCHECK learner_set_config(struct learner *l, const char *text, struct errtext *e);
int MUSTCHECK learner_print_config(const struct learner_options *o, char *ret, size_t size);
