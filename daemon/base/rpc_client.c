/* Calls to a control socket, blocking and on the loop. One connection a call:
 * calls are rare, and nothing then has to be kept in step when a peer restarts.
 * A blocking call is the same exchange under a deadline with poll(2).
 */
#include <event2/event.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "daemon/base/address.h"
#include "daemon/base/clock.h"
#include "daemon/base/loop.h"
#include "daemon/base/loop_guard.h"
#include "daemon/base/rpc.h"
#include "daemon/base/rpc_wire.h"

enum { RPC_RETRY_US = 20000 }; /* the peer's backlog is full: try again soon */

/* One exchange: send out, then collect one message. */
struct rpc_exchange {
	int fd;
	struct buf out, in;
	size_t sent, scanned;
};

static void exchange_done(struct rpc_exchange *x)
{
	if (x->fd >= 0)
		close(x->fd);
	x->fd = -1;
	buf_done(&x->out);
	buf_done(&x->in);
}

static int exchange_init(struct rpc_exchange *x, const char *method, json_t *params, bool more)
{
	json_t *call = rpc_make_call(method, params);
	int r;

	*x = (struct rpc_exchange){.fd = -1, .out = BUF_INIT(RPC_MAX_MESSAGE), .in = BUF_INIT(RPC_MAX_OUTPUT)};
	if (!call)
		return -ENOMEM;
	if (more)
		(void)json_object_set_new(call, "more", json_true());
	r = rpc_append(&x->out, call);
	json_decref(call);
	if (r < 0)
		exchange_done(x);
	return r;
}

/* 0 connected, -EAGAIN: backlog full, later again. */
static int exchange_connect(struct rpc_exchange *x, const char *path)
{
	struct sockaddr_un a;
	int r = address_unix(path, &a);

	if (r < 0)
		return r;
	if (x->fd < 0)
		x->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (x->fd < 0)
		return -errno;
	if (connect(x->fd, (struct sockaddr *)&a, sizeof a) == 0)
		return 0;
	return errno == EINPROGRESS || errno == EINTR ? -EAGAIN : -errno;
}

/* Returns 0 when all is sent, -EAGAIN when the socket is full. */
static int exchange_send(struct rpc_exchange *x)
{
	while (x->sent < x->out.len) {
		ssize_t k = send(x->fd, x->out.data + x->sent, x->out.len - x->sent, MSG_NOSIGNAL);

		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			return -errno;
		x->sent += (size_t)k;
	}
	return 0;
}

/* 0: a whole message is in (x->scanned = its length without the NUL), -EAGAIN: not yet. */
static int exchange_recv(struct rpc_exchange *x)
{
	for (;;) {
		uint8_t *nul = x->in.len > x->scanned ? memchr(x->in.data + x->scanned, 0, x->in.len - x->scanned) : NULL;
		ssize_t k;
		int r;

		if (nul) {
			x->scanned = (size_t)(nul - x->in.data);
			return 0;
		}
		x->scanned = x->in.len;
		r = buf_reserve(&x->in, x->in.len + 4096 < RPC_MAX_OUTPUT ? 4096 : RPC_MAX_OUTPUT - x->in.len);
		if (!r && x->in.len == x->in.cap)
			r = -E2BIG;
		if (r < 0)
			return r == -E2BIG ? -EPROTO : r;
		k = recv(x->fd, x->in.data + x->in.len, x->in.cap - x->in.len, 0);
		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			return -errno;
		if (k == 0)
			return -ECONNRESET; /* hung up before it answered */
		x->in.len += (size_t)k;
	}
}

static int exchange_reply(struct rpc_exchange *x, json_t **ret_params, struct errtext *e)
{
	json_t *msg = NULL, *params = NULL;
	int r = rpc_parse(x->in.data, x->scanned, &msg, e);

	if (!r)
		r = rpc_split_reply(msg, &params, e);
	if (!r) {
		params = params ? json_incref(params) : json_object();
		r = params ? 0 : -ENOMEM;
	}
	if (!r)
		*ret_params = params;
	json_decref(msg);
	return r;
}

