/* The daemon over HTTP. Metrics, health and the page answer with headers that let nothing else in; a port that is
 * taken and an address that makes no sense are named. Nothing is changed without the token, from another page, or from
 * a version that is no longer live. Who listens gets a snapshot; there is room for so many, and who
 * does not read is hung up on. A crowd of connections leaves the control socket room.
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <cmocka.h>
#include "daemon/base/clock.h"
#include "daemon/web_inside.h"
#include "schemas/audit.h"
#include "tests/unit/daemon/whole.h"

#define TOKEN "a-token-of-twenty-six-chars"

static struct web_options options(const char *listen, const char *token_file)
{
	return (struct web_options){.listen = listen, .host = "redraft.example", .token_file = token_file, .metrics = d.metrics, .act = d.act,
				    .watch = d.watch, .news = d.books.news, .audit = d.books.audit};
}

static void start(const char *token_file)
{
	struct web_options o = options("127.0.0.1:0", token_file);
	struct errtext e = {.text = ""};

	if (web_new(d.loop, &o, &d.web, &e))
		fail_msg("%s", e.text);
	whole_run();
}

/* ---- asking ---- */

static int dial(int receive_buffer)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)web_port(d.web)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct timeval patience = {.tv_sec = 10};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	if (receive_buffer)
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
	assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
	return fd;
}

static void say(int fd, const char *text)
{
	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

static char answer[1 << 17];

/* The whole answer into `answer`; its status. headers: "A: b\r\n" each. */
static int http(const char *method, const char *path, const char *headers, const char *body)
{
	char q[1024];
	size_t n = 0;
	ssize_t k;
	int fd = dial(0);

	snprintf(q, sizeof q, "%s %s HTTP/1.1\r\n%s%sConnection: close\r\nContent-Length: %zu\r\n\r\n%s", method, path,
		 strstr(headers, "Host:") ? "" : "Host: 127.0.0.1:9464\r\n", headers, strlen(body), body);
	say(fd, q);
	while (n + 1 < sizeof answer && (k = read(fd, answer + n, sizeof answer - 1 - n)) > 0)
		n += (size_t)k;
	answer[n] = '\0';
	close(fd);
	return n > 12 ? atoi(answer + 9) : 0;
}

static int get(const char *path)
{
	return http("GET", path, "", "");
}

static void has(const char *what)
{
	if (!strstr(answer, what))
		fail_msg("no \"%s\" in: %.600s", what, answer);
}

static void has_not(const char *what)
{
	if (strstr(answer, what))
		fail_msg("\"%s\" in: %.600s", what, answer);
}

#define WAIT_FOR(what) \
	do { \
		uint64_t until = clock_us() + 60000000; \
		while (!(what)) { \
			if (clock_us() > until) \
				fail_msg("waited in vain for %s", #what); \
			usleep(5000); \
		} \
	} while (0)

static bool status_has(const char *what)
{
	assert_int_equal(get("/api/status"), 200);
	return strstr(answer, what) != NULL;
}

/* ---- tests ---- */

static void pages(void **state)
{
	static const char *const files[][2] = {{"/", "text/html"}, {"/page.css", "text/css"}, {"/page.js", "text/javascript"}, {"/icon.svg", "image/svg+xml"}};

	(void)state;
	metric_add(metrics_counter(d.metrics, "x_total", NULL, "X."), 3);
	start("");
	assert_int_equal(get("/metrics"), 200);
	has("\nx_total 3\n");
	has("redraft_bad_round_records_total 0\n");
	assert_int_equal(get("/health"), 200);
	has("{\"status\":\"ok\"}");
	for (int i = 0; i < 4; i++) {
		assert_int_equal(get(files[i][0]), 200);
		has(files[i][1]);
		has("default-src 'none'; script-src 'self'; style-src 'self';");
		has("X-Content-Type-Options: nosniff");
		has_not("unsafe-inline");
		has_not("Set-Cookie");
		has_not("Access-Control-Allow");
	}
	assert_int_equal(get("/"), 200); /* all of it comes from us, and none of it is inline */
	has_not("http://");
	has_not("https://");
	has_not("style=");
	has_not("<style");
	has_not("onclick");
	has_not("<script>");
	has("<html lang=\"en\">");
	assert_int_equal(get("/page.js"), 200);
	has_not("innerHTML");
	has_not("eval(");
	has_not("localStorage");
	assert_int_equal(get("/nothing"), 404);
	assert_int_equal(http("HEAD", "/", "", ""), 200);
	has_not("<html");
	assert_int_equal(http("HEAD", "/events", "", ""), 200); /* and ends */
	assert_int_equal(http("POST", "/api/status", "", "{}"), 405);
	has("Allow: GET, HEAD");
	assert_int_equal(get("/api/rollback"), 405);
	has("Allow: POST");
	assert_int_equal(http("DELETE", "/", "", ""), 501);
}

static void names(void **state)
{
	static const char *const ours[] = {"127.0.0.1:9464", "localhost:1", "[::1]:9464", "10.1.2.3", "redraft.example", "Redraft.Example:80"};
	static const char *const theirs[] = {"evil.example", "127.0.0.1.evil.example:9464", "localhost.evil.example", "[::1].evil.example", "", "[]:1"};
	char header[128];

	(void)state;
	start("");
	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
		snprintf(header, sizeof header, "Host: %s\r\n", ours[i]);
		assert_int_equal(http("GET", "/api/status", header, ""), 200);
	}
	for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++) {
		snprintf(header, sizeof header, "Host: %s\r\n", theirs[i]);
		if (http("GET", "/api/status", header, "") != 403)
			fail_msg("%s was let in: %.100s", theirs[i], answer);
		assert_int_equal(http("GET", "/events", header, ""), 403);
		assert_int_equal(http("GET", "/metrics", header, ""), 200); /* scrapers have names of their own for us */
	}
}

