/* Control sockets: any split of the bytes gives the same answers; what a peer may
 * cost us is bounded (message, nesting, connections, unread output); levels hold;
 * introspection answers; calls end by answer, error, time-out or hang-up, once.
 */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include "daemon/base/clock.h"
#include "daemon/base/fs.h"
#include "daemon/base/loop.h"
#include "daemon/base/rpc.h"
#include "daemon/base/address.h"
#include "daemon/base/rpc_wire.h"

static const char idl[] = "# a test\ninterface io.redraft.Test\nmethod Echo(x: int) -> (x: int)\n";

struct fixture {
	char dir[64], control[96], status[96];
	struct loop *loop;
	struct rpc_server *server;
	struct rpc_call *held;
	atomic_int notes;
	pthread_t thread;
};

static void test_echo(void *ctx, struct rpc_call *call, json_t *params)
{
	(void)ctx;
	rpc_reply(call, json_incref(params));
}

static void test_fail(void *ctx, struct rpc_call *call, json_t *params)
{
	(void)ctx;
	(void)params;
	rpc_error(call, "io.redraft.Busy", "load of %d runs", 3);
}

static void test_hold(void *ctx, struct rpc_call *call, json_t *params)
{
	struct fixture *f = ctx;

	(void)params;
	f->held = call;
}

static void test_release(void *ctx, struct rpc_call *call, json_t *params)
{
	struct fixture *f = ctx;

	(void)params;
	if (f->held)
		rpc_reply(f->held, json_pack("{s:b}", "released", 1));
	f->held = NULL;
	rpc_reply(call, NULL);
}

static void test_note(void *ctx, struct rpc_call *call, json_t *params)
{
	struct fixture *f = ctx;

	(void)params;
	atomic_fetch_add(&f->notes, 1);
	rpc_reply(call, NULL);
}

static void test_big(void *ctx, struct rpc_call *call, json_t *params)
{
	size_t n = (size_t)json_integer_value(json_object_get(params, "bytes"));
	char *text = malloc(n);

	(void)ctx;
	memset(text, 'x', n);
	rpc_reply(call, json_pack("{s:o}", "text", json_stringn(text, n)));
	free(text);
}

static void test_peer(void *ctx, struct rpc_call *call, json_t *params)
{
	unsigned uid;
	int pid;

	(void)ctx;
	(void)params;
	rpc_peer(call, &uid, &pid);
	rpc_reply(call, json_pack("{s:i, s:i}", "uid", (int)uid, "pid", pid));
}

/* `count` replies of `bytes` each, then the last; the note counts those that found the caller there. */
static void test_stream(void *ctx, struct rpc_call *call, json_t *params)
{
	struct fixture *f = ctx;
	json_int_t n = json_integer_value(json_object_get(params, "count")), bytes = json_integer_value(json_object_get(params, "bytes"));
	char *text = calloc(1, (size_t)bytes + 1);

	memset(text, 'x', (size_t)bytes);
	for (json_int_t i = 0; rpc_wants_more(call) && i < n; i++)
		if (rpc_more(call, json_pack("{s:I, s:s}", "i", i, "text", text)) < 0)
			break;
		else
			atomic_fetch_add(&f->notes, 1);
	free(text);
	rpc_reply(call, json_pack("{s:b}", "last", 1));
}

static const struct rpc_method methods[] = {
	{"io.redraft.Test.Stream", RPC_STATUS, test_stream},
	{"io.redraft.Test.Echo", RPC_STATUS, test_echo},     {"io.redraft.Test.Fail", RPC_STATUS, test_fail},
	{"io.redraft.Test.Hold", RPC_CONTROL, test_hold},    {"io.redraft.Test.Release", RPC_CONTROL, test_release},
	{"io.redraft.Test.Note", RPC_CONTROL, test_note},    {"io.redraft.Test.Big", RPC_STATUS, test_big},
	{"io.redraft.Test.Peer", RPC_STATUS, test_peer},     {NULL, 0, NULL},
};

static void *run_loop(void *arg)
{
	struct fixture *f = arg;

	assert_int_equal(loop_run(f->loop), 0);
	return NULL;
}

