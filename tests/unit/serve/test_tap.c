/* What this proves, against librdkafka's mock cluster over TCP: what the engine pushed is what
 * is read back, bit for bit, with key and headers as record.md says; a long request
 * comes as several records that join by position, with every round in the record of its row;
 * requests interleave; a full ring, a full queue and a lost broker drop the rest of the
 * request they hit, count it, block nobody and end by themselves; round records go
 * out even for requests that are not traced. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/base/clock.h"
#include "schemas/record.h"
#include "serve/tap.h"

enum { PARTITIONS = 4, TOPK = 8, MAX_MESSAGES = 256 };

/* ---- the broker ---- */

static rd_kafka_t *host;
static rd_kafka_mock_cluster_t *cluster;
static const char *brokers;
enum { MAX_READERS = 64 };
static rd_kafka_t *readers[MAX_READERS];
static int n_readers;

static int setup(void **state)
{
	char why[256];

	(void)state;
	rd_kafka_conf_t *conf = rd_kafka_conf_new();
	if (rd_kafka_conf_set(conf, "log_level", "0", why, sizeof why))
		return -1;
	host = rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, sizeof why);
	cluster = host ? rd_kafka_mock_cluster_new(host, 1) : NULL;
	if (!cluster)
		return -1;
	brokers = rd_kafka_mock_cluster_bootstraps(cluster);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	while (n_readers > 0)
		rd_kafka_destroy(readers[--n_readers]);
	rd_kafka_mock_cluster_destroy(cluster);
	rd_kafka_destroy(host);
	return 0;
}

struct topics { /* fresh ones for each test */
	char traces[32], rounds[32];
};

static struct topics fresh(void)
{
	static int n;
	struct topics t;

	(void)snprintf(t.traces, sizeof t.traces, "traces-%d", ++n);
	(void)snprintf(t.rounds, sizeof t.rounds, "rounds-%d", n);
	assert_int_equal(rd_kafka_mock_topic_create(cluster, t.traces, PARTITIONS, 1), 0);
	assert_int_equal(rd_kafka_mock_topic_create(cluster, t.rounds, PARTITIONS, 1), 0);
	return t;
}

/* Everything of a topic, until `want` messages came or nothing does for a while. */
static int read_all(const char *topic, rd_kafka_message_t **ret, int want)
{
	char why[256];
	rd_kafka_conf_t *c = rd_kafka_conf_new();
	int n = 0;

	assert_int_equal(rd_kafka_conf_set(c, "bootstrap.servers", brokers, why, sizeof why), 0);
	assert_int_equal(rd_kafka_conf_set(c, "group.id", "t", why, sizeof why), 0);
	assert_int_equal(rd_kafka_conf_set(c, "log_level", "0", why, sizeof why), 0);
	assert_int_equal(rd_kafka_conf_set(c, "check.crcs", "true", why, sizeof why), 0);
	rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_CONSUMER, c, why, sizeof why);
	assert_non_null(rk);
	rd_kafka_topic_partition_list_t *l = rd_kafka_topic_partition_list_new(PARTITIONS);
	for (int p = 0; p < PARTITIONS; p++)
		rd_kafka_topic_partition_list_add(l, topic, p)->offset = 0;
	assert_int_equal(rd_kafka_assign(rk, l), 0);
	rd_kafka_topic_partition_list_destroy(l);
	uint64_t until = clock_us() + (want ? 10000000 : 700000);
	while (n < MAX_MESSAGES && clock_us() < until && (!want || n < want)) {
		rd_kafka_message_t *m = rd_kafka_consumer_poll(rk, 100);
		if (m && !m->err)
			ret[n++] = m;
		else if (m)
			rd_kafka_message_destroy(m);
	}
	assert_true(n_readers < MAX_READERS);
	readers[n_readers++] = rk; /* outlives its messages */
	return n;
}

/* ---- the engine ---- */

static struct tap *open_tap(const struct topics *tp, int H, const char *at, size_t ring, size_t queue, const char *extra)
{
	struct tap_options o = {.brokers = at,
				.traces_topic = tp->traces,
				.rounds_topic = tp->rounds,
				.H_t = H,
				.topk = TOPK,
				.prompt_hidden = true,
				.sample = 1,
				.ring_bytes = ring,
				.queue_bytes = queue,
				.target_fp = "fp",
				.extra_conf = extra};
	struct errtext e = {""};
	struct tap *t;

	if (tap_new(&o, &t, &e) < 0)
		fail_msg("%s", e.text);
	return t;
}

/* The values of row p of request q: functions of p and q, so that any record can be checked. */
static float feature(int q, uint32_t p, int j)
{
	return sinf((float)(q * 131 + (int)p * 17 + j)) * 3;
}

static uint32_t token(int q, uint32_t p)
{
	return (p * 7919u + (uint32_t)q * 31u) % 600;
}

