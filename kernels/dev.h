/* A device: one back end, its threads and its memory.
 *
 * kernels/ops.h is the table of operations a back end fills; callers hold a
 * struct dev and never see which one it is. Activations, KV and weights live in
 * device memory (on the CPU: ordinary memory, huge pages when large). Small
 * index arrays (token ids, positions, slots) are host arrays; an op that needs
 * them on the device takes them along.
 *
 * Threads: calls on one dev must come from one thread at a time. The CPU back
 * end spreads one op over its pool: waiters spin at most 50 µs, then sleep.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "daemon/base/err.h"

/* Activations. The double build (-DREDRAFT_DOUBLE, portable path only) exists so
 * that tests can take finite differences. */
#ifdef REDRAFT_DOUBLE
typedef double real;
#else
typedef float real;
#endif

struct ops;

enum dev_isa { ISA_AUTO, ISA_PORTABLE, ISA_AVX2, ISA_AVX512 /* F+BW+VL+BF16 */ };

struct dev {
	const struct ops *ops;
	void *impl;        /* back end's own */
	int n_threads;
	enum dev_isa isa;  /* the path in use, never ISA_AUTO */
	char error[128];   /* text of the last failure, for the caller's report */
	void (*between)(void *arg); /* before each operation, on the caller's thread; may be NULL. For who shares the machine: it may sleep a little */
	void *between_arg;
	_Atomic uint64_t beats; /* operations begun: grows while the device computes, so that a watchdog sees it move */
};

/* threads >= 1 (the caller's thread is one of them). -ENOTSUP: this CPU lacks the
 * asked path. */
int MUSTCHECK dev_cpu_new(int threads, enum dev_isa isa, struct dev **ret);
struct dev *dev_free(struct dev *d);
const char *dev_isa_name(enum dev_isa isa);
int dev_isa_parse(const char *name, enum dev_isa *ret); /* "auto" "portable" "avx2" "avx512"; -EINVAL */
/* Change how many of the pool's threads an op uses (1..n at creation). Results do not change. */
void dev_set_threads(struct dev *d, int n);
