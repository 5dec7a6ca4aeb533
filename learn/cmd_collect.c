/* redraft-learn collect: the topic's records into a folder of pool segments (learn/collect.h), for `train --from_pool`.
 * redraft-learn export-records: that folder as single safetensors files, for other programs.
 *
 * collect starts at the oldest record the topic has, or behind what the folder holds already; it ends after
 * collect.tokens rows, collect.max_mb, or collect.idle_s without a new record, so it is always bounded. What is no
 * record of this target is left out and counted.
 */
#include <inttypes.h>
#include <signal.h>
#include <string.h>

#include "daemon/base/conf.h"
#include "learn/cmd.h"
#include "learn/collect.h"
#include "learn/corpus.h"

struct conf {
	char *store, *target_fp, *brokers, *source_conf, *topic, *out, *from_pool;
	int64_t tokens, idle_s, max_mb;
};

#define AT(f) offsetof(struct conf, f)
static const struct conf_entry collect_entries[] = {
	{"out", CONF_STRING, AT(out), NULL, 0, 0, NULL, false, "", "folder that takes the records"},
	{"brokers", CONF_STRING, AT(brokers), NULL, 0, 0, NULL, false, "", "Kafka bootstrap servers"},
	{"topic", CONF_STRING, AT(topic), "redraft.traces", 0, 0, NULL, false, "", "topic of the trace records"},
	{"source.conf", CONF_STRING, AT(source_conf), "", 0, 0, NULL, false, "", "more librdkafka settings, k=v,k=v"},
	{"store", CONF_STRING, AT(store), "/var/lib/redraft/store", 0, 0, NULL, false, "", "version store, for the target's frozen file"},
	{"target_fp", CONF_STRING, AT(target_fp), "", 0, 0, NULL, false, "", "fingerprint of the target; empty = the only one in store/frozen"},
	{"tokens", CONF_INT, AT(tokens), CONF_TEXT(COLLECT_TOKENS), 1, 1e12, NULL, false, "tok", "end after so many rows"},
	{"max_mb", CONF_INT, AT(max_mb), CONF_TEXT(COLLECT_MB), 1, 1e8, NULL, false, "MiB", "end when the folder is so large"},
	{"idle_s", CONF_INT, AT(idle_s), CONF_TEXT(COLLECT_IDLE_S), 1, 1e7, NULL, false, "s", "end after so long without a new record"},
	{NULL, CONF_STRING, 0, NULL, 0, 0, NULL, false, NULL, NULL},
};
static const struct conf_program collect_program = {
	.name = "redraft-learn collect", .summary = "Copies trace records from the topic into a folder, bounded, for redraft-learn train.",
	.entries = collect_entries, .struct_size = sizeof(struct conf)};

static const struct conf_entry export_entries[] = {
	{"from_pool", CONF_STRING, AT(from_pool), NULL, 0, 0, NULL, false, "", "folder of pool segments"},
	{"out", CONF_STRING, AT(out), NULL, 0, 0, NULL, false, "", "folder that takes one file a record"},
	{NULL, CONF_STRING, 0, NULL, 0, 0, NULL, false, NULL, NULL},
};
static const struct conf_program export_program = {
	.name = "redraft-learn export-records", .summary = "Writes each record of a pool folder as a safetensors file of its own.",
	.entries = export_entries, .struct_size = sizeof(struct conf)};

static volatile int stopped;

static void on_signal(int s)
{
	(void)s;
	stopped = 1;
}

int cmd_collect(int argc, char **argv)
{
	struct conf c;
	struct frozen fz = {0};
	struct errtext e = {""};
	struct collected n = {0};
	int r = conf_load(&collect_program, argc, argv, &c, NULL, 0, NULL, &e);
	if (r)
		return r > 0 ? 0 : cmd_fail("collect", -EINVAL, &e);
	const struct collect_options o = {.source = {.brokers = c.brokers, .topic = c.topic, .extra = *c.source_conf ? c.source_conf : NULL}, .dir = c.out,
					  .tokens = c.tokens, .max_mb = c.max_mb, .idle_s = c.idle_s, .stop = &stopped};
	(void)signal(SIGINT, on_signal);
	(void)signal(SIGTERM, on_signal);
	r = frozen_open(c.store, c.target_fp, &fz, &e);
	if (!r)
		r = collect_records(&o, &fz, &n, &e);
	if (!r)
		printf("%" PRId64 " rows in %" PRId64 " records; %" PRId64 " refused, %" PRId64 " gaps\n", n.rows, n.records, n.refused, n.gaps);
	frozen_close(&fz);
	conf_done(&collect_program, &c);
	return !r ? 0 : r == -EHOSTUNREACH ? (cmd_fail("collect", r, &e), 3) : cmd_fail("collect", r, &e);
}

static int export_records(const void *conf, struct errtext *e)
{
	const struct conf *c = conf;
	int64_t n = 0;
	int r = corpus_export(c->from_pool, c->out, &n, e);
	if (!r)
		printf("%" PRId64 " records\n", n);
	return r;
}

int cmd_export_records(int argc, char **argv)
{
	return cmd_run("export-records", &export_program, argc, argv, &(struct conf){0}, export_records);
}
