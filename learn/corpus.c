/* Reading, importing and exporting recorded runs (learn/corpus.h). */
#include "learn/corpus.h"

#include <glob.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "learn/history.h"
#include "schemas/record.h"

enum { SEGMENT_BYTES = 64 << 20, PARTITIONS = 1024 };

static int run_closed(void *arg, struct run *r)
{
	struct corpus *c = arg;
	if (c->runs.n == c->cap) {
		int cap = c->cap ? 2 * c->cap : 256;
		int *v = realloc(c->pool_of, (size_t)cap * sizeof *v);
		if (!v) {
			run_done(r);
			return -ENOMEM;
		}
		c->pool_of = v;
		c->cap = cap;
	}
	c->pool_of[c->runs.n] = c->n_pools - 1;
	history_chain(&c->runs, r);
	r->first = history_repeated(&c->runs, r);
	if (r->n - r->first < JOIN_MIN_ROWS) { /* all of it was said before */
		run_done(r);
		return 0;
	}
	int k = runs_add(&c->runs, r);
	if (k)
		run_done(r);
	return k;
}

/* A record may lie in a pool twice: behind a learner's last checkpoint, or because it was kept from an old segment.
 * 1: seen before. */
static int seen(struct corpus *c, int partition, int64_t offset)
{
	uint64_t k = ((uint64_t)offset * PARTITIONS + (uint64_t)partition) + 1;
	if (2 * c->n_seen >= c->seen_cap) {
		size_t cap = c->seen_cap ? 2 * c->seen_cap : 1024;
		uint64_t *v = calloc(cap, sizeof *v);
		if (!v)
			return -ENOMEM;
		for (size_t i = 0; i < c->seen_cap; i++)
			if (c->seen[i]) {
				size_t at = (size_t)(c->seen[i] * 0x9e3779b97f4a7c15u) & (cap - 1);
				while (v[at])
					at = (at + 1) & (cap - 1);
				v[at] = c->seen[i];
			}
		free(c->seen);
		c->seen = v;
		c->seen_cap = cap;
	}
	size_t at = (size_t)(k * 0x9e3779b97f4a7c15u) & (c->seen_cap - 1);
	for (; c->seen[at]; at = (at + 1) & (c->seen_cap - 1))
		if (c->seen[at] == k)
			return 1;
	c->seen[at] = k;
	c->n_seen++;
	return 0;
}

static int take(void *arg, int partition, int64_t offset, const void *blob, uint32_t len, struct pool_ref ref)
{
	struct corpus *c = arg;
	struct trace_record r;
	struct errtext e = {""};
	int k = partition < 0 || partition >= PARTITIONS || offset < 0 ? 1 : seen(c, partition, offset);
	if (k) {
		c->refused += k > 0;
		return k < 0 ? k : 0;
	}
	k = record_decode(blob, len, (uint32_t)c->fz->V, &r, &e);
	if (k == -ENOMEM)
		return k;
	if (!k && (strcmp(r.meta.target_fp, c->fz->target_fp) != 0 || r.H_t != c->fz->H)) {
		(void)errtext_set(&e, 0, "target_fp is %.16s, the store's target is %.16s", r.meta.target_fp, c->fz->target_fp);
		record_done(&r);
		k = -EINVAL;
	}
	if (k) {
		c->refused++;
		memcpy(c->why, e.text, sizeof c->why);
		return 0;
	}
	c->records++;
	c->rows += r.T;
	c->generated += r.T_gen;
	k = join_add(&c->join, &r, partition, offset, 0, ref);
	record_done(&r);
	return k;
}

static int add_pool(struct corpus *c, const char *dir, struct errtext *e)
{
	struct pool_options o = {.dir = dir, .segment_bytes = SEGMENT_BYTES, .max_bytes = UINT64_MAX};
	uint64_t before = c->records;
	if (c->n_pools == CORPUS_MAX_POOLS)
		return errtext_set(e, -E2BIG, "more than %d folders of records", CORPUS_MAX_POOLS);
	int r = pool_open(&o, &c->pool[c->n_pools], e);
	if (r)
		return r;
	c->n_pools++;
	free(c->seen);
	c->seen = NULL;
	c->n_seen = c->seen_cap = 0;
	uint64_t next = c->join.next_id; /* requests do not go on from one folder to the next */
	join_done(&c->join);
	join_init(&c->join, run_closed, c);
	c->join.next_id = next;
	c->join.salt = (uint64_t)c->n_pools;
	r = pool_scan(c->pool[c->n_pools - 1], take, c);
	if (r)
		return errtext_set(e, r, "%.150s: %s", dir, strerror(-r));
	if (c->records == before)
		return errtext_set(e, -EINVAL, "%.100s holds no record of this target%s%.100s", dir, *c->why ? ": " : "", c->why);
	return 0;
}

int corpus_open(const char *dirs, const struct frozen *fz, struct corpus *ret, struct errtext *e)
{
	struct corpus *c = ret;
	char *copy = strdup(dirs), *save = NULL;
	int r = copy ? 0 : -ENOMEM;
	memset(c, 0, sizeof *c); /* filled in place: the join points back at it */
	c->fz = fz;
	join_init(&c->join, run_closed, c);
	for (char *dir = copy ? strtok_r(copy, " \t\n", &save) : NULL; dir && !r; dir = strtok_r(NULL, " \t\n", &save))
		r = add_pool(c, dir, e);
	free(copy);
	if (!r && !c->runs.n)
		r = errtext_set(e, -EINVAL, "no whole request in \"%.150s\"", dirs);
	if (r)
		corpus_close(c);
	return r;
}

