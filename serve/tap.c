/* The tap (serve/tap.h): the engine's side and the thread behind it.
 *
 * The engine copies rows, packed by the device, into the ring; everything else happens on the tap's own thread, at lower priority.
 * A request whose push fails is marked dropped by the engine itself; one whose
 * record could not be queued or delivered is marked by the thread through the slot's
 * `lost` generation, which the engine reads before it does any further work.
 * Slots are numbered by the engine; a BEGIN for a slot overrides whatever the thread
 * still held there, so that a lost END leaks nothing.
 */
#include "serve/tap.h"

#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "daemon/base/clock.h"
#include "daemon/base/fnv.h"
#include "serve/tap_encode.h"
#include "serve/tap_produce.h"
#include "serve/tap_ring.h"

enum { SLOTS = 64, NO_SLOT = -1, ROWS_PER_MESSAGE = 32, MAX_PARTS = 16, IDLE_MS = 20, FLUSH_MS = 2000 };

/* ---- messages in the ring ---- */

enum kind { M_BEGIN, M_ROWS, M_ROUND, M_END };

struct msg {
	uint32_t kind;
	int32_t slot;
	uint64_t gen;
};

struct msg_begin {
	struct msg m;
	struct tap_request r;
};

struct msg_rows { /* then ids, pos, top-k ids (u32), scales where there are codes (f32), hidden or top-k log-probabilities (u16), features or codes */
	struct msg m;
	int32_t n;
	uint32_t next_token;
	uint32_t prompt, has_hidden, coded;
};

struct msg_round {
	struct msg m;
	struct tap_round r;
};

struct msg_end {
	struct msg m;
	int32_t n_parts;
	uint32_t dropped; /* by the engine: the thread may not know */
	struct round_record parts[];
};

/* ---- state ---- */

struct slot { /* engine's side of one traced request */
	bool used, dropped;
	uint64_t gen;
	_Atomic uint64_t lost; /* generation whose records the thread gave up on */
};

struct open { /* the thread's side */
	struct tap_open rec;
	bool ready /* memory is there */, live, dropped;
	uint64_t gen;
};

struct tap {
	struct tap_options o; /* strings are owned copies */
	_Atomic bool enabled;
	_Atomic double sample; /* share of conversations traced */
	struct tap_ring ring;
	struct slot slot[SLOTS];
	uint64_t gen;
	/* thread */
	pthread_t thread;
	bool has_thread;
	int wake; /* eventfd */
	_Atomic bool sleeping, stop;
	struct open open[SLOTS];
	struct open *current; /* of the record being emitted */
	struct tap_producer *producer;
	char uuid[40];
	uint64_t seq_trace, seq_round;
	/* counts */
	_Atomic uint64_t records, bytes, delivered, rounds, dropped_ring, dropped_queue, dropped_broker, dropped_size, traced, skipped;
	_Atomic bool broker_down;
};

static void count(_Atomic uint64_t *c)
{
	atomic_fetch_add_explicit(c, 1, memory_order_relaxed);
}

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

/* ---- the thread's side ---- */

static uint64_t tag_of(const struct open *o, const struct tap *t)
{
	return o->gen << 8 | (uint64_t)(o - t->open);
}

static void on_delivered(void *arg, uint64_t tag)
{
	struct tap *t = arg;

	if (tag)
		count(&t->delivered);
}

/* Tag 0 is a round record. */
static void on_lost(void *arg, uint64_t tag)
{
	struct tap *t = arg;
	struct open *o = &t->open[(tag & 0xff) % SLOTS];

	count(&t->dropped_broker);
	if (!tag)
		return;
	if (o->gen == tag >> 8)
		o->dropped = true;
	atomic_store_explicit(&t->slot[(tag & 0xff) % SLOTS].lost, tag >> 8, memory_order_relaxed);
}

static int queue_message(struct tap *t, struct tap_message *m)
{
	int r = tap_produce(t->producer, m);

	if (r)
		count(r == TAP_PRODUCE_E_FULL ? &t->dropped_queue : r == TAP_PRODUCE_E_SIZE ? &t->dropped_size : &t->dropped_broker);
	return r;
}

