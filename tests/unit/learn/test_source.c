/* The Kafka consumer against librdkafka's mock broker: the first record is read however long this thread is kept from running; what troubles
 * it is told until a read succeeds again, and no longer; so is what the brokers have against the topic.
 */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>
#include "daemon/base/clock.h"
#include "learn/source.h"

/* Ours is found before the library's: this thread loses the processor here. */
static bool slow;

rd_kafka_queue_t *rd_kafka_queue_get_partition(rd_kafka_t *rk, const char *topic, int32_t partition)
{
	rd_kafka_queue_t *(*of_library)(rd_kafka_t *, const char *, int32_t);
	void *found = dlsym(RTLD_NEXT, "rd_kafka_queue_get_partition");
	memcpy(&of_library, &found, sizeof found);
	if (slow)
		(void)nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
	return of_library(rk, topic, partition);
}

static rd_kafka_t *producer(void)
{
	char why[200];
	rd_kafka_t *p = rd_kafka_new(RD_KAFKA_PRODUCER, rd_kafka_conf_new(), why, sizeof why);
	assert_non_null(p);
	return p;
}

static void produce(const char *brokers)
{
	char why[200];
	rd_kafka_conf_t *c = rd_kafka_conf_new();
	assert_int_equal(rd_kafka_conf_set(c, "bootstrap.servers", brokers, why, sizeof why), RD_KAFKA_CONF_OK);
	rd_kafka_t *p = rd_kafka_new(RD_KAFKA_PRODUCER, c, why, sizeof why);
	assert_non_null(p);
	assert_int_equal(rd_kafka_producev(p, RD_KAFKA_V_TOPIC("traces"), RD_KAFKA_V_PARTITION(0), RD_KAFKA_V_VALUE("x", 1), RD_KAFKA_V_END), 0);
	assert_int_equal(rd_kafka_flush(p, 20000), 0);
	rd_kafka_destroy(p);
}

/* Reads at *at, and says whether there was something. */
static bool read_one(struct source *s, int64_t *at)
{
	struct source_msg m;
	int r = s->partitions(s) > 0 ? s->read(s, 0, *at, at, 1, 50, &m) : SOURCE_E_NONE;
	assert_true(r == 0 || r == SOURCE_E_NONE);
	if (r)
		return false;
	*at = m.offset + 1;
	s->release(s, &m);
	return true;
}

static void no_record_is_passed_over(void **state)
{
	rd_kafka_t *p = producer();
	rd_kafka_mock_cluster_t *mock = rd_kafka_mock_cluster_new(p, 1);
	struct source_options o = {.brokers = rd_kafka_mock_cluster_bootstraps(mock), .topic = "traces"};
	struct source *s = NULL;
	struct errtext e = {""};
	int64_t at = 0;
	(void)state;
	assert_int_equal(rd_kafka_mock_topic_create(mock, "traces", 1, 1), 0);
	produce(o.brokers);
	assert_int_equal(source_kafka_new(&o, &s, &e), 0);
	slow = true;
	uint64_t until = clock_us() + 30000000;
	while (!read_one(s, &at)) {
		produce(o.brokers); /* what is behind it would be read, where it was passed over */
		assert_true(clock_us() < until);
	}
	slow = false;
	assert_int_equal(at, 1);
	s->free(s);
	rd_kafka_mock_cluster_destroy(mock);
	rd_kafka_destroy(p);
}

static void a_broker_comes_back(void **state)
{
	rd_kafka_t *p = producer();
	rd_kafka_mock_cluster_t *mock = rd_kafka_mock_cluster_new(p, 1);
	struct source_options o = {.brokers = rd_kafka_mock_cluster_bootstraps(mock), .topic = "traces", .extra = "reconnect.backoff.max.ms=200"};
	struct source *s = NULL;
	struct errtext e = {""};
	int64_t at = 0;
	(void)state;
	assert_int_equal(rd_kafka_mock_topic_create(mock, "traces", 1, 1), 0);
	produce(o.brokers);
	assert_int_equal(source_kafka_new(&o, &s, &e), 0);
	uint64_t until = clock_us() + 30000000;
	while (!read_one(s, &at))
		assert_true(clock_us() < until);
	assert_string_equal(s->trouble(s), "");
	assert_int_equal(rd_kafka_mock_broker_set_down(mock, 1), 0);
	until = clock_us() + 30000000;
	while (!*s->trouble(s)) {
		assert_false(read_one(s, &at));
		assert_true(clock_us() < until);
	}
	assert_int_equal(rd_kafka_mock_broker_set_up(mock, 1), 0);
	produce(o.brokers);
	until = clock_us() + 30000000;
	while (!read_one(s, &at))
		assert_true(clock_us() < until);
	assert_string_equal(s->trouble(s), ""); /* not in a minute, when it would ask for the topic's partitions again */
	s->free(s);
	rd_kafka_mock_cluster_destroy(mock);
	rd_kafka_destroy(p);
}

/* The brokers answer, and what they say of the topic is no: that is told, for as long as they say it. */
static void what_is_said_of_the_topic_is_told(void **state)
{
	rd_kafka_t *p = producer();
	rd_kafka_mock_cluster_t *mock = rd_kafka_mock_cluster_new(p, 1);
	struct source_options o = {.brokers = rd_kafka_mock_cluster_bootstraps(mock), .topic = "traces"};
	struct source *s = NULL;
	struct errtext e = {""};
	int64_t at = 0;
	(void)state;
	assert_int_equal(rd_kafka_mock_topic_create(mock, "traces", 1, 1), 0);
	rd_kafka_mock_topic_set_error(mock, "traces", RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED);
	assert_int_equal(source_kafka_new(&o, &s, &e), 0);
	uint64_t until = clock_us() + 30000000;
	while (!strstr(s->trouble(s), "authorization")) {
		assert_false(read_one(s, &at));
		assert_true(clock_us() < until);
	}
	rd_kafka_mock_topic_set_error(mock, "traces", RD_KAFKA_RESP_ERR_NO_ERROR);
	produce(o.brokers);
	until = clock_us() + 30000000;
	while (!read_one(s, &at))
		assert_true(clock_us() < until);
	assert_string_equal(s->trouble(s), "");
	s->free(s);
	rd_kafka_mock_cluster_destroy(mock);
	rd_kafka_destroy(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(no_record_is_passed_over), cmocka_unit_test(a_broker_comes_back), cmocka_unit_test(what_is_said_of_the_topic_is_told)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