void corpus_close(struct corpus *c)
{
	join_done(&c->join);
	runs_done(&c->runs);
	free(c->pool_of);
	free(c->seen);
	for (int i = 0; i < c->n_pools; i++)
		pool_close(c->pool[i]);
	memset(c, 0, sizeof *c);
}

bool corpus_whole(const struct corpus *c, int run)
{
	struct history h;
	history_find(&c->runs, NULL, &c->runs.v[run], &h);
	return h.kind == HISTORY_WHOLE;
}

int corpus_load(struct corpus *c, int run, int max_history, struct joined *ret)
{
	struct history h;
	const struct run *r = &c->runs.v[run];
	history_find(&c->runs, NULL, r, &h);
	int k = joined_load_after(c->pool[c->pool_of[run]], &h, max_history, r, (uint32_t)c->fz->V, ret);
	return k == -EIO && h.n ? joined_load(c->pool[c->pool_of[run]], r, (uint32_t)c->fz->V, ret) : k;
}

int corpus_load_window(struct corpus *c, int run, int lead, int row0, int n, struct joined *ret)
{
	struct history h;
	const struct run *r = &c->runs.v[run];
	struct pool *p = c->pool[c->pool_of[run]];
	history_find(&c->runs, NULL, r, &h);
	int k = joined_load_window(p, &h, lead, r, row0, n, (uint32_t)c->fz->V, ret);
	return k == -EIO && h.n ? joined_load_window(p, NULL, lead, r, row0, n, (uint32_t)c->fz->V, ret) : k;
}

int corpus_count(struct corpus *c, int run, uint64_t *counts)
{
	struct joined j = {0};
	int r = corpus_load(c, run, 0, &j);
	for (int i = 0; i <= j.n && !r; i++)
		counts[j.ids[i]]++;
	joined_done(&j);
	return r;
}

/* ---- files ---- */

static int import_file(struct pool *p, const char *path, int64_t offset, struct errtext *e)
{
	struct fs_map m = {0};
	struct trace_record r;
	struct pool_ref ref;
	struct errtext why = {""};
	int k = fs_map(path, &m);
	if (k)
		return errtext_set(e, k, "%.150s: %s", path, strerror(-k));
	k = m.len > RECORD_MAX_BYTES ? -EINVAL : record_decode(m.data, m.len, 0, &r, &why);
	if (k)
		(void)errtext_set(e, k, "%.120s is no trace record: %.100s", path, *why.text ? why.text : "too large");
	else {
		record_done(&r);
		if ((k = pool_append(p, 0, offset, 0, m.data, (uint32_t)m.len, &ref)))
			(void)errtext_set(e, k, "cannot keep %.150s: %s", path, strerror(-k));
	}
	fs_unmap(&m);
	return k;
}

int corpus_import(const char *patterns, struct pool *into, int *ret_n, struct errtext *e)
{
	char *copy = strdup(patterns), *save = NULL;
	glob_t g = {0};
	int r = copy ? 0 : -ENOMEM, flags = 0;
	for (char *pattern = copy ? strtok_r(copy, " \t\n", &save) : NULL; pattern && !r; pattern = strtok_r(NULL, " \t\n", &save)) {
		if (glob(pattern, flags, NULL, &g) || !g.gl_pathc)
			r = errtext_set(e, -EINVAL, "no file matches \"%.150s\"", pattern);
		flags = GLOB_APPEND;
	}
	for (size_t i = 0; i < g.gl_pathc && !r; i++)
		r = import_file(into, g.gl_pathv[i], (int64_t)i, e);
	if (!r) {
		*ret_n = (int)g.gl_pathc;
		r = pool_sync(into);
	}
	globfree(&g);
	free(copy);
	return r;
}

struct exporting {
	const char *dir;
	int64_t n;
};

static int export_one(void *arg, int partition, int64_t offset, const void *blob, uint32_t len, struct pool_ref ref)
{
	struct exporting *x = arg;
	char path[PATH_MAX];
	(void)partition, (void)offset, (void)ref;
	if (snprintf(path, sizeof path, "%s/%08lld.safetensors", x->dir, (long long)x->n) >= (int)sizeof path)
		return -ENAMETOOLONG;
	int r = fs_write_atomic(path, blob, len);
	x->n += !r;
	return r;
}

int corpus_export(const char *from, const char *dir, int64_t *ret_n, struct errtext *e)
{
	struct pool_options o = {.dir = from, .segment_bytes = SEGMENT_BYTES, .max_bytes = UINT64_MAX};
	struct exporting x = {.dir = dir};
	struct pool *p = NULL;
	int r = fs_mkdirs(dir);
	if (!r)
		r = pool_open(&o, &p, e);
	if (!r)
		r = pool_scan(p, export_one, &x);
	pool_close(p);
	if (r)
		return errtext_set(e, r, "export into %.150s: %s", dir, strerror(-r));
	*ret_n = x.n;
	return 0;
}
