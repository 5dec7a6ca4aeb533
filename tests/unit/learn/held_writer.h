/* A learner whose writer (learn/writer.c) can be held at its first sync, or meet a full disk there.
 *
 * It is held inside fsync (ours, below) until somebody waits for it, which is seen by his pthread_join: no clock is asked. */
#pragma once
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include "tests/unit/learn/learner_world.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static pthread_t learners_thread;
static bool hold, held, full;

static void let_go(void) /* the writer that is held */
{
	pthread_mutex_lock(&lock);
	hold = hold && !held;
	pthread_cond_broadcast(&moved);
	pthread_mutex_unlock(&lock);
}

int fsync(int fd)
{
	bool fail = false;
	if (!pthread_equal(pthread_self(), learners_thread)) {
		pthread_mutex_lock(&lock);
		held = hold;
		while (hold)
			pthread_cond_wait(&moved, &lock);
		held = false;
		fail = full;
		pthread_mutex_unlock(&lock);
	}
	errno = ENOSPC;
	return fail ? -1 : (int)syscall(SYS_fsync, fd);
}

int pthread_join(pthread_t t, void **ret)
{
	int (*join)(pthread_t, void **) = (int (*)(pthread_t, void **))dlsym(RTLD_NEXT, "pthread_join");
	let_go();
	return join(t, ret);
}

static const char *const tenant = "feedface00";
static struct world w;
static char state[300];
static struct dev *dev;

static int held_setup(void **s)
{
	struct buf b = BUF_INIT(0);
	(void)s;
	learners_thread = pthread_self();
	hold = held = full = false;
	world_init(&w, 12);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	for (int i = 0; i < 2; i++) {
		struct tw_record q = {.T = 24, .n_prompt = 8, .last = true, .seq = 1000 + (uint64_t)i, .seed = 7000 + (uint64_t)i, .request = "his", .domain = "code"};
		(void)snprintf(q.tenant, sizeof q.tenant, "%s", tenant);
		buf_clear(&b);
		tw_encode(&q, &b);
		tw_add(&w.src, 0, b.data, b.len);
	}
	buf_done(&b);
	w.src.visible = w.src.n;
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &dev), 0);
	return 0;
}

static int held_teardown(void **s)
{
	(void)s;
	dev_free(dev);
	world_done(&w);
	return 0;
}

static void steps(struct learner *l, int n)
{
	struct errtext e = {""};
	for (int i = 0; i < n; i++) {
		assert_true(learner_can_step(l));
		assert_int_equal(learner_step(l, &e), 0);
	}
}

static struct learner *opened(void)
{
	static struct learner_options o;
	o = options(&w, state);
	o.max_epochs = 100;
	o.pool_bytes = 1 << 24;
	return open_ok(&o, dev, &w, 0);
}

/* At step 3, where its only checkpoint was written. */
static struct learner *begun(void)
{
	struct errtext e = {""};
	struct learner *l = opened();
	bool done = false;
	int n = 1;
	while (n)
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_int_equal(learner_begin(l, NULL, &done, &e), 0);
	assert_true(done);
	steps(l, 3);
	assert_int_equal(learner_checkpoint(l, &e), 0);
	assert_int_equal(l->saving == NULL, 1);
	return l;
}

