/* The event loop of a process: libevent with signals, timers and a mailbox.
 *
 * One thread runs loop_run; loop_post is the only function other threads may
 * call. SIGTERM and SIGINT stop the loop (or call on_stop, when set), SIGHUP
 * calls on_reload; SIGPIPE is ignored. With several loops in a process the first
 * one run gets the signals. loop_free drops calls still waiting (rpc.h) unanswered
 * and posts unrun.
 */
#pragma once
#include <stdint.h>
#include "daemon/base/err.h"

struct loop;
struct loop_timer;
struct event_base;

int MUSTCHECK loop_new(struct loop **ret);
struct loop *loop_free(struct loop *l);
int loop_run(struct loop *l);   /* until loop_stop; 0 or -errno */
void loop_stop(struct loop *l); /* loop thread or signal handler of the loop */
struct event_base *loop_base(struct loop *l); /* borrowed */
void loop_on_signal(struct loop *l, void (*on_stop)(void *arg), void (*on_reload)(void *arg), void *arg);

/* Run fn(arg) on the loop thread soon; from any thread; -ENOMEM, or -EAGAIN when
 * 65,536 posts wait. Order is kept per posting thread. */
int MUSTCHECK loop_post(struct loop *l, void (*fn)(void *arg), void *arg);

int MUSTCHECK loop_timer_new(struct loop *l, void (*fn)(void *arg), void *arg, struct loop_timer **ret);
void loop_timer_set(struct loop_timer *t, uint64_t delay_us);   /* one shot, re-arms */
void loop_timer_stop(struct loop_timer *t);
struct loop_timer *loop_timer_free(struct loop_timer *t);