static void stop_loop(void *arg)
{
	loop_stop(arg);
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof *f);
	struct errtext e = {.text = ""};

	snprintf(f->dir, sizeof f->dir, "/tmp/redraft-test-rpc-XXXXXX");
	assert_non_null(mkdtemp(f->dir));
	snprintf(f->control, sizeof f->control, "%s/control.sock", f->dir);
	snprintf(f->status, sizeof f->status, "%s/status.sock", f->dir);
	assert_int_equal(loop_new(&f->loop), 0);
	if (rpc_server_new(f->loop, f->dir, methods, idl, f, &f->server, &e))
		fail_msg("%s", e.text);
	assert_int_equal(pthread_create(&f->thread, NULL, run_loop, f), 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(loop_post(f->loop, stop_loop, f->loop), 0);
	pthread_join(f->thread, NULL);
	rpc_server_free(f->server);
	loop_free(f->loop);
	assert_int_equal(access(f->control, F_OK), -1);
	assert_int_equal(fs_remove_tree(f->dir), 0);
	free(f);
	return 0;
}

static int dial(const char *path)
{
	struct sockaddr_un a;
	struct timeval tv = {.tv_sec = 5};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(address_unix(path, &a), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
	return fd;
}

static void push(int fd, const void *p, size_t n)
{
	assert_int_equal(send(fd, p, n, MSG_NOSIGNAL), (ssize_t)n);
}

/* One message into text (without NUL); -1 when the peer closed first. */
static int pull(int fd, char *text, size_t size)
{
	size_t n = 0;

	while (n < size) {
		ssize_t k = recv(fd, text + n, 1, 0);

		if (k <= 0)
			return -1;
		if (!text[n++])
			return (int)n - 1;
	}
	return -1;
}

static json_t *call(const char *path, const char *method, json_t *params, int want)
{
	struct errtext e = {.text = ""};
	json_t *out = NULL;
	int r = rpc_call_sync(path, method, params, 5000, &out, &e);

	if (r != want)
		fail_msg("%s: %d, expected %d: %s", method, r, want, e.text);
	return out;
}

static void calls_and_errors(void **state)
{
	struct fixture *f = *state;
	struct errtext e = {.text = ""};
	json_t *out = call(f->control, "io.redraft.Test.Echo", json_pack("{s:i}", "x", 7), 0);

	assert_int_equal(json_integer_value(json_object_get(out, "x")), 7);
	json_decref(out);
	out = NULL;
	assert_int_equal(rpc_call_sync(f->control, "io.redraft.Test.Fail", NULL, 5000, &out, &e), RPC_E_REMOTE);
	assert_null(out);
	assert_string_equal(e.text, "io.redraft.Test.Busy: load of 3 runs");
	assert_int_equal(rpc_call_sync(f->control, "io.redraft.Test.Nope", NULL, 5000, &out, &e), RPC_E_REMOTE);
	assert_string_equal(e.text, "org.varlink.service.MethodNotFound: io.redraft.Test.Nope");
	assert_int_equal(rpc_call_sync(f->control, "com.example.X", NULL, 5000, &out, &e), RPC_E_REMOTE);
	assert_string_equal(e.text, "org.varlink.service.InterfaceNotFound: com.example");
	out = call(f->control, "io.redraft.Test.Peer", NULL, 0);
	assert_int_equal(json_integer_value(json_object_get(out, "uid")), getuid());
	assert_int_equal(json_integer_value(json_object_get(out, "pid")), getpid());
	json_decref(out);
}

struct heard {
	int n, enough;
	bool last;
};

static bool stream_each(void *arg, const json_t *params)
{
	struct heard *h = arg;

	h->last = json_is_true(json_object_get(params, "last"));
	if (!h->last)
		assert_int_equal(json_integer_value(json_object_get(params, "i")), h->n);
	return ++h->n != h->enough;
}

/* Every reply in order and then the last; a caller may have had enough; without "more" there is the last alone; who
 * does not read is hung up on and the loop serves others; an error ends a stream too. */
static void streams(void **state)
{
	static const char long_stream[] = "{\"method\":\"io.redraft.Test.Stream\",\"more\":true,\"parameters\":{\"count\":1000,\"bytes\":100000}}";
	static const char short_stream[] = "{\"method\":\"io.redraft.Test.Stream\",\"more\":true,\"parameters\":{\"count\":2,\"bytes\":1}}"; /* with their NULs */
	struct fixture *f = *state;
	struct errtext e = {.text = ""};
	struct heard h = {.enough = -1};
	char text[256];
	int fd;

	assert_int_equal(rpc_call_stream(f->status, "io.redraft.Test.Stream", json_pack("{s:i, s:i}", "count", 100, "bytes", 1000), 5000, stream_each, &h, &e), 0);
	assert_true(h.n == 101 && h.last);
	h = (struct heard){.enough = 7};
	assert_int_equal(rpc_call_stream(f->status, "io.redraft.Test.Stream", json_pack("{s:i, s:i}", "count", 100, "bytes", 10), 5000, stream_each, &h, &e), 0);
	assert_true(h.n == 7 && !h.last);
	json_decref(call(f->status, "io.redraft.Test.Stream", json_pack("{s:i, s:i}", "count", 5, "bytes", 1), 0));
	assert_int_equal(rpc_call_stream(f->status, "io.redraft.Test.Fail", NULL, 5000, stream_each, &h, &e), RPC_E_REMOTE);
	atomic_store(&f->notes, 0);
	fd = dial(f->status);
	push(fd, long_stream, sizeof long_stream);
	json_decref(call(f->status, "io.redraft.Test.Echo", NULL, 0));
	assert_true(atomic_load(&f->notes) < 30); /* 512 KiB, and what the kernel took */
	close(fd);
	fd = dial(f->status); /* half closed at once, as nc does: it may still read */
	push(fd, short_stream, sizeof short_stream);
	shutdown(fd, SHUT_WR);
	for (int i = 0; i < 3; i++)
		assert_true(pull(fd, text, sizeof text) > 0);
	assert_non_null(strstr(text, "last"));
	close(fd);
}

static void levels(void **state)
{
	struct fixture *f = *state;
	struct errtext e = {.text = ""};
	struct stat st;
	json_t *out = NULL;

	json_decref(call(f->status, "io.redraft.Test.Echo", NULL, 0));
	assert_int_equal(rpc_call_sync(f->status, "io.redraft.Test.Note", NULL, 5000, &out, &e), RPC_E_REMOTE);
	assert_memory_equal(e.text, "io.redraft.Test.PermissionDenied", 32);
	assert_int_equal(atomic_load(&f->notes), 0);
	assert_int_equal(stat(f->control, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0660);
	assert_int_equal(stat(f->status, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0666);
}

static void introspection(void **state)
{
	struct fixture *f = *state;
	struct errtext e = {.text = ""};
	json_t *out = call(f->status, "org.varlink.service.GetInfo", NULL, 0);

	assert_string_equal(json_string_value(json_array_get(json_object_get(out, "interfaces"), 1)), "io.redraft.Test");
	json_decref(out);
	out = call(f->status, "org.varlink.service.GetInterfaceDescription",
		   json_pack("{s:s}", "interface", "io.redraft.Test"), 0);
	assert_string_equal(json_string_value(json_object_get(out, "description")), idl);
	json_decref(out);
	out = NULL;
	assert_int_equal(rpc_call_sync(f->status, "org.varlink.service.GetInterfaceDescription",
				       json_pack("{s:s}", "interface", "a.b"), 5000, &out, &e),
			 RPC_E_REMOTE);
	assert_memory_equal(e.text, "org.varlink.service.InterfaceNotFound", 37);
}

/* Two calls in one write, then one call byte by byte: three answers in order. */
static void framing(void **state)
{
	struct fixture *f = *state;
	static const char two[] = "{\"method\":\"io.redraft.Test.Echo\",\"parameters\":{\"x\":1}}\0"
				  "{\"method\":\"io.redraft.Test.Echo\",\"parameters\":{\"x\":2}}";
	static const char one[] = "{ \"method\" : \"io.redraft.Test.Echo\", \"parameters\" : {\"x\": \"\\u0000 {[\"} }";
	char text[256];
	int fd = dial(f->control);

	push(fd, two, sizeof two);
	assert_true(pull(fd, text, sizeof text) > 0);
	assert_string_equal(text, "{\"parameters\":{\"x\":1}}");
	assert_true(pull(fd, text, sizeof text) > 0);
	assert_string_equal(text, "{\"parameters\":{\"x\":2}}");
	for (size_t i = 0; i < sizeof one; i++)
		push(fd, one + i, 1);
	/* a \u0000 inside a string is refused by the parser: an answer, then the end */
	assert_true(pull(fd, text, sizeof text) > 0);
	assert_non_null(strstr(text, "io.redraft.BadMessage"));
	assert_int_equal(pull(fd, text, sizeof text), -1);
	close(fd);
}

static void one_way_and_half_close(void **state)
{
	struct fixture *f = *state;
	static const char msgs[] = "{\"method\":\"io.redraft.Test.Note\",\"oneway\":true}\0"
				   "{\"method\":\"io.redraft.Test.Echo\"}";
	char text[256];
	int fd = dial(f->control);

	push(fd, msgs, sizeof msgs);
	shutdown(fd, SHUT_WR); /* `nc -N` does this: the answer must still come */
	assert_true(pull(fd, text, sizeof text) > 0);
	assert_string_equal(text, "{\"parameters\":{}}"); /* Echo's: the one-way call has none */
	assert_int_equal(pull(fd, text, sizeof text), -1);
	assert_int_equal(atomic_load(&f->notes), 1);
	close(fd);
}

static void expect_refused_n(const char *path, const char *bytes, size_t n, const char *why)
{
	char text[512];
	int fd = dial(path);

	push(fd, bytes, n);
	if (pull(fd, text, sizeof text) < 0)
		fail_msg("no answer to a bad message (%s)", why);
	if (!strstr(text, why))
		fail_msg("%s does not say %s", text, why);
	assert_int_equal(pull(fd, text, sizeof text), -1);
	close(fd);
}

static void expect_refused(const char *path, const char *text, const char *why)
{
	expect_refused_n(path, text, strlen(text) + 1, why);
}

static void bad_messages(void **state)
{
	struct fixture *f = *state;
	char deep[256], *big = malloc(RPC_MAX_MESSAGE + 10);
	int n = 0;

	expect_refused(f->control, "hello", "not JSON");
	expect_refused(f->control, "[]", "not a JSON object");
	expect_refused(f->control, "{}", "names no method");
	expect_refused(f->control, "", "not JSON");
	expect_refused(f->control, "{\"method\":\"a\",\"method\":\"b\"}", "not JSON");
	expect_refused(f->control, "{\"method\":\"\xff\"}", "not JSON");
	expect_refused(f->control, "{\"method\":\"a.B\",\"parameters\":{\"x\":NaN}}", "not JSON");
	n += snprintf(deep, sizeof deep, "{\"method\":\"io.redraft.Test.Echo\",\"parameters\":{\"x\":");
	for (int i = 0; i < 31; i++)
		deep[n++] = '[';
	for (int i = 0; i < 31; i++)
		deep[n++] = ']';
	deep[n++] = '}';
	deep[n++] = '}';
	deep[n++] = '\0';
	expect_refused_n(f->control, deep, (size_t)n, "nested deeper");
	memset(big, ' ', RPC_MAX_MESSAGE + 10);
	expect_refused_n(f->control, big, RPC_MAX_MESSAGE, "longer than 1 MiB");
	free(big);
	json_decref(call(f->control, "io.redraft.Test.Echo", NULL, 0)); /* and it still answers */
}

static void nesting_at_the_limit(void **state)
{
	struct fixture *f = *state;
	char text[256];
	int n = 0, fd = dial(f->control);
	char m[256];

	n += snprintf(m, sizeof m, "{\"method\":\"io.redraft.Test.Echo\",\"parameters\":{\"x\":");
	for (int i = 0; i < 30; i++)
		m[n++] = '[';
	for (int i = 0; i < 30; i++)
		m[n++] = ']';
	m[n++] = '}';
	m[n++] = '}';
	m[n++] = '\0';
	push(fd, m, (size_t)n);
	assert_true(pull(fd, text, sizeof text) > 0);
	assert_non_null(strstr(text, "[[[["));
	close(fd);
}

static void sixty_four_connections(void **state)
{
	struct fixture *f = *state;
	static const char msg[] = "{\"method\":\"io.redraft.Test.Echo\"}";
	char text[256];
	int fd[64], extra;

	for (int i = 0; i < 64; i++) {
		fd[i] = dial(f->status);
		push(fd[i], msg, sizeof msg);
		assert_true(pull(fd[i], text, sizeof text) > 0);
	}
	extra = dial(f->status);
	assert_true(pull(extra, text, sizeof text) > 0);
	assert_non_null(strstr(text, "\"io.redraft.Test.Busy\""));
	close(extra);
	json_decref(call(f->control, "io.redraft.Test.Echo", NULL, 0)); /* the operator's door is not crowded out */
	for (int i = 0; i < 64; i++)
		close(fd[i]);
	for (int i = 0; i < 100; i++) { /* the places are free again */
		extra = dial(f->status);
		(void)!send(extra, msg, sizeof msg, MSG_NOSIGNAL);
		int n = pull(extra, text, sizeof text);
		close(extra);
		if (n > 0 && !strstr(text, "Busy"))
			return;
		usleep(10000);
	}
	fail_msg("connections were not given back");
}

static void slow_reader_is_dropped(void **state)
{
	struct fixture *f = *state;
	struct errtext e = {.text = ""};
	json_t *out = call(f->control, "io.redraft.Test.Big", json_pack("{s:i}", "bytes", 3 << 20), 0);

	assert_int_equal(json_string_length(json_object_get(out, "text")), 3 << 20);
	json_decref(out);
	out = NULL;
	assert_true(rpc_call_sync(f->control, "io.redraft.Test.Big", json_pack("{s:i}", "bytes", 5 << 20), 5000, &out, &e) < 0);
	json_decref(call(f->control, "io.redraft.Test.Echo", NULL, 0));
}

static void late_answer_and_hang_up(void **state)
{
	struct fixture *f = *state;
	static const char msg[] = "{\"method\":\"io.redraft.Test.Hold\"}";
	struct errtext e = {.text = ""};
	json_t *out = NULL;
	char text[256];
	uint64_t t0 = clock_us();
	int fd;

	assert_int_equal(rpc_call_sync(f->control, "io.redraft.Test.Hold", NULL, 200, &out, &e), -ETIMEDOUT);
	assert_true(clock_us() - t0 >= 190000 && clock_us() - t0 < 3000000);
	json_decref(call(f->control, "io.redraft.Test.Release", NULL, 0)); /* answers a caller that is gone */
	fd = dial(f->control);
	push(fd, msg, sizeof msg);
	usleep(100000);
	json_decref(call(f->control, "io.redraft.Test.Release", NULL, 0));
	assert_true(pull(fd, text, sizeof text) > 0);
	assert_string_equal(text, "{\"parameters\":{\"released\":true}}");
	push(fd, msg, sizeof msg); /* the connection goes on */
	usleep(50000);
	close(fd);
	usleep(50000);
	json_decref(call(f->control, "io.redraft.Test.Release", NULL, 0));
}

static void nobody_there(void **state)
{
	struct errtext e = {.text = ""};
	json_t *out = NULL;

	(void)state;
	assert_int_equal(rpc_call_sync("/tmp/redraft-no-such.sock", "a.B", NULL, 200, &out, &e), -ENOENT);
	assert_non_null(strstr(e.text, "/tmp/redraft-no-such.sock"));
}

static void second_server_is_refused(void **state)
{
	struct fixture *f = *state;
	struct errtext e = {.text = ""};
	struct rpc_server *s = NULL;
	struct loop *l;
	char dir[80];
	int r;

	assert_int_equal(loop_new(&l), 0);
	r = rpc_server_new(l, f->dir, methods, idl, f, &s, &e);
	assert_int_equal(r, -EADDRINUSE);
	assert_non_null(strstr(e.text, "another process"));
	assert_int_equal(access(f->control, F_OK), 0);
	/* a socket nobody listens on is replaced */
	snprintf(dir, sizeof dir, "%s/dead", f->dir);
	assert_int_equal(fs_mkdirs(dir), 0);
	char path[96];
	snprintf(path, sizeof path, "%s/control.sock", dir);
	struct sockaddr_un a;
	assert_int_equal(address_unix(path, &a), 0);
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
	close(fd);
	assert_int_equal(rpc_server_new(l, dir, methods, idl, f, &s, &e), 0);
	rpc_server_free(s);
	/* a file that is no socket is left alone */
	assert_int_equal(fs_write_atomic(path, "x", 1), 0);
	assert_int_equal(rpc_server_new(l, dir, methods, idl, f, &s, &e), -EEXIST);
	assert_int_equal(access(path, F_OK), 0);
	loop_free(l);
}

/* Bytes damaged at random, cut anywhere, hung up at any moment: it answers the next honest caller. */
static void a_hostile_peer(void **state)
{
	static const char good[] = "{\"method\":\"io.redraft.Test.Echo\",\"parameters\":{\"x\":[1,{\"y\":\"\\u00e4\"}]},\"more\":true}";
	struct fixture *f = *state;
	uint64_t seed = 20260131;

	print_message("seed %llu\n", (unsigned long long)seed);
	for (int i = 0; i < 1500; i++) {
		char text[sizeof good], answer[512];
		size_t n;
		int fd = dial(f->control);

		memcpy(text, good, sizeof good);
		for (int k = 0; k < 1 + i % 4; k++) {
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			text[(seed >> 33) % (sizeof good - 1)] = (char)(seed >> 20);
		}
		n = (seed >> 40) % 3 ? sizeof good : (seed >> 45) % sizeof good;
		push(fd, text, n);
		if (n == sizeof good && i % 2)
			(void)pull(fd, answer, sizeof answer);
		close(fd);
	}
	json_decref(call(f->control, "io.redraft.Test.Echo", NULL, 0));
}

struct result {
	struct loop *loop;
	int n, r, x;
	char error[256];
};

static void got(void *arg, int r, json_t *params, const char *error)
{
	struct result *t = arg;

	t->n++;
	t->r = r;
	t->x = (int)json_integer_value(json_object_get(params, "x"));
	snprintf(t->error, sizeof t->error, "%s", error ? error : "");
	loop_stop(t->loop);
}

static void async_calls(void **state)
{
	struct fixture *f = *state;
	struct result t = {0};
	char silent[96];
	struct sockaddr_un a;
	struct loop *l;

	assert_int_equal(loop_new(&l), 0);
	t.loop = l;
	assert_int_equal(rpc_call_async(l, f->control, "io.redraft.Test.Echo", json_pack("{s:i}", "x", 5), 5000, got, &t), 0);
	assert_int_equal(t.n, 0); /* never from inside the call */
	assert_int_equal(loop_run(l), 0);
	assert_int_equal(t.n, 1);
	assert_int_equal(t.r, 0);
	assert_int_equal(t.x, 5);
	assert_int_equal(rpc_call_async(l, f->control, "io.redraft.Test.Fail", NULL, 5000, got, &t), 0);
	assert_int_equal(loop_run(l), 0);
	assert_int_equal(t.r, RPC_E_REMOTE);
	assert_string_equal(t.error, "io.redraft.Test.Busy: load of 3 runs");
	assert_int_equal(rpc_call_async(l, "/tmp/redraft-no-such.sock", "a.B", NULL, 5000, got, &t), 0);
	assert_int_equal(loop_run(l), 0);
	assert_int_equal(t.r, -ENOENT);
	assert_int_equal(rpc_call_async(l, f->control, "io.redraft.Test.Hold", NULL, 150, got, &t), 0);
	assert_int_equal(loop_run(l), 0);
	assert_int_equal(t.r, -ETIMEDOUT);
	json_decref(call(f->control, "io.redraft.Test.Release", NULL, 0));

	/* a peer that accepts and hangs up, then one that never accepts */
	snprintf(silent, sizeof silent, "%s/silent.sock", f->dir);
	assert_int_equal(address_unix(silent, &a), 0);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(listen(fd, 1), 0);
	assert_int_equal(rpc_call_async(l, silent, "a.B", NULL, 150, got, &t), 0);
	assert_int_equal(loop_run(l), 0);
	assert_int_equal(t.r, -ETIMEDOUT);
	int conn = accept(fd, NULL, NULL);
	close(conn);
	assert_int_equal(rpc_call_async(l, silent, "a.B", NULL, 5000, got, &t), 0);
	close(fd); /* connects to nobody: refused */
	assert_int_equal(loop_run(l), 0);
	assert_int_equal(t.r, -ECONNREFUSED);
	/* calls still waiting are freed with the loop, unanswered */
	t.n = 0;
	assert_int_equal(rpc_call_async(l, f->control, "io.redraft.Test.Hold", NULL, 60000, got, &t), 0);
	loop_free(l);
	assert_int_equal(t.n, 0);
	json_decref(call(f->control, "io.redraft.Test.Release", NULL, 0));
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(calls_and_errors), T(streams), T(levels), T(introspection), T(framing), T(one_way_and_half_close), T(bad_messages),
		T(nesting_at_the_limit), T(sixty_four_connections), T(slow_reader_is_dropped), T(late_answer_and_hang_up),
		T(a_hostile_peer), T(nobody_there), T(second_server_is_refused), T(async_calls),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
