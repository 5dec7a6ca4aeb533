/* Persistent worker threads for one device.
 *
 * pool_run calls fn(ctx, t, n) once for every t in [0, n): t = 0 on the caller,
 * the rest on workers, and returns when all are done. Waiters (workers for work,
 * the caller for the last worker) spin at most 50 µs and then sleep on a futex,
 * so that two processes can share the cores. Where the maker of the pool may use a processor a thread,
 * a worker keeps off the caller's processor (sched_setaffinity on itself; the caller is never bound). Work is split by the callers, by
 * output alone; the pool never decides an order of summation.
 */
#pragma once
#include "daemon/base/err.h"

struct pool;

enum { POOL_MAX_THREADS = 255 }; /* also DEV_MAX_THREADS */

int MUSTCHECK pool_new(int n_threads, struct pool **ret); /* -EINVAL, -ENOMEM, -EAGAIN */
struct pool *pool_free(struct pool *p);
/* 1 <= n <= n_threads at creation. One caller at a time. */
void pool_run(struct pool *p, int n, void (*fn)(void *ctx, int t, int n), void *ctx);
