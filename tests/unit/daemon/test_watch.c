/* The watcher: means by hand, domains and versions bounded, labels clean, records read
 * from a broker that comes late, a broker that never comes; a leader that moves, retention that passes.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>
#include "daemon/base/clock.h"
#include "daemon/watch_inside.h"
#include "schemas/round.h"

static struct round_record record(const char *domain, uint32_t version, uint32_t proposed, uint32_t a0, uint32_t a1)
{
	struct round_record r = {.version = version, .k = 2, .rounds = proposed + 1, .proposed = {proposed, proposed},
				 .accepted = {a0, a1}, .tokens = 40, .last = true, .ttft_ms = 10};

	snprintf(r.domain, sizeof r.domain, "%s", domain);
	snprintf(r.target_fp, sizeof r.target_fp, "%064d", 1);
	snprintf(r.producer, sizeof r.producer, "p");
	snprintf(r.request, sizeof r.request, "r");
	snprintf(r.conversation, sizeof r.conversation, "c");
	return r;
}

static struct watch *off(void)
{
	struct watch *w = NULL;
	struct errtext e;

	assert_int_equal(watch_new(&(struct watch_options){.brokers = "", .topic = "t", .conf = ""}, &w, &e), 0);
	return w;
}

static double number(const json_t *o, const char *domain, const char *version, const char *key)
{
	const json_t *d = json_object_get(o, domain);

	d = version ? json_object_get(json_object_get(d, "versions"), version) : d;
	return json_is_number(json_object_get(d, key)) ? json_number_value(json_object_get(d, key)) : NAN;
}

static void means(void **state)
{
	struct watch *w = off();
	struct round_record a = record("tools", 3, 20, 10, 5), b = record("tools", 3, 10, 10, 10), none = record("tools", 4, 0, 0, 0);
	double ema = 1.75 + (1 - exp(-10 / 200.0)) * (3.0 - 1.75);
	json_t *j;

	(void)state;
	watch_take(w, &a); /* 1 + 15 / 20 */
	watch_take(w, &b); /* 1 + 20 / 10 */
	watch_take(w, &none);
	j = watch_domains(w);
	assert_true(fabs(number(j, "tools", "3", "recent") - (1 + 35 / 30.0)) < 1e-9);
	assert_true(fabs(number(j, "tools", "3", "accept_length") - ema) < 1e-9);
	assert_true(number(j, "tools", "3", "requests") == 2);
	assert_true(number(j, "tools", "3", "rounds") == 32);
	assert_true(isnan(number(j, "tools", "4", "accept_length"))); /* null, not a number made up */
	assert_true(number(j, "tools", NULL, "requests") == 3);
	json_decref(j);
	watch_free(w);
}

static void bounded(void **state)
{
	struct watch *w = off();
	struct buf b = BUF_INIT(0);
	json_t *j;

	(void)state;
	for (uint32_t i = 0; i < 40; i++) {
		char domain[32];
		struct round_record r;

		snprintf(domain, sizeof domain, "d%u", i);
		r = record(domain, 1, 10, 5, 0);
		watch_take(w, &r);
	}
	for (uint32_t v = 1; v <= 20; v++) {
		struct round_record r = record("d0", v, 10, 5, 0);

		watch_take(w, &r);
	}
	struct round_record odd = record("d1", 7, 10, 5, 0);
	snprintf(odd.domain, sizeof odd.domain, "a\"b\n{}");
	watch_take(w, &odd);
	watch_take(w, &odd);
	j = watch_domains(w);
	assert_int_equal(json_object_size(j), 17);
	assert_true(number(j, "other", NULL, "requests") == 26);
	assert_int_equal(json_object_size(json_object_get(json_object_get(j, "d0"), "versions")), 8);
	assert_true(number(j, "d0", "20", "requests") == 1);
	assert_true(isnan(number(j, "d0", "12", "requests")));
	json_decref(j);
	assert_int_equal(watch_print(w, &b), 0);
	assert_int_equal(buf_append(&b, "", 1), 0);
	assert_non_null(strstr((char *)b.data, "redraft_accept_length{domain=\"d0\",version=\"20\"} 1.5\n"));
	buf_done(&b);
	watch_free(w);
	w = off();
	watch_take(w, &odd);
	watch_take(w, &odd);
	j = watch_domains(w);
	assert_int_equal(json_object_size(j), 1);
	assert_true(number(j, "a_b___", NULL, "requests") == 2);
	json_decref(j);
	watch_free(w);
}

