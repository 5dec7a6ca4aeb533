/* Control sockets: Varlink-compatible JSON over UNIX sockets.
 *
 * A message is one JSON object followed by a NUL. Call: {"method","parameters",
 * "oneway"?,"more"?}; reply: {"parameters"?,"error"?,"continues"?}. Replies come
 * in order, one call outstanding per connection. org.varlink.service.GetInfo and
 * GetInterfaceDescription are answered from the IDL text given.
 *
 * Limits: message 1 MiB, nesting 32, 64 connections a socket, 10 s to finish a started
 * message, 5 min idle, output 4 MiB. Level: a method marked RPC_CONTROL is
 * refused on a status socket with io.redraft.PermissionDenied.
 * Threads: server and async client live on the loop's thread; rpc_call_sync any.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>
#include "daemon/base/err.h"

struct loop;
struct rpc_server;
struct rpc_call; /* one call being answered; valid until replied */

enum rpc_level { RPC_STATUS = 0, RPC_CONTROL = 1 };

struct rpc_method {
	const char *name; /* "io.redraft.Serve.Load" */
	enum rpc_level level;
	/* Must end in exactly one rpc_reply or rpc_error, now or later on the loop
	 * thread (a caller that hung up makes the reply a no-op). params is
	 * borrowed, never NULL. */
	void (*handle)(void *ctx, struct rpc_call *call, json_t *params);
};

/* Creates run_dir/control.sock (0660) and run_dir/status.sock (0666). -EADDRINUSE
 * when a live process answers there; a dead socket is replaced. Sockets that the service
 * manager passed (activate.h: "control", "status") are taken instead. methods ends with
 * name NULL; idl is the .varlink text. All borrowed for the server's life. */
int MUSTCHECK rpc_server_new(struct loop *l, const char *run_dir, const struct rpc_method *methods,
			     const char *idl, void *ctx, struct rpc_server **ret, struct errtext *e);
struct rpc_server *rpc_server_free(struct rpc_server *s);

void rpc_reply(struct rpc_call *call, json_t *params /* taken; NULL = {} */);
/* error such as "io.redraft.Busy", which becomes the interface's own, io.redraft.Daemon.Busy; parameters = {"message": text} */
void PRINTF(3, 4) rpc_error(struct rpc_call *call, const char *error, const char *fmt, ...);
/* uid and pid of the peer, for the audit log */
void rpc_peer(const struct rpc_call *call, unsigned *ret_uid, int *ret_pid);

/* Streams: a caller that asked with "more" may get any number of replies before the last one. rpc_more sends one
 * with "continues"; -EPIPE: the caller is gone, or has left 512 KiB unread and was hung up on. The call still ends in
 * rpc_reply or rpc_error. */
bool rpc_wants_more(const struct rpc_call *call);
bool rpc_is_gone(const struct rpc_call *call); /* the caller hung up: nobody reads an answer */
int rpc_more(struct rpc_call *call, json_t *params /* taken */);

/* Blocking call. 0: *ret_params is a new reference. 1 (RPC_E_REMOTE): the peer
 * answered with an error; e holds "error: message". Negative: nobody answers
 * (-ECONNREFUSED, -ENOENT, -ETIMEDOUT) or bad reply (-EPROTO). */
enum { RPC_E_REMOTE = 1 };
int MUSTCHECK rpc_call_sync(const char *socket_path, const char *method, json_t *params /* taken */,
			    int timeout_ms, json_t **ret_params, struct errtext *e);

/* Blocking call with "more": each gets the parameters of every reply, borrowed, and says whether to go on. The first
 * must come within timeout_ms, the others may take for ever. 0: the peer's last reply, or each had enough; else as above. */
int MUSTCHECK rpc_call_stream(const char *socket_path, const char *method, json_t *params /* taken */, int timeout_ms,
			      bool (*each)(void *arg, const json_t *params), void *arg, struct errtext *e);

/* Non-blocking call on the loop's thread: connects, sends, calls done exactly
 * once (r as above; params borrowed, NULL unless r == 0), never from inside
 * rpc_call_async, and not at all when the loop is freed first. */
int MUSTCHECK rpc_call_async(struct loop *l, const char *socket_path, const char *method, json_t *params /* taken */,
			     int timeout_ms, void (*done)(void *arg, int r, json_t *params, const char *error), void *arg);
