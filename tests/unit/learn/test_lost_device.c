/* A GPU that is lost in a step is not the run's fault: the learner ends with what the device said and
 * spoils nothing, and the next process, on a sound device, takes the journalled step.
 */
#include <errno.h>
#include "tests/unit/learn/toyworld.h"
#include "learn/learner.h"

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

static struct learner *open_on(const struct learner_options *o, struct tw_source *src, const struct frozen *fz)
{
	struct learner *l = NULL;
	struct errtext e = {""};
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &dev), 0);
	if (learner_open(o, dev, &src->base, fz, &l, &e))
		fail_msg("%s", e.text);
	return l;
}

static void test_lost_device(void **unused)
{
	char dir[256], store[300], state[300];
	struct frozen fz;
	struct tw_source src;
	struct errtext e = {""};
	struct trainer_kind failing = trainer_eagle3;
	bool done;
	int n;
	(void)unused;
	tw_temp_dir(dir);
	(void)snprintf(store, sizeof store, "%s/store", dir);
	(void)snprintf(state, sizeof state, "%s/s", dir);
	tw_store(store);
	assert_int_equal(frozen_open(store, "", &fz, &e), 0);
	tw_source_init(&src);
	tw_script(&src, 12, 4242);
	src.visible = src.n;
	failing.step = lost_step;
	struct learner_options o = {
		.state_dir = state, .store = store, .kind = &failing, .seed = 99,
		.train = {.ttt_steps = 3, .decay = (real)0.8, .lr = (real)1e-3, .beta1 = (real)0.9, .beta2 = (real)0.999, .eps = (real)1e-8, .clip = (real)0.5, .warmup_steps = 5},
		.draft_vocab = 48, .max_rows = 24, .max_epochs = 2, .queue_max = 6, .heldout_max = 4, .heldout_domain_max = 3, .prompt_rows = true, .auto_init = true,
		.replay_share = 0.3, .init_min_tokens = 150, .pool_bytes = 220000, .segment_bytes = 40000, .replay_wait_ms = 1, .history_rows = 16, .tenant_share = 1,
		.tenant_window = 1000, .request_rows = 100000,
	};
	struct learner *l = open_on(&o, &src, &fz);
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
	l = open_on(&o, &src, &fz);
	assert_int_equal(l->step, 1);
	assert_int_equal(l->n.steps_bad, 0);
	learner_close(l);
	dev_free(dev);
	frozen_close(&fz);
	tw_source_done(&src);
	assert_int_equal(fs_remove_tree(dir), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_lost_device)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
