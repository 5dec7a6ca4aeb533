/* Shared between store.c and store_gc.c only. */
#pragma once
#include "daemon/store.h"

struct store {
	char path[400];
	int lock_fd;
};
