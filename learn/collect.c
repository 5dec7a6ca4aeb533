/* Reading the topic into a folder (learn/collect.h), the partitions in step. What is no record of this target is left out and counted. */
#include "learn/collect.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "learn/pool.h"
#include "schemas/record.h"

enum { SEGMENT_BYTES = 64 << 20, PARTITIONS = 1024, WAIT_US = 100000, SAY_US = 1000000 };

struct collecting {
	const struct collect_options *o;
	const struct frozen *fz;
	struct source *src;
	struct pool *pool;
	int64_t next[PARTITIONS];
	struct collected n;
};

static int already(void *arg, int partition, int64_t offset, const void *blob, uint32_t len, struct pool_ref ref)
{
	struct collecting *x = arg;
	struct trace_record r;
	(void)ref;
	if (partition >= 0 && partition < PARTITIONS)
		x->next[partition] = offset + 1;
	if (!record_decode(blob, len, 0, &r, NULL)) {
		x->n.rows += r.T;
		x->n.records++;
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
		x->n.refused++;
		return 0;
	}
	if (strcmp(r.meta.target_fp, x->fz->target_fp) != 0)
		x->n.refused++;
	else if (!(k = pool_append(x->pool, p, m->offset, m->time_s, m->data, (uint32_t)m->len, &ref))) {
		x->n.rows += r.T;
		x->n.records++;
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
			x->n.gaps += x->next[p] > 0;
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

/* Every partition as far as it is known to go; one that is not known yet (no answer came) is not at its end. */
static bool at_end(struct collecting *x, int n_parts)
{
	for (int p = 0; p < n_parts; p++)
		if (x->src->lag(x->src, p, x->next[p]) != 0)
			return false;
	return n_parts > 0;
}

static int collect(struct collecting *x, struct errtext *e)
{
	uint64_t heard = clock_us(), said = 0;
	bool tty = isatty(2); /* elsewhere a line now and then, as `train` does */
	int r = pool_scan(x->pool, already, x);
	while (!r && !*x->o->stop && x->n.rows < x->o->tokens && pool_bytes(x->pool) < (uint64_t)x->o->max_mb << 20) {
		int n = 0, n_parts = x->src->partitions(x->src);
		n_parts = n_parts < PARTITIONS ? n_parts : PARTITIONS;
		for (int p = 0; p < n_parts && !r; p++)
			r = take(x, p, n_parts, &n);
		if (n)
			heard = clock_us();
		else if (x->o->to_end && at_end(x, n_parts))
			break;
		else if (clock_us() - heard > (uint64_t)x->o->idle_s * 1000000)
			break;
		else
			(void)nanosleep(&(struct timespec){.tv_nsec = WAIT_US * 1000L}, NULL);
		if (clock_us() - said > (uint64_t)(tty ? SAY_US : 30 * SAY_US)) {
			fprintf(stderr, "%s%" PRId64 " of %" PRId64 " rows, %" PRId64 " records, %" PRIu64 " MiB%s", tty ? "\r" : "", x->n.rows, x->o->tokens, x->n.records, pool_bytes(x->pool) >> 20, tty ? " " : "\n");
			said = clock_us();
		}
	}
	if (!r)
		r = pool_sync(x->pool);
	if (tty)
		fprintf(stderr, "\n");
	if (!r && x->src->partitions(x->src) <= 0)
		return errtext_set(e, -EHOSTUNREACH, "nothing can be read at %.100s: %.100s", x->o->source.brokers, x->src->trouble(x->src));
	return r ? errtext_set(e, r, "collect: %s", strerror(-r)) : 0;
}

int collect_records(const struct collect_options *o, const struct frozen *fz, struct collected *ret, struct errtext *e)
{
	struct collecting *x = calloc(1, sizeof *x);
	struct pool_options po = {.dir = o->dir, .segment_bytes = SEGMENT_BYTES, .max_bytes = UINT64_MAX};
	if (!x)
		return -ENOMEM;
	x->o = o;
	x->fz = fz;
	int r = pool_open(&po, &x->pool, e);
	if (!r)
		r = source_kafka_new(&o->source, &x->src, e);
	if (!r)
		r = collect(x, e);
	*ret = x->n;
	if (x->src)
		x->src->free(x->src);
	pool_close(x->pool);
	free(x);
	return r;
}
