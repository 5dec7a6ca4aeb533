/* librdkafka as the tap uses it (serve/tap_produce.h).
 *
 * Settings that matter: idempotence, so that the order within a partition holds;
 * a bounded queue and a short message timeout, because a stale trace is
 * worthless and must not hold memory; never RD_KAFKA_MSG_F_BLOCK. Delivery reports
 * are served by tap_producer_poll, on the one thread that also produces, so the
 * counts need no lock. Values go by reference (MSG_F_FREE), without a copy.
 */
#include "daemon/base/credential.h"
#include "serve/tap_produce.h"

#include <librdkafka/rdkafka.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/base/clock.h"

enum { RENEW_AFTER_US = 1000000, PROBE_EACH_US = 1000000, PROBE_MS = 20 };

struct tap_producer {
	struct tap_producer_options o; /* brokers and extra_conf are owned copies */
	rd_kafka_t *rk; /* NULL between a death and the renewal */
	bool fatal;
	uint64_t renew_at, probe_at;
	bool down; /* librdkafka says when the last broker goes, not when one is back: that we ask */
};

static void on_report(rd_kafka_t *rk, const rd_kafka_message_t *m, void *opaque)
{
	struct tap_producer *p = opaque;

	(void)rk;
	if (!m->err)
		p->down = false;
	(m->err ? p->o.on_lost : p->o.on_delivered)(p->o.arg, (uint64_t)(uintptr_t)m->_private);
}

static void on_error(rd_kafka_t *rk, int err, const char *reason, void *opaque)
{
	struct tap_producer *p = opaque;

	(void)rk;
	(void)reason;
	if (err == RD_KAFKA_RESP_ERR__FATAL)
		p->fatal = true;
	if (err == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN)
		p->down = true;
}

static void on_log(const rd_kafka_t *rk, int level, const char *facility, const char *text)
{
	(void)rk, (void)level, (void)facility, (void)text; /* rooms do not log; the counters tell */
}

static int set(void *c, const char *key, const char *value, struct errtext *e)
{
	char why[160];

	if (rd_kafka_conf_set(c, key, value, why, sizeof why) != RD_KAFKA_CONF_OK)
		return errtext_set(e, -EINVAL, "capture: Kafka setting %.60s: %s", key, why);
	return 0;
}

static int configure(const struct tap_producer *p, rd_kafka_conf_t *c, struct errtext *e)
{
	static const char *const fixed[][2] = {
		{"client.id", "redraft-serve"},
		{"enable.idempotence", "true"},
		{"message.max.bytes", "1000000"},
		{"batch.size", "1000000"},
		{"linger.ms", "30"},
		{"message.timeout.ms", "15000"},
		{"partitioner", "murmur2_random"},
		{"reconnect.backoff.max.ms", "2000"},
		{"socket.keepalive.enable", "true"},
		{"compression.codec", "none"},
	};
	char kbytes[24];
	size_t kb = p->o.queue_bytes / 1024;
	int r = set(c, "bootstrap.servers", p->o.brokers, e);

	for (size_t i = 0; r == 0 && i < sizeof fixed / sizeof fixed[0]; i++)
		r = set(c, fixed[i][0], fixed[i][1], e);
	(void)snprintf(kbytes, sizeof kbytes, "%zu", kb < 1 ? 1 : kb > 2097151 ? 2097151 : kb);
	if (r == 0)
		r = set(c, "queue.buffering.max.kbytes", kbytes, e);
	if (r == 0)
		r = kafka_settings(p->o.extra_conf, "capture.conf", set, c, e);
	rd_kafka_conf_set_dr_msg_cb(c, on_report);
	rd_kafka_conf_set_error_cb(c, on_error);
	rd_kafka_conf_set_log_cb(c, on_log);
	rd_kafka_conf_set_opaque(c, (void *)(uintptr_t)p);
	return r;
}

int tap_producer_check(const char *extra_conf, struct errtext *e)
{
	const struct tap_producer p = {.o = {.brokers = "", .extra_conf = extra_conf}};
	rd_kafka_conf_t *c = rd_kafka_conf_new();
	int r = c ? configure(&p, c, e) : -ENOMEM;

	if (c)
		rd_kafka_conf_destroy(c);
	return r;
}

static int connect_handle(struct tap_producer *p, struct errtext *e)
{
	rd_kafka_conf_t *c = rd_kafka_conf_new();
	char why[160];
	int r = c ? configure(p, c, e) : -ENOMEM;

	if (r == 0) {
		p->rk = rd_kafka_new(RD_KAFKA_PRODUCER, c, why, sizeof why);
		if (p->rk) {
			p->fatal = false;
			return 0;
		}
		r = errtext_set(e, -EINVAL, "capture: %s", why);
	}
	if (c)
		rd_kafka_conf_destroy(c);
	return r;
}

