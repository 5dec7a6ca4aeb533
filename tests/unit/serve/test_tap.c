/* What this proves, against librdkafka's mock cluster over TCP: what the engine pushed is what
 * is read back, bit for bit, with key and headers as record.md says; a long request
 * comes as several records that join by position, with every round in the record of its row;
 * requests interleave; round records go out even for requests that are not traced.
 * (What does not arrive: test_tap_loss.c.) */
#include "tests/unit/serve/tap_kit.h"

static const char *header(const rd_kafka_message_t *m, const char *name)
{
	rd_kafka_headers_t *h;
	const void *v;
	size_t n;

	if (rd_kafka_message_headers(m, &h) || rd_kafka_header_get_last(h, name, &v, &n))
		return "";
	return v; /* librdkafka terminates header values */
}

static void test_one_request(void **state)
{
	(void)state;
	struct topics tp = fresh();
	struct tap *t = open_tap(&tp, 64, brokers, 1 << 22, 1 << 23, "linger.ms=5");
	struct trace_record r[4];
	rd_kafka_message_t *m[MAX_MESSAGES];
	struct round_record round;
	struct client c;
	char id[64];

	begin(t, &c, 1, 64, true);
	assert_true(tap_wants_rows(t, c.handle));
	rows(t, &c, 40, true);
	for (int i = 0; i < 8; i++)
		decode(t, &c, i % 4);
	end(t, &c);
	struct tap_stats s = settle(t, 1, 1);
	assert_true(s.records == 1 && s.delivered == 1 && s.rounds == 1 && s.requests_traced == 1 && s.bytes > 20000);
	assert_true(s.dropped_ring + s.dropped_queue + s.dropped_broker + s.dropped_size == 0);
	int n = read_all(tp.traces, m, 1);
	assert_int_equal(n, 1);
	assert_string_equal(header(m[0], "ce_specversion"), "1.0");
	assert_string_equal(header(m[0], "ce_type"), RECORD_CE_TYPE);
	assert_string_equal(header(m[0], "content-type"), "application/vnd.safetensors");
	assert_string_equal(header(m[0], "schema"), "1");
	assert_string_equal(header(m[0], "target_fp"), "fp");
	assert_string_equal(header(m[0], "ce_id"), "t-0");
	assert_int_equal(strlen(header(m[0], "ce_time")), 24);
	assert_int_equal(records_of(m, n, 1, 64, r), 1);
	assert_int_equal(strncmp(header(m[0], "ce_source"), "/redraft/serve/", 15), 0);
	assert_string_equal(header(m[0], "ce_source") + 15, r[0].meta.producer);
	check_joined(r, 1, &c, c.pos);
	(void)snprintf(id, sizeof id, "%s", r[0].meta.producer);
	done(r, 1, m, n);
	n = read_all(tp.rounds, m, 1);
	assert_int_equal(n, 1);
	assert_string_equal(header(m[0], "ce_type"), ROUND_CE_TYPE);
	assert_string_equal(header(m[0], "content-type"), "application/json");
	assert_int_equal(round_decode(m[0]->payload, m[0]->len, &round, NULL), 0);
	assert_string_equal(round.request, "request-1");
	assert_string_equal(round.producer, id);
	assert_string_equal(round.target_fp, "fp");
	assert_int_equal(round.dropped_records, 0);
	done(NULL, 0, m, n);
	tap_free(t);
}

static void test_long_request(void **state)
{
	(void)state;
	struct topics tp = fresh();
	struct tap *t = open_tap(&tp, 576, brokers, 16 << 20, 16 << 20, "linger.ms=5");
	struct trace_record r[8];
	rd_kafka_message_t *m[MAX_MESSAGES];
	struct client c;

	begin(t, &c, 2, 576, true);
	rows(t, &c, 301, true);
	for (int i = 0; i < 150; i++)
		decode(t, &c, i % 4);
	end(t, &c);
	struct tap_stats s = settle(t, 3, 1);
	assert_true(s.records >= 3 && s.delivered == s.records && s.dropped_ring == 0);
	int n = read_all(tp.traces, m, (int)s.records), k = records_of(m, n, 2, 576, r);
	assert_int_equal(k, (int)s.records);
	check_joined(r, k, &c, c.pos);
	assert_true(r[0].T > 180); /* records are filled, not cut early */
	done(r, k, m, n);
	tap_free(t);
}