static int rpc_failure(int r, const char *path, const char *method, struct errtext *e)
{
	if (e && r < 0) {
		char why[128];

		snprintf(why, sizeof why, "%.120s", e->text[0] ? e->text : strerror(-r));
		errtext_set(e, r, "%s at %.100s: %s", method, path, why);
	}
	return r;
}

static int exchange_wait(struct rpc_exchange *x, short what, uint64_t deadline)
{
	uint64_t now = clock_us();
	struct pollfd p = {.fd = x->fd, .events = what};
	int n;

	if (now >= deadline)
		return -ETIMEDOUT;
	n = poll(&p, 1, (int)((deadline - now + 999) / 1000));
	return n > 0 || (n < 0 && errno == EINTR) ? 0 : n < 0 ? -errno : -ETIMEDOUT;
}

/* Connect, send, and collect the first message, all before the deadline. */
static int exchange_first(struct rpc_exchange *x, const char *socket_path, uint64_t deadline)
{
	int r;

	while ((r = exchange_connect(x, socket_path)) == -EAGAIN) {
		if (clock_us() >= deadline)
			return -ETIMEDOUT;
		usleep(RPC_RETRY_US);
	}
	while (!r && (r = exchange_send(x)) == -EAGAIN)
		r = exchange_wait(x, POLLOUT, deadline);
	while (!r && (r = exchange_recv(x)) == -EAGAIN)
		r = exchange_wait(x, POLLIN, deadline);
	return r;
}

/* The next message of a stream, however long it takes. */
static int exchange_next(struct rpc_exchange *x)
{
	int r;

	buf_consume(&x->in, x->scanned + 1);
	x->scanned = 0;
	while ((r = exchange_recv(x)) == -EAGAIN) {
		struct pollfd p = {.fd = x->fd, .events = POLLIN};

		if (poll(&p, 1, -1) < 0 && errno != EINTR)
			return -errno;
	}
	return r;
}

int rpc_call_stream(const char *socket_path, const char *method, json_t *params, int timeout_ms,
		    bool (*each)(void *arg, const json_t *params), void *arg, struct errtext *e)
{
	uint64_t deadline = clock_us() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000u;
	struct errtext why = {.text = ""};
	bool go_on = true;
	struct rpc_exchange x;
	int r = exchange_init(&x, method, params, true);

	if (r < 0)
		return errtext_set(e, r, "%s: the call could not be built: %s", method, strerror(-r));
	r = exchange_first(&x, socket_path, deadline);
	while (!r && go_on) {
		json_t *msg = NULL, *said = NULL;

		r = rpc_parse(x.in.data, x.scanned, &msg, &why);
		if (!r)
			r = rpc_split_reply(msg, &said, &why);
		if (!r)
			go_on = each(arg, said) && json_is_true(json_object_get(msg, "continues"));
		json_decref(msg);
		if (!r && go_on)
			r = exchange_next(&x);
	}
	exchange_done(&x);
	if (e)
		*e = why;
	return rpc_failure(r, socket_path, method, e);
}

int rpc_call_sync(const char *socket_path, const char *method, json_t *params, int timeout_ms, json_t **ret_params,
		  struct errtext *e)
{
	uint64_t deadline = clock_us() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000u;
	struct errtext why = {.text = ""};
	struct rpc_exchange x;
	int r = exchange_init(&x, method, params, false);

	if (r < 0)
		return errtext_set(e, r, "%s: the call could not be built: %s", method, strerror(-r));
	r = exchange_first(&x, socket_path, deadline);
	if (!r)
		r = exchange_reply(&x, ret_params, &why);
	exchange_done(&x);
	if (e)
		*e = why;
	return rpc_failure(r, socket_path, method, e);
}

struct rpc_async {
	struct loop_guard guard;
	struct loop *loop;
	struct rpc_exchange x;
	struct event *io, *timer; /* owned */
	uint64_t deadline;
	char *path, *method;      /* owned */
	void (*done)(void *arg, int r, json_t *params, const char *error);
	void *arg;
};

