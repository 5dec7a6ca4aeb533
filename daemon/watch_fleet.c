/* The leader's word over Kafka (watch_fleet.h). The reader assigns partition 0 at its beginning each time that the topic is found anew:
 * compacted, it holds one record a target. The producer has one word out at a time; what comes meanwhile takes the place of what waits.
 */
#include "daemon/watch_fleet.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "daemon/base/clock.h"
#include "daemon/watch_inside.h"

enum { FLEET_TARGETS = 32, FLEET_VALUE = 1024, FLEET_PAUSE_US = 250000, FLEET_AGAIN_US = 2000000 };

struct watch_fleet {
	rd_kafka_t *reader, *writer;
	char *topic;
	pthread_t thread;
	bool started;
	atomic_bool stop;
	pthread_mutex_t lock; /* guards word .. trouble */
	struct fleet_word word[FLEET_TARGETS];
	int n_words;
	bool read;            /* to its end, once */
	bool up;
	char trouble[160];
	/* the loop's */
	struct fleet_word next; /* to be said; target_fp "" = nothing */
	bool out;               /* one is with the library */
	uint64_t again_us;
};

/* ---- reading ---- */

static void trouble(struct watch_fleet *w, bool up, const char *text)
{
	pthread_mutex_lock(&w->lock);
	w->up = up;
	snprintf(w->trouble, sizeof w->trouble, "%.150s", text);
	pthread_mutex_unlock(&w->lock);
}

static void on_error(rd_kafka_t *rk, int err, const char *reason, void *opaque)
{
	(void)rk;
	(void)err;
	trouble(opaque, false, reason);
}

static bool counts_over(const struct fleet_word *a, const struct fleet_word *b)
{
	return a->epoch > b->epoch || (a->epoch == b->epoch && strcmp(a->run, b->run) >= 0);
}

static void take(struct watch_fleet *w, const rd_kafka_message_t *m)
{
	struct fleet_word x;
	struct errtext e;
	int i = 0;

	if (fleet_word_decode(m->payload, m->len, &x, &e) < 0) {
		trouble(w, true, e.text);
		return;
	}
	pthread_mutex_lock(&w->lock);
	while (i < w->n_words && strcmp(w->word[i].target_fp, x.target_fp) != 0)
		i++;
	if (i == w->n_words && i < FLEET_TARGETS)
		w->n_words++;
	if (i < FLEET_TARGETS && counts_over(&x, &w->word[i]))
		w->word[i] = x;
	else if (i < FLEET_TARGETS)
		w->word[i].buried = true;
	w->up = true;
	w->trouble[0] = '\0';
	pthread_mutex_unlock(&w->lock);
}

static int assign(struct watch_fleet *w)
{
	rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);

	rd_kafka_topic_partition_list_add(list, w->topic, 0)->offset = RD_KAFKA_OFFSET_BEGINNING;
	(void)rd_kafka_assign(w->reader, NULL);
	rd_kafka_resp_err_t err = rd_kafka_assign(w->reader, list);
	rd_kafka_topic_partition_list_destroy(list);
	return err ? -EIO : 0;
}

static void *fleet_run(void *arg)
{
	struct watch_fleet *w = arg;
	uint64_t assign_us = 0; /* when to assign (again); UINT64_MAX: all is well */

	while (!atomic_load(&w->stop)) {
		rd_kafka_message_t *m;

		if (clock_us() >= assign_us)
			assign_us = assign(w) ? clock_us() + FLEET_AGAIN_US : UINT64_MAX;
		m = rd_kafka_consumer_poll(w->reader, 0); /* it must not wait by the wall clock (watch_kafka.c) */
		if (!m) {
			(void)clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){.tv_nsec = FLEET_PAUSE_US * 1000}, NULL);
		} else if (m->err == RD_KAFKA_RESP_ERR__PARTITION_EOF) {
			pthread_mutex_lock(&w->lock);
			w->read = w->up = true;
			w->trouble[0] = '\0';
			pthread_mutex_unlock(&w->lock);
		} else if (m->err) { /* no such topic yet, no rule for us: as if it were new, in a while */
			trouble(w, false, rd_kafka_err2str(m->err));
			assign_us = clock_us() + FLEET_AGAIN_US;
		} else {
			take(w, m);
		}
		if (m)
			rd_kafka_message_destroy(m);
	}
	return NULL;
}

/* ---- saying ---- */

static void send_next(struct watch_fleet *w)
{
	char value[FLEET_VALUE];

	if (w->out || !w->next.target_fp[0] || clock_us() < w->again_us || fleet_word_encode(&w->next, value, sizeof value) < 0)
		return;
	w->out = !rd_kafka_producev(w->writer, RD_KAFKA_V_TOPIC(w->topic), RD_KAFKA_V_PARTITION(0), RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
				    RD_KAFKA_V_KEY(w->next.target_fp, strlen(w->next.target_fp)), RD_KAFKA_V_VALUE(value, strlen(value)), RD_KAFKA_V_END);
	if (w->out)
		w->next.target_fp[0] = '\0';
}

