/* What this proves: every message comes out once, in order and unharmed, whatever its
 * size and wherever the ring wraps; a full ring refuses at once and takes again after a
 * pop; and the same with a producer and a consumer on two threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "serve/tap_ring.h"

static uint32_t next(uint32_t *s)
{
	*s = *s * 1664525u + 1013904223u;
	return *s >> 8;
}

/* Sizes and bytes of message i follow from i alone. */
static size_t size_of(uint32_t i)
{
	uint32_t s = i * 2654435761u;

	return next(&s) % 7 == 0 ? next(&s) % 1500 : next(&s) % 90;
}

static int push(struct tap_ring *r, uint32_t i)
{
	size_t n = size_of(i);
	uint8_t *p = tap_ring_reserve(r, n);

	if (!p)
		return -1;
	assert_int_equal((uintptr_t)p % 16, 0);
	memset(p, (int)(i % 251), n);
	tap_ring_commit(r);
	return 0;
}

static void check(const uint8_t *p, size_t n, uint32_t i)
{
	assert_int_equal(n, size_of(i));
	for (size_t j = 0; j < n; j++)
		assert_int_equal(p[j], i % 251);
}

static void test_alone(void **state)
{
	(void)state;
	struct tap_ring r;
	uint32_t in = 0, out = 0, seed = 5;
	size_t n;
	int full = 0;

	assert_int_equal(tap_ring_init(&r, 4096), 0);
	assert_null(tap_ring_peek(&r, &n));
	assert_null(tap_ring_reserve(&r, 4097));
	assert_null(tap_ring_reserve(&r, SIZE_MAX));
	for (int step = 0; step < 200000; step++) {
		if (next(&seed) % 2) {
			if (push(&r, in) == 0)
				in++;
			else
				full++;
		} else {
			const void *p = tap_ring_peek(&r, &n);
			assert_int_equal(p != NULL, in != out);
			if (p) {
				check(p, n, out++);
				tap_ring_pop(&r);
			}
		}
	}
	assert_true(full > 100 && in > 10000);
	while (tap_ring_peek(&r, &n)) {
		out++;
		tap_ring_pop(&r);
	}
	assert_int_equal(in, out);
	tap_ring_done(&r);
	tap_ring_done(&r);
}

enum { MANY = 300000 };

static void *producer(void *arg)
{
	for (uint32_t i = 0; i < MANY;) {
		if (push(arg, i) == 0)
			i++;
		else
			sched_yield();
	}
	return NULL;
}

static void test_two_threads(void **state)
{
	(void)state;
	struct tap_ring r;
	pthread_t t;
	size_t n;

	assert_int_equal(tap_ring_init(&r, 8192), 0);
	assert_int_equal(pthread_create(&t, NULL, producer, &r), 0);
	for (uint32_t i = 0; i < MANY;) {
		const void *p = tap_ring_peek(&r, &n);
		if (!p) {
			sched_yield();
			continue;
		}
		check(p, n, i++);
		tap_ring_pop(&r);
	}
	assert_int_equal(pthread_join(t, NULL), 0);
	assert_null(tap_ring_peek(&r, &n));
	tap_ring_done(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_alone), cmocka_unit_test(test_two_threads)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
