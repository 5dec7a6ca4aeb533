/* Configuration: precedence default < file < environment < flag; an unknown key or
 * flag is named with the nearest right one; types and ranges are checked with the
 * place they came from; nothing is owned after an error.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>
#include "daemon/base/conf.h"
#include "daemon/base/fs.h"

struct conf {
	char *model, *listen;
	int64_t topk;
	double sample;
	bool hidden;
	int isa;
};

static const struct conf_entry entries[] = {
	{"model", CONF_STRING, offsetof(struct conf, model), NULL, 0, 0, NULL, false, "", "Target model."},
	{"listen", CONF_STRING, offsetof(struct conf, listen), "127.0.0.1:8080", 0, 0, NULL, false, "", "HTTP address."},
	{"capture.topk", CONF_INT, offsetof(struct conf, topk), "64", 1, 256, NULL, true, "", "Teacher depth."},
	{"capture.sample", CONF_REAL, offsetof(struct conf, sample), "1.0", 0, 1, NULL, true, "", "Share captured."},
	{"capture.prompt_hidden", CONF_BOOL, offsetof(struct conf, hidden), "off", 0, 0, NULL, true, "", "Prompt states."},
	{"isa", CONF_ENUM, offsetof(struct conf, isa), "auto", 0, 0, "auto|portable|avx2", false, "", "Kernels."},
	{0},
};
static const struct conf_program program = {.name = "redraft-test", .summary = "A test.", .entries = entries, .struct_size = sizeof(struct conf)};

static int load(struct conf *c, struct errtext *e, const char *const *args)
{
	char *argv[32] = {(char *)(uintptr_t)"redraft-test"};
	int argc = 1;

	for (; args[argc - 1]; argc++)
		argv[argc] = (char *)(uintptr_t)args[argc - 1];
	e->text[0] = '\0';
	return conf_load(&program, argc, argv, c, NULL, 0, NULL, e);
}
#define LOAD(c, e, ...) load(c, e, (const char *const[]){__VA_ARGS__, NULL})

static char *ini(const char *text)
{
	static char path[64];

	snprintf(path, sizeof path, "/tmp/redraft-test-conf-%d.ini", (int)getpid());
	assert_int_equal(fs_write_atomic(path, text, strlen(text)), 0);
	return path;
}

static void defaults_and_flags(void **state)
{
	struct conf c;
	struct errtext e;

	(void)state;
	assert_int_equal(LOAD(&c, &e, "--model", "m.gguf"), 0);
	assert_string_equal(c.model, "m.gguf");
	assert_string_equal(c.listen, "127.0.0.1:8080");
	assert_int_equal(c.topk, 64);
	assert_true(c.sample == 1.0);
	assert_false(c.hidden);
	assert_int_equal(c.isa, 0);
	conf_done(&program, &c);
	conf_done(&program, &c);
	assert_int_equal(LOAD(&c, &e, "--model=a=b", "--capture.prompt-hidden", "--isa", "avx2", "--capture.topk=3"), 0);
	assert_string_equal(c.model, "a=b");
	assert_true(c.hidden);
	assert_int_equal(c.isa, 2);
	assert_int_equal(c.topk, 3);
	conf_done(&program, &c);
	assert_int_equal(LOAD(&c, &e, "--model", "m", "--capture.prompt_hidden", "on", "--capture.prompt_hidden=off"), 0);
	assert_false(c.hidden);
	conf_done(&program, &c);
}

static void precedence(void **state)
{
	struct conf c;
	struct errtext e;
	char *path = ini("# comment\nmodel = file.gguf\n\n[capture]\ntopk = 10\nsample = 0.25\nprompt_hidden = yes\n"
			 "[]\nlisten = \" spaced \"\n");

	(void)state;
	assert_int_equal(LOAD(&c, &e, "--config", path), 0);
	assert_string_equal(c.model, "file.gguf");
	assert_string_equal(c.listen, " spaced ");
	assert_int_equal(c.topk, 10);
	assert_true(c.hidden);
	conf_done(&program, &c);
	setenv("REDRAFT_TEST_CAPTURE_TOPK", "20", 1);
	setenv("REDRAFT_TEST_CAPTURE_SAMPLE", "0.5", 1);
	assert_int_equal(LOAD(&c, &e, "--capture.topk", "30", "--config", path), 0); /* order on the line is no matter */
	assert_int_equal(c.topk, 30);
	assert_true(c.sample == 0.5);
	conf_done(&program, &c);
	unsetenv("REDRAFT_TEST_CAPTURE_TOPK");
	unsetenv("REDRAFT_TEST_CAPTURE_SAMPLE");
	unlink(path);
}

