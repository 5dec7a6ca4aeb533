/* The answering end of the control sockets. Two doors (rpc_door.c) on one table of methods:
 * control.sock may do everything its file mode lets in, status.sock only reads.
 * A connection is a small state machine: collect bytes until a NUL, run the
 * method, hold further messages until it has answered. What a peer can make us
 * keep is bounded on every side: message, nesting, connections a door (so that
 * readers cannot crowd out an operator), time to finish a message, idle time,
 * unread output.
 */
#include <event2/event.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "daemon/base/clock.h"
#include "daemon/base/fs.h"
#include "daemon/base/loop.h"
#include "daemon/base/rpc_inside.h"
#include "daemon/base/rpc_wire.h"

enum {
	RPC_MESSAGE_S = 10,
	RPC_IDLE_S = 300,
	RPC_STREAM_UNREAD = 512 << 10,
};

struct rpc_conn {
	struct rpc_server *server;
	struct rpc_conn *next, **prev;
	struct rpc_door *door;
	int fd;
	struct event *rd, *wr, *timer; /* owned */
	struct buf in, out;
	size_t scanned;         /* bytes of in known to hold no NUL */
	uint64_t message_since; /* when the unfinished message began; 0 = none */
	struct rpc_call *call;  /* being answered, or NULL */
	unsigned uid;
	int pid;
	bool pumping, doomed;   /* doomed: free when the pump returns */
	bool close_when_sent;
	bool eof;               /* the peer sends no more; it may still read its answers */
};

struct rpc_call {
	struct rpc_conn *conn; /* NULL once the caller hung up */
	bool oneway, more;
	unsigned uid;
	int pid;
};

static void conn_pump(struct rpc_conn *c);

static void conn_free(struct rpc_conn *c)
{
	if (c->pumping) {
		c->doomed = true;
		return;
	}
	if (c->call)
		c->call->conn = NULL;
	*c->prev = c->next;
	if (c->next)
		c->next->prev = c->prev;
	c->door->n_conns--;
	if (c->rd)
		event_free(c->rd);
	if (c->wr)
		event_free(c->wr);
	if (c->timer)
		event_free(c->timer);
	close(c->fd);
	buf_done(&c->in);
	buf_done(&c->out);
	free(c);
}

/* One timer: the unfinished message's ten seconds, else five idle minutes. While
 * a call is being answered only unread output can time out. */
static void conn_arm(struct rpc_conn *c)
{
	struct timeval tv = {.tv_sec = RPC_IDLE_S};
	uint64_t now = clock_us(), end;

	if (c->call && !c->out.len) {
		evtimer_del(c->timer);
		return;
	}
	if (!c->call && c->message_since) {
		end = c->message_since + RPC_MESSAGE_S * 1000000ull;
		end = end > now ? end - now : 0;
		tv = (struct timeval){.tv_sec = (time_t)(end / 1000000u), .tv_usec = (suseconds_t)(end % 1000000u)};
	}
	evtimer_add(c->timer, &tv);
}

static void conn_flush(struct rpc_conn *c)
{
	size_t sent = 0;

	while (sent < c->out.len) {
		ssize_t k = send(c->fd, c->out.data + sent, c->out.len - sent, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0 && errno != EAGAIN) {
			conn_free(c);
			return;
		}
		if (k < 0)
			break;
		sent += (size_t)k;
	}
	buf_consume(&c->out, sent);
	if (c->out.len)
		event_add(c->wr, NULL);
	else if (c->close_when_sent || (c->eof && !c->call && !c->pumping))
		conn_free(c);
}

/* Takes msg. A peer that does not read what it asked for is dropped. */
static void conn_send(struct rpc_conn *c, json_t *msg)
{
	int r = msg ? rpc_append(&c->out, msg) : -ENOMEM;

	json_decref(msg);
	if (r < 0)
		conn_free(c);
	else
		conn_flush(c);
}

static json_t *rpc_error_message(const char *error, const char *key, const char *text)
{
	return json_pack("{s:s, s:{s:s}}", "error", error, "parameters", key, text);
}

