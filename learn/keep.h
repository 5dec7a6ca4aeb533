/* What outlives the pool's oldest segment: a sample of every domain's past, so that what is no longer asked can still
 * be replayed when a window of recent traffic would have lost it; and what is pinned (learn/pinned.h).
 */
#pragma once
#include "learn/learner.h"

/* A run that may still be replayed. */
bool keep_replayable(const struct learner *l, const struct run *r);
/* Segment first-1 is being forgotten: the runs of it that are pinned or belong to their domain's sample are copied to the end of
 * the pool. The caller then drops every run that still refers to an older segment. */
int MUSTCHECK keep_sample(struct learner *l, uint32_t first);
