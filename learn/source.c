/* The Kafka consumer (learn/source.h): the only file here that knows librdkafka.
 *
 * assign() at explicit offsets, auto.offset.reset=error: the one setting under
 * which lost data shows instead of being stepped over. Every partition has its
 * own queue (forwarding to the consumer's queue is switched off), so that a
 * caller may read partitions in any order: live by turns, after a crash in
 * the order of the journal. librdkafka's threads fetch ahead; reads here do
 * not block unless asked to.
 *
 * A jump (restart, gap) re-assigns all partitions at the offsets wanted. After
 * an out-of-range answer a partition stays silent in librdkafka, so a gap is
 * answered with the low watermark, and the read that follows re-assigns.
 */
#include "daemon/base/credential.h"
#include "learn/source.h"

#include <librdkafka/rdkafka.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/base/clock.h"

enum { MAX_PARTITIONS = 1024, META_AGAIN_US = 60 * 1000000, META_TROUBLE_US = 10 * 1000000, META_RETRY_US = 2 * 1000000 };
enum { META_FIRST_MS = 1000, META_LATER_MS = 200 }; /* once partitions are known, training must not wait for a broker that is gone */

struct part {
	rd_kafka_queue_t *queue; /* owned; NULL until assigned */
	int64_t next;            /* the offset its fetcher stands at, for us */
	bool assigned;
};

struct kafka {
	struct source base;
	rd_kafka_t *rk;
	char *topic;
	struct part *parts;
	int n;
	uint64_t meta_at; /* when to ask for metadata again */
	char *cluster_id; /* owned by librdkafka's allocator */
	char trouble[200];
	int trouble_part; /* of this partition; -1: of any */
};

/* Said until something succeeds: a read of that partition, or the brokers' word on the topic, for which they are asked again soon. */
static void PRINTF(3, 4) in_trouble(struct kafka *k, int partition, const char *fmt, ...)
{
	uint64_t soon = clock_us() + META_TROUBLE_US;
	va_list ap;
	va_start(ap, fmt);
	(void)vsnprintf(k->trouble, sizeof k->trouble, fmt, ap);
	va_end(ap);
	errtext_plain(k->trouble);
	k->trouble_part = partition;
	k->meta_at = k->meta_at < soon ? k->meta_at : soon;
}

static void on_error(rd_kafka_t *rk, int err, const char *reason, void *opaque)
{
	struct kafka *k = opaque;
	(void)rk;
	in_trouble(k, -1, "%s: %.150s", rd_kafka_err2name((rd_kafka_resp_err_t)err), reason);
}

static void quiet(const rd_kafka_t *rk, int level, const char *fac, const char *buf)
{
	(void)rk, (void)level, (void)fac, (void)buf; /* errors come through on_error */
}

static int set(void *c, const char *key, const char *value, struct errtext *e)
{
	char why[160];
	if (rd_kafka_conf_set(c, key, value, why, sizeof why) != RD_KAFKA_CONF_OK)
		return errtext_set(e, -EINVAL, "source.conf: %s: %s", key, why);
	return 0;
}

static void ask_metadata(struct kafka *k)
{
	const struct rd_kafka_metadata *md = NULL;
	rd_kafka_topic_t *t = rd_kafka_topic_new(k->rk, k->topic, NULL);
	k->meta_at = clock_us() + META_RETRY_US;
	if (!t)
		return;
	int wait_ms = k->n ? META_LATER_MS : META_FIRST_MS;
	rd_kafka_resp_err_t err = rd_kafka_metadata(k->rk, 0, t, &md, wait_ms);
	if (!err && md->topic_cnt == 1)
		err = md->topics[0].err; /* there is none, or we may not */
	if (!err && md->topic_cnt == 1 && md->topics[0].partition_cnt > k->n) {
		int n = md->topics[0].partition_cnt < MAX_PARTITIONS ? md->topics[0].partition_cnt : MAX_PARTITIONS;
		struct part *p = realloc(k->parts, (size_t)n * sizeof *p);
		if (p) {
			memset(p + k->n, 0, (size_t)(n - k->n) * sizeof *p);
			k->parts = p;
			k->n = n;
		}
	}
	if (!err && !k->cluster_id)
		k->cluster_id = rd_kafka_clusterid(k->rk, wait_ms);
	if (k->n)
		k->meta_at = clock_us() + META_AGAIN_US;
	if (err)
		in_trouble(k, -1, "metadata of %s: %.120s", k->topic, rd_kafka_err2str(err));
	else
		k->trouble[0] = 0;
	if (md)
		rd_kafka_metadata_destroy(md);
	rd_kafka_topic_destroy(t);
}