/* The call is over: free it, and go on with what the connection has waiting. */
static void call_finish(struct rpc_call *call, json_t *msg)
{
	struct rpc_conn *c = call->conn;
	bool silent = call->oneway, outermost = c && !c->pumping;

	if (!c) {
		json_decref(msg);
		free(call);
		return;
	}
	c->call = NULL;
	free(call);
	c->pumping = true;
	if (silent)
		json_decref(msg);
	else
		conn_send(c, msg);
	c->pumping = !outermost;
	if (!outermost)
		return; /* the pump that called the method goes on by itself */
	if (c->doomed)
		conn_free(c);
	else
		conn_pump(c);
}

void rpc_reply(struct rpc_call *call, json_t *params)
{
	json_t *msg = json_object();

	if (!params)
		params = json_object();
	if (!msg || json_object_set_new(msg, "parameters", params) < 0) {
		json_decref(msg);
		msg = NULL;
	}
	call_finish(call, msg);
}

void rpc_error(struct rpc_call *call, const char *error, const char *fmt, ...)
{
	bool own = call->conn && !strncmp(error, "io.redraft.", 11) && !strchr(error + 11, '.');
	char text[512], name[200];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	errtext_plain(text);
	/* Short of an interface, it is one that ours declares. */
	snprintf(name, sizeof name, "%s%s%s", own ? call->conn->server->interface : error, own ? "." : "", own ? error + 11 : "");
	call_finish(call, rpc_error_message(name, "message", text));
}

void rpc_peer(const struct rpc_call *call, unsigned *ret_uid, int *ret_pid)
{
	*ret_uid = call->uid;
	*ret_pid = call->pid;
}

bool rpc_wants_more(const struct rpc_call *call)
{
	return call->more && !call->oneway;
}

/* Has the peer closed, and not only the way to us? Then it reads no answer either. */
static bool conn_hung_up(int fd)
{
	struct pollfd p = {.fd = fd};

	return poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR));
}

bool rpc_is_gone(const struct rpc_call *call)
{
	const struct rpc_conn *c = call->conn;

	return !c || c->doomed || (c->eof && conn_hung_up(c->fd)); /* who closed his half is not read from any more */
}

int rpc_more(struct rpc_call *call, json_t *params)
{
	if (rpc_is_gone(call))
		json_decref(params);
	else
		conn_send(call->conn, json_pack("{s:o, s:b}", "parameters", params, "continues", 1)); /* out of memory: hung up on */
	if (call->conn && call->conn->out.len > RPC_STREAM_UNREAD)
		conn_free(call->conn);
	return rpc_is_gone(call) ? -EPIPE : 0;
}

static const char rpc_service_idl[] =
	"interface org.varlink.service\n"
	"method GetInfo() -> (vendor: string, product: string, version: string, url: string, interfaces: []string)\n"
	"method GetInterfaceDescription(interface: string) -> (description: string)\n"
	"error InterfaceNotFound (interface: string)\n"
	"error MethodNotFound (method: string)\n"
	"error MethodNotImplemented (method: string)\n"
	"error InvalidParameter (parameter: string)\n";

static void server_describe(struct rpc_server *s, struct rpc_call *call, json_t *params)
{
	const char *name = json_string_value(json_object_get(params, "interface"));
	const char *text = NULL;

	if (!name) {
		call_finish(call, rpc_error_message("org.varlink.service.InvalidParameter", "parameter", "interface"));
		return;
	}
	if (!strcmp(name, s->interface))
		text = s->idl;
	else if (!strcmp(name, "org.varlink.service"))
		text = rpc_service_idl;
	if (text)
		rpc_reply(call, json_pack("{s:s}", "description", text));
	else
		call_finish(call, rpc_error_message("org.varlink.service.InterfaceNotFound", "interface", name));
}

