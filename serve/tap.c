/* The tap (serve/tap.h): the engine's side, and its life.
 *
 * The engine copies rows, packed by the device, into the ring; everything else happens on the tap's own thread (tap_thread.c).
 * A request whose push fails is marked dropped here. Slots are numbered by the engine.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>
#include "daemon/base/clock.h"
#include "daemon/base/fnv.h"
#include "serve/tap_inside.h"

enum { ROWS_PER_MESSAGE = 32, MAX_PARTS = 16, FLUSH_MS = 2000 };

/* ---- engine's side ---- */

/* Tell the thread, without a system call unless it sleeps. */
static void published(struct tap *t)
{
	const uint64_t one = 1;

	tap_ring_commit(&t->ring);
	atomic_thread_fence(memory_order_seq_cst); /* pairs with the one in rest() */
	if (atomic_load_explicit(&t->sleeping, memory_order_relaxed) && atomic_exchange(&t->sleeping, false)) {
		ssize_t n = write(t->wake, &one, sizeof one); /* full counter = awake already */
		(void)n;
	}
}

static struct slot *slot_of(const struct tap *t, int handle)
{
	return handle >= 0 && handle < SLOTS && t->slot[handle].used ? (struct slot *)(uintptr_t)&t->slot[handle] : NULL;
}

static bool wanted(const struct tap *t, struct slot *s)
{
	if (!s->dropped &&
	    (!atomic_load_explicit(&t->enabled, memory_order_relaxed) || atomic_load_explicit(&s->lost, memory_order_relaxed) == s->gen))
		s->dropped = true; /* for good: a gap in a request is worth nothing */
	return !s->dropped;
}

bool tap_wants_rows(const struct tap *t, int handle)
{
	struct slot *s = slot_of(t, handle);

	return s && wanted(t, s);
}

int tap_topk(const struct tap *t)
{
	return t->o.topk;
}

bool tap_wants_hidden(const struct tap *t)
{
	return t->o.prompt_hidden;
}

enum record_payload tap_payload(const struct tap *t)
{
	return t->o.payload;
}

/* The same conversations for every process: a share of the 64-bit hash space. */
static bool sampled_in(const struct tap *t, const struct tap_request *r)
{
	const char *key = *r->conversation ? r->conversation : r->request;
	uint64_t h = fnv1a_text(fnv1a_text(FNV1A, "trace:"), key);

	h ^= h >> 33;
	h *= 0xff51afd7ed558ccdu;
	h ^= h >> 33;
	return (double)(h >> 11) * 0x1p-53 < atomic_load_explicit(&t->sample, memory_order_relaxed);
}

bool tap_traces(const struct tap *t, const struct tap_request *r)
{
	return r->traced && t->producer && atomic_load(&t->enabled) && sampled_in(t, r);
}

int tap_begin(struct tap *t, const struct tap_request *r)
{
	int i = 0;

	if (!tap_traces(t, r)) {
		count(&t->skipped);
		return NO_SLOT;
	}
	while (i < SLOTS && t->slot[i].used)
		i++;
	struct msg_begin *m = i < SLOTS ? tap_ring_reserve(&t->ring, sizeof *m) : NULL;
	if (!m) {
		count(&t->dropped_ring);
		return NO_SLOT;
	}
	struct slot *s = &t->slot[i];
	s->used = true;
	s->dropped = false;
	s->gen = ++t->gen;
	m->m = (struct msg){M_BEGIN, i, s->gen};
	m->r = *r;
	published(t);
	count(&t->traced);
	return i;
}

static void to_logprob(uint16_t *out, const float *in, size_t n)
{
	for (size_t i = 0; i < n; i++)
		out[i] = f32_to_f16(in[i] > 0 ? 0 : in[i]); /* logit - lse can round to a hair above 0 */
}

