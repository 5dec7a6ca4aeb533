/* The engine that serves, as the daemon sees it: one table a kind.
 *
 * Every call returns at once and calls done exactly once from the loop (not when the
 * loop is freed first). Results are the rollout's: RO_OK; RO_NOBODY nobody listens
 * (nothing happened); RO_HUNG no answer in time (it may have happened); RO_LATER
 * busy or no free slot; RO_GENERATION; RO_BAD refused. text says why, "" when RO_OK.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "daemon/rollout.h"

struct loop;

enum { ENGINE_LEFT = 16 };

struct engine_status {
	uint64_t generation;
	uint32_t live, previous;
	uint32_t canary, permille; /* canary 0 = none */
	const char *salt;          /* borrowed from raw */
	uint32_t left[ENGINE_LEFT];  /* what was gone back from since the last switch forward */
	int n_left;                  /* -1: it does not tell */
	bool by_operator, by_daemon; /* who moved it last; neither: it started from the store */
	char target_fp[65];
	json_t *raw; /* borrowed */
};

struct engine_answer {
	enum ro_result result;
	const char *text;                   /* borrowed */
	const char *weights_sha;            /* load: what is held, borrowed */
	uint64_t generation;                /* activate */
	const struct engine_status *status; /* status */
	const json_t *raw;                  /* probe: the whole answer, borrowed */
};
typedef void engine_done(void *arg, const struct engine_answer *a);

struct engine {
	struct loop *loop;       /* borrowed */
	const char *socket_path; /* borrowed */
	const struct engine_kind *kind;
};

struct engine_kind {
	const char *name;
	void (*status)(struct engine *x, engine_done *done, void *arg);
	void (*load)(struct engine *x, uint32_t version, const char *path, const char *sha, engine_done *done, void *arg);
	/* all: running requests move too. expected < 0: no check. request: "", or the caller's name for it: under it once */
	void (*activate)(struct engine *x, uint32_t version, bool all, int64_t expected, bool by_operator, const char *request,
			 engine_done *done, void *arg);
	/* permille of the conversations draft with version; version 0: none. NULL: this engine has no canary. expected < 0: no check */
	void (*canary)(struct engine *x, uint32_t version, uint32_t permille, const char *salt, int64_t expected, engine_done *done,
		       void *arg);
	void (*unload)(struct engine *x, uint32_t version);
	/* The prompts (taken), served with a loaded version. NULL: this engine has no probes. */
	void (*probe)(struct engine *x, uint32_t version, json_t *prompts, int max_tokens, engine_done *done, void *arg);
};

extern const struct engine_kind engine_native; /* redraft-serve */
