/* The daemon's control socket: io.redraft.Daemon (schemas/admin/io.redraft.Daemon.varlink). */
#pragma once
#include "daemon/base/err.h"

struct act;
struct admin;
struct loop;
struct watch;

/* act and watch are borrowed and must outlive it. -EADDRINUSE when another daemon answers in run_dir. */
int MUSTCHECK admin_new(struct loop *l, const char *run_dir, struct act *act, struct watch *watch, struct admin **ret,
			struct errtext *e);
struct admin *admin_free(struct admin *a);
