/* The engine: one thread that owns the device, the target, the draft slots and
 * every session; others hand it requests and slot commands and get events back.
 *
 * Rounds: propose (drafts, per slot) -> one target forward over all decode rows
 * and prefill chunks -> verify -> draft extend -> emit. Greedy and sampled
 * outputs equal plain decoding token for token, whatever the drafts do.
 *
 * Threads: engine_* may be called from any thread; callbacks run on the engine
 * thread and must not block (post to your loop).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/err.h"

struct engine;
struct probe;
struct tap;
struct dev;
struct llama;

enum { ENGINE_MAX_K = 8 /* tokens on a path */, ENGINE_MAX_NODES = 16 /* of a tree */, ENGINE_MAX_SEQS = 32, ENGINE_MAX_PRIORITY = 2 };
enum draft_mode { DRAFT_CHAIN, DRAFT_TREE, DRAFT_AUTO, DRAFT_OFF };

enum prefix_sharing {
	PREFIX_OFF,    /* nothing is kept after a request */
	PREFIX_TENANT, /* a tenant's prefixes serve that tenant; those without a key are one tenant */
	PREFIX_ALL,    /* one tree for everybody: whether another tenant sent a prefix shows in the latency */
};

struct engine_options {
	struct dev *dev;          /* borrowed */
	struct llama *target;     /* borrowed */
	bool f32_kv;              /* exactness tests */
	int max_seqs;             /* decoded together, 1..32 */
	int max_queue;            /* waiting */
	int max_context;          /* tokens a request */
	int kv_tokens;            /* budget over all sequences and kept prefixes */
	enum prefix_sharing prefix; /* whose prefixes are reused */
	int prefill_chunk;        /* prompt rows a round, when nobody decodes */
	double slowdown;          /* a round that decodes and reads prompts may take this many times one in which all decode; 0 = 2 */
	int draft_k;              /* tokens on the longest path, 1..ENGINE_MAX_K */
	enum draft_mode draft_mode;
	int draft_nodes;          /* of a tree, at most; 0..ENGINE_MAX_NODES */
	uint64_t eog_ids[8]; int n_eog;
	char target_fp[65];
	struct tap *tap;          /* NULL = no capture */
};

enum { ENGINE_MAX_LOGPROBS = 20, ENGINE_MAX_BIAS = 1024, ENGINE_MAX_STOP_IDS = 64 };

struct token_bias { uint32_t id; float bias; };

struct sampling {
	float temperature; /* 0 = greedy */
	float top_p, min_p; /* 1, 0 = off */
	int top_k;          /* 0 = off */
	uint64_t seed;
	uint32_t choice;
	float presence, frequency; /* taken off the logits of tokens generated before; 0 = off */
	float repetition;          /* divides those of tokens of prompt and answer; 0 or 1 = off */
	const struct token_bias *bias; int n_bias; /* added to logits; copied by submit; ids < V, each once */
	/* Ids that cannot be drawn for positions below held_until; the engine sets them, from min_tokens. */
	const uint32_t *held; int n_held; uint32_t held_until;
};

/* FINISH_DEADLINE: deadline_us has passed. */
enum finish { FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED, FINISH_ERROR, FINISH_DEADLINE };

/* A log-probability at temperature 1, before penalties, bias and filters. */
struct token_logprob { uint32_t id; float logprob; };

struct request_stats { /* usage.redraft */
	uint32_t rounds, proposed, accepted, proposing_rounds;
	uint32_t versions[8]; int n_versions; /* in order of use; 0 = plain */
	uint32_t cached; /* prompt tokens that were not computed again */
};

struct engine_request {
	const uint32_t *prompt; int n_prompt; /* copied by submit */
	int max_tokens;
	struct sampling sampling;
	bool ignore_eos;
	const uint32_t *stop_ids; int n_stop_ids; /* end the text as end-of-text tokens do, ignore_eos or not; < V; copied by submit */
	int min_tokens; /* nothing that ends the text is drawn before */
	bool no_draft;  /* decode plainly (X-Redraft-Draft: off) */
	bool no_trace;  /* opted out */
	struct probe *probe;    /* a probe (serve/probe.h): filled until on_done; NULL = a request like others */
	uint32_t probe_version; /* what drafts for it */
	char request_id[64], conversation[65], domain[32], tenant[65];
	char client[80];      /* who shares fairly with whom: key or address; "" = nobody */
	int priority;         /* -ENGINE_MAX_PRIORITY..: larger goes first, see admit.c; 0 = normal */
	uint64_t deadline_us; /* clock_us() past which nobody waits for it; 0 = none */
	/* When set, called right before on_tokens for the same n tokens: 1 + top_logprobs entries a
	 * token, the token itself first, then the likeliest in order. */
	int top_logprobs; /* 0..ENGINE_MAX_LOGPROBS */
	void (*on_logprobs)(void *arg, const struct token_logprob *lp, int n);
	/* Each emitted token group of a round, in order. */
	void (*on_tokens)(void *arg, const uint32_t *ids, int n);
	/* Exactly once, last. error is "" unless FINISH_ERROR. */
	void (*on_done)(void *arg, enum finish why, const struct request_stats *s, const char *error);
	void *arg;
};

