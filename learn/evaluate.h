/* Paired replay of two versions on the held-out runs: what the gate asks for.
 *
 * Both drafts walk the same recorded tokens at one fixed chain length; only
 * generated rows count, and only requests whose history is there from the first token on,
 * in their own records or in an earlier request's (a chain whose history is missing is no fair one). Changes nothing.
 */
#pragma once
#include "learn/learner.h"

enum { EVALUATE_E_NOT_ENOUGH = 1 };

/* What was replayed already: the same run under the same version says the same, so a gate that looks again pays for new requests alone. */
enum { REPLAYED_KEPT = 8192 };
struct replayed {
	uint64_t n; /* ever; the oldest give way */
	struct { uint64_t run; uint32_t version; int k; uint32_t rounds, accepted; } v[REPLAYED_KEPT];
};

/* The pinned runs too; and of each domain named, under that version as well: the last that was judged while it was asked. */
enum { EVALUATE_DOMAINS = 16 };
struct evaluate_older {
	int n;
	struct { char domain[32]; uint32_t version; } v[EVALUATE_DOMAINS];
};

/* live 0 = plain decoding, accept length 1. older NULL: not the pinned runs (nor with live 0). A version of it that is gone is left out.
 * *ret: {"requests", "full", "pairs", "pinned", "table"} as io.redraft.Learn.Evaluate says.
 * EVALUATE_E_NOT_ENOUGH: nothing is held out; -EINVAL with e: a version that cannot be read. */
int MUSTCHECK evaluate(struct learner *l, uint32_t candidate, uint32_t live, int k, const struct evaluate_older *older, json_t **ret, struct errtext *e);
/* What `version` would have done on the newest `most` runs of the pool with a whole history, trained or not: {"version", "k",
 * "requests", "table"}. Not a verdict: it may have been trained on them. EVALUATE_E_NOT_ENOUGH, -EINVAL as above. */
int MUSTCHECK evaluate_newest(struct learner *l, uint32_t version, int most, int k, json_t **ret, struct errtext *e);
/* One run under one draft, from its row `first` on (run.first; behind its history). rounds 0: nothing to judge. */
int MUSTCHECK evaluate_run(struct dev *dev, const struct frozen *fz, const struct joined *j, int first, const struct draft *d, int k, struct replay_result *ret);
