/* How many bytes a second the tap can produce, against librdkafka alone.
 *
 *   bench_tap
 *
 * One JSON object a line: {"figure","value","unit","against","ratio","ci","threads","commit","cpu"}, value in MB/s. One arm pushes
 * requests of SmolLM2's shape through tap.h (ring, join, encode, produce) as fast as they are taken; the other
 * gives librdkafka, with the tap's own settings, as many messages of the same mean size, ready made. Both against librdkafka's mock
 * cluster in a process of its own making (this one), in turn, from the first push to the last delivery. The value is the
 * median of the rounds, ci their quartiles. The pusher never lets the tap drop: it waits while too much is on its way.
 */
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/base/clock.h"
#include "kernels/ops.h"
#include "serve/tap.h"

enum { ROUNDS = 7, REQUESTS = 200, PROMPT = 128, ANSWER = 96, H_T = 576, TOPK = 64, AHEAD = 12, MAX_QUEUED = 40, PARTITIONS = 8 };

static const char *brokers;

static void die(const char *what)
{
	fprintf(stderr, "bench_tap: %s\n", what);
	exit(1);
}

static struct tap *open_tap(void)
{
	struct tap_options o = {.brokers = brokers, .traces_topic = "traces", .rounds_topic = "rounds", .H_t = H_T, .topk = TOPK, .prompt_hidden = true,
				.sample = 1, .ring_bytes = 64 << 20, .queue_bytes = 64 << 20, .target_fp = "fp"};
	struct errtext e = {""};
	struct tap *t;

	if (tap_new(&o, &t, &e) < 0)
		die(e.text);
	return t;
}

/* Rows that differ from each other; their values do not matter here. */
struct rows {
	uint16_t features[PROMPT * 3 * H_T], hidden[PROMPT * H_T];
	float logprob[TOPK];
	uint32_t ids[PROMPT], pos[PROMPT], topk[TOPK];
};

static void fill(struct rows *r)
{
	uint32_t x = 1;

	for (size_t i = 0; i < sizeof r->features / sizeof *r->features; i++)
		r->features[i] = f32_to_bf16((float)((x = x * 1664525u + 1013904223u) >> 8) * 0x1p-20f - 8);
	memcpy(r->hidden, r->features, sizeof r->hidden);
	for (uint32_t i = 0; i < TOPK; i++) {
		r->topk[i] = i * 31;
		r->logprob[i] = -.1f * (float)(i + 1);
	}
}

static void push_rows(struct tap *t, int handle, struct rows *r, uint32_t at, int n, bool prompt)
{
	struct tap_row_group g = {.n = n, .prompt = prompt, .ids = r->ids, .pos = r->pos, .features = r->features, .hidden = prompt ? r->hidden : NULL,
				  .topk_ids = r->topk, .topk_logprob = r->logprob, .next_token = at + (uint32_t)n};

	for (int i = 0; i < n; i++) {
		r->ids[i] = at + (uint32_t)i;
		r->pos[i] = at + (uint32_t)i;
	}
	tap_rows(t, handle, &g);
}

static void push_request(struct tap *t, struct rows *r, int q)
{
	static const uint32_t proposed[3] = {1, 2, 3};
	struct tap_request begin = {.traced = true, .k = 3, .domain = "code", .tenant = "t"};
	struct round_record part = {.k = 3, .rounds = ANSWER, .proposed = {1, 1, 1}, .version = 1, .last = true};
	int handle;

	(void)snprintf(begin.request, sizeof begin.request, "request-%d", q);
	(void)snprintf(begin.conversation, sizeof begin.conversation, "conversation-%d", q);
	(void)snprintf(part.request, sizeof part.request, "request-%d", q);
	(void)snprintf(part.conversation, sizeof part.conversation, "conversation-%d", q);
	handle = tap_begin(t, &begin);
	push_rows(t, handle, r, 0, PROMPT, true);
	for (uint32_t i = 0; i < ANSWER; i++) {
		tap_round(t, handle, PROMPT + i - 1, proposed, NULL, 3, 0, 1, false);
		push_rows(t, handle, r, PROMPT + i, 1, false);
	}
	tap_end(t, handle, &part, 1);
}

/* Much lies in the ring (a request's round record goes out when its rows did), or in librdkafka's queue. */
static bool too_far_ahead(const struct tap_stats *s, const struct tap_stats *was, uint64_t pushed)
{
	return s->rounds - was->rounds + AHEAD < pushed || s->records - s->delivered > MAX_QUEUED;
}

/* MB/s; *ret_records and *ret_bytes are what came of it. */
static double tap_arm(struct tap *t, struct rows *r, uint64_t *ret_records, uint64_t *ret_bytes)
{
	struct tap_stats was, s;
	uint64_t began = clock_us();

	tap_stats(t, &was);
	s = was;
	for (int q = 0; q < REQUESTS; q++) {
		push_request(t, r, q);
		tap_stats(t, &s);
		while (too_far_ahead(&s, &was, (uint64_t)q) && clock_us() - began < 60000000) {
			(void)usleep(200);
			tap_stats(t, &s);
		}
	}
	while ((s.rounds - was.rounds < REQUESTS || s.delivered - was.delivered < s.records - was.records) && clock_us() - began < 60000000) {
		(void)usleep(500);
		tap_stats(t, &s);
	}
	if (s.rounds - was.rounds < REQUESTS || s.delivered - was.delivered < s.records - was.records || s.dropped_ring || s.dropped_queue || s.dropped_broker)
		(void)fprintf(stderr, "bench_tap: %llu records, %llu delivered, %llu rounds; dropped: ring %llu, queue %llu, broker %llu\n", (unsigned long long)s.records,
			      (unsigned long long)s.delivered, (unsigned long long)s.rounds, (unsigned long long)s.dropped_ring, (unsigned long long)s.dropped_queue,
			      (unsigned long long)s.dropped_broker),
			exit(1);
	*ret_records = s.records - was.records;
	*ret_bytes = s.bytes - was.bytes;
	return (double)*ret_bytes / (double)(clock_us() - began);
}