static void test_interleaved(void **state)
{
	(void)state;
	struct topics tp = fresh();
	struct tap *t = open_tap(&tp, 64, brokers, 8 << 20, 8 << 20, "linger.ms=5");
	struct trace_record r[4];
	rd_kafka_message_t *m[MAX_MESSAGES];
	struct client c[16];

	for (int wave = 0; wave < 2; wave++) { /* slots are reused */
		for (int q = 0; q < 8; q++) {
			begin(t, &c[wave * 8 + q], wave * 8 + q, 64, true);
			rows(t, &c[wave * 8 + q], 10 + q, true);
		}
		for (int i = 0; i < 12; i++) {
			for (int q = 0; q < 8; q++)
				decode(t, &c[wave * 8 + q], (i + q) % 4);
		}
		for (int q = 0; q < 8; q++)
			end(t, &c[wave * 8 + q]);
	}
	struct tap_stats s = settle(t, 16, 16);
	assert_true(s.records == 16 && s.delivered == 16 && s.rounds == 16);
	int n = read_all(tp.traces, m, 16);
	uint64_t seen = 0;
	for (int q = 0; q < 16; q++) {
		assert_int_equal(records_of(m, n, q, 64, r), 1);
		check_joined(r, 1, &c[q], c[q].pos);
		seen |= 1ull << r[0].meta.seq;
		record_done(&r[0]);
	}
	assert_int_equal(seen, 0xffff); /* sequence numbers without gap or repeat */
	done(NULL, 0, m, n);
	tap_free(t);
}

static void test_not_traced(void **state)
{
	(void)state;
	struct topics tp = fresh();
	struct tap *t = open_tap(&tp, 64, brokers, 1 << 20, 1 << 22, "linger.ms=5");
	rd_kafka_message_t *m[MAX_MESSAGES];
	struct client c;

	begin(t, &c, 3, 64, false); /* opted out */
	assert_int_equal(c.handle, -1);
	assert_false(tap_wants_rows(t, c.handle));
	rows(t, &c, 10, true);
	decode(t, &c, 2);
	end(t, &c);
	tap_set_enabled(t, false);
	begin(t, &c, 4, 64, true);
	assert_int_equal(c.handle, -1);
	end(t, &c);
	tap_set_enabled(t, true);
	begin(t, &c, 5, 64, true);
	rows(t, &c, 10, true);
	tap_set_enabled(t, false);
	assert_false(tap_wants_rows(t, c.handle)); /* switched off midway: the rest is dropped */
	tap_set_enabled(t, true);
	assert_false(tap_wants_rows(t, c.handle));
	rows(t, &c, 10, true);
	end(t, &c);
	struct tap_stats s = settle(t, 0, 3);
	assert_true(s.records == 0 && s.rounds == 3 && s.requests_skipped == 2);
	int n = read_all(tp.rounds, m, 3);
	assert_int_equal(n, 3);
	done(NULL, 0, m, n);
	assert_int_equal(read_all(tp.traces, m, 0), 0);
	tap_free(t);
}

static void test_sampling(void **state)
{
	(void)state;
	struct topics tp = fresh();
	for (int share = 0; share <= 4; share++) {
		struct tap_options o = {.brokers = brokers,
					.traces_topic = tp.traces,
					.rounds_topic = tp.rounds,
					.H_t = 64,
					.topk = TOPK,
					.sample = share / 4.0,
					.ring_bytes = 1 << 20,
					.queue_bytes = 1 << 20};
		struct tap *t;
		int in = 0;
		assert_int_equal(tap_new(&o, &t, NULL), 0);
		for (int q = 0; q < 1000; q++) {
			struct client c, again;
			begin(t, &c, q, 64, true);
			tap_end(t, c.handle, NULL, 0);
			begin(t, &again, q, 64, true); /* a conversation is in or out as a whole */
			tap_end(t, again.handle, NULL, 0);
			assert_int_equal(c.handle < 0, again.handle < 0);
			in += c.handle >= 0;
		}
		assert_true(in >= 250 * share - 60 && in <= 250 * share + 60);
		assert_true((share > 0 || in == 0) && (share < 4 || in == 1000));
		tap_free(t);
	}
}

