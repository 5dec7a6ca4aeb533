/* The HTTP server against clients that mean well and clients that do not, over real sockets.
 *
 * Requests in every framing (length, chunks with extensions and trailers, sent byte by byte, pipelined, HTTP/1.0,
 * over a UNIX socket) arrive as they were meant; every ambiguous or broken one is refused with the documented
 * status and ends its connection; what is too large, too slow or too much is cut or refused within its bounds, while
 * others are served; hang-ups reach the owner exactly once; nothing is left behind.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "daemon/base/loop.h"
#include "serve/http.h"
#include "serve/http_parse.h"

enum { MAX_BODY = 300 << 10, MAX_HEAD = 4096, MAX_BODIES = 600 << 10 };

static struct {
	struct loop *loop;
	struct http *http;
	pthread_t thread;
	char path[64];
	struct http_request *held;
	atomic_int n_handled, n_gone;
	atomic_int connections;
	atomic_size_t bodies, unread;
	atomic_int asked;
} t;

static void on_gone(void *arg)
{
	(void)arg;
	t.held = NULL;
	atomic_fetch_add(&t.n_gone, 1);
}

enum { LARGE = 3 << 20 };

/* /echo gives the body back; /hold never answers; /stream sends until it is cut; /peer says who asks. */
static void handle(void *ctx, struct http_request *r)
{
	const char *path = http_path(r), *body;
	size_t n;

	(void)ctx;
	atomic_fetch_add(&t.n_handled, 1);
	if (strcmp(path, "/hold") == 0) {
		t.held = r;
		http_on_gone(r, on_gone, NULL);
	} else if (strcmp(path, "/stream") == 0) {
		http_stream_start(r, "text/plain");
		if (http_stream_send(r, "one", 3) == 0 && http_stream_send(r, "two", 3) == 0)
			http_stream_end(r);
	} else if (strcmp(path, "/flood") == 0) {
		static char page[8192];
		memset(page, 'x', sizeof page);
		http_on_gone(r, on_gone, NULL);
		http_stream_start(r, "text/plain");
		while (http_stream_send(r, page, sizeof page) == 0)
			;
	} else if (strncmp(path, "/large", 6) == 0) { /* one event of 3 MiB that was allowed for, or not, and one more */
		char *event = calloc(1, LARGE);
		http_on_gone(r, on_gone, NULL);
		http_stream_start(r, "text/plain");
		if (strcmp(path, "/large") == 0)
			http_stream_allow(r, LARGE);
		if (event && http_stream_send(r, event, LARGE) == 0 && http_stream_send(r, "end", 3) == 0)
			http_stream_end(r);
		free(event);
	} else if (strcmp(path, "/brim") == 0) { /* 256 KiB that the loop had no time yet to write */
		static const char page[8192];
		bool fine = true;
		http_stream_start(r, "text/plain");
		for (int i = 0; fine && i < 32; i++)
			fine = http_stream_send(r, page, sizeof page) == 0;
		atomic_store(&t.unread, http_stats(http_of(r)).unread);
		if (fine)
			http_stream_end(r);
	} else if (strcmp(path, "/peer") == 0) {
		http_reply(r, 200, "text/plain", http_peer(r), strlen(http_peer(r)));
	} else {
		body = http_body(r, &n);
		http_set_header(r, "X-Path", path);
		http_set_header(r, "X-Bad", "a\r\nb");
		http_reply(r, 200, "text/plain", body, n);
	}
}

static void *run_loop(void *arg)
{
	(void)arg;
	(void)loop_run(t.loop);
	return NULL;
}

static const struct http_times quick = {.idle = 1500, .head = 700, .body = 700, .stall = 700, .flush = 1500, .linger = 500};

