/* The server's control socket (schemas/admin/io.redraft.Serve.varlink): which draft
 * version is live, and getting back to the one before.
 *
 * Threads: the loop's; a load runs on a thread of its own, one at a time.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/err.h"

struct loop;
struct engine;
struct tap;
struct control;
struct tokenizer;

struct json_t;
struct control_options { /* all borrowed */
	struct loop *loop;
	struct engine *engine;
	struct tap *tap; /* or NULL */
	const struct tokenizer *tokenizer; /* NULL: no probes */
	const char *run_dir, *store, *model_name, *target_fp;
	void (*note)(bool warn, const char *text); /* a line for the log; may be NULL */
	struct json_t *(*config)(void *arg);       /* what Config answers: new reference; may be NULL */
	void *config_arg;
};

/* Reads the store's state and a rollback that outlived us, loads live and previous where
 * they are, opens the sockets. A version that cannot be loaded is noted, not fatal. */
int MUSTCHECK control_new(const struct control_options *o, struct control **ret, struct errtext *e);
struct control *control_free(struct control *c); /* waits for a running load */
