/* A GGUF opened as a target.
 *
 * On the toy file: shapes, the fingerprint by streaming equals fp_* over all tensors at once
 * and does not change from one opening to the next, the frozen file holds the embedding
 * bit for bit and is not written twice; files that are no target are refused with a sentence.
 * On the real model (REDRAFT_MODEL): greedy text after a well-known beginning is
 * what anybody would say.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "schemas/gguf.h"
#include "schemas/manifest.h"
#include "schemas/safetensors.h"
#include "serve/target.h"
#include "serve/tokenizer.h"
#include "tests/unit/serve/harness.h"

static char dir[64], toy_path[96];

static int setup(void **state)
{
	(void)state;
	char cmd[256];
	snprintf(dir, sizeof dir, "/tmp/redraft-target-%d", (int)getpid());
	snprintf(toy_path, sizeof toy_path, "%s/toy.gguf", dir);
	if (fs_mkdirs(dir))
		return -1;
	snprintf(cmd, sizeof cmd, "python3 tests/fixtures/toy_model.py %s >/dev/null", toy_path);
	return system(cmd) == 0 ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	return fs_remove_tree(dir);
}

static struct target *open_target(struct dev *d, const char *path)
{
	struct target *t = NULL;
	struct errtext e = {0};
	if (target_open(d, path, DT_BF16, 512, &t, &e))
		fail_msg("%s", e.text);
	return t;
}

/* The same hash the other way: everything expanded and handed to fp_*. */
static void whole_sha(const struct target *t, char hex[static 65])
{
	static const char *const part[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
					   "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"};
	struct fp *f = fp_new();
	uint16_t *held[400];
	int n = 0;
	for (int i = -2; i < t->cfg.n_layer * 9; i++) {
		char name[80];
		int rows, cols;
		if (i < 0)
			snprintf(name, sizeof name, "%s", i == -2 ? "model.embed_tokens.weight" : "model.norm.weight");
		else
			snprintf(name, sizeof name, "model.layers.%d.%s.weight", i / 9, part[i % 9]);
		assert_int_equal(gguf_read_hf(t->gguf, name, &rows, &cols, &held[n], NULL), 0);
		uint64_t shape[2] = {(uint64_t)rows, (uint64_t)cols};
		int vector = rows == 1;
		assert_int_equal(fp_add(f, name, "BF16", shape + vector, 2 - vector, held[n], (size_t)rows * (size_t)cols * 2), 0);
		n++;
	}
	assert_int_equal(fp_final_hex(f, hex), 0);
	fp_free(f);
	while (n)
		free(held[--n]);
}

static void test_toy(void **state)
{
	(void)state;
	struct dev *d = NULL;
	assert_int_equal(dev_cpu_new(1, ISA_AUTO, &d), 0);
	struct target *t = open_target(d, toy_path), *again = open_target(d, toy_path);
	assert_string_equal(t->name, "toy");
	assert_int_equal(t->cfg.n_layer, 8);
	assert_int_equal(t->cfg.H, 64);
	assert_int_equal(t->cfg.hd, 16);
	assert_true(t->cfg.tied);
	assert_int_equal(t->cfg.max_ctx, 512);
	assert_int_equal(t->cfg.boundaries[1], 4);
	assert_true(t->n_eog > 0);
	assert_non_null(t->chat_template);
	assert_int_equal(strlen(t->fp), 64);
	assert_string_equal(t->fp, again->fp);
	char streamed[65], whole[65];
	struct errtext e = {0};
	assert_int_equal(target_tensors_sha(t, streamed, &e), 0);
	whole_sha(t, whole);
	assert_string_equal(streamed, whole);
	target_close(t);
	target_close(again);
	dev_free(d);
}

