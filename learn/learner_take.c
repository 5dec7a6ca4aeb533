/* Records on their way in: validated, counted, pooled, joined (learn/learner.h).
 *
 * A record that fails validation goes to state_dir/set-aside with its reason
 * (bounded in number and bytes; past that it is only counted) and the cursor
 * moves on: one bad producer must not stop the learner, nor fill its disk.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/base/clock.h"
#include "learn/keep.h"

enum { ASIDE_FILES = 200, ASIDE_BYTES = 64 << 20, READ_AGAIN_MS = 200 };
enum { LOOK_US = 300 * 1000000, LOOK_WAIT_US = 2 * 1000000 }; /* a look back costs what was fetched ahead */

int learner_cursors(struct learner *l, int n)
{
	if (n <= l->n_parts)
		return 0;
	if (n > MAX_PARTITIONS)
		return -E2BIG;
	struct cursor *v = realloc(l->at, (size_t)n * sizeof *v);
	if (!v)
		return -ENOMEM;
	l->at = v;
	for (; l->n_parts < n; l->n_parts++) {
		memset(&v[l->n_parts], 0, sizeof *v);
		v[l->n_parts].last_offset = v[l->n_parts].mark.offset = -1;
	}
	return 0;
}

static void set_aside(struct learner *l, int partition, int64_t offset, const void *blob, size_t len, const char *why)
{
	char dir[PATH_MAX - 64], path[PATH_MAX];
	l->n.set_aside++;
	(void)snprintf(l->last_bad, sizeof l->last_bad, "partition %d offset %" PRId64 ": %.110s", partition, offset, why);
	errtext_plain(l->last_bad);
	if (l->aside_files >= ASIDE_FILES || l->aside_bytes + len > ASIDE_BYTES)
		return;
	if (snprintf(dir, sizeof dir, "%s/set-aside", l->o.state_dir) >= (int)sizeof dir || fs_mkdirs(dir))
		return;
	(void)snprintf(path, sizeof path, "%s/%d-%" PRId64 ".bin", dir, partition, offset);
	if (fs_write_atomic(path, blob, len))
		return;
	(void)snprintf(path, sizeof path, "%s/%d-%" PRId64 ".reason", dir, partition, offset);
	if (!fs_write_atomic(path, why, strlen(why)))
		l->aside_files++;
	l->aside_bytes += len;
}

/* Seen already? Sequence numbers of one producer rise within a partition. */
static bool duplicate(struct cursor *c, const struct trace_meta *m)
{
	int i = 0;
	while (i < c->n_seen && strcmp(c->seen[i].producer, m->producer) != 0)
		i++;
	if (i < c->n_seen) {
		if (m->seq <= c->seen[i].seq)
			return true;
	} else {
		if (c->n_seen == SEEN_PRODUCERS) { /* the one not heard for longest goes */
			memmove(&c->seen[0], &c->seen[1], sizeof c->seen - sizeof c->seen[0]);
			i = c->n_seen - 1;
		} else
			c->n_seen++;
		memcpy(c->seen[i].producer, m->producer, sizeof m->producer);
	}
	uint64_t seq = m->seq; /* the newest heard stays last */
	memmove(&c->seen[i], &c->seen[i + 1], (size_t)(c->n_seen - 1 - i) * sizeof c->seen[0]);
	memcpy(c->seen[c->n_seen - 1].producer, m->producer, sizeof m->producer);
	c->seen[c->n_seen - 1].seq = seq;
	return false;
}

/* Not to be learned from, though well-formed. 1: out. */
static int ruled_out(struct learner *l, const struct trace_record *r, int partition, int64_t offset)
{
	struct errtext why = {""};
	uint32_t version;
	int k = 0;
	if (rules_quarantined(&l->rules, r, &version)) {
		l->n.out[OUT_QUARANTINED]++;
		(void)snprintf(l->last_bad, sizeof l->last_bad, "partition %d offset %" PRId64 ": rounds of version %u, which is in quarantine", partition, offset, version);
		return 1;
	}
	if (!(l->o.max_scale > 0) || scale_fits(&l->rules.scale, r, l->o.max_scale, &k, &why))
		return 0;
	if (k)
		return k;
	l->n.out[OUT_SCALE]++;
	(void)snprintf(l->last_bad, sizeof l->last_bad, "partition %d offset %" PRId64 ": %.110s", partition, offset, why.text);
	return 1;
}