static void refuses_to_start(void **state)
{
	struct web_options o = options("nonsense", "");
	struct errtext e = {.text = ""};
	struct web *again = NULL;
	char taken[64];

	(void)state;
	start("");
	assert_int_equal(web_new(d.loop, &o, &again, &e), -EINVAL);
	o.listen = "127.0.0.1:x";
	assert_int_equal(web_new(d.loop, &o, &again, &e), -EINVAL);
	snprintf(taken, sizeof taken, "127.0.0.1:%d", web_port(d.web));
	o.listen = taken;
	assert_int_equal(web_new(d.loop, &o, &again, &e), -EADDRINUSE);
	assert_non_null(strstr(e.text, taken));
	o = options("127.0.0.1:0", fixture_path("token"));
	assert_int_equal(web_new(d.loop, &o, &again, &e), -ENOENT);
	assert_int_equal(fs_write_atomic(fixture_path("token"), "short\n", 6), 0);
	assert_int_equal(web_new(d.loop, &o, &again, &e), -EINVAL);
	assert_int_equal(fs_write_atomic(fixture_path("token"), "two words of a token\n", 21), 0);
	assert_int_equal(web_new(d.loop, &o, &again, &e), -EINVAL);
	assert_int_equal(fs_write_atomic(fixture_path("token"), TOKEN "\n" TOKEN "\n", 56), 0);
	assert_int_equal(web_new(d.loop, &o, &again, &e), -EINVAL);
	assert_null(strstr(e.text, TOKEN)); /* no secret in a log */
	assert_int_equal(fs_write_atomic(fixture_path("token"), TOKEN "\n", 28), 0);
	assert_int_equal(chmod(fixture_path("token"), 0644), 0);
	assert_int_equal(web_new(d.loop, &o, &again, &e), -EPERM);
	assert_non_null(strstr(e.text, "chmod"));
	o.listen = "";
	assert_int_equal(web_new(d.loop, &o, &again, &e), 0);
	assert_null(again);
}

static void nothing_without_a_token(void **state)
{
	(void)state;
	start("");
	assert_true(status_has("\"can_change\":false"));
	assert_int_equal(http("POST", "/api/hold", "Authorization: Bearer \r\n", "{}"), 403);
	assert_int_equal(http("POST", "/api/hold", "Authorization: Bearer " TOKEN "\r\n", "{}"), 403);
	assert_true(status_has("\"hold\":false"));
}

static void submit(const char *name, float value, uint32_t parent)
{
	struct errtext e = {.text = ""};
	json_t *out = NULL;

	if (rpc_call_sync(fixture_path("daemon/control.sock"), "io.redraft.Daemon.Submit",
			  json_pack("{s:s}", "path", fixture_submission(name, value, parent, NULL, NULL)), 10000, &out, &e))
		fail_msg("%s", e.text);
	json_decref(out);
}

