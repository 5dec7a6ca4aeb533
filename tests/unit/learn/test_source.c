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

/* A mock broker with a topic of one partition, and a consumer of it that stands at `at`. */
struct world {
	rd_kafka_t *p;
	rd_kafka_mock_cluster_t *mock;
	struct source *s;
	const char *brokers;
	int64_t at;
};

static void begin(struct world *w)
{
	char why[200];
	*w = (struct world){.p = rd_kafka_new(RD_KAFKA_PRODUCER, rd_kafka_conf_new(), why, sizeof why)};
	assert_non_null(w->p);
	w->mock = rd_kafka_mock_cluster_new(w->p, 1);
	w->brokers = rd_kafka_mock_cluster_bootstraps(w->mock);
	assert_int_equal(rd_kafka_mock_topic_create(w->mock, "traces", 1, 1), 0);
}

static void consume(struct world *w, const char *extra)
{
	struct source_options o = {.brokers = w->brokers, .topic = "traces", .extra = extra};
	struct errtext e = {""};
	assert_int_equal(source_kafka_new(&o, &w->s, &e), 0);
}

static void end(struct world *w)
{
	w->s->free(w->s);
	rd_kafka_mock_cluster_destroy(w->mock);
	rd_kafka_destroy(w->p);
}

/* Reads at w->at, and says whether there was something. */
static bool read_one(struct world *w)
{
	struct source_msg m;
	int r = w->s->partitions(w->s) > 0 ? w->s->read(w->s, 0, w->at, &w->at, 1, 50, &m) : SOURCE_E_NONE;
	assert_true(r == 0 || r == SOURCE_E_NONE);
	if (r)
		return false;
	w->at = m.offset + 1;
	w->s->release(w->s, &m);
	return true;
}

/* Until there is something; then nothing troubles it any more. */
static void read_at_last(struct world *w)
{
	uint64_t until = clock_us() + 30000000;
	while (!read_one(w))
		assert_true(clock_us() < until);
	assert_string_equal(w->s->trouble(w->s), "");
}

/* Until it says so; meanwhile there is nothing. */
static void troubled_at_last(struct world *w, const char *word)
{
	uint64_t until = clock_us() + 30000000;
	while (!*w->s->trouble(w->s) || !strstr(w->s->trouble(w->s), word)) {
		assert_false(read_one(w));
		assert_true(clock_us() < until);
	}
}

static void no_record_is_passed_over(void **state)
{
	struct world w;
	(void)state;
	begin(&w);
	produce(w.brokers);
	consume(&w, NULL);
	slow = true;
	uint64_t until = clock_us() + 30000000;
	while (!read_one(&w)) {
		produce(w.brokers); /* what is behind it would be read, where it was passed over */
		assert_true(clock_us() < until);
	}
	slow = false;
	assert_int_equal(w.at, 1);
	end(&w);
}

static void a_broker_comes_back(void **state)
{
	struct world w;
	(void)state;
	begin(&w);
	produce(w.brokers);
	consume(&w, "reconnect.backoff.max.ms=200");
	read_at_last(&w);
	assert_int_equal(rd_kafka_mock_broker_set_down(w.mock, 1), 0);
	troubled_at_last(&w, "");
	assert_int_equal(rd_kafka_mock_broker_set_up(w.mock, 1), 0);
	produce(w.brokers);
	read_at_last(&w); /* not in a minute, when it would ask for the topic's partitions again */
	end(&w);
}

/* The brokers answer, and what they say of the topic is no: that is told, for as long as they say it. */
static void what_is_said_of_the_topic_is_told(void **state)
{
	struct world w;
	(void)state;
	begin(&w);
	rd_kafka_mock_topic_set_error(w.mock, "traces", RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED);
	consume(&w, NULL);
	troubled_at_last(&w, "authorization");
	rd_kafka_mock_topic_set_error(w.mock, "traces", RD_KAFKA_RESP_ERR_NO_ERROR);
	produce(w.brokers);
	read_at_last(&w);
	end(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(no_record_is_passed_over), cmocka_unit_test(a_broker_comes_back), cmocka_unit_test(what_is_said_of_the_topic_is_told)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
