/* The thread that reads redraft.rounds. assign() at explicit places with auto.offset.reset=error, since that alone shows
 * that something was lost (watch_place.c). Each such thing, a broker that comes or goes, a leader that moves and a login that is refused is one sentence with its consequence
 * (watch_said), said once until it changes.
 *
 * It waits at a pipe, not in the library, whose waits are by the wall clock: set back by an hour, they would last for one.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/base/clock.h"
#include "daemon/base/credential.h"
#include "daemon/watch_inside.h"
#include "schemas/round.h"

enum { WATCH_POLL_MS = 200, WATCH_LOOK_MS = 1000, LEADER_UNSEEN = -2 };
enum { WATCH_STOOD_US = 5 * 1000000 }; /* so long late: we were stopped */

void watch_say(struct watch *w, const char *fmt, ...)
{
	struct watch_kafka *k = &w->kafka;
	va_list ap;

	pthread_mutex_lock(&w->lock);
	if (k->n_said == WATCH_SAID)
		memmove(k->said[0], k->said[1], (size_t)--k->n_said * sizeof k->said[0]);
	va_start(ap, fmt);
	vsnprintf(k->said[k->n_said++], WATCH_TEXT, fmt, ap);
	va_end(ap);
	pthread_mutex_unlock(&w->lock);
}

static void trouble(struct watch *w, const char *text)
{
	pthread_mutex_lock(&w->lock);
	snprintf(w->kafka.trouble, sizeof w->kafka.trouble, "%s", text);
	pthread_mutex_unlock(&w->lock);
}

static void answers(struct watch *w)
{
	if (!w->kafka.up) {
		w->back_us = 0; /* who knows whether it is still the same */
		watch_say(w, "Kafka at %.80s answers: round records are read, accept length and drift are watched", w->brokers);
	}
	w->kafka.up = true;
	w->kafka.refused = false;
	w->gone_said = false;
	trouble(w, "");
}

static void gone(struct watch *w)
{
	if (!w->gone_said)
		watch_say(w, "Kafka at %.80s does not answer: accept length and drift stand still until it does; serving, rollout and rollback need it not", w->brokers);
	w->gone_said = true;
	w->kafka.up = false;
}

static void on_error(rd_kafka_t *rk, int err, const char *reason, void *opaque)
{
	struct watch *w = opaque;

	(void)rk;
	trouble(w, reason);
	switch (err) {
	case RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN:
		gone(w);
		break;
	case RD_KAFKA_RESP_ERR__AUTHENTICATION:
		if (!w->kafka.refused)
			watch_say(w, "Kafka at %.60s refuses our login (%.100s): nothing is watched; look at the credential kafka.conf", w->brokers, reason);
		w->kafka.refused = true;
		w->kafka.up = false;
		break;
	default: /* the library tries again by itself */
		break;
	}
}

/* All n of them, more than are read so far: those that are go on where they are. */
static void watch_assign_all(struct watch *w, int n)
{
	rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(n), *old = NULL;

	for (int i = 0; i < n; i++)
		rd_kafka_topic_partition_list_add(list, w->topic, i)->offset =
			w->was_absent || w->n_partitions ? RD_KAFKA_OFFSET_BEGINNING : RD_KAFKA_OFFSET_END;
	if (w->n_partitions && rd_kafka_assignment(w->rk, &old) == RD_KAFKA_RESP_ERR_NO_ERROR) {
		(void)rd_kafka_position(w->rk, old);
		for (int i = 0; i < old->cnt; i++)
			if (old->elems[i].partition < n)
				list->elems[old->elems[i].partition].offset =
					old->elems[i].offset >= 0 ? old->elems[i].offset : RD_KAFKA_OFFSET_END;
		rd_kafka_topic_partition_list_destroy(old);
	}
	struct watch_place *place = realloc(w->place, (size_t)n * sizeof *place);
	if (place)
		w->place = place;
	if (place && rd_kafka_assign(w->rk, list) == RD_KAFKA_RESP_ERR_NO_ERROR) {
		for (int i = w->n_partitions; i < n; i++)
			place[i] = (struct watch_place){.next = -1, .mark = -1, .leader = LEADER_UNSEEN};
		w->n_partitions = n;
	}
	rd_kafka_topic_partition_list_destroy(list);
	pthread_mutex_lock(&w->lock);
	w->kafka.partitions = w->n_partitions;
	pthread_mutex_unlock(&w->lock);
}

/* Who leads each partition that is read: one that moved is read on from its new leader, one without is not read. */
static void watch_leaders(struct watch *w, const rd_kafka_metadata_topic_t *t)
{
	int moved = 0, lost = 0, to = -1;

	for (int i = 0; i < t->partition_cnt; i++) {
		int32_t id = t->partitions[i].id, is = t->partitions[i].leader, was;

		if (id < 0 || id >= w->n_partitions)
			continue;
		was = w->place[id].leader;
		w->place[id].leader = is;
		if (was == LEADER_UNSEEN || is == was)
			continue;
		lost += is < 0;
		moved += is >= 0;
		to = is >= 0 ? is : to;
	}
	if (moved)
		watch_say(w, "%d partition%s of %.60s moved to another broker (%d): read on there, nothing is lost", moved, moved == 1 ? "" : "s", w->topic, to);
	if (lost)
		watch_say(w, "%d partition%s of %.60s without a leader: what is served waits there, and is not in accept length until there is one", lost,
		    lost == 1 ? "" : "s", w->topic);
}

