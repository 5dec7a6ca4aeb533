/* Drafts out of and into the version store.
 *
 * Out: the masters as bf16 in incoming/<name>/ with submit.json, for the daemon
 * to number. In: a numbered version's weights back as f32 masters (Rebase,
 * Evaluate, first start). The store's state.json is only ever read here.
 */
#pragma once
#include <jansson.h>
#include "kernels/model/eagle3.h"
#include "learn/frozen.h"

/* A draft in memory: flat masters in the order of enum eagle3_tensor. */
struct draft {
	struct draft_config file; /* as config.json says it */
	struct eagle3_config c;
	int64_t *d2t;             /* [V_d] owned */
	real *w;                  /* owned */
	size_t n;
	char weights_sha[65];     /* of the bf16 files; "" when not from the store */
};
void draft_done(struct draft *d); /* safe on a zeroed struct */
void draft_eagle3_config(const struct draft_config *f, struct eagle3_config *ret);
size_t draft_params(const struct eagle3_config *c);

/* versions/N. -EINVAL with e: another target, not a plain EAGLE-3, damaged. */
int MUSTCHECK publish_read_version(const char *store, uint32_t n, const struct frozen *fz, struct draft *ret, struct errtext *e);
/* The version to go on from: live, else base (unless quarantined), else the newest that was not refused. 0 = none. */
uint32_t publish_newest(const char *store);
/* How the store's state.json speaks of N: "candidate", "live", ...; NULL = not at all. */
const char *publish_state_of(const char *store, uint32_t n);
/* The number of a version with these weights, or 0: finds a Submit whose answer was lost. */
uint32_t publish_find_sha(const char *store, const char *weights_sha);

/* Write incoming/<name>/ whole; submit.json last. meta: {parent, cut, training}; schema, target_fp,
 * weights_sha, program_commit are added. */
int MUSTCHECK publish_write(const char *store, const char *name, const struct draft_config *c, const int64_t *d2t, const real *w,
			    const struct frozen *fz, json_t *meta, char ret_sha[static 65], struct errtext *e);
/* The same folder anywhere; and a draft's folder, numbered or not, read back (no manifest is looked at). */
int MUSTCHECK publish_write_folder(const char *dir, const struct draft_config *c, const int64_t *d2t, const real *w, const struct frozen *fz, json_t *meta,
				   char ret_sha[static 65], struct errtext *e);
int MUSTCHECK publish_check(const struct draft *d, const struct frozen *fz, struct errtext *e); /* made for this target? */
int MUSTCHECK publish_read_folder(const char *dir, const struct frozen *fz, struct draft *ret, struct errtext *e);
int MUSTCHECK publish_path(const char *store, const char *name, char *ret, size_t size);
void publish_remove(const char *store, const char *name); /* incoming/<name>, where it is still there */
