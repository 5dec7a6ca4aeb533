/* Joining (learn/join.h). Open parts are few (tens), so a scan finds them. */
#include "learn/join.h"

#include <stdlib.h>
#include <string.h>

void join_init(struct join *j, int (*closed)(void *arg, struct run *r), void *arg)
{
	*j = (struct join){.max_open = 256, .max_lag = 256, .next_id = 1, .closed = closed, .arg = arg};
}

void join_done(struct join *j)
{
	for (int i = 0; i < j->n; i++)
		run_done(&j->open[i].run);
	free(j->open);
	j->open = NULL;
	j->n = 0;
}

static void forget(struct join *j, int i)
{
	memmove(&j->open[i], &j->open[i + 1], (size_t)(j->n - i - 1) * sizeof *j->open);
	j->n--;
}

const struct run *join_find(const struct join *j, uint64_t name)
{
	for (int i = 0; name && i < j->n; i++)
		if (j->open[i].run.name == name)
			return &j->open[i].run;
	return NULL;
}

static int close_at(struct join *j, int i)
{
	struct run r = j->open[i].run;
	forget(j, i);
	if (r.n < JOIN_MIN_ROWS) {
		run_done(&r);
		return 0;
	}
	r.id = j->next_id++;
	return j->closed(j->arg, &r);
}

static int find(const struct join *j, const struct trace_record *r, int partition)
{
	for (int i = 0; i < j->n; i++)
		if (j->open[i].run.partition == partition && strcmp(j->open[i].request, r->meta.request) == 0 && strcmp(j->open[i].producer, r->meta.producer) == 0)
			return i;
	return -1;
}

/* Does the record continue the part? Rows must follow without a hole, in number and in text. */
static bool continues(const struct join_open *o, const struct trace_record *r)
{
	return r->meta.run == o->next_run && r->positions[0] == o->next_pos && r->token_ids[0] == o->next_token &&
	       (r->K == o->K || !r->T_gen || !o->K);
}

static uint64_t name_of(const struct join *j, int partition, const char *producer, const char *request, size_t request_len)
{
	const struct { uint64_t salt; int64_t partition; } where = {j->salt, partition};
	uint64_t h = run_hash(RUN_HASH, &where, sizeof where);
	h = run_hash(h, producer, strlen(producer));
	return run_hash(h, request, request_len);
}

/* Who it is and who its parent is. What `parent` says is believed only where the rows fit: it must end where this
 * request begins. */
static void kin(struct join *j, struct run *o, const struct trace_record *r, int partition)
{
	const struct trace_meta *m = &r->meta;
	const char *blank = strrchr(m->parent, ' ');
	o->name = name_of(j, partition, m->producer, m->request, strlen(m->request));
	o->conversation = run_text_hash(m->conversation);
	o->tenant = run_text_hash(m->tenant);
	if (!blank || blank == m->parent || m->run)
		return;
	char *end;
	unsigned long rows = strtoul(blank + 1, &end, 10);
	if (end == blank + 1 || *end || rows != o->pos0)
		return;
	o->parent_rows = o->pos0;
	o->parent = name_of(j, partition, m->producer, m->parent, (size_t)(blank - m->parent));
}

/* Hashes of whole blocks, each of its own tokens: they are chained when the run closes. */
static int hash_tokens(struct join_open *o, const struct trace_record *r)
{
	if (o->run.pos0 % RUN_BLOCK)
		return 0;
	for (int t = 0; t < r->T; t++) {
		o->block = run_hash(r->positions[t] % RUN_BLOCK ? o->block : RUN_HASH, &r->token_ids[t], sizeof *r->token_ids);
		int k = r->positions[t] % RUN_BLOCK == RUN_BLOCK - 1 ? run_path_add(&o->run, o->block) : 0;
		if (k)
			return k;
	}
	return 0;
}

static int start(struct join *j, const struct trace_record *r, int partition)
{
	if (j->n >= j->max_open) {
		int k = close_at(j, 0);
		if (k)
			return k;
	}
	struct join_open *v = realloc(j->open, (size_t)(j->n + 1) * sizeof *v);
	if (!v)
		return -ENOMEM;
	j->open = v;
	struct join_open *o = &v[j->n++];
	memset(o, 0, sizeof *o);
	(void)snprintf(o->request, sizeof o->request, "%s", r->meta.request);
	(void)snprintf(o->producer, sizeof o->producer, "%s", r->meta.producer);
	(void)snprintf(o->run.domain, sizeof o->run.domain, "%s", r->meta.domain);
	o->run.partition = partition;
	o->run.pos0 = r->positions[0];
	kin(j, &o->run, r, partition);
	return 0;
}

