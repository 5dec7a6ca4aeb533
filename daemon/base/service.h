/* What the service manager hears while we run: STATUS= and WATCHDOG=1.
 *
 * One timer on the loop, and none at all without NOTIFY_SOCKET. The watchdog is fed only
 * when the loop turns (the timer fires) and alive() says that the work moves; it is asked
 * four times a watchdog period, so that one miss is not yet the end.
 * Threads: the loop's.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "daemon/base/err.h"

struct loop;
struct service;

struct service_options {
	struct loop *loop;
	bool (*alive)(void *arg);                            /* NULL: a loop that turns is enough */
	void (*status)(void *arg, char *ret, size_t size);   /* one line; NULL: none. Sent when it changed */
	void *arg;
};

/* *ret is NULL without a manager. */
int MUSTCHECK service_new(const struct service_options *o, struct service **ret);
struct service *service_free(struct service *s);

/* Is a thread of work stuck? It is when it has work and its count of beats stood still between
 * two looks that both found it busy. Zeroed at first. */
struct pulse { uint64_t beats; bool busy; };
bool pulse_moves(struct pulse *p, uint64_t beats, bool busy);