static void delivered(rd_kafka_t *rk, const rd_kafka_message_t *m, void *opaque)
{
	struct watch_fleet *w = opaque;
	struct fleet_word x;
	struct errtext e;

	(void)rk;
	w->out = false;
	if (!m->err)
		return;
	trouble(w, false, rd_kafka_err2str(m->err));
	w->again_us = clock_us() + FLEET_AGAIN_US;
	if (!w->next.target_fp[0] && fleet_word_decode(m->payload, m->len, &x, &e) == 0)
		w->next = x;
}

void watch_fleet_say(struct watch_fleet *w, const struct fleet_word *word)
{
	w->next = *word;
	send_next(w);
}

void watch_fleet_tick(struct watch_fleet *w)
{
	(void)rd_kafka_poll(w->writer, 0);
	send_next(w);
}

int watch_fleet_word(struct watch_fleet *w, const char *target_fp, struct fleet_word *ret)
{
	int r;

	pthread_mutex_lock(&w->lock);
	r = w->read ? -ENOENT : -EAGAIN;
	for (int i = 0; w->read && i < w->n_words; i++)
		if (!strcmp(w->word[i].target_fp, target_fp)) {
			*ret = w->word[i];
			r = 0;
		}
	pthread_mutex_unlock(&w->lock);
	return r;
}

bool watch_fleet_up(struct watch_fleet *w, char *ret_trouble, size_t size)
{
	bool up;

	pthread_mutex_lock(&w->lock);
	up = w->up;
	snprintf(ret_trouble, size, "%s", w->trouble);
	pthread_mutex_unlock(&w->lock);
	return up;
}

/* ---- life ---- */

static int client(struct watch_fleet *w, rd_kafka_type_t type, const char *brokers, const char *conf, rd_kafka_t **ret, struct errtext *e)
{
	static const char *const reader[][2] = {{"group.id", "redraftd-fleet"}, /* named, never joined */
						{"enable.auto.commit", "false"}, {"auto.offset.reset", "earliest"}, {"enable.partition.eof", "true"}};
	static const char *const writer[][2] = {{"acks", "all"}, {"message.timeout.ms", "0"}, {"linger.ms", "0"}, {"max.in.flight.requests.per.connection", "1"}};
	bool reads = type == RD_KAFKA_CONSUMER;
	rd_kafka_conf_t *c = watch_settings(brokers, conf, e);
	char why[160];

	if (!c)
		return -EINVAL;
	for (int i = 0; i < 4; i++)
		(void)rd_kafka_conf_set(c, reads ? reader[i][0] : writer[i][0], reads ? reader[i][1] : writer[i][1], why, sizeof why); /* known to every version */
	rd_kafka_conf_set_opaque(c, w);
	if (reads)
		rd_kafka_conf_set_error_cb(c, on_error);
	else
		rd_kafka_conf_set_dr_msg_cb(c, delivered);
	*ret = rd_kafka_new(type, c, why, sizeof why);
	if (*ret)
		return 0;
	rd_kafka_conf_destroy(c);
	return errtext_set(e, -EINVAL, "brokers: %.150s", why);
}

int watch_fleet_new(const char *brokers, const char *topic, const char *conf, struct watch_fleet **ret, struct errtext *e)
{
	struct watch_fleet *w = calloc(1, sizeof *w);
	int r = w && (w->topic = strdup(topic)) ? 0 : -ENOMEM;

	if (w)
		pthread_mutex_init(&w->lock, NULL);
	if (!r)
		r = client(w, RD_KAFKA_CONSUMER, brokers, conf, &w->reader, e);
	if (!r)
		r = client(w, RD_KAFKA_PRODUCER, brokers, conf, &w->writer, e);
	if (!r && rd_kafka_poll_set_consumer(w->reader))
		r = -EIO;
	if (!r && pthread_create(&w->thread, NULL, fleet_run, w) != 0)
		r = -ENOMEM;
	if (r < 0) {
		watch_fleet_free(w);
		return r;
	}
	w->started = true;
	*ret = w;
	return 0;
}

struct watch_fleet *watch_fleet_free(struct watch_fleet *w)
{
	if (!w)
		return NULL;
	atomic_store(&w->stop, true);
	if (w->started)
		pthread_join(w->thread, NULL);
	if (w->reader) {
		(void)rd_kafka_consumer_close(w->reader);
		rd_kafka_destroy(w->reader);
	}
	if (w->writer) {
		(void)rd_kafka_flush(w->writer, 1000);
		(void)rd_kafka_purge(w->writer, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
		(void)rd_kafka_flush(w->writer, 500);
		rd_kafka_destroy(w->writer);
	}
	pthread_mutex_destroy(&w->lock);
	free(w->topic);
	free(w);
	return NULL;
}
