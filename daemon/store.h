/* The version store on disk: the daemon is its only writer.
 *
 *   versions/N/        model.safetensors config.json manifest.json verdict.json; immutable
 *   versions/.take-N-NAME   a submission being verified (was incoming/NAME), or one that could not go back yet
 *   versions/.gone-N   a version being removed
 *   incoming/NAME/     written by the learner; taken by Submit
 *   state.json         the one state file; written by temp + fsync + rename
 *
 * A folder becomes versions/N by one rename, after its files, its manifest and the
 * folder are on disk; state.json names it afterwards. store_open finishes or undoes
 * whatever a crash left between any two of these steps.
 *
 * Threads: store_take on any one thread at a time, and not between a take and its naming (it touches only
 * .take folders); everything else on the loop's.
 */
#pragma once
#include <stdint.h>
#include <jansson.h>
#include "daemon/base/err.h"
#include "schemas/manifest.h"

struct store;

struct store_found {
	int adopted, given_back; /* folders named but not in the state; submissions put back */
	int stuck;               /* submissions that could not be put back, yet */
	int lost, removed;       /* versions without files; removals finished */
	bool new_state;                /* there was no state.json */
};

/* Takes the store's lock: -EBUSY when another daemon has it. */
int MUSTCHECK store_open(const char *path, struct store **ret, struct store_state *ret_state, struct store_found *ret_found,
			 struct errtext *e);
struct store *store_close(struct store *s);
const char *store_path(const struct store *s);
int MUSTCHECK store_save(struct store *s, const struct store_state *state, struct errtext *e);

struct store_taken {
	char dir[512];            /* versions/.take-N-NAME */
	char origin[256];         /* NAME */
	struct manifest manifest; /* owned */
};

/* Verify incoming/NAME (path: the folder itself, or its name) and make it ready to be
 * version `number`: layout, tensors, hash against submit.json, target. On failure the
 * folder is back where it was, or, where that fails too, stays in versions/.take-N-NAME, until the next
 * submission or start puts it back. -EINVAL: it is not there, or what is in it is no version;
 * any other error is the trouble of this machine's disk or memory, and the same may be
 * taken later. expect_fp: the server's target, or "" when unknown. */
int MUSTCHECK store_take(const struct store *s, const char *path, uint32_t number, const char *expect_fp,
			 struct store_taken *ret, struct errtext *e);
int MUSTCHECK store_name(struct store *s, struct store_taken *t, struct errtext *e); /* the rename to versions/N; on failure as above */
void store_taken_done(struct store_taken *t);

/* verdict.json, once: -EEXIST when it is there already. schema and created are added. */
int MUSTCHECK store_write_verdict(struct store *s, uint32_t number, json_t *verdict /* taken */, struct errtext *e);
json_t *store_read_json(const struct store *s, uint32_t number, const char *file); /* new reference or NULL */
json_t *store_json_in(const char *dir, const char *file); /* the same of any folder; any thread */

struct store_limits {
	int keep;            /* the newest that served and as many of the newest that were refused */
	int64_t max_age_s;   /* those made longer ago than that before now_s go as well; 0: never for age */
	int64_t now_s;       /* s since 1970, by a clock whose jumps are not believed (clock_sure_ms) */
	int64_t need_bytes;  /* then the oldest go, refused ones first, until so much is freed: store_missing */
};
/* What the file system lacks of `min_free` (a share of it) free bytes; 0: enough, or unknown. */
int64_t store_missing(const struct store *s, double min_free);
/* Remove the versions that are beyond a limit and that no rule holds (live, previous, base, pinned, canary, candidates,
 * gated: never, whatever the disk says). Their entries go from state; the caller saves it and then calls store_sweep.
 * Returns how many. */
int store_collect(struct store *s, struct store_state *state, const struct store_limits *l);
void store_sweep(struct store *s); /* delete what collect set aside */
void store_drop(const char *path); /* remove a folder; what resists is left for a later sweep */
