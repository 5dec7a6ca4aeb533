/* Forget a tenant: no run, no checkpoint, no byte in the pool and nothing set aside holds a record of his afterwards.
 *
 * It is an entry of the journal, so a run that is repeated forgets at the same place. What the weights learned, and how often each
 * token was counted, stays. A crash between the entry and the last byte is made good at the next start. Threads: the learner's.
 */
#pragma once
#include "learn/learner.h"

struct purged { int runs; uint64_t records, bytes; };
int MUSTCHECK purge_tenant(struct learner *l, const char *tenant, struct purged *ret, struct errtext *e);
int MUSTCHECK purge_unfinished(struct learner *l, struct errtext *e); /* after learner_open */
void purge_index(struct learner *l, const char *tenant); /* what applying the entry does */
