/* What does the canary refuse, how soon, and how often wrongly?
 *
 *   canary_sim [runs] [seed]     (400 runs of each kind, seed 1)
 *
 * Live is accepted at 0.38 a position, rounds take 45 ms in the median, requests come from four domains that differ. 50 of 1,000
 * conversations draw the canary until 250 of its requests were seen, then 250 of 1,000 until another 250 were: daemon/canary.c judges after
 * each request. The table counts the canary's requests until it was taken back, and how many never were. The
 * simulation has no batch: no round of one arm delays the other's.
 */
#include <stdio.h>
#include <stdlib.h>
#include "daemon/canary.h"
#include "tests/bench/traffic.h"

struct kind { const char *name; double accept, round_ms, lost; };

static const struct kind kinds[] = {
	{"the same weights", 1, 1, 0},	    {"3 % more tokens a round", 1.043, 1, 0}, {"10 % fewer tokens a round", 0.838, 1, 0},
	{"20 % fewer tokens a round", 0.64, 1, 0}, {"corrupt: nothing accepted", 0.0, 1, 0}, {"loses its draft (NaN)", 0.0, 1, 1},
	{"rounds 1.25 x as long", 1, 1.25, 0}, {"rounds 1.5 x as long", 1, 1.5, 0},
};

static void one(struct round_record *r, const struct kind *k)
{
	static const double mean[] = {0.30, 0.36, 0.40, 0.46};
	double p = acceptance(mean[(int)(uniform() * 4)]) * (k ? k->accept : 1);
	bool lost = k && uniform() < k->lost;

	request(r, p > 0.99 ? 0.99 : p, lost ? 0 : rounds_of_one(), 45 * (k ? k->round_ms : 1));
	r->last = !lost;
	r->ttft_ms = 200 * exp(0.6 * normal());
}

/* The canary's requests until it is taken back, or -1: it was promoted. */
static int run(const struct kind *k)
{
	struct canary_rules rules = canary_defaults;
	struct canary c;
	char text[CANARY_TEXT];
	int steps[] = {50, 250}, n = 0;

	canary_start(&c, 2, 1);
	for (int s = 0; s < 2; s++) {
		rules.requests = s ? 500 : 250;
		for (;;) {
			bool on = uniform() * 1000 < steps[s];
			struct round_record r = {.version = on ? 2 : 1};

			one(&r, on ? k : NULL);
			canary_take(&c, &r);
			n += on;
			if (!on)
				continue;
			enum canary_outcome out = canary_judge(&rules, &c, false, text);
			if (out == CANARY_HARM)
				return n;
			if (out == CANARY_ENOUGH)
				break;
		}
	}
	return -1;
}

/* Tokens a round, of live's. */
static double yield_of(const struct kind *k)
{
	double accepted = 0, rounds = 0;

	for (int i = 0; i < 20000; i++) {
		struct round_record r;

		one(&r, k);
		for (int j = 0; j < r.k; j++)
			accepted += r.accepted[j];
		rounds += r.rounds;
	}
	return rounds > 0 ? 1 + accepted / rounds : 0;
}

static int compare(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

int main(int argc, char **argv)
{
	int runs = argc > 1 ? atoi(argv[1]) : 400;
	uint64_t s = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
	int *v = calloc((size_t)runs, sizeof *v);

	if (!v || runs < 1)
		return 1;
	seed(s);
	printf("%d canaries of each kind, seed %llu; canary requests until taken back\n%-28s %8s %10s %8s %8s\n", runs, (unsigned long long)s, "", "yield", "taken back", "median", "most");
	double live = yield_of(NULL);

	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		int back = 0;

		for (int j = 0; j < runs; j++) {
			int n = run(&kinds[i]);

			if (n >= 0)
				v[back++] = n;
		}
		printf("%-28s %7.3fx ", kinds[i].name, yield_of(&kinds[i]) / live);
		qsort(v, (size_t)back, sizeof *v, compare);
		if (back)
			printf("%6d/%d %8d %8d\n", back, runs, v[back / 2], v[back - 1]);
		else
			printf("%6d/%d %8s %8s\n", back, runs, "-", "-");
	}
	free(v);
	return 0;
}