static void expect(int r, const struct errtext *e, int want, const char *text)
{
	if (r != want || !strstr(e->text, text))
		fail_msg("%d \"%s\", expected %d \"%s\"", r, e->text, want, text);
}

static void unknown_names(void **state)
{
	struct conf c;
	struct errtext e;
	char *path;

	(void)state;
	expect(LOAD(&c, &e, "--modle", "x"), &e, -EINVAL, "--modle is unknown; did you mean --model?");
	expect(LOAD(&c, &e, "--capture.tokp=1"), &e, -EINVAL, "did you mean --capture.topk?");
	expect(LOAD(&c, &e, "--topk", "1"), &e, -EINVAL, "did you mean --capture.topk?");
	expect(LOAD(&c, &e, "--confg", "f"), &e, -EINVAL, "did you mean --config?");
	expect(LOAD(&c, &e, "--zzzzzzzzz"), &e, -EINVAL, "redraft-test --help lists");
	expect(LOAD(&c, &e, "-m"), &e, -EINVAL, "-m is unknown");
	expect(LOAD(&c, &e, "--model", "m", "stray"), &e, -EINVAL, "stray");
	expect(LOAD(&c, &e, "--model"), &e, -EINVAL, "--model needs a value");
	assert_null(c.model);
	path = ini("model = m\n[capture]\nsampel = 1\n");
	expect(LOAD(&c, &e, "--config", path), &e, -EINVAL, ".ini:3: capture.sampel is unknown; did you mean capture.sample?");
	path = ini("model = m\nmodel = n\n");
	expect(LOAD(&c, &e, "--config", path), &e, -EINVAL, ":2: model is set twice");
	path = ini("model m\n");
	expect(LOAD(&c, &e, "--config", path), &e, -EINVAL, ":1: expected key = value");
	unlink(path);
	expect(LOAD(&c, &e, "--config", path), &e, -ENOENT, "configuration file");
	setenv("REDRAFT_TEST_MODLE", "m", 1);
	expect(LOAD(&c, &e, "--model", "m"), &e, -EINVAL, "REDRAFT_TEST_MODLE: modle is unknown; did you mean model?");
	unsetenv("REDRAFT_TEST_MODLE");
}

static void values(void **state)
{
	struct conf c;
	struct errtext e;

	(void)state;
	expect(LOAD(&c, &e, "--listen", "x"), &e, -EINVAL, "model is required");
	assert_null(c.listen); /* given back */
	expect(LOAD(&c, &e, "--model", "m", "--capture.topk", "0"), &e, -ERANGE, "allowed is 1 to 256");
	expect(LOAD(&c, &e, "--model", "m", "--capture.topk", "257"), &e, -ERANGE, "--capture.topk");
	expect(LOAD(&c, &e, "--model", "m", "--capture.topk", "99999999999999999999"), &e, -ERANGE, "range");
	expect(LOAD(&c, &e, "--model", "m", "--capture.topk", "1.5"), &e, -EINVAL, "not a whole number");
	expect(LOAD(&c, &e, "--model", "m", "--capture.topk="), &e, -EINVAL, "not a whole number");
	expect(LOAD(&c, &e, "--model", "m", "--capture.sample", "nan"), &e, -EINVAL, "not a number");
	expect(LOAD(&c, &e, "--model", "m", "--capture.sample", "1.01"), &e, -ERANGE, "0 to 1");
	expect(LOAD(&c, &e, "--model", "m", "--capture.prompt_hidden=maybe"), &e, -EINVAL, "neither on nor off");
	expect(LOAD(&c, &e, "--model", "m", "--isa", "avx"), &e, -EINVAL, "none of auto|portable|avx2");
}

