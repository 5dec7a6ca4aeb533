/* Pinned requests: some older ones of each domain, never trained, on which a candidate is compared besides what is held out.
 *
 * What is held out is what was asked since the candidate was written, so a version that has forgotten a domain shows it only while somebody
 * asks for that domain. Members are drawn from the held-out runs that a verdict frees, by counter random numbers: which they are is a
 * function of the journal, as all of the learner's state. They outlive the pool's retention (learn/keep.h) and leave when newer ones of
 * their domain take their place, by age, with their tenant, or with the version that drafted for them when that is quarantined.
 */
#pragma once
#include "learn/learner.h"

enum { PINNED_DOMAINS = 16 };

/* Before held-out runs are freed: which of them stay, as members. heldout_pinned of a domain at most; 0: nobody stays, and who did leaves. */
void pinned_draw(struct learner *l);
/* Members for which that version may have drafted leave, and are not trained either. */
void pinned_quarantine(struct learner *l, uint32_t version);
json_t *pinned_count(const struct learner *l); /* {domain: members}; NULL: no memory */