static int kafka_partitions(struct source *s)
{
	struct kafka *k = (struct kafka *)(void *)s;
	if (clock_us() >= k->meta_at)
		ask_metadata(k);
	return k->n;
}

/* Its queue, which forwards nothing from here on. Before the partition is assigned: what is fetched while it forwards lands in the consumer's own queue,
 * and is lost there. */
static int own_queue(struct kafka *k, int p)
{
	if (k->parts[p].queue)
		return 0;
	k->parts[p].queue = rd_kafka_queue_get_partition(k->rk, k->topic, p);
	if (!k->parts[p].queue)
		return -EIO;
	rd_kafka_queue_forward(k->parts[p].queue, NULL);
	return 0;
}

/* All partitions anew: this one at `offset`, the others where the caller wants them. */
static int assign_all(struct kafka *k, int partition, int64_t offset, const int64_t *wanted, int n)
{
	rd_kafka_topic_partition_list_t *l = rd_kafka_topic_partition_list_new(k->n);
	int r = l ? 0 : -ENOMEM;
	for (int p = 0; p < k->n && !r; p++) {
		r = own_queue(k, p);
		k->parts[p].next = p == partition ? offset : p < n ? wanted[p] : 0;
		rd_kafka_topic_partition_list_add(l, k->topic, p)->offset = k->parts[p].next;
	}
	rd_kafka_resp_err_t err = r ? RD_KAFKA_RESP_ERR_NO_ERROR : rd_kafka_assign(k->rk, NULL); /* drops what was fetched for the old offsets */
	if (!r && !err)
		err = rd_kafka_assign(k->rk, l);
	for (int p = 0; p < k->n && !r; p++)
		k->parts[p].assigned |= !err;
	if (l)
		rd_kafka_topic_partition_list_destroy(l);
	if (err)
		in_trouble(k, -1, "assign: %.120s", rd_kafka_err2str(err));
	return err ? -EIO : r;
}

/* Where the log of a partition starts, after an out-of-range answer. */
static int gap(struct kafka *k, int partition, int64_t offset, struct source_msg *ret)
{
	int64_t lo = 0, hi = 0;
	if (rd_kafka_query_watermark_offsets(k->rk, k->topic, partition, &lo, &hi, 5000))
		return SOURCE_E_NONE; /* asked again at the next read */
	k->parts[partition].assigned = false;
	if (offset >= lo && offset <= hi)
		return SOURCE_E_NONE; /* a passing answer: read again from there */
	memset(ret, 0, sizeof *ret);
	ret->offset = lo;
	return SOURCE_E_GAP;
}

static int kafka_read(struct source *s, int partition, int64_t offset, const int64_t *wanted, int n, int wait_ms, struct source_msg *ret)
{
	struct kafka *k = (struct kafka *)(void *)s;
	if (partition < 0 || partition >= k->n)
		return SOURCE_E_NONE;
	struct part *p = &k->parts[partition];
	rd_kafka_message_t *m;
	while ((m = rd_kafka_consumer_poll(k->rk, 0))) /* the consumer's own queue: errors without a partition */
		rd_kafka_message_destroy(m);
	if (!p->assigned || p->next != offset) {
		int r = assign_all(k, partition, offset, wanted, n);
		if (r)
			return r;
	}
	uint64_t until = clock_us() + (uint64_t)wait_ms * 1000;
	for (;;) {
		uint64_t now = clock_us();
		m = rd_kafka_consume_queue(p->queue, 0);
		if (!m && now >= until)
			return SOURCE_E_NONE;
		if (!m) { /* not in the library: its waits are by the wall clock, and last for as long as that is set back */
			(void)clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){.tv_nsec = 1000000}, NULL);
			continue;
		}
		if (m->err == RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET || m->err == RD_KAFKA_RESP_ERR_OFFSET_OUT_OF_RANGE) {
			rd_kafka_message_destroy(m);
			return gap(k, partition, offset, ret);
		}
		if (m->err || m->partition != partition || m->offset < offset) { /* -EOF and the like; stale after a re-assign */
			if (m->err && m->err != RD_KAFKA_RESP_ERR__PARTITION_EOF)
				in_trouble(k, partition, "partition %d: %.120s", partition, rd_kafka_err2str(m->err));
			rd_kafka_message_destroy(m);
			continue;
		}
		if (k->trouble_part < 0 || k->trouble_part == partition)
			k->trouble[0] = 0;
		p->next = m->offset + 1;
		rd_kafka_timestamp_type_t type;
		int64_t ms = rd_kafka_message_timestamp(m, &type);
		*ret = (struct source_msg){.offset = m->offset, .time_s = type == RD_KAFKA_TIMESTAMP_NOT_AVAILABLE || ms < 0 ? 0 : ms / 1000, .data = m->payload, .len = m->len, .owner = m};
		return 0;
	}
}