static void test_options(void **state)
{
	(void)state;
	struct tap_options o = {.H_t = 64, .topk = TOPK, .sample = 1, .ring_bytes = 1 << 20, .queue_bytes = 1 << 20};
	struct errtext e = {""};
	struct tap_stats s;
	struct client c;
	struct tap *t;

	assert_int_equal(tap_new(&o, &t, &e), 0); /* no broker: only counts */
	begin(t, &c, 1, 64, true);
	assert_int_equal(c.handle, -1);
	end(t, &c);
	s = settle(t, 0, 1);
	assert_true(s.rounds == 1 && s.requests_skipped == 1 && s.records == 0);
	tap_free(t);
	o.brokers = "127.0.0.1:1";
	o.extra_conf = "no.such.key=1";
	assert_int_equal(tap_new(&o, &t, &e), -EINVAL);
	assert_non_null(strstr(e.text, "no.such.key"));
	o.extra_conf = "nonsense";
	assert_int_equal(tap_new(&o, &t, &e), -EINVAL);
	assert_non_null(strstr(e.text, "nonsense"));
	o.extra_conf = NULL;
	o.topk = RECORD_MAX_TOPK + 1;
	assert_int_equal(tap_new(&o, &t, &e), -EINVAL);
	o.topk = TOPK;
	o.sample = NAN;
	assert_int_equal(tap_new(&o, &t, &e), -EINVAL);
	assert_null(tap_free(NULL));
}

/* Printed, not judged: what one push costs the engine. */
static void test_timing(void **state)
{
	(void)state;
	enum { N = 500 };
	struct topics tp = fresh();
	struct tap *t = open_tap(&tp, 576, brokers, 64 << 20, 8 << 20, NULL);
	uint16_t *f = calloc(8 * 3 * 576, 2);
	float lp[8 * TOPK] = {0};
	uint32_t ids[8] = {0}, pos[8], tk[8 * TOPK], us[N];
	struct client c;

	for (int i = 0; i < 8 * 3 * 576; i++)
		f[i] = bits(feature(1, 1, i));
	for (uint32_t i = 0; i < 8 * TOPK; i++)
		tk[i] = i % TOPK;
	begin(t, &c, 11, 576, true);
	for (uint32_t i = 0; i < N; i++) {
		for (uint32_t j = 0; j < 8; j++)
			pos[j] = i * 8 + j;
		struct tap_row_group g = {.n = 8, .ids = ids, .pos = pos, .features = f, .topk_ids = tk, .topk_logprob = lp};
		uint64_t t0 = clock_us();
		tap_rows(t, c.handle, &g);
		us[i] = (uint32_t)(clock_us() - t0);
		(void)usleep(200);
	}
	for (int i = 1; i < N; i++) { /* insertion sort will do */
		uint32_t v = us[i];
		int j = i;
		for (; j > 0 && us[j - 1] > v; j--)
			us[j] = us[j - 1];
		us[j] = v;
	}
	printf("push of 8 rows, H 576: median %u us, p95 %u us, max %u us\n", us[N / 2], us[N * 95 / 100], us[N - 1]);
	tap_end(t, c.handle, NULL, 0);
	tap_free(t);
	free(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_request),
		cmocka_unit_test(test_long_request),
		cmocka_unit_test(test_interleaved),
		cmocka_unit_test(test_not_traced),
		cmocka_unit_test(test_sampling),
		cmocka_unit_test(test_options),
		cmocka_unit_test(test_timing),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
