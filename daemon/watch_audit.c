/* Audit lines to Kafka (watch_audit.h). Keyed by the host's name, so that the lines of one daemon keep their order.
 *
 * The lines wait in a queue of our own; the client library is given the first of them, and the next when all it was given
 * have been answered. So a line that is refused (no rule for us, no such topic) is still the first, and goes again every few
 * seconds, alone, until it is taken: what follows never overtakes it by more than the batch in which the refusals began.
 */
#include "daemon/watch_audit.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/base/clock.h"
#include "daemon/base/metrics.h"
#include "daemon/news.h"
#include "daemon/watch_inside.h"

enum { AUDIT_BATCH = 256, AUDIT_AGAIN_US = 2000000, AUDIT_BYTES = 4 << 20 };

struct line {
	struct line *next;
	bool out, taken; /* with the library; taken by the broker */
	size_t len;
	char text[];
};

struct watch_audit {
	rd_kafka_t *rk;
	char *topic, host[64];
	struct line *first, **end;
	size_t bytes;       /* of all lines that wait */
	int n, n_out;       /* that wait; of these, with the library */
	bool refused, over; /* the last answer was a refusal; lines found no room, since all were gone last */
	uint64_t again_us;  /* not before, after a refusal */
	char said[WATCH_TEXT];
	struct metric *sent, *failed, *waiting; /* the registry's */
};

static void PRINTF(2, 3) say(struct watch_audit *a, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(a->said, sizeof a->said, fmt, ap);
	va_end(ap);
}

/* Lines at the head that the broker has. */
static void forget_taken(struct watch_audit *a)
{
	struct line *l;

	while ((l = a->first) && l->taken && !l->out) {
		a->first = l->next;
		if (!a->first)
			a->end = &a->first;
		a->bytes -= l->len;
		a->n--;
		free(l);
	}
	if (!a->first)
		a->over = false;
	metric_set(a->waiting, a->n);
}

static void delivered(rd_kafka_t *rk, const rd_kafka_message_t *m, void *opaque)
{
	struct watch_audit *a = opaque;
	struct line *l = m->_private;

	(void)rk;
	a->n_out--;
	l->out = false;
	l->taken = !m->err;
	if (m->err) {
		if (!a->refused)
			say(a, "Kafka does not take audit lines for %.60s (%.80s): they wait in memory and go in their order when it does; the file has every one",
			    a->topic, rd_kafka_err2str(m->err));
		a->refused = true;
		a->again_us = clock_us() + AUDIT_AGAIN_US;
	} else {
		if (a->refused)
			say(a, "topic %.60s takes audit lines again", a->topic);
		a->refused = false;
		metric_add(a->sent, 1);
	}
	forget_taken(a);
}

/* Gives the library the first lines, unless it has some: one alone after a refusal. */
static void pump(struct watch_audit *a)
{
	int most = a->refused ? 1 : AUDIT_BATCH;

	if (a->n_out || (a->refused && clock_us() < a->again_us))
		return;
	for (struct line *l = a->first; l && a->n_out < most; l = l->next) {
		if (l->taken)
			continue;
		if (rd_kafka_producev(a->rk, RD_KAFKA_V_TOPIC(a->topic), RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY), RD_KAFKA_V_KEY(a->host, strlen(a->host)),
				      RD_KAFKA_V_VALUE(l->text, l->len), RD_KAFKA_V_OPAQUE(l), RD_KAFKA_V_END))
			return; /* no room in the library: the next tick */
		l->out = true;
		a->n_out++;
	}
}

int watch_audit_new(const char *brokers, const char *topic, const char *conf, struct metrics *m, struct watch_audit **ret, struct errtext *e)
{
	static const char *const fixed[][2] = {
		{"acks", "all"}, {"message.timeout.ms", "0"}, {"linger.ms", "20"}, {"queue.buffering.max.kbytes", "8192"},
		{"max.in.flight.requests.per.connection", "1"}, /* a batch tried again overtakes none */
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
	a->end = &a->first;
	(void)gethostname(a->host, sizeof a->host - 1);
	a->sent = metrics_counter(m, "redraft_audit_topic_total", "result=\"sent\"", "Audit lines that the topic took; failed: that found no room to wait for it.");
	a->failed = metrics_counter(m, "redraft_audit_topic_total", "result=\"failed\"", NULL);
	a->waiting = metrics_gauge(m, "redraft_audit_topic_waiting", NULL, "Audit lines that wait for their topic to take them; the file has them.");
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
	(void)rd_kafka_flush(a->rk, 500); /* every line it has comes back to delivered() */
	rd_kafka_destroy(a->rk);
	for (struct line *l = a->first, *next; l; l = next) {
		next = l->next;
		free(l);
	}
	free(a->topic);
	free(a);
	return NULL;
}

void watch_audit_send(struct watch_audit *a, const char *line, size_t len)
{
	struct line *l = a && a->bytes + len <= AUDIT_BYTES ? malloc(sizeof *l + len) : NULL;

	if (!a)
		return;
	if (!l) {
		metric_add(a->failed, 1);
		if (!a->over)
			say(a, "no more audit lines can wait for topic %.60s: further ones are in the file only", a->topic);
		a->over = true;
		return;
	}
	*l = (struct line){.len = len};
	memcpy(l->text, line, len);
	*a->end = l;
	a->end = &l->next;
	a->bytes += len;
	metric_set(a->waiting, ++a->n);
	pump(a);
}

void watch_audit_tick(struct watch_audit *a)
{
	if (!a)
		return;
	(void)rd_kafka_poll(a->rk, 0);
	pump(a);
}

bool watch_audit_said(struct watch_audit *a, char *ret, size_t size)
{
	return a && news_take(a->said, ret, size);
}
