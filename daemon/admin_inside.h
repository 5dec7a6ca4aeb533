/* Shared between admin.c and its admin_*.c only. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "daemon/admin.h"
#include "daemon/base/rpc.h"

enum { ADMIN_REMEMBERED = 32, ADMIN_TAILS = 16, ADMIN_REASON = 120 };

struct admin_memory { /* an answered request id */
	char id[64], method[16];
	json_t *reply; /* owned */
};

struct admin {
	struct admin_options o;
	struct rpc_server *server;
	uint64_t start_us;
	struct admin_memory memory[ADMIN_REMEMBERED];
	int next_memory;
	struct rpc_call *tail[ADMIN_TAILS]; /* NULL = a free place */
	bool tail_listens;
	struct admin_job *job; /* the long one that runs (admin_job.c), or NULL */
};

int admin_bad(struct rpc_call *call, const char *what); /* InvalidParameter; -EINVAL */
/* A version number: absent gives 0 when optional. Answers and returns -EINVAL when it is none. */
int admin_version(struct rpc_call *call, json_t *params, const char *key, bool optional, uint32_t *ret);
/* An optional string of at most `most` bytes; *ret "" when absent. */
int admin_text(struct rpc_call *call, json_t *params, const char *key, size_t most, const char **ret);

/* One mutation on its way: lives until answered. */
struct admin_request {
	struct admin *admin;
	struct rpc_call *call;
	char method[16], id[64], who[48], detail[120], why[ADMIN_REASON + 1];
	unsigned uid;
	int pid;
	json_t *from; /* owned: where things stood when it came */
};
/* Reads request_id and reason. NULL: already answered (bad, known id, out of memory). */
struct admin_request *admin_begin(struct admin *a, struct rpc_call *call, const char *method, json_t *params);
/* The audit line, then the answer, which says whether the line is in the log (audited); a rollback is answered first. Takes q and reply. */
void admin_end(struct admin_request *q, json_t *reply, const char *error, const char *text);
void admin_forget(struct admin_request *q); /* frees what nobody will answer any more; NULL is taken */

/* admin_change.c: what an operator says to the rollout */
void admin_submit(void *ctx, struct rpc_call *call, json_t *params);
void admin_promote(void *ctx, struct rpc_call *call, json_t *params);
void admin_rollback(void *ctx, struct rpc_call *call, json_t *params);
void admin_pin(void *ctx, struct rpc_call *call, json_t *params);
void admin_unpin(void *ctx, struct rpc_call *call, json_t *params);
void admin_hold(void *ctx, struct rpc_call *call, json_t *params);
void admin_pause(void *ctx, struct rpc_call *call, json_t *params);
void admin_resume(void *ctx, struct rpc_call *call, json_t *params);
void admin_release(void *ctx, struct rpc_call *call, json_t *params);
/* admin_tail.c: what happens, as it happens */
void admin_tail(void *ctx, struct rpc_call *call, json_t *params);
void admin_tail_end(struct admin *a); /* nobody is told any more */
/* admin_job.c: what takes a while, on a thread, one at a time */
void admin_diff(void *ctx, struct rpc_call *call, json_t *params);
void admin_topics(void *ctx, struct rpc_call *call, json_t *params);
void admin_audit(void *ctx, struct rpc_call *call, json_t *params);
void admin_job_end(struct admin *a); /* waits for it; nobody is answered */
void admin_probe(void *ctx, struct rpc_call *call, json_t *params); /* admin_probe.c */
/* admin_learner.c: what the learner is asked for */
void admin_replay(void *ctx, struct rpc_call *call, json_t *params);
void admin_purge(void *ctx, struct rpc_call *call, json_t *params);
