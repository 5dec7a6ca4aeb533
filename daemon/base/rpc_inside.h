/* Shared between rpc_server.c (connections and calls) and rpc_door.c (the sockets they come through) only. */
#pragma once
#include <event2/event.h>
#include "daemon/base/rpc.h"

struct rpc_conn;

struct rpc_door {
	struct rpc_server *server;
	enum rpc_level level;
	int fd, n_conns;
	struct event *ev, *again; /* owned */
	char path[108];
};

struct rpc_server {
	struct loop *loop;
	const struct rpc_method *methods;
	const char *idl;
	void *ctx;
	char interface[128];
	int lock_fd;
	struct rpc_door doors[2];
	struct rpc_conn *conns;
};

/* rpc_door.c. run_dir/NAME.sock, or the socket that the service manager passed. Both 0, or negative with e. */
int MUSTCHECK rpc_door_open(struct rpc_door *d, const char *run_dir, const char *name, unsigned mode, struct errtext *e);
int MUSTCHECK rpc_door_lock(struct rpc_server *s, const char *run_dir, struct errtext *e);
void rpc_door_close(struct rpc_door *d);
void rpc_conn_new(struct rpc_door *d, int fd); /* rpc_server.c: somebody has come; fd is taken */
