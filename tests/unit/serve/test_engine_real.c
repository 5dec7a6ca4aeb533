/* The law on the real model (REDRAFT_MODEL; skipped without).
 *
 * Prompts of real text and of one token repeated, greedy and sampled, eight at a time, drafted with k = 4 by a draft that reads
 * the target's own final norm and head (it is right now and then) and, after a switch and a rollback in
 * mid-stream, by one of random weights; each must equal the same request decoded alone
 * without a draft. REDRAFT_REAL_PROMPTS says how many (default 10, CI's nightly 100).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "schemas/gguf.h"
#include "serve/target.h"
#include "serve/tokenizer.h"
#include "tests/unit/serve/harness.h"

enum { V_D = 2048, MAX_PROMPTS = 200, NEW_TOKENS = 14 };

static const char text[] =
	"The capital of France is Paris, and the capital of Italy is Rome. What is the capital of Japan? Write a function that returns "
	"the sum of a list of numbers. def add(first, second):\n    return first + second\n\nTranslate the following sentence into German: "
	"the house is small, but the garden is large. The weather in Berlin today is cloudy with a chance of rain in the afternoon. "
	"{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Berlin\", \"unit\": \"celsius\"}} Once upon a time there was a king who had "
	"three daughters, and each of them wished to see the world beyond the mountains. 1, 2, 3, 5, 8, 13, 21, 34, 55, ";

static int write_draft(const struct target *t, const char *dir, bool random, struct errtext *e)
{
	const struct llama_config *c = &t->cfg;
	struct draft_config dc = {.hidden_size = c->H, .target_hidden_size = c->H, .intermediate_size = 256, .n_head = c->n_head, .n_kv_head = c->n_kv,
				  .head_dim = c->hd, .vocab_size = c->V, .draft_vocab_size = V_D, .max_position = 512, .rms_eps = 1e-5,
				  .rope_theta = c->rope.theta, .boundaries_default = true, .bos_id = 1, .eos_id = 2, .pad_id = 2};
	struct eagle3_config k = {.H = c->H, .H_t = c->H, .I = 256, .n_head = c->n_head, .n_kv = c->n_kv, .hd = c->hd, .V = c->V, .V_d = V_D};
	struct draft_tensor out[E3_N_TENSORS];
	float *data[E3_N_TENSORS];
	int64_t *d2t = calloc(V_D, sizeof *d2t);
	int rows, cols, r;
	uint16_t *head;
	memcpy(dc.boundaries, c->boundaries, sizeof dc.boundaries);
	for (int i = 0; i < E3_N_TENSORS; i++) {
		eagle3_tensor_shape(&k, (enum eagle3_tensor)i, &rows, &cols);
		size_t n = (size_t)rows * (size_t)cols;
		data[i] = calloc(n, sizeof(float));
		if (rows == 1 || random)
			toy_fill(data[i], n, toy_mix((uint64_t)i + 5), rows == 1 ? 0 : 0.04f);
		for (size_t j = 0; rows == 1 && j < n; j++)
			data[i][j] += 1;
		for (int j = 0; !random && i == E3_FC && j < rows; j++)
			data[i][(size_t)j * (size_t)cols + (size_t)(2 * c->H + j)] = 1;
		out[i] = (struct draft_tensor){eagle3_tensor_name((enum eagle3_tensor)i), rows, cols, data[i]};
	}
	r = gguf_read_hf(t->gguf, "model.embed_tokens.weight", &rows, &cols, &head, e);
	for (size_t j = 0; !r && !random && j < (size_t)V_D * (size_t)c->H; j++)
		data[E3_HEAD][j] = bf16_to_f32(head[j]);
	if (!r)
		free(head);
	if (!r)
		r = gguf_read_hf(t->gguf, "model.norm.weight", &rows, &cols, &head, e);
	for (int j = 0; !r && j < c->H; j++)
		data[E3_NORM][j] = bf16_to_f32(head[j]);
	if (!r)
		free(head);
	if (!r)
		r = fs_mkdirs(dir);
	if (!r)
		r = draft_save(dir, &dc, d2t, out, E3_N_TENSORS, true, e);
	for (int i = 0; i < E3_N_TENSORS; i++)
		free(data[i]);
	free(d2t);
	return r;
}

static struct engine *make(struct dev *d, struct target *t, int seqs)
{
	struct engine_options o = {.dev = d, .target = t->model, .max_seqs = seqs, .max_queue = MAX_PROMPTS, .max_context = 160,
				   .kv_tokens = 160 * seqs, .prefill_chunk = 48, .draft_k = 4, .n_eog = t->n_eog};
	struct engine *g = NULL;
	struct errtext e = {0};
	memcpy(o.eog_ids, t->eog_ids, sizeof o.eog_ids);
	if (engine_new(&o, &g, &e))
		fail_msg("%s", e.text);
	return g;
}

static void prompt_of(struct job *j, const uint32_t *ids, size_t n_ids, int i)
{
	int n = 5 + (i * 7) % 30;
	size_t at = (size_t)(i * 13) % (n_ids - 36);
	job_random(j, 1, n, NEW_TOKENS);
	memcpy(j->prompt, ids + at, (size_t)n * sizeof *ids);
	for (int k = 0; i % 3 == 0 && k < n; k++) /* one token again and again: text that the draft can guess */
		j->prompt[k] = 300 + (uint32_t)i;
	j->how = (struct sampling){.temperature = i % 2 ? 0.6f : 0, .top_p = i % 4 == 3 ? 0.9f : 1, .top_k = i % 6 == 5 ? 40 : 0, .seed = (uint64_t)i};
}

