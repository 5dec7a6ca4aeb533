/* Version folders of the store: manifest.json, verdict.json, submit.json, state.json.
 *
 * Layout in contracts.md, "Version store". The daemon writes; server and learner
 * read. Readers accept the current schema number (1).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>
#include "daemon/base/err.h"

struct manifest {
	uint32_t number, parent; /* 0 = none */
	char target_fp[65], draft_fp[65], weights_sha[65];
	char model_sha[65], config_sha[65]; /* of the two files */
	json_t *cut;      /* {"cluster": id, "partitions": {"0": offset, ...}}; owned, may be NULL */
	json_t *training; /* counts, losses, who, program commit; owned, may be NULL */
	char created[32]; /* ISO 8601 */
};
int MUSTCHECK manifest_read(const char *dir, struct manifest *ret, struct errtext *e);
int MUSTCHECK manifest_write(const char *dir, const struct manifest *m, struct errtext *e); /* atomic */
void manifest_done(struct manifest *m);

enum version_state { VS_CANDIDATE, VS_GATED, VS_CANARY, VS_LIVE, VS_PREVIOUS, VS_RETIRED, VS_REJECTED, VS_QUARANTINED, VS_N };
const char *version_state_name(enum version_state s);
int version_state_parse(const char *name, enum version_state *ret); /* -EINVAL */

struct store_state {
	uint64_t generation;
	uint32_t next_number, live, previous, base, pin; /* 0 = none */
	bool hold, paused;
	struct { uint32_t version, permille; char salt[33]; char since[32]; } canary; /* version 0 = none */
	char alarm[160]; /* why promotions are held and training pauses; "" = no alarm */
	int n_versions;
	struct version_entry { uint32_t number; enum version_state state; char reason[160]; } *versions; /* owned */
};
int MUSTCHECK store_state_read(const char *store, struct store_state *ret, struct errtext *e); /* -ENOENT: empty store */
int MUSTCHECK store_state_write(const char *store, const struct store_state *s, struct errtext *e); /* atomic */
int MUSTCHECK store_state_copy(struct store_state *dst, const struct store_state *src);
void store_state_done(struct store_state *s);

/* Paths, written into ret (PATH_MAX). */
int MUSTCHECK store_version_dir(const char *store, uint32_t n, char *ret, size_t size);       /* versions/N */
int MUSTCHECK store_frozen_file(const char *store, const char *target_fp, char *ret, size_t size); /* frozen/<fp>/frozen.safetensors */
/* frozen.safetensors holds embed_tokens.weight BF16 [V,H] and, when not tied, lm_head.weight. */
