/* Faults of an engine, injected for tests: what redraftd has to tell from a change of the traffic.
 *
 * Only `make faults` compiles them in; elsewhere FAULT(x) is the constant false and nothing of it is left. The fault in force is named by
 * the file $REDRAFT_FAULT_FILE, which is read again at each look (fault_poll), once a round.
 */
#pragma once
#include <stdbool.h>

enum fault {
	FAULT_NONE,
	FAULT_STALE_PAGE,      /* draft KV of real rows is not written: its pages hold what was there */
	FAULT_WRONG_BOUNDARY,  /* the first boundary's features stand where the third's should */
	FAULT_SHIFTED,         /* features of the row before */
	FAULT_WRONG_WEIGHTS,   /* a slot drafts with the weights of another one */
	FAULT_CORRUPT_D2T,     /* proposals are mapped to other tokens than the draft meant */
	FAULT_OVERFLOW,        /* the draft's numbers leave half precision */
	FAULT_NOT_UPDATED,     /* after a switch the old version goes on drafting under the new one's name */
	FAULT_N
};

#ifdef REDRAFT_FAULTS
bool fault_on(enum fault f);
void fault_poll(void);
#define FAULT(f) fault_on(f)
#else
static inline void fault_poll(void)
{
}
#define FAULT(f) false
#endif