int join_add(struct join *j, const struct trace_record *r, int partition, int64_t offset, int64_t time_s, struct pool_ref ref)
{
	int i = find(j, r, partition), k;
	bool whole = i >= 0 && continues(&j->open[i], r), full = whole && j->open[i].run.n_refs == RUN_MAX_RECORDS;
	if (i >= 0 && (!whole || full)) {
		j->gaps += !whole;
		if ((k = close_at(j, i)))
			return k;
		i = -1;
	}
	if (i < 0) {
		if ((k = start(j, r, partition)))
			return k;
		i = j->n - 1;
	}
	struct join_open *o = &j->open[i];
	if (full) { /* the request goes on in another run, whose history is the one just closed */
		o->run.parent = o->run.name;
		o->run.parent_rows = o->run.pos0;
	}
	if ((k = run_ref_add(&o->run, ref, r->T)) || (k = hash_tokens(o, r)))
		return k;
	if (o->run.n == 0 || time_s < o->run.born)
		o->run.born = time_s;
	o->run.n += r->T;
	o->run.n_gen += r->T_gen;
	o->next_run = r->meta.run + 1;
	o->next_pos = r->positions[r->T - 1] + 1;
	o->next_token = r->next_token;
	for (int s = 0; s < r->S; s++) {
		uint32_t v = r->round_version[s], *d = o->run.drafted;
		d[0] = v && (!d[0] || v < d[0]) ? v : d[0];
		d[1] = v > d[1] ? v : d[1];
	}
	if (r->T_gen)
		o->K = r->K;
	o->last_offset = offset;
	if (r->meta.last && (k = close_at(j, i)))
		return k;
	for (i = 0; i < j->n;) { /* silent for too long on this partition */
		if (j->open[i].run.partition == partition && offset - j->open[i].last_offset > j->max_lag) {
			if ((k = close_at(j, i)))
				return k;
		} else
			i++;
	}
	return 0;
}

void join_drop(struct join *j, bool (*gone)(const struct run *r, int64_t x), int64_t x)
{
	for (int i = 0; i < j->n;) {
		if (gone(&j->open[i].run, x)) {
			run_done(&j->open[i].run);
			forget(j, i);
		} else
			i++;
	}
}

json_t *join_to_json(const struct join *j)
{
	json_t *open = json_array();
	for (int i = 0; i < j->n; i++) {
		const struct join_open *o = &j->open[i];
		json_t *v = json_pack("{s:s,s:s,s:I,s:I,s:I,s:i,s:I,s:o,s:I}", "request", o->request, "producer", o->producer, "next_run",
				      (json_int_t)o->next_run, "next_pos", (json_int_t)o->next_pos, "next_token", (json_int_t)o->next_token,
				      "K", o->K, "last_offset", (json_int_t)o->last_offset, "run", run_to_json(&o->run), "block", (json_int_t)o->block);
		if (!v || json_array_append_new(open, v)) {
			json_decref(open);
			return NULL;
		}
	}
	return json_pack("{s:I,s:I,s:o}", "next_id", (json_int_t)j->next_id, "gaps", (json_int_t)j->gaps, "open", open);
}

int join_from_json(struct join *j, const json_t *v)
{
	json_int_t next_id, gaps;
	json_t *open, *x;
	size_t i;
	if (json_unpack((json_t *)(uintptr_t)v, "{s:I,s:I,s:o}", "next_id", &next_id, "gaps", &gaps, "open", &open) || !json_is_array(open))
		return -EINVAL;
	j->next_id = (uint64_t)next_id;
	j->gaps = (uint64_t)gaps;
	json_array_foreach(open, i, x) {
		const char *request, *producer;
		json_int_t run, pos, token, last, block = 0;
		json_t *jr;
		struct join_open o = {0};
		if (json_unpack(x, "{s:s,s:s,s:I,s:I,s:I,s:i,s:I,s:o,s?I}", "request", &request, "producer", &producer, "next_run", &run,
				"next_pos", &pos, "next_token", &token, "K", &o.K, "last_offset", &last, "run", &jr, "block", &block) || run_from_json(jr, &o.run))
			return -EINVAL;
		(void)snprintf(o.request, sizeof o.request, "%s", request);
		(void)snprintf(o.producer, sizeof o.producer, "%s", producer);
		o.next_run = (uint32_t)run;
		o.next_pos = (uint32_t)pos;
		o.next_token = (uint32_t)token;
		o.last_offset = last;
		o.block = (uint64_t)block;
		struct join_open *w = realloc(j->open, (size_t)(j->n + 1) * sizeof *w);
		if (!w) {
			run_done(&o.run);
			return -ENOMEM;
		}
		j->open = w;
		w[j->n++] = o;
	}
	return 0;
}