static void give_up(struct tap_producer *p, int flush_ms)
{
	if (!p->rk)
		return;
	if (flush_ms > 0)
		(void)rd_kafka_flush(p->rk, flush_ms);
	(void)rd_kafka_purge(p->rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
	(void)rd_kafka_flush(p->rk, 200); /* reports of what was purged */
	rd_kafka_destroy(p->rk);
	p->rk = NULL;
}

int tap_producer_new(const struct tap_producer_options *o, struct tap_producer **ret, struct errtext *e)
{
	struct tap_producer *p = calloc(1, sizeof *p);

	if (!p)
		return errtext_set(e, -ENOMEM, "out of memory");
	p->o = *o;
	p->o.brokers = strdup(o->brokers);
	p->o.extra_conf = o->extra_conf && *o->extra_conf ? strdup(o->extra_conf) : NULL;
	int r = p->o.brokers ? connect_handle(p, e) : -ENOMEM;
	if (r < 0) {
		tap_producer_free(p, 0);
		return r;
	}
	*ret = p;
	return 0;
}

struct tap_producer *tap_producer_free(struct tap_producer *p, int ms)
{
	if (p) {
		give_up(p, ms);
		free((char *)(uintptr_t)p->o.brokers);
		free((char *)(uintptr_t)p->o.extra_conf);
		free(p);
	}
	return NULL;
}

static int add(rd_kafka_headers_t *h, const char *name, const char *value)
{
	return rd_kafka_header_add(h, name, -1, value, -1) ? -ENOMEM : 0;
}

/* CloudEvents, binary mode: schemas/record.md is the contract. */
static rd_kafka_headers_t *headers(const struct tap_producer *p, const struct tap_message *m)
{
	rd_kafka_headers_t *h = rd_kafka_headers_new(8);
	char now[32];
	int r = h ? 0 : -ENOMEM;

	clock_iso8601(clock_wall_ms(), now);
	if (r == 0)
		r = add(h, "ce_specversion", "1.0");
	if (r == 0)
		r = add(h, "ce_type", m->ce_type);
	if (r == 0)
		r = add(h, "ce_source", p->o.source);
	if (r == 0)
		r = add(h, "ce_id", m->id);
	if (r == 0)
		r = add(h, "ce_time", now);
	if (r == 0)
		r = add(h, "content-type", m->content_type);
	if (r == 0)
		r = add(h, "schema", "1");
	if (r == 0)
		r = add(h, "target_fp", p->o.target_fp);
	if (r < 0 && h) {
		rd_kafka_headers_destroy(h);
		h = NULL;
	}
	return h;
}

int tap_produce(struct tap_producer *p, struct tap_message *m)
{
	if (!p->rk || p->fatal)
		return TAP_PRODUCE_E_OTHER;
	rd_kafka_headers_t *h = headers(p, m);
	if (!h)
		return TAP_PRODUCE_E_OTHER;
	rd_kafka_resp_err_t err =
		rd_kafka_producev(p->rk, RD_KAFKA_V_TOPIC(m->topic), RD_KAFKA_V_KEY(m->key, strlen(m->key)), RD_KAFKA_V_HEADERS(h),
				  RD_KAFKA_V_VALUE(m->value->data, m->value->len), RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_FREE),
				  RD_KAFKA_V_OPAQUE((void *)(uintptr_t)m->tag), RD_KAFKA_V_END);
	if (err) {
		rd_kafka_headers_destroy(h);
		return err == RD_KAFKA_RESP_ERR__QUEUE_FULL          ? TAP_PRODUCE_E_FULL
		       : err == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE ? TAP_PRODUCE_E_SIZE
								     : TAP_PRODUCE_E_OTHER;
	}
	*m->value = BUF_INIT(m->value->max); /* librdkafka frees it */
	return 0;
}

bool tap_producer_down(const struct tap_producer *p)
{
	return p->down || !p->rk;
}

/* While down, and only then: costs at most PROBE_MS a second. */
static void probe(struct tap_producer *p)
{
	const struct rd_kafka_metadata *md;

	if (!p->down || !p->rk || clock_us() < p->probe_at)
		return;
	if (rd_kafka_metadata(p->rk, 0, NULL, &md, PROBE_MS) == RD_KAFKA_RESP_ERR_NO_ERROR) {
		rd_kafka_metadata_destroy(md);
		p->down = false;
	}
	p->probe_at = clock_us() + PROBE_EACH_US;
}

void tap_producer_poll(struct tap_producer *p)
{
	probe(p);
	if (p->rk)
		(void)rd_kafka_poll(p->rk, 0);
	if (p->rk && p->fatal) {
		give_up(p, 0);
		p->renew_at = clock_us() + RENEW_AFTER_US;
	}
	if (!p->rk && clock_us() >= p->renew_at) {
		p->renew_at = clock_us() + RENEW_AFTER_US;
		(void)connect_handle(p, NULL);
	}
}
