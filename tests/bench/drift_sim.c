/* How often does each detector cry wolf, and how soon does it see a fall?
 *
 *   drift_sim [weeks] [seed] [own]     (20 weeks, seed 1; own: only the detector that may raise an alarm)
 *
 * Quiet traffic: twelve streams share one request a second. A request's accept length is 1 + a mean over
 * 5 to 40 rounds of a chain of up to five, each position accepted with a probability that the request draws
 * from a Beta distribution: requests differ more than chance within one does, as real ones do. Falls: the same, with the mean
 * acceptance lower from request 2,000 on. Shifts: ten falls of traffic; when the alarm comes, the newest 64 requests are
 * compared as served and as replayed, which differ in one round of 500 as ties may fall, and it has to be called drift. The table is what daemon/README.md shows; nothing here is timed.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/drift.h"
#include "tests/bench/traffic.h"

static void one(struct round_record *r, double mean)
{
	double p = acceptance(mean);

	request(r, p, rounds_of_one(), 0);
}

struct others { struct adwin a; struct page_hinkley p; struct kswin k; };

static void others_init(struct others *o)
{
	adwin_init(&o->a);
	page_hinkley_init(&o->p);
	kswin_init(&o->k, NULL, NULL);
}

static bool own; /* the others are not asked */

static void quiet(int weeks)
{
	struct drift *d = NULL;
	struct others *o = calloc(12, sizeof *o);
	long alarms[4] = {0}, looks = (long)weeks * 7 * 86400;
	char text[DRIFT_TEXT];

	if (!o || drift_new(&drift_defaults, &d))
		exit(1);
	for (int i = 0; i < 12; i++)
		others_init(&o[i]);
	for (long i = 0; i < looks; i++) {
		int s = (int)(i % 12);
		struct round_record r = {.version = 1, .context_bucket = s % 4};

		(void)snprintf(r.domain, sizeof r.domain, "d%d", s / 4);
		one(&r, 0.30 + 0.03 * (s % 5));
		alarms[0] += drift_take(d, &r, text) == 1;
		if (own)
			continue;
		double al = round_accept_length(&r);
		alarms[1] += adwin_take(&o[s].a, al / 6) == 1;
		alarms[2] += page_hinkley_take(&o[s].p, -al) == 1;
		alarms[3] += kswin_take(&o[s].k, al) == 1;
	}
	printf("false alarms a week, 12 streams, one request a second, %d weeks: fall detector %.3f, ADWIN %.3f, Page-Hinkley(0.005, 50) %.3f, KSWIN(1e-4) %.1f\n", weeks,
	       (double)alarms[0] / weeks, (double)alarms[1] / weeks, (double)alarms[2] / weeks, (double)alarms[3] / weeks);
	drift_free(d);
	free(o);
}

static int delay_of(double mean, double fallen, int which)
{
	struct drift *d = NULL;
	struct others *o = calloc(1, sizeof *o);
	char text[DRIFT_TEXT];
	int at = -1;

	if (!o || drift_new(&drift_defaults, &d))
		exit(1);
	others_init(o);
	for (int i = 0; i < 12000 && at < 0; i++) {
		struct round_record r = {.version = 1, .domain = "x"};

		one(&r, i < 2000 ? mean : fallen);
		double al = round_accept_length(&r);
		int hit = which == 0 ? drift_take(d, &r, text) : which == 1 ? adwin_take(&o->a, al / 6) : which == 2 ? page_hinkley_take(&o->p, -al) : kswin_take(&o->k, al);
		if (hit == 1 && i >= 2000)
			at = i - 2000;
	}
	drift_free(d);
	free(o);
	return at;
}

/* Ten true shifts: an alarm, and the comparison that follows it does not call it decay. */
static void shifts(void)
{
	int drift = 0, decay = 0;

	for (int i = 0; i < 10; i++) {
		struct drift *d = NULL;
		char text[DRIFT_TEXT];
		double rounds = 0, served = 0, replayed = 0, rr = 0, rd = 0, dd = 0, differ = 0, rx = 0, xx = 0;
		int what = 0, n = 0;

		if (drift_new(&drift_defaults, &d))
			exit(1);
		for (int k = 0; k < 12000 && what != 1; k++) {
			struct round_record r = {.version = 1, .domain = "x"};

			one(&r, k < 2000 ? 0.38 : 0.31 - 0.02 * i);
			what = drift_take(d, &r, text);
		}
		for (; what == 1 && n < 64; n++) { /* as learn/served.c sums them */
			struct round_record r = {.version = 1, .domain = "x"};
			double a = 0, off = 0, x = 0;

			one(&r, 0.31 - 0.02 * i);
			for (int j = 0; j < r.k; j++)
				a += r.accepted[j];
			for (uint32_t j = 0; j < r.rounds; j++) {
				double tie = uniform() < 0.002 ? (uniform() < 0.5 ? -1 : 1) : 0;

				off += tie;
				x += fabs(tie);
			}
			rounds += r.rounds;
			served += a;
			replayed += a + off;
			rr += (double)r.rounds * r.rounds;
			rd += r.rounds * off;
			dd += off * off;
			differ += x;
			rx += r.rounds * x;
			xx += x * x;
		}
		double gap = n ? (replayed - served) / rounds : 0, share = n ? differ / rounds : 0;
		double spread[2] = {dd - 2 * gap * rd + gap * gap * rr, xx - 2 * share * rx + share * share * rr};
		struct drift_compared c = {.requests = n, .differ = share};

		if (n > 1) {
			c.served_al = 1 + served / rounds;
			c.replayed_al = 1 + replayed / rounds;
			c.gap_se = sqrt(fmax(spread[0], 0) * n / (n - 1)) / rounds;
			c.differ_se = sqrt(fmax(spread[1], 0) * n / (n - 1)) / rounds;
		}
		bool is = n && drift_is_decay(&c);
		decay += is;
		drift += what == 1 && !is;
		drift_free(d);
	}
	printf("ten true shifts: %d called drift, %d called decay, %d not seen\n", drift, decay, 10 - drift - decay);
}

static int compare(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

int main(int argc, char **argv)
{
	static const double falls[] = {0.36, 0.34, 0.31, 0.27, 0.20, 0.10};
	static const char *const who[] = {"fall detector", "ADWIN", "Page-Hinkley", "KSWIN"};
	int weeks = argc > 1 ? atoi(argv[1]) : 20, runs = 41;

	seed(argc > 2 ? strtoull(argv[2], NULL, 10) : 1);
	own = argc > 3;
	printf("seed %llu\n", argc > 2 ? strtoull(argv[2], NULL, 10) : 1);
	quiet(weeks);
	shifts();
	printf("requests of a stream until a fall is found (median of %d runs; - = not within 10,000)\n%-14s", runs, "acceptance");
	for (size_t f = 0; f < sizeof falls / sizeof *falls; f++)
		printf("  0.38->%.2f", falls[f]);
	printf("\n");
	for (int w = 0; w < (own ? 1 : 4); w++) {
		printf("%-14s", who[w]);
		for (size_t f = 0; f < sizeof falls / sizeof *falls; f++) {
			int v[41];
			for (int i = 0; i < runs; i++) {
				v[i] = delay_of(0.38, falls[f], w);
				v[i] = v[i] < 0 ? 99999 : v[i];
			}
			qsort(v, (size_t)runs, sizeof *v, compare);
			if (v[runs / 2] == 99999)
				printf("  %10s", "-");
			else
				printf("  %10d", v[runs / 2]);
		}
		printf("\n");
	}
	return 0;
}