static void async_free(struct rpc_async *a)
{
	loop_guard_remove(&a->guard);
	if (a->io)
		event_free(a->io);
	if (a->timer)
		event_free(a->timer);
	exchange_done(&a->x);
	free(a->path);
	free(a->method);
	free(a);
}

static void async_drop(struct loop_guard *g)
{
	async_free((struct rpc_async *)(void *)((char *)g - offsetof(struct rpc_async, guard)));
}

/* The call's memory goes before done runs, so done may start the next call. */
static void async_finish(struct rpc_async *a, int r)
{
	struct errtext e = {.text = ""};
	json_t *params = NULL;
	void (*done)(void *arg, int res, json_t *params, const char *error) = a->done;
	void *arg = a->arg;

	if (!r)
		r = exchange_reply(&a->x, &params, &e);
	(void)rpc_failure(r, a->path, a->method, &e);
	async_free(a);
	done(arg, r, params, r ? e.text : NULL);
	json_decref(params);
}

static void async_step(evutil_socket_t fd, short what, void *arg);

/* 0, or -EAGAIN after arranging to be woken. */
static int async_advance(struct rpc_async *a)
{
	int r = 0;

	if (!a->io) {
		r = exchange_connect(&a->x, a->path);
		if (r < 0)
			return r;
		a->io = event_new(loop_base(a->loop), a->x.fd, EV_READ, async_step, a);
		if (!a->io)
			return -ENOMEM;
	}
	r = exchange_send(&a->x);
	if (r == -EAGAIN) {
		event_del(a->io);
		event_assign(a->io, loop_base(a->loop), a->x.fd, EV_WRITE, async_step, a);
		event_add(a->io, NULL);
		return r;
	}
	if (!r)
		r = exchange_recv(&a->x);
	if (r == -EAGAIN) {
		event_del(a->io);
		event_assign(a->io, loop_base(a->loop), a->x.fd, EV_READ, async_step, a);
		event_add(a->io, NULL);
	}
	return r;
}

static void async_arm(struct rpc_async *a, uint64_t delay_us)
{
	struct timeval tv = {.tv_sec = (time_t)(delay_us / 1000000u), .tv_usec = (suseconds_t)(delay_us % 1000000u)};

	evtimer_add(a->timer, &tv);
}

/* Woken by the socket, by the deadline, or to try connecting (again). */
static void async_step(evutil_socket_t fd, short what, void *arg)
{
	struct rpc_async *a = arg;
	uint64_t now = clock_us();
	int r;

	(void)fd;
	if ((what & EV_TIMEOUT) && now >= a->deadline && a->io) {
		async_finish(a, -ETIMEDOUT);
		return;
	}
	r = async_advance(a);
	if (r != -EAGAIN) {
		async_finish(a, r);
		return;
	}
	now = clock_us();
	if (now >= a->deadline)
		async_finish(a, -ETIMEDOUT);
	else
		async_arm(a, !a->io && a->deadline - now > RPC_RETRY_US ? RPC_RETRY_US : a->deadline - now);
}

int rpc_call_async(struct loop *l, const char *socket_path, const char *method, json_t *params, int timeout_ms,
		   void (*done)(void *arg, int r, json_t *params, const char *error), void *arg)
{
	struct rpc_async *a = calloc(1, sizeof *a);
	int r;

	if (!a) {
		json_decref(params);
		return -ENOMEM;
	}
	a->loop = l;
	a->done = done;
	a->arg = arg;
	a->guard.drop = async_drop;
	a->deadline = clock_us() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000u;
	r = exchange_init(&a->x, method, params, false);
	a->path = strdup(socket_path);
	a->method = strdup(method);
	a->timer = evtimer_new(loop_base(l), async_step, a);
	if (!r && (!a->path || !a->method || !a->timer))
		r = -ENOMEM;
	if (r < 0) {
		async_free(a);
		return r;
	}
	loop_guard_add(l, &a->guard);
	async_arm(a, 0); /* never from inside this call: done comes from the loop */
	return 0;
}