/* Rows [from, from+n) of the group as one message. */
static bool push_rows(struct tap *t, int handle, const struct slot *s, const struct tap_row_group *g, int from, int n)
{
	size_t H = (size_t)t->o.H_t, K = g->prompt ? 0 : (size_t)t->o.topk, rows = (size_t)n, at = (size_t)from;
	bool hidden = g->prompt && g->hidden && t->o.prompt_hidden;
	bool coded = !g->features;
	struct msg_rows *m = tap_ring_reserve(&t->ring, sizeof *m + rows * (8 + 4 * K + (coded ? 3 * H + 12 : 6 * H) + (hidden ? 2 * H : 2 * K)));

	if (!m)
		return false;
	m->m = (struct msg){M_ROWS, handle, s->gen};
	m->n = n;
	m->next_token = from + n < g->n ? g->ids[from + n] : g->next_token;
	m->prompt = g->prompt;
	m->has_hidden = hidden;
	m->coded = coded;
	uint32_t *w = (uint32_t *)(void *)(m + 1);
	memcpy(w, g->ids + at, 4 * rows);
	memcpy(w + rows, g->pos + at, 4 * rows);
	if (K)
		memcpy(w + 2 * rows, g->topk_ids + at * K, 4 * rows * K);
	w += (2 + K) * rows;
	if (coded)
		memcpy(w, g->scales + at * 3, rows * 12);
	uint16_t *h = (uint16_t *)(void *)(w + (coded ? rows * 3 : 0));
	if (hidden)
		memcpy(h, g->hidden + at * H, rows * 2 * H);
	if (K)
		to_logprob(h, g->topk_logprob + at * K, rows * K);
	h += hidden ? rows * H : rows * K;
	if (coded)
		memcpy(h, g->codes + at * 3 * H, rows * 3 * H);
	else
		memcpy(h, g->features + at * 3 * H, rows * 6 * H);
	published(t);
	return true;
}

static void ring_is_full(struct tap *t, struct slot *s)
{
	s->dropped = true;
	count(&t->dropped_ring);
}

void tap_rows(struct tap *t, int handle, const struct tap_row_group *g)
{
	struct slot *s = slot_of(t, handle);

	if (!s || !wanted(t, s) || (!g->prompt && (!g->topk_ids || !g->topk_logprob)))
		return;
	for (int from = 0; from < g->n; from += ROWS_PER_MESSAGE) {
		int n = g->n - from < ROWS_PER_MESSAGE ? g->n - from : ROWS_PER_MESSAGE;
		if (!push_rows(t, handle, s, g, from, n)) {
			ring_is_full(t, s);
			return;
		}
	}
}

void tap_round(struct tap *t, int handle, uint32_t row_pos, const uint32_t *ids, const int16_t *parent, int len, int accepted, uint32_t version,
	       bool mixed_kv)
{
	struct slot *s = slot_of(t, handle);

	if (!s || !wanted(t, s) || len < 1 || len > RECORD_MAX_K || accepted < 0 || accepted > len)
		return;
	struct msg_round *m = tap_ring_reserve(&t->ring, sizeof *m);
	if (!m) {
		ring_is_full(t, s);
		return;
	}
	m->m = (struct msg){M_ROUND, handle, s->gen};
	m->r = (struct tap_round){.row_pos = row_pos, .version = version, .len = len, .accepted = accepted, .mixed_kv = mixed_kv};
	memcpy(m->r.ids, ids, 4 * (size_t)len);
	for (int i = 0; i < len; i++)
		m->r.parent[i] = (uint8_t)(parent ? parent[i] : i - 1); /* -1 becomes 255: the root */
	published(t);
}

void tap_miss(struct tap *t, int handle)
{
	struct slot *s = slot_of(t, handle);

	if (s && wanted(t, s))
		ring_is_full(t, s);
}

void tap_end(struct tap *t, int handle, const struct round_record *parts, int n_parts)
{
	struct slot *s = slot_of(t, handle);
	size_t n = (size_t)(n_parts < 0 ? 0 : n_parts > MAX_PARTS ? MAX_PARTS : n_parts);
	struct msg_end *m = tap_ring_reserve(&t->ring, sizeof *m + n * sizeof *parts);

	if (m) {
		m->m = (struct msg){M_END, s ? handle : NO_SLOT, s ? s->gen : 0};
		m->n_parts = (int32_t)n;
		m->dropped = s && !wanted(t, s);
		if (n)
			memcpy(m->parts, parts, n * sizeof *parts);
		published(t);
	} else {
		count(&t->dropped_ring);
	}
	if (s)
		s->used = false;
}

void tap_set_sample(struct tap *t, double share)
{
	atomic_store(&t->sample, share);
}

void tap_set_enabled(struct tap *t, bool on)
{
	atomic_store(&t->enabled, on);
}

/* ---- life ---- */

