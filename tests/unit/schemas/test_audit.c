/* The audit chain: what was sealed reads back whole, over several files; a line changed, taken out, put in or moved
 * is named with its place; a piece at the end is torn, not broken; an appended line goes on from the last whole one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "daemon/base/fs.h"
#include "schemas/audit.h"

static char dir[64];
static struct buf lines;
static size_t start[8]; /* of each line */

static int setup(void **state)
{
	struct audit_head head = {0};

	(void)state;
	snprintf(dir, sizeof dir, "/tmp/redraft-audit-XXXXXX");
	assert_non_null(mkdtemp(dir));
	lines = BUF_INIT(0);
	for (int i = 0; i < 6; i++) {
		json_t *j = json_pack("{s:s, s:i}", "what", "Hold", "n", i);

		start[i] = lines.len;
		assert_int_equal(audit_seal(j, &head, &lines), 0);
		json_decref(j);
	}
	start[6] = lines.len;
	assert_int_equal(head.seq, 6);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	buf_done(&lines);
	assert_int_equal(fs_remove_tree(dir), 0);
	return 0;
}

static void put(const char *name, const void *p, size_t n)
{
	char path[128];

	snprintf(path, sizeof path, "%s/%s", dir, name);
	assert_int_equal(fs_write_atomic(path, p, n), 0);
}

static struct audit_seen look(void)
{
	struct errtext e = {""};
	struct audit_seen s;

	assert_int_equal(audit_read(dir, &s, NULL, NULL, &e), 0);
	return s;
}

static void test_whole(void **state)
{
	struct audit_seen s = look();

	(void)state;
	assert_true(s.files == 0 && s.lines == 0 && !s.broken); /* nothing there */
	put("audit.2", lines.data, start[2]);
	put("audit.1", lines.data + start[2], start[4] - start[2]);
	put("audit.log", lines.data + start[4], start[6] - start[4]);
	s = look();
	assert_true(s.files == 3 && s.lines == 6 && s.first == 1 && s.head.seq == 6 && !s.broken && !s.torn);
	assert_int_equal(s.whole, (int64_t)(start[6] - start[4]));
	for (size_t most = 0; most <= 8; most++) { /* the last of them, over all files */
		struct errtext e = {""};
		json_t *records, *reply;

		assert_int_equal(audit_last(dir, most, &s, &records, &e), 0);
		assert_int_equal(json_array_size(records), most < 6 ? most : 6);
		assert_int_equal(json_integer_value(json_object_get(json_array_get(records, json_array_size(records) - 1), "n")), most ? 5 : 0);
		reply = audit_reply(&s, records);
		assert_true(json_is_true(json_object_get(reply, "whole")) && json_object_get(reply, "records") == records);
		json_decref(reply);
	}
}

static void test_every_byte_counts(void **state)
{
	uint8_t *copy = malloc(lines.len);

	(void)state;
	for (size_t i = 0; i < start[5]; i++) { /* in the last line only a later one would tell */
		struct audit_seen s;

		memcpy(copy, lines.data, lines.len);
		copy[i] ^= 1;
		put("audit.log", copy, lines.len);
		s = look();
		if (!s.broken)
			fail_msg("byte %zu was changed and nothing is found", i);
		assert_true(s.what[0]);
	}
	free(copy);
}

static void test_lines_out_in_and_moved(void **state)
{
	struct buf b = BUF_INIT(0);
	struct audit_seen s;

	(void)state;
	assert_int_equal(buf_append(&b, lines.data, start[2]), 0);
	assert_int_equal(buf_append(&b, lines.data + start[3], start[6] - start[3]), 0); /* line 3 is out */
	put("audit.log", b.data, b.len);
	s = look();
	assert_int_equal(s.broken, 1);
	assert_non_null(strstr(s.what, "line 3"));
	buf_clear(&b);
	assert_int_equal(buf_append(&b, lines.data, start[3]), 0);
	assert_int_equal(buf_append(&b, lines.data + start[2], start[6] - start[2]), 0); /* line 3 twice */
	put("audit.log", b.data, b.len);
	assert_int_equal(look().broken, 1);
	put("audit.1", lines.data, start[2]); /* the file between is gone */
	put("audit.log", lines.data + start[4], start[6] - start[4]);
	s = look();
	assert_int_equal(s.broken, 1);
	assert_non_null(strstr(s.what, "audit.log, line 1"));
	buf_done(&b);
}

static void test_torn_and_appended(void **state)
{
	json_t *j = json_pack("{s:s}", "what", "Restore");
	struct errtext e = {""};
	struct audit_seen s;

	(void)state;
	for (size_t n = start[5] + 1; n < start[6]; n += 7) {
		put("audit.log", lines.data, n);
		s = look();
		assert_true(s.torn && !s.broken && s.lines == 5 && s.whole == (int64_t)start[5]);
	}
	assert_int_equal(audit_append(dir, j, &e), 0);
	s = look();
	assert_true(!s.torn && !s.broken && s.lines == 6 && s.head.seq == 6);
	json_decref(j);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_whole, setup, teardown),
		cmocka_unit_test_setup_teardown(test_every_byte_counts, setup, teardown),
		cmocka_unit_test_setup_teardown(test_lines_out_in_and_moved, setup, teardown),
		cmocka_unit_test_setup_teardown(test_torn_and_appended, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
