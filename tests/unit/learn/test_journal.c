/* What was synced is read back, entry by entry; a torn end is cut off wherever it
 * tore; damage before the end is refused. */
#include "tests/unit/learn/toyworld.h"
#include "learn/journal.h"

static const struct journal_entry all[] = {
	{.kind = J_CONFIG, .text = "{\"seed\":1,\"x\":\"a # b\"}"},
	{.kind = J_TAKE, .partition = 7, .offset = 123456789012, .count = 64},
	{.kind = J_GAP, .partition = 3, .offset = 10, .to = 4000000000},
	{.kind = J_INIT}, {.kind = J_INIT, .text = "/some where/ids.txt"},
	{.kind = J_REBASE, .version = 4000000000u, .text = TW_FP},
	{.kind = J_STEP, .number = 0}, {.kind = J_STEP, .number = 99999999999},
	{.kind = J_PUBLISH, .text = "step-12-abcd"}, {.kind = J_SUBMITTED, .version = 12}, {.kind = J_WITHDRAW},
	{.kind = J_VERDICT, .version = 12, .text = "rejected: no better in 2 of 2 domains"},
	{.kind = J_PAUSE}, {.kind = J_RESUME}, {.kind = J_DRIFT, .number = 2},
};
enum { N = sizeof all / sizeof *all };

static void path_in(const char *dir, char ret[300])
{
	(void)snprintf(ret, 300, "%s/journal", dir);
}

static struct journal *open_ok(const char *path, bool read_only)
{
	struct journal *j = NULL;
	struct errtext e = {""};
	int r = journal_open(path, read_only, &j, &e);
	if (r)
		print_message("%s\n", e.text);
	assert_int_equal(r, 0);
	return j;
}

static int count(struct journal *j, bool check)
{
	struct journal_entry x;
	int64_t at = 0;
	int n = 0;
	while (!journal_read(j, at, &x, &at)) {
		if (check) {
			const struct journal_entry *w = &all[n];
			assert_int_equal(x.kind, w->kind);
			assert_int_equal(x.partition, w->partition);
			assert_int_equal(x.offset, w->offset);
			assert_int_equal(x.count, w->count);
			assert_int_equal(x.to, w->to);
			assert_int_equal(x.number, w->number);
			assert_int_equal(x.version, w->version);
			assert_string_equal(x.text, w->text);
		}
		n++;
	}
	return n;
}

static void write_all(const char *path)
{
	struct journal *j = open_ok(path, false);
	for (int i = 0; i < N; i++)
		assert_int_equal(journal_append(j, &all[i]), 0);
	assert_int_equal(count(j, true), 0); /* not to be read before it is durable */
	assert_int_equal(journal_sync(j), 0);
	assert_int_equal(count(j, true), N);
	journal_close(j);
}

static void test_all_kinds(void **state)
{
	char dir[256], path[300];
	(void)state;
	tw_temp_dir(dir);
	path_in(dir, path);
	write_all(path);
	struct journal *j = open_ok(path, false);
	assert_int_equal(count(j, true), N);
	struct journal_entry x = {.kind = J_VERDICT, .version = 1, .text = "two\nlines"};
	assert_int_equal(journal_append(j, &x), -EINVAL);
	journal_close(j);
	assert_int_equal(fs_remove_tree(dir), 0);
}

/* The file cut at every byte: the whole lines before the cut remain, and appending goes on from there. */
static void test_torn(void **state)
{
	char dir[256], path[300], *text = NULL;
	(void)state;
	tw_temp_dir(dir);
	path_in(dir, path);
	write_all(path);
	assert_int_equal(fs_read_text(path, 1 << 20, &text), 0);
	size_t len = strlen(text);
	for (size_t cut = 0; cut <= len; cut++) {
		FILE *f = fopen(path, "wb");
		assert_non_null(f);
		assert_int_equal(fwrite(text, 1, cut, f), cut);
		(void)fclose(f);
		int lines = 0;
		for (size_t i = 0; i < cut; i++)
			lines += text[i] == '\n';
		struct journal *j = open_ok(path, true); /* to repeat it, the file is left alone */
		assert_int_equal(count(j, true), lines);
		journal_close(j);
		j = open_ok(path, false);
		assert_int_equal(count(j, true), lines);
		struct journal_entry x = {.kind = J_STEP, .number = 5};
		assert_int_equal(journal_append(j, &x), 0);
		assert_int_equal(journal_sync(j), 0);
		assert_int_equal(count(j, false), lines + 1);
		journal_close(j);
	}
	free(text);
	assert_int_equal(fs_remove_tree(dir), 0);
}

/* One bit flipped anywhere before the last line is refused; in the last line it is cut like a torn one. */
static void test_damaged(void **state)
{
	char dir[256], path[300], *text = NULL;
	(void)state;
	tw_temp_dir(dir);
	path_in(dir, path);
	write_all(path);
	assert_int_equal(fs_read_text(path, 1 << 20, &text), 0);
	size_t len = strlen(text), last = len - 1;
	while (last > 0 && text[last - 1] != '\n')
		last--;
	for (size_t at = 0; at < len; at += 3) {
		text[at] ^= 1;
		FILE *f = fopen(path, "wb");
		assert_int_equal(fwrite(text, 1, len, f), len);
		(void)fclose(f);
		text[at] ^= 1;
		struct journal *j = NULL;
		struct errtext e = {""};
		int r = journal_open(path, false, &j, &e);
		if (at < last - 1) { /* the newline between the last two makes them one last line */
			assert_int_equal(r, -EINVAL);
			assert_non_null(strstr(e.text, "damaged"));
		} else {
			assert_int_equal(r, 0);
			assert_int_equal(count(j, true), at < last ? N - 2 : N - 1);
		}
		journal_close(j);
	}
	free(text);
	assert_int_equal(fs_remove_tree(dir), 0);
}

static void test_cut(void **state)
{
	char dir[256], path[300];
	struct journal_entry x;
	int64_t at = 0;
	(void)state;
	tw_temp_dir(dir);
	path_in(dir, path);
	write_all(path);
	struct journal *j = open_ok(path, false);
	for (int i = 0; i < 4; i++)
		assert_int_equal(journal_read(j, at, &x, &at), 0);
	assert_int_equal(journal_cut(j, at), 0);
	assert_int_equal(count(j, true), 4);
	assert_int_equal(journal_end(j), at);
	journal_close(j);
	assert_int_equal(fs_remove_tree(dir), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_kinds), cmocka_unit_test(test_torn), cmocka_unit_test(test_damaged), cmocka_unit_test(test_cut)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
