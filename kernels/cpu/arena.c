/* Where packed weights live: chunks of 16 MiB in huge pages, filled from the front.
 *
 * Most matrices of a small model are smaller than a huge page. Each on pages of 4 KiB
 * would cost a step a third of its bandwidth (the prefetcher stops at every page,
 * and the page tables of 270 MB fall out of the TLB); each on huge pages of its own,
 * a third of the memory. So neighbours share them. A chunk counts what lives in it
 * and goes when the last one is freed; room inside is not used again, because the
 * weights of a version come and go together. Its untouched end takes no memory.
 *
 * Threads: a chunk is filled by the owner of its dev; weights may be freed from any.
 */
#include "kernels/cpu/cpu.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { CHUNK = 16 << 20, ALIGN = 4096 };
#ifdef __SANITIZE_ADDRESS__
enum { SHARED_MAX = 0 }; /* each alone, so that a step too far is seen */
#else
enum { SHARED_MAX = CHUNK / 4 };
#endif

struct chunk { /* at the start of each, which is a multiple of CHUNK */
	_Atomic int holders; /* weights, and the dev while it fills it */
	size_t used;
};

static struct chunk *chunk_new(void)
{
	char *p = mmap(NULL, 2 * (size_t)CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	size_t before = (size_t)(-(uintptr_t)p % CHUNK);
	if (before)
		(void)munmap(p, before);
	(void)munmap(p + before + CHUNK, CHUNK - before);
	(void)madvise(p + before, CHUNK, MADV_HUGEPAGE);
	struct chunk *c = (struct chunk *)(void *)(p + before);
	atomic_init(&c->holders, 1);
	c->used = cpu_round_up(sizeof *c, ALIGN);
	return c;
}

static void chunk_drop(struct chunk *c)
{
	if (c && atomic_fetch_sub(&c->holders, 1) == 1)
		(void)munmap(c, CHUNK);
}

void *cpu_arena_alloc(struct chunk **open, size_t bytes)
{
	if (bytes > SHARED_MAX)
		return cpu_alloc_bytes(bytes);
	size_t want = cpu_round_up(bytes, ALIGN);
	if (!*open || (*open)->used + want > CHUNK) {
		struct chunk *c = chunk_new();
		if (!c)
			return NULL;
		chunk_drop(*open);
		*open = c;
	}
	char *p = (char *)*open + (*open)->used;
	(*open)->used += want;
	atomic_fetch_add(&(*open)->holders, 1);
	return p;
}

void cpu_arena_free(void *p, size_t bytes)
{
	if (bytes > SHARED_MAX || !p)
		free(p);
	else
		chunk_drop((struct chunk *)((uintptr_t)p / CHUNK * CHUNK));
}

void cpu_arena_close(struct chunk *open)
{
	chunk_drop(open);
}