static int accept_record(struct learner *l, const struct trace_record *r, int partition, int64_t offset, int64_t time_s, const void *blob, size_t len)
{
	struct pool_ref ref;
	int k = ruled_out(l, r, partition, offset);
	if (k)
		return k < 0 ? k : 0;
	if ((k = pool_append(l->pool, partition, offset, time_s, blob, (uint32_t)len, &ref)))
		return k;
	while (pool_shrink(l->pool)) {
		uint32_t first = pool_where(l->pool).first;
		if ((k = keep_sample(l, first)))
			return k;
		(void)runs_drop(&l->runs, run_below, first);
		join_drop(&l->join, run_below, first);
	}
	for (int i = 0; i < r->T; i++)
		l->counts[r->token_ids[i]]++;
	l->counted += r->T;
	l->n.rows += (uint64_t)r->T;
	return join_add(&l->join, r, partition, offset, time_s, ref);
}

int learner_take_one(struct learner *l, int partition, int64_t offset, int64_t time_s, const void *blob, size_t len)
{
	struct trace_record r;
	struct errtext e = {""};
	struct cursor *c = &l->at[partition];
	c->next = offset + 1;
	c->last_offset = offset;
	c->producer[0] = 0;
	c->seq = 0;
	if (!blob) /* a message without a value */
		blob = "", len = 0;
	l->n.records++;
	l->n.bytes += len;
	int k = record_decode(blob, len, (uint32_t)l->fz->V, &r, &e);
	if (k == -ENOMEM)
		return k;
	if (k) {
		set_aside(l, partition, offset, blob, len, e.text);
		return 0;
	}
	memcpy(c->producer, r.meta.producer, sizeof c->producer);
	c->seq = r.meta.seq;
	if (strcmp(r.meta.target_fp, l->fz->target_fp) != 0) {
		(void)errtext_set(&e, 0, "target_fp is %.16s, this learner's target is %.16s", r.meta.target_fp, l->fz->target_fp);
		set_aside(l, partition, offset, blob, len, e.text);
	} else if (r.H_t != l->fz->H) {
		(void)errtext_set(&e, 0, "features are %d wide, the target %d", r.H_t, l->fz->H);
		set_aside(l, partition, offset, blob, len, e.text);
	} else if (duplicate(c, &r.meta))
		l->n.duplicates++;
	else
		k = accept_record(l, &r, partition, offset, time_s, blob, len);
	record_done(&r);
	return k;
}

/* A request longer than what one may give: its newest rows are learned from, those before them are history. */
static void shorten(struct learner *l, struct run *r)
{
	uint64_t rows = 0, runs = 0;
	if (l->o.request_rows)
		rules_request(&l->runs, r, l->o.request_rows, &rows, &runs);
	l->n.shortened += runs;
	l->n.shortened_rows += rows;
	if (rows)
		(void)snprintf(l->last_bad, sizeof l->last_bad, "partition %d: a request with rows up to position %u: its newest %" PRId64 " are learned from (train.request_rows)",
			       r->partition, r->pos0 + (uint32_t)r->n, l->o.request_rows);
}

/* Not to be learned from as a run: counted, true. */
static bool run_ruled_out(struct learner *l, struct run *r)
{
	history_chain(&l->runs, r);
	r->first = l->o.dedup ? history_repeated(&l->runs, r) : 0;
	l->n.repeated_rows += (uint64_t)r->first;
	enum rule_out why = OUT_N;
	if (r->n - r->first < JOIN_MIN_ROWS)
		why = OUT_REPEATED;
	else {
		shorten(l, r);
		if (r->n - r->first < JOIN_MIN_ROWS)
			why = OUT_REQUEST;
		else if (!rules_tenant(&l->rules, r->tenant, r->n - r->first, l->o.tenant_share, l->o.tenant_window))
			why = OUT_TENANT;
	}
	if (why != OUT_N)
		l->n.out[why]++;
	return why != OUT_N;
}