enum { ENGINE_E_FULL = 1 /* queue full: 429 */, ENGINE_E_TOO_LONG = 2 /* prompt + max_tokens over max_context */ };

int MUSTCHECK engine_new(const struct engine_options *o, struct engine **ret, struct errtext *e);
struct engine *engine_free(struct engine *g); /* cancels what runs, joins the thread */
int MUSTCHECK engine_submit(struct engine *g, const struct engine_request *r, uint64_t *ret_handle);
void engine_cancel(struct engine *g, uint64_t handle); /* on_done follows; unknown = no-op */
/* From now on submit answers -ECANCELED; what was taken, waiting or running, is cancelled at until_us
 * (clock_us()). on_done tells. */
void engine_drain(struct engine *g, uint64_t until_us);

/* Slots (serve/slots.c): four. engine_load reads, packs and warms on the calling
 * thread, off the decode path, then installs at a round boundary; ret_sha is the hash
 * of what is held, unpacked back. -ENOSPC: no slot free; -EINVAL with e. */
int MUSTCHECK engine_load(struct engine *g, uint32_t version, const char *dir, char ret_sha[static 65], struct errtext *e);
/* move_all: running requests move at the next boundary; else they keep theirs for deadline_ms (0 = to their end), and only those
 * without a draft get one. version 0 = plain. */
int MUSTCHECK engine_activate(struct engine *g, uint32_t version, bool move_all, uint32_t deadline_ms, struct errtext *e);
/* New requests of permille/1000 of the conversations (serve/arm.h) draft with version; running ones keep theirs. version 0:
 * no canary any more, and those that drafted with it move to live at the next boundary. -ENOENT: not loaded; -EINVAL: it
 * is live. Every activation ends a canary. */
int MUSTCHECK engine_canary(struct engine *g, uint32_t version, uint32_t permille, const char *salt, struct errtext *e);
int MUSTCHECK engine_unload(struct engine *g, uint32_t version, struct errtext *e); /* -EBUSY live or in use */

struct engine_slot {
	uint32_t version; char state[12]; char weights_sha[65]; int requests;
	int depth, nodes;            /* chosen last; 0 = it does not pay */
	double expected, measured;   /* accept length of its proposing rounds, 1 = none yet; of the domain that was chosen for last */
};
struct engine_status {
	uint32_t live, previous;
	uint32_t canary, permille; char salt[33]; /* 0 = none */
	int running, waiting, draft_k; /* waiting: those that lost their pages included */
	int pages, pages_free, pages_cached; /* of PAGE_TOK tokens; cached: held by no request */
	struct engine_slot slots[4];
	uint64_t prefix_asked, prefix_reused; /* prompt tokens of all requests; those of them not computed again */
	uint64_t evictions, preemptions;      /* pages thrown out; requests that lost theirs and were recomputed */
	uint64_t tokens_prompt, tokens_generated, rounds, proposing_rounds, proposed, accepted;
	uint64_t accepted_at[ENGINE_MAX_K], proposed_at[ENGINE_MAX_K];
	double round_ms_p50, round_ms_p95, max_gap_ms; /* over the last 1,024 rounds */
	char graphs[160];     /* why the device launches plainly what could be repeated; "" = it does not */
	double recent_ms_p95; /* over the last 128: what the learner's pace goes by */
};
void engine_status(struct engine *g, struct engine_status *ret);
void engine_set_draft_k(struct engine *g, int k);
void engine_set_draft_mode(struct engine *g, enum draft_mode mode);
/* A number that grows while the engine's thread works, inside a long prefill too; ret_busy: it has work. */
uint64_t engine_beats(struct engine *g, bool *ret_busy);
