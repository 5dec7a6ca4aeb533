/* The audit log's second copy: lines that the broker refuses are sent again, in their order, each taken once; what finds no
 * room to wait is counted and said; a broker that never comes costs nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>
#include "daemon/base/buf.h"
#include "daemon/base/clock.h"
#include "daemon/base/metrics.h"
#include "daemon/watch_audit.h"

enum { PRODUCE = 0, WAIT_US = 60000000 };

static double shown(struct metrics *m, const char *series)
{
	struct buf b = BUF_INIT(1 << 16);
	const char *at;
	double v = -1;

	assert_int_equal(metrics_print(m, &b), 0);
	assert_int_equal(buf_append(&b, "", 1), 0);
	at = strstr((char *)b.data, series);
	if (at)
		v = strtod(at + strlen(series), NULL);
	buf_done(&b);
	return v;
}

static void send_line(struct watch_audit *a, int i)
{
	char line[32];

	watch_audit_send(a, line, (size_t)snprintf(line, sizeof line, "line %d", i));
}

/* Ticks until the series is at least that. */
static void until(struct watch_audit *a, struct metrics *m, const char *series, double least)
{
	for (uint64_t end = clock_us() + WAIT_US; shown(m, series) < least; usleep(20000)) {
		watch_audit_tick(a);
		if (clock_us() > end)
			fail_msg("%s is %g, not %g", series, shown(m, series), least);
	}
}

static void what_is_refused_goes_again_in_its_order(void **state)
{
	enum { LINES = 40 };
	rd_kafka_conf_t *c = rd_kafka_conf_new();
	struct metrics *m = metrics_new();
	struct watch_audit *a = NULL;
	struct errtext e = {.text = ""};
	char why[128], text[256];
	bool refused = false, again = false;
	int next = 0;

	(void)state;
	rd_kafka_conf_set(c, "auto.offset.reset", "earliest", why, sizeof why);
	rd_kafka_conf_set(c, "group.id", "reader", why, sizeof why);
	rd_kafka_t *reader = rd_kafka_new(RD_KAFKA_CONSUMER, c, why, sizeof why);
	assert_non_null(reader);
	rd_kafka_mock_cluster_t *mock = rd_kafka_mock_cluster_new(reader, 1);
	rd_kafka_mock_topic_create(mock, "audit", 1, 1);
	rd_kafka_mock_push_request_errors(mock, PRODUCE, 2, RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED, RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED);
	if (watch_audit_new(rd_kafka_mock_cluster_bootstraps(mock), "audit", "", m, &a, &e))
		fail_msg("%s", e.text);
	send_line(a, 0); /* refused, alone and once more; the others wait behind it */
	for (uint64_t end = clock_us() + WAIT_US; !refused; usleep(20000)) {
		watch_audit_tick(a);
		refused = watch_audit_said(a, text, sizeof text);
		assert_true(clock_us() < end);
	}
	assert_non_null(strstr(text, "does not take audit lines"));
	for (int i = 1; i < LINES; i++)
		send_line(a, i);
	assert_true(shown(m, "\nredraft_audit_topic_waiting ") == LINES);
	until(a, m, "\nredraft_audit_topic_total{result=\"sent\"} ", LINES);
	assert_true(shown(m, "\nredraft_audit_topic_waiting ") == 0);
	assert_true(shown(m, "\nredraft_audit_topic_total{result=\"failed\"} ") == 0);
	again = watch_audit_said(a, text, sizeof text);
	assert_true(again && strstr(text, "again"));
	assert_false(watch_audit_said(a, text, sizeof text));

	rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
	rd_kafka_brokers_add(reader, rd_kafka_mock_cluster_bootstraps(mock));
	rd_kafka_topic_partition_list_add(list, "audit", 0)->offset = RD_KAFKA_OFFSET_BEGINNING;
	assert_int_equal(rd_kafka_assign(reader, list), 0);
	rd_kafka_topic_partition_list_destroy(list);
	for (uint64_t end = clock_us() + WAIT_US; next < LINES && clock_us() < end;) {
		rd_kafka_message_t *msg = rd_kafka_consumer_poll(reader, 200);

		if (msg && !msg->err) {
			snprintf(text, sizeof text, "line %d", next++);
			assert_int_equal(msg->len, strlen(text));
			assert_memory_equal(msg->payload, text, msg->len);
		}
		if (msg)
			rd_kafka_message_destroy(msg);
	}
	assert_int_equal(next, LINES);
	watch_audit_free(a);
	metrics_free(m);
	rd_kafka_consumer_close(reader);
	rd_kafka_mock_cluster_destroy(mock);
	rd_kafka_destroy(reader);
}

static void nobody_comes(void **state)
{
	static char line[1 << 16];
	struct metrics *m = metrics_new();
	struct watch_audit *a = NULL;
	struct errtext e = {.text = ""};
	char text[256];

	(void)state;
	memset(line, 'x', sizeof line);
	assert_int_equal(watch_audit_new("", "t", "", m, &a, &e), 0);
	assert_null(a);
	watch_audit_send(a, "x", 1); /* as without one */
	watch_audit_tick(a);
	assert_false(watch_audit_said(a, text, sizeof text));
	assert_int_equal(watch_audit_new("127.0.0.1:1", "audit", "", m, &a, &e), 0);
	for (int i = 0; i < 70; i++) {
		watch_audit_send(a, line, sizeof line);
		watch_audit_tick(a);
	}
	assert_true(shown(m, "\nredraft_audit_topic_waiting ") == 64); /* 4 MiB */
	assert_true(shown(m, "\nredraft_audit_topic_total{result=\"failed\"} ") == 6);
	assert_true(watch_audit_said(a, text, sizeof text) && strstr(text, "in the file only"));
	watch_audit_free(a);
	metrics_free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_refused_goes_again_in_its_order), cmocka_unit_test(nobody_comes)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
