/* A device: one back end, its threads and its memory.
 *
 * kernels/ops.h is the table of operations a back end fills; callers hold a
 * struct dev and never see which one it is. Activations, KV and weights live in
 * device memory (on the CPU: ordinary memory, huge pages when large). Small
 * index arrays (token ids, positions, slots) are host arrays; an op that needs
 * them on the device takes them along: they may be changed as soon as it returns.
 *
 * Threads: calls on one dev must come from one thread at a time. The CPU back
 * end spreads one op over its pool: waiters spin at most 50 µs, then sleep. A
 * GPU's ops return when they are queued.
 */
#pragma once
#include <stdbool.h>
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
struct link_ops;

enum dev_kind { DEV_AUTO, DEV_CPU, DEV_CUDA };
enum dev_isa { ISA_AUTO, ISA_PORTABLE, ISA_AVX2, ISA_AVX512 /* F, BW, VL, DQ */, ISA_AVX512_BF16 /* and BF16 */, ISA_END };
/* On a GPU: strict holds the law of summation order of ops.h for serving, fast does not. On a CPU the law always holds, and fast
 * concerns training's products alone (gemm, and those of ttt_attn_backward): in bf16 with f32 sums, where the path has them (avx512-bf16), else in f32 as
 * strict has them. */
enum dev_math { MATH_STRICT, MATH_FAST };

struct dev {
	const struct ops *ops;
	void *impl;        /* back end's own */
	enum dev_kind kind;
	int n_threads;
	enum dev_isa isa;  /* CPU: the path in use, never ISA_AUTO */
	enum dev_math math; /* in use: a CPU that has no bf16 products is strict whatever was asked */
	char about[192];   /* which device, for the log: "cpu avx512-bf16, fast, 2 threads (no CUDA driver: ...)" */
	char error[128];   /* text of the last failure, for the caller's report */
	char graphs[160];  /* GPU: why some of what repeats is not launched as a graph; "": all is, or nobody asked for it */
	bool own_memory;   /* what alloc gives is the device's own: the host cannot read or write it (a GPU) */
	bool remembers;    /* ops->repeat does: memory that keeps its place saves work */
	void (*between)(void *arg); /* before each operation (GPU: after it is queued), on the caller's thread; may be NULL. For who shares the machine: it may sleep a little */
	void *between_arg;
	bool lost;         /* the device is gone for this process: end it, and let the service manager begin another */
	_Atomic uint64_t beats; /* operations begun: grows while the device computes, so that a watchdog sees it move */
	struct dev *(*close)(struct dev *d);
	int (*again)(struct dev *d, struct dev **ret);
	const struct link_ops *link; /* how ranks' devices of this kind are joined (kernels/link.h); NULL: they are not */
};

struct dev_options {
	enum dev_kind kind; /* DEV_AUTO: a GPU where one answers, else the CPU, and dev->about says why */
	int threads;        /* of the CPU, >= 1; the caller's is one of them */
	enum dev_isa isa;
	enum dev_math math;
	bool background; /* GPU: lowest priority, for work beside a server; else the highest */
	uint64_t memory_bytes; /* GPU: of this process at most; an operation that would take more is refused (-ENOMEM). 0 = no limit */
	bool graphs;     /* GPU: launch what repeats as CUDA graphs (ops.h repeat); not with wait */
	bool wait;       /* GPU: wait for each operation: tests, fault finding */
};
/* -ENODEV no GPU (DEV_CUDA only), -ENOENT no library for it, -ENOTSUP this CPU lacks the asked path; e says it in a sentence. */
int MUSTCHECK dev_new(const struct dev_options *o, struct dev **ret, struct errtext *e);
enum { DEV_MAX_THREADS = 255 };
/* One for each processor, where `share` processes have the machine to themselves: at least 1, at most as many as a device takes. */
int dev_all_threads(int share);
/* The two back ends. threads 1..DEV_MAX_THREADS. -ENOTSUP: this CPU lacks the asked path. A new CPU device is strict. */
int MUSTCHECK dev_cpu_new(int threads, enum dev_isa isa, struct dev **ret);
void dev_cpu_math(struct dev *d, enum dev_math math); /* fast: where the path can */
int MUSTCHECK dev_cuda_new(const struct dev_options *o, struct dev **ret, struct errtext *e);
/* One more on the same hardware, for another thread (CPU: of one thread). What one packed the other can use. */
int MUSTCHECK dev_again(struct dev *d, struct dev **ret);
struct dev *dev_free(struct dev *d);
const char *dev_isa_name(enum dev_isa isa);
int dev_isa_parse(const char *name, enum dev_isa *ret); /* "auto" "portable" "avx2" "avx512" "avx512-bf16"; -EINVAL */
/* CPU: change how many of the pool's threads an op uses (1..n at creation). Results do not change. */
void dev_set_threads(struct dev *d, int n);
