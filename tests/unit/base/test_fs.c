/* Files are whole or old: the writer is killed at each crash point in a forked
 * child and the name must hold all of the old bytes or all of the new, with nothing left beside it; maps outlive
 * renames; removing a tree stays inside it.
 */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "daemon/base/fs.h"

static char dir[64];

static int setup(void **state)
{
	(void)state;
	snprintf(dir, sizeof dir, "/tmp/redraft-test-fs-XXXXXX");
	assert_non_null(mkdtemp(dir));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	assert_int_equal(fs_remove_tree(dir), 0);
	assert_int_equal(access(dir, F_OK), -1);
	return 0;
}

static const char *at(const char *name)
{
	static char path[4][128];
	static int i;

	i = (i + 1) % 4;
	snprintf(path[i], sizeof path[i], "%s/%s", dir, name);
	return path[i];
}

static void expect_text(const char *path, const char *want)
{
	char *text = NULL;

	assert_int_equal(fs_read_text(path, 1000, &text), 0);
	assert_string_equal(text, want);
	free(text);
}

static void write_and_read(void **state)
{
	struct stat st;
	char *text = NULL;

	(void)state;
	assert_int_equal(fs_write_atomic(at("a"), "hello", 5), 0);
	expect_text(at("a"), "hello");
	assert_int_equal(stat(at("a"), &st), 0);
	assert_int_equal(st.st_mode & 0777, 0640);
	assert_int_equal(fs_write_atomic(at("a"), "", 0), 0);
	expect_text(at("a"), "");
	assert_int_equal(fs_write_atomic(at("a"), "123456", 6), 0);
	assert_int_equal(fs_read_text(at("a"), 5, &text), -E2BIG);
	assert_int_equal(fs_read_text(at("a"), 6, &text), 0);
	free(text);
	text = NULL;
	assert_int_equal(fs_read_text(at("none"), 6, &text), -ENOENT);
	assert_null(text);
	assert_int_equal(fs_write_atomic(at("none/a"), "x", 1), -ENOENT);
	assert_int_equal(fs_read_text("/proc/self/stat", 4096, &text), 0);
	assert_true(strlen(text) > 10);
	free(text);
}

static int entries(void)
{
	DIR *d = opendir(dir);
	int n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static bool has_nameless_files(void)
{
	int fd = open(dir, O_TMPFILE | O_WRONLY, 0600);

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

static void torn_writes(void **state)
{
	static const char *const points[] = {"fs-created", "fs-half", "fs-written", "fs-synced", "fs-renamed"};

	(void)state;
	for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
		int status, before;
		pid_t pid;

		assert_int_equal(fs_write_atomic(at("t"), "old old", 7), 0);
		before = entries();
		pid = fork();
		if (!pid) {
			setenv("REDRAFT_CRASH_AT", points[i], 1);
			_exit(fs_write_atomic(at("t"), "new", 3) ? 1 : 0);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 137); /* the point exists */
		expect_text(at("t"), strcmp(points[i], "fs-renamed") ? "old old" : "new");
		if (has_nameless_files()) /* else who is killed again and again fills the disk with beginnings */
			assert_int_equal(entries(), before);
	}
}

static void maps(void **state)
{
	struct fs_map m = {0};

	(void)state;
	assert_int_equal(fs_write_atomic(at("m"), "first", 5), 0);
	assert_int_equal(fs_map(at("m"), &m), 0);
	assert_int_equal(fs_write_atomic(at("m"), "second!", 7), 0);
	assert_int_equal(m.len, 5);
	assert_memory_equal(m.data, "first", 5); /* a reader keeps what it opened */
	fs_unmap(&m);
	fs_unmap(&m);
	assert_int_equal(fs_write_atomic(at("m"), "", 0), 0);
	assert_int_equal(fs_map(at("m"), &m), 0);
	assert_null(m.data);
	assert_int_equal(fs_map(dir, &m), -EISDIR);
	assert_int_equal(fs_map("/dev/null", &m), -EINVAL);
}

static long file_kib(void)
{
	char *text = NULL;
	assert_int_equal(fs_read_text("/proc/self/status", 1 << 16, &text), 0);
	const char *at = strstr(text, "RssFile:");
	assert_non_null(at);
	long kib = strtol(at + 8, NULL, 10);
	free(text);
	return kib;
}

/* What rests is no longer in our memory, and reads as it did. */
static void a_map_rests(void **state)
{
	enum { N = 8 << 20 };
	struct fs_map m = {0};
	unsigned sum[2] = {0, 0};
	long kib[2];

	(void)state;
	uint8_t *p = malloc(N);
	assert_non_null(p);
	for (size_t i = 0; i < N; i++)
		p[i] = (uint8_t)(i * 2654435761u >> 13);
	assert_int_equal(fs_write_atomic(at("m"), p, N), 0);
	free(p);
	assert_int_equal(fs_map(at("m"), &m), 0);
	for (int k = 0; k < 2; k++) {
		for (size_t i = 0; i < N; i += 64)
			sum[k] = sum[k] * 31 + m.data[i];
		kib[k] = file_kib();
		fs_map_rest(&m);
		assert_true(file_kib() <= kib[k] - (N >> 11)); /* half of it, at least: other pages may come meanwhile */
	}
	assert_int_equal(sum[0], sum[1]);
	fs_unmap(&m);
	fs_map_rest(&m);
}

static void folders(void **state)
{
	(void)state;
	assert_int_equal(fs_mkdirs(at("x/y/z")), 0);
	assert_int_equal(fs_mkdirs(at("x/y/z")), 0);
	assert_int_equal(fs_write_atomic(at("x/f"), "1", 1), 0);
	assert_true(fs_mkdirs(at("x/f/g")) < 0);
	assert_int_equal(fs_mkdirs(at("x/f")), -ENOTDIR);
	/* a link inside the tree is removed, what it points to is not */
	assert_int_equal(fs_mkdirs(at("out")), 0);
	assert_int_equal(fs_write_atomic(at("out/keep"), "1", 1), 0);
	assert_int_equal(symlink(at("out"), at("x/y/link")), 0);
	assert_int_equal(fs_remove_tree(at("x")), 0);
	expect_text(at("out/keep"), "1");
	assert_int_equal(fs_remove_tree(at("x")), 0); /* missing is fine */
}

static void copies(void **state)
{
	(void)state;
	assert_int_equal(fs_write_atomic(at("from"), "new", 3), 0);
	assert_int_equal(fs_write_atomic(at("to"), "older", 5), 0);
	assert_int_equal(chmod(at("to"), 0440), 0); /* not to be written to: replaced all the same */
	assert_true(fs_copy(at("from"), at("to")) == 3);
	expect_text(at("to"), "new");
	assert_true(fs_copy(at("none"), at("to")) == -ENOENT);
	expect_text(at("to"), "new");
	assert_true(fs_copy(dir, at("to")) == -EISDIR); /* found when it is read: nothing is left of it */
	assert_int_equal(access(at("to"), F_OK), -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(write_and_read), cmocka_unit_test(torn_writes),
					   cmocka_unit_test(maps), cmocka_unit_test(a_map_rests), cmocka_unit_test(folders), cmocka_unit_test(copies)};
	return cmocka_run_group_tests(tests, setup, teardown);
}
