/* When requests arrive, as seconds after the start.
 *
 * Open loop: a Poisson process, an even beat, or times replayed from a file
 * (one number of seconds a line, ascending). An arrival does not wait for any
 * answer, so a server that stalls is met by the queue that real users would form.
 * Threads: one.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "daemon/base/err.h"

/* A small generator of random numbers (splitmix64): the same seed, the same numbers everywhere. */
struct rng {
	uint64_t state;
};
uint64_t rng_next(struct rng *r);
double rng_unit(struct rng *r);                 /* [0, 1) */
size_t rng_below(struct rng *r, size_t n);      /* 0 .. n-1, n > 0 */

enum arrival_kind { ARRIVAL_POISSON, ARRIVAL_EVEN, ARRIVAL_REPLAY };

struct arrivals {
	enum arrival_kind kind;
	double rate, last; /* per second; seconds */
	struct rng rng;
	double *times; /* owned; replay */
	size_t n, at;
};

int MUSTCHECK arrivals_init(struct arrivals *a, double rate, bool even, uint64_t seed, struct errtext *e); /* rate > 0 */
int MUSTCHECK arrivals_replay(struct arrivals *a, const char *path, struct errtext *e);
void arrivals_done(struct arrivals *a);
double arrivals_next(struct arrivals *a); /* seconds after the start, never falling; INFINITY after the last */