static void on_report(rd_kafka_t *rk, const rd_kafka_message_t *m, void *arg)
{
	(void)rk;
	*(uint64_t *)arg += m->err == 0;
}

static rd_kafka_t *open_bare(uint64_t *delivered)
{
	static const char *const settings[][2] = {{"enable.idempotence", "true"}, {"message.max.bytes", "1000000"}, {"batch.size", "1000000"}, {"linger.ms", "30"},
						  {"partitioner", "murmur2_random"}, {"compression.codec", "none"}, {"queue.buffering.max.kbytes", "65536"}, {"log_level", "0"}};
	rd_kafka_conf_t *c = rd_kafka_conf_new();
	char why[200];
	rd_kafka_t *rk;

	if (rd_kafka_conf_set(c, "bootstrap.servers", brokers, why, sizeof why))
		die(why);
	for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
		if (rd_kafka_conf_set(c, settings[i][0], settings[i][1], why, sizeof why))
			die(why);
	rd_kafka_conf_set_dr_msg_cb(c, on_report);
	rd_kafka_conf_set_opaque(c, delivered);
	rk = rd_kafka_new(RD_KAFKA_PRODUCER, c, why, sizeof why);
	if (!rk)
		die(why);
	return rk;
}

static double bare_arm(rd_kafka_t *rk, uint64_t *delivered, const char *payload, uint64_t records, uint64_t bytes)
{
	size_t size = (size_t)(bytes / records);
	uint64_t began = clock_us(), want = *delivered + records;

	for (uint64_t i = 0; i < records; i++) {
		char key[32];
		int n = snprintf(key, sizeof key, "conversation-%d", (int)(i % REQUESTS));
		while (rd_kafka_producev(rk, RD_KAFKA_V_TOPIC("traces"), RD_KAFKA_V_KEY(key, (size_t)n), RD_KAFKA_V_VALUE((void *)(uintptr_t)payload, size),
					 RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY), RD_KAFKA_V_END) == RD_KAFKA_RESP_ERR__QUEUE_FULL)
			(void)rd_kafka_poll(rk, 1);
		(void)rd_kafka_poll(rk, 0);
	}
	while (*delivered < want && clock_us() - began < 60000000)
		(void)rd_kafka_poll(rk, 1);
	if (*delivered < want)
		die("librdkafka did not deliver within a minute");
	return (double)(records * size) / (double)(clock_us() - began);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void emit(double *ours, double *ratio, uint64_t size)
{
	qsort(ours, ROUNDS, sizeof *ours, by_value);
	qsort(ratio, ROUNDS, sizeof *ratio, by_value);
	printf("{\"figure\":\"tap, records of %llu bytes\",\"value\":%.1f,\"unit\":\"MB/s\",\"against\":\"librdkafka alone\",\"ratio\":%.3f,\"ci\":[%.3f,%.3f],"
	       "\"threads\":1,\"commit\":\"%s\",\"cpu\":\"\"}\n",
	       (unsigned long long)size, ours[ROUNDS / 2], ratio[ROUNDS / 2], ratio[ROUNDS / 4], ratio[ROUNDS - 1 - ROUNDS / 4], REDRAFT_COMMIT);
}

int main(void)
{
	rd_kafka_conf_t *c = rd_kafka_conf_new();
	char why[200];
	rd_kafka_t *host = rd_kafka_conf_set(c, "log_level", "0", why, sizeof why) ? NULL : rd_kafka_new(RD_KAFKA_PRODUCER, c, why, sizeof why);
	rd_kafka_mock_cluster_t *cluster = host ? rd_kafka_mock_cluster_new(host, 1) : NULL;
	struct rows *r = calloc(1, sizeof *r);
	double ours[ROUNDS + 1], ratio[ROUNDS + 1];
	uint64_t records = 1, bytes = 1, delivered = 0;

	if (!cluster || !r)
		die("no mock cluster");
	brokers = rd_kafka_mock_cluster_bootstraps(cluster);
	if (rd_kafka_mock_topic_create(cluster, "traces", PARTITIONS, 1) || rd_kafka_mock_topic_create(cluster, "rounds", PARTITIONS, 1))
		die("no topics");
	fill(r);
	struct tap *t = open_tap();
	rd_kafka_t *bare = open_bare(&delivered);
	char *payload = calloc(1, 1000000);
	for (int i = 0; payload && i <= ROUNDS; i++) { /* the first is not counted */
		double other = i % 2 ? bare_arm(bare, &delivered, payload, records, bytes) : 0;
		ours[i] = tap_arm(t, r, &records, &bytes);
		if (i % 2 == 0)
			other = bare_arm(bare, &delivered, payload, records, bytes);
		ratio[i] = ours[i] / other;
	}
	emit(ours + 1, ratio + 1, bytes / records);
	free(payload);
	tap_free(t);
	rd_kafka_destroy(bare);
	rd_kafka_mock_cluster_destroy(cluster);
	rd_kafka_destroy(host);
	free(r);
	return 0;
}
