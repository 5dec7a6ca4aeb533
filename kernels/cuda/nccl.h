/* The part of NCCL that link.c uses, written down here: the library is looked for by its soname when ranks with a GPU each start, and
 * no build needs its headers (190 MB with the library). Names and values are those of nccl.h 2.14 to 2.31, whose ABI only grows; tests/cuda-library
 * compares this page with a real nccl.h where one is found.
 */
#pragma once
#include <cuda_runtime_api.h>
#include <limits.h>

enum { NCCL_OK = 0, NCCL_BAD_ARGUMENT = 4, NCCL_BAD_USAGE = 5, NCCL_REMOTE_ERROR = 6, NCCL_IN_PROGRESS = 7 };
enum { NCCL_UINT8 = 1 };
enum { NCCL_OLDEST = 21403 /* 2.14.3: the first whose calls need not block */ };

struct ncclComm;

struct nccl_id {
	char bytes[128];
};

/* As of 2.14; NCCL takes what an older caller does not know as not set. */
struct nccl_config {
	size_t size;
	unsigned magic, version;
	int blocking;
};
#define NCCL_CONFIG {sizeof(struct nccl_config), 0xcafebeef, NCCL_OLDEST, 0}

struct nccl_calls {
	int (*get_version)(int *ret);
	int (*get_unique_id)(struct nccl_id *ret);
	int (*init)(struct ncclComm **ret, int size, struct nccl_id id, int rank, struct nccl_config *config);
	int (*async_error)(struct ncclComm *c, int *ret);
	int (*abort)(struct ncclComm *c);
	int (*group_start)(void);
	int (*group_end)(void);
	int (*send)(const void *p, size_t count, int type, int peer, struct ncclComm *c, cudaStream_t s);
	int (*recv)(void *p, size_t count, int type, int peer, struct ncclComm *c, cudaStream_t s);
	const char *(*error_string)(int r);
	const char *(*last_error)(struct ncclComm *c);
};
