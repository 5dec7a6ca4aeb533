/* The compute thread says how it ended, whoever ended it: a stop that goes well is no news and leaves a checkpoint; a last
 * checkpoint that cannot be written is said by worker_stop, as the loop runs no more; bad state is said through the loop. Each once.
 */
#include <sched.h>
#include <time.h>
#include "daemon/base/loop.h"
#include "tests/unit/learn/learner_world.h"
#include "learn/worker.h"

struct heard {
	struct loop *loop;
	int n, code;
	char text[300];
};

static void on_exit_of(void *arg, int code, const char *message)
{
	struct heard *h = arg;
	h->n++;
	h->code = code;
	(void)snprintf(h->text, sizeof h->text, "%s", message);
	loop_stop(h->loop);
}

static struct source *free_source(struct source *s)
{
	free(s); /* the first of its struct */
	return NULL;
}

/* A source is the worker's own: one in which nothing comes. */
static struct source *no_source(void)
{
	struct tw_source *s = malloc(sizeof *s);
	assert_non_null(s);
	tw_source_init(s);
	s->base.free = free_source;
	return &s->base;
}

static struct worker *begin(const struct world *w, const char *state, struct heard *h)
{
	struct worker *x = NULL;
	struct worker_options o = {.learner = options(w, state), .device = {.kind = DEV_CPU, .threads = 1, .isa = ISA_PORTABLE}, .policy = SCHED_OTHER, .serve_socket = "", .daemon_socket = "",
				   .pace = {.publish_us = UINT64_MAX / 2, .checkpoint_us = UINT64_MAX / 2, .publish_min_steps = 1, .gate_k = 3, .governor = {.max_rows = 24}}};
	*h = (struct heard){0};
	assert_int_equal(loop_new(&h->loop), 0);
	assert_int_equal(worker_start(&o, h->loop, no_source(), &w->fz, on_exit_of, h, &x), 0);
	return x;
}

/* Until it goes round. */
static void until_it_turns(struct worker *x)
{
	const struct timespec nap = {.tv_nsec = 5000000};
	for (int i = 0; i < 20000; i++) {
		json_t *s = worker_status(x);
		bool there = json_object_get(s, "step") != NULL;
		json_decref(s);
		if (there)
			return;
		(void)nanosleep(&nap, NULL);
	}
	fail_msg("the worker does not turn");
}

static void test_stop(void **unused)
{
	struct world w;
	struct heard h;
	char state[300], dir[400];
	(void)unused;
	world_init(&w, 4);
	(void)snprintf(state, sizeof state, "%s/well", w.dir);
	(void)snprintf(dir, sizeof dir, "%s/checkpoint", state);
	struct worker *x = begin(&w, state, &h);
	until_it_turns(x);
	worker_stop(x);
	assert_int_equal(h.n, 0);
	assert_int_equal(access(dir, F_OK), 0);
	loop_free(h.loop);

	x = begin(&w, state, &h);
	until_it_turns(x);
	assert_int_equal(fs_remove_tree(dir), 0);
	assert_int_equal(fs_write_atomic(dir, "in the way", 10), 0);
	worker_stop(x);
	assert_int_equal(h.n, 1);
	assert_int_equal(h.code, 1);
	assert_non_null(strstr(h.text, "checkpoint"));
	loop_free(h.loop);
	world_done(&w);
}

static void test_bad_state(void **unused)
{
	struct world w;
	struct heard h;
	char state[300];
	(void)unused;
	world_init(&w, 4);
	(void)snprintf(state, sizeof state, "%s/bad", w.dir);
	assert_int_equal(fs_write_atomic(state, "no folder", 9), 0);
	struct worker *x = begin(&w, state, &h);
	assert_int_equal(loop_run(h.loop), 0); /* until it has said so */
	worker_stop(x);
	assert_int_equal(h.n, 1);
	assert_int_equal(h.code, 2);
	assert_true(h.text[0] != 0);
	loop_free(h.loop);
	world_done(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_stop), cmocka_unit_test(test_bad_state)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
