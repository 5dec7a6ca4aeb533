/* A GPU that is lost in a step is not the run's fault: the learner ends with what the device said and
 * spoils nothing, and the next process, on a sound device, takes the journalled step.
 */
#include <errno.h>
#include "tests/unit/learn/learner_world.h"

static struct dev *dev;

static int lost_step(struct trainer *t, const struct train_batch *b, struct train_result *ret)
{
	(void)t;
	(void)b;
	(void)ret;
	dev->lost = true;
	(void)snprintf(dev->error, sizeof dev->error, "linear: cudaErrorLaunchFailure; the device is lost to this process");
	return -EIO;
}

static struct learner *open_on(const struct learner_options *o, struct world *w)
{
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &dev), 0);
	return open_ok(o, dev, w, 0);
}

static void test_lost_device(void **unused)
{
	struct world w;
	char state[300];
	struct errtext e = {""};
	struct trainer_kind failing = trainer_eagle3;
	bool done;
	int n;
	(void)unused;
	world_init(&w, 12);
	(void)snprintf(state, sizeof state, "%s/s", w.dir);
	struct learner_options o = options(&w, state);
	failing.step = lost_step;
	o.kind = &failing;
	struct learner *l = open_on(&o, &w);
	for (int i = 0; i < 40; i++)
		assert_int_equal(learner_consume(l, 64, &n, &e), 0);
	assert_int_equal(learner_begin(l, NULL, &done, &e), 0);
	assert_int_equal(learner_step(l, &e), -EIO);
	assert_non_null(strstr(e.text, "cudaErrorLaunchFailure"));
	assert_int_equal(l->n.steps_bad, 0);
	assert_int_equal(l->step, 0);
	learner_close(l);
	dev_free(dev);
	o.kind = &trainer_eagle3;
	l = open_on(&o, &w);
	assert_int_equal(l->step, 1);
	assert_int_equal(l->n.steps_bad, 0);
	learner_close(l);
	dev_free(dev);
	world_done(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_lost_device)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
