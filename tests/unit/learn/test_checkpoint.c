/* A checkpoint comes back whole or not at all: damage anywhere is noticed and the
 * one before is taken; two are kept. */
#include "tests/unit/learn/toyworld.h"
#include <dirent.h>
#include "learn/checkpoint.h"

enum { P = 300, M = 600, VD = 20, V = 50 };

static void fill(struct checkpoint *c, int n)
{
	memset(c, 0, sizeof *c);
	c->state = json_pack("{s:i,s:s}", "n", n, "text", "caf\xc3\xa9");
	c->n_params = P;
	c->n_moments = M;
	c->V_d = VD;
	c->V = V;
	c->params = calloc(P, sizeof *c->params);
	c->moments = calloc(M, sizeof *c->moments);
	c->d2t = calloc(VD, sizeof *c->d2t);
	c->counts = calloc(V, sizeof *c->counts);
	for (int i = 0; i < P; i++)
		c->params[i] = (real)(n + i * 0.37);
	for (int i = 0; i < M; i++)
		c->moments[i] = (real)(-n - i * 1e-20);
	for (int i = 0; i < VD; i++)
		c->d2t[i] = i;
	for (int i = 0; i < V; i++)
		c->counts[i] = (uint64_t)i << 40;
}

static void put(const char *dir, int n, bool draft)
{
	struct checkpoint c;
	struct errtext e = {""};
	fill(&c, n);
	if (!draft) {
		free(c.params);
		free(c.moments);
		free(c.d2t);
		c.params = c.moments = NULL;
		c.d2t = NULL;
	}
	assert_int_equal(checkpoint_write(dir, n, &c, &e), 0);
	checkpoint_done(&c);
}

/* Which one comes back, compared in full; 0 = none. */
static int load(const char *dir, int *damaged)
{
	struct checkpoint c = {0}, want;
	struct errtext e = {""};
	int64_t serial = 0;
	int r = checkpoint_load(dir, &c, &serial, damaged, &e);
	if (r == -ENOENT)
		return 0;
	if (r == -ENOTSUP) /* the flipped bit made another schema of it */
		return -1;
	assert_int_equal(r, 0);
	fill(&want, (int)serial);
	assert_true(json_equal(c.state, want.state));
	assert_memory_equal(c.counts, want.counts, V * sizeof *c.counts);
	if (c.params) {
		assert_int_equal(c.n_params, P);
		assert_int_equal(c.n_moments, M);
		assert_memory_equal(c.params, want.params, P * sizeof *c.params);
		assert_memory_equal(c.moments, want.moments, M * sizeof *c.moments);
		assert_memory_equal(c.d2t, want.d2t, VD * sizeof *c.d2t);
	}
	checkpoint_done(&want);
	checkpoint_done(&c);
	return (int)serial;
}

static void flip(const char *path, long at)
{
	FILE *f = fopen(path, "r+b");
	assert_non_null(f);
	(void)fseek(f, at, SEEK_SET);
	int c = fgetc(f);
	(void)fseek(f, at, SEEK_SET);
	(void)fputc(c ^ 4, f);
	(void)fclose(f);
}

static void test_back(void **state)
{
	char dir[256];
	int damaged;
	(void)state;
	tw_temp_dir(dir);
	assert_int_equal(load(dir, &damaged), 0);
	put(dir, 1, false);
	assert_int_equal(load(dir, &damaged), 1);
	put(dir, 2, true);
	put(dir, 3, true);
	assert_int_equal(load(dir, &damaged), 3);
	assert_int_equal(damaged, 0);
	int n = 0;
	DIR *d = opendir(dir);
	for (const struct dirent *de; (de = readdir(d));)
		n += de->d_name[0] != '.';
	closedir(d);
	assert_int_equal(n, 2);
	assert_int_equal(fs_remove_tree(dir), 0);
}

/* A flipped bit at any of many places, and any cut: the one before is taken. */
static void test_damage(void **state)
{
	char dir[256], path[300];
	int damaged;
	(void)state;
	tw_temp_dir(dir);
	put(dir, 1, true);
	put(dir, 2, true);
	(void)snprintf(path, sizeof path, "%s/000000000002.ckpt", dir);
	FILE *f = fopen(path, "rb");
	(void)fseek(f, 0, SEEK_END);
	long size = ftell(f);
	(void)fclose(f);
	int fell = 0, tried = 0;
	for (long at = 0; at < size; at += 7, tried++) {
		flip(path, at);
		int got = load(dir, &damaged); /* load compares: what comes back is right, whichever it is */
		fell += got == -1 || (got == 1 && damaged == 1);
		if (got == 2) /* only padding or a name that nobody reads may go unnoticed */
			assert_true(at < 1024);
		flip(path, at);
	}
	print_message("%d of %d flips fell back\n", fell, tried);
	assert_true(fell > tried * 9 / 10);
	assert_int_equal(load(dir, &damaged), 2);
	for (long at = 0; at < size; at += 611) {
		put(dir, 2, true);
		assert_int_equal(truncate(path, at), 0);
		assert_int_equal(load(dir, &damaged), 1);
	}
	(void)snprintf(path, sizeof path, "%s/000000000001.ckpt", dir);
	flip(path, size - 5);
	assert_int_equal(load(dir, &damaged), 0);
	assert_int_equal(damaged, 2);
	assert_int_equal(fs_remove_tree(dir), 0);
}

/* One of a later program: refused with a sentence, not passed over for an older one. */
static void test_other_schema(void **state)
{
	char dir[256], path[300];
	struct checkpoint c = {0};
	struct errtext e = {""};
	struct fs_map map;
	int64_t serial = 0;
	int damaged;
	(void)state;
	tw_temp_dir(dir);
	put(dir, 1, true);
	put(dir, 2, true);
	(void)snprintf(path, sizeof path, "%s/000000000002.ckpt", dir);
	assert_int_equal(fs_map(path, &map), 0);
	const char *at = memmem(map.data, map.len, "\"schema\":\"1\"", 12);
	assert_non_null(at);
	long offset = at - (const char *)map.data + 10;
	fs_unmap(&map);
	FILE *f = fopen(path, "r+b");
	(void)fseek(f, offset, SEEK_SET);
	(void)fputc('2', f);
	(void)fclose(f);
	assert_int_equal(checkpoint_load(dir, &c, &serial, &damaged, &e), -ENOTSUP);
	assert_non_null(strstr(e.text, "schema 2"));
	assert_int_equal(fs_remove_tree(dir), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_back), cmocka_unit_test(test_damage), cmocka_unit_test(test_other_schema)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
