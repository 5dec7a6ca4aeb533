/* Looking at topics through Kafka's admin interface (watch_topics.h). What is wanted is one table; what is there is compared
 * with it, and each difference is a sentence that names the consequence. Nothing that exists is ever changed.
 */
#include "daemon/watch_topics.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/watch_inside.h"

enum { TOPICS_N = 4, TOPICS_MS = 10000, TOPICS_LEAST_BYTES = 1000000 };
enum { LOOKS = 20, LOOK_US = 200000 }; /* a topic just made is not known to every broker at once */

struct wanted {
	const char *name, *cleanup, *why; /* why: what goes wrong when it is not there */
	int partitions;
	double retention_h;               /* 0 = for ever */
	bool large;                       /* records of up to 900 kB */
};

struct topics {
	const struct topics_options *o;
	rd_kafka_t *rk;
	struct wanted want[TOPICS_N];
};

static rd_kafka_event_t *ask(rd_kafka_queue_t *q, struct errtext *e)
{
	rd_kafka_event_t *ev = rd_kafka_queue_poll(q, TOPICS_MS + 2000);

	if (!ev)
		(void)errtext_set(e, 0, "the broker does not answer");
	else if (rd_kafka_event_error(ev))
		(void)errtext_set(e, 0, "%.200s", rd_kafka_event_error_string(ev));
	if (ev && rd_kafka_event_error(ev)) {
		rd_kafka_event_destroy(ev);
		return NULL;
	}
	return ev;
}

/* ---- making ---- */

static rd_kafka_NewTopic_t *new_topic(const struct topics *t, const struct wanted *w)
{
	char why[160], ms[32] = "-1";
	rd_kafka_NewTopic_t *n = rd_kafka_NewTopic_new(w->name, w->partitions, t->o->replication ? t->o->replication : -1, why, sizeof why);

	if (!n)
		return NULL;
	if (w->retention_h > 0)
		snprintf(ms, sizeof ms, "%.0f", w->retention_h * 3600e3);
	(void)rd_kafka_NewTopic_set_config(n, "cleanup.policy", w->cleanup);
	(void)rd_kafka_NewTopic_set_config(n, "retention.ms", ms);
	if (w->large)
		(void)rd_kafka_NewTopic_set_config(n, "max.message.bytes", "1048588");
	return n;
}

/* "" = made, else why not. */
static void make(struct topics *t, const struct wanted *w, char *ret_why, size_t size)
{
	rd_kafka_queue_t *q = rd_kafka_queue_new(t->rk);
	rd_kafka_NewTopic_t *n = new_topic(t, w);
	rd_kafka_AdminOptions_t *o = rd_kafka_AdminOptions_new(t->rk, RD_KAFKA_ADMIN_OP_CREATETOPICS);
	struct errtext e = {.text = "out of memory"};
	char why[8];

	(void)rd_kafka_AdminOptions_set_request_timeout(o, TOPICS_MS, why, sizeof why);
	(void)rd_kafka_AdminOptions_set_operation_timeout(o, TOPICS_MS, why, sizeof why); /* until it can be used */
	ret_why[0] = '\0';
	if (n)
		rd_kafka_CreateTopics(t->rk, &n, 1, o, q);
	rd_kafka_event_t *ev = n ? ask(q, &e) : NULL;
	if (ev) {
		size_t k = 0;
		const rd_kafka_topic_result_t **res = rd_kafka_CreateTopics_result_topics(rd_kafka_event_CreateTopics_result(ev), &k);

		if (k && rd_kafka_topic_result_error(res[0]) && rd_kafka_topic_result_error(res[0]) != RD_KAFKA_RESP_ERR_TOPIC_ALREADY_EXISTS)
			snprintf(ret_why, size, "%s", rd_kafka_topic_result_error_string(res[0]) ? rd_kafka_topic_result_error_string(res[0])
											       : rd_kafka_err2str(rd_kafka_topic_result_error(res[0])));
		rd_kafka_event_destroy(ev);
	} else {
		snprintf(ret_why, size, "%.190s", e.text);
	}
	if (n)
		rd_kafka_NewTopic_destroy(n);
	rd_kafka_AdminOptions_destroy(o);
	rd_kafka_queue_destroy(q);
}

/* ---- looking ---- */

/* The topic's settings that we care about, as text; NULL when they may not be read. */
static json_t *settings(struct topics *t, const char *name)
{
	static const char *const keys[] = {"cleanup.policy", "retention.ms", "retention.bytes", "max.message.bytes", "min.insync.replicas", "segment.bytes"};
	rd_kafka_ConfigResource_t *res = rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, name);
	rd_kafka_queue_t *q = rd_kafka_queue_new(t->rk);
	struct errtext ignored;
	json_t *out = NULL;

	rd_kafka_DescribeConfigs(t->rk, &res, 1, NULL, q);
	rd_kafka_event_t *ev = ask(q, &ignored);
	if (ev) {
		size_t n = 0, k = 0;
		const rd_kafka_ConfigResource_t **got = rd_kafka_DescribeConfigs_result_resources(rd_kafka_event_DescribeConfigs_result(ev), &n);
		const rd_kafka_ConfigEntry_t **entry = n && !rd_kafka_ConfigResource_error(got[0]) ? rd_kafka_ConfigResource_configs(got[0], &k) : NULL;

		out = entry ? json_object() : NULL;
		for (size_t i = 0; i < k; i++)
			for (size_t j = 0; j < sizeof keys / sizeof *keys; j++)
				if (!strcmp(rd_kafka_ConfigEntry_name(entry[i]), keys[j]) && rd_kafka_ConfigEntry_value(entry[i]))
					(void)json_object_set_new(out, keys[j], json_string(rd_kafka_ConfigEntry_value(entry[i])));
		rd_kafka_event_destroy(ev);
	}
	rd_kafka_ConfigResource_destroy(res);
	rd_kafka_queue_destroy(q);
	return out;
}