/* Other servers write to the same topic, and their stores number versions too. */
static void records_of_another_target_are_not_ours(void **state)
{
	struct watch *w = off();
	struct round_record ours = record("tools", 3, 10, 10, 0), theirs = record("tools", 3, 10, 0, 0);
	json_t *j;

	(void)state;
	snprintf(theirs.target_fp, sizeof theirs.target_fp, "%064d", 2);
	watch_target(w, ours.target_fp);
	watch_take(w, &ours);
	watch_take(w, &theirs);
	j = watch_domains(w);
	assert_true(number(j, "tools", "3", "requests") == 1 && number(j, "tools", "3", "recent") == 2);
	json_decref(j);
	j = watch_kafka(w);
	assert_int_equal(json_integer_value(json_object_get(j, "foreign")), 1);
	json_decref(j);
	watch_target(w, "");
	watch_take(w, &theirs);
	j = watch_domains(w);
	assert_true(number(j, "tools", "3", "requests") == 2);
	json_decref(j);
	watch_free(w);
}

static void an_absent_broker_is_no_matter(void **state)
{
	struct watch *w = NULL;
	struct errtext e = {.text = ""};
	uint64_t t0;
	json_t *j;

	(void)state;
	assert_int_equal(watch_new(&(struct watch_options){.brokers = "127.0.0.1:1", .topic = "t", .conf = ""}, &w, &e), 0);
	usleep(100000);
	j = watch_domains(w);
	assert_int_equal(json_object_size(j), 0);
	json_decref(j);
	t0 = clock_us();
	watch_free(w);
	assert_true(clock_us() - t0 < 5000000);
	assert_int_equal(watch_new(&(struct watch_options){.brokers = "h:1", .topic = "t", .conf = "no.such=1"}, &w, &e), -EINVAL);
	assert_non_null(strstr(e.text, "no.such"));
	assert_int_equal(watch_new(&(struct watch_options){.brokers = "h:1", .topic = "t", .conf = "x"}, &w, &e), -EINVAL);
}

static void reads_what_is_produced(void **state)
{
	char why[128], brokers[128];
	struct watch *w = NULL;
	struct errtext e;
	struct buf b = BUF_INIT(0);
	struct round_record r = record("code", 9, 10, 5, 0);
	rd_kafka_conf_t *c = rd_kafka_conf_new();
	rd_kafka_mock_cluster_t *mock;
	rd_kafka_t *p;
	json_t *j = NULL;

	(void)state;
	p = rd_kafka_new(RD_KAFKA_PRODUCER, c, why, sizeof why);
	assert_non_null(p);
	mock = rd_kafka_mock_cluster_new(p, 1);
	snprintf(brokers, sizeof brokers, "%s", rd_kafka_mock_cluster_bootstraps(mock));
	rd_kafka_mock_topic_create(mock, "rounds", 2, 1);
	assert_int_equal(watch_new(&(struct watch_options){.brokers = brokers, .topic = "rounds", .conf = ""}, &w, &e), 0);
	assert_int_equal(round_encode(&b, &r), 0);
	rd_kafka_brokers_add(p, brokers);
	for (int i = 0; i < 100; i++) { /* it reads from the end: say it until it has been heard */
		rd_kafka_producev(p, RD_KAFKA_V_TOPIC("rounds"), RD_KAFKA_V_PARTITION(i % 2), RD_KAFKA_V_VALUE(b.data, b.len),
				  RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY), RD_KAFKA_V_END);
		rd_kafka_producev(p, RD_KAFKA_V_TOPIC("rounds"), RD_KAFKA_V_PARTITION(0), RD_KAFKA_V_VALUE((char *)(uintptr_t)"junk", 4),
				  RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY), RD_KAFKA_V_END);
		rd_kafka_flush(p, 1000);
		usleep(50000);
		j = watch_domains(w);
		if (number(j, "code", "9", "requests") >= 2)
			break;
		json_decref(j);
		j = NULL;
	}
	assert_non_null(j);
	assert_true(fabs(number(j, "code", "9", "recent") - 1.5) < 1e-9);
	json_decref(j);
	buf_clear(&b);
	assert_int_equal(watch_print(w, &b), 0);
	assert_int_equal(buf_append(&b, "", 1), 0);
	assert_null(strstr((char *)b.data, "redraft_bad_round_records_total 0\n"));
	buf_done(&b);
	watch_free(w);
	rd_kafka_mock_cluster_destroy(mock);
	rd_kafka_destroy(p);
}

