/* A checkpoint does not stop training, and whoever needs it waits for it: steps are taken while the writer is held at its sync, what they
 * change is not in the file, and a start afterwards is exact; a checkpoint begun meanwhile, a purge, an expiry and the end of the learner wait. One that
 * cannot be written is said and counted, leaves nothing behind and the one before it as it was. (Candidates: test_candidate.c.) */
#include <dirent.h>
#include "tests/unit/learn/held_writer.h"
#include "learn/purge.h"

static int written, erased_after; /* checkpoints renamed; how many were when the first byte of the pool was erased, -1: none was */

int rename(const char *from, const char *to)
{
	int r = (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
	size_t n = strlen(to);
	if (!r && n > 5 && strcmp(to + n - 5, ".ckpt") == 0) {
		pthread_mutex_lock(&lock);
		written++;
		pthread_mutex_unlock(&lock);
	}
	return r;
}

int fallocate(int fd, int mode, off_t at, off_t len)
{
	pthread_mutex_lock(&lock);
	if (erased_after < 0)
		erased_after = written;
	pthread_mutex_unlock(&lock);
	return (int)syscall(SYS_fallocate, fd, mode, at, len);
}

static int setup(void **s)
{
	written = 0;
	erased_after = -1;
	return held_setup(s);
}

/* Begins one and returns when its writer is held. */
static void begin_held(struct learner *l)
{
	struct errtext e = {""};
	hold = true;
	assert_int_equal(learner_checkpoint_begin(l, &e), 0);
	for (bool there = false; !there; (void)usleep(1000)) { /* the copy is made by the first end that finds its memory there */
		assert_int_equal(learner_write_end(l, false, &e), LEARNER_E_WRITING);
		pthread_mutex_lock(&lock);
		there = held;
		pthread_mutex_unlock(&lock);
	}
}

/* The newest checkpoint's serial and step; how many files the folder has. */
static int64_t newest(int64_t *ret_step, int *ret_files)
{
	struct checkpoint c = {0};
	struct errtext e = {""};
	char dir[400];
	int64_t serial = 0;
	int damaged = 0;
	(void)snprintf(dir, sizeof dir, "%s/checkpoint", state);
	assert_int_equal(checkpoint_load(dir, &c, &serial, &damaged, &e), 0);
	assert_int_equal(damaged, 0);
	*ret_step = json_integer_value(json_object_get(c.state, "step"));
	checkpoint_done(&c);
	DIR *d = opendir(dir);
	*ret_files = 0;
	for (const struct dirent *x; (x = readdir(d));)
		*ret_files += x->d_name[0] != '.';
	closedir(d);
	return serial;
}

/* Ends it, and starts again: at the same bits. */
static void exact(struct learner *l)
{
	char was[65], is[65];
	int64_t step = l->step;
	learner_weights_sha(l, was);
	learner_close(l);
	l = opened();
	learner_weights_sha(l, is);
	assert_int_equal(l->step, step);
	assert_string_equal(was, is);
	learner_close(l);
}

static void test_steps_go_on(void **s)
{
	struct learner *l = begun();
	struct errtext e = {""};
	int64_t serial = l->serial, step;
	int files;
	(void)s;
	begin_held(l);
	assert_true(learner_copy_bytes(l) > l->o.kind->n_params(l->t) * sizeof(real));
	steps(l, 5);
	assert_int_equal(l->step, 8);
	assert_int_equal(entry(l, J_DRIFT, 0, ""), 0);
	assert_true(held); /* all the while */
	assert_int_equal(learner_write_end(l, false, &e), LEARNER_E_WRITING);
	assert_int_equal(l->serial, serial);
	assert_int_equal(newest(&step, &files), serial);
	assert_int_equal(learner_write_end(l, true, &e), 0);
	assert_int_equal(learner_write_end(l, false, &e), 0); /* none is being written */
	assert_int_equal(learner_copy_bytes(l), 0);
	assert_int_equal(l->serial, serial + 1);
	assert_int_equal(newest(&step, &files), serial + 1);
	assert_int_equal(step, 3); /* where it began */
	assert_int_equal(l->saved.step, 3);
	assert_int_equal(files, 2);
	steps(l, 2);
	exact(l);
}

static void test_next_waits(void **s)
{
	struct learner *l = begun();
	struct errtext e = {""};
	int64_t serial = l->serial, step;
	int files;
	(void)s;
	begin_held(l);
	steps(l, 1);
	assert_int_equal(learner_checkpoint_begin(l, &e), 0);
	assert_int_equal(l->serial, serial + 1); /* the first was waited for */
	assert_int_equal(learner_write_end(l, true, &e), 0);
	assert_int_equal(newest(&step, &files), serial + 2);
	assert_int_equal(step, 4);
	exact(l);
}

static void test_end_waits(void **s)
{
	struct learner *l = begun();
	int64_t serial = l->serial, step;
	int files;
	(void)s;
	begin_held(l);
	learner_close(l);
	assert_int_equal(newest(&step, &files), serial + 1);
}

/* A learner may end because an entry failed half-way: what it is then is not to be copied. */
static void test_end_copies_nothing(void **s)
{
	struct learner *l = begun();
	struct errtext e = {""};
	int64_t serial = l->serial, step;
	int files;
	(void)s;
	assert_int_equal(learner_checkpoint_begin(l, &e), 0);
	steps(l, 1);
	exact(l);
	assert_int_equal(newest(&step, &files), serial);
	assert_int_equal(step, 3);
}

static void test_not_written(void **s)
{
	struct learner *l = begun();
	struct errtext e = {""};
	int64_t serial = l->serial, step;
	int files, before, r;
	(void)s;
	(void)newest(&step, &before);
	full = true;
	begin_held(l);
	steps(l, 1);
	let_go();
	while ((r = learner_write_end(l, false, &e)) == LEARNER_E_WRITING)
		;
	full = false;
	assert_int_equal(r, -ENOSPC);
	assert_non_null(strstr(e.text, "No space left"));
	assert_string_equal(l->saved.error, e.text);
	assert_int_equal(l->saved.failed, 1);
	assert_int_equal(l->serial, serial);
	assert_int_equal(newest(&step, &files), serial);
	assert_int_equal(files, before);
	steps(l, 1);
	assert_int_equal(learner_checkpoint(l, &e), 0);
	assert_int_equal(newest(&step, &files), serial + 1);
	assert_int_equal(step, 5);
	assert_string_equal(l->saved.error, "");
	exact(l);
}

/* Both checkpoints that are kept must be without what goes, and the one that was begun before is not one of them. */
static void test_purge_waits(void **s)
{
	struct learner *l = begun();
	struct errtext e = {""};
	struct purged p;
	(void)s;
	begin_held(l);
	int before = written;
	assert_int_equal(purge_tenant(l, tenant, &p, &e), 0);
	assert_true(p.records > 0);
	assert_int_equal(erased_after, before + 3);
	exact(l);
}

static void test_expiry_waits(void **s)
{
	struct learner *l = begun();
	struct errtext e = {""};
	(void)s;
	begin_held(l);
	int before = written;
	assert_int_equal(learner_expire(l, 1010, &e), 0);
	assert_int_equal(erased_after, before + 3);
	exact(l);
}

/* What a kill left of a file that was being written goes with the next. */
static void test_swept(void **s)
{
	struct learner *l = begun();
	struct errtext e = {""};
	char path[400];
	int64_t step;
	int files;
	(void)s;
	(void)snprintf(path, sizeof path, "%s/checkpoint/000000000007.ckpt.tmp-aBc123", state);
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	(void)fclose(f);
	assert_int_equal(learner_checkpoint(l, &e), 0);
	assert_int_not_equal(access(path, F_OK), 0);
	(void)newest(&step, &files);
	assert_int_equal(files, 2);
	learner_close(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_steps_go_on, setup, held_teardown), cmocka_unit_test_setup_teardown(test_next_waits, setup, held_teardown),
		cmocka_unit_test_setup_teardown(test_end_copies_nothing, setup, held_teardown),
		cmocka_unit_test_setup_teardown(test_end_waits, setup, held_teardown),   cmocka_unit_test_setup_teardown(test_not_written, setup, held_teardown),
		cmocka_unit_test_setup_teardown(test_purge_waits, setup, held_teardown), cmocka_unit_test_setup_teardown(test_expiry_waits, setup, held_teardown),
		cmocka_unit_test_setup_teardown(test_swept, setup, held_teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
