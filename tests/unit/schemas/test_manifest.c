/* What this proves: manifest and state survive the disk exactly; an empty store is
 * -ENOENT; a damaged, foreign or self-contradicting state is refused whole and leaves
 * the caller's copy alone; a fingerprint cannot name a path outside the store. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/base/fs.h"
#include "schemas/manifest.h"

static char dir[] = "/tmp/redraft-test-manifest-XXXXXX";

static int setup(void **state)
{
	(void)state;
	return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	return fs_remove_tree(dir);
}

static void test_manifest(void **state)
{
	(void)state;
	struct manifest m = {.number = 12,
			     .parent = 11,
			     .target_fp = "aa",
			     .draft_fp = "bb",
			     .weights_sha = "cc",
			     .model_sha = "dd",
			     .config_sha = "ee",
			     .created = "2024-01-02T03:04:05Z"},
			d;
	struct errtext e = {""};

	assert_int_equal(manifest_read(dir, &d, &e), -ENOENT);
	assert_int_equal(manifest_write(dir, &m, &e), 0); /* without cut and training */
	assert_int_equal(manifest_read(dir, &d, &e), 0);
	assert_null(d.cut);
	manifest_done(&d);
	m.cut = json_pack("{s:s, s:{s:i}}", "cluster", "xyz", "partitions", "0", 1234);
	m.training = json_pack("{s:f}", "loss", 0.5);
	assert_int_equal(manifest_write(dir, &m, &e), 0);
	assert_int_equal(manifest_read(dir, &d, &e), 0);
	assert_int_equal(memcmp(&d, &m, offsetof(struct manifest, cut)), 0);
	assert_string_equal(d.created, m.created);
	assert_true(json_equal(d.cut, m.cut) && json_equal(d.training, m.training));
	manifest_done(&d);
	manifest_done(&d);
	m.weights_sha[0] = 0; /* a manifest that proves nothing */
	assert_int_equal(manifest_write(dir, &m, &e), 0);
	assert_int_equal(manifest_read(dir, &d, &e), -EINVAL);
	assert_non_null(strstr(e.text, "weights_sha"));
	manifest_done(&m);
}

static struct store_state sample(struct version_entry v[3])
{
	struct store_state s = {.generation = 99,
				.next_number = 8,
				.live = 5,
				.previous = 3,
				.base = 3,
				.pin = 5,
				.hold = true,
				.n_versions = 3,
				.versions = v};
	const enum version_state st[3] = {VS_PREVIOUS, VS_LIVE, VS_CANARY};

	memset(v, 0, 3 * sizeof *v);
	for (int i = 0; i < 3; i++) {
		v[i].number = (uint32_t)(3 + 2 * i);
		v[i].state = st[i];
	}
	strcpy(v[2].reason, "10 \"permille\"");
	s.canary.version = 7;
	s.canary.permille = 10;
	strcpy(s.canary.salt, "salty");
	strcpy(s.canary.since, "2024-01-02T03:04:05Z");
	return s;
}

static void test_state(void **state)
{
	(void)state;
	struct version_entry v[3];
	struct store_state s = sample(v), d = {.live = 77}, c;
	struct errtext e = {""};

	assert_int_equal(store_state_read(dir, &d, &e), -ENOENT);
	assert_int_equal(store_state_write(dir, &s, &e), 0);
	assert_int_equal(store_state_read(dir, &d, &e), 0);
	assert_true(d.generation == 99 && d.next_number == 8 && d.live == 5 && d.previous == 3 && d.base == 3 && d.pin == 5 && d.hold &&
		    !d.paused);
	assert_int_equal(memcmp(&d.canary, &s.canary, sizeof d.canary), 0);
	assert_int_equal(d.n_versions, 3);
	assert_memory_equal(d.versions, v, sizeof v);
	assert_int_equal(store_state_copy(&c, &d), 0);
	store_state_done(&d);
	assert_memory_equal(c.versions, v, sizeof v);
	store_state_done(&c);
	struct store_state none = {.next_number = 1};
	assert_int_equal(store_state_write(dir, &none, &e), 0);
	assert_int_equal(store_state_read(dir, &d, &e), 0);
	assert_int_equal(d.n_versions, 0);
	store_state_done(&d);
}

static void test_contradictions(void **state)
{
	(void)state;
	struct version_entry v[3];
	struct errtext e = {""};

	for (int which = 0; which < 7; which++) {
		struct store_state s = sample(v);
		switch (which) {
		case 0:
			s.live = 4;
			break;
		case 1:
			s.previous = 9;
			break;
		case 2:
			s.pin = 1;
			break;
		case 3:
			s.canary.version = 6;
			break;
		case 4:
			v[1].number = 3;
			break;
		case 5:
			s.next_number = 7;
			break;
		case 6:
			s.base = 2;
			break;
		}
		assert_int_equal(store_state_write(dir, &s, &e), -EINVAL);
	}
}

static void put(const char *text)
{
	char path[PATH_MAX];

	(void)snprintf(path, sizeof path, "%s/state.json", dir);
	assert_int_equal(fs_write_atomic(path, text, strlen(text)), 0);
}

static void test_damage(void **state)
{
	(void)state;
	struct version_entry v[3];
	struct store_state s = sample(v), d = {.live = 77};
	struct errtext e = {""};
	char path[PATH_MAX], *text;

	assert_int_equal(store_state_write(dir, &s, &e), 0);
	(void)snprintf(path, sizeof path, "%s/state.json", dir);
	assert_int_equal(fs_read_text(path, 1 << 20, &text), 0);
	for (size_t n = strlen(text); n-- > 1;) { /* every torn prefix */
		char keep = text[n];
		if (keep == '\n' || n + 1 == strlen(text))
			continue;
		text[n] = 0;
		if (n % 7 == 0) {
			put(text);
			assert_int_equal(store_state_read(dir, &d, &e), -EINVAL);
		}
		text[n] = keep;
	}
	free(text);
	static const char *const bad[] = {"", "[]", "{}", "{\"schema\":2}", "{\"schema\":1,\"generation\":-1}"};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		put(bad[i]);
		assert_int_equal(store_state_read(dir, &d, &e), -EINVAL);
	}
	assert_int_equal(d.live, 77);
}

static void test_names_and_paths(void **state)
{
	(void)state;
	enum version_state st;
	char p[PATH_MAX];

	for (int i = 0; i < VS_N; i++) {
		assert_int_equal(version_state_parse(version_state_name((enum version_state)i), &st), 0);
		assert_int_equal(st, i);
	}
	assert_int_equal(version_state_parse("alive", &st), -EINVAL);
	assert_int_equal(store_version_dir("/s", 42, p, sizeof p), 0);
	assert_string_equal(p, "/s/versions/42");
	assert_int_equal(store_version_dir("/s", 42, p, 8), -ENAMETOOLONG);
	assert_int_equal(store_frozen_file("/s", "abc", p, sizeof p), 0);
	assert_string_equal(p, "/s/frozen/abc/frozen.safetensors");
	assert_int_equal(store_frozen_file("/s", "../x", p, sizeof p), -EINVAL);
	assert_int_equal(store_frozen_file("/s", "", p, sizeof p), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_manifest), cmocka_unit_test(test_state),           cmocka_unit_test(test_contradictions),
		cmocka_unit_test(test_damage),   cmocka_unit_test(test_names_and_paths),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
