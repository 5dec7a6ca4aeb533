/* Served against replayed: does the engine do what the weights say?
 *
 * The same version, the same requests, the same rounds: a round that was served started at a
 * row, proposed so many tokens and had so many accepted; replaying the version's weights from that row must give
 * the same, but for ties that rounding decides. Left out: rounds with draft KV partly of another version, and
 * proposals that branched (contracts.md "Replayed AL"). Changes nothing. Threads: the learner's owner.
 */
#pragma once
#include "learn/learner.h"

enum { SERVED_E_NOT_ENOUGH = 1 }; /* no round of the version is in the pool */

/* Over the newest max_requests of the pool that hold rounds of `version`. *ret: {"version", "requests", "rounds", "served_al",
 * "replayed_al", "gap_se", "differ", "differ_se"}; gap_se = standard error of the difference of both, by requests (ratio estimator); differ = the
 * share of rounds in which other numbers were accepted, and its standard error. -EINVAL or -ENOENT with e: the version cannot be read. */
int MUSTCHECK served_compare(struct learner *l, uint32_t version, int max_requests, json_t **ret, struct errtext *e);
