/* An operator's rollback, kept where it outlives the server.
 *
 * The daemon's word is the store's state.json. When an operator moves the server
 * directly (the daemon may be dead), the server writes serve-override.json beside it, or
 * into its run folder where the store cannot be written. At start it counts as long as the
 * state's generation is not above the one it was made on: the daemon's first own
 * switch, or its taking over of the override, ends it. Threads: pure functions over files.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/err.h"

enum { OVERRIDE_LEFT = 16 };

struct override {
	uint64_t generation;       /* the server's after the switch */
	uint64_t store_generation; /* of state.json when it was made */
	uint32_t live, previous;
	uint32_t left[OVERRIDE_LEFT]; /* what was gone back from, in its order */
	int n_left;
};

int MUSTCHECK override_write(const char *store, const char *run_dir, const struct override *o);
/* -ENOENT: none that counts. The later of the two places. */
int MUSTCHECK override_read(const char *store, const char *run_dir, uint64_t store_generation, struct override *ret);
json_t *override_left(const uint32_t *left, int n); /* as an array of numbers; new reference */
void override_remove(const char *store, const char *run_dir);
