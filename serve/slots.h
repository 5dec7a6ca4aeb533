/* Resident drafts: four places, one of them live, one perhaps previous.
 *
 * A version is read, packed, hashed and warmed on the thread that asks for it, with
 * a dev of its own; the engine's thread then binds it to its dev at a round
 * boundary. From there on the slot is the engine's alone. A slot's number is what
 * sessions remember; `requests` counts them, and a slot in use is never freed.
 *
 * Threads: state, version and hash change under the engine's lock only; reserve and
 * abandon on any thread, install, activate and unload on the engine's; slot_read
 * anywhere without it.
 */
#pragma once
#include <stdint.h>
#include "serve/arm.h"
#include "serve/draft.h"

enum { N_SLOTS = 4 };
enum slot_state { SLOT_EMPTY, SLOT_LOADING, SLOT_READY };

struct slot {
	enum slot_state state;
	uint32_t version;
	const struct draft_kind *kind;
	struct draft *x; /* owned when ready */
	char sha[65];    /* of the weights as held */
	int requests;
};

struct slots {
	struct slot s[N_SLOTS];
	int live, previous; /* slot numbers, -1 = none */
	int canary;         /* slot that a share of the conversations drafts with, -1 = none */
	uint32_t permille;
	char salt[ARM_SALT];
	/* What was unloaded, where the device remembers addresses: its memory waits for the slot's next version, which then needs no new graph. */
	struct { const struct draft_kind *kind; struct draft *x; } spare[N_SLOTS];
	struct kv_pool kv;  /* one draft KV for all versions; n_pages 0 = not made yet */
};

/* What a version is read into before it has a slot's name. */
struct slot_load {
	struct dev *d; /* its own, one thread */
	const struct draft_kind *kind;
	struct draft *x;
	char sha[65];
};
struct slot_spec { struct dev *dev; /* of the engine: drafts are loaded beside it */ const struct weight *embedding; int n_target_layers; const int *boundaries; enum dtype type; int M, n; };

int slots_find(const struct slots *t, uint32_t version); /* number or -1 */
/* A free slot set to loading: its number, -EEXIST (ready), -EBUSY (being loaded), -ENOSPC. */
int slots_reserve(struct slots *t, uint32_t version);
void slots_abandon(struct slots *t, int i);
/* Any thread, no lock: read, pack, hash, warm. On failure nothing is held. */
int MUSTCHECK slot_read(const struct slot_spec *spec, const char *dir, struct slot_load *ret, struct errtext *e);
void slot_read_done(struct slot_load *l); /* frees what was not installed */
/* Take l into slot i on dev d; makes the draft KV pool for the first version. A version
 * whose KV has another shape than the pool in use is refused. */
int MUSTCHECK slots_install(struct slots *t, int i, struct slot_load *l, struct dev *d, int n_pages, int page_tok, enum dtype kv_type, struct errtext *e);
/* What a new request of this conversation drafts with: the canary or live. */
int slots_arm(const struct slots *t, const char *conversation, const char *request);
/* A share of the conversations drafts with i; i -1 or permille 0: nobody. */
void slots_canary(struct slots *t, int i, uint32_t permille, const char *salt);
/* Live becomes i (-1 = plain); a canary was judged against what was live, so it ends. back: it is a return to an older one, which leaves no previous. */
void slots_activate(struct slots *t, int i, bool back);
/* -ENOENT, -EBUSY. keep: the slot keeps the memory for the next version. */
int MUSTCHECK slots_unload(struct slots *t, uint32_t version, bool keep, struct errtext *e);
void slots_trim(struct slots *t); /* free what unloaded versions left for the next ones */
void slots_done(struct slots *t, struct dev *d);
/* requests: as published, since the slot's own count is the engine's */
const char *slot_state_name(const struct slots *t, int i, int requests); /* empty loading ready live canary draining */