static double setting(const json_t *config, const char *key)
{
	const char *s = json_string_value(json_object_get(config, key));

	return s ? atof(s) : NAN;
}

static void PRINTF(2, 3) problem(json_t *list, const char *fmt, ...)
{
	char text[300];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	(void)json_array_append_new(list, json_string(text));
}

static void compare(const struct wanted *w, const json_t *config, json_t *list)
{
	const char *cleanup = json_string_value(json_object_get(config, "cleanup.policy"));
	double ms = setting(config, "retention.ms"), most = setting(config, "max.message.bytes"), segment = setting(config, "segment.bytes");

	if (cleanup && strcmp(cleanup, w->cleanup) != 0)
		problem(list, "cleanup.policy is %.40s, not %s: %s", cleanup, w->cleanup,
			w->cleanup[0] == 'd' ? "records would be merged by their key" : "what was said last would be forgotten after a while");
	if (w->retention_h > 0 && ms >= 0 && ms < w->retention_h * 3600e3 * 0.999)
		problem(list, "retention.ms keeps %.1f h, not %.1f: a reader that is away for longer loses records", ms / 3600e3, w->retention_h);
	if (w->retention_h > 0 && ms < 0)
		problem(list, "retention.ms is without end: what users asked stays for ever");
	if (w->large && most < TOPICS_LEAST_BYTES)
		problem(list, "max.message.bytes is %.0f: trace records of up to 900,000 bytes would be refused", most);
	if (w->large && segment < 2 * TOPICS_LEAST_BYTES)
		problem(list, "segment.bytes is %.0f: a batch of 1,000,000 bytes may not fit and would be lost", segment);
}

static json_t *look(struct topics *t, const struct wanted *w, bool create, bool *good)
{
	const struct rd_kafka_metadata *md = NULL;
	rd_kafka_topic_t *topic = rd_kafka_topic_new(t->rk, w->name, NULL);
	json_t *problems = json_array(), *config = NULL;
	rd_kafka_resp_err_t err = RD_KAFKA_RESP_ERR__FAIL;
	int partitions = 0, replication = 0;
	bool made = false;
	char why[200] = "";

	for (int again = 0; topic && again < LOOKS; again++) {
		err = rd_kafka_metadata(t->rk, 0, topic, &md, TOPICS_MS);
		if (!err && md->topic_cnt == 1)
			err = md->topics[0].err;
		if (!err) {
			partitions = md->topics[0].partition_cnt;
			replication = partitions ? md->topics[0].partitions[0].replica_cnt : 0;
		}
		if (md)
			rd_kafka_metadata_destroy(md);
		md = NULL;
		if ((err != RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART && err != RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC) || !create || why[0])
			break;
		if (made)
			usleep(LOOK_US);
		else
			make(t, w, why, sizeof why);
		made = !why[0];
	}
	if (topic)
		rd_kafka_topic_destroy(topic);
	if (why[0])
		problem(problems, "it could not be made: %s", why);
	else if (err)
		problem(problems, "%.120s; %s", rd_kafka_err2str(err), w->why);
	for (int again = 0; !err && !config && again < (made ? LOOKS : 1); again++) {
		if (again)
			usleep(LOOK_US);
		config = settings(t, w->name);
	}
	if (config)
		compare(w, config, problems);
	if (!err && partitions < w->partitions)
		problem(problems, "it has %d partitions, %d are wanted: fewer readers can share it", partitions, w->partitions);
	*good = *good && !json_array_size(problems);
	return json_pack("{s:s, s:b, s:b, s:i, s:i, s:o, s:o}", "topic", w->name, "exists", (int)!err, "made", (int)made, "partitions", partitions,
			 "replication", replication, "config", config ? config : json_null(), "problems", problems);
}

json_t *topics_check(const struct topics_options *o, bool create, struct errtext *e)
{
	struct topics t = {.o = o, .want = {{o->traces, "delete", "nothing can be learned from", o->partitions, o->traces_h, true},
				    {o->rounds, "delete", "accept length and drift are not watched", o->partitions, o->rounds_h, false},
				    {o->audit, "delete", "the audit log has no second copy", 1, 0, false},
				    {o->events, "compact", "followers do not hear which version is live", 1, 0, false}}};
	rd_kafka_conf_t *c = watch_settings(o->brokers, o->conf, e);
	const struct rd_kafka_metadata *md = NULL;
	json_t *list = NULL;
	bool good = true;
	char why[160];

	if (!c)
		return NULL;
	t.rk = rd_kafka_new(RD_KAFKA_PRODUCER, c, why, sizeof why);
	if (!t.rk) {
		rd_kafka_conf_destroy(c);
		(void)errtext_set(e, 0, "brokers: %.150s", why);
		return NULL;
	}
	rd_kafka_resp_err_t err = rd_kafka_metadata(t.rk, 0, NULL, &md, TOPICS_MS);
	if (err) {
		(void)errtext_set(e, 0, "Kafka at %.100s does not answer: %.80s", o->brokers, rd_kafka_err2str(err));
	} else {
		rd_kafka_metadata_destroy(md);
		list = json_array();
		for (int i = 0; i < TOPICS_N; i++)
			if (t.want[i].name[0])
				(void)json_array_append_new(list, look(&t, &t.want[i], create, &good));
	}
	rd_kafka_destroy(t.rk);
	return list ? json_pack("{s:s, s:o, s:b}", "brokers", o->brokers, "topics", list, "good", (int)good) : NULL;
}
