/* What does not arrive, against librdkafka's mock cluster over TCP: a full ring, a full queue, a lost broker, a lost record and a dead
 * producer drop the rest of the request they hit, count it, block nobody and end by themselves. (What arrives: test_tap.c.) */
#include "tests/unit/serve/tap_kit.h"

static void test_ring_full(void **state)
{
	(void)state;
	struct topics tp = fresh();
	struct tap *t = open_tap(&tp, 576, brokers, 64 << 10, 8 << 20, "linger.ms=5");
	struct trace_record r[4];
	rd_kafka_message_t *m[MAX_MESSAGES];
	struct round_record round;
	struct client c;

	begin(t, &c, 6, 576, true);
	rows(t, &c, 4, true);
	rows(t, &c, 32, true); /* 147 KB can never fit */
	assert_false(tap_wants_rows(t, c.handle));
	rows(t, &c, 4, true); /* the rest goes with it */
	decode(t, &c, 1);
	end(t, &c);
	assert_int_equal(settle(t, 0, 1).rounds, 1); /* the thread has caught up when the round record is out */
	begin(t, &c, 7, 576, true);
	assert_true(tap_wants_rows(t, c.handle));
	rows(t, &c, 4, true);
	end(t, &c);
	struct tap_stats s = settle(t, 1, 2);
	assert_true(s.dropped_ring == 1 && s.records == 1 && s.rounds == 2);
	int n = read_all(tp.traces, m, 1);
	assert_int_equal(n, 1);
	assert_int_equal(records_of(m, n, 7, 576, r), 1);
	check_joined(r, 1, &c, 4);
	done(r, 1, m, n);
	n = read_all(tp.rounds, m, 2);
	int drops = 0;
	for (int i = 0; i < n; i++) {
		assert_int_equal(round_decode(m[i]->payload, m[i]->len, &round, NULL), 0);
		assert_int_equal(round.dropped_records, strcmp(round.request, "request-6") == 0);
		drops += (int)round.dropped_records;
	}
	assert_int_equal(drops, 1);
	done(NULL, 0, m, n);
	tap_free(t);
}

static void test_no_broker(void **state)
{
	(void)state;
	struct topics tp = fresh();
	struct tap *t = open_tap(&tp, 576, "127.0.0.1:1", 32 << 20, 2 << 20, NULL);
	struct client c;
	uint64_t longest = 0;
	struct tap_stats s;

	for (int q = 0; q < 12; q++) { /* 12 x 0.7 MB against a queue of 2 MB */
		begin(t, &c, q, 576, true);
		for (int i = 0; i < 5; i++) {
			uint64_t t0 = clock_us();
			rows(t, &c, 32, true);
			longest = clock_us() - t0 > longest ? clock_us() - t0 : longest;
		}
		end(t, &c);
	}
	for (int i = 0; i < 3000; i++) {
		tap_stats(t, &s);
		if (s.records + s.dropped_queue >= 12 && s.rounds > 0)
			break;
		(void)usleep(10000);
	}
	assert_true(s.records >= 1 && s.records <= 3 && s.dropped_queue >= 12 - s.records && s.delivered == 0);
	printf("longest push of 32 rows without a broker, data made included: %llu us\n", (unsigned long long)longest);
	uint64_t t0 = clock_us();
	tap_free(t);
	assert_true(clock_us() - t0 < 12000000); /* flush gives up after 2 s; the messages themselves would last for 15 */
}

