/* What does the gate let through, what does it refuse, and after how many requests?
 *
 *   gate_sim [candidates] [seed] [power.svg]     (200 of each kind, seed 1)
 *
 * Four domains and four context lengths, alike in number. Both versions walk the same requests: where live accepts, a candidate mostly
 * does too (seven positions of ten are decided by the same chance). The gate (daemon/gate.h, the defaults) looks at 32 requests and again each time there
 * are a fifth more, up to 1,600, which is 400 a domain; the first verdict counts. Sabotaged candidates are worse by 2 to 6 % overall, or
 * by 10 to 20 % in one domain or one length and up to 3 % better everywhere else. The power curve is the share accepted by the number of
 * requests, for a gain that is the same everywhere.
 *
 * Then a domain that is asked no more: the held-out requests are of the other three, better by 3 to 6 % there, and worse by 10 % in the one
 * that only pinned requests know (gate_guard). Candidates that are better everywhere, or no worse in the fourth, must pass as if there were none.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include "daemon/gate.h"
#include "tests/bench/traffic.h"

enum { MOST = 1600, N_GAINS = 9, CURVE = 100, PINNED = 48 };
static struct gate_pair pairs[MOST], pinned[4 * PINNED];

/* What a candidate does to live's yield (accept length) in a domain and a length. */
struct kind { double all; int domain, length; double there; /* domain or length -1: none */ };

/* The acceptance per position that gives `factor` times the accept length of p. */
static double scaled(double p, double factor)
{
	double want = factor * (1 + p + p * p + p * p * p + p * p * p * p + p * p * p * p * p), lo = 0, hi = 0.99;

	for (int i = 0; i < 30; i++) {
		double m = (lo + hi) / 2, al = 1 + m + m * m + m * m * m + m * m * m * m + m * m * m * m * m;

		if (al < want)
			lo = m;
		else
			hi = m;
	}
	return lo;
}

static void draw(struct gate_pair *x, const struct kind *k, int i, int domains)
{
	static const double mean[] = {0.30, 0.36, 0.40, 0.46};
	int domain = i % domains, length = (i / domains) % 4, rounds = rounds_of_one(), live = 0, candidate = 0;
	double p = acceptance(mean[domain]), q = scaled(p, domain == k->domain || length == k->length ? k->there : k->all);

	for (int r = 0; r < rounds; r++) {
		bool a = true, b = true;

		for (int j = 0; j < 5 && (a || b); j++) {
			double u = uniform(), v = uniform() < 0.7 ? u : uniform();

			a = a && u < p;
			b = b && v < q;
			live += a;
			candidate += b;
		}
	}
	*x = (struct gate_pair){.length = length, .rounds = rounds, .live_al = 1 + (double)live / rounds, .candidate_al = 1 + (double)candidate / rounds};
	snprintf(x->domain, sizeof x->domain, "d%d", domain);
}

/* The verdict and after how many requests; GATE_UNDECIDED: not within MOST. */
static enum gate_outcome judge(const struct kind *k, int domains, int *ret_n)
{
	struct gate_verdict v = {.outcome = GATE_UNDECIDED};
	int n = 0;

	for (int next = 32;; next = next * 6 / 5 < MOST ? next * 6 / 5 : MOST) {
		for (; n < next; n++)
			draw(&pairs[n], k, n, domains);
		gate_decide(&gate_defaults, pairs, n, 1, &v);
		if (v.outcome != GATE_UNDECIDED || n == MOST)
			break;
	}
	*ret_n = n;
	return v.outcome;
}

static void count(const char *name, int n, struct kind (*make)(void))
{
	int by[3] = {0}, at;
	double sum = 0;

	for (int i = 0; i < n; i++) {
		struct kind k = make();

		by[judge(&k, 4, &at)]++;
		sum += at;
	}
	printf("| %s | %d | %d | %d | %d | %.0f |\n", name, n, by[GATE_ACCEPT], by[GATE_REJECT], by[GATE_UNDECIDED], sum / n);
}

static struct kind worse(void) { double f = 0.98 - 0.04 * uniform(); return (struct kind){f, -1, -1, f}; }
static struct kind worse_domain(void) { double f = 1 + 0.03 * uniform(); return (struct kind){f, (int)(uniform() * 4), -1, 0.90 - 0.10 * uniform()}; }
static struct kind worse_length(void) { double f = 1 + 0.03 * uniform(); return (struct kind){f, -1, (int)(uniform() * 4), 0.90 - 0.10 * uniform()}; }
static struct kind better(void) { double f = 1.03 + 0.03 * uniform(); return (struct kind){f, -1, -1, f}; }