static int emit(void *arg, struct trace_record *r)
{
	struct tap *t = arg;
	struct buf value = BUF_INIT(0);
	struct tap_message m = {.topic = t->o.traces_topic,
				.ce_type = RECORD_CE_TYPE,
				.content_type = "application/vnd.safetensors",
				.tag = tag_of(t->current, t),
				.value = &value};

	m.key = *r->meta.conversation ? r->meta.conversation : r->meta.request;
	r->meta.seq = t->seq_trace;
	(void)snprintf(m.id, sizeof m.id, "t-%llu", (unsigned long long)r->meta.seq);
	int rc = record_encode(&value, r);
	if (rc < 0) {
		count(&t->dropped_size);
	} else {
		size_t len = value.len;
		rc = queue_message(t, &m) ? -EAGAIN : 0;
		if (rc == 0) {
			t->seq_trace++; /* only what was queued has a number, so a gap is the broker's */
			count(&t->records);
			atomic_fetch_add_explicit(&t->bytes, len, memory_order_relaxed);
		}
	}
	buf_done(&value);
	return rc;
}

/* The rest of the request is not sent; the engine is told so that it stops copying. */
static void drop(struct tap *t, struct open *o)
{
	o->dropped = true;
	atomic_store_explicit(&t->slot[o - t->open].lost, o->gen, memory_order_relaxed);
}

/* What a client sent must not make a record unwritable. */
static void printable(char *ret, size_t size, const char *s)
{
	size_t n = 0;

	for (; s[n] && n + 1 < size; n++)
		ret[n] = s[n] >= 0x20 && s[n] < 0x7f ? s[n] : '?';
	ret[n] = 0;
}

static void take_begin(struct tap *t, struct open *o, const struct msg_begin *m)
{
	struct trace_meta meta = {.temperature = isfinite(m->r.temperature) && m->r.temperature >= 0 ? m->r.temperature : 0};

	if (!o->ready && tap_open_init(&o->rec, t->o.H_t, t->o.topk, t->o.prompt_hidden, t->o.max_rows, t->o.payload) == 0)
		o->ready = true;
	o->live = true;
	o->dropped = false;
	o->gen = m->m.gen;
	if (!o->ready) {
		count(&t->dropped_size); /* no memory, or a row that no record can hold */
		drop(t, o);
		return;
	}
	memcpy(meta.target_fp, t->o.target_fp, sizeof meta.target_fp);
	printable(meta.request, sizeof meta.request, m->r.request);
	printable(meta.conversation, sizeof meta.conversation, m->r.conversation);
	printable(meta.parent, sizeof meta.parent, m->r.parent);
	printable(meta.domain, sizeof meta.domain, m->r.domain);
	printable(meta.tenant, sizeof meta.tenant, m->r.tenant);
	memcpy(meta.producer, t->uuid, sizeof meta.producer);
	tap_open_reset(&o->rec, &meta);
}

static void take_rows(struct tap *t, struct open *o, const struct msg_rows *m)
{
	size_t rows = (size_t)m->n, K = m->prompt ? 0 : (size_t)t->o.topk, H = (size_t)t->o.H_t;
	const uint32_t *w = (const uint32_t *)(const void *)(m + 1);
	const uint32_t *scales = w + (2 + K) * rows;
	const uint16_t *rest = (const uint16_t *)(const void *)(scales + (m->coded ? rows * 3 : 0)), *features = rest + (m->has_hidden ? rows * H : rows * K);
	struct tap_rows g = {.n = m->n,
			     .prompt = m->prompt,
			     .ids = w,
			     .pos = w + rows,
			     .topk_ids = w + 2 * rows,
			     .features = m->coded ? NULL : features,
			     .codes = (const uint8_t *)features,
			     .scales = (const float *)(const void *)scales,
			     .hidden = m->has_hidden ? rest : NULL,
			     .topk_lp = rest,
			     .next_token = m->next_token};
	const struct tap_sink to = {emit, t};

	t->current = o;
	int r = tap_open_rows(&o->rec, &g, &to);
	if (r == -EPROTO)
		count(&t->dropped_ring); /* rows are missing in between */
	if (r < 0)
		drop(t, o);
}