static uint16_t bits(float f)
{
	union {
		float f;
		uint32_t u;
	} x = {.f = f};
	return (uint16_t)((x.u + 0x7fffu + (x.u >> 16 & 1u)) >> 16);
}

struct client { /* one request being decoded */
	int q, H, handle;
	uint32_t pos;
	int n_rounds;
	uint32_t row_pos[2048];
};

static void begin(struct tap *t, struct client *c, int q, int H, bool traced)
{
	struct tap_request r = {.temperature = 0.5f, .traced = traced, .k = 3, .domain = "code", .tenant = "ten"};

	*c = (struct client){.q = q, .H = H};
	(void)snprintf(r.request, sizeof r.request, "request-%d", q);
	(void)snprintf(r.conversation, sizeof r.conversation, "conv\xff-%d", q);
	c->handle = tap_begin(t, &r);
}

static void rows(struct tap *t, struct client *c, int n, bool prompt)
{
	uint16_t *f = malloc((size_t)n * 3 * (size_t)c->H * 2), *h = malloc((size_t)n * (size_t)c->H * 2);
	float lp[64 * TOPK];
	uint32_t ids[512], pos[512], tk[64 * TOPK];
	struct tap_row_group g = {.n = n, .prompt = prompt, .ids = ids, .pos = pos, .features = f, .hidden = prompt ? h : NULL};

	assert_true(n <= (prompt ? 512 : 64));
	for (int i = 0; i < n; i++) {
		uint32_t p = c->pos++;
		pos[i] = p;
		ids[i] = token(c->q, p);
		for (int j = 0; j < 3 * c->H; j++)
			f[i * 3 * c->H + j] = bits(feature(c->q, p, j));
		for (int j = 0; j < c->H; j++)
			h[i * c->H + j] = bits(feature(c->q + 1000, p, j));
		for (int j = 0; !prompt && j < TOPK; j++) {
			tk[i * TOPK + j] = (uint32_t)(j * 50) + p % 50;
			lp[i * TOPK + j] = j ? -0.5f * (float)j : 1e-7f; /* a hair above 0 is clipped */
		}
	}
	g.topk_ids = tk;
	g.topk_logprob = lp;
	g.next_token = token(c->q, c->pos);
	tap_rows(t, c->handle, &g);
	free(f);
	free(h);
}

/* One decoding round: propose 3, accept a, a + 1 rows follow; the first starts at the last row of the prompt. */
static void decode(struct tap *t, struct client *c, int a)
{
	uint32_t ids[3];

	for (int j = 0; j < 3; j++)
		ids[j] = j < a ? token(c->q, c->pos + 1 + (uint32_t)j) : 599;
	c->row_pos[c->n_rounds++] = c->pos - 1;
	tap_round(t, c->handle, c->pos - 1, ids, NULL, 3, a, 9, c->n_rounds % 2);
	rows(t, c, a + 1, false);
}

static void end(struct tap *t, struct client *c)
{
	struct round_record part = {.k = 3, .rounds = (uint32_t)c->n_rounds, .proposed = {1, 1, 1}, .version = 9, .last = true};

	part.rounds = part.rounds ? part.rounds : 1;
	(void)snprintf(part.request, sizeof part.request, "request-%d", c->q);
	(void)snprintf(part.conversation, sizeof part.conversation, "conv\xff-%d", c->q);
	tap_end(t, c->handle, &part, 1);
}

static struct tap_stats settle(struct tap *t, uint64_t records, uint64_t rounds)
{
	struct tap_stats s;

	for (int i = 0; i < 600; i++) {
		tap_stats(t, &s);
		if (s.delivered >= records && s.rounds >= rounds)
			break;
		(void)usleep(20000);
	}
	return s;
}

/* ---- what was read ---- */

static const char *header(const rd_kafka_message_t *m, const char *name)
{
	rd_kafka_headers_t *h;
	const void *v;
	size_t n;

	if (rd_kafka_message_headers(m, &h) || rd_kafka_header_get_last(h, name, &v, &n))
		return "";
	return v; /* librdkafka terminates header values */
}

static int by_run(const void *a, const void *b)
{
	const struct trace_record *x = a, *y = b;

	return (x->meta.run > y->meta.run) - (x->meta.run < y->meta.run);
}