/* What the held-out requests of three domains accept, and what is left of it once each domain's pinned ones are heard. */
static void asked_no_more(const char *name, int n, double there)
{
	static const int members[] = {16, 32, PINNED};
	int accepted = 0, kept[3] = {0}, at;

	for (int i = 0; i < n; i++) {
		double f = 1.03 + 0.03 * uniform();
		struct kind k = {f, 3, -1, there > 0 ? there : f};

		if (judge(&k, 3, &at) != GATE_ACCEPT)
			continue;
		accepted++;
		for (int j = 0; j < 4 * PINNED; j++)
			draw(&pinned[j], &k, j, 4);
		for (int m = 0; m < 3; m++) {
			struct gate_verdict v = {.outcome = GATE_ACCEPT};

			gate_guard(&gate_defaults, pinned, 4 * members[m], &v);
			kept[m] += v.outcome == GATE_ACCEPT;
		}
	}
	printf("| %s | %d | %d | %d | %d | %d |\n", name, n, accepted, kept[0], kept[1], kept[2]);
}

/* What version `number`, which yields `factor` of the first one's accept length, has accepted on one pinned request: the same each time it is
 * asked, and mostly by the chance that all versions share. */
static double accepted(uint64_t sequence, int member, int number, double factor)
{
	static const double mean[] = {0.30, 0.36, 0.40, 0.46};
	uint64_t was = rng, own = 1 + sequence * 1000003 + (uint64_t)member * 977 + (uint64_t)number * 7919;
	int total = 0, rounds;
	double q;

	seed(1 + sequence * 1000003 + (uint64_t)member * 977);
	for (int i = 0; i < 8; i++)
		(void)uniform();
	q = scaled(acceptance(mean[member % 4]), factor);
	rounds = rounds_of_one();
	for (int r = 0; r < rounds; r++) {
		bool on = true;

		for (int j = 0; j < 5; j++) {
			double u = uniform(), v;
			uint64_t shared = rng;

			seed(own = own * 6364136223846793005u + 1442695040888963407u);
			(void)uniform();
			v = uniform() < 0.7 ? u : uniform();
			rng = shared;
			on = on && v < q;
			total += on;
		}
	}
	rng = was;
	return 1 + (double)total / rounds;
}

/* Twelve candidates after one another, each 3 % worse than live in the fourth domain, asked no more since version 0. What is left of it? */
static void slowly(int n, bool guarded, bool referred)
{
	double left = 0, least = 1;

	for (int i = 0; i < n; i++) {
		double live = 1;
		int live_number = 0;

		for (int c = 1; c <= 12; c++) {
			struct gate_verdict v = {.outcome = GATE_ACCEPT};

			for (int m = 0; m < 4 * PINNED && guarded; m++) {
				bool fourth = m % 4 == 3;
				struct gate_pair *x = &pinned[m];

				*x = (struct gate_pair){.length = -1, .rounds = 20, .live_al = accepted((uint64_t)i, m, live_number, fourth ? live : 1 + 0.02 * live_number),
							.candidate_al = accepted((uint64_t)i, m, c, fourth ? live * 0.97 : 1 + 0.02 * c)};
				if (referred && fourth && live_number) {
					x->reference = 1;
					x->reference_al = accepted((uint64_t)i, m, 0, 1);
				}
				snprintf(x->domain, sizeof x->domain, "d%d", m % 4);
			}
			if (guarded)
				gate_guard(&gate_defaults, pinned, 4 * PINNED, &v);
			if (v.outcome == GATE_ACCEPT) {
				live *= 0.97;
				live_number = c;
			}
		}
		left += live / n;
		least = fmin(least, live);
	}
	printf("| %s | %.0f %% | %.0f %% |\n", !guarded ? "no pinned requests" : referred ? "with the reference" : "compared with live alone", 100 * left, 100 * least);
}

static const double gains[N_GAINS] = {-0.02, 0, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12};
static const int looks[] = {50, 100, 200, 400, 800, 1600};
enum { N_LOOKS = sizeof looks / sizeof *looks };