static int setup(void **state)
{
	struct http_options o = {.listen = "127.0.0.1:0", .max_body = MAX_BODY, .max_headers = MAX_HEAD, .max_bodies = MAX_BODIES, .handle = handle,
				 .times = &quick};
	struct errtext e = {""};

	(void)state;
	(void)snprintf(t.path, sizeof t.path, "/tmp/redraft-http-%d.sock", (int)getpid());
	o.listen_unix = t.path;
	if (loop_new(&t.loop) < 0 || http_new(t.loop, &o, &t.http, &e) < 0)
		return -1;
	return pthread_create(&t.thread, NULL, run_loop, NULL);
}

static void stop_loop(void *arg)
{
	(void)arg;
	loop_stop(t.loop);
}

static int teardown(void **state)
{
	(void)state;
	if (loop_post(t.loop, stop_loop, NULL) < 0)
		return -1;
	pthread_join(t.thread, NULL);
	http_free(t.http);
	loop_free(t.loop);
	return access(t.path, F_OK) == 0 ? -1 : 0; /* the socket's file goes with the server */
}

static void look(void *arg)
{
	struct http_stats s = http_stats(t.http);

	(void)arg;
	atomic_store(&t.connections, s.connections);
	atomic_store(&t.bodies, s.bodies);
	atomic_store(&t.unread, s.unread);
	atomic_fetch_add(&t.asked, 1);
}

static void stats(void)
{
	int before = atomic_load(&t.asked);

	assert_int_equal(0, loop_post(t.loop, look, NULL));
	while (atomic_load(&t.asked) == before)
		usleep(1000);
}

/* --- client --- */

static int dial(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)http_port(t.http)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct timeval limit = {10, 0};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	(void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	assert_int_equal(0, connect(fd, (struct sockaddr *)&a, sizeof a));
	return fd;
}

static void put(int fd, const void *p, size_t n)
{
	for (size_t at = 0; at < n;) {
		ssize_t k = send(fd, (const char *)p + at, n - at, MSG_NOSIGNAL);
		if (k <= 0)
			return; /* the server had enough */
		at += (size_t)k;
	}
}

static void puts_to(int fd, const char *s)
{
	put(fd, s, strlen(s));
}

static char answer[1 << 20];

/* Everything until the server closes; the status of the first reply, 0 for none. */
static int hear(int fd)
{
	size_t n = 0;
	ssize_t k;
	int status = 0;

	while (n < sizeof answer - 1 && (k = recv(fd, answer + n, sizeof answer - 1 - n, 0)) > 0)
		n += (size_t)k;
	answer[n] = 0;
	close(fd);
	(void)sscanf(answer, "HTTP/1.1 %d", &status);
	return status;
}

static int ask(const char *text)
{
	int fd = dial();

	puts_to(fd, text);
	return hear(fd);
}

static const char *body(void)
{
	const char *p = strstr(answer, "\r\n\r\n");

	return p ? p + 4 : "";
}

#define GET "GET / HTTP/1.1\r\nHost: x\r\n"
#define POST "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"

/* --- tests --- */

