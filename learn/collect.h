/* The topic's records into a folder of pool segments, bounded: what `collect` does, and `train --from_topic` before it trains. */
#pragma once
#include "learn/frozen.h"
#include "learn/source.h"

/* The defaults. */
#define COLLECT_TOKENS 1000000
#define COLLECT_MB 16384
#define COLLECT_IDLE_S 30

struct collect_options {
	struct source_options source;
	const char *dir;           /* made when missing; what it holds already counts, and reading goes on behind it */
	int64_t tokens, max_mb;    /* rows and size at which it ends */
	int64_t idle_s;            /* it ends after so long without a new record */
	bool to_end;               /* it ends when every partition is read as far as it is known to go, too */
	const volatile int *stop;  /* set: ends as it stands */
};
struct collected { int64_t rows, records, refused, gaps; }; /* refused: no records of this target; gaps: offsets that the log no longer has */

/* Says how far it is on standard error. -EHOSTUNREACH with e: nobody answers. */
int MUSTCHECK collect_records(const struct collect_options *o, const struct frozen *fz, struct collected *ret, struct errtext *e);
