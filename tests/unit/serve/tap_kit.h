/* A tap between a mock broker and a test that is its engine: requests whose every value is a function of request and position, so
 * that any record can be checked when it is read back. Threads: the test's. */
#pragma once
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
	uint64_t until = clock_us() + (want ? 60000000 : 700000);
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

	for (int i = 0; i < 3000; i++) {
		tap_stats(t, &s);
		if (s.delivered >= records && s.rounds >= rounds)
			break;
		(void)usleep(20000);
	}
	return s;
}

/* ---- what was read ---- */

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
