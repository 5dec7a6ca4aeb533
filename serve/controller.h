/* What to propose in the next round: the controller of draft.mode auto.
 *
 * It knows two kinds of measured numbers. Acceptance: for each (version, domain), how often the draft's
 * n-th token on a path was accepted when the one before it was, for chains and for trees of several sizes. Cost:
 * milliseconds of a forward by its rows, of a draft level and of an extend by theirs. All are decaying averages. From these it
 * expects, for every shape, tokens and milliseconds of a round, and takes the shape with the most tokens a
 * millisecond, nothing at all included: a draft that does not pay is not asked.
 *
 * So that a recovery is seen, it also probes what it would not choose; probes are paid from a budget of
 * CTL_PROBE_SHARE of the time, in tokens lost. Where trees are chosen, every CTL_CHAIN_EVERY-th round of an account is a chain,
 * because only chains are replayed (served against replayed accept length).
 * Pure: no clock, no chance; the same numbers in give the same choices.
 */
#pragma once
#include <stdint.h>
#include "serve/tree.h"

enum { CTL_KEYS = 64, CTL_BINS = 48, CTL_SIZES = 5, CTL_CHAIN_EVERY = 16, CTL_LEAST_GAP = 12 /* rounds between probes, by the sessions there are */,
       CTL_SURE = 48 };
#define CTL_PROBE_SHARE 0.012
#define CTL_KEPT 0.15 /* what a row of an extend costs that leaves a key and a value alone, of one that continues into a proposal: by operations, from SmolLM2-135M's draft to an 8B model's */

enum ctl_cost { CTL_VERIFY, CTL_STEP, CTL_EXTEND, CTL_COSTS };

struct ctl_rate { double hits, tries; };

struct ctl_key { /* what one version does in one domain */
	uint32_t version, domain; /* domain: a hash; version 0 = the place is free */
	uint64_t used;            /* when last asked for */
	struct ctl_rate chain[ENGINE_MAX_K], tree[CTL_SIZES][ENGINE_MAX_K];
	uint64_t chain_at, tree_at; /* when last tried */
	struct draft_shape best;  /* chosen last */
	int rounds, since_probe, probes;
	double measured, expected; /* accept length of its proposing rounds; what was expected of them */
};

struct controller {
	enum draft_mode mode; /* AUTO chooses; CHAIN and TREE are as told; OFF proposes nothing */
	int max_depth, max_nodes;
	struct ctl_key key[CTL_KEYS];
	uint64_t clock; /* choices ever made */
	/* log ms = load + log(1 + slope (rows - 1)) + off[rows]: load moves fast, slope by what large and small forwards say of each other, off slowly */
	double load, slope, off[CTL_COSTS][CTL_BINS];
	double believed[CTL_COSTS][CTL_BINS]; /* off, as the next choice takes it */
	double lever, spread; /* running mean and variance of d log ms / d log slope */
	int seen[CTL_COSTS][CTL_BINS]; /* measurements that count, up to CTL_SURE */
	uint64_t at[CTL_COSTS][CTL_BINS]; /* clock of the last one */
	bool any;
	double budget; /* ms */
};

struct ctl_session { int key; struct draft_shape shape; /* out */ };

void controller_init(struct controller *c, enum draft_mode mode, int max_depth, int max_nodes);
/* The account of a version in a domain, made when it is new: it starts with what its domain's last version did. */
int controller_key(struct controller *c, uint32_t version, const char *domain);
/* The account of a version that was asked for last, or NULL. */
const struct ctl_key *controller_last(const struct controller *c, uint32_t version);
/* What an extend of so many rows counts as. */
int controller_extend_rows(double rows, double continuing);
/* A forward, draft level or extend of so many rows took ms. */
void controller_cost(struct controller *c, enum ctl_cost what, int rows, double ms);
/* What a choice takes that to cost. */
double controller_ms(const struct controller *c, enum ctl_cost what, int rows);
/* A round of shape `shape` proposed n nodes, of which path[0..accepted) were accepted. ended: the text ended there. */
void controller_outcome(struct controller *c, int key, struct draft_shape shape, const int16_t *parent, const uint8_t *rank, int n,
			const int *path, int accepted, bool ended);
/* Proposals accepted a round, as expected. */
double controller_gain(const struct controller *c, int key, struct draft_shape shape);
/* Shapes for a batch of n sessions that could draft, beside `plain` that cannot. */
void controller_choose(struct controller *c, struct ctl_session *s, int n, int plain);
