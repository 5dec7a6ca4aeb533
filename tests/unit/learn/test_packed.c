/* A packed draft expands to the same folder each time, each weight within half a step of its row's scale; its file
 * says what it expands to, and a changed byte of its data, a missing tensor or another format is noticed. */
#include <math.h>
#include "tests/unit/learn/toyworld.h"
#include "learn/init.h"
#include "learn/packed.h"
#include "learn/publish.h"

static void test_packed(void **state)
{
	char dir[256], store[300], from[300], file[300], to[300], sha[65], again[65];
	struct frozen fz;
	struct errtext e = {""};
	struct draft_config c;
	struct eagle3_config ec;
	struct draft a = {0}, b = {0};
	int64_t d2t[80];
	(void)state;
	tw_temp_dir(dir);
	(void)snprintf(store, sizeof store, "%s/store", dir);
	(void)snprintf(from, sizeof from, "%s/from", dir);
	(void)snprintf(file, sizeof file, "%s/file", dir);
	(void)snprintf(to, sizeof to, "%s/to", dir);
	tw_store(store);
	assert_int_equal(frozen_open(store, TW_FP, &fz, &e), 0);
	assert_int_equal(frozen_draft_config(&fz, 80, &c, &e), 0);
	draft_eagle3_config(&c, &ec);
	for (int i = 0; i < 80; i++)
		d2t[i] = i / 10;
	real *w = malloc(draft_params(&ec) * sizeof *w);
	draft_init_random(&ec, 4, w);
	json_t *meta = json_pack("{s:i,s:{}}", "parent", 7, "cut");
	assert_int_equal(publish_write_folder(from, &c, d2t, w, &fz, meta, sha, &e), 0);
	assert_int_equal(packed_write(from, file, "made by a test", &e), 0);
	assert_int_equal(packed_expand(file, to, sha, &e), 0);
	assert_int_equal(packed_expand(file, to, again, &e), 0);
	assert_string_equal(sha, again);
	assert_int_equal(publish_read_folder(from, &fz, &a, &e), 0);
	assert_int_equal(publish_read_folder(to, &fz, &b, &e), 0);
	assert_string_equal(b.weights_sha, sha);
	assert_memory_equal(a.d2t, b.d2t, sizeof d2t);
	struct draft_layout lay;
	draft_layout_init(&ec, &lay);
	for (int t = 0; t < E3_N_TENSORS; t++)
		for (int r = 0; r < lay.rows[t]; r++) {
			const real *x = a.w + lay.off[t] + (size_t)r * (size_t)lay.cols[t], *y = b.w + lay.off[t] + (size_t)r * (size_t)lay.cols[t];
			double most = 0;
			for (int i = 0; i < lay.cols[t]; i++)
				most = fmax(most, fabs((double)x[i]));
			for (int i = 0; i < lay.cols[t]; i++) /* half a step, and bf16's rounding */
				assert_true(fabs((double)(x[i] - y[i])) <= (lay.rows[t] == 1 ? 0 : most / 254 + most / 256));
		}
	struct fs_map m = {0};
	assert_int_equal(fs_map(file, &m), 0);
	uint8_t *copy = malloc(m.len);
	memcpy(copy, m.data, m.len);
	size_t len = m.len;
	fs_unmap(&m);
	copy[len - 5] ^= 0x40; /* a weight */
	assert_int_equal(fs_write_atomic(file, copy, len), 0);
	assert_int_equal(packed_expand(file, to, sha, &e), -EINVAL);
	assert_non_null(strstr(e.text, "expands to"));
	copy[len - 5] ^= 0x40;
	assert_int_equal(fs_write_atomic(file, copy, len - 1), 0);
	assert_int_equal(packed_expand(file, to, sha, &e), -EINVAL);
	char *name = memmem(copy, len, "fc.weight", 9);
	name[0] = 'g';
	assert_int_equal(fs_write_atomic(file, copy, len), 0);
	assert_int_equal(packed_expand(file, to, sha, &e), -EINVAL);
	assert_int_equal(packed_write(store, file, "", &e), -EINVAL); /* no draft there */
	free(copy);
	free(w);
	json_decref(meta);
	draft_done(&a);
	draft_done(&b);
	frozen_close(&fz);
	assert_int_equal(fs_remove_tree(dir), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_packed)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
