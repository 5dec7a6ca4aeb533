/* The writing end of the audit log. A line is in the file when the call returns; files turn over and the chain goes on; a torn end
 * is cut and said; a chain that was changed is reported and nothing refuses to start; a folder that cannot be written, or a full disk, costs
 * no order: lines wait, are bounded, and are written in their order when there is room.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <signal.h>
#include <unistd.h>
#include <cmocka.h>
#include "daemon/audit.h"
#include "daemon/base/fs.h"
#include "daemon/base/log.h"
#include "daemon/base/loop.h"
#include "daemon/base/metrics.h"
#include "schemas/audit.h"

static char dir[64], folder[96];
static struct loop *loop;
static struct metrics *metrics;
static struct audit *audit;

static struct audit_seen look(void)
{
	struct errtext e = {""};
	struct audit_seen s;

	assert_int_equal(audit_read(folder, &s, NULL, NULL, &e), 0);
	return s;
}

static void start(int64_t max_bytes, int keep)
{
	assert_int_equal(audit_new(loop, &(struct audit_options){.dir = folder, .max_bytes = max_bytes, .keep = keep, .metrics = metrics}, &audit), 0);
}

static int setup(void **state)
{
	(void)state;
	log_init("test", 0);
	snprintf(dir, sizeof dir, "/tmp/redraft-audit-XXXXXX");
	assert_non_null(mkdtemp(dir));
	snprintf(folder, sizeof folder, "%s/audit", dir);
	assert_int_equal(loop_new(&loop), 0);
	metrics = metrics_new();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	audit = audit_free(audit);
	loop_free(loop);
	metrics_free(metrics);
	assert_int_equal(fs_remove_tree(dir), 0);
	return 0;
}

static void note(int n)
{
	audit_note(audit, "Hold", NULL, NULL, "number %d", n);
}

static void turn(void *arg)
{
	loop_stop(arg);
}

/* The loop for so long. */
static void spin(uint64_t us)
{
	struct loop_timer *t;

	assert_int_equal(loop_timer_new(loop, turn, loop, &t), 0);
	loop_timer_set(t, us);
	assert_int_equal(loop_run(loop), 0);
	loop_timer_free(t);
}

static void test_written_at_once_and_goes_on(void **state)
{
	struct audit_seen s;

	(void)state;
	start(1 << 20, 4);
	note(1);
	note(2);
	s = look(); /* nothing was flushed or freed */
	assert_true(s.lines == 2 && !s.broken && !s.torn);
	audit = audit_free(audit);
	start(1 << 20, 4);
	note(3);
	s = look();
	assert_true(s.lines == 3 && s.head.seq == 3 && !s.broken);
}

static void test_files_turn_over(void **state)
{
	struct audit_seen s;
	char path[128];

	(void)state;
	start(1000, 3);
	for (int i = 0; i < 40; i++)
		note(i);
	s = look();
	assert_true(s.head.seq == 40 && !s.broken && s.files == 4 && s.first > 1); /* the oldest are gone, the rest hangs together */
	snprintf(path, sizeof path, "%s/audit.4", folder);
	assert_int_not_equal(access(path, F_OK), 0);
}

/* Fewer are kept than before: nothing of the older time stays behind a hole. */
static void test_keeping_fewer(void **state)
{
	struct audit_seen s;

	(void)state;
	start(1000, 6);
	for (int i = 0; i < 40; i++)
		note(i);
	assert_int_equal(look().files, 7);
	audit = audit_free(audit);
	start(1000, 2);
	for (int i = 0; i < 10; i++)
		note(i);
	s = look();
	assert_true(s.files == 3 && !s.broken);
}

/* What cannot be read, or was cut while in use, is not written over. */
static void test_nothing_is_written_over(void **state)
{
	char path[128], older[128], *before = NULL, *after = NULL;
	size_t n;

	(void)state;
	start(1 << 20, 4);
	for (int i = 0; i < 5; i++)
		note(i);
	audit = audit_free(audit);
	snprintf(path, sizeof path, "%s/audit.log", folder);
	snprintf(older, sizeof older, "%s/audit.1", folder);
	assert_int_equal(fs_read_text(path, 1 << 20, &before), 0);
	n = strlen(before);
	assert_int_equal(mkdir(older, 0700), 0); /* no file: the log does not read */
	start(1 << 20, 4);
	note(6);
	assert_int_equal(fs_read_text(path, 1 << 20, &after), 0);
	assert_true(strlen(after) > n && !strncmp(after, before, n));
	free(after);
	assert_int_equal(truncate(path, (off_t)n / 2), 0);
	note(7);
	assert_int_equal(fs_read_text(path, 1 << 20, &after), 0);
	assert_true(strlen(after) > n / 2 && !strncmp(after, before, n / 2));
	free(after);
	free(before);
	assert_int_equal(rmdir(older), 0);
}

