/* redraft-learn collect: the topic's records into a folder of pool segments, for `train --from_pool`.
 * redraft-learn export-records: that folder as single safetensors files, for other programs.
 *
 * collect starts at the oldest record the topic has, or behind what the folder holds already; it ends after
 * collect.tokens rows, collect.max_mb, or collect.idle_s without a new record, so it is always bounded. What is no
 * record of this target is left out and counted.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/base/clock.h"
#include "daemon/base/conf.h"
#include "learn/cmd.h"
#include "learn/corpus.h"
#include "learn/source.h"

enum { SEGMENT_BYTES = 64 << 20, PARTITIONS = 1024, WAIT_US = 100000, SAY_US = 1000000 };

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
	{"tokens", CONF_INT, AT(tokens), "1000000", 1, 1e12, NULL, false, "tok", "end after so many rows"},
	{"max_mb", CONF_INT, AT(max_mb), "16384", 1, 1e8, NULL, false, "MiB", "end when the folder is so large"},
	{"idle_s", CONF_INT, AT(idle_s), "30", 1, 1e7, NULL, false, "s", "end after so long without a new record"},
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

static volatile sig_atomic_t stopped;

static void on_signal(int s)
{
	(void)s;
	stopped = 1;
}

struct collecting {
	const struct conf *c;
	const struct frozen *fz;
	struct source *src;
	struct pool *pool;
	int64_t next[PARTITIONS];
	int64_t rows, records, refused, gaps;
};

static int already(void *arg, int partition, int64_t offset, const void *blob, uint32_t len, struct pool_ref ref)
{
	struct collecting *x = arg;
	struct trace_record r;
	(void)ref;
	if (partition >= 0 && partition < PARTITIONS)
		x->next[partition] = offset + 1;
	if (!record_decode(blob, len, 0, &r, NULL)) {
		x->rows += r.T;
		x->records++;
		record_done(&r);
	}
	return 0;
}

static int keep(struct collecting *x, int p, const struct source_msg *m)
{
	struct trace_record r;
	struct pool_ref ref;
	int k = m->len > RECORD_MAX_BYTES ? -EINVAL : record_decode(m->data, m->len, (uint32_t)x->fz->V, &r, NULL);
	if (k == -ENOMEM)
		return k;
	if (k) {
		x->refused++;
		return 0;
	}
	if (strcmp(r.meta.target_fp, x->fz->target_fp) != 0)
		x->refused++;
	else if (!(k = pool_append(x->pool, p, m->offset, m->time_s, m->data, (uint32_t)m->len, &ref))) {
		x->rows += r.T;
		x->records++;
	}
	record_done(&r);
	return k;
}

/* What one partition has now, a few records at a time, so that partitions keep in step. *ret_n += taken. */
static int take(struct collecting *x, int p, int n_parts, int *ret_n)
{
	for (int i = 0; i < 8; i++) {
		struct source_msg m;
		int r = x->src->read(x->src, p, x->next[p], x->next, n_parts, 0, &m);
		if (r == SOURCE_E_GAP) { /* the log starts later, or anew */
			x->gaps += x->next[p] > 0;
			x->next[p] = m.offset;
			return 0;
		}
		if (r)
			return r == SOURCE_E_NONE ? 0 : r;
		r = keep(x, p, &m);
		x->next[p] = m.offset + 1;
		x->src->release(x->src, &m);
		if (r)
			return r;
		++*ret_n;
	}
	return 0;
}

static int collect(struct collecting *x, struct errtext *e)
{
	uint64_t heard = clock_us(), said = 0;
	int r = pool_scan(x->pool, already, x);
	while (!r && !stopped && x->rows < x->c->tokens && pool_bytes(x->pool) < (uint64_t)x->c->max_mb << 20) {
		int n = 0, n_parts = x->src->partitions(x->src);
		n_parts = n_parts < PARTITIONS ? n_parts : PARTITIONS;
		for (int p = 0; p < n_parts && !r; p++)
			r = take(x, p, n_parts, &n);
		if (n)
			heard = clock_us();
		else if (clock_us() - heard > (uint64_t)x->c->idle_s * 1000000)
			break;
		else
			(void)nanosleep(&(struct timespec){.tv_nsec = WAIT_US * 1000L}, NULL);
		if (clock_us() - said > SAY_US) {
			fprintf(stderr, "\r%" PRId64 " of %" PRId64 " rows, %" PRId64 " records, %" PRIu64 " MiB ", x->rows, x->c->tokens, x->records, pool_bytes(x->pool) >> 20);
			said = clock_us();
		}
	}
	if (!r)
		r = pool_sync(x->pool);
	fprintf(stderr, "\n");
	if (!r && x->src->partitions(x->src) <= 0)
		return errtext_set(e, -EHOSTUNREACH, "nobody answers at %.100s: %.100s", x->c->brokers, x->src->trouble(x->src));
	return r ? errtext_set(e, r, "collect: %s", strerror(-r)) : 0;
}

int cmd_collect(int argc, char **argv)
{
	struct conf c;
	struct frozen fz = {0};
	struct errtext e = {""};
	struct collecting x = {.c = &c, .fz = &fz};
	int r = conf_load(&collect_program, argc, argv, &c, NULL, 0, NULL, &e);
	if (r)
		return r > 0 ? 0 : cmd_fail("collect", -EINVAL, &e);
	struct pool_options po = {.dir = c.out, .segment_bytes = SEGMENT_BYTES, .max_bytes = UINT64_MAX};
	struct source_options so = {.brokers = c.brokers, .topic = c.topic, .extra = *c.source_conf ? c.source_conf : NULL};
	(void)signal(SIGINT, on_signal);
	(void)signal(SIGTERM, on_signal);
	r = frozen_open(c.store, c.target_fp, &fz, &e);
	if (!r)
		r = pool_open(&po, &x.pool, &e);
	if (!r)
		r = source_kafka_new(&so, &x.src, &e);
	if (!r)
		r = collect(&x, &e);
	if (!r)
		printf("%" PRId64 " rows in %" PRId64 " records; %" PRId64 " refused, %" PRId64 " gaps\n", x.rows, x.records, x.refused, x.gaps);
	if (x.src)
		x.src->free(x.src);
	pool_close(x.pool);
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