static void kafka_release(struct source *s, struct source_msg *m)
{
	(void)s;
	if (m->owner)
		rd_kafka_message_destroy(m->owner);
	memset(m, 0, sizeof *m);
}

static const char *kafka_cluster(struct source *s)
{
	struct kafka *k = (struct kafka *)(void *)s;
	return k->cluster_id ? k->cluster_id : "";
}

static int64_t kafka_lag(struct source *s, int partition, int64_t offset)
{
	struct kafka *k = (struct kafka *)(void *)s;
	int64_t lo = -1, hi = -1;
	if (partition >= k->n || rd_kafka_get_watermark_offsets(k->rk, k->topic, partition, &lo, &hi) || hi < 0)
		return -1;
	return hi > offset ? hi - offset : 0;
}

static const char *kafka_trouble(struct source *s)
{
	return ((struct kafka *)(void *)s)->trouble;
}

static struct source *kafka_free(struct source *s)
{
	struct kafka *k = (struct kafka *)(void *)s;
	if (!k)
		return NULL;
	for (int p = 0; p < k->n; p++)
		if (k->parts[p].queue)
			rd_kafka_queue_destroy(k->parts[p].queue);
	if (k->cluster_id)
		rd_kafka_mem_free(k->rk, k->cluster_id);
	if (k->rk) {
		(void)rd_kafka_consumer_close(k->rk);
		rd_kafka_destroy(k->rk);
	}
	free(k->parts);
	free(k->topic);
	free(k);
	return NULL;
}

int source_kafka_check(const char *extra, struct errtext *e)
{
	rd_kafka_conf_t *c = rd_kafka_conf_new();
	int r = c ? kafka_settings(extra, "source.conf", set, c, e) : -ENOMEM;
	if (c)
		rd_kafka_conf_destroy(c);
	return r;
}

int source_kafka_new(const struct source_options *o, struct source **ret, struct errtext *e)
{
	static const char *const fixed[][2] = {
		{"group.id", "redraft-learn"}, /* assign() wants a name; nothing is joined or committed */
		{"enable.auto.commit", "false"}, {"enable.auto.offset.store", "false"},
		{"auto.offset.reset", "error"}, {"check.crcs", "true"}, {"isolation.level", "read_uncommitted"},
		{"queued.max.messages.kbytes", "131072"}, {"fetch.message.max.bytes", "1048576"},
		{"client.id", "redraft-learn"},
	};
	struct kafka *k = calloc(1, sizeof *k);
	rd_kafka_conf_t *c = rd_kafka_conf_new();
	int r = k && c && (k->topic = strdup(o->topic)) ? 0 : -ENOMEM;
	for (size_t i = 0; i < sizeof fixed / sizeof *fixed && !r; i++)
		r = set(c, fixed[i][0], fixed[i][1], e);
	if (!r)
		r = set(c, "bootstrap.servers", o->brokers, e);
	if (!r)
		r = kafka_settings(o->extra, "source.conf", set, c, e);
	if (!r) {
		char why[160];
		rd_kafka_conf_set_error_cb(c, on_error);
		rd_kafka_conf_set_log_cb(c, quiet);
		rd_kafka_conf_set_opaque(c, k);
		k->rk = rd_kafka_new(RD_KAFKA_CONSUMER, c, why, sizeof why);
		if (k->rk)
			c = NULL;
		else
			r = errtext_set(e, -EINVAL, "source.conf: %s", why);
	}
	if (!r)
		r = rd_kafka_poll_set_consumer(k->rk) ? -EIO : 0;
	if (r) {
		if (c)
			rd_kafka_conf_destroy(c);
		if (k)
			kafka_free(&k->base);
		return r;
	}
	k->base = (struct source){kafka_partitions, kafka_read, kafka_release, kafka_cluster, kafka_lag, kafka_trouble, kafka_free};
	*ret = &k->base;
	return 0;
}