/* A run closed: held out while a candidate waits for its verdict (bounded, per domain too), else to be trained. */
int learner_run_closed(void *learner, struct run *r)
{
	struct learner *l = learner;
	struct history h;
	if (run_ruled_out(l, r)) {
		run_done(r);
		return 0;
	}
	history_find(&l->runs, &l->join, r, &h);
	l->n.history[h.kind]++;
	int held = 0, of_domain = 0, queued = 0;
	struct run *oldest = NULL;
	for (int i = 0; i < l->runs.n; i++) {
		struct run *x = &l->runs.v[i];
		if (x->state == RUN_HELD_OUT) {
			held++;
			of_domain += strcmp(x->domain, r->domain) == 0;
		} else if (x->state == RUN_QUEUED) {
			queued++;
			oldest = oldest ? oldest : x;
		}
	}
	bool judge = *l->pending.name && h.kind == HISTORY_WHOLE && r->n_gen >= 4 && h.total + r->n <= HISTORY_MAX_ROWS;
	r->state = judge && held < l->o.heldout_max && of_domain < l->o.heldout_domain_max ? RUN_HELD_OUT : RUN_QUEUED;
	if (judge)
		l->turned_away = r->state == RUN_HELD_OUT ? 0 : l->turned_away + 1;
	if (r->state == RUN_QUEUED && queued >= l->o.queue_max)
		oldest->state = RUN_TRAINED; /* traffic outruns training: the oldest is left to replay */
	int k = runs_add(&l->runs, r);
	if (k)
		run_done(r);
	return k;
}

/* ---- live ---- */

static int gap(struct learner *l, int partition, int64_t to, struct errtext *e)
{
	int64_t next = l->at[partition].next;
	struct journal_entry x = {.kind = J_GAP, .partition = partition, .offset = next, .to = to};
	int r = learner_do(l, &x, e);
	if (!r && to > next)
		(void)snprintf(l->last_gap, sizeof l->last_gap, "traces, partition %d: records %" PRId64 " to %" PRId64 " passed retention before they were read: never learned from; "
			       "reading on at %" PRId64 ", their requests end where they were read", partition, next, to - 1, to);
	if (r || to > next)
		return r;
	l->anew = true;
	(void)snprintf(l->last_gap, sizeof l->last_gap, "traces, partition %d: not the log that was read up to %" PRId64 ": the topic was made anew, or another cluster's; "
			       "reading on at %" PRId64 ", what was learned stays", partition, next, to);
	return 0;
}

static void set_mark(struct cursor *c)
{
	c->mark.offset = c->next == c->last_offset + 1 ? c->last_offset : -1;
	c->mark.seq = c->seq;
	memcpy(c->mark.producer, c->producer, sizeof c->mark.producer);
}

void learner_look_back(struct learner *l)
{
	for (int p = 0; p < l->n_parts; p++) {
		if (l->at[p].mark.offset < 0)
			set_mark(&l->at[p]);
		l->at[p].verify = l->at[p].mark.offset >= 0;
	}
	l->look_at = clock_us() + LOOK_US;
	l->look_until = clock_us() + LOOK_WAIT_US;
}

/* Does the log hold at the mark what was read there? *ret_first: where it begins to hold something, from the mark on. */
static int compare_mark(struct learner *l, int p, const int64_t *wanted, bool *ret_same, int64_t *ret_first)
{
	struct cursor *c = &l->at[p];
	struct source_msg m;
	struct trace_record rec;
	int r = l->src->read(l->src, p, c->mark.offset, wanted, l->n_parts, 0, &m);
	if (r && r != SOURCE_E_GAP)
		return r;
	*ret_first = m.offset;
	*ret_same = m.offset > c->mark.offset; /* aged out or compacted away: nothing to compare */
	if (r) /* outside the log: before its start, or behind its end */
		return 0;
	if (m.offset == c->mark.offset) {
		*ret_same = !*c->mark.producer; /* it could not be read then either */
		if (!record_decode(m.data, m.len, 0, &rec, NULL)) {
			*ret_same = strcmp(rec.meta.producer, c->mark.producer) == 0 && rec.meta.seq == c->mark.seq;
			record_done(&rec);
		}
	}
	l->src->release(l->src, &m);
	return 0;
}

