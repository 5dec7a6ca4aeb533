/* Turning a loop for so long. */
#pragma once
#include "daemon/base/loop.h"

static void run_for_end(void *loop)
{
	loop_stop(loop);
}

static inline void run_for(struct loop *l, uint64_t us)
{
	struct loop_timer *t;
	assert_int_equal(loop_timer_new(l, run_for_end, l, &t), 0);
	loop_timer_set(t, us);
	assert_int_equal(loop_run(l), 0);
	loop_timer_free(t);
}
