/* A draft goes to llama.cpp's GGUF and comes back bit for bit, whatever its RoPE, with the names, the row order and the numbers that
 * llama.cpp reads; what it cannot compute, or cannot be told back, is refused in a sentence; a file that is damaged
 * anywhere is refused or is a draft, never a crash. Exports for engines are the standard folder, refused where the engine would ignore a flag. */
#include <math.h>
#include "tests/unit/learn/toyworld.h"
#include "learn/cmd.h"
#include "learn/draft_gguf.h"
#include "learn/init.h"
#include "schemas/gguf.h"

struct fixture { char dir[256], store[300], folder[300], file[300]; struct frozen fz; struct draft d; };

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof *f);
	struct errtext e = {""};
	int64_t d2t[48];
	char sha[65];
	tw_temp_dir(f->dir);
	(void)snprintf(f->store, sizeof f->store, "%s/store", f->dir);
	(void)snprintf(f->folder, sizeof f->folder, "%s/folder", f->dir);
	(void)snprintf(f->file, sizeof f->file, "%s/draft.gguf", f->dir);
	tw_store(f->store);
	assert_int_equal(frozen_open(f->store, TW_FP, &f->fz, &e), 0);
	assert_int_equal(frozen_draft_config(&f->fz, 48, &f->d.file, &e), 0);
	draft_eagle3_config(&f->d.file, &f->d.c);
	for (int i = 0; i < 48; i++)
		d2t[i] = i / 5;
	real *w = malloc(draft_params(&f->d.c) * sizeof *w);
	draft_init_random(&f->d.c, 4, w);
	json_t *meta = json_pack("{s:i}", "parent", 0);
	assert_int_equal(publish_write_folder(f->folder, &f->d.file, d2t, w, &f->fz, meta, sha, &e), 0);
	assert_int_equal(publish_read_folder(f->folder, &f->fz, &f->d, &e), 0);
	json_decref(meta);
	free(w);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	draft_done(&f->d);
	frozen_close(&f->fz);
	assert_int_equal(fs_remove_tree(f->dir), 0);
	free(f);
	return 0;
}

static void rope(struct draft *d, int kind)
{
	d->file.rope_kind = kind;
	d->file.rope_factor = 4;
	d->file.rope_low = 1;
	d->file.rope_high = 4;
	d->file.rope_orig_max = 64;
	draft_eagle3_config(&d->file, &d->c);
}

static void test_there_and_back(void **state)
{
	struct fixture *f = *state;
	for (int kind = 0; kind < 4; kind++) {
		struct draft back = {0};
		struct errtext e = {""};
		rope(&f->d, kind);
		assert_int_equal(draft_gguf_write(&f->d, f->file, &e), 0);
		int r = draft_gguf_read(f->file, &f->fz, &back, &e);
		if (kind == 2) { /* four numbers became one a frequency */
			assert_int_equal(r, -ENOTSUP);
			assert_non_null(strstr(e.text, "rope_freqs"));
			continue;
		}
		if (r)
			print_message("%s\n", e.text);
		assert_int_equal(r, 0);
		assert_int_equal(back.n, f->d.n);
		assert_memory_equal(back.w, f->d.w, back.n * sizeof *back.w); /* bf16 already */
		assert_memory_equal(back.d2t, f->d.d2t, 48 * sizeof *back.d2t);
		assert_true(back.file.boundaries_default);
		assert_int_equal(back.file.rope_kind, kind);
		assert_true(!(fabs(back.file.rope_theta - f->d.file.rope_theta) > 0) && !(fabs(back.file.rms_eps - f->d.file.rms_eps) > 0));
		assert_true(kind == 0 || !(fabs(back.file.rope_factor - 4) > 0));
		draft_done(&back);
	}
}

