/* Things that hang on a loop and must be freed with it, such as a call that still
 * waits for its answer and what its caller keeps for it. loop_free calls drop for
 * each that is left; the loop's events still exist then. Loop thread only.
 */
#pragma once

struct loop;
struct loop_guard {
	struct loop_guard *next, **prev;
	void (*drop)(struct loop_guard *g);
};

void loop_guard_add(struct loop *l, struct loop_guard *g);
void loop_guard_remove(struct loop_guard *g); /* twice is harmless */