static void test_framings(void **state)
{
	static const char chunks[] = POST "Transfer-Encoding: chunked\r\n\r\n5;a=\"b\"\r\nhello\r\n00000001 \r\n \r\n5\r\nworld\r\n0\r\nX-Trailer: 1\r\n\r\n";
	int fd;

	(void)state;
	assert_int_equal(200, ask(POST "Content-Length: 5\r\n\r\nhello"));
	assert_string_equal("hello", body());
	assert_non_null(strstr(answer, "Connection: close\r\n"));
	assert_non_null(strstr(answer, "X-Path: /echo\r\n"));
	assert_null(strstr(answer, "X-Bad"));
	assert_int_equal(200, ask(chunks));
	assert_string_equal("hello world", body());
	fd = dial();
	for (size_t i = 0; i < sizeof chunks - 1; i++) {
		put(fd, chunks + i, 1);
		usleep(300);
	}
	assert_int_equal(200, hear(fd));
	assert_string_equal("hello world", body());
	assert_int_equal(200, ask("GET http://h:1/a%20b%2Fc?q=%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
	assert_non_null(strstr(answer, "X-Path: /a b/c\r\n"));
	assert_int_equal(200, ask("HEAD / HTTP/1.1\r\nhost:x\r\nconnection:Close\r\n\r\n"));
	assert_string_equal("", body());
	assert_int_equal(200, ask("GET / HTTP/1.0\r\n\r\n")); /* 1.0 closes by itself and needs no Host */
	fd = dial();
	puts_to(fd, POST "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n");
	assert_int_equal(25, recv(fd, answer, 25, MSG_WAITALL));
	assert_memory_equal("HTTP/1.1 100 Continue\r\n\r\n", answer, 25);
	puts_to(fd, "ok");
	assert_int_equal(200, hear(fd));
	assert_string_equal("ok", body());
}

static void test_streams(void **state)
{
	(void)state;
	assert_int_equal(200, ask("GET /stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
	assert_string_equal("3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n", body());
	assert_int_equal(200, ask("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
	assert_string_equal("onetwo", body());
	assert_non_null(strstr(answer, "Connection: close\r\n"));
}

/* What was allowed for is not held against a reader who had no time to read it; of anything else it is, whatever the size of its events. */
static void test_large_event(void **state)
{
	static const char *const path[] = {"GET /large HTTP/1.0\r\n\r\n", "GET /large-not-allowed HTTP/1.0\r\n\r\n"};

	(void)state;
	for (int cut = 0; cut < 2; cut++) {
		int fd = dial(), gone = atomic_load(&t.n_gone);
		size_t n = 0;
		ssize_t k;
		puts_to(fd, path[cut]);
		while ((k = recv(fd, answer, sizeof answer, 0)) > 0)
			n += (size_t)k;
		close(fd);
		assert_int_equal(gone + cut, atomic_load(&t.n_gone));
		assert_true(cut || n > LARGE + 3);
	}
}

static void test_pipelining(void **state)
{
	int n = 0, fd = dial();

	(void)state;
	puts_to(fd, "POST /1 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\naPOST /2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nb\r\n0\r\n\r\n"
		    "\r\nGET /stream HTTP/1.1\r\nHost: x\r\n\r\nGET /4 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\nGET /5 HTTP/1.1\r\nHost: x\r\n\r\n");
	assert_int_equal(200, hear(fd));
	const char *order[] = {"X-Path: /1\r\n", "\r\n\r\na", "X-Path: /2\r\n", "\r\n\r\nb", "3\r\ntwo\r\n0\r\n\r\n", "X-Path: /4\r\n"};
	for (const char *p = answer; n < 6; n++) {
		p = strstr(p, order[n]);
		assert_non_null(p);
	}
	assert_null(strstr(answer, "X-Path: /5")); /* after a close there is nothing */
}

static void test_broken_requests(void **state)
{
	static const struct { int status; const char *text; } cases[] = {
		{400, "\x16\x03\x01\x02hello tls\r\n\r\n"},
		{400, "GET /\r\n\r\n"},
		{400, "GET / HTTP/1.1\nHost: x\n\r\n\r\n"},
		{400, "GET  / HTTP/1.1\r\nHost: x\r\n\r\n"},
		{400, "GET nowhere HTTP/1.1\r\nHost: x\r\n\r\n"},
		{400, "GET /%0 HTTP/1.1\r\nHost: x\r\n\r\n"},
		{400, "GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n"},
		{400, "G@T / HTTP/1.1\r\nHost: x\r\n\r\n"},
		{505, "GET / HTTP/2.0\r\nHost: x\r\n\r\n"},
		{400, "GET / HTTP/1.1\r\n\r\n"},
		{400, GET "Host: y\r\n\r\n"},
		{400, GET "A: b\r\n folded\r\n\r\n"},
		{400, GET "A : b\r\n\r\n"},
		{400, GET ": b\r\n\r\n"},
		{400, GET "A: b\rc\r\n\r\n"},
		{400, GET "A: \x01\r\n\r\n"},
		{400, GET "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"},
		{400, GET "Content-Length: -1\r\n\r\n"},
		{400, GET "Content-Length: 0x10\r\n\r\n"},
		{400, GET "Content-Length: 1, 1\r\n\r\n"},
		{400, GET "Content-Length: 99999999999999999999\r\n\r\n"},
		{413, GET "Content-Length: 999999999999999\r\n\r\n"},
		{400, GET "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
		{501, GET "Transfer-Encoding: gzip, chunked\r\n\r\n"},
		{501, GET "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"},
		{400, "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"},
		{417, GET "Expect: magic\r\n\r\n"},
		{400, GET "Transfer-Encoding: chunked\r\n\r\nx\r\n"},
		{400, GET "Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n"},
		{400, GET "Transfer-Encoding: chunked\r\n\r\n1\na\r\n"},
		{400, GET "Transfer-Encoding: chunked\r\n\r\n-1\r\n"},
		{400, GET "Transfer-Encoding: chunked\r\n\r\nfffffffff\r\n"},
		{413, GET "Transfer-Encoding: chunked\r\n\r\nffffffff\r\n"},
		{400, GET "Transfer-Encoding: chunked\r\n\r\n0\r\nA: b\n\r\n"},
	};
	int before = atomic_load(&t.n_handled);
	char nul[] = GET "A: b0c\r\n\r\n";
	int fd = dial();

	(void)state;
	nul[strlen(GET) + 4] = 0;
	put(fd, nul, sizeof nul - 1);
	assert_int_equal(400, hear(fd));
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		fd = dial();
		puts_to(fd, cases[i].text);
		if (strstr(cases[i].text, "ffffffff\r\n"))
			for (int k = 0; k < 50; k++)
				put(fd, answer, 8192);
		int status = hear(fd);
		if (status != cases[i].status)
			fail_msg("%d for %s", status, cases[i].text);
		assert_non_null(strstr(answer, "Connection: close"));
		assert_true(strlen(body()) > 10);
	}
	assert_int_equal(before, atomic_load(&t.n_handled));
}

static void test_too_large(void **state)
{
	char *big = malloc(MAX_BODY + 100);
	int fd;

	(void)state;
	memset(big, 'a', MAX_BODY + 100);
	fd = dial(); /* a head that goes on */
	puts_to(fd, GET "A: ");
	put(fd, big, 2 * MAX_HEAD);
	assert_int_equal(431, hear(fd));
	fd = dial();
	puts_to(fd, GET);
	for (int i = 0; i < HTTP_MAX_FIELDS; i++)
		puts_to(fd, "A: b\r\n");
	puts_to(fd, "\r\n");
	assert_int_equal(431, hear(fd));
	fd = dial(); /* refused at its head; the client that sends it all the same still reads the answer */
	(void)snprintf(answer, sizeof answer, POST "Content-Length: %d\r\n\r\n", MAX_BODY + 1);
	puts_to(fd, answer);
	put(fd, big, MAX_BODY + 1);
	assert_int_equal(413, hear(fd));
	fd = dial(); /* exactly as large as may be */
	(void)snprintf(answer, sizeof answer, POST "Content-Length: %d\r\n\r\n", MAX_BODY);
	puts_to(fd, answer);
	put(fd, big, MAX_BODY);
	assert_int_equal(200, hear(fd));
	assert_int_equal(MAX_BODY, strlen(body()));
	fd = dial(); /* extensions are no way around */
	puts_to(fd, POST "Transfer-Encoding: chunked\r\n\r\n1;");
	put(fd, big, 2 * HTTP_MAX_CHUNK_LINES);
	assert_int_equal(400, hear(fd));
	free(big);
}

/* Bodies that never end fill the common room; a large one is then refused and small ones are not. */
static void test_room_for_bodies(void **state)
{
	char *big = calloc(1, MAX_BODY);
	int slow[3], fd;

	(void)state;
	for (int i = 0; i < 3; i++) {
		slow[i] = dial();
		puts_to(slow[i], POST "Content-Length: 290000\r\n\r\n");
		put(slow[i], big, 250000);
	}
	for (int i = 0; i < 2000; i++) {
		stats();
		if (atomic_load(&t.bodies) >= 550000)
			break;
		usleep(1000);
	}
	assert_true(atomic_load(&t.bodies) > 500000 && atomic_load(&t.bodies) <= MAX_BODIES);
	fd = dial();
	puts_to(fd, POST "Content-Length: 280000\r\n\r\n");
	put(fd, big, 280000);
	assert_int_equal(503, hear(fd));
	assert_non_null(strstr(answer, "Retry-After: "));
	assert_int_equal(200, ask(POST "Content-Length: 5\r\n\r\nsmall"));
	for (int i = 0; i < 3; i++) {
		int status = hear(slow[i]); /* too slow: the room comes back by itself */
		assert_true(status == 408 || status == 503);
	}
	stats();
	assert_int_equal(0, atomic_load(&t.bodies));
	free(big);
}

static void test_slow_and_idle(void **state)
{
	int head = dial(), drip = dial(), rest = dial(), idle = dial();

	(void)state;
	puts_to(head, GET);
	puts_to(rest, POST "Content-Length: 100\r\n\r\nhalf");
	for (int i = 0; i < 10; i++) { /* a byte now and then does not help */
		put(drip, GET "                    " + i, 1);
		usleep(150000);
	}
	assert_int_equal(408, hear(drip));
	assert_int_equal(408, hear(head));
	assert_int_equal(408, hear(rest));
	assert_int_equal(0, hear(idle)); /* nothing was asked, nothing is said */
	assert_string_equal("", answer);
}

static void test_unread_is_counted(void **state)
{
	(void)state;
	assert_int_equal(200, ask("GET /brim HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
	assert_true(atomic_load(&t.unread) >= 32 * 8192);
	stats();
	assert_int_equal(0, atomic_load(&t.unread));
}

static void wait_for(const atomic_int *what, int least)
{
	for (int i = 0; i < 5000 && atomic_load(what) < least; i++)
		usleep(1000);
	assert_true(atomic_load(what) >= least);
}

static void test_hang_ups(void **state)
{
	int gone = atomic_load(&t.n_gone), handled = atomic_load(&t.n_handled), fd = dial();

	(void)state;
	puts_to(fd, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
	wait_for(&t.n_handled, handled + 1);
	close(fd);
	wait_for(&t.n_gone, gone + 1);
	fd = dial(); /* a reader that does not read is cut in the middle of its stream */
	puts_to(fd, "GET /flood HTTP/1.1\r\nHost: x\r\n\r\n");
	wait_for(&t.n_gone, gone + 2);
	close(fd);
	fd = dial(); /* gone in mid-body: the handler never hears of it */
	puts_to(fd, POST "Content-Length: 100\r\n\r\nhalf");
	close(fd);
	for (int i = 0; i < 3000; i++) {
		stats();
		if (atomic_load(&t.connections) == 0)
			break;
		usleep(1000);
	}
	assert_int_equal(0, atomic_load(&t.connections));
	assert_int_equal(gone + 2, atomic_load(&t.n_gone));
	assert_int_equal(handled + 2, atomic_load(&t.n_handled));
}

static void test_many_connections(void **state)
{
	enum { MANY = 300 };
	int fds[MANY];

	(void)state;
	for (int i = 0; i < MANY; i++) {
		fds[i] = dial();
		if (i % 2)
			puts_to(fds[i], GET);
	}
	assert_int_equal(200, ask(GET "Connection: close\r\n\r\n"));
	for (int i = 0; i < MANY; i++)
		close(fds[i]);
}

static int dial_unix(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	(void)snprintf(a.sun_path, sizeof a.sun_path, "%s", t.path);
	assert_int_equal(0, connect(fd, (struct sockaddr *)&a, sizeof a));
	return fd;
}

static void test_unix_socket(void **state)
{
	struct http_options o = {.listen_unix = t.path, .max_body = MAX_BODY, .max_headers = MAX_HEAD, .max_bodies = MAX_BODIES, .handle = handle};
	char who[32], stale[80];
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	struct errtext e = {""};
	struct http *second = NULL;
	struct stat st;
	int fd = dial_unix();

	(void)state;
	puts_to(fd, "GET /peer HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
	assert_int_equal(200, hear(fd));
	(void)snprintf(who, sizeof who, "unix:%u", getuid());
	assert_string_equal(who, body());
	assert_int_equal(200, ask("GET /peer HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
	assert_string_equal("127.0.0.1", body());
	assert_int_equal(0, stat(t.path, &st));
	assert_int_equal(0660, st.st_mode & 0777);
	assert_true(http_new(t.loop, &o, &second, &e) < 0); /* somebody listens there */
	assert_non_null(strstr(e.text, t.path));
	(void)snprintf(stale, sizeof stale, "%s.stale", t.path);
	(void)snprintf(a.sun_path, sizeof a.sun_path, "%.100s", stale);
	fd = socket(AF_UNIX, SOCK_STREAM, 0);
	assert_int_equal(0, bind(fd, (struct sockaddr *)&a, sizeof a));
	close(fd); /* as a killed process leaves it */
	o.listen_unix = stale;
	assert_int_equal(0, http_new(t.loop, &o, &second, &e));
	http_free(second);
	assert_int_not_equal(0, access(stale, F_OK));
	o.listen_unix = NULL;
	assert_true(http_new(t.loop, &o, &second, &e) < 0);
}

/* However a chunked body is cut into reads, it is the same body. */
static void test_chunk_cuts(void **state)
{
	static const char text[] = "3;x\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\nT: u\r\nV: w\r\n\r\nGET";

	(void)state;
	for (size_t step = 1; step < sizeof text; step++) {
		struct http_chunks c = {0};
		char out[64] = "";
		size_t at = 0, used, n;
		int s = HTTP_CHUNKS_MORE;
		while (s == HTTP_CHUNKS_MORE && at < sizeof text - 1) {
			size_t k = sizeof text - 1 - at < step ? sizeof text - 1 - at : step;
			const uint8_t *data;
			s = http_chunks_step(&c, (const uint8_t *)text + at, k, &used, &data, &n);
			assert_true(s >= 0 && used > 0);
			strncat(out, (const char *)data, n);
			at += used;
		}
		assert_int_equal(HTTP_CHUNKS_DONE, s);
		assert_string_equal("abc0123456789abcdef", out);
		assert_int_equal(sizeof text - 4, at); /* what follows is another's */
	}
}

static void last(void *arg)
{
	(void)arg;
	http_last_requests(t.http);
	atomic_fetch_add(&t.asked, 1);
}

static void test_last_requests(void **state)
{
	int before = atomic_load(&t.asked);

	(void)state;
	assert_int_equal(0, loop_post(t.loop, last, NULL));
	wait_for(&t.asked, before + 1);
	assert_int_equal(200, ask(GET "\r\n")); /* ends although it asked to go on */
	assert_non_null(strstr(answer, "Connection: close"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_framings), cmocka_unit_test(test_streams), cmocka_unit_test(test_large_event), cmocka_unit_test(test_pipelining), cmocka_unit_test(test_broken_requests),
		cmocka_unit_test(test_too_large), cmocka_unit_test(test_room_for_bodies), cmocka_unit_test(test_unread_is_counted), cmocka_unit_test(test_slow_and_idle),
		cmocka_unit_test(test_hang_ups), cmocka_unit_test(test_many_connections), cmocka_unit_test(test_unix_socket),
		cmocka_unit_test(test_chunk_cuts), cmocka_unit_test(test_last_requests),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