static void test_frozen(void **state)
{
	(void)state;
	struct dev *d = NULL;
	struct errtext e = {0};
	assert_int_equal(dev_cpu_new(1, ISA_AUTO, &d), 0);
	struct target *t = open_target(d, toy_path);
	char path[PATH_MAX];
	assert_int_equal(target_export_frozen(t, dir, &e), 0);
	assert_int_equal(store_frozen_file(dir, t->fp, path, sizeof path), 0);
	struct fs_map m;
	struct st_file *f;
	assert_int_equal(fs_map(path, &m), 0);
	assert_int_equal(st_parse(m.data, m.len, &f, &e), 0);
	assert_int_equal(st_count(f), 1); /* a tied head is not written twice */
	assert_string_equal(st_meta(f, "target_fp"), t->fp);
	const struct st_tensor *x = st_find(f, "embed_tokens.weight");
	assert_non_null(x);
	int rows, cols;
	uint16_t *want;
	assert_int_equal(gguf_read_hf(t->gguf, "model.embed_tokens.weight", &rows, &cols, &want, &e), 0);
	assert_int_equal(x->bytes, (size_t)rows * (size_t)cols * 2);
	assert_memory_equal(x->data, want, x->bytes);
	struct stat before, after;
	assert_int_equal(stat(path, &before), 0);
	assert_int_equal(target_export_frozen(t, dir, &e), 0);
	assert_int_equal(stat(path, &after), 0);
	assert_true(before.st_ino == after.st_ino);
	/* a store that cannot be written: a sentence, and no folder half made */
	assert_true(target_export_frozen(t, "/proc/nowhere", &e) < 0);
	assert_true(strlen(e.text) > 0);
	free(want);
	st_free(f);
	fs_unmap(&m);
	target_close(t);
	dev_free(d);
}

static void test_refused(void **state)
{
	(void)state;
	struct dev *d = NULL;
	assert_int_equal(dev_cpu_new(1, ISA_AUTO, &d), 0);
	const char *const wrong[] = {"/nonexistent.gguf", "Makefile", "/dev/null"};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		struct target *t = (void *)1;
		struct errtext e = {0};
		assert_true(target_open(d, wrong[i], DT_BF16, 512, &t, &e) < 0);
		assert_true(strlen(e.text) > 10);
		assert_ptr_equal(t, (void *)1);
	}
	dev_free(d);
}

static void test_real(void **state)
{
	(void)state;
	const char *path = getenv("REDRAFT_MODEL");
	if (!path) {
		print_message("REDRAFT_MODEL is not set\n");
		skip();
	}
	struct dev *d = NULL;
	struct errtext e = {0};
	assert_int_equal(dev_cpu_new(2, ISA_AUTO, &d), 0);
	struct target *t = open_target(d, path);
	struct engine_options o = {.dev = d, .target = t->model, .max_seqs = 1, .max_queue = 4, .max_context = 128, .kv_tokens = 128,
				   .prefill_chunk = 32, .draft_k = 3};
	struct engine *g = NULL;
	static struct job j;
	uint32_t *ids;
	size_t n;
	const char *text = "The capital of France is";
	assert_int_equal(engine_new(&o, &g, &e), 0);
	assert_int_equal(tokenizer_encode(t->tokenizer, text, strlen(text), false, &ids, &n), 0);
	job_random(&j, 1, (int)n, 8);
	memcpy(j.prompt, ids, n * sizeof *ids);
	assert_int_equal(job_submit(g, &j), 0);
	job_wait(&j);
	char out[256] = "";
	for (int i = 0; i < j.n_out; i++) {
		size_t len;
		const char *s = tokenizer_token(t->tokenizer, j.out[i], &len);
		strncat(out, s, len);
	}
	print_message("%s|%s\n", text, out);
	assert_non_null(strstr(out, "Paris"));
	free(ids);
	engine_free(g);
	target_close(t);
	dev_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_toy), cmocka_unit_test(test_frozen), cmocka_unit_test(test_refused),
					   cmocka_unit_test(test_real)};
	return cmocka_run_group_tests(tests, setup, teardown);
}
