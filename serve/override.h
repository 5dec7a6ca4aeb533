/* An operator's rollback, kept where it outlives the server.
 *
 * The daemon's word is the store's state.json. When an operator moves the server
 * directly (the daemon may be dead), the server writes serve-override.json beside it, or
 * into its run folder where the store cannot be written. At start it counts as long as the
 * state's generation is not above the one it was made on: the daemon's first own
 * switch, or its taking over of the override, ends it. Threads: pure functions over files.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/err.h"

struct override {
	uint64_t generation;       /* the server's after the switch */
	uint64_t store_generation; /* of state.json when it was made */
	uint32_t live, previous;
};

int MUSTCHECK override_write(const char *store, const char *run_dir, const struct override *o);
/* -ENOENT: none that counts. The later of the two places. */
int MUSTCHECK override_read(const char *store, const char *run_dir, uint64_t store_generation, struct override *ret);
void override_remove(const char *store, const char *run_dir);