/* The records of request q out of n messages, checked one by one and sorted by run. */
static int records_of(rd_kafka_message_t **m, int n, int q, int H, struct trace_record *ret)
{
	char request[32], key[32];
	int k = 0, partition = -1;

	(void)snprintf(request, sizeof request, "request-%d", q);
	(void)snprintf(key, sizeof key, "conv?-%d", q);
	for (int i = 0; i < n; i++) {
		struct trace_record r;
		struct errtext e = {""};
		if (record_decode(m[i]->payload, m[i]->len, 600, &r, &e) < 0)
			fail_msg("record refused: %s", e.text);
		if (strcmp(r.meta.request, request) != 0) {
			record_done(&r);
			continue;
		}
		assert_true(m[i]->len <= RECORD_MAX_BYTES);
		assert_true(m[i]->key_len == strlen(key) && memcmp(m[i]->key, key, m[i]->key_len) == 0);
		assert_true(partition < 0 || partition == m[i]->partition);
		partition = m[i]->partition;
		assert_string_equal(r.meta.conversation, key);
		assert_string_equal(r.meta.target_fp, "fp");
		assert_true(r.meta.temperature == 0.5f && r.H_t == H);
		for (int t = 0; t < r.T; t++) {
			assert_int_equal(r.token_ids[t], token(q, r.positions[t]));
			for (int j = 0; j < 3 * H; j++)
				assert_int_equal(r.features[t * 3 * H + j], bits(feature(q, r.positions[t], j)));
		}
		assert_int_equal(r.next_token, token(q, r.positions[r.T - 1] + 1));
		for (int t = 0, h = 0, g = 0; t < r.T; t++) {
			for (int j = 0; !r.loss_mask[t] && j < H; j++)
				assert_int_equal(r.last_hidden[h * H + j], bits(feature(q + 1000, r.positions[t], j)));
			h += !r.loss_mask[t];
			for (int j = 0; r.loss_mask[t] && j < TOPK; j++) {
				assert_int_equal(r.topk_ids[g * TOPK + j], (uint32_t)(j * 50) + r.positions[t] % 50);
				assert_true(f16_to_f32(r.topk_logprob[g * TOPK + j]) == -0.5f * (float)j);
			}
			g += r.loss_mask[t];
		}
		ret[k++] = r;
	}
	qsort(ret, (size_t)k, sizeof *ret, by_run);
	return k;
}

/* The records join without a gap and hold exactly the rounds that were told. */
static void check_joined(const struct trace_record *r, int n, const struct client *c, uint32_t n_rows)
{
	uint32_t pos = 0;
	int rounds = 0;

	assert_true(n > 0);
	for (int i = 0; i < n; i++) {
		assert_int_equal(r[i].meta.run, i);
		assert_int_equal(r[i].meta.last, i == n - 1);
		assert_int_equal(r[i].positions[0], pos);
		for (int s = 0; s < r[i].S; s++) {
			assert_true(rounds < c->n_rounds);
			assert_int_equal(pos + r[i].round_start[s], c->row_pos[rounds]);
			assert_int_equal(r[i].round_version[s], 9);
			assert_int_equal(r[i].round_flags[s], (rounds + 1) % 2);
			assert_int_equal(r[i].round_len[s], 3);
			for (int j = 0; j < r[i].accepted[s]; j++)
				assert_int_equal(r[i].draft_ids[s * r[i].k + j], token(c->q, c->row_pos[rounds] + 2 + (uint32_t)j));
			rounds++;
		}
		pos += (uint32_t)r[i].T;
	}
	assert_int_equal(pos, n_rows);
	assert_int_equal(rounds, c->n_rounds);
}

static void done(struct trace_record *r, int n, rd_kafka_message_t **m, int n_m)
{
	for (int i = 0; i < n; i++)
		record_done(&r[i]);
	for (int i = 0; i < n_m; i++)
		rd_kafka_message_destroy(m[i]);
}

/* ---- tests ---- */

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
	for (int i = 0; i < 200; i++) /* the thread has caught up when the round record is out */
		if (settle(t, 0, 1).rounds == 1)
			break;
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
		(void)usleep(5000);
	}
	for (int i = 0; i < 500; i++) {
		tap_stats(t, &s);
		if (s.records + s.dropped_queue >= 12 && s.rounds > 0)
			break;
		(void)usleep(10000);
	}
	assert_true(s.records >= 1 && s.records <= 3 && s.dropped_queue >= 12 - s.records && s.delivered == 0);
	printf("longest push of 32 rows without a broker, data made included: %llu us\n", (unsigned long long)longest);
	uint64_t t0 = clock_us();
	tap_free(t);
	assert_true(clock_us() - t0 < 4000000); /* flush gives up after 2 s */
}

static void test_broker_comes_back(void **state)
{
	(void)state;
	struct topics tp = fresh();
	struct tap *t = open_tap(&tp, 64, brokers, 4 << 20, 4 << 20, "linger.ms=5,message.timeout.ms=2000,reconnect.backoff.max.ms=200");
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
	for (int i = 0; i < 500; i++) {
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
	} while (s.delivered < 2 && ++tries < 6);
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
	for (int i = 0; i < 300 && tap_wants_rows(t, c.handle); i++)
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
		cmocka_unit_test(test_ring_full),
		cmocka_unit_test(test_no_broker),
		cmocka_unit_test(test_broker_comes_back),
		cmocka_unit_test(test_lost_record_stops_request),
		cmocka_unit_test(test_fatal_error),
		cmocka_unit_test(test_options),
		cmocka_unit_test(test_timing),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
