/* What was synced is read back, entry by entry; a torn end is cut off wherever it
 * tore, the last batch too where its pages came to disk out of order; damage before that is refused. */
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
	{.kind = J_PAUSE}, {.kind = J_RESUME}, {.kind = J_DRIFT, .number = 2}, {.kind = J_EXPIRE, .number = 1700000000},
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
	int r = journal_open(path, read_only, NULL, &j, &e);
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

enum { BATCH = 6 };

static void write_all(const char *path)
{
	struct journal *j = open_ok(path, false);
	for (int i = 0; i < N; i++) {
		int before = i / BATCH * BATCH;
		assert_int_equal(journal_append(j, &all[i]), 0);
		assert_int_equal(count(j, true), before); /* not to be read before it is durable */
		if (i % BATCH == BATCH - 1)
			assert_int_equal(journal_sync(j), 0);
	}
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
	_Atomic uint64_t beats = 0;
	struct errtext e = {""};
	struct journal *j = NULL;
	assert_int_equal(journal_open(path, false, &beats, &j, &e), 0);
	assert_true(beats >= N); /* a long one is seen to be read */
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

static size_t line_start(const char *text, int line)
{
	const char *s = text;
	while (line--)
		s = strchr(s, '\n') + 1;
	return (size_t)(s - text);
}

static void put_back(const char *path, const char *text, size_t len)
{
	FILE *f = fopen(path, "wb");
	assert_non_null(f);
	assert_int_equal(fwrite(text, 1, len, f), len);
	(void)fclose(f);
}

/* Opened: what it holds, or -1 where it is refused; and it goes on from there. */
static int opens(const char *path)
{
	struct journal *j = NULL;
	struct errtext e = {""};
	int r = journal_open(path, false, NULL, &j, &e);
	if (r) {
		assert_int_equal(r, -EINVAL);
		assert_non_null(strstr(e.text, "damaged"));
		return -1;
	}
	int n = count(j, false);
	const struct journal_entry x = {.kind = J_STEP, .number = 5};
	assert_int_equal(journal_append(j, &x), 0);
	assert_int_equal(journal_sync(j), 0);
	assert_int_equal(count(j, false), n + 1);
	journal_close(j);
	return n;
}

/* One bit flipped anywhere in a batch that others follow is refused; in the last one what stands from there on is cut
 * like a torn line. */
static void test_damaged(void **state)
{
	char dir[256], path[300], *text = NULL;
	(void)state;
	tw_temp_dir(dir);
	path_in(dir, path);
	write_all(path);
	assert_int_equal(fs_read_text(path, 1 << 20, &text), 0);
	size_t len = strlen(text), last = line_start(text, (N - 1) / BATCH * BATCH);
	int line = 0;
	for (size_t at = 0; at < len; at++) {
		bool newline = text[at] == '\n';
		text[at] ^= 1;
		put_back(path, text, len);
		text[at] ^= 1;
		if (at == last - 1)
			assert_int_equal(opens(path), line); /* two lines are one: whether a batch begins in it is not to be seen */
		else
			assert_int_equal(opens(path), at < last ? -1 : line);
		line += newline;
	}
	free(text);
	assert_int_equal(fs_remove_tree(dir), 0);
}

/* Power lost while the last batch was written: any part of it came to disk as zeros. What stood before the hole goes on. */
static void test_torn_out_of_order(void **state)
{
	char dir[256], path[300], *text = NULL, *copy;
	(void)state;
	tw_temp_dir(dir);
	path_in(dir, path);
	write_all(path);
	assert_int_equal(fs_read_text(path, 1 << 20, &text), 0);
	size_t len = strlen(text);
	int first = (N - 1) / BATCH * BATCH;
	size_t last = line_start(text, first);
	assert_non_null(copy = malloc(len));
	for (int hole = first; hole < N; hole++) {
		memcpy(copy, text, len);
		size_t from = line_start(text, hole), to = from + 30 < len ? from + 30 : len;
		memset(copy + from, 0, to - from);
		put_back(path, copy, len);
		assert_int_equal(opens(path), hole);
	}
	memset(copy, 0, len);
	memcpy(copy, text, last);
	put_back(path, copy, len); /* none of it came */
	assert_int_equal(opens(path), first);
	/* the same hole in an older program's journal, which does not say where batches begin */
	for (size_t i = 0; i < len; i++)
		if (text[i] == '@')
			text[i] = '#';
	put_back(path, text, len);
	assert_int_equal(opens(path), N);
	memset(text + last, 0, 10);
	put_back(path, text, len);
	assert_int_equal(opens(path), -1);
	free(copy);
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

/* Two writers would write over one another, and the second would cut what the first is about to write: it is refused and
 * changes nothing. Readers may come; when the first is gone, the next is let in. */
static void test_one_writer(void **state)
{
	char dir[256], path[300], *before = NULL, *after = NULL;
	struct journal *other = NULL;
	struct errtext e = {""};
	const struct journal_entry x = {.kind = J_STEP, .number = 5};
	(void)state;
	tw_temp_dir(dir);
	path_in(dir, path);
	write_all(path);
	struct journal *j = open_ok(path, false);
	FILE *f = fopen(path, "ab"); /* as if it were in the middle of a write */
	assert_non_null(f);
	assert_true(fputs("step 1", f) >= 0);
	(void)fclose(f);
	assert_int_equal(fs_read_text(path, 1 << 20, &before), 0);
	assert_int_equal(journal_open(path, false, NULL, &other, &e), -EBUSY);
	assert_non_null(strstr(e.text, "in use by another redraft-learn"));
	assert_int_equal(fs_read_text(path, 1 << 20, &after), 0);
	assert_string_equal(before, after);
	other = open_ok(path, true);
	assert_int_equal(count(other, true), N);
	journal_close(other);
	assert_int_equal(journal_append(j, &x), 0);
	assert_int_equal(journal_sync(j), 0);
	journal_close(j);
	j = open_ok(path, false);
	assert_int_equal(count(j, false), N + 1);
	journal_close(j);
	free(before);
	free(after);
	assert_int_equal(fs_remove_tree(dir), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_kinds), cmocka_unit_test(test_torn), cmocka_unit_test(test_damaged), cmocka_unit_test(test_torn_out_of_order), cmocka_unit_test(test_cut),
					   cmocka_unit_test(test_one_writer)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