static void server_dispatch(struct rpc_server *s, struct rpc_call *call, const char *method, json_t *params)
{
	const struct rpc_method *m;
	const char *dot = strrchr(method, '.');

	if (!strcmp(method, "org.varlink.service.GetInfo")) {
		rpc_reply(call, json_pack("{s:s, s:s, s:s, s:s, s:[s,s]}", "vendor", "redraft", "product", "redraft",
					  "version", REDRAFT_COMMIT, "url", "", "interfaces", "org.varlink.service",
					  s->interface));
		return;
	}
	if (!strcmp(method, "org.varlink.service.GetInterfaceDescription")) {
		server_describe(s, call, params);
		return;
	}
	for (m = s->methods; m->name && strcmp(m->name, method); m++)
		;
	if (!m->name) {
		size_t n = dot ? (size_t)(dot - method) : 0;
		bool ours = n && strlen(s->interface) == n && !strncmp(method, s->interface, n);
		char name[128];

		snprintf(name, sizeof name, "%.*s", ours ? 127 : (int)(n < 127 ? n : 127), method);
		call_finish(call, ours ? rpc_error_message("org.varlink.service.MethodNotFound", "method", name)
				       : rpc_error_message("org.varlink.service.InterfaceNotFound", "interface", name));
		return;
	}
	if (m->level == RPC_CONTROL && call->conn->door->level != RPC_CONTROL) {
		rpc_error(call, "io.redraft.PermissionDenied", "%s changes something; ask at control.sock", method);
		return;
	}
	m->handle(s->ctx, call, params);
}

/* Bytes that are no message: say why, once, and close. */
static void conn_bad(struct rpc_conn *c, const char *why)
{
	c->close_when_sent = true;
	conn_send(c, rpc_error_message("io.redraft.BadMessage", "message", why));
}

static void conn_message(struct rpc_conn *c, const void *p, size_t n)
{
	struct errtext e = {.text = ""};
	json_t *msg = NULL, *params, *empty = NULL;
	const char *method;
	struct rpc_call *call;

	if (rpc_parse(p, n, &msg, &e) < 0) {
		conn_bad(c, e.text);
		return;
	}
	method = json_string_value(json_object_get(msg, "method"));
	params = json_object_get(msg, "parameters");
	if (json_is_null(params))
		params = NULL;
	call = method ? calloc(1, sizeof *call) : NULL;
	if (!params)
		params = empty = json_object();
	if (!call || !params) {
		free(call);
		conn_bad(c, method ? "out of memory" : "message names no method");
	} else {
		*call = (struct rpc_call){.conn = c, .uid = c->uid, .pid = c->pid,
					  .oneway = json_is_true(json_object_get(msg, "oneway")),
					  .more = json_is_true(json_object_get(msg, "more"))};
		c->call = call;
		if (json_is_object(params))
			server_dispatch(c->server, call, method, params);
		else
			call_finish(call, rpc_error_message("org.varlink.service.InvalidParameter", "parameter",
							    "parameters"));
	}
	json_decref(empty);
	json_decref(msg);
}

/* Run every whole message that waits, stopping at one that answers later. */
static void conn_pump(struct rpc_conn *c)
{
	c->pumping = true;
	while (!c->call && !c->doomed && !c->close_when_sent) {
		uint8_t *nul = c->in.len > c->scanned ? memchr(c->in.data + c->scanned, 0, c->in.len - c->scanned) : NULL;
		size_t n;

		if (!nul) {
			c->scanned = c->in.len;
			if (c->in.len >= RPC_MAX_MESSAGE)
				conn_bad(c, "message longer than 1 MiB");
			break;
		}
		n = (size_t)(nul - c->in.data);
		conn_message(c, c->in.data, n);
		buf_consume(&c->in, n + 1);
		c->scanned = 0;
		c->message_since = c->in.len ? clock_us() : 0;
	}
	c->pumping = false;
	if (c->doomed || (c->eof && !c->call && !c->out.len)) {
		conn_free(c);
		return;
	}
	if (!c->eof && !c->close_when_sent && c->in.len < RPC_MAX_MESSAGE)
		event_add(c->rd, NULL);
	else
		event_del(c->rd); /* enough is waiting; read on when it has been answered */
	conn_arm(c);
}

