/* KV pages: a stack of free page numbers, shared by the target's pool and the
 * draft's (one page table a sequence serves both).
 *
 * A request takes all the pages it can ever need when it is admitted, so a
 * running request never waits for memory and never has to be thrown out; who does not
 * fit waits in the queue. Threads: the engine's.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/err.h"

enum { PAGE_TOK = 32 };

struct pages {
	uint32_t *free; /* [n_total] stack */
	int n_free, n_total;
};

int MUSTCHECK pages_init(struct pages *p, int n);
void pages_done(struct pages *p);
static inline int pages_for(int tokens)
{
	return (tokens + PAGE_TOK - 1) / PAGE_TOK;
}
/* n pages into ret, or false and nothing taken */
bool pages_take(struct pages *p, uint32_t *ret, int n);
void pages_give(struct pages *p, const uint32_t *give, int n);
/* Slot number of a position in a sequence's page table. */
static inline uint32_t pages_slot(const uint32_t *table, int pos)
{
	return table[pos / PAGE_TOK] * PAGE_TOK + (uint32_t)(pos % PAGE_TOK);
}
