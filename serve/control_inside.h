/* Shared between control.c and its control_*.c only. */
#pragma once
#include <jansson.h>
#include <limits.h>
#include <pthread.h>
#include "daemon/base/rpc.h"
#include "schemas/manifest.h"
#include "serve/control.h"
#include "serve/engine.h"
#include "serve/override.h"

enum { MAX_STACK = OVERRIDE_LEFT, MAX_MOVES = 16, REQUEST_ID = 64 };

enum source { FROM_STORE, FROM_DAEMON, FROM_OPERATOR };

struct load_job {
	struct control *c;
	pthread_t thread;
	struct rpc_call *call; /* NULL: disowned by a rollback */
	bool disowned;
	uint32_t version;
	char path[PATH_MAX], expect[65], sha[65];
	json_t *cut; /* owned, of its manifest; NULL: none */
	int result;
	struct errtext e;
};

struct control_move { /* a switch that was asked for under a name, and what it gave */
	char id[REQUEST_ID];
	uint64_t generation;
	uint32_t live, previous;
};

struct control {
	struct control_options o;
	struct rpc_server *rpc;
	uint32_t stack[MAX_STACK];
	int depth;
	uint32_t left[MAX_STACK]; /* what was gone back from since the last switch forward, in its order; for who was away meanwhile */
	int n_left;
	uint64_t generation, start_us;
	enum source source;
	struct load_job *load; /* running, or NULL */
	struct probe_job *probes; /* likewise */
	struct {
		uint32_t version;
		json_t *cut; /* owned */
	} cuts[4];         /* of the versions loaded last */
	int next_cut;
	struct control_move moves[MAX_MOVES]; /* the last ones */
	int next_move;
	bool capture;
};

void PRINTF(3, 4) control_note(struct control *c, bool warn, const char *fmt, ...);
/* A number from 0 to 2^32-1 out of the parameters; false: not one (absent is fine unless required, and leaves *ret). */
bool control_u32(const json_t *p, const char *name, bool required, uint32_t *ret);
void control_invalid(struct rpc_call *call, const char *name);
/* A slot that holds the version ready to draft, or NULL. */
const struct engine_slot *control_ready(const struct engine_status *s, uint32_t version);
uint32_t control_live(const struct control *c);
/* What a rollback would go to: the next in the stack that is still held; 0 = plain decoding. */
uint32_t control_previous(const struct control *c, const struct engine_status *s);
const char *control_source_name(enum source source);
/* A version that is being loaded is answered; true then: it may be in its slot, but its weights are not checked yet. */
bool control_loading(struct control *c, struct rpc_call *call, uint32_t version);
/* An expected_generation that is not ours is answered; false then. */
bool control_generation_fits(struct control *c, struct rpc_call *call, const json_t *p);

/* control_load.c */
void on_load(void *ctx, struct rpc_call *call, json_t *p);
void on_unload(void *ctx, struct rpc_call *call, json_t *p);
void control_load_disown(struct control *c); /* a rollback has come: nobody waits for the load that runs */
void control_load_end(struct control *c);    /* waits for it; the loop has stopped */
/* Same shapes do not make a draft fit: was this version made for our target? */
bool control_fits_target(struct control *c, const struct manifest *m, struct errtext *e);
void control_keep_cut(struct control *c, uint32_t version, json_t *cut); /* for Status: what it was trained on; borrowed, NULL: not known */
void control_drop(struct control *c, uint32_t version);

/* control_status.c */
void on_status(void *ctx, struct rpc_call *call, json_t *p);
void on_capture(void *ctx, struct rpc_call *call, json_t *p);
void on_config(void *ctx, struct rpc_call *call, json_t *p);

struct probe_job;
void on_probe(void *ctx, struct rpc_call *call, json_t *p);
void control_probes_end(struct control *c);
void on_canary(void *ctx, struct rpc_call *call, json_t *p);
json_t *canary_json(const struct engine_status *s);