/* The audit log's last line says this. */
static bool audited(const char *what)
{
	struct errtext e = {.text = ""};
	struct audit_seen s;
	json_t *records;
	char *text;
	bool is;

	assert_int_equal(audit_last(fixture_path("audit"), 1, &s, &records, &e), 0);
	text = json_dumps(json_array_get(records, 0), JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
	is = text && strstr(text, what) && strstr(text, "\"who\":\"the page, from 127.0.0.1");
	free(text);
	json_decref(records);
	return is;
}

static void changes(void **state)
{
#define AUTH "Authorization: Bearer " TOKEN "\r\n"
	static const char *const wrong[] = {"", "Authorization: Bearer\r\n", "Authorization: Bearer a-token-of-twenty-six-charS\r\n",
					    "Authorization: Bearer " TOKEN "x\r\n", "Authorization: Basic " TOKEN "\r\n", "Cookie: token=" TOKEN "\r\n"};
	static const char *const foreign[] = {"Origin: http://evil.example\r\n", "Origin: null\r\n", "Origin: http://127.0.0.1:9465\r\n",
					      "Origin: http://127.0.0.1:9464.evil.example\r\n", "Origin: 127.0.0.1:9464\r\n"};
	char headers[256];

	(void)state;
	assert_int_equal(fs_write_atomic(fixture_path("token"), TOKEN "\n", 28), 0);
	start(fixture_path("token"));
	peers_post(&peers, peers_serve_on);
	peers_post(&peers, peers_learn_on);
	submit("one", 1, 0);
	WAIT_FOR(status_has("\"live\":1,\"previous\":0"));
	submit("two", 2, 1);
	WAIT_FOR(status_has("\"live\":2,\"previous\":1"));
	assert_true(status_has("\"can_change\":true,\"back_to\":1,"));
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		assert_int_equal(http("POST", "/api/rollback", wrong[i], "{\"live\":2}"), 401);
		has("WWW-Authenticate: Bearer");
	}
	for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
		snprintf(headers, sizeof headers, "%s" AUTH, foreign[i]);
		assert_int_equal(http("POST", "/api/rollback", headers, "{\"live\":2}"), 403);
	}
	assert_int_equal(http("POST", "/api/rollback", AUTH, ""), 400);
	assert_int_equal(http("POST", "/api/rollback", AUTH, "{\"live\":"), 400);
	assert_int_equal(http("POST", "/api/rollback", AUTH, "[2]"), 400);
	assert_int_equal(http("POST", "/api/rollback", AUTH, "{\"live\":1}"), 409); /* a page that is behind */
	assert_int_equal(http("POST", "/api/hold", AUTH, "{\"reason\":3}"), 400);
	assert_true(status_has("\"live\":2,\"previous\":1")); /* all of that moved nothing */

	assert_int_equal(http("POST", "/api/hold", AUTH, "{\"reason\":\"lunch\"}"), 200);
	has("\"hold\":true");
	WAIT_FOR(audited("\"what\":\"Hold\"") && audited("\"why\":\"lunch\"") && audited("\"result\":\"done\""));
	assert_int_equal(http("POST", "/api/release", AUTH, ""), 200);
	has("\"hold\":false");
	assert_int_equal(http("POST", "/api/rollback", "Origin: http://127.0.0.1:9464\r\n" AUTH, "{\"live\":2}"), 200);
	WAIT_FOR(audited("\"what\":\"Rollback\"") && audited("\"detail\":\"version 2\""));
	has("\"live\":1");
	has("\"quarantined\":2");
	assert_int_equal(http("POST", "/api/rollback", AUTH, "{\"live\":2}"), 409); /* sent twice goes back once */
	assert_true(status_has("\"live\":1"));
	has("\"state\":\"quarantined\"");
	assert_int_equal(get("/api/history"), 200);
	has("\"kind\":\"switch\",\"version\":2");
	has("\"kind\":\"switch\",\"version\":1");
}