/* Is the log still the one we read? 0: go on with live reading (perhaps after a gap entry); SOURCE_E_NONE: ask again later. */
static int verify(struct learner *l, int p, const int64_t *wanted, struct errtext *e)
{
	struct cursor *c = &l->at[p];
	int64_t first = 0;
	bool same = true;
	int r = compare_mark(l, p, wanted, &same, &first);
	if (r)
		return r;
	c->verify = false;
	if (!same) /* the topic was made anew under the same name */
		return gap(l, p, first == c->mark.offset ? 0 : first, e);
	set_mark(c);
	return first > c->next ? gap(l, p, first, e) : 0;
}

/* Look back where that is due; *ret_wait: some broker has not answered yet, so nothing is read on. A log is read in one place at a
 * time, so all are compared before any is read on; one without a leader holds the others up for a moment only. */
static int look_back(struct learner *l, bool *ret_wait, struct errtext *e)
{
	int64_t wanted[MAX_PARTITIONS];
	int r = 0;
	*ret_wait = false;
	if (clock_us() >= l->look_at)
		learner_look_back(l);
	for (int p = 0; p < l->n_parts && r >= 0; p++) {
		if (!l->at[p].verify)
			continue;
		for (int i = 0; i < l->n_parts; i++)
			wanted[i] = l->at[i].verify ? l->at[i].mark.offset : l->at[i].next;
		r = verify(l, p, wanted, e);
		*ret_wait |= r == SOURCE_E_NONE && clock_us() < l->look_until;
	}
	return r < 0 ? r : 0;
}

/* What one partition has, at most max; journalled as one entry. */
static int consume_partition(struct learner *l, int p, int max, int *ret_n, struct errtext *e)
{
	struct journal_entry x = {.kind = J_TAKE, .partition = p};
	int64_t wanted[MAX_PARTITIONS];
	int r = 0, n = 0;
	for (int i = 0; i < l->n_parts; i++)
		wanted[i] = l->at[i].verify ? l->at[i].mark.offset : l->at[i].next;
	while (n < max && !l->at[p].verify) {
		struct source_msg m;
		wanted[p] = l->at[p].next;
		r = l->src->read(l->src, p, l->at[p].next, wanted, l->n_parts, 0, &m);
		if (r == SOURCE_E_GAP && m.offset != l->at[p].next) {
			if (n) /* first what was taken */
				break;
			return gap(l, p, m.offset, e);
		}
		if (r)
			break;
		if (!n++)
			x.offset = m.offset;
		if (m.time_s > l->seen_s)
			l->seen_s = m.time_s;
		r = learner_take_one(l, p, m.offset, m.time_s, m.data, m.len);
		l->src->release(l->src, &m);
		if (r)
			return errtext_set(e, r, "record at partition %d: %s", p, strerror(-r));
	}
	*ret_n += n;
	x.count = n;
	if (n && (r = journal_append(l->journal, &x)) == -E2BIG) /* many takes and no step: write them out */
		r = journal_sync(l->journal) ? -EIO : journal_append(l->journal, &x);
	else if (!n)
		r = 0;
	return r < 0 ? errtext_set(e, r, "journal: %s", strerror(-r)) : 0;
}