static void test_broker_comes_back(void **state)
{
	(void)state;
	struct topics tp = fresh();
	struct tap *t = open_tap(&tp, 64, brokers, 4 << 20, 4 << 20, "linger.ms=5,message.timeout.ms=4000,reconnect.backoff.max.ms=200");
	struct trace_record r[4];
	rd_kafka_message_t *m[MAX_MESSAGES];
	struct client c;
	struct tap_stats s;

	begin(t, &c, 8, 64, true);
	rows(t, &c, 10, true);
	end(t, &c);
	assert_int_equal(settle(t, 1, 1).delivered, 1);
	assert_int_equal(rd_kafka_mock_broker_set_down(cluster, 1), 0);
	begin(t, &c, 9, 64, true);
	rows(t, &c, 10, true);
	end(t, &c);
	for (int i = 0; i < 1500; i++) {
		tap_stats(t, &s);
		if (s.dropped_broker >= 2)
			break;
		(void)usleep(20000);
	}
	/* its record and its round record, after the timeout; on a busy machine the first request's round record too */
	assert_true(s.dropped_broker == 2 || s.dropped_broker == 3);
	assert_int_equal(rd_kafka_mock_broker_set_up(cluster, 1), 0);
	int tries = 0;
	do { /* it recovers by itself */
		begin(t, &c, 100 + tries, 64, true);
		rows(t, &c, 10, true);
		end(t, &c);
		for (int i = 0; i < 100; i++) {
			tap_stats(t, &s);
			if (s.delivered > 1)
				break;
			(void)usleep(20000);
		}
	} while (s.delivered < 2 && ++tries < 15);
	assert_true(s.delivered >= 2);
	int n = read_all(tp.traces, m, 2);
	assert_int_equal(records_of(m, n, 8, 64, r), 1);
	record_done(&r[0]);
	assert_int_equal(records_of(m, n, 9, 64, r), 0);
	done(NULL, 0, m, n);
	tap_free(t);
}

/* One record too many for the broker, then the engine's word: stop copying. */
static void test_lost_record_stops_request(void **state)
{
	(void)state;
	struct topics tp = fresh();
	struct tap *t =
		open_tap(&tp, 576, brokers, 8 << 20, 8 << 20, "linger.ms=0,message.timeout.ms=500,enable.idempotence=false,retries=0");
	struct client c;
	struct tap_stats s = {.records = 0};

	rd_kafka_mock_push_request_errors(cluster, 0 /* Produce */, 1, RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE);
	begin(t, &c, 10, 576, true);
	for (int i = 0; i < 20; i++)
		rows(t, &c, 32, true);
	for (int i = 0; i < 3000 && tap_wants_rows(t, c.handle); i++)
		(void)usleep(10000);
	assert_false(tap_wants_rows(t, c.handle));
	tap_stats(t, &s);
	uint64_t before = s.records;
	rows(t, &c, 300, true);
	end(t, &c);
	s = settle(t, 0, 1);
	assert_true(s.dropped_broker >= 1 && s.records == before); /* nothing of it after that, not even `last` */
	tap_free(t);
	rd_kafka_mock_clear_request_errors(cluster, 0);
}

/* An idempotent producer that died of a fatal error is replaced; the engine notices nothing. */
static void test_fatal_error(void **state)
{
	(void)state;
	struct topics tp = fresh();
	struct client c;
	struct tap_stats s;
	int tries = 0;

	rd_kafka_mock_push_request_errors(cluster, 22 /* InitProducerId */, 1, RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED);
	struct tap *t = open_tap(&tp, 64, brokers, 1 << 20, 1 << 20, "linger.ms=5");
	do {
		begin(t, &c, 200 + tries, 64, true);
		rows(t, &c, 5, true);
		end(t, &c);
		(void)usleep(200000);
		tap_stats(t, &s);
	} while (s.delivered == 0 && ++tries < 50);
	assert_true(s.dropped_broker > 0); /* what the dead one had, or was offered */
	assert_true(s.delivered > 0);
	tap_free(t);
	rd_kafka_mock_clear_request_errors(cluster, 22);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ring_full),
		cmocka_unit_test(test_no_broker),
		cmocka_unit_test(test_broker_comes_back),
		cmocka_unit_test(test_lost_record_stops_request),
		cmocka_unit_test(test_fatal_error),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
