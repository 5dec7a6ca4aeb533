/* Items come out whole and in order whatever stands inside them; a list cut in mid-string gives all that was whole
 * and says it was cut; what is too large or no JSON is skipped and counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "tests/bench/load/json_list.h"

static char path[64];

static int open_text(const char *text, size_t max, struct json_list **l, struct errtext *e)
{
	FILE *f = fopen(path, "we");

	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	(void)fclose(f);
	return json_list_open(path, max, l, e);
}

/* The items, dumped and joined by spaces; the last return value. */
static int all(const char *text, size_t max, char *out, size_t size, long *skipped)
{
	struct json_list *l = NULL;
	json_t *j;
	int r;

	assert_int_equal(open_text(text, max, &l, NULL), 0);
	*out = 0;
	while ((r = json_list_next(l, &j, NULL)) == 0) {
		char *t = json_dumps(j, JSON_COMPACT | JSON_ENCODE_ANY);
		assert_true(strlen(out) + strlen(t) + 2 < size);
		strcat(strcat(out, t), " ");
		free(t);
		json_decref(j);
	}
	*skipped = json_list_skipped(l);
	assert_int_equal(json_list_next(l, &j, NULL), r); /* and so it stays */
	json_list_close(l);
	return r;
}

static void test_items(void **state)
{
	char out[512];
	long skipped;

	(void)state;
	assert_int_equal(all(" [ {\"a\":\"],}[{\\\"\\\\\"} , [1,[2]],\n3, \"x,y]\" ] ", 100, out, sizeof out, &skipped), JSON_LIST_END);
	assert_string_equal(out, "{\"a\":\"],}[{\\\"\\\\\"} [1,[2]] 3 \"x,y]\" ");
	assert_int_equal(skipped, 0);
	assert_int_equal(all("[]", 100, out, sizeof out, &skipped), JSON_LIST_END);
	assert_string_equal(out, "");
}

static void test_cut(void **state)
{
	static const char whole[] = "[{\"a\":1},{\"b\":\"text\"}";
	char text[64], out[256];
	long skipped;

	(void)state;
	for (size_t n = 1; n < sizeof whole; n++) { /* cut anywhere */
		(void)snprintf(text, sizeof text, "%.*s", (int)n, whole);
		assert_int_equal(all(text, 100, out, sizeof out, &skipped), JSON_LIST_CUT);
		assert_string_equal(out, n >= 9 ? "{\"a\":1} " : "");
	}
}

static void test_skipped(void **state)
{
	char out[256];
	long skipped;

	(void)state;
	assert_int_equal(all("[\"0123456789\",1,{bad},2]", 8, out, sizeof out, &skipped), JSON_LIST_END);
	assert_string_equal(out, "1 2 ");
	assert_int_equal(skipped, 2);
}

static void test_no_list(void **state)
{
	struct json_list *l = NULL;
	struct errtext e = {0};

	(void)state;
	assert_int_equal(open_text("{\"a\":1}", 100, &l, &e), -EINVAL);
	assert_non_null(strstr(e.text, "list"));
	(void)unlink(path);
	assert_int_equal(json_list_open(path, 100, &l, &e), -ENOENT);
	assert_null(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_items),
		cmocka_unit_test(test_cut),
		cmocka_unit_test(test_skipped),
		cmocka_unit_test(test_no_list),
	};
	(void)snprintf(path, sizeof path, "/tmp/redraft-list-%d", (int)getpid());
	return cmocka_run_group_tests(tests, NULL, NULL);
}
