/* Is the version on canary doing harm? Its requests against those of live, as both are served.
 *
 * Paired replay has already decided small differences. What it cannot see is judged here, from round records alone:
 * integrity (requests that lose their draft half-way), the tail of the latency (time per token, time to first token), and large drops of
 * what a round yields. Unit: one request; both arms are the same traffic at the same time, split by a salted hash.
 *
 * The test is one that may be looked at after every request (an always-valid, or anytime, test): each mean is
 * enclosed by an asymptotic confidence sequence, |mean_n - mu| <= sd_n sqrt(2 (n r^2 + 1) / (n^2 r^2) log(sqrt(n r^2 + 1) / a)),
 * which holds for all n at once with probability 1 - a as sums of requests become Gaussian (Waudby-Smith, Arbour, Sinha, Kennedy and
 * Ramdas, "Time-uniform central limit theory and asymptotic confidence sequences", Annals of Statistics 2024). r is chosen to be
 * tightest at 300 requests. Harm is called when the canary's whole interval lies on the bad side of the
 * other arm's by more than the margin. The spread includes two invented requests, the best and the worst
 * there can be, so that a hundred equal ones do not claim certainty; nobody is judged before 30.
 *
 * Latency is compared at all histogram edges at once: the share of a request's tokens that were slower than the edge, and whether its
 * first token was. `alpha` is shared: half for the yield, half among all the others. tests/bench/canary_sim.c measures what is refused, wrongly and rightly.
 * A round takes all sequences of the batch along, so a slow draft also slows its neighbours of the other arm: what is seen
 * is the difference that remains. Requests of one conversation are not independent; where they
 * are many, the true level is worse than alpha says.
 *
 * Pure; no clock, no locks: one owner.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "schemas/round.h"

enum { CANARY_TTFT_EDGES = 12, CANARY_TEXT = 160, CANARY_LEAST = 30 };

/* The defaults: of redraftd's table, and of what is simulated. */
#define CANARY_ALPHA 0.01
#define CANARY_DROP 0.02
#define CANARY_TAIL 0.1
#define CANARY_LOST 0.05
#define CANARY_REQUESTS 250

struct canary_rules {
	double alpha;     /* how often a version that does no harm is taken back */
	double drop;      /* share of live's yield that may be lost */
	double tail;      /* share of tokens, or of requests, that may move beyond an edge */
	double lost;      /* share of requests that may lose their draft, beyond live's */
	int64_t requests; /* of the canary since its start, for CANARY_ENOUGH */
};
extern const struct canary_rules canary_defaults;

struct canary_mean { int64_t n; double mean, m2; }; /* Welford */

struct canary_arm {
	int64_t requests;
	struct canary_mean yield, lost;                 /* tokens a round; 1 where the draft was lost */
	struct canary_mean tpot[ROUND_TPOT_EDGES], ttft[CANARY_TTFT_EDGES];
};

struct canary {
	uint32_t version, live; /* live 0: plain decoding is compared with */
	struct canary_arm arm[2]; /* 0 live, 1 canary */
};

void canary_start(struct canary *c, uint32_t version, uint32_t live);
/* One round record. Requests that began in another version, or of neither arm, are passed over. */
void canary_take(struct canary *c, const struct round_record *r);

enum canary_outcome { CANARY_HARM, CANARY_GOES_ON, CANARY_ENOUGH /* requests, and no harm seen */ };
/* proven: "no harm seen" is not enough; the yield must be shown to be no worse than the margin (for versions that no replay has
 * judged). ret_text: one sentence. */
enum canary_outcome canary_judge(const struct canary_rules *k, const struct canary *c, bool proven, char ret_text[static CANARY_TEXT]);
