/* Simulated requests as the daemon sees them, for the tools that measure its judgement (drift_sim, canary_sim, gate_sim).
 *
 * A request's accept length is 1 + a mean over 5 to 40 rounds of a chain of up to five, each position accepted with a probability that
 * the request draws around its stream's: requests differ more than chance within one does, as real ones do. A round takes a time of its own,
 * log-normal. xorshift64; one seed, one run. Nothing here is timed.
 */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "schemas/round.h"

static uint64_t rng;

static inline void seed(uint64_t s)
{
	rng = 0x9e3779b97f4a7c15u * s;
}

static inline double uniform(void)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (double)(rng >> 11) / 9007199254740992.0;
}

static inline double normal(void)
{
	return sqrt(-2 * log(uniform() + 1e-300)) * cos(6.283185307179586 * uniform());
}

/* Beta(a, b) near mean with a + b = 12, by a normal approximation clipped to (0.01, 0.99): enough for a spread between requests. */
static inline double acceptance(double mean)
{
	double p = mean + sqrt(mean * (1 - mean) / 13) * normal();

	return p < 0.01 ? 0.01 : p > 0.99 ? 0.99 : p;
}

/* p: how often a proposal is accepted when those before it were. round_ms: median time of a round. */
static inline void request(struct round_record *r, double p, int rounds, double round_ms)
{
	memset(r->proposed, 0, sizeof r->proposed);
	memset(r->accepted, 0, sizeof r->accepted);
	memset(r->tpot_ms, 0, sizeof r->tpot_ms);
	r->k = 5;
	r->rounds = (uint32_t)rounds;
	for (int i = 0; i < rounds; i++) {
		bool on = true;
		int n = 1, bin = 0;

		for (int j = 0; j < 5; j++) {
			r->proposed[j]++;
			on = on && uniform() < p;
			r->accepted[j] += on;
			n += on;
		}
		if (round_ms > 0) {
			double ms = round_ms * exp(0.25 * normal()) / n;

			while (bin < ROUND_TPOT_EDGES && ms > round_tpot_edges_ms[bin])
				bin++;
			r->tpot_ms[bin] += (uint32_t)n;
		}
	}
}

static inline int rounds_of_one(void)
{
	return 5 + (int)(uniform() * 36);
}
