/* The rings. Slot number = time / HISTORY_FINE_S, its place = that modulo the ring; when time moves on, what lies
 * between is emptied, so a daemon that slept shows a gap. The value of a slot is the domain's exponential mean when
 * the slot ended, if requests had come since the one before: its noise is that of 200 rounds
 * whatever the slot is long. A coarse slot is the mean of the fine ones that had any.
 */
#include "daemon/history.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/report.h"

struct history_domain {
	char name[32];
	json_int_t requests; /* when last looked at */
	float fine[HISTORY_FINE], coarse[HISTORY_COARSE];
	double sum; /* of the coarse slot under way */
	int n;
};

struct history_mark {
	uint64_t us;
	uint32_t version;
	char kind[8], text[200];
};

struct history_marks {
	int n, at, max; /* at: where the next one goes */
	struct history_mark mark[HISTORY_MARKS > HISTORY_EVENTS ? HISTORY_MARKS : HISTORY_EVENTS];
};

struct history {
	uint64_t slot; /* the fine one under way */
	int n_domains;
	struct history_domain domain[HISTORY_DOMAINS];
	struct history_marks marks, events;
};

static const uint64_t slot_us = HISTORY_FINE_S * 1000000ull;

int history_new(uint64_t now_us, struct history **ret)
{
	struct history *h = calloc(1, sizeof *h);

	if (!h)
		return -ENOMEM;
	h->slot = now_us / slot_us;
	h->marks.max = HISTORY_MARKS;
	h->events.max = HISTORY_EVENTS;
	*ret = h;
	return 0;
}

struct history *history_free(struct history *h)
{
	free(h);
	return NULL;
}

static struct history_domain *history_find(struct history *h, const char *name)
{
	struct history_domain *d;

	for (int i = 0; i < h->n_domains; i++)
		if (!strcmp(h->domain[i].name, name))
			return &h->domain[i];
	if (h->n_domains == HISTORY_DOMAINS)
		return NULL; /* the watcher knows no more either */
	d = &h->domain[h->n_domains++];
	snprintf(d->name, sizeof d->name, "%s", name);
	for (int i = 0; i < HISTORY_FINE; i++)
		d->fine[i] = NAN;
	for (int i = 0; i < HISTORY_COARSE; i++)
		d->coarse[i] = NAN;
	return d;
}

/* The domain's value in the slot that ends now; NaN when nothing came. */
static double history_value(struct history_domain *d, const json_t *j)
{
	json_int_t requests = json_integer_value(json_object_get(j, "requests"));
	double al = json_number_value(json_object_get(j, "accept_length"));
	bool some = requests > d->requests && al > 0;

	d->requests = requests;
	return some ? al : NAN;
}

static void history_put(struct history_domain *d, uint64_t slot, double v)
{
	d->fine[slot % HISTORY_FINE] = (float)v;
	if (!isnan(v)) {
		d->sum += v;
		d->n++;
	}
	if (slot % HISTORY_FOLD != HISTORY_FOLD - 1)
		return;
	d->coarse[slot / HISTORY_FOLD % HISTORY_COARSE] = d->n ? (float)(d->sum / d->n) : NAN;
	d->sum = 0;
	d->n = 0;
}

bool history_due(const struct history *h, uint64_t now_us)
{
	return now_us / slot_us > h->slot;
}

void history_take(struct history *h, uint64_t now_us, const json_t *domains)
{
	const uint64_t whole = (uint64_t)HISTORY_FOLD * HISTORY_COARSE, slot = now_us / slot_us;
	const char *name;
	const json_t *j;

	if (!history_due(h, now_us))
		return;
	json_object_foreach((json_t *)(uintptr_t)domains, name, j)
		(void)history_find(h, name);
	if (slot - h->slot > whole)
		h->slot = slot - whole; /* older than all that is kept */
	for (int i = 0; i < h->n_domains; i++) {
		struct history_domain *d = &h->domain[i];

		for (uint64_t s = h->slot; s < slot; s++)
			history_put(d, s, s + 1 == slot ? history_value(d, json_object_get(domains, d->name)) : NAN);
	}
	h->slot = slot;
}

static void history_add(struct history_marks *m, const struct history_mark *x)
{
	m->mark[m->at] = *x;
	m->at = (m->at + 1) % m->max;
	m->n += m->n < m->max;
}

void history_said(struct history *h, uint64_t now_us, const char *kind, uint32_t version, const char *text)
{
	struct history_mark x = {.us = now_us, .version = version};

	snprintf(x.kind, sizeof x.kind, "%s", kind);
	snprintf(x.text, sizeof x.text, "%s", text);
	history_add(&h->events, &x);
	if (strcmp(kind, "event"))
		history_add(&h->marks, &x);
}

/* ---- shown ---- */

/* The slots of a ring that end before `end`, oldest first, without those before the first that holds something. */
static json_t *history_ring(const float *ring, int n, uint64_t end)
{
	json_t *list = json_array();
	bool begun = false;

	for (int i = 0; list && i < n; i++) {
		float v = ring[(end + (uint64_t)i) % (uint64_t)n]; /* the slot n - i before the end */

		begun |= !isnan(v);
		if (begun)
			(void)json_array_append_new(list, isnan(v) ? json_null() : json_real(round((double)v * 1000) / 1000));
	}
	return list;
}

static json_t *history_rings(const struct history *h, bool coarse, int64_t to_wall_ms)
{
	uint64_t end = coarse ? h->slot / HISTORY_FOLD : h->slot;
	json_int_t step_ms = (json_int_t)HISTORY_FINE_S * 1000 * (coarse ? HISTORY_FOLD : 1);
	json_t *domains = json_object();

	for (int i = 0; domains && i < h->n_domains; i++) {
		const struct history_domain *d = &h->domain[i];
		json_t *list = coarse ? history_ring(d->coarse, HISTORY_COARSE, end) : history_ring(d->fine, HISTORY_FINE, end);

		if (coarse && d->n && list) /* the one under way, as far as it is: it says where we are now */
			(void)json_array_append_new(list, json_real(round(d->sum / d->n * 1000) / 1000));
		else if (coarse && json_array_size(list))
			(void)json_array_append_new(list, json_null());
		(void)json_object_set_new(domains, d->name, list);
	}
	return json_pack("{s:I, s:I, s:o}", "step_ms", step_ms, "end_ms", (json_int_t)(end + coarse) * step_ms + to_wall_ms, "domains", domains);
}

static json_t *history_list(const struct history_marks *m, int64_t to_wall_ms)
{
	json_t *list = json_array();

	for (int i = 0; list && i < m->n; i++) {
		const struct history_mark *x = &m->mark[(m->at - m->n + i + m->max) % m->max];

		(void)json_array_append_new(list, json_pack("{s:I, s:s, s:I, s:o}", "t_ms", (json_int_t)(x->us / 1000) + to_wall_ms, "kind", x->kind,
							    "version", (json_int_t)x->version, "text", report_text(x->text)));
	}
	return list;
}

json_t *history_json(const struct history *h, uint64_t now_us, int64_t wall_ms)
{
	int64_t to_wall_ms = wall_ms - (int64_t)(now_us / 1000);

	return json_pack("{s:I, s:o, s:o, s:o, s:o}", "now_ms", (json_int_t)wall_ms, "fine", history_rings(h, false, to_wall_ms), "coarse",
			 history_rings(h, true, to_wall_ms), "marks", history_list(&h->marks, to_wall_ms), "events",
			 history_list(&h->events, to_wall_ms));
}