static void make_uuid(char ret[static 40])
{
	uint8_t b[16] = {0};

	if (getrandom(b, sizeof b, 0) != sizeof b) {
		uint64_t now[2] = {clock_us(), (uint64_t)getpid()};
		memcpy(b, now, sizeof b);
	}
	b[6] = (uint8_t)((b[6] & 0x0f) | 0x40);
	b[8] = (uint8_t)((b[8] & 0x3f) | 0x80);
	(void)snprintf(ret, 40, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3], b[4], b[5],
		       b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

static int start(struct tap *t, struct errtext *e)
{
	struct tap_producer_options p = {.brokers = t->o.brokers,
					 .extra_conf = t->o.extra_conf,
					 .queue_bytes = t->o.queue_bytes,
					 .on_delivered = tap_delivered,
					 .on_lost = tap_lost,
					 .arg = t};
	int r = tap_ring_init(&t->ring, t->o.ring_bytes);

	t->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (r == 0 && t->wake < 0)
		r = -errno;
	if (r < 0)
		return errtext_set(e, r, "capture: ring of %zu bytes: %s", t->o.ring_bytes, strerror(-r));
	memcpy(p.target_fp, t->o.target_fp, sizeof p.target_fp);
	(void)snprintf(p.source, sizeof p.source, "/redraft/serve/%s", t->uuid);
	if (t->o.brokers && *t->o.brokers)
		r = tap_producer_new(&p, &t->producer, e);
	if (r == 0) {
		r = -pthread_create(&t->thread, NULL, tap_run, t);
		t->has_thread = r == 0;
	}
	return r;
}

static char *copy_string(const char *s)
{
	return s ? strdup(s) : NULL;
}

int tap_new(const struct tap_options *o, struct tap **ret, struct errtext *e)
{
	if (o->H_t < 1 || o->topk < 1 || o->topk > RECORD_MAX_TOPK || !(o->sample >= 0 && o->sample <= 1))
		return errtext_set(e, -EINVAL, "capture: topk must be 1 to %d and sample 0 to 1", RECORD_MAX_TOPK);
	struct tap *t = aligned_alloc(64, (sizeof *t + 63) / 64 * 64);
	if (!t)
		return errtext_set(e, -ENOMEM, "out of memory");
	memset(t, 0, sizeof *t);
	t->o = *o;
	t->o.brokers = copy_string(o->brokers);
	t->o.traces_topic = copy_string(o->traces_topic ? o->traces_topic : "redraft.traces");
	t->o.rounds_topic = copy_string(o->rounds_topic ? o->rounds_topic : "redraft.rounds");
	t->o.extra_conf = copy_string(o->extra_conf);
	t->wake = -1;
	atomic_store(&t->enabled, true);
	tap_set_sample(t, o->sample);
	make_uuid(t->uuid);
	int r = t->o.traces_topic && t->o.rounds_topic ? start(t, e) : -ENOMEM;
	if (r < 0) {
		tap_free(t);
		return r;
	}
	*ret = t;
	return 0;
}

struct tap *tap_free(struct tap *t)
{
	const uint64_t one = 1;

	if (!t)
		return NULL;
	if (t->has_thread) {
		atomic_store(&t->stop, true);
		ssize_t n = write(t->wake, &one, sizeof one);
		(void)n;
		(void)pthread_join(t->thread, NULL);
	}
	tap_producer_free(t->producer, FLUSH_MS);
	for (int i = 0; i < SLOTS; i++)
		tap_open_done(&t->open[i].rec);
	tap_ring_done(&t->ring);
	if (t->wake >= 0)
		(void)close(t->wake);
	free((char *)(uintptr_t)t->o.brokers);
	free((char *)(uintptr_t)t->o.traces_topic);
	free((char *)(uintptr_t)t->o.rounds_topic);
	free((char *)(uintptr_t)t->o.extra_conf);
	free(t);
	return NULL;
}

void tap_stats(struct tap *t, struct tap_stats *ret)
{
	*ret = (struct tap_stats){
		.records = atomic_load(&t->records),
		.bytes = atomic_load(&t->bytes),
		.delivered = atomic_load(&t->delivered),
		.rounds = atomic_load(&t->rounds),
		.dropped_ring = atomic_load(&t->dropped_ring),
		.dropped_queue = atomic_load(&t->dropped_queue),
		.dropped_broker = atomic_load(&t->dropped_broker),
		.dropped_size = atomic_load(&t->dropped_size),
		.requests_traced = atomic_load(&t->traced),
		.requests_skipped = atomic_load(&t->skipped),
		.broker_down = atomic_load(&t->broker_down),
	};
}