static void test_law(void **state)
{
	(void)state;
	const char *path = getenv("REDRAFT_MODEL"), *many = getenv("REDRAFT_REAL_PROMPTS");
	if (!path) {
		print_message("REDRAFT_MODEL is not set\n");
		skip();
	}
	int n = many ? atoi(many) : 10;
	n = n < 1 ? 1 : n > MAX_PROMPTS ? MAX_PROMPTS : n;
	static struct job jobs[MAX_PROMPTS], ref;
	struct dev *d = NULL;
	struct target *t = NULL;
	struct errtext e = {0};
	char dir[2][64], sha[65];
	uint32_t *ids;
	size_t n_ids;
	atomic_int ticks = 0;
	assert_int_equal(dev_cpu_new(2, ISA_AUTO, &d), 0);
	if (target_open(d, path, DT_BF16, 512, &t, &e))
		fail_msg("%s", e.text);
	assert_int_equal(tokenizer_encode(t->tokenizer, text, strlen(text), false, SIZE_MAX, &ids, &n_ids), 0);
	struct engine *g = make(d, t, 8);
	for (int i = 0; i < 2; i++) {
		snprintf(dir[i], sizeof dir[i], "/tmp/redraft-real-%d-%d", (int)getpid(), i);
		if (write_draft(t, dir[i], i, &e) || engine_load(g, 1 + (uint32_t)i, dir[i], sha, &e))
			fail_msg("%s", e.text);
	}
	assert_int_equal(engine_activate(g, 1, false, 0, &e), 0);
	for (int i = 0; i < n; i++) {
		prompt_of(&jobs[i], ids, n_ids, i);
		jobs[i].ticks = &ticks;
		jobs[i].stall_at = 3 * n;
		assert_int_equal(job_submit(g, &jobs[i]), 0);
	}
	ticks_wait(&ticks, 3 * n, jobs, n);
	assert_int_equal(engine_activate(g, 2, true, 0, &e), 0);
	usleep(300000);
	assert_int_equal(engine_activate(g, 1, true, 0, &e), 0);
	uint32_t accepted = 0, proposed = 0, moved = 0;
	for (int i = 0; i < n; i++) {
		job_wait(&jobs[i]);
		accepted += jobs[i].stats.accepted;
		proposed += jobs[i].stats.proposed;
		moved += jobs[i].stats.n_versions > 1;
	}
	engine_free(g);
	g = make(d, t, 1); /* after the other: a dev has one user at a time */
	for (int i = 0; i < n; i++) {
		ref = jobs[i];
		ref.ticks = NULL;
		assert_int_equal(job_submit(g, &ref), 0);
		job_wait(&ref);
		if (!job_same(&ref, &jobs[i]))
			fail_msg("prompt %d differs from plain decoding", i);
	}
	print_message("%d prompts, %u of %u proposals accepted, %u requests moved\n", n, accepted, proposed, moved);
	assert_true(accepted > 0 && proposed > accepted && moved > 0);
	engine_free(g);
	assert_int_equal(fs_remove_tree(dir[0]) | fs_remove_tree(dir[1]), 0);
	free(ids);
	target_close(t);
	dev_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_law)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
