/* The daemon's control socket: io.redraft.Daemon (schemas/admin/io.redraft.Daemon.varlink). */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include "daemon/base/err.h"

struct act;
struct admin;
struct audit;
struct fleet;
struct loop;
struct news;
struct watch;

struct admin_options { /* all borrowed, and outlive it */
	struct loop *loop;
	const char *run_dir, *learn_socket;
	struct act *act;
	struct watch *watch; /* may be NULL: no accept length, no drift */
	struct audit *audit;
	struct news *news;
	struct fleet *fleet; /* NULL: alone */
	/* Topics(create): what the broker has of what we need; blocks, any thread. NULL: no broker. */
	json_t *(*topics)(void *arg, bool create, struct errtext *e);
	void *topics_arg;
	json_t *(*config)(void *arg); /* Config: the running settings; NULL: not told */
	void *config_arg;
};

/* -EADDRINUSE when another daemon answers in run_dir. */
int MUSTCHECK admin_new(const struct admin_options *o, struct admin **ret, struct errtext *e);
struct admin *admin_free(struct admin *a);
