/* One thread, one event loop. Work reaches it in three ways: descriptors and
 * timers (libevent), signals (libevent's own self-pipe), and posts from other
 * threads (a bounded queue under a mutex with an eventfd that wakes the loop).
 * The queue is taken whole at each wake-up and run outside the lock, so a
 * function that posts again is run at the next turn and cannot starve the rest.
 */
#include "daemon/base/loop.h"
#include <event2/event.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "daemon/base/loop_guard.h"

enum { LOOP_MAX_POSTS = 65536 };

struct loop_post {
	void (*fn)(void *arg);
	void *arg;
};

struct loop {
	struct event_base *base;
	struct event *ev_term, *ev_int, *ev_hup, *ev_wake;
	void (*on_stop)(void *arg), (*on_reload)(void *arg);
	void *signal_arg;
	int wake_fd;
	pthread_mutex_t lock;    /* guards the queue */
	struct loop_post *queue; /* owned */
	size_t n_queue, cap_queue;
	struct loop_guard *guards;
};

struct loop_timer {
	struct event *ev;
	void (*fn)(void *arg);
	void *arg;
};

/* Signals belong to a process, so one loop has them: the first that runs or says
 * what to do on them, until it is freed. */
static _Atomic(struct loop *) loop_signals_of;

static void loop_signal(evutil_socket_t sig, short what, void *arg)
{
	struct loop *l = arg;

	(void)what;
	if (sig == SIGHUP) {
		if (l->on_reload)
			l->on_reload(l->signal_arg);
	} else if (l->on_stop) {
		l->on_stop(l->signal_arg);
	} else {
		loop_stop(l);
	}
}

static void loop_wake(evutil_socket_t fd, short what, void *arg)
{
	struct loop *l = arg;
	struct loop_post *q;
	uint64_t n;
	size_t n_q;

	(void)what;
	if (read(fd, &n, sizeof n) < 0)
		n = 0; /* spurious: the queue says what there is to do */
	pthread_mutex_lock(&l->lock);
	q = l->queue;
	n_q = l->n_queue;
	l->queue = NULL;
	l->n_queue = l->cap_queue = 0;
	pthread_mutex_unlock(&l->lock);
	for (size_t i = 0; i < n_q; i++)
		q[i].fn(q[i].arg);
	free(q);
}

static struct event *loop_add_signal(struct loop *l, int sig)
{
	struct event *ev = evsignal_new(l->base, sig, loop_signal, l);

	if (ev)
		(void)event_add(ev, NULL);
	return ev;
}

int loop_new(struct loop **ret)
{
	struct loop *l = calloc(1, sizeof *l);

	if (!l)
		return -ENOMEM;
	pthread_mutex_init(&l->lock, NULL);
	l->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	l->base = event_base_new();
	if (l->wake_fd < 0 || !l->base)
		goto fail;
	l->ev_wake = event_new(l->base, l->wake_fd, EV_READ | EV_PERSIST, loop_wake, l);
	if (!l->ev_wake || event_add(l->ev_wake, NULL) < 0)
		goto fail;
	signal(SIGPIPE, SIG_IGN);
	*ret = l;
	return 0;
fail:
	loop_free(l);
	return -ENOMEM;
}

static void loop_drop_event(struct event *ev)
{
	if (ev)
		event_free(ev);
}

struct loop *loop_free(struct loop *l)
{
	struct loop *mine = l;

	if (!l)
		return NULL;
	atomic_compare_exchange_strong(&loop_signals_of, &mine, NULL);
	while (l->guards) {
		struct loop_guard *g = l->guards;

		loop_guard_remove(g);
		g->drop(g);
	}
	loop_drop_event(l->ev_term);
	loop_drop_event(l->ev_int);
	loop_drop_event(l->ev_hup);
	loop_drop_event(l->ev_wake);
	if (l->base)
		event_base_free(l->base);
	if (l->wake_fd >= 0)
		close(l->wake_fd);
	free(l->queue);
	pthread_mutex_destroy(&l->lock);
	free(l);
	return NULL;
}

static void loop_take_signals(struct loop *l)
{
	struct loop *none = NULL;

	if (!atomic_compare_exchange_strong(&loop_signals_of, &none, l))
		return;
	l->ev_term = loop_add_signal(l, SIGTERM);
	l->ev_int = loop_add_signal(l, SIGINT);
	l->ev_hup = loop_add_signal(l, SIGHUP);
}

int loop_run(struct loop *l)
{
	loop_take_signals(l);
	return event_base_loop(l->base, EVLOOP_NO_EXIT_ON_EMPTY) < 0 ? -EIO : 0;
}

void loop_stop(struct loop *l)
{
	event_base_loopbreak(l->base);
}

struct event_base *loop_base(struct loop *l)
{
	return l->base;
}

void loop_on_signal(struct loop *l, void (*on_stop)(void *arg), void (*on_reload)(void *arg), void *arg)
{
	l->on_stop = on_stop;
	l->on_reload = on_reload;
	l->signal_arg = arg;
	loop_take_signals(l);
}

int loop_post(struct loop *l, void (*fn)(void *arg), void *arg)
{
	const uint64_t one = 1;
	int r = 0;

	pthread_mutex_lock(&l->lock);
	if (l->n_queue >= LOOP_MAX_POSTS) {
		r = -EAGAIN;
	} else if (l->n_queue == l->cap_queue) {
		size_t cap = l->cap_queue ? 2 * l->cap_queue : 64;
		struct loop_post *q = realloc(l->queue, cap * sizeof *q);

		if (q) {
			l->queue = q;
			l->cap_queue = cap;
		} else {
			r = -ENOMEM;
		}
	}
	if (!r)
		l->queue[l->n_queue++] = (struct loop_post){.fn = fn, .arg = arg};
	pthread_mutex_unlock(&l->lock);
	if (!r) { /* what is queued will run: no failure to report any more (a full counter wakes as well) */
		ssize_t n = write(l->wake_fd, &one, sizeof one);
		(void)n;
	}
	return r;
}

static void loop_timer_fire(evutil_socket_t fd, short what, void *arg)
{
	struct loop_timer *t = arg;

	(void)fd;
	(void)what;
	t->fn(t->arg);
}

int loop_timer_new(struct loop *l, void (*fn)(void *arg), void *arg, struct loop_timer **ret)
{
	struct loop_timer *t = calloc(1, sizeof *t);

	if (!t)
		return -ENOMEM;
	t->fn = fn;
	t->arg = arg;
	t->ev = evtimer_new(l->base, loop_timer_fire, t);
	if (!t->ev) {
		free(t);
		return -ENOMEM;
	}
	*ret = t;
	return 0;
}

void loop_timer_set(struct loop_timer *t, uint64_t delay_us)
{
	struct timeval tv = {.tv_sec = (time_t)(delay_us / 1000000u), .tv_usec = (suseconds_t)(delay_us % 1000000u)};

	(void)evtimer_add(t->ev, &tv);
}

void loop_timer_stop(struct loop_timer *t)
{
	(void)evtimer_del(t->ev);
}

struct loop_timer *loop_timer_free(struct loop_timer *t)
{
	if (t)
		event_free(t->ev);
	free(t);
	return NULL;
}

void loop_guard_add(struct loop *l, struct loop_guard *g)
{
	g->next = l->guards;
	g->prev = &l->guards;
	if (g->next)
		g->next->prev = &g->next;
	l->guards = g;
}

void loop_guard_remove(struct loop_guard *g)
{
	if (!g->prev)
		return;
	*g->prev = g->next;
	if (g->next)
		g->next->prev = g->prev;
	g->next = NULL;
	g->prev = NULL;
}
