/* Prometheus text metrics. A series is a few atomics, updated with relaxed order
 * by whoever counts; the mutex is only taken to make a series and to print.
 * Doubles are added by compare-and-swap on their bits. Series stay for the life of the
 * registry, so pointers stay good, unless their owner retires them; callers bound their number and the
 * registry bounds it once more.
 */
#include "daemon/base/metrics.h"
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { METRICS_MAX_SERIES = 4096 };
enum metric_kind { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };

struct metric {
	struct metric *next;        /* next series of the same family */
	char *labels;               /* owned; "" when none */
	_Atomic uint64_t value;     /* bits of a double: value, or sum of a histogram */
	_Atomic uint64_t count;     /* histogram: observations */
	_Atomic uint64_t *bins;     /* owned [n_edges + 1] */
	double *edges;              /* owned [n_edges] */
	int n_edges;
};

struct metric_family {
	struct metric_family *next;
	char *name, *help; /* owned */
	enum metric_kind kind;
	struct metric *first;
};

struct metrics {
	pthread_mutex_t lock;
	struct metric_family *first, **last;
	int n_series;
	struct metric sink; /* where updates go that have no series of their own */
};

static const char *const metric_kind_names[] = {"counter", "gauge", "histogram"};

static double metric_load(const _Atomic uint64_t *bits)
{
	uint64_t u = atomic_load_explicit(bits, memory_order_relaxed);
	double d;

	memcpy(&d, &u, sizeof d);
	return d;
}

static void metric_plus(_Atomic uint64_t *bits, double v)
{
	uint64_t old = atomic_load_explicit(bits, memory_order_relaxed), new;
	double d;

	do {
		memcpy(&d, &old, sizeof d);
		d += v;
		memcpy(&new, &d, sizeof new);
	} while (!atomic_compare_exchange_weak_explicit(bits, &old, new, memory_order_relaxed, memory_order_relaxed));
}

struct metrics *metrics_new(void)
{
	struct metrics *m = calloc(1, sizeof *m);

	if (!m)
		return NULL;
	pthread_mutex_init(&m->lock, NULL);
	m->last = &m->first;
	return m;
}

static void metric_free(struct metric *x)
{
	free(x->labels);
	free(x->bins);
	free(x->edges);
	free(x);
}

struct metrics *metrics_free(struct metrics *m)
{
	if (!m)
		return NULL;
	for (struct metric_family *f = m->first, *fn; f; f = fn) {
		fn = f->next;
		for (struct metric *x = f->first, *xn; x; x = xn) {
			xn = x->next;
			metric_free(x);
		}
		free(f->name);
		free(f->help);
		free(f);
	}
	pthread_mutex_destroy(&m->lock);
	free(m);
	return NULL;
}

static struct metric_family *metric_family_get(struct metrics *m, const char *name, const char *help,
					       enum metric_kind kind)
{
	struct metric_family *f;

	for (f = m->first; f; f = f->next)
		if (!strcmp(f->name, name))
			return f->kind == kind ? f : NULL; /* one name, one kind */
	f = calloc(1, sizeof *f);
	if (!f)
		return NULL;
	f->name = strdup(name);
	f->help = strdup(help ? help : "");
	f->kind = kind;
	if (!f->name || !f->help) {
		free(f->name);
		free(f->help);
		free(f);
		return NULL;
	}
	*m->last = f;
	m->last = &f->next;
	return f;
}

static struct metric *metric_make(const char *labels, const double *edges, int n_edges)
{
	struct metric *x = calloc(1, sizeof *x);

	if (!x)
		return NULL;
	x->labels = strdup(labels);
	x->n_edges = n_edges;
	if (n_edges) {
		x->edges = malloc((size_t)n_edges * sizeof *x->edges);
		x->bins = calloc((size_t)n_edges + 1, sizeof *x->bins);
	}
	if (!x->labels || (n_edges && (!x->edges || !x->bins))) {
		metric_free(x);
		return NULL;
	}
	if (n_edges)
		memcpy(x->edges, edges, (size_t)n_edges * sizeof *edges);
	return x;
}

static struct metric *metric_get_series(struct metrics *m, enum metric_kind kind, const char *name, const char *labels,
					const char *help, const double *edges, int n_edges)
{
	struct metric_family *f;
	struct metric **at, *x = NULL;

	labels = labels ? labels : "";
	pthread_mutex_lock(&m->lock);
	f = metric_family_get(m, name, help, kind);
	if (f) {
		for (at = &f->first; *at; at = &(*at)->next)
			if (!strcmp((*at)->labels, labels))
				break;
		if (!*at && m->n_series < METRICS_MAX_SERIES - 1) {
			*at = metric_make(labels, edges, n_edges);
			m->n_series += *at != NULL;
		}
		x = *at;
	}
	pthread_mutex_unlock(&m->lock);
	return x ? x : &m->sink;
}

