/* A GGUF file or a Hugging Face folder opened as a target.
 *
 * The same weights and vocabulary give one target_fp in either form and however sharded, for all three
 * architectures, and another when a bias or q/k norm changes; their features and logits agree.
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
#include <math.h>
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

static void make_folder(const char *name, const char *args)
{
	char cmd[1024];
	snprintf(cmd, sizeof cmd, "python3 tests/fixtures/toy_folder.py %s/%s %s", dir, name, args);
	assert_int_equal(system(cmd), 0);
}

static void forward_all(struct dev *d, struct target *t, real *features, real *logits)
{
	enum { N = 40 };
	uint32_t ids[N], at[N], pages[2] = {0, 1};
	struct kv_pool kv = {.n_layer = t->cfg.n_layer, .n_kv = t->cfg.n_kv, .d = t->cfg.hd, .page_tok = 32, .n_pages = 2, .type = DT_BF16};
	assert_int_equal(d->ops->kv_new(d, &kv), 0);
	for (uint32_t i = 0; i < N; i++) {
		ids[i] = 3 + i * 7 % 590;
		at[i] = i;
	}
	struct attn_seq s = {.pages = pages, .n_rows = N};
	uint32_t last = N - 1;
	struct llama_batch b = {.M = N, .ids = ids, .pos = at, .slots = at, .seqs = &s, .n_seqs = 1, .logit_rows = &last, .n_logits = 1};
	assert_int_equal(llama_forward(t->model, &kv, &b, features, NULL, logits), 0);
	d->ops->kv_free(d, &kv);
}

static void test_folder(void **state)
{
	(void)state;
	static const char *const archs[] = {"llama", "qwen2", "qwen3"};
	struct dev *d = NULL;
	char path[3][128], args[512], fps[3][65];
	assert_int_equal(dev_cpu_new(1, ISA_AUTO, &d), 0);
	for (int i = 0; i < 3; i++) {
		snprintf(path[0], sizeof path[0], "%s/%s.gguf", dir, archs[i]);
		snprintf(path[1], sizeof path[1], "%s/%s", dir, archs[i]);
		snprintf(path[2], sizeof path[2], "%s/%s-cut/", dir, archs[i]);
		snprintf(args, sizeof args, "--arch %s --gguf %s %s", archs[i], path[0], i == 1 ? "--untied" : "");
		make_folder(archs[i], args);
		snprintf(args, sizeof args, "--arch %s --shards 3 %s", archs[i], i == 1 ? "--untied" : "");
		snprintf(path[2] + strlen(dir), 32, "/%s-cut", archs[i]);
		make_folder(path[2] + strlen(dir) + 1, args);
		struct target *t[3];
		real *features[3], *logits[3];
		for (int k = 0; k < 3; k++) {
			t[k] = open_target(d, path[k]);
			features[k] = calloc(40 * 3 * 64, sizeof(real));
			logits[k] = calloc((size_t)t[k]->cfg.V, sizeof(real));
			forward_all(d, t[k], features[k], logits[k]);
			assert_string_equal(t[k]->fp, t[0]->fp);
			assert_true(t[k]->cfg.tied == (i != 1));
			assert_int_equal(t[k]->cfg.V, 608);
			assert_int_equal(t[k]->n_eog, 2);
			assert_int_equal(t[k]->chat_template_len, t[0]->chat_template_len);
			assert_memory_equal(t[k]->chat_template, t[0]->chat_template, t[0]->chat_template_len);
			for (int j = 0; j < 40 * 3 * 64; j++) /* llama3 scaling from factors and from its formula: last bits */
				assert_true(fabs((double)(features[k][j] - features[0][j])) <= (i ? 0 : 2e-3) * (1 + fabs((double)features[0][j])));
			for (int j = 0; j < 608; j++)
				assert_true(fabs((double)(logits[k][j] - logits[0][j])) <= (i ? 0 : 2e-3) * (1 + fabs((double)logits[0][j])));
		}
		assert_string_equal(t[1]->name, archs[i]);
		memcpy(fps[i], t[0]->fp, 65);
		for (int k = 0; k < 3; k++) {
			target_close(t[k]);
			free(features[k]);
			free(logits[k]);
		}
	}
	assert_string_not_equal(fps[0], fps[1]);
	assert_string_not_equal(fps[1], fps[2]);
	dev_free(d);
}

/* A folder with one thing wrong: one sentence that names it. */
static void spoil(struct dev *d, const char *command, const char *says)
{
	char cmd[1024], path[128];
	struct target *t = (void *)1;
	struct errtext e = {0};
	make_folder("bad", "--arch qwen2 --shards 2");
	snprintf(path, sizeof path, "%s/bad", dir);
	snprintf(cmd, sizeof cmd, "cd %s && %s", path, command);
	assert_int_equal(system(cmd), 0);
	assert_true(target_open(d, path, DT_BF16, 512, &t, &e) < 0);
	if (!strstr(e.text, says))
		fail_msg("\"%s\" does not say \"%s\"", e.text, says);
	assert_ptr_equal(t, (void *)1);
	assert_int_equal(fs_remove_tree(path), 0);
}

static void test_bad_folder(void **state)
{
	(void)state;
	struct dev *d = NULL;
	assert_int_equal(dev_cpu_new(1, ISA_AUTO, &d), 0);
	spoil(d, "rm model-00002-of-00002.safetensors", "has no model-00002-of-00002.safetensors");
	spoil(d, "truncate -s 1000 model-00001-of-00002.safetensors", "model-00001-of-00002.safetensors:");
	spoil(d, "rm config.json", "has no config.json");
	spoil(d, "rm tokenizer.json", "has no tokenizer.json");
	spoil(d, "sed -i s/Qwen2ForCausalLM/FalconForCausalLM/ config.json", "FalconForCausalLM");
	spoil(d, "sed -i 's/\"rope_theta\"/\"rope_scaling\": {\"rope_type\": \"longrope\"}, \"rope_theta\"/' config.json", "longrope");
	spoil(d, "sed -i 's/\"intermediate_size\": 128/\"intermediate_size\": 120/' config.json", "expected 120 x 64");
	spoil(d, "sed -i 's/\"attention_bias\": false/\"attention_bias\": true/' config.json", "attention_bias");
	spoil(d, "sed -i 's/\"attention_bias\": false/\"use_sliding_window\": true/' config.json", "use_sliding_window");
	spoil(d, "sed -i 's/\"NFC\"/\"NFKC\"/' tokenizer.json", "normalizer");
	spoil(d, "sed -i 's/\"BPE\"/\"Unigram\"/' tokenizer.json", "BPE");
	spoil(d, "sed -i 's/\"lstrip\": false/\"lstrip\": true/' tokenizer.json", "lstrip");
	spoil(d, "sed -i 's/00002.safetensors/..\\/..\\/etc/' model.safetensors.index.json", "no plain file name");
	spoil(d, "for f in model-*; do sed -i 's/\"BF16\"/\"I16\" /' $f; done", "is I16; BF16, F16 and F32 are read");
	spoil(d, "echo '{' > config.json", "config.json, line");
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
	assert_int_equal(tokenizer_encode(t->tokenizer, text, strlen(text), false, SIZE_MAX, &ids, &n), 0);
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
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_toy), cmocka_unit_test(test_frozen), cmocka_unit_test(test_folder), cmocka_unit_test(test_bad_folder), cmocka_unit_test(test_refused),
					   cmocka_unit_test(test_real)};
	return cmocka_run_group_tests(tests, setup, teardown);
}