/* A log that is not the one we read shows in no offset when it is longer: in the record at our mark, when that is read again. What
 * lies between mark and place comes again with it and is not counted twice. */
static void a_log_made_anew_is_known_by_a_record(void **state)
{
	struct watch_place p = {.next = -1, .mark = -1};

	(void)state;
	for (int64_t i = 5; i < 9; i++)
		assert_int_equal(watch_place_next(&p, i, 100 + (uint64_t)i), WATCH_NEW);
	assert_int_equal(p.mark, 5);
	p.back = true; /* a look back */
	for (int64_t i = 5; i < 9; i++)
		assert_int_equal(watch_place_next(&p, i, 100 + (uint64_t)i), WATCH_AGAIN);
	assert_int_equal(p.mark, 8);
	p.back = true;
	assert_int_equal(watch_place_next(&p, 9, 109), WATCH_NEW); /* fetched before we asked */
	assert_true(p.back);
	assert_int_equal(watch_place_next(&p, 8, 108), WATCH_AGAIN);
	assert_false(p.back);
	assert_int_equal(p.mark, 9);
	assert_int_equal(watch_place_next(&p, 9, 109), WATCH_AGAIN);
	assert_int_equal(watch_place_next(&p, 10, 110), WATCH_NEW);
	p.back = true; /* and now another log, from which something was taken already */
	assert_int_equal(watch_place_next(&p, 11, 7), WATCH_NEW);
	assert_int_equal(watch_place_next(&p, 9, 8), WATCH_ANEW);
	p = (struct watch_place){.next = 3, .mark = 2, .mark_sum = 1}; /* not looking back: whatever it is, it is not compared */
	assert_int_equal(watch_place_next(&p, 2, 9), WATCH_AGAIN);
}

/* A topic that we may not read is looked at every second, and said once. */
static void a_refusal_is_said_once(void **state)
{
	char why[128], text[256];
	struct watch *w = NULL;
	struct errtext e;
	rd_kafka_t *p = rd_kafka_new(RD_KAFKA_PRODUCER, rd_kafka_conf_new(), why, sizeof why);
	rd_kafka_mock_cluster_t *mock;
	int refused = 0;
	uint64_t end = clock_us() + 60000000;

	(void)state;
	assert_non_null(p);
	mock = rd_kafka_mock_cluster_new(p, 1);
	rd_kafka_mock_topic_create(mock, "rounds", 1, 1);
	rd_kafka_mock_topic_set_error(mock, "rounds", RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED);
	assert_int_equal(watch_new(&(struct watch_options){.brokers = rd_kafka_mock_cluster_bootstraps(mock), .topic = "rounds", .conf = ""}, &w, &e), 0);
	for (int i = 0; i < 30 && clock_us() < end; i += refused > 0) { /* once it is said, three looks more */
		usleep(100000);
		while (watch_said(w, text, sizeof text))
			refused += strstr(text, "does not let us") != NULL;
	}
	assert_int_equal(refused, 1);
	watch_free(w);
	rd_kafka_mock_cluster_destroy(mock);
	rd_kafka_destroy(p);
}