struct metric *metrics_counter(struct metrics *m, const char *name, const char *labels, const char *help)
{
	return metric_get_series(m, METRIC_COUNTER, name, labels, help, NULL, 0);
}

struct metric *metrics_gauge(struct metrics *m, const char *name, const char *labels, const char *help)
{
	return metric_get_series(m, METRIC_GAUGE, name, labels, help, NULL, 0);
}

struct metric *metrics_histogram(struct metrics *m, const char *name, const char *labels, const char *help,
				 const double *edges, int n_edges)
{
	return metric_get_series(m, METRIC_HISTOGRAM, name, labels, help, edges, n_edges);
}

void metrics_retire(struct metrics *m, const char *name, bool (*keep)(void *arg, const char *labels), void *arg)
{
	pthread_mutex_lock(&m->lock);
	for (struct metric_family *f = m->first; f; f = f->next) {
		if (strcmp(f->name, name) != 0)
			continue;
		for (struct metric **at = &f->first, *x; (x = *at);) {
			if (keep(arg, x->labels)) {
				at = &x->next;
				continue;
			}
			*at = x->next;
			m->n_series--;
			metric_free(x);
		}
	}
	pthread_mutex_unlock(&m->lock);
}

void metric_add(struct metric *x, double v)
{
	metric_plus(&x->value, v);
}

void metric_set(struct metric *x, double v)
{
	uint64_t u;

	memcpy(&u, &v, sizeof u);
	atomic_store_explicit(&x->value, u, memory_order_relaxed);
}

void metric_observe(struct metric *x, double v)
{
	metric_observe_n(x, v, 1);
}

void metric_observe_n(struct metric *x, double v, unsigned n)
{
	int i = 0;

	while (i < x->n_edges && !(v <= x->edges[i]))
		i++;
	if (x->bins)
		atomic_fetch_add_explicit(&x->bins[i], n, memory_order_relaxed);
	metric_plus(&x->value, v * n);
	atomic_fetch_add_explicit(&x->count, n, memory_order_relaxed);
}

double metric_get(const struct metric *x)
{
	if (x->bins)
		return (double)atomic_load_explicit(&x->count, memory_order_relaxed);
	return metric_load(&x->value);
}

static int metric_print_number(struct buf *out, double v)
{
	if (isnan(v))
		return buf_puts(out, "NaN\n");
	if (isinf(v))
		return buf_puts(out, v > 0 ? "+Inf\n" : "-Inf\n");
	if (fabs(v) < 9e15 && v == floor(v))
		return buf_printf(out, "%.0f\n", v);
	return buf_printf(out, "%.10g\n", v);
}

static int metric_print_histogram(struct buf *out, const char *name, const struct metric *x)
{
	const char *comma = x->labels[0] ? "," : "";
	uint64_t sum = 0;
	int r = 0;

	for (int i = 0; !r && i <= x->n_edges; i++) {
		char le[32] = "+Inf";

		sum += atomic_load_explicit(&x->bins[i], memory_order_relaxed);
		if (i < x->n_edges)
			snprintf(le, sizeof le, "%g", x->edges[i]);
		r = buf_printf(out, "%s_bucket{%s%sle=\"%s\"} %llu\n", name, x->labels, comma, le,
			       (unsigned long long)sum);
	}
	if (!r)
		r = buf_printf(out, x->labels[0] ? "%s_sum{%s} " : "%s_sum%s ", name, x->labels);
	if (!r)
		r = metric_print_number(out, metric_load(&x->value));
	if (!r) /* the bins' own sum, so that +Inf and count agree in every scrape */
		r = buf_printf(out, x->labels[0] ? "%s_count{%s} %llu\n" : "%s_count%s %llu\n", name, x->labels,
			       (unsigned long long)sum);
	return r;
}

int metrics_print(struct metrics *m, struct buf *out)
{
	int r = 0;

	pthread_mutex_lock(&m->lock);
	for (struct metric_family *f = m->first; !r && f; f = f->next) {
		if (!f->first)
			continue;
		r = buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", f->name, f->help, f->name,
			       metric_kind_names[f->kind]);
		for (struct metric *x = f->first; !r && x; x = x->next) {
			if (x->bins) {
				r = metric_print_histogram(out, f->name, x);
				continue;
			}
			r = buf_printf(out, x->labels[0] ? "%s{%s} " : "%s%s ", f->name, x->labels);
			if (!r)
				r = metric_print_number(out, metric_load(&x->value));
		}
	}
	pthread_mutex_unlock(&m->lock);
	return r;
}
