/* Credentials: read from the manager's folder only; settings of librdkafka come from the
 * configuration and then from the credential, and a broken line does not show its secret.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "daemon/base/credential.h"
#include "daemon/base/fs.h"

static char folder[64], seen[256];

static int note(void *arg, const char *key, const char *value, struct errtext *e)
{
	(void)arg;
	if (!strcmp(key, "bad"))
		return errtext_set(e, -EINVAL, "bad");
	snprintf(seen + strlen(seen), sizeof seen - strlen(seen), "%s=%s;", key, value);
	return 0;
}

static void put(const char *name, const char *text)
{
	char path[128];

	snprintf(path, sizeof path, "%s/%s", folder, name);
	assert_int_equal(fs_write_atomic(path, text, strlen(text)), 0);
}

static int settings(const char *extra, struct errtext *e)
{
	seen[0] = '\0';
	return kafka_settings(extra, "capture.conf", note, NULL, e);
}

static void from_both(void **state)
{
	struct errtext e = {""};
	char *text = NULL;

	(void)state;
	unsetenv("CREDENTIALS_DIRECTORY");
	assert_int_equal(credential_read("tenant_key", 64, &text), -ENOENT);
	assert_int_equal(settings("a=1, b = 2,", &e), 0);
	assert_string_equal(seen, "a=1;b=2;");
	assert_int_equal(settings(NULL, &e), 0);
	setenv("CREDENTIALS_DIRECTORY", folder, 1);
	assert_int_equal(settings("a=1", &e), 0); /* a folder without it */
	put("kafka.conf", "# secret\nsasl.username = me\n\n  sasl.password = p,w=x \r\n");
	assert_int_equal(settings("a=1", &e), 0);
	assert_string_equal(seen, "a=1;sasl.username=me;sasl.password=p,w=x;");
	put("kafka.conf", "sasl.username=me\nhunter2\n");
	assert_int_equal(settings("", &e), -EINVAL);
	assert_non_null(strstr(e.text, "number 2"));
	assert_null(strstr(e.text, "hunter2"));
	assert_int_equal(settings("bad=1", &e), -EINVAL);
	put("tenant_key", "0123456789abcdef");
	assert_int_equal(credential_read("tenant_key", 64, &text), 0);
	assert_string_equal(text, "0123456789abcdef");
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(from_both)};
	int r;

	snprintf(folder, sizeof folder, "/tmp/redraft-test-credential-XXXXXX");
	if (!mkdtemp(folder))
		return 1;
	r = cmocka_run_group_tests(tests, NULL, NULL);
	return fs_remove_tree(folder) < 0 || r;
}
