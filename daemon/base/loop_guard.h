/* For the rooms of daemon/base only: things that hang on a loop and must be freed
 * with it (a call that is still waiting for its answer). loop_free calls drop for
 * each that is left; the loop's events still exist then.
 */
#pragma once

struct loop;
struct loop_guard {
	struct loop_guard *next, **prev;
	void (*drop)(struct loop_guard *g);
};

void loop_guard_add(struct loop *l, struct loop_guard *g);
void loop_guard_remove(struct loop_guard *g); /* twice is harmless */
