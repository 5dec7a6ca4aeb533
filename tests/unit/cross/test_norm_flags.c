/* A draft with any of the norm flags (eagle3.md §1.4) goes round: written by the learner as a folder, read back to the same masters,
 * loaded by the server, which holds what the file says, hash for hash; and whoever cannot compute it is not given it. (What the
 * flags compute is in test_ttt, test_ttt_gradient, test_peer, test_replay and test_chain_equals_ttt.) */
#include "tests/unit/learn/toyworld.h"
#include "learn/cmd.h"
#include "learn/init.h"
#include "learn/publish.h"
#include "serve/draft.h"

struct fixture { char dir[256], store[300], folder[300]; struct frozen fz; struct dev *d; struct weight embedding; };

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof *f);
	struct errtext e = {""};
	tw_temp_dir(f->dir);
	(void)snprintf(f->store, sizeof f->store, "%s/store", f->dir);
	(void)snprintf(f->folder, sizeof f->folder, "%s/folder", f->dir);
	tw_store(f->store);
	assert_int_equal(frozen_open(f->store, TW_FP, &f->fz, &e), 0);
	assert_int_equal(dev_cpu_new(1, ISA_PORTABLE, &f->d), 0);
	assert_int_equal(f->d->ops->weight_pack(f->d, &f->embedding, DT_BF16, TW_V, TW_H, f->fz.embedding, DT_BF16), 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	f->d->ops->weight_free(f->d, &f->embedding);
	dev_free(f->d);
	frozen_close(&f->fz);
	assert_int_equal(fs_remove_tree(f->dir), 0);
	free(f);
	return 0;
}

/* A folder of a draft with these flags and weights like no other; its hash. */
static void write_draft(struct fixture *f, int flags, char sha[65], struct draft *ret)
{
	struct draft_config c;
	struct eagle3_config ec;
	struct errtext e = {""};
	int64_t d2t[48] = {0};
	uint64_t s = 77 + (uint64_t)flags;
	assert_int_equal(frozen_draft_config(&f->fz, 48, &c, &e), 0);
	c.norm_before_residual = flags & 1;
	c.norm_before_fc = (flags & 6) == 2;
	c.fc_norm = (flags & 6) == 4;
	c.norm_output = flags & 8;
	draft_eagle3_config(&c, &ec);
	real *w = malloc(draft_params(&ec) * sizeof *w);
	draft_init_random(&ec, s, w);
	for (size_t i = 0; i < draft_params(&ec); i++) /* norms too are each unlike the next */
		w[i] = (real)bf16_to_f32(f32_to_bf16((float)w[i] + 0.1f * (float)(tw_next(&s) % 100) / 100));
	json_t *meta = json_pack("{s:i}", "parent", 0);
	int r = publish_write_folder(f->folder, &c, d2t, w, &f->fz, meta, sha, &e);
	if (r)
		print_message("%s\n", e.text);
	assert_int_equal(r, 0);
	assert_int_equal(publish_read_folder(f->folder, &f->fz, ret, &e), 0);
	assert_int_equal(ret->n, draft_params(&ec));
	assert_memory_equal(ret->w, w, ret->n * sizeof *w);
	assert_string_equal(ret->weights_sha, sha);
	json_decref(meta);
	free(w);
}

static void test_served(void **state)
{
	struct fixture *f = *state;
	for (int flags = 0; flags < 16; flags++) {
		struct draft d = {0};
		struct errtext e = {""};
		char sha[65], held[65];
		if ((flags & 6) == 6)
			continue;
		write_draft(f, flags, sha, &d);
		struct draft *served = NULL;
		draft_done(&d);
		int r = draft_eagle3.load(f->d, f->folder, &f->embedding, f->fz.n_layer, (const int[]){2, f->fz.n_layer / 2, f->fz.n_layer - 3}, DT_BF16, &served, &e);
		if (r)
			print_message("flags %d: %s\n", flags, e.text);
		assert_int_equal(r, 0);
		assert_int_equal(draft_eagle3.weights_sha(served, held), 0);
		assert_string_equal(held, sha);
		draft_eagle3.free(served);
	}
}

static int export_for(struct fixture *f, const char *engine)
{
	char out[320];
	(void)snprintf(out, sizeof out, "%s/%s", f->dir, engine);
	const char *argv[] = {"export", "--for", engine, "--draft", f->folder, "--store", f->store, "--out", out, NULL};
	return cmd_export(9, (char **)(uintptr_t)argv);
}

static void test_exported(void **state)
{
	struct fixture *f = *state;
	/* 0: computed by it; 2: refused. In the order of the flags' bits: residual, before_fc, fc_norm, output */
	const struct { const char *engine; int want[4]; } table[] = {
		{"vllm", {0, 0, 0, 0}}, {"sglang", {2, 0, 0, 0}}, {"specforge", {2, 2, 0, 2}}, {"llama.cpp", {0, 0, 2, 2}},
	};
	for (int bit = 0; bit < 4; bit++) {
		struct draft d = {0};
		char sha[65];
		write_draft(f, 1 << bit, sha, &d);
		draft_done(&d);
		for (int i = 0; i < 4; i++)
			assert_int_equal(export_for(f, table[i].engine), table[i].want[bit]);
	}
}

int main(void)
{
#define T(x) cmocka_unit_test_setup_teardown(x, setup, teardown)
	const struct CMUnitTest tests[] = {T(test_served), T(test_exported)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
