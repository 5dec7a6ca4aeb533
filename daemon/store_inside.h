/* Shared between store.c, store_take.c and store_gc.c only. */
#pragma once
#include "daemon/store.h"

struct store {
	char path[400];
	int lock_fd;
};

#define STORE_TAKE ".take-" /* versions/.take-N-NAME */
/* A take that came to no version: versions/ENTRY to incoming/NAME. 0; STORE_E_REPLACED: incoming/NAME was written anew and whole meanwhile,
 * and what lay in ENTRY is gone; -errno: it lies there still. Nothing is being taken. */
enum { STORE_E_REPLACED = 1 };
int MUSTCHECK store_give_back(const struct store *s, const char *entry);
