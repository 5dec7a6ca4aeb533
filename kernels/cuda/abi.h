/* The one door of redraft-cuda.so: what kernels/dev_cuda.c asks it for.
 *
 * The library is loaded only where a driver answers. It and the program are built from one
 * tree; the key, made of the sizes of what both know, keeps most stale ones out.
 */
#pragma once
#include <stdbool.h>
#include "kernels/ops.h"

struct cuda_request {
	enum dev_math math;
	bool background; /* lowest stream priority: beside a server on the same device; else the highest */
	uint64_t memory_bytes; /* device memory of this process at most; 0 = no limit */
	bool graphs;     /* what repeats is launched as CUDA graphs (graph.c) */
	bool wait;       /* wait for the device after each operation: for tests and for finding a fault */
};

#define CUDA_LIBRARY "redraft-cuda.so"
#define CUDA_OPEN "redraft_cuda_open"
#define CUDA_ABI_KEY ((1u << 24) + (unsigned)(sizeof(struct ops) * 31 + sizeof(struct dev) * 7 + sizeof(struct cuda_request)))
/* 0 and a device; or -errno and why */
typedef int cuda_open_fn(unsigned key, const struct cuda_request *q, struct dev **ret, struct errtext *e);
