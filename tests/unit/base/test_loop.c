/* The loop: posts keep their order per thread and are bounded, timers fire and
 * re-arm, SIGTERM stops or asks, SIGHUP reloads.
 */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "daemon/base/clock.h"
#include "daemon/base/loop.h"

enum { POSTERS = 4, POSTS = 5000 };

struct poster {
	struct loop *loop;
	int sent, *seen, *total;
	pthread_t thread;
};

struct message {
	struct poster *from;
	int i;
};

static void receive(void *arg)
{
	struct message *m = arg;

	assert_int_equal(m->i, m->from->seen[0]); /* in the order sent */
	m->from->seen[0]++;
	if (++*m->from->total == POSTERS * POSTS)
		loop_stop(m->from->loop);
	free(m);
}

static void *post_many(void *arg)
{
	struct poster *p = arg;

	for (int i = 0; i < POSTS; i++) {
		struct message *m = malloc(sizeof *m);

		*m = (struct message){.from = p, .i = i};
		while (loop_post(p->loop, receive, m) == -EAGAIN)
			usleep(100);
	}
	return NULL;
}

static void posts_from_threads(void **state)
{
	struct poster p[POSTERS];
	int seen[POSTERS] = {0}, total = 0;
	struct loop *l;

	(void)state;
	assert_int_equal(loop_new(&l), 0);
	for (int i = 0; i < POSTERS; i++) {
		p[i] = (struct poster){.loop = l, .seen = &seen[i], .total = &total};
		pthread_create(&p[i].thread, NULL, post_many, &p[i]);
	}
	assert_int_equal(loop_run(l), 0);
	for (int i = 0; i < POSTERS; i++)
		pthread_join(p[i].thread, NULL);
	assert_int_equal(total, POSTERS * POSTS);
	loop_free(l);
}

static void nothing(void *arg)
{
	(void)arg;
}

static void posts_are_bounded(void **state)
{
	struct loop *l;

	(void)state;
	assert_int_equal(loop_new(&l), 0);
	for (int i = 0; i < 65536; i++)
		assert_int_equal(loop_post(l, nothing, NULL), 0);
	assert_int_equal(loop_post(l, nothing, NULL), -EAGAIN);
	loop_free(l);
}

struct ticks {
	struct loop *loop;
	struct loop_timer *timer, *never;
	int n;
};

static void tick(void *arg)
{
	struct ticks *t = arg;

	if (++t->n == 3)
		loop_stop(t->loop);
	else
		loop_timer_set(t->timer, 10000);
}

static void must_not_fire(void *arg)
{
	(void)arg;
	fail();
}

static void timers(void **state)
{
	struct ticks t = {0};
	uint64_t t0 = clock_us();

	(void)state;
	assert_int_equal(loop_new(&t.loop), 0);
	assert_int_equal(loop_timer_new(t.loop, tick, &t, &t.timer), 0);
	assert_int_equal(loop_timer_new(t.loop, must_not_fire, &t, &t.never), 0);
	loop_timer_set(t.never, 1000);
	loop_timer_stop(t.never);
	loop_timer_set(t.timer, 10000);
	assert_int_equal(loop_run(t.loop), 0);
	assert_int_equal(t.n, 3);
	assert_true(clock_us() - t0 >= 29000);
	loop_timer_free(t.timer);
	loop_timer_free(t.never);
	loop_free(t.loop);
}

static int reloads, stops;
static struct loop *signalled;

static void on_reload(void *arg)
{
	(void)arg;
	reloads++;
	raise(SIGTERM);
}

static void on_stop(void *arg)
{
	(void)arg;
	stops++;
	loop_stop(signalled);
}

static void raise_hup(void *arg)
{
	(void)arg;
	raise(SIGPIPE);
	raise(SIGHUP);
}

static void signals(void **state)
{
	struct loop *l;

	(void)state;
	assert_int_equal(loop_new(&l), 0);
	signalled = l;
	loop_on_signal(l, on_stop, on_reload, NULL);
	assert_int_equal(loop_post(l, raise_hup, NULL), 0);
	assert_int_equal(loop_run(l), 0);
	assert_int_equal(reloads, 1);
	assert_int_equal(stops, 1);
	loop_free(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(posts_from_threads), cmocka_unit_test(posts_are_bounded),
					   cmocka_unit_test(timers), cmocka_unit_test(signals)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