static void test_torn_end_is_cut(void **state)
{
	char path[128];
	struct audit_seen s;
	int fd;

	(void)state;
	start(1 << 20, 4);
	note(1);
	audit = audit_free(audit);
	snprintf(path, sizeof path, "%s/audit.log", folder);
	fd = open(path, O_WRONLY | O_APPEND);
	assert_int_equal(write(fd, "0123 {\"half", 11), 11);
	close(fd);
	start(1 << 20, 4);
	s = look();
	assert_true(!s.torn && !s.broken && s.lines == 2); /* and a Repair line */
}

static void test_changed_chain_is_said_and_starts(void **state)
{
	char path[128], *text = NULL;
	json_t *status;

	(void)state;
	start(1 << 20, 4);
	note(1);
	note(2);
	audit = audit_free(audit);
	snprintf(path, sizeof path, "%s/audit.log", folder);
	assert_int_equal(fs_read_text(path, 1 << 20, &text), 0);
	*strstr(text, "number 1") = 'N';
	assert_int_equal(fs_write_atomic(path, text, strlen(text)), 0);
	free(text);
	start(1 << 20, 4);
	status = audit_status(audit);
	assert_non_null(strstr(json_string_value(json_object_get(status, "broken")), "line 1"));
	json_decref(status);
	assert_true(metric_get(metrics_gauge(metrics, "redraft_audit_broken", NULL, "")) == 1);
	note(3);
	assert_int_equal(look().head.seq, 4); /* two, Broken, one more */
	assert_int_equal(look().broken, 1);   /* still the one */
}

/* A full disk, as RLIMIT_FSIZE makes it: writes past the limit fail with EFBIG or come short. */
static void test_full_disk(void **state)
{
	struct rlimit was, little;
	json_t *status;
	struct audit_seen s;

	(void)state;
	signal(SIGXFSZ, SIG_IGN);
	start(1 << 20, 4);
	note(0);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
	little = was;
	little.rlim_cur = 700; /* two lines and a piece */
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
	for (int i = 1; i < 300; i++)
		note(i);
	status = audit_status(audit);
	assert_int_equal(json_integer_value(json_object_get(status, "unwritten")), 256);
	assert_true(json_integer_value(json_object_get(status, "lost")) > 30);
	json_decref(status);
	s = look();
	assert_true(!s.broken && !s.torn && s.lines >= 1);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
	spin(1300000); /* it tries by itself */
	s = look();
	assert_true(!s.broken && !s.torn && s.lines > 256);
	status = audit_status(audit);
	assert_int_equal(json_integer_value(json_object_get(status, "unwritten")), 0);
	json_decref(status);
}

static void test_folder_that_cannot_be(void **state)
{
	json_t *status;

	(void)state;
	assert_int_equal(fs_write_atomic(folder, "x", 1), 0); /* a file where the folder should be */
	start(1 << 20, 4);
	note(1);
	status = audit_status(audit);
	assert_int_equal(json_integer_value(json_object_get(status, "unwritten")), 1);
	json_decref(status);
	assert_int_equal(unlink(folder), 0);
	spin(1300000);
	assert_int_equal(look().lines, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_written_at_once_and_goes_on, setup, teardown),
		cmocka_unit_test_setup_teardown(test_files_turn_over, setup, teardown),
		cmocka_unit_test_setup_teardown(test_keeping_fewer, setup, teardown),
		cmocka_unit_test_setup_teardown(test_nothing_is_written_over, setup, teardown),
		cmocka_unit_test_setup_teardown(test_torn_end_is_cut, setup, teardown),
		cmocka_unit_test_setup_teardown(test_changed_chain_is_said_and_starts, setup, teardown),
		cmocka_unit_test_setup_teardown(test_full_disk, setup, teardown),
		cmocka_unit_test_setup_teardown(test_folder_that_cannot_be, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