/* As llama.cpp's own converter writes it: absolute ids, pairs that rotate together side by side. */
static void test_as_llama_cpp_reads_it(void **state)
{
	struct fixture *f = *state;
	struct errtext e = {""};
	struct gguf *g = NULL;
	int64_t *ids = NULL, layer;
	int n, rows, cols;
	uint16_t *q = NULL;
	float *freqs = NULL;
	size_t len;
	const char *text;
	rope(&f->d, 2);
	assert_int_equal(draft_gguf_write(&f->d, f->file, &e), 0);
	assert_int_equal(gguf_open(f->file, &g, &e), 0);
	assert_int_equal(gguf_str(g, "general.architecture", &text, &len), 0);
	assert_true(len == 6 && memcmp(text, "eagle3", 6) == 0);
	assert_int_equal(gguf_array_len(g, "eagle3.target_layers"), 3);
	for (uint64_t i = 0; i < 3; i++) {
		assert_int_equal(gguf_array_i64(g, "eagle3.target_layers", i, &layer), 0);
		assert_int_equal(layer, f->d.c.boundaries[i]);
	}
	assert_int_equal(gguf_read_i64(g, "d2t", &n, &ids), 0);
	assert_int_equal(n, 48);
	for (int i = 0; i < n; i++)
		assert_int_equal(ids[i], i + i / 5);
	assert_int_equal(gguf_read_i64(g, "fc.weight", &n, &ids), -EINVAL);
	assert_int_equal(gguf_read_hf(g, "d2t", &rows, &cols, &q, &e), -EINVAL);
	assert_int_equal(gguf_read_hf(g, "blk.0.attn_q.weight", &rows, &cols, &q, &e), 0);
	int hd = f->d.c.hd, at = 0;
	for (int t = 0; t < E3_Q; t++) {
		int r, c;
		eagle3_tensor_shape(&f->d.c, (enum eagle3_tensor)t, &r, &c);
		at += r * c;
	}
	for (int head = 0; head < f->d.c.n_head; head++)
		for (int i = 0; i < hd; i++) /* row 2p and 2p+1 there are rows p and p + hd/2 here */
			for (int c = 0; c < cols; c++)
				assert_int_equal(q[(head * hd + i) * cols + c], f32_to_bf16((float)f->d.w[at + (head * hd + i / 2 + i % 2 * (hd / 2)) * cols + c]));
	assert_int_equal(gguf_read_f32(g, "blk.0.attn_norm_2.weight", &rows, &cols, &freqs, &e), 0);
	free(freqs);
	assert_int_equal(gguf_read_f32(g, "rope_freqs.weight", &rows, &cols, &freqs, &e), 0);
	assert_int_equal(cols, hd / 2);
	assert_true(!(fabsf(freqs[0] - 1) > 1e-6f) && !(fabsf(freqs[cols - 1] - 4) > 1e-5f)); /* the quickest turn as they did, the slowest a quarter as fast */
	free(freqs);
	free(q);
	free(ids);
	gguf_free(g);
}

static void test_refused(void **state)
{
	struct fixture *f = *state;
	struct errtext e = {""};
	struct draft back;
	f->d.file.fc_norm = true;
	assert_int_equal(draft_gguf_write(&f->d, f->file, &e), -ENOTSUP);
	assert_non_null(strstr(e.text, "fc_norm"));
	f->d.file.fc_norm = false;
	rope(&f->d, 3);
	f->d.file.rope_mscale = 0.5;
	assert_int_equal(draft_gguf_write(&f->d, f->file, &e), -ENOTSUP);
	rope(&f->d, 0);
	assert_int_equal(draft_gguf_read(f->folder, &f->fz, &back, &e) < 0, 1); /* a folder */
	assert_int_equal(draft_gguf_write(&f->d, f->file, &e), 0);
	f->fz.H++; /* another target */
	assert_int_equal(draft_gguf_read(f->file, &f->fz, &back, &e), -EINVAL);
	f->fz.H--;
	int second = f->d.file.boundaries[1];
	f->d.file.boundaries[1] = f->d.file.boundaries[0];
	assert_int_equal(draft_gguf_write(&f->d, f->file, &e), 0);
	assert_int_equal(draft_gguf_read(f->file, &f->fz, &back, &e), -EINVAL);
	assert_non_null(strstr(e.text, "ascending"));
	f->d.file.boundaries[1] = second;
	f->d.d2t[3] = INT64_MIN;
	assert_int_equal(draft_gguf_write(&f->d, f->file, &e), 0);
	assert_int_equal(draft_gguf_read(f->file, &f->fz, &back, &e), -EINVAL);
	assert_non_null(strstr(e.text, "d2t"));
}

