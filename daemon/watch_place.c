/* Where the reading of redraft.rounds is, and whether each log is still the one that was read.
 *
 * A place behind the start of its log: records passed retention. A place behind its end: the topic was made anew. One that was made
 * anew and has grown past our place shows in no offset, and librdkafka 2.0 tells no topic ids; so once in a while, and when a
 * broker comes back, the last record of the last time is read again and compared. What lies between it and our place comes
 * again with it and is passed over.
 */
#include "daemon/base/clock.h"
#include "daemon/base/fnv.h"
#include "daemon/watch_inside.h"

enum { BACK_US = 60 * 1000000, QUERY_MS = 3000 };

enum watch_seen watch_place_next(struct watch_place *p, int64_t offset, uint64_t sum)
{
	if (p->back && offset == p->mark) { /* until it comes, what was fetched before is taken as ever */
		p->back = false;
		if (sum != p->mark_sum)
			return WATCH_ANEW;
		p->mark = p->next - 1;
		p->mark_sum = p->sum;
	}
	if (offset < p->next)
		return WATCH_AGAIN;
	if (p->mark < 0) {
		p->mark = offset;
		p->mark_sum = sum;
	}
	p->next = offset + 1;
	p->sum = sum;
	return WATCH_NEW;
}

static void seek(struct watch *w, int partition, int64_t offset)
{
	rd_kafka_topic_partition_list_t *one = rd_kafka_topic_partition_list_new(1);
	rd_kafka_error_t *err;

	rd_kafka_topic_partition_list_add(one, w->topic, partition)->offset = offset;
	err = rd_kafka_seek_partitions(w->rk, one, 0); /* 0: it is on its way when this returns */
	if (err)
		rd_kafka_error_destroy(err);
	rd_kafka_topic_partition_list_destroy(one);
}

static void count_gap(struct watch *w, int64_t n)
{
	pthread_mutex_lock(&w->lock);
	w->kafka.gaps++;
	w->kafka.lost += (uint64_t)n;
	pthread_mutex_unlock(&w->lock);
}

bool watch_place_take(struct watch *w, const rd_kafka_message_t *m)
{
	struct watch_place *p;
	int64_t ms = rd_kafka_message_timestamp(m, NULL);
	enum watch_seen seen;

	if (m->partition < 0 || m->partition >= w->n_partitions)
		return false;
	p = &w->place[m->partition];
	seen = watch_place_next(p, m->offset, fnv1a(fnv1a(FNV1A, m->payload, m->len), &ms, sizeof ms));
	if (seen != WATCH_ANEW)
		return seen == WATCH_NEW;
	count_gap(w, 0);
	watch_say(w, "partition %d of %.60s holds another record at %lld than we read there: the topic was made anew; read from its beginning", m->partition,
		  w->topic, (long long)m->offset);
	p->next = p->mark = -1;
	seek(w, m->partition, RD_KAFKA_OFFSET_BEGINNING);
	return false;
}

void watch_look_back(struct watch *w)
{
	w->back_us = clock_us() + BACK_US;
	for (int i = 0; i < w->n_partitions; i++) {
		struct watch_place *p = &w->place[i];

		p->back = p->mark >= 0;
		if (p->back)
			seek(w, i, p->mark);
	}
}

/* Everything read on where it is, but this partition at `offset`. An assign, since after such an answer the library is silent of a
 * partition until then. */
static void assign_at(struct watch *w, int partition, int64_t offset)
{
	rd_kafka_topic_partition_list_t *all = NULL;

	if (rd_kafka_assignment(w->rk, &all))
		return;
	(void)rd_kafka_position(w->rk, all);
	for (int i = 0; i < all->cnt; i++) {
		rd_kafka_topic_partition_t *x = &all->elems[i];

		x->offset = x->partition == partition ? offset : x->offset >= 0 ? x->offset : RD_KAFKA_OFFSET_END;
	}
	(void)rd_kafka_assign(w->rk, all);
	rd_kafka_topic_partition_list_destroy(all);
}

/* The offset that was outside the log: what we stand at, or looked back to; < 0: not known. */
static int64_t outside(struct watch *w, const rd_kafka_message_t *m)
{
	const struct watch_place *p = &w->place[m->partition];
	rd_kafka_topic_partition_list_t *one;
	int64_t at = m->offset >= 0 ? m->offset : p->back ? p->mark : p->next;

	if (at >= 0)
		return at;
	one = rd_kafka_topic_partition_list_new(1);
	rd_kafka_topic_partition_list_add(one, w->topic, m->partition);
	(void)rd_kafka_position(w->rk, one);
	at = one->elems[0].offset;
	rd_kafka_topic_partition_list_destroy(one);
	return at;
}

void watch_gap(struct watch *w, const rd_kafka_message_t *m)
{
	struct watch_place *p;
	int64_t lo = 0, hi = 0, at, from;
	bool known = !rd_kafka_query_watermark_offsets(w->rk, w->topic, m->partition, &lo, &hi, QUERY_MS);

	if (m->partition < 0 || m->partition >= w->n_partitions)
		return;
	p = &w->place[m->partition];
	at = outside(w, m);
	if (!known || (at >= lo && at <= hi)) { /* by now it is inside; asked for once more, so that we are told once more if it is not */
		assign_at(w, m->partition, at >= 0 ? at : RD_KAFKA_OFFSET_BEGINNING);
		return;
	}
	p->back = false;
	p->mark = -1;
	if (at < lo) {
		from = at < 0 ? lo : p->next > at ? p->next : at; /* looked back: what lies between was taken */
		assign_at(w, m->partition, from > lo ? from : lo);
		if (from >= lo)
			return;
		count_gap(w, lo - from);
		watch_say(w, "partition %d of %.60s: %lld round records, %lld to %lld, passed retention before they were read and are not in accept length; "
			     "reading on at %lld", m->partition, w->topic, (long long)(lo - from), (long long)from, (long long)lo - 1, (long long)lo);
		return;
	}
	p->next = -1;
	assign_at(w, m->partition, lo);
	count_gap(w, 0);
	watch_say(w, "partition %d of %.60s ends at %lld, we stood at %lld: the topic was made anew; read from its beginning", m->partition, w->topic, (long long)hi,
		  (long long)at);
}
