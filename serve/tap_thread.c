/* The tap's thread: what the engine pushed becomes records and goes to the broker, at lower priority than the engine.
 *
 * A request whose record could not be queued or delivered is marked through its slot's `lost` generation, which the engine reads
 * before it does any further work. A BEGIN for a slot overrides whatever is still held of it here, so that a lost END leaks nothing.
 */
#include <math.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "serve/tap_inside.h"

enum { IDLE_MS = 20 };

static uint64_t tag_of(const struct open *o, const struct tap *t)
{
	return o->gen << 8 | (uint64_t)(o - t->open);
}

void tap_delivered(void *arg, uint64_t tag)
{
	struct tap *t = arg;

	if (tag)
		count(&t->delivered);
}

/* Tag 0 is a round record. */
void tap_lost(void *arg, uint64_t tag)
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

void *tap_run(void *arg)
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