static void conn_read(evutil_socket_t fd, short what, void *arg)
{
	struct rpc_conn *c = arg;
	size_t room = RPC_MAX_MESSAGE - c->in.len;
	ssize_t k;

	(void)what;
	if (buf_reserve(&c->in, room < 4096 ? room : 4096) < 0) {
		conn_free(c);
		return;
	}
	k = recv(fd, c->in.data + c->in.len, c->in.cap - c->in.len, MSG_DONTWAIT);
	if (k < 0 && errno != EAGAIN && errno != EINTR) {
		conn_free(c);
		return;
	}
	c->eof = k == 0;
	if (c->eof && c->call && !c->call->oneway && conn_hung_up(fd)) { /* a stream may have nothing to say for days, and would keep its place */
		conn_free(c);
		return;
	}
	if (k > 0 && !c->in.len)
		c->message_since = clock_us();
	if (k > 0)
		c->in.len += (size_t)k;
	conn_pump(c);
}

static void conn_write(evutil_socket_t fd, short what, void *arg)
{
	struct rpc_conn *c = arg;

	(void)fd;
	(void)what;
	conn_flush(c);
}

static void conn_timeout(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	conn_free(arg);
}

void rpc_conn_new(struct rpc_door *d, int fd)
{
	struct rpc_server *s = d->server;
	struct event_base *base = loop_base(s->loop);
	struct rpc_conn *c = calloc(1, sizeof *c);
	struct ucred cred = {0};
	socklen_t n = sizeof cred;

	if (!c) {
		close(fd);
		return;
	}
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) == 0) {
		c->uid = cred.uid;
		c->pid = cred.pid;
	}
	c->server = s;
	c->door = d;
	c->fd = fd;
	c->in = BUF_INIT(RPC_MAX_MESSAGE);
	c->out = BUF_INIT(RPC_MAX_OUTPUT);
	c->next = s->conns;
	c->prev = &s->conns;
	if (c->next)
		c->next->prev = &c->next;
	s->conns = c;
	d->n_conns++;
	c->rd = event_new(base, fd, EV_READ, conn_read, c);
	c->wr = event_new(base, fd, EV_WRITE, conn_write, c);
	c->timer = evtimer_new(base, conn_timeout, c);
	if (!c->rd || !c->wr || !c->timer || event_add(c->rd, NULL) < 0) {
		conn_free(c);
		return;
	}
	conn_arm(c);
}

static void server_interface_name(struct rpc_server *s)
{
	const char *at = strstr(s->idl, "interface ");

	while (at && at != s->idl && at[-1] != '\n')
		at = strstr(at + 1, "interface ");
	if (at)
		snprintf(s->interface, sizeof s->interface, "%.*s", (int)strcspn(at + 10, " \t\r\n"), at + 10);
}

int rpc_server_new(struct loop *l, const char *run_dir, const struct rpc_method *methods, const char *idl, void *ctx,
		   struct rpc_server **ret, struct errtext *e)
{
	struct rpc_server *s = calloc(1, sizeof *s);
	int r;

	if (!s)
		return -ENOMEM;
	s->loop = l;
	s->methods = methods;
	s->idl = idl;
	s->ctx = ctx;
	s->lock_fd = -1;
	s->doors[0] = (struct rpc_door){.server = s, .level = RPC_CONTROL, .fd = -1};
	s->doors[1] = (struct rpc_door){.server = s, .level = RPC_STATUS, .fd = -1};
	server_interface_name(s);
	r = fs_mkdirs(run_dir);
	if (r < 0)
		errtext_set(e, r, "run_dir %.120s: %s", run_dir, strerror(-r));
	if (!r)
		r = rpc_door_lock(s, run_dir, e);
	if (!r)
		r = rpc_door_open(&s->doors[0], run_dir, "control", 0660, e);
	if (!r)
		r = rpc_door_open(&s->doors[1], run_dir, "status", 0666, e);
	if (r < 0) {
		rpc_server_free(s);
		return r;
	}
	*ret = s;
	return 0;
}

struct rpc_server *rpc_server_free(struct rpc_server *s)
{
	if (!s)
		return NULL;
	while (s->conns)
		conn_free(s->conns);
	for (int i = 0; i < 2; i++)
		rpc_door_close(&s->doors[i]);
	if (s->lock_fd >= 0)
		close(s->lock_fd);
	free(s);
	return NULL;
}
