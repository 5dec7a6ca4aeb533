/* A reload takes all or nothing: reloadable keys that changed are applied and kept, others are
 * named and left; a bad file, a broken rule or an apply that refuses leaves the old as it was.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "daemon/base/fs.h"
#include "daemon/base/reload.h"

struct conf {
	char *model, *names;
	int64_t k;
	double share;
	bool on;
};

static const struct conf_entry entries[] = {
	{"model", CONF_STRING, offsetof(struct conf, model), "m", 0, 0, NULL, false, "", "The model."},
	{"names", CONF_STRING, offsetof(struct conf, names), "a,b", 0, 0, NULL, true, "", "Names."},
	{"draft.k", CONF_INT, offsetof(struct conf, k), "3", 1, 8, NULL, true, "", "Length."},
	{"draft.share", CONF_REAL, offsetof(struct conf, share), "1", 0, 1, NULL, true, "", "Share."},
	{"draft.on", CONF_BOOL, offsetof(struct conf, on), "off", 0, 0, NULL, false, "", "Switch."},
	{0},
};

static int check(const void *conf, struct errtext *e)
{
	const struct conf *c = conf;

	return strchr(c->names, '!') ? errtext_set(e, -EINVAL, "names: no exclamation marks") : 0;
}

static const struct conf_program program = {.name = "redraft-test", .summary = "A test.", .entries = entries, .struct_size = sizeof(struct conf), .check = check};

static char path[64];

static struct {
	int times, fail;
	int64_t k;
} applied;

static int apply(void *arg, const void *fresh, struct errtext *e)
{
	(void)arg;
	if (applied.fail)
		return errtext_set(e, -EAGAIN, "not now");
	applied.times++;
	applied.k = ((const struct conf *)fresh)->k;
	return 0;
}

static void file(const char *text)
{
	assert_int_equal(fs_write_atomic(path, text, strlen(text)), 0);
}

static void all_or_nothing(void **state)
{
	char *argv[] = {(char *)(uintptr_t)"redraft-test", (char *)(uintptr_t)"--config", path};
	struct conf c;
	struct reload r = {.program = &program, .argc = 3, .argv = argv, .conf = &c, .apply = apply};
	struct metrics *m = metrics_new();
	struct buf b = BUF_INIT(0);
	struct errtext e = {""};

	(void)state;
	reload_count(&r, m);
	file("names = x,y\n[draft]\nk = 2\n");
	assert_int_equal(conf_load(&program, 3, argv, &c, NULL, 0, NULL, &e), 0);
	assert_int_equal(reload_now(&r, &e), 0);
	assert_int_equal(applied.times, 0); /* nothing differs */

	file("names = z\nmodel = other\n[draft]\nk = 5\non = on\n");
	assert_int_equal(reload_now(&r, &e), 0);
	assert_int_equal(applied.times, 1);
	assert_int_equal(applied.k, 5);
	assert_int_equal(c.k, 5);
	assert_string_equal(c.names, "z");
	assert_string_equal(c.model, "m"); /* waits for a restart */
	assert_false(c.on);
	assert_non_null(strstr(e.text, "names, draft.k"));
	assert_non_null(strstr(e.text, "restart: model, draft.on"));

	file("names = good\n[draft]\nk = 99\n");
	assert_int_equal(reload_now(&r, &e), -ERANGE);
	file("names = bad!\n[draft]\nk = 4\n");
	assert_int_equal(reload_now(&r, &e), -EINVAL);
	assert_non_null(strstr(e.text, "exclamation"));
	file("nmaes = q\n");
	assert_true(reload_now(&r, &e) < 0);
	assert_non_null(strstr(e.text, "names"));
	unlink(path);
	assert_int_equal(reload_now(&r, &e), -ENOENT);
	applied.fail = 1;
	file("[draft]\nk = 1\n");
	assert_int_equal(reload_now(&r, &e), -EAGAIN);
	assert_int_equal(c.k, 5);
	assert_string_equal(c.names, "z");
	assert_int_equal(applied.times, 1);
	assert_int_equal(r.refused, 5);
	assert_int_equal(metrics_print(m, &b), 0);
	assert_int_equal(buf_append(&b, "", 1), 0);
	assert_non_null(strstr((char *)b.data, "redraft_reloads_total{result=\"done\"} 2\n"));
	assert_non_null(strstr((char *)b.data, "redraft_reloads_total{result=\"refused\"} 5\n"));
	buf_done(&b);
	metrics_free(m);
	conf_done(&program, &c);
	unlink(path);
}

/* What --print_config writes is a good file of the defaults, also with every # taken away. */
static void printed_config_is_read(void **state)
{
	char *argv[] = {(char *)(uintptr_t)"redraft-test", (char *)(uintptr_t)"--config", path}, *text = NULL, *at;
	struct conf a, b;
	struct errtext e = {""};
	char differ[64];
	FILE *f = fopen(path, "w");

	(void)state;
	assert_non_null(f);
	conf_print_config(&program, f);
	fclose(f);
	assert_int_equal(conf_load(&program, 3, argv, &a, NULL, 0, NULL, &e), 0);
	assert_int_equal(fs_read_text(path, 1 << 16, &text), 0);
	while ((at = strstr(text, "\n#"))) {
		if (at[2] == ' ')
			at[1] = ';'; /* prose stays a comment */
		else
			at[1] = ' ';
	}
	file(text);
	assert_int_equal(conf_load(&program, 3, argv, &b, NULL, 0, NULL, &e), 0);
	assert_int_equal(conf_differing(&program, &a, &b, true, differ, sizeof differ), 0);
	assert_int_equal(conf_differing(&program, &a, &b, false, differ, sizeof differ), 0);
	free(text);
	conf_done(&program, &a);
	conf_done(&program, &b);
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(all_or_nothing), cmocka_unit_test(printed_config_is_read)};

	snprintf(path, sizeof path, "/tmp/redraft-test-reload-%d.conf", (int)getpid());
	return cmocka_run_group_tests(tests, NULL, NULL);
}