/* What the broker says of the topic: md, owned by the caller, with its error in *ret_err; NULL: no answer. */
static const struct rd_kafka_metadata *watch_metadata(struct watch *w, rd_kafka_resp_err_t *ret_err)
{
	rd_kafka_topic_t *t = rd_kafka_topic_new(w->rk, w->topic, NULL);
	const struct rd_kafka_metadata *md = NULL;

	if (t && (rd_kafka_metadata(w->rk, 0, t, &md, WATCH_LOOK_MS) || md->topic_cnt != 1)) {
		if (md)
			rd_kafka_metadata_destroy(md);
		md = NULL;
	}
	if (t)
		rd_kafka_topic_destroy(t);
	*ret_err = md ? md->topics[0].err : RD_KAFKA_RESP_ERR_NO_ERROR;
	return md;
}

/* The topic was deleted, or made anew with fewer: nothing is read of it any more. */
static void watch_unassign(struct watch *w, int n)
{
	if (n)
		watch_say(w, "topic %.80s was made anew with %d partitions: read from its beginning", w->topic, n);
	(void)rd_kafka_assign(w->rk, NULL);
	w->n_partitions = 0;
	w->was_absent = true;
	pthread_mutex_lock(&w->lock);
	w->kafka.partitions = 0;
	w->kafka.lag = -1;
	pthread_mutex_unlock(&w->lock);
}

/* Look at the topic, and read all of its partitions; nothing is done where nobody answers. */
static void watch_look(struct watch *w)
{
	rd_kafka_resp_err_t err;
	const struct rd_kafka_metadata *md = watch_metadata(w, &err);
	int n = !md ? -1 : err ? 0 : md->topics[0].partition_cnt;

	w->silent = md ? 0 : w->silent + 1;
	if (md)
		answers(w);
	if (w->silent > 1 && !w->kafka.refused) /* one may be a matter of a busy broker; the library does not tell of every one that went */
		gone(w);
	if (err == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED) {
		if (!w->denied_said)
			watch_say(w, "Kafka does not let us read topic %.80s: nothing is watched; give our user Read and Describe on it", w->topic);
		w->denied_said = true;
		trouble(w, "may not read the topic");
		n = -1;
	} else {
		w->denied_said = w->denied_said && !md;
	}
	if (n == 0) {
		if (w->n_partitions)
			watch_say(w, "topic %.80s was deleted: nothing is watched until it is made again (redraftctl topics --create)", w->topic);
		w->was_absent = true;
	}
	if (n >= 0 && n < w->n_partitions)
		watch_unassign(w, n);
	if (n > w->n_partitions)
		watch_assign_all(w, n);
	if (n > 0)
		watch_leaders(w, &md->topics[0]);
	if (md)
		rd_kafka_metadata_destroy(md);
}

static void watch_message(struct watch *w, const rd_kafka_message_t *m)
{
	struct round_record r;
	struct errtext e;
	int64_t ms;

	if (m->err == RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET || m->err == RD_KAFKA_RESP_ERR_OFFSET_OUT_OF_RANGE)
		watch_gap(w, m);
	if (m->err)
		return; /* the rest is tried again by the library */
	answers(w);
	if (!watch_place_take(w, m))
		return;
	ms = rd_kafka_message_timestamp(m, NULL);
	if (round_decode(m->payload, m->len, &r, &e) == 0) {
		watch_take(w, &r);
		pthread_mutex_lock(&w->lock);
	} else {
		pthread_mutex_lock(&w->lock);
		w->bad++;
	}
	w->kafka.seen_ms = ms > 0 ? ms : w->kafka.seen_ms;
	pthread_mutex_unlock(&w->lock);
}

/* What waits, as far as the library knows from its last fetches. */
static void watch_measure(struct watch *w)
{
	rd_kafka_topic_partition_list_t *pos = NULL;
	int64_t lag = 0, known = 0;

	if (!w->n_partitions || rd_kafka_assignment(w->rk, &pos))
		return;
	(void)rd_kafka_position(w->rk, pos);
	for (int i = 0; i < pos->cnt; i++) {
		int64_t lo = -1, hi = -1;

		if (rd_kafka_get_watermark_offsets(w->rk, w->topic, pos->elems[i].partition, &lo, &hi) || hi < 0)
			continue;
		known++;
		if (pos->elems[i].offset >= 0 && hi > pos->elems[i].offset)
			lag += hi - pos->elems[i].offset;
	}
	rd_kafka_topic_partition_list_destroy(pos);
	pthread_mutex_lock(&w->lock);
	w->kafka.lag = known ? lag : -1;
	pthread_mutex_unlock(&w->lock);
}

