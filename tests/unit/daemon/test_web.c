/* The scraper's page: metrics and health answer, other paths say what there is, a
 * port that is taken and an address that makes no sense are named.
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>
#include "daemon/base/loop.h"
#include "daemon/base/metrics.h"
#include "daemon/watch.h"
#include "daemon/web.h"

static void *run(void *arg)
{
	(void)loop_run(arg);
	return NULL;
}

static void stop(void *arg)
{
	loop_stop(arg);
}

static void get(int port, const char *path, char *ret, size_t size)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	char q[128];
	size_t n = 0;
	ssize_t k;

	assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
	snprintf(q, sizeof q, "GET %s HTTP/1.0\r\n\r\n", path);
	assert_int_equal(write(fd, q, strlen(q)), (ssize_t)strlen(q));
	while (n + 1 < size && (k = read(fd, ret + n, size - 1 - n)) > 0)
		n += (size_t)k;
	ret[n] = '\0';
	close(fd);
}

static void pages(void **state)
{
	struct metrics *m = metrics_new();
	struct watch *watch = NULL;
	struct web *w = NULL, *again = NULL;
	struct loop *l;
	struct errtext e = {.text = ""};
	char text[16384], taken[64];
	pthread_t t;

	(void)state;
	assert_int_equal(loop_new(&l), 0);
	assert_int_equal(watch_new(&(struct watch_options){.brokers = "", .topic = "", .conf = ""}, &watch, &e), 0);
	metric_add(metrics_counter(m, "x_total", NULL, "X."), 3);
	if (web_new(l, "127.0.0.1:0", m, watch, &w, &e))
		fail_msg("%s", e.text);
	snprintf(taken, sizeof taken, "127.0.0.1:%d", web_port(w));
	assert_int_equal(web_new(l, taken, m, watch, &again, &e), -EADDRINUSE);
	assert_non_null(strstr(e.text, taken));
	assert_int_equal(web_new(l, "nonsense", m, watch, &again, &e), -EINVAL);
	assert_int_equal(web_new(l, "127.0.0.1:x", m, watch, &again, &e), -EINVAL);
	assert_int_equal(web_new(l, "", m, watch, &again, &e), 0);
	assert_null(again);
	pthread_create(&t, NULL, run, l);
	get(web_port(w), "/metrics", text, sizeof text);
	assert_non_null(strstr(text, "200 OK"));
	assert_non_null(strstr(text, "\nx_total 3\n"));
	assert_non_null(strstr(text, "redraft_bad_round_records_total 0\n"));
	get(web_port(w), "/health", text, sizeof text);
	assert_non_null(strstr(text, "{\"status\":\"ok\"}"));
	get(web_port(w), "/", text, sizeof text);
	assert_non_null(strstr(text, "404"));
	assert_int_equal(loop_post(l, stop, l), 0);
	pthread_join(t, NULL);
	web_free(w);
	watch_free(watch);
	loop_free(l);
	metrics_free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(pages)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
