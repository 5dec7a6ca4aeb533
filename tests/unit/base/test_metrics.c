/* Metrics: the text a scraper reads, plain and as OpenMetrics, same series for same labels, sums exact under
 * threads, a bounded number of series.
 */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "daemon/base/metrics.h"

static void text(void **state)
{
	static const char want[] = "# HELP a_total Things.\n# TYPE a_total counter\na_total{d=\"x\"} 3\na_total{d=\"y\"} 0.5\n"
				   "# HELP g A gauge.\n# TYPE g gauge\ng NaN\n"
				   "# HELP h_ms Time.\n# TYPE h_ms histogram\nh_ms_bucket{d=\"x\",le=\"1\"} 1\n"
				   "h_ms_bucket{d=\"x\",le=\"2.5\"} 3\nh_ms_bucket{d=\"x\",le=\"+Inf\"} 4\n"
				   "h_ms_sum{d=\"x\"} 106.5\nh_ms_count{d=\"x\"} 4\n";
	static const char open_want[] = "# HELP a Things.\n# TYPE a counter\na_total{d=\"x\"} 3\na_total{d=\"y\"} 0.5\n"
					"# HELP g A gauge.\n# TYPE g gauge\ng NaN\n"
					"# HELP h_ms Time.\n# TYPE h_ms histogram\nh_ms_bucket{d=\"x\",le=\"1.0\"} 1\n"
					"h_ms_bucket{d=\"x\",le=\"2.5\"} 3\nh_ms_bucket{d=\"x\",le=\"+Inf\"} 4\n"
					"h_ms_sum{d=\"x\"} 106.5\nh_ms_count{d=\"x\"} 4\n# EOF\n";
	const double edges[] = {1, 2.5};
	struct metrics *m = metrics_new();
	struct metric *x = metrics_counter(m, "a_total", "d=\"x\"", "Things."), *h;
	static const char role[] = "a{role=\"5\"} 3\nb_bucket{role=\"5\",le=\"10.0\"} 3\n";
	struct buf b = BUF_INIT(0), open = BUF_INIT(0);

	(void)state;
	metric_set(metrics_gauge(m, "g", NULL, "A gauge."), NAN);
	metric_add(x, 1);
	metric_add(metrics_counter(m, "a_total", "d=\"x\"", "Things."), 2);
	metric_add(metrics_counter(m, "a_total", "d=\"y\"", "Things."), 0.5); /* printed with its family */
	assert_true(metric_get(x) == 3);
	h = metrics_histogram(m, "h_ms", "d=\"x\"", "Time.", edges, 2);
	metric_observe(h, 1);
	metric_observe(h, 2);
	metric_observe(h, 2.5);
	metric_observe(h, 101);
	assert_true(metric_get(h) == 4);
	assert_int_equal(metrics_print(m, &b), 0);
	assert_int_equal(buf_append(&b, "", 1), 0);
	assert_string_equal((char *)b.data, want);
	b.len--;
	assert_int_equal(metrics_openmetrics(&b, &open), 0);
	assert_int_equal(buf_append(&open, "", 1), 0);
	assert_string_equal((char *)open.data, open_want);
	buf_clear(&open);
	buf_clear(&b);
	assert_int_equal(buf_puts(&b, "a{role=\"5\"} 3\nb_bucket{role=\"5\",le=\"10\"} 3\n"), 0);
	assert_int_equal(metrics_openmetrics(&b, &open), 0);
	assert_memory_equal(open.data, role, sizeof role - 1); /* no bound of a histogram */
	buf_done(&open);
	buf_done(&b);
	metrics_free(m);
}

static void *add_many(void *arg)
{
	for (int i = 0; i < 100000; i++)
		metric_add(arg, 1);
	return NULL;
}

static void threads(void **state)
{
	struct metrics *m = metrics_new();
	struct metric *x = metrics_counter(m, "n_total", NULL, "N.");
	pthread_t t[3];

	(void)state;
	for (int i = 0; i < 3; i++)
		pthread_create(&t[i], NULL, add_many, x);
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	assert_true(metric_get(x) == 300000);
	metrics_free(m);
}

static void bounded(void **state)
{
	struct metrics *m = metrics_new();
	struct metric *first = metrics_counter(m, "n", "i=\"0\"", "N."), *a, *b;

	(void)state;
	for (int i = 1; i < 4095; i++) {
		char labels[32];

		snprintf(labels, sizeof labels, "i=\"%d\"", i);
		assert_non_null(metrics_counter(m, "n", labels, "N."));
	}
	a = metrics_counter(m, "n", "i=\"x\"", "N.");
	b = metrics_gauge(m, "other", "i=\"y\"", "N.");
	assert_non_null(a);
	assert_ptr_equal(a, b); /* the sink */
	metric_add(a, 1);
	assert_ptr_equal(metrics_counter(m, "n", "i=\"0\"", "N."), first);
	assert_ptr_equal(metrics_gauge(m, "n", "i=\"0\"", "N."), a); /* one name, one kind */
	metrics_free(m);
}

static bool keep_y(void *arg, const char *labels)
{
	++*(int *)arg;
	return strstr(labels, "y") != NULL;
}

/* A name whose labels change without end does not fill the registry when its old series are retired. */
static void retire(void **state)
{
	struct metrics *m = metrics_new();
	struct buf b = BUF_INIT(0);
	int asked = 0;

	(void)state;
	for (int round = 0; round < 3; round++)
		for (int i = 0; i < 4000; i++) {
			char labels[32];
			snprintf(labels, sizeof labels, "v=\"%d.%d\"", round, i);
			metric_add(metrics_counter(m, "v_total", labels, "By version."), 1);
			if (i == 3999)
				metrics_retire(m, "v_total", keep_y, &asked);
		}
	assert_int_equal(12000, asked);
	metric_add(metrics_counter(m, "v_total", "v=\"x\"", "By version."), 1);
	metric_add(metrics_counter(m, "v_total", "v=\"y\"", "By version."), 2);
	metric_add(metrics_counter(m, "other_total", "v=\"x\"", "Not of that name."), 3);
	metrics_retire(m, "v_total", keep_y, &asked);
	assert_int_equal(metrics_print(m, &b), 0);
	assert_int_equal(buf_append(&b, "", 1), 0);
	assert_string_equal((char *)b.data, "# HELP v_total By version.\n# TYPE v_total counter\nv_total{v=\"y\"} 2\n"
					    "# HELP other_total Not of that name.\n# TYPE other_total counter\nother_total{v=\"x\"} 3\n");
	buf_done(&b);
	metrics_free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(text), cmocka_unit_test(retire), cmocka_unit_test(threads), cmocka_unit_test(bounded)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