/* A rollback moves who is running off a version; when an operator brings it back, that is no sign of a broken draft, nor is how it did before. */
static void who_comes_back_begins_anew(void **state)
{
	struct round_record moved = record("tools", 3, 10, 0, 0), good = record("tools", 3, 10, 10, 0), other = record("tools", 2, 10, 5, 0);
	struct watch *w = off();
	int n;

	(void)state;
	moved.last = false;
	good.last = other.last = true;
	watch_live(w, 0, 3);
	for (int i = 0; i < 64; i++) {
		watch_take(w, &moved);
		watch_take(w, &other);
	}
	assert_int_equal(watch_lost(w, 3, &n), 64);
	watch_live(w, 3, 2);
	assert_int_equal(watch_lost(w, 2, &n), 0);
	assert_int_equal(n, 64); /* what was never left is as it was */
	watch_live(w, 2, 3);
	assert_int_equal(watch_lost(w, 3, &n), 0);
	assert_int_equal(n, 0);
	watch_take(w, &good);
	assert_int_equal(watch_lost(w, 3, &n), 0);
	assert_int_equal(n, 1);
	assert_true(watch_recent_al(w, 3, &n) == 2 && n == 1);
	watch_free(w);
}

/* ---- what happens to broker and topic ---- */

struct mocked {
	rd_kafka_t *p;
	rd_kafka_mock_cluster_t *mock;
	struct watch *w;
	int produced;
};

static void mocked_start(struct mocked *m, int brokers, int partitions)
{
	struct errtext e;
	char why[128];

	m->produced = 0;
	m->p = rd_kafka_new(RD_KAFKA_PRODUCER, rd_kafka_conf_new(), why, sizeof why);
	assert_non_null(m->p);
	m->mock = rd_kafka_mock_cluster_new(m->p, brokers);
	rd_kafka_mock_topic_create(m->mock, "rounds", partitions, brokers);
	rd_kafka_mock_partition_set_leader(m->mock, "rounds", 0, 1);
	rd_kafka_brokers_add(m->p, rd_kafka_mock_cluster_bootstraps(m->mock));
	assert_int_equal(watch_new(&(struct watch_options){.brokers = rd_kafka_mock_cluster_bootstraps(m->mock), .topic = "rounds", .conf = ""}, &m->w, &e), 0);
}

static void mocked_end(struct mocked *m)
{
	watch_free(m->w);
	rd_kafka_mock_cluster_destroy(m->mock);
	rd_kafka_destroy(m->p);
}

static json_int_t kafka_number(struct watch *w, const char *key)
{
	json_t *j = watch_kafka(w);
	json_int_t v = json_integer_value(json_object_get(j, key));

	json_decref(j);
	return v;
}

static void mocked_produce(struct mocked *m, int n, size_t len)
{
	void *value = calloc(1, len);

	for (int i = 0; i < n; i++) {
		rd_kafka_producev(m->p, RD_KAFKA_V_TOPIC("rounds"), RD_KAFKA_V_PARTITION(0), RD_KAFKA_V_VALUE(value, len), RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY), RD_KAFKA_V_END);
		rd_kafka_flush(m->p, 10000);
	}
	m->produced += n;
	free(value);
}

/* The first sentence with the word, within a minute. */
static void mocked_said(struct mocked *m, const char *word, char ret[static 256])
{
	for (uint64_t end = clock_us() + 60000000; clock_us() < end; usleep(20000))
		while (watch_said(m->w, ret, 256))
			if (strstr(ret, word))
				return;
	fail_msg("nothing was said of %s", word);
}

static void until_read(struct mocked *m, json_int_t bad)
{
	for (uint64_t end = clock_us() + 60000000; kafka_number(m->w, "bad") < bad; usleep(20000)) {
		if (clock_us() > end)
			fail_msg("%d records are read, not %d", (int)kafka_number(m->w, "bad"), (int)bad);
		mocked_produce(m, 1, 4); /* it reads from the end: said until heard */
	}
}