static void positionals(void **state)
{
	char *argv[] = {(char *)(uintptr_t)"p", (char *)(uintptr_t)"init", (char *)(uintptr_t)"--model",
			(char *)(uintptr_t)"m", (char *)(uintptr_t)"--", (char *)(uintptr_t)"--x"};
	const char *pos[2];
	struct conf c;
	struct errtext e;
	int n = -1;

	(void)state;
	assert_int_equal(conf_load(&program, 6, argv, &c, pos, 2, &n, &e), 0);
	assert_int_equal(n, 2);
	assert_string_equal(pos[0], "init");
	assert_string_equal(pos[1], "--x");
	conf_done(&program, &c);
	assert_int_equal(conf_load(&program, 6, argv, &c, pos, 1, &n, &e), -EINVAL);
	assert_non_null(strstr(e.text, "at most 1 argument"));
}

static void show_and_help(void **state)
{
	struct conf c;
	struct errtext e;
	json_t *j;
	char *text = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&text, &n);

	(void)state;
	assert_int_equal(LOAD(&c, &e, "--model", "m", "--isa=portable"), 0);
	j = conf_show(&program, &c);
	assert_string_equal(json_string_value(json_object_get(json_object_get(j, "isa"), "value")), "portable");
	assert_int_equal(json_integer_value(json_object_get(json_object_get(j, "capture.topk"), "value")), 64);
	json_decref(j);
	conf_done(&program, &c);
	assert_int_equal(LOAD(&c, &e, "--model", "sasl.username=me,sasl.password=one,ssl.key.password = two,sasl.oauthbearer.client.secret=three,linger.ms=5"), 0);
	j = conf_show(&program, &c);
	assert_string_equal(json_string_value(json_object_get(json_object_get(j, "model"), "value")),
			    "sasl.username=me,sasl.password=***,ssl.key.password =***,sasl.oauthbearer.client.secret=***,linger.ms=5");
	json_decref(j);
	conf_done(&program, &c);
	conf_print_help(&program, f);
	fclose(f);
	for (const struct conf_entry *en = entries; en->key; en++)
		assert_non_null(strstr(text, en->key));
	assert_non_null(strstr(text, "auto|portable|avx2"));
	assert_non_null(strstr(text, "REDRAFT_TEST_KEY"));
	free(text);
}

/* Where versions are something else, --version 12 names one, and --version alone is no question: the number is missing. The help says it once. */
static void a_key_called_version(void **state)
{
	static const struct conf_entry of[] = {{"version", CONF_INT, 0, "0", 0, 100, NULL, false, "", "Version of the store."}, {0}};
	const struct conf_program p = {.name = "redraft-test", .summary = "A test.", .entries = of, .struct_size = sizeof(int64_t)};
	char *argv[] = {(char *)(uintptr_t)"redraft-test", (char *)(uintptr_t)"--version", (char *)(uintptr_t)"12"}, *text = NULL, *first;
	size_t size = 0;
	FILE *out = open_memstream(&text, &size);
	struct errtext e;
	int64_t version = 0;

	(void)state;
	assert_int_equal(conf_load(&p, 3, argv, &version, NULL, 0, NULL, &e), 0);
	assert_int_equal(version, 12);
	assert_int_equal(conf_load(&p, 2, argv, &version, NULL, 0, NULL, &e), -EINVAL);
	assert_non_null(strstr(e.text, "--version needs a value"));
	argv[2] = (char *)(uintptr_t)"--check";
	assert_int_equal(conf_load(&p, 3, argv, &version, NULL, 0, NULL, &e), -EINVAL);
	assert_non_null(out);
	conf_print_help(&p, out);
	assert_int_equal(fclose(out), 0);
	first = strstr(text, "--version");
	assert_non_null(first);
	assert_null(strstr(first + 1, "--version"));
	free(text);
}

static void nearest(void **state)
{
	static const char *const verbs[] = {"status", "versions", "show", "promote", "rollback", "pin", "unpin", NULL};

	(void)state;
	assert_string_equal(conf_nearest("rolback", verbs), "rollback");
	assert_string_equal(conf_nearest("stauts", verbs), "status");
	assert_string_equal(conf_nearest("pni", verbs), "pin");
	assert_null(conf_nearest("frobnicate", verbs));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(defaults_and_flags), cmocka_unit_test(precedence),
					   cmocka_unit_test(unknown_names), cmocka_unit_test(values),
					   cmocka_unit_test(positionals), cmocka_unit_test(show_and_help),
					   cmocka_unit_test(nearest), cmocka_unit_test(a_key_called_version)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
