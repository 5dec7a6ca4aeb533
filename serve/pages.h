/* KV pages: a stack of free page numbers, shared by the target's pool and the
 * drafts' (one page number serves both), and what is known of each page.
 *
 * A page is referenced by the sessions that read it and by the prefix tree when it
 * is in there (serve/prefix.h); the last one to let go frees it. A page is written by
 * one session only, the one that took it, and only until it is full.
 * Threads: the engine's.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "daemon/base/err.h"

enum { PAGE_TOK = 32 };

struct page {
	uint16_t refs;
	uint8_t drafted; /* bit i: slot i's draft KV of all rows is there */
	bool featured;   /* features of all rows are kept (serve/keep.h) */
	int32_t node;    /* its place in the prefix tree, -1 = none */
};

struct pages {
	uint32_t *free;   /* [n_total] stack */
	struct page *info; /* [n_total] */
	int n_free, n_total;
};

int MUSTCHECK pages_init(struct pages *p, int n);
void pages_done(struct pages *p);
static inline int pages_for(int tokens)
{
	return (tokens + PAGE_TOK - 1) / PAGE_TOK;
}
/* n pages into ret, each with one reference; or false and nothing taken */
bool pages_take(struct pages *p, uint32_t *ret, int n);
void pages_ref(struct pages *p, uint32_t page);
int pages_unref(struct pages *p, uint32_t page); /* references left; 0 = it is free now */
/* Slot i holds another draft: nobody's draft KV there is worth anything. */
void pages_forget_draft(struct pages *p, int slot);
/* Slot number of a position in a sequence's page table. */
static inline uint32_t pages_slot(const uint32_t *table, int pos)
{
	return table[pos / PAGE_TOK] * PAGE_TOK + (uint32_t)(pos % PAGE_TOK);
}