/* The next message, waiting for it at the pipe; NULL: none within the time, or it is over. */
static rd_kafka_message_t *watch_next(struct watch *w)
{
	rd_kafka_message_t *m = rd_kafka_consumer_poll(w->rk, 0);
	struct pollfd p = {.fd = w->wake[0], .events = POLLIN};
	char drop[64];

	if (m || poll(&p, 1, WATCH_POLL_MS) <= 0)
		return m;
	while (read(w->wake[0], drop, sizeof drop) == sizeof drop)
		;
	return rd_kafka_consumer_poll(w->rk, 0);
}

static void *watch_run(void *arg)
{
	struct watch *w = arg;
	uint64_t look_us = 0, now;
	int polls = 0;

	while (!atomic_load(&w->stop)) {
		rd_kafka_message_t *m;

		now = clock_us();
		if (look_us && now > look_us + WATCH_STOOD_US)
			w->back_us = 0;
		if (now >= look_us) {
			watch_look(w);
			look_us = clock_us() + (w->n_partitions ? 5000000 : 1000000);
		}
		if (now >= w->back_us && w->kafka.up)
			watch_look_back(w);
		m = watch_next(w);
		if (!m || ++polls % 256 == 0)
			watch_measure(w);
		if (!m)
			continue;
		watch_message(w, m);
		rd_kafka_message_destroy(m);
	}
	return NULL;
}

/* ---- life ---- */

static int watch_set(void *c, const char *key, const char *value, struct errtext *e)
{
	char why[160];

	if (rd_kafka_conf_set(c, key, value, why, sizeof why) == RD_KAFKA_CONF_OK)
		return 0;
	return errtext_set(e, -EINVAL, "watch.conf: %.100s", why);
}

static void watch_silent(const rd_kafka_t *rk, int level, const char *fac, const char *text)
{
	(void)rk;
	(void)level;
	(void)fac;
	(void)text; /* what matters comes through on_error */
}

rd_kafka_conf_t *watch_settings(const char *brokers, const char *conf, struct errtext *e)
{
	rd_kafka_conf_t *c = rd_kafka_conf_new();
	int r = watch_set(c, "bootstrap.servers", brokers, e);

	rd_kafka_conf_set_log_cb(c, watch_silent);
	if (!r)
		r = watch_set(c, "client.id", "redraftd", e);
	if (!r)
		r = kafka_settings(conf, "watch.conf", watch_set, c, e);
	if (r) {
		rd_kafka_conf_destroy(c);
		return NULL;
	}
	return c;
}

int watch_check(const char *conf, struct errtext *e)
{
	rd_kafka_conf_t *c = conf[0] ? watch_settings("", conf, e) : NULL;

	if (c)
		rd_kafka_conf_destroy(c);
	return c || !conf[0] ? 0 : -EINVAL;
}

int watch_connect(struct watch *w, struct errtext *e)
{
	static const char *const fixed[][2] = {
		{"group.id", "redraftd-watch"}, /* named, never joined: we assign */
		{"enable.auto.commit", "false"}, {"auto.offset.reset", "error"}, {"queued.max.messages.kbytes", "4096"},
	};
	rd_kafka_conf_t *c = watch_settings(w->brokers, w->conf, e);
	char why[160];
	int r = c ? 0 : -EINVAL;

	for (size_t i = 0; !r && i < sizeof fixed / sizeof *fixed; i++)
		r = watch_set(c, fixed[i][0], fixed[i][1], e);
	if (!r) {
		rd_kafka_conf_set_error_cb(c, on_error);
		rd_kafka_conf_set_opaque(c, w);
		w->rk = rd_kafka_new(RD_KAFKA_CONSUMER, c, why, sizeof why);
		if (w->rk)
			c = NULL; /* taken */
		else
			r = errtext_set(e, -EINVAL, "brokers: %.150s", why);
	}
	if (c)
		rd_kafka_conf_destroy(c);
	if (!r && rd_kafka_poll_set_consumer(w->rk)) /* so that on_error is called from our polls */
		r = -EIO;
	if (!r && pipe2(w->wake, O_CLOEXEC | O_NONBLOCK) < 0)
		r = -errno;
	if (!r) {
		rd_kafka_queue_t *q = rd_kafka_queue_get_consumer(w->rk);

		rd_kafka_queue_io_event_enable(q, w->wake[1], "m", 1);
		rd_kafka_queue_destroy(q);
	}
	if (!r && pthread_create(&w->thread, NULL, watch_run, w) != 0)
		r = -ENOMEM;
	w->started = !r;
	return r;
}

void watch_disconnect(struct watch *w)
{
	atomic_store(&w->stop, true);
	if (w->started) {
		(void)!write(w->wake[1], "x", 1); /* full: it wakes up all the same */
		pthread_join(w->thread, NULL);
	}
	if (w->rk) {
		(void)rd_kafka_consumer_close(w->rk);
		rd_kafka_destroy(w->rk);
	}
	for (int i = 0; i < 2; i++)
		if (w->wake[i] >= 0)
			close(w->wake[i]);
	free(w->place);
}