static void curve(double share[N_GAINS][N_LOOKS])
{
	printf("\n| gain of accept length |");
	for (int j = 0; j < N_LOOKS; j++)
		printf(" %d |", looks[j]);
	printf("\n|---|---|---|---|---|---|---|\n");
	for (int g = 0; g < N_GAINS; g++) {
		struct kind k = {1 + gains[g], -1, -1, 1 + gains[g]};

		for (int i = 0; i < CURVE; i++) {
			int at;

			if (judge(&k, 4, &at) == GATE_ACCEPT)
				for (int j = 0; j < N_LOOKS; j++)
					share[g][j] += (at <= looks[j]) / (double)CURVE;
		}
		printf("| %+.0f %% |", 100 * gains[g]);
		for (int j = 0; j < N_LOOKS; j++)
			printf(" %.2f |", share[g][j]);
		printf("\n");
	}
}

static int draw_svg(const char *path, double share[N_GAINS][N_LOOKS])
{
	FILE *f = fopen(path, "w");

	if (!f)
		return 1;
	fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 360\" font-family=\"sans-serif\" font-size=\"12\">\n"
		   "<rect width=\"640\" height=\"360\" fill=\"#fff\"/>\n<text x=\"60\" y=\"20\">Share of candidates accepted, by held-out requests and true gain of accept length</text>\n");
	for (int y = 0; y <= 4; y++)
		fprintf(f, "<path d=\"M60 %dH520\" stroke=\"#ddd\"/><text x=\"52\" y=\"%d\" text-anchor=\"end\">%d %%</text>\n", 320 - 70 * y, 324 - 70 * y, 25 * y);
	for (int j = 0; j < N_LOOKS; j++)
		fprintf(f, "<text x=\"%d\" y=\"338\" text-anchor=\"middle\">%d</text>\n", 60 + 92 * j, looks[j]);
	fprintf(f, "<text x=\"290\" y=\"355\" text-anchor=\"middle\">held-out requests</text>\n");
	for (int g = 0; g < N_GAINS; g++) {
		int hue = 220 - 25 * g;

		fprintf(f, "<path fill=\"none\" stroke-width=\"2\" stroke=\"hsl(%d,70%%,40%%)\" d=\"", hue < 0 ? hue + 360 : hue);
		for (int j = 0; j < N_LOOKS; j++)
			fprintf(f, "%c%d %.1f", j ? 'L' : 'M', 60 + 92 * j, 320 - 280 * share[g][j]);
		fprintf(f, "\"/>\n<path stroke-width=\"3\" stroke=\"hsl(%d,70%%,40%%)\" d=\"M535 %dh20\"/><text x=\"562\" y=\"%d\">%+.0f %%</text>\n", hue < 0 ? hue + 360 : hue,
			50 + 20 * g, 54 + 20 * g, 100 * gains[g]);
	}
	fprintf(f, "</svg>\n");
	return fclose(f) != 0;
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 200;
	uint64_t s = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
	static double share[N_GAINS][N_LOOKS];

	seed(s);
	printf("seed %llu\n\n| candidates | of | accepted | rejected | undecided | requests until the verdict, mean |\n|---|---|---|---|---|---|\n", (unsigned long long)s);
	count("2 to 6 % worse overall", n, worse);
	count("10 to 20 % worse in one domain, up to 3 % better elsewhere", n, worse_domain);
	count("10 to 20 % worse at one length, up to 3 % better elsewhere", n, worse_length);
	count("3 to 6 % better", n, better);
	curve(share);
	printf("\n| better by 3 to 6 %% on what is asked, and in a fourth domain | of | accepted without pinned requests | with 16 a domain | 32 | %d |\n|---|---|---|---|---|---|\n", PINNED);
	asked_no_more("20 % worse", n, 0.80);
	asked_no_more("10 % worse", n, 0.90);
	asked_no_more("5 % worse", n, 0.95);
	asked_no_more("the same", n, 1);
	asked_no_more("better as elsewhere", n, 0);
	printf("\n| twelve candidates, each 3 %% worse than live there | accept length left of the first's, mean | least |\n|---|---|---|\n");
	slowly(n, false, false);
	slowly(n, true, false);
	slowly(n, true, true);
	return argc > 3 ? draw_svg(argv[3], share) : 0;
}