/* A byte changed, anywhere; and the file cut, anywhere. */
static void test_damaged(void **state)
{
	struct fixture *f = *state;
	struct errtext e = {""};
	struct fs_map m = {0};
	uint64_t seed = 5;
	assert_int_equal(draft_gguf_write(&f->d, f->file, &e), 0);
	assert_int_equal(fs_map(f->file, &m), 0);
	uint8_t *copy = malloc(m.len);
	size_t len = m.len;
	memcpy(copy, m.data, len);
	fs_unmap(&m);
	for (int i = 0; i < 400; i++) {
		struct draft d = {0};
		size_t at = tw_next(&seed) % (i % 4 ? 2000 : len), keep = i % 8 ? len : at;
		uint8_t was = copy[at];
		copy[at] ^= (uint8_t)(1 + tw_next(&seed) % 255);
		FILE *out = fopen(f->file, "w");
		assert_non_null(out);
		assert_int_equal(fwrite(copy, 1, keep, out), keep);
		assert_int_equal(fclose(out), 0);
		int r = draft_gguf_read(f->file, &f->fz, &d, &e);
		assert_true(r == 0 || r == -EINVAL || r == -ENOTSUP || r == -ENOENT || r == -ENOMEM);
		if (!r)
			draft_done(&d);
		copy[at] = was;
	}
	free(copy);
}

static int word(int (*run)(int, char **), const char *const *args)
{
	char *argv[16] = {0};
	int n = 0;
	for (; args[n]; n++)
		argv[n] = (char *)(uintptr_t)args[n];
	return run(n, argv);
}

/* The words themselves: for each engine, and back. */
static void test_words(void **state)
{
	static const char *const engines[] = {"vllm", "sglang", "specforge"};
	struct fixture *f = *state;
	struct errtext e = {""};
	char out[320], path[400];
	struct draft d = {0};
	for (int i = 0; i < 3; i++) {
		(void)snprintf(out, sizeof out, "%s/%s", f->dir, engines[i]);
		assert_int_equal(word(cmd_export, (const char *[]){"export", "--for", engines[i], "--draft", f->folder, "--store", f->store, "--out", out, NULL}), 0);
		(void)snprintf(path, sizeof path, "%s/submit.json", out);
		assert_int_not_equal(access(path, F_OK), 0);
		assert_int_equal(publish_read_folder(out, &f->fz, &d, &e), 0);
		assert_string_equal(d.weights_sha, f->d.weights_sha);
		draft_done(&d);
	}
	assert_int_equal(word(cmd_export, (const char *[]){"export", "--for", "llama.cpp", "--draft", f->folder, "--store", f->store, "--out", f->file, NULL}), 0);
	(void)snprintf(out, sizeof out, "%s/back", f->dir);
	assert_int_equal(word(cmd_import, (const char *[]){"import", "--from", f->file, "--store", f->store, "--out", out, NULL}), 0);
	assert_int_equal(publish_read_folder(out, &f->fz, &d, &e), 0);
	assert_string_equal(d.weights_sha, f->d.weights_sha);
	draft_done(&d);
	assert_int_equal(word(cmd_import, (const char *[]){"import", "--from", f->store, "--store", f->store, "--out", out, NULL}), 2); /* no draft there */
	assert_int_equal(word(cmd_export, (const char *[]){"export", "--for", "vllm", "--store", f->store, "--out", out, NULL}), 2);
}

int main(void)
{
#define T(x) cmocka_unit_test_setup_teardown(x, setup, teardown)
	const struct CMUnitTest tests[] = {T(test_there_and_back), T(test_as_llama_cpp_reads_it), T(test_refused), T(test_damaged), T(test_words)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