static void send_round(struct tap *t, const struct round_record *part, bool dropped)
{
	struct round_record r = *part;
	struct buf value = BUF_INIT(0);
	struct tap_message m = {.topic = t->o.rounds_topic, .ce_type = ROUND_CE_TYPE, .content_type = "application/json", .value = &value};

	memcpy(r.target_fp, t->o.target_fp, sizeof r.target_fp);
	memcpy(r.producer, t->uuid, sizeof r.producer);
	printable(r.request, sizeof r.request, part->request);
	printable(r.conversation, sizeof r.conversation, part->conversation);
	printable(r.domain, sizeof r.domain, part->domain);
	printable(r.tenant, sizeof r.tenant, part->tenant);
	r.dropped_records += dropped;
	r.seq = t->seq_round;
	m.key = *r.conversation ? r.conversation : r.request;
	(void)snprintf(m.id, sizeof m.id, "r-%llu", (unsigned long long)r.seq);
	if (t->producer && round_encode(&value, &r) < 0)
		count(&t->dropped_size);
	else if (!t->producer || queue_message(t, &m) == 0) {
		t->seq_round++;
		count(&t->rounds);
	}
	buf_done(&value);
}

static void take_end(struct tap *t, struct open *o, const struct msg_end *m)
{
	const struct tap_sink to = {emit, t};
	bool dropped = m->dropped;

	if (o) {
		t->current = o;
		if (!dropped && !o->dropped && tap_open_end(&o->rec, &to) < 0)
			o->dropped = true;
		dropped |= o->dropped;
		o->live = false;
	}
	for (int i = 0; i < m->n_parts; i++)
		send_round(t, &m->parts[i], dropped && i == 0);
}

static void take(struct tap *t, const struct msg *m)
{
	struct open *o = m->slot >= 0 ? &t->open[m->slot] : NULL;

	if (m->kind == M_END) {
		take_end(t, o && o->live && o->gen == m->gen ? o : NULL, (const void *)m);
		return;
	}
	if (m->kind == M_BEGIN)
		take_begin(t, o, (const void *)m);
	else if (!o->live || o->dropped || o->gen != m->gen)
		return;
	else if (m->kind == M_ROWS)
		take_rows(t, o, (const void *)m);
	else
		tap_open_round(&o->rec, &((const struct msg_round *)(const void *)m)->r);
}

/* Sleep until the engine pushes something, or a moment to serve delivery reports. */
static void rest(struct tap *t)
{
	struct pollfd p = {.fd = t->wake, .events = POLLIN};
	uint64_t drained;
	size_t n;

	atomic_store(&t->sleeping, true);
	atomic_thread_fence(memory_order_seq_cst);
	if (!tap_ring_peek(&t->ring, &n) && !atomic_load(&t->stop))
		(void)poll(&p, 1, IDLE_MS);
	atomic_store(&t->sleeping, false);
	if (read(t->wake, &drained, sizeof drained) < 0)
		return; /* nothing there: non-blocking */
}

static void *run(void *arg)
{
	struct tap *t = arg;
	const void *m;
	size_t n;

	(void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 5); /* the engine first */
	for (;;) {
		bool stop = atomic_load(&t->stop);
		int burst = 0;
		while ((m = tap_ring_peek(&t->ring, &n))) {
			take(t, m);
			tap_ring_pop(&t->ring);
			if (t->producer && ++burst % 16 == 0)
				tap_producer_poll(t->producer);
		}
		if (t->producer) {
			tap_producer_poll(t->producer);
			atomic_store_explicit(&t->broker_down, tap_producer_down(t->producer), memory_order_relaxed);
		}
		if (stop)
			return NULL;
		rest(t);
	}
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
					 .on_delivered = on_delivered,
					 .on_lost = on_lost,
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
		r = -pthread_create(&t->thread, NULL, run, t);
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
