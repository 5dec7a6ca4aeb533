/* The gate: is the candidate better than what is live, on the same requests?
 *
 * Unit: one request. x = candidate's accept length - live's, clipped to
 * +-clip, so the mean that is judged is bounded and one odd request cannot decide.
 * The bound on the mean is a betting confidence sequence: it holds at every moment
 * at once, so the gate may look as often as it likes and stop when it has seen
 * enough; no distribution is assumed. gate.c derives it.
 *
 * A domain or a context length that is surely worse refuses the candidate, whatever it gains elsewhere; one that merely looks worse
 * by more than a twentieth keeps it undecided until there is more to go by. tests/bench/gate_sim.c measures both.
 *
 * What is held out is today's traffic. Pinned requests are older ones, a few of each domain, never trained (learn/pinned.h): they are no
 * evidence for a candidate, and refuse one that has surely forgotten a domain.
 *
 * Pure functions; no clock, no sockets.
 */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include "daemon/base/err.h"

enum { GATE_MAX_PAIRS = 4096, GATE_MAX_DOMAINS = 16, GATE_LENGTHS = 8, GATE_DOMAIN_MIN = 4 };

/* The defaults: of redraftd's table, and of what is simulated. */
#define GATE_MIN_REQUESTS 8
#define GATE_ALPHA 0.01
#define GATE_CLIP 0.5
#define GATE_MARGIN 0
#define GATE_FIRST_MIN_AL 1.2
#define GATE_MIN_GAIN 0
#define GATE_PINNED_MARGIN 0

struct gate_rules {
	int64_t min_requests; /* fewer: undecided */
	double alpha;         /* wrong acceptances (and, apart from that, wrong rejections) at most this often */
	double clip;          /* accept length; differences beyond count as this much */
	double margin;        /* accept length; 0: must be better; above: not worse by more than this is enough */
	double first_min_al;  /* nothing live: accepted from this accept length on */
	double min_gain;      /* accept length; a candidate that gains less is not worth a switch */
	double pinned_margin; /* accept length; surely worse by more than this on a domain's pinned requests: refused */
};

extern const struct gate_rules gate_defaults;

struct gate_pair {
	char domain[32];
	int length; /* context bucket as in round.h, 0..7; -1: not said */
	double rounds, live_al, candidate_al;
	uint32_t reference; /* of a pinned request: another version that it was replayed under; 0: none */
	double reference_al;
};

enum gate_outcome { GATE_ACCEPT, GATE_REJECT, GATE_UNDECIDED };

struct gate_domain {
	char domain[32];
	int requests;
	double live_al, candidate_al, difference, lower, upper; /* difference and bounds: of the clipped mean */
};

struct gate_verdict {
	enum gate_outcome outcome;
	struct gate_domain all; /* domain "" */
	int n_domains;
	struct gate_domain domains[GATE_MAX_DOMAINS];
	int n_lengths;
	struct gate_domain lengths[GATE_LENGTHS]; /* domain: "context 3" */
	int n_pinned;
	struct gate_domain pinned[GATE_MAX_DOMAINS]; /* by gate_guard */
	struct gate_domain before[GATE_MAX_DOMAINS]; /* the same with the reference in live's place; requests 0: there is none */
	uint32_t reference[GATE_MAX_DOMAINS];
	char reason[160]; /* one sentence */
};

/* Evidence against "the mean is at most m": log of the capital a bet on it has won.
 * At log(1 / alpha) it is doubted away. */
double gate_evidence(const double *x, int n, double m);
/* A bound from below on the mean of n numbers within [-1, 1], valid at all n at once
 * with probability 1 - alpha. n 0: -1. */
double gate_lower(const double *x, int n, double alpha);
/* pairs of an Evaluate reply, checked: domain text, finite numbers, accept lengths in
 * [1, 64]. Returns how many were read into ret (at most max); -EINVAL with e. */
int MUSTCHECK gate_read_pairs(const json_t *pairs, struct gate_pair *ret, int max, struct errtext *e);
void gate_decide(const struct gate_rules *g, const struct gate_pair *p, int n, uint32_t live, struct gate_verdict *ret);
/* The pinned requests' say on a verdict of gate_decide: one that is not a rejection becomes one where a domain is surely worse on them than
 * live, or than the reference and no better than live. The reference is the version that was judged last while the domain was asked: many small
 * losses, none of them sure, do not add up unseen; and what live has lost already is not held against who loses no more. */
void gate_guard(const struct gate_rules *g, const struct gate_pair *pinned, int n, struct gate_verdict *v);
json_t *gate_json(const struct gate_rules *g, const struct gate_verdict *v); /* new reference */