int learner_consume(struct learner *l, int max, int *ret_n, struct errtext *e)
{
	int n = 0;
	*ret_n = 0;
	if (!l->src || (n = l->src->partitions(l->src)) <= 0)
		return 0;
	int r = learner_cursors(l, n < MAX_PARTITIONS ? n : MAX_PARTITIONS);
	const char *cluster = l->src->cluster(l->src);
	if (!r && *cluster && strcmp(cluster, l->cluster) != 0) {
		bool moved = *l->cluster;
		for (int p = 0; p < l->n_parts && *l->cluster && !r; p++) /* offsets of another cluster mean nothing */
			if (l->at[p].next > 0)
				r = gap(l, p, 0, e);
		(void)snprintf(l->cluster, sizeof l->cluster, "%s", cluster);
		l->anew |= moved;
	}
	bool wait = false;
	if (!r)
		r = look_back(l, &wait, e);
	for (int i = 0; i < l->n_parts && *ret_n < max && !r && !wait; i++) {
		int p = (l->turn + i) % l->n_parts;
		r = consume_partition(l, p, max - *ret_n < 8 ? max - *ret_n : 8, ret_n, e);
	}
	l->turn = l->n_parts ? (l->turn + 1) % l->n_parts : 0;
	if (r || !l->anew)
		return r;
	l->anew = false;
	/* A repeat must not look in the new log for what was taken from the old one; and the cluster's name is in checkpoints alone: a
	 * crash must not have us start at 0 a second time. */
	return learner_checkpoint(l, e);
}

double learner_age_s(const struct learner *l)
{
	double age = (double)clock_wall_ms() / 1000 - (double)l->seen_s;
	return l->seen_s && age > 0 ? age : 0;
}

/* ---- again ---- */

/* One record the journal says was taken: from the pool's tail, else from the source. */
static int read_again(struct learner *l, int p, int64_t offset, bool first, struct buf *blob, int64_t *ret_offset, int64_t *ret_time_s, struct errtext *e)
{
	if (!pool_peek(l->pool, p, offset, blob, ret_time_s)) {
		*ret_offset = offset;
		return 0;
	}
	if (!l->src)
		return errtext_set(e, -ENODATA, "partition %d offset %" PRId64 " must be read again and there is no broker", p, offset);
	int64_t wanted[MAX_PARTITIONS];
	for (int waited = 0;; waited += READ_AGAIN_MS) {
		struct source_msg m;
		int parts = l->src->partitions(l->src);
		for (int i = 0; i < parts && i < MAX_PARTITIONS; i++)
			wanted[i] = i < l->n_parts ? l->at[i].next : 0;
		int r = parts > p ? l->src->read(l->src, p, offset, wanted, parts, READ_AGAIN_MS, &m) : SOURCE_E_NONE;
		if (r == 0 && first && m.offset != offset) {
			l->src->release(l->src, &m);
			r = SOURCE_E_GAP;
		}
		if (r == 0) {
			buf_clear(blob);
			*ret_offset = m.offset;
			*ret_time_s = m.time_s;
			r = buf_append(blob, m.data, m.len);
			l->src->release(l->src, &m);
			return r;
		}
		if (r == SOURCE_E_GAP)
			return errtext_set(e, -ENODATA, "partition %d offset %" PRId64 " is gone from the log", p, offset);
		if (r < 0)
			return r;
		if (l->o.stop && *l->o.stop)
			return -EINTR;
		if (l->o.beats)
			++*l->o.beats;
		if (l->o.replay_wait_ms && waited >= l->o.replay_wait_ms)
			return errtext_set(e, -ENODATA, "partition %d offset %" PRId64 " cannot be read again: %s", p, offset, l->src->trouble(l->src));
		if (parts <= p) {
			struct timespec t = {.tv_nsec = READ_AGAIN_MS * 1000000L};
			(void)nanosleep(&t, NULL);
		}
	}
}

int learner_repeat_take(struct learner *l, const struct journal_entry *x, int64_t *ret_done, struct errtext *e)
{
	struct buf blob = BUF_INIT(0);
	int64_t offset = x->offset;
	int r = x->partition < 0 ? -EINVAL : learner_cursors(l, x->partition + 1);
	*ret_done = 0;
	for (int64_t i = 0; i < x->count && !r; i++) {
		int64_t got = offset, time_s = 0;
		r = read_again(l, x->partition, offset, i == 0, &blob, &got, &time_s, e);
		if (!r)
			r = learner_take_one(l, x->partition, got, time_s, blob.data, blob.len);
		*ret_done += !r;
		offset = got + 1;
	}
	buf_done(&blob);
	return r;
}