/* A leader that moves is said once, and reading goes on at the new one. */
static void a_leader_moves(void **state)
{
	struct mocked m;
	char text[256];

	(void)state;
	mocked_start(&m, 2, 1);
	until_read(&m, 1); /* so it has seen who leads */
	rd_kafka_mock_partition_set_leader(m.mock, "rounds", 0, 2);
	mocked_said(&m, "moved to another broker (2)", text);
	assert_non_null(strstr(text, "1 partition of rounds"));
	until_read(&m, kafka_number(m.w, "bad") + 2);
	while (watch_said(m.w, text, sizeof text))
		assert_null(strstr(text, "moved"));
	assert_int_equal(kafka_number(m.w, "lost"), 0);
	mocked_end(&m);
}

/* The reader held still until the log (5 MiB a partition in the mock) has dropped what it would have read next: from where to where
 * is said and counted, and reading goes on where the log begins. */
static void retention_passes(void **state)
{
	struct mocked m;
	char text[256];
	static rd_kafka_resp_err_t err[10000];
	long long lost = 0, at = 0;
	json_int_t bad;

	(void)state;
	mocked_start(&m, 1, 1);
	until_read(&m, 1);
	for (size_t i = 0; i < sizeof err / sizeof *err; i++)
		err[i] = RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION;
	rd_kafka_mock_push_request_errors_array(m.mock, 1 /* Fetch */, sizeof err / sizeof *err, err); /* so it reads nothing, twice a second */
	mocked_produce(&m, 14, 900000);
	rd_kafka_mock_clear_request_errors(m.mock, 1);
	mocked_said(&m, "passed retention before they were read", text);
	assert_int_equal(sscanf(strstr(text, ": ") + 2, "%lld", &lost), 1);
	assert_int_equal(sscanf(strstr(text, "reading on at ") + 14, "%lld", &at), 1);
	assert_true(lost > 0 && at > lost);
	assert_int_equal(kafka_number(m.w, "lost"), lost);
	assert_int_equal(kafka_number(m.w, "gaps"), 1);
	bad = kafka_number(m.w, "bad");
	until_read(&m, bad + 1);
	mocked_end(&m);
}

static void is_read(struct mocked *m, json_int_t bad)
{
	uint64_t until = clock_us() + 60000000;

	while (kafka_number(m->w, "bad") < bad && clock_us() < until)
		usleep(20000);
	assert_int_equal(kafka_number(m->w, "bad"), bad);
}

/* Now, and one record more, which shows that what came again before it was passed over. */
static void looks_back(struct mocked *m)
{
	json_int_t bad = kafka_number(m->w, "bad");
	uint64_t until = clock_us() + 60000000;

	atomic_store(&m->w->back_us, 0);
	while (!atomic_load(&m->w->back_us) && clock_us() < until)
		usleep(20000);
	mocked_produce(m, 1, 10);
	is_read(m, bad + 1);
}

/* A look back reads again what was taken since the mark, and counts none of it; a mark that has passed retention is no loss. */
static void a_look_back_counts_nothing(void **state)
{
	struct mocked m;
	json_int_t bad, first;

	(void)state;
	mocked_start(&m, 1, 1);
	until_read(&m, 1);
	first = m.w->place[0].mark; /* the first one that was read, until we look back */
	mocked_produce(&m, 20, 10);
	is_read(&m, m.produced - first);
	looks_back(&m);
	looks_back(&m);
	bad = kafka_number(m.w, "bad");
	for (int i = 0; i < 14; i++) { /* one by one, so that each is read before it is gone */
		mocked_produce(&m, 1, 900000);
		is_read(&m, bad + i + 1);
	}
	looks_back(&m);
	looks_back(&m);
	assert_int_equal(kafka_number(m.w, "lost"), 0);
	assert_int_equal(kafka_number(m.w, "gaps"), 0);
	mocked_end(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(means), cmocka_unit_test(bounded), cmocka_unit_test(who_comes_back_begins_anew), cmocka_unit_test(records_of_another_target_are_not_ours),
					   cmocka_unit_test(an_absent_broker_is_no_matter), cmocka_unit_test(a_log_made_anew_is_known_by_a_record),
					   cmocka_unit_test(reads_what_is_produced), cmocka_unit_test(a_refusal_is_said_once),
					   cmocka_unit_test(a_leader_moves), cmocka_unit_test(retention_passes),
					   cmocka_unit_test(a_look_back_counts_nothing)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
