/* Audit lines to Kafka (watch_audit.h). Keyed by the host's name, so that the lines of one daemon keep their order. */
#include "daemon/watch_audit.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/base/metrics.h"
#include "daemon/watch_inside.h"

struct watch_audit {
	rd_kafka_t *rk;
	char *topic, host[64];
	struct metric *sent, *failed; /* the registry's */
};

static void delivered(rd_kafka_t *rk, const rd_kafka_message_t *m, void *opaque)
{
	struct watch_audit *a = opaque;

	(void)rk;
	metric_add(m->err ? a->failed : a->sent, 1);
}

int watch_audit_new(const char *brokers, const char *topic, const char *conf, struct metrics *m, struct watch_audit **ret, struct errtext *e)
{
	static const char *const fixed[][2] = {
		{"acks", "all"}, {"message.timeout.ms", "0"}, {"linger.ms", "20"}, {"queue.buffering.max.kbytes", "4096"},
		{"queue.buffering.max.messages", "10000"}, {"max.in.flight.requests.per.connection", "1"}, /* a batch tried again overtakes none */
	};
	struct watch_audit *a;
	rd_kafka_conf_t *c;
	char why[160];

	*ret = NULL;
	if (!brokers[0] || !topic[0])
		return 0;
	a = calloc(1, sizeof *a);
	c = a ? watch_settings(brokers, conf, e) : NULL;
	if (!c) {
		int r = a ? -EINVAL : -ENOMEM;

		free(a);
		return r;
	}
	for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
		(void)rd_kafka_conf_set(c, fixed[i][0], fixed[i][1], why, sizeof why); /* known to every version */
	rd_kafka_conf_set_dr_msg_cb(c, delivered);
	rd_kafka_conf_set_opaque(c, a);
	a->topic = strdup(topic);
	(void)gethostname(a->host, sizeof a->host - 1);
	a->sent = metrics_counter(m, "redraft_audit_topic_total", "result=\"sent\"", "Audit lines given to the topic, and whether it took them.");
	a->failed = metrics_counter(m, "redraft_audit_topic_total", "result=\"failed\"", NULL);
	a->rk = a->topic ? rd_kafka_new(RD_KAFKA_PRODUCER, c, why, sizeof why) : NULL;
	if (!a->rk) {
		rd_kafka_conf_destroy(c);
		free(a->topic);
		free(a);
		return errtext_set(e, -EINVAL, "brokers: %.150s", why);
	}
	*ret = a;
	return 0;
}

struct watch_audit *watch_audit_free(struct watch_audit *a)
{
	if (!a)
		return NULL;
	(void)rd_kafka_flush(a->rk, 2000);
	(void)rd_kafka_purge(a->rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
	(void)rd_kafka_flush(a->rk, 500);
	rd_kafka_destroy(a->rk);
	free(a->topic);
	free(a);
	return NULL;
}

void watch_audit_send(struct watch_audit *a, const char *line, size_t len)
{
	if (a && rd_kafka_producev(a->rk, RD_KAFKA_V_TOPIC(a->topic), RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY), RD_KAFKA_V_KEY(a->host, strlen(a->host)),
				   RD_KAFKA_V_VALUE((void *)(uintptr_t)line, len), RD_KAFKA_V_END))
		metric_add(a->failed, 1);
}

void watch_audit_tick(struct watch_audit *a)
{
	if (a)
		(void)rd_kafka_poll(a->rk, 0);
}