static void gone_before_the_answer(void **state)
{
	int fd;

	(void)state;
	assert_int_equal(fs_write_atomic(fixture_path("token"), TOKEN "\n", 28), 0);
	start(fixture_path("token"));
	peers_post(&peers, peers_serve_on);
	peers_post(&peers, peers_learn_on);
	submit("one", 1, 0);
	WAIT_FOR(status_has("\"live\":1,\"previous\":0"));
	fd = dial(0);
	say(fd, "POST /api/rollback HTTP/1.1\r\nHost: 127.0.0.1\r\n" AUTH "Content-Length: 10\r\n\r\n{\"live\":1}");
	close(fd);
	WAIT_FOR(status_has("\"live\":0"));
}

static int listen_in(void)
{
	int fd = dial(0);
	size_t n = 0;
	ssize_t k;

	say(fd, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n");
	while (n + 1 < sizeof answer && (k = read(fd, answer + n, sizeof answer - 1 - n)) > 0) {
		n += (size_t)k;
		answer[n] = '\0';
		if (strstr(answer, "503") || (strstr(answer, "event: status") && strstr(answer, "}\n\n")))
			break;
	}
	return fd;
}

static void listeners(void **state)
{
	int fd[WEB_LISTENERS], more;

	(void)state;
	start("");
	for (int i = 0; i < WEB_LISTENERS; i++) {
		fd[i] = listen_in();
		has("200 OK");
		has("text/event-stream");
		has("event: status\ndata: {\"now_ms\":");
	}
	more = listen_in();
	has("503");
	has("Retry-After");
	close(more);
	close(fd[3]); /* noticed when the next snapshot is sent */
	WAIT_FOR((more = listen_in(), strstr(answer, "200 OK") ? true : (close(more), false)));
	close(more);
	for (int i = 0; i < WEB_LISTENERS; i++)
		if (i != 3)
			close(fd[i]);
}

static void flood(void *arg)
{
	int *left = arg;
	char *big = calloc(1, 1 << 20);

	memset(big, 'x', (1 << 20) - 1);
	for (int i = 0; i < 16; i++) /* the kernel takes some of it; the loop does not turn between */
		web_events_send(d.web, "status", json_pack("[s]", big));
	free(big);
	__atomic_store_n(left, d.web->n_listeners, __ATOMIC_RELEASE);
}

static void slow_ones_go(void **state)
{
	int fd, left = -1;
	ssize_t k = 1;

	(void)state;
	start("");
	fd = listen_in();
	has("200 OK");
	assert_int_equal(loop_post(d.loop, flood, &left), 0);
	WAIT_FOR(__atomic_load_n(&left, __ATOMIC_ACQUIRE) >= 0);
	assert_int_equal(left, 0);
	while (k > 0) /* and the connection has ended */
		k = read(fd, answer, sizeof answer);
	assert_true(k == 0 || errno == ECONNRESET);
	close(fd);
	assert_int_equal(get("/health"), 200);
}

/* Descriptors used up by whatever it is: whoever comes next waits until there is room, and the control socket answers. */
static void a_crowd_leaves_room(void **state)
{
	struct timeval short_patience = {.tv_usec = 300000}, patience = {.tv_sec = 10};
	struct errtext e = {.text = ""};
	int used[WEB_MOST_FD], fd;
	json_t *out = NULL;
	char c;

	(void)state;
	start("");
	for (int i = 0; i < WEB_MOST_FD; i++)
		assert_true((used[i] = dup(2)) >= 0);
	assert_int_equal(get("/health"), 200); /* the one who meets the crowd is still taken */
	fd = dial(0);
	say(fd, "GET /health HTTP/1.0\r\n\r\n");
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &short_patience, sizeof short_patience);
	assert_true(read(fd, &c, 1) < 0);
	if (rpc_call_sync(fixture_path("daemon/control.sock"), "io.redraft.Daemon.Hold", NULL, 5000, &out, &e))
		fail_msg("%s", e.text);
	json_decref(out);
	for (int i = 0; i < WEB_MOST_FD; i++)
		close(used[i]);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	assert_int_equal(read(fd, &c, 1), 1); /* a tick later */
	close(fd);
}

#define T(test) cmocka_unit_test_setup_teardown(test, whole_setup, whole_teardown)
int main(void)
{
	const struct CMUnitTest tests[] = {T(pages), T(names), T(refuses_to_start), T(nothing_without_a_token), T(changes), T(gone_before_the_answer),
					   T(listeners), T(slow_ones_go), T(a_crowd_leaves_room)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
