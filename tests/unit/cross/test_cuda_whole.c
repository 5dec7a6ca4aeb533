/* The CUDA back end as a whole, as the programs use it (operations queued, one wait a forward), on a
 * GPU or over tests/cuemu: a TTT step (losses, every tensor's gradient, the update) equals
 * the CPU's; a served draft chain equals the TTT computation; what an engine serves with
 * drafts, trees, a switch and a rollback equals plain decoding token for token, and, with f32
 * weights, equals what the CPU serves. A chain that the device draws by itself is the one that is drawn level by level. Once warm, a round takes and gives back no
 * memory, on the device or pinned, and waits once, with a chain and without; what it queues is counted (emulated alone, which can count).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <dlfcn.h>
#include "tests/unit/learn/draft_chain.h"
#include "tests/unit/serve/harness.h"

static struct dev *open_with(enum dev_math math, bool graphs)
{
	struct dev_options o = {.kind = DEV_CUDA, .threads = 1, .math = math, .graphs = graphs};
	struct errtext e = {""};
	struct dev *d = NULL;
	int r = dev_new(&o, &d, &e);
	if (r == -ENODEV || r == -ENOTSUP) {
		print_message("skip: %s\n", e.text);
		skip();
	}
	if (r)
		fail_msg("%s", e.text);
	return d;
}

static struct dev *open_dev(enum dev_math math)
{
	return open_with(math, false);
}

static void near(double got, double want, double tol, const char *what)
{
	if (!(fabs(got - want) <= tol * fmax(fabs(want), 1e-3)))
		fail_msg("%s is %.9g, on the CPU %.9g", what, got, want);
}

static void compare_tensors(const struct ttt_case *k, const char *name, const real *got, const real *want, double tol, const char *what)
{
	struct draft_layout lay;
	draft_layout_init(&k->c, &lay);
	for (int i = 0; i < E3_N_TENSORS; i++) {
		double diff = worst(got + lay.off[i], want + lay.off[i], (size_t)lay.rows[i] * (size_t)lay.cols[i]);
		if (!(diff <= tol))
			fail_msg("%s: %s of %s is off by %.3g of its largest", name, what, eagle3_tensor_name((enum eagle3_tensor)i), diff);
	}
}

/* Two steps on both devices; tolerances: of losses, gradients and weights */
static void one_case(const char *name, enum optimizer_kind optimizer, enum dev_math math, const double tol[3])
{
	struct ttt_case k;
	struct dev *d[2] = {open_dev(math), dev_or_null(1, ISA_AUTO)};
	struct trainer *t[2];
	struct train_result res[2];
	ttt_case_open(&k, name);
	k.opt.optimizer = optimizer;
	for (int i = 0; i < 2; i++)
		t[i] = ttt_case_trainer(&k, d[i]);
	for (int step = 0; step < (math == MATH_STRICT ? 2 : 1); step++) {
		for (int i = 0; i < 2; i++)
			assert_int_equal(trainer_eagle3.step(t[i], &k.b, &res[i]), 0);
		for (int i = 0; i < k.opt.ttt_steps; i++) {
			near(res[0].step_loss[i], res[1].step_loss[i], tol[0], "loss of a step");
			near(res[0].step_alpha[i], res[1].step_alpha[i], 10 * tol[0], "alpha of a step");
		}
		near(res[0].grad_norm, res[1].grad_norm, tol[1], "the gradient's norm");
		compare_tensors(&k, name, trainer_eagle3.grads(t[0]), trainer_eagle3.grads(t[1]), tol[1], "the gradient");
		compare_tensors(&k, name, trainer_eagle3.params(t[0]), trainer_eagle3.params(t[1]), tol[2], "the new weight");
	}
	for (int i = 0; i < 2; i++) {
		trainer_eagle3.free(t[i]);
		dev_free(d[i]);
	}
	ttt_case_close(&k);
}

static void ttt_step(void **state)
{
	(void)state;
	const double strict[3] = {1e-5, 2e-5, 2e-4}, fast[3] = {5e-3, 5e-2, 2e-2};
	one_case("plain", OPT_ADAMW, MATH_STRICT, strict);
	one_case("packed", OPT_MUON, MATH_STRICT, strict);
	one_case("yarn", OPT_ADAMW, MATH_STRICT, strict);
	one_case("plain", OPT_ADAMW, MATH_FAST, fast);
}

/* Row t of step i equals chain step i after prefix t, for some rows of two shapes */
static void one_chain(const char *name, int n)
{
	struct ttt_case k;
	struct ttt *t;
	struct errtext e;
	struct chain s;
	struct dev *d = open_dev(MATH_STRICT);
	ttt_case_open(&k, name);
	k.b.n = n;
	size_t row = (size_t)k.c.V_d;
	real *all = malloc((size_t)n * row * sizeof *all), *got = malloc(row * sizeof *got);
	assert_true(all && got);
	assert_int_equal(ttt_new(d, &k.c, k.d2t, k.embedding, TTT_TRAIN, &t, &e), 0);
	assert_int_equal(d->ops->upload(d, t->w, k.params, t->lay.total * sizeof(real)), 0);
	assert_int_equal(ttt_begin(t, n, k.opt.ttt_steps, k.b.ids, k.b.features), 0);
	assert_int_equal(ttt_forward(t, k.b.pos, NULL), 0);
	chain_open(&s, d, &k.c, k.params, k.d2t, k.embedding);
	for (int i = 0; i < 3; i++) {
		double top = 0, diff = 0;
		assert_int_equal(ttt_logits(t, t->step[i].h2, NULL, n - i), 0);
		assert_int_equal(d->ops->download(d, all, t->logits, (size_t)(n - i) * row * sizeof(real)), 0);
		for (int at = 0; at + i < n; at++) {
			chain_extend(&s, k.b.ids, k.b.pos, k.b.features, at, at);
			for (int j = 1; j <= i; j++)
				chain_step(&s, k.b.pos, at, j, k.b.ids[at + 1 + j]);
			assert_int_equal(d->ops->download(d, got, s.logits, row * sizeof(real)), 0);
			for (size_t j = 0; j < row; j++) {
				double off = fabs((double)got[j] - (double)all[(size_t)at * row + j]);
				diff = !(off <= diff) ? off : diff;
				top = fmax(top, fabs((double)got[j]));
			}
		}
		if (!(diff <= 5e-6 * top))
			fail_msg("step %d of %s: %.3g of %.3g", i, name, diff, top);
	}
	chain_close(&s);
	ttt_free(t);
	free(all);
	free(got);
	ttt_case_close(&k);
	dev_free(d);
}

static void chain_equals_ttt(void **state)
{
	(void)state;
	one_chain("plain", 13);
	one_chain("yarn", 9);
}

/* A learner's budget, where the device itself has room: said with numbers, and nothing is held afterwards. */
static void budget(void **state)
{
	(void)state;
	enum { MIB = 1 << 20 };
	struct dev_options o = {.kind = DEV_CUDA, .threads = 1, .background = true, .memory_bytes = 6 * MIB};
	struct ttt_case k;
	struct ttt *t = NULL;
	struct errtext e = {""};
	struct dev *d = open_dev(MATH_FAST);
	dev_free(d);
	assert_int_equal(dev_new(&o, &d, &e), 0);
	ttt_case_open(&k, "plain");
	real *most = d->ops->alloc(d, 2 * MIB - 4096);
	assert_non_null(most);
	assert_int_equal(ttt_new(d, &k.c, k.d2t, k.embedding, TTT_TRAIN, &t, &e), -ENOMEM);
	if (!strstr(e.text, "out of memory for a draft of") || !strstr(e.text, "more would pass this process's 6 MiB of device memory"))
		fail_msg("'%s' does not say why", e.text);
	d->ops->free(d, most);
	assert_int_equal(ttt_new(d, &k.c, k.d2t, k.embedding, TTT_TRAIN, &t, &e), 0);
	ttt_free(t);
	ttt_case_close(&k);
	dev_free(d);
}

/* ---- the engine ---- */

enum { JOBS = 4, WEIGHTS = 2 };

struct world {
	struct dev *d[3]; /* tested, with graphs; plain, without; CPU */
	struct llama *target[3];
	char dir[2][64];
};

static struct engine *make_engine(const struct world *w, int side, bool f32, int seqs, int tree)
{
	struct engine_options o = {.dev = w->d[side], .target = w->target[side], .f32_kv = f32, .max_seqs = seqs, .max_queue = 16, .max_context = 160, .kv_tokens = 160 * 6,
				   .prefix = PREFIX_ALL, .prefill_chunk = 16, .draft_k = 4, .draft_mode = tree ? DRAFT_TREE : DRAFT_CHAIN, .draft_nodes = tree,
				   .eog_ids = {2, 77}, .n_eog = 2};
	struct engine *g = NULL;
	struct errtext e = {0};
	if (engine_new(&o, &g, &e))
		fail_msg("engine: %s", e.text);
	return g;
}

static void world_open(struct world *w, bool f32)
{
	struct errtext e = {0};
	const enum toy_kind kinds[2] = {TOY_AGREES, TOY_LEANS};
	memset(w, 0, sizeof *w);
	for (int i = 0; i < 3; i++) {
		w->d[i] = i < 2 ? open_with(MATH_STRICT, i == 0) : dev_or_null(1, ISA_AUTO);
		w->target[i] = toy_target(w->d[i], f32 ? 0.05f : 0.15f, f32 ? DT_F32 : DT_BF16);
		assert_non_null(w->target[i]);
	}
	for (int i = 0; i < 2; i++) {
		snprintf(w->dir[i], sizeof w->dir[i], "/tmp/redraft-cuda-%d-%d", (int)getpid(), i);
		if (toy_draft(w->dir[i], kinds[i], 11, 2, &e))
			fail_msg("draft: %s", e.text);
	}
}

static void world_close(struct world *w)
{
	for (int i = 0; i < 3; i++) {
		llama_free(w->target[i]);
		dev_free(w->d[i]);
	}
	for (int i = 0; i < 2; i++)
		assert_int_equal(fs_remove_tree(w->dir[i]), 0);
}

static void must(int r, const struct errtext *e)
{
	if (r)
		fail_msg("%s (%d)", e->text, r);
}

static void ask(struct engine *g, const struct job *like, struct job *j)
{
	*j = *like;
	j->ticks = NULL;
	assert_int_equal(job_submit(g, j), 0);
	job_wait(j);
}

/* Requests together under a draft, with a switch and a rollback in mid-stream; then each alone without one */
static void one_engine(struct world *w, bool f32, int tree, uint64_t *ret_accepted)
{
	static struct job jobs[JOBS], ref, cpu;
	char sha[2][65];
	struct errtext e = {0};
	atomic_int ticks = 0;
	struct engine *g = make_engine(w, 0, f32, 3, tree), *plain = make_engine(w, 1, f32, 1, 0), *other = make_engine(w, 2, f32, 1, 0);
	for (int i = 0; i < 2; i++)
		must(engine_load(g, (uint32_t)(i + 1), w->dir[i], sha[i], &e), &e);
	must(engine_activate(g, 1, false, 0, &e), &e);
	for (int i = 0; i < JOBS; i++) {
		job_random(&jobs[i], (uint64_t)(100 * tree + i), 5 + 13 * i, 24);
		jobs[i].how = (struct sampling){.top_p = i > 1 ? 0.9f : 1, .min_p = i == 3 ? 0.02f : 0, .temperature = i ? 0.7f : 0, .seed = (uint64_t)i};
		jobs[i].logprobs = i == 2;
		jobs[i].ticks = &ticks;
		jobs[i].stall_at = 6;
		assert_int_equal(job_submit(g, &jobs[i]), 0);
	}
	ticks_wait(&ticks, 6, jobs, JOBS);
	must(engine_activate(g, 2, false, 1, &e), &e);
	must(engine_activate(g, 1, true, 0, &e), &e);
	for (int i = 0; i < JOBS; i++) {
		job_wait(&jobs[i]);
		ask(plain, &jobs[i], &ref);
		assert_true(ref.n_out > 0);
		if (!job_same(&ref, &jobs[i]))
			fail_msg("tree %d, f32 %d: request %d is not what plain decoding gives", tree, f32, i);
		if (f32 && !ref.logprobs) {
			ask(other, &jobs[i], &cpu);
			if (!job_same(&ref, &cpu))
				fail_msg("request %d is not what the CPU gives", i);
		}
		*ret_accepted += jobs[i].stats.accepted;
	}
	struct engine_status s;
	engine_status(g, &s);
	assert_string_equal(s.graphs, "");
	engine_free(g);
	engine_free(plain);
	engine_free(other);
}

static void decode(void **state)
{
	(void)state;
	for (int f32 = 1; f32 >= 0; f32--) {
		struct world w;
		uint64_t accepted = 0;
		world_open(&w, f32);
		one_engine(&w, f32, 0, &accepted);
		one_engine(&w, f32, 9, &accepted);
		print_message("%llu proposals accepted\n", (unsigned long long)accepted);
		assert_true(accepted > 10);
		world_close(&w);
	}
}

/* Fast mode with a head of 64, on an emulated device, whose products do not depend on the number of rows: then what attention computes of a prompt's rows shows alone. What is said
 * together, drafted, in small chunks, by requests that share prefixes and lose their pages, has the tokens and log-probabilities of each alone. */
static void fast_prompts(void **state)
{
	(void)state;
	static struct job jobs[JOBS], ref;
	struct errtext e = {0};
	struct engine_status s;
	struct engine *g[2];
	char dir[64], sha[65];
	struct dev *d = open_dev(MATH_FAST);
	if (!strstr(d->about, "emulated")) {
		dev_free(d);
		print_message("skip: products in fast mode depend on the number of rows\n");
		skip();
	}
	struct llama *target = toy_target_of(d, 0.15f, DT_BF16, true);
	assert_non_null(target);
	for (int i = 0; i < 2; i++) {
		struct engine_options o = {.dev = d, .target = target, .max_seqs = i ? 1 : 3, .max_queue = 16, .max_context = 160, .kv_tokens = 256, .prefix = i ? PREFIX_OFF : PREFIX_ALL,
					   .prefill_chunk = i ? 100 : 13, .draft_k = 4, .draft_mode = DRAFT_CHAIN, .eog_ids = {2, 77}, .n_eog = 2};
		must(engine_new(&o, &g[i], &e), &e);
	}
	snprintf(dir, sizeof dir, "/tmp/redraft-cuda-%d-fast", (int)getpid());
	must(toy_draft(dir, TOY_AGREES, 11, 2, &e), &e);
	must(engine_load(g[0], 1, dir, sha, &e), &e);
	must(engine_activate(g[0], 1, false, 0, &e), &e);
	for (int i = 0; i < JOBS; i++) {
		job_random(&jobs[i], (uint64_t)(300 + i), 70 + 9 * i, 50);
		memcpy(jobs[i].prompt, jobs[0].prompt, (size_t)(i % 2 ? 45 : 0) * sizeof *jobs[i].prompt);
		jobs[i].logprobs = jobs[i].ignore_eos = true;
		assert_int_equal(job_submit(g[0], &jobs[i]), 0);
	}
	for (int i = 0; i < JOBS; i++)
		job_wait(&jobs[i]);
	engine_status(g[0], &s);
	engine_free(g[0]);
	for (int i = 0; i < JOBS; i++) {
		ask(g[1], &jobs[i], &ref);
		if (!job_same(&ref, &jobs[i]))
			fail_msg("request %d is not what it is alone", i);
	}
	print_message("%llu preempted\n", (unsigned long long)s.preemptions);
	assert_true(s.preemptions >= 1);
	engine_free(g[1]);
	llama_free(target);
	dev_free(d);
	assert_int_equal(fs_remove_tree(dir), 0);
}

/* The same requests twice on emulated devices, of which the second claims that the host sees its memory: there a chain goes level by level.
 * All is the same, what was proposed too: with texts that end inside a chain, with several requests, and with a draft whose numbers overflow. */
static void chains(void **state)
{
	(void)state;
	static const enum toy_kind kinds[3] = {TOY_AGREES, TOY_LEANS, TOY_OVERFLOW};
	static struct job jobs[2][JOBS];
	struct world w;
	struct errtext e = {0};
	uint64_t proposed = 0, dropped = 0;
	char dir[64], sha[65];
	world_open(&w, false);
	bool emulated = strstr(w.d[0]->about, "emulated");
	llama_free(w.target[1]);
	dev_free(w.d[1]);
	must(dev_new(&(struct dev_options){.kind = DEV_CUDA, .threads = 1, .wait = true}, &w.d[1], &e), &e);
	w.target[1] = toy_target(w.d[1], 0.15f, DT_BF16);
	snprintf(dir, sizeof dir, "/tmp/redraft-cuda-%d-chains", (int)getpid());
	for (int kind = 0; kind < 3 && emulated; kind++) {
		must(toy_draft(dir, kinds[kind], 11, 2, &e), &e);
		for (int side = 0; side < 2; side++) {
			w.d[1]->own_memory = false;
			struct engine *g = make_engine(&w, side, false, 3, 0);
			must(engine_load(g, 1, dir, sha, &e), &e);
			must(engine_activate(g, 1, false, 0, &e), &e);
			for (int i = 0; i < JOBS; i++) {
				job_random(&jobs[side][i], (uint64_t)(10 * kind + i), 4 + 9 * i, 17 + i);
				jobs[side][i].how = (struct sampling){.top_p = 1, .temperature = i == 1 ? 0.7f : 0, .seed = 3};
				assert_int_equal(job_submit(g, &jobs[side][i]), 0);
			}
			for (int i = 0; i < JOBS; i++)
				job_wait(&jobs[side][i]);
			engine_free(g);
			w.d[1]->own_memory = true;
		}
		for (int i = 0; i < JOBS; i++) {
			const struct job *a = &jobs[0][i], *b = &jobs[1][i];
			if (!job_same(a, b) || a->stats.rounds != b->stats.rounds || a->stats.proposed != b->stats.proposed || a->stats.accepted != b->stats.accepted)
				fail_msg("draft %d, request %d: %d tokens in %u rounds, %u of %u proposals; level by level %d in %u, %u of %u", kind, i, a->n_out, a->stats.rounds,
					 a->stats.accepted, a->stats.proposed, b->n_out, b->stats.rounds, b->stats.accepted, b->stats.proposed);
			proposed += a->stats.proposed;
			dropped += kinds[kind] == TOY_OVERFLOW && !a->stats.proposed;
		}
		assert_int_equal(fs_remove_tree(dir), 0);
	}
	world_close(&w);
	if (!emulated) {
		print_message("skip: the host sees an emulated device's memory only\n");
		skip();
	}
	print_message("%llu proposed\n", (unsigned long long)proposed);
	assert_true(proposed > 100 && dropped > 0);
}

static long (*called)(const char *);
static const char *const calls[] = {"launch", "cublasGemmEx", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMallocAsync", "cudaFreeAsync", "cudaHostAlloc",
				    "cudaGraphLaunch", "cudaGraphInstantiate"};
enum { LAUNCHES, PRODUCTS, COPIES, STREAM_WAITS, EVENT_WAITS, TAKES, GIVES, PINS, GRAPHS, CAPTURES, CALLS };

/* One request alone, of n tokens after 9: what was called, and its rounds. */
static uint32_t one_request(struct engine *g, uint64_t seed, int n, bool sampled, long ret[CALLS])
{
	static struct job j;
	job_random(&j, seed, 9, n);
	j.how = (struct sampling){.top_p = sampled ? 0.95f : 1, .temperature = sampled ? 0.7f : 0};
	j.ignore_eos = sampled;
	for (int i = 0; i < CALLS; i++)
		ret[i] = called(calls[i]);
	assert_int_equal(job_submit(g, &j), 0);
	job_wait(&j);
	for (int i = 0; i < CALLS; i++)
		ret[i] = called(calls[i]) - ret[i];
	return j.stats.rounds;
}

static void count_open(void)
{
	void *lib = dlopen("libcuemu.so", RTLD_NOW | RTLD_NOLOAD);
	*(void **)(void *)&called = lib ? dlsym(lib, "cuemu_called") : NULL;
}

/* Version 1 again where it lies; back; version 1 loaded anew into its old place; and a request after each. Returns the graphs launched. */
static long swap_without_capture(struct engine *g, const struct world *w, long ret[CALLS])
{
	struct errtext e = {0};
	char sha[65];
	long launched = 0;
	for (int i = 0; i < 2; i++)
		for (uint32_t v = 1; v <= 2; v++) { /* alone, and now warm */
			must(engine_activate(g, v, true, 0, &e), &e);
			(void)one_request(g, 7, 20, false, ret);
		}
	for (int step = 0; step < 3; step++) {
		if (step == 2) {
			must(engine_unload(g, 1, &e), &e);
			must(engine_load(g, 1, w->dir[0], sha, &e), &e);
		}
		must(engine_activate(g, step % 2 ? 2 : 1, true, 0, &e), &e);
		(void)one_request(g, 7, 20, false, ret);
		assert_int_equal(ret[CAPTURES], 0);
		launched += ret[GRAPHS];
	}
	return launched;
}

/* What engines say with graphs and without, chains and trees: the same, in the same rounds. A switch, a rollback, and another version loaded into the memory of one
 * that was unloaded take no new graph; what could not be captured would have a reason. */
static void graphs(void **state)
{
	(void)state;
	static struct job jobs[2][JOBS];
	struct world w;
	struct errtext e = {0};
	char sha[65];
	long few[CALLS], calls_made = 0;
	world_open(&w, false);
	count_open();
	for (int tree = 0; tree < 10; tree += 9) {
		for (int side = 0; side < 2; side++) {
			struct engine *g = make_engine(&w, side, false, 3, tree);
			for (int i = 0; i < 2; i++) {
				must(engine_load(g, (uint32_t)(i + 1), w.dir[i], sha, &e), &e);
				must(engine_activate(g, (uint32_t)(i + 1), true, 0, &e), &e);
			}
			for (int turn = 0; turn < 3; turn++) { /* again, as a graph is made the second time */
				must(engine_activate(g, (uint32_t)(turn % 2 + 1), true, 0, &e), &e);
				for (int i = 0; i < JOBS; i++) {
					job_random(&jobs[side][i], (uint64_t)(50 + i), 5 + 3 * i, 12);
					jobs[side][i].how = (struct sampling){.top_p = 1, .temperature = i == 1 ? 0.7f : 0, .seed = 3};
					assert_int_equal(job_submit(g, &jobs[side][i]), 0);
				}
				for (int i = 0; i < JOBS; i++)
					job_wait(&jobs[side][i]);
			}
			if (!side && called)
				calls_made += swap_without_capture(g, &w, few);
			struct engine_status s;
			engine_status(g, &s);
			assert_string_equal(s.graphs, "");
			engine_free(g);
		}
		for (int i = 0; i < JOBS; i++)
			if (!job_same(&jobs[0][i], &jobs[1][i]))
				fail_msg("tree %d, request %d: graphs change what is said", tree, i);
	}
	world_close(&w);
	if (called)
		assert_true(calls_made > 20);
}

/* Versions are loaded into the place of unloaded ones while requests run: nobody's memory is touched by what the loading stream still has to do. */
static void loads_beside(void **state)
{
	(void)state;
	static struct job jobs[JOBS], ref;
	struct world w;
	struct errtext e = {0};
	char sha[65];
	world_open(&w, false);
	struct engine *g = make_engine(&w, 0, false, 3, 0), *plain = make_engine(&w, 1, false, 1, 0);
	for (uint32_t i = 1; i <= 2; i++)
		must(engine_load(g, i, w.dir[i - 1], sha, &e), &e);
	must(engine_activate(g, 1, false, 0, &e), &e);
	for (int i = 0; i < JOBS; i++) {
		job_random(&jobs[i], (uint64_t)(70 + i), 5 + 3 * i, 40);
		jobs[i].ignore_eos = true;
		assert_int_equal(job_submit(g, &jobs[i]), 0);
	}
	int n = 0;
	for (; !jobs_done(jobs, JOBS) && n < 50; n++) {
		must(engine_unload(g, 2, &e), &e);
		must(engine_load(g, 2, w.dir[1], sha, &e), &e);
	}
	print_message("%d loads while requests ran\n", n);
	assert_true(n > 0);
	for (int i = 0; i < JOBS; i++) {
		job_wait(&jobs[i]);
		ask(plain, &jobs[i], &ref);
		assert_true(job_same(&ref, &jobs[i]));
	}
	engine_free(g);
	engine_free(plain);
	world_close(&w);
}

/* Four versions and then a fifth in the place of one, with so much memory: how many loads went well. */
static int loads(const struct world *w, int kib, bool graphs)
{
	struct dev_options o = {.kind = DEV_CUDA, .threads = 1, .graphs = graphs, .memory_bytes = (size_t)kib << 10};
	struct errtext e = {0};
	struct dev *d;
	struct engine *g = NULL;
	char sha[65];
	uint32_t n = 0;
	must(dev_new(&o, &d, &e), &e);
	struct llama *t = toy_target(d, 0.15f, DT_BF16);
	struct engine_options eo = {.dev = d, .target = t, .max_seqs = 3, .max_queue = 16, .max_context = 160, .kv_tokens = 960, .prefill_chunk = 16, .draft_k = 4, .draft_mode = DRAFT_CHAIN};
	if (t && engine_new(&eo, &g, &e) == 0) {
		while (n < 4 && engine_load(g, n + 1, w->dir[0], sha, &e) == 0)
			n++;
		if (n == 4) {
			must(engine_activate(g, 1, true, 0, &e), &e);
			must(engine_unload(g, 2, &e), &e);
			n += engine_load(g, 5, w->dir[1], sha, &e) == 0;
		}
		engine_free(g);
	}
	if (t)
		llama_free(t);
	dev_free(d);
	return (int)n;
}

/* What an unloaded draft leaves for the next one is no memory lost: where five loads have just enough without graphs, they have with them. */
static void spare(void **state)
{
	(void)state;
	struct world w;
	int few = 1 << 10, enough = 1 << 17; /* KiB */
	world_open(&w, false);
	assert_int_equal(loads(&w, enough, false), 5);
	while (enough - few > 128) {
		int kib = (few + enough) / 2;
		*(loads(&w, kib, false) == 5 ? &enough : &few) = kib;
	}
	print_message("%d KiB\n", enough);
	assert_int_equal(loads(&w, enough, true), 5);
	world_close(&w);
}

/* ---- what a round costs ---- */

static void rounds(void **state)
{
	(void)state;
	struct world w;
	struct errtext e = {0};
	char sha[65];
	world_open(&w, false);
	count_open();
	for (int i = 0; i < 5 && called; i++) {
		bool graphs = i >= 2, sampled = i == 4, drafted = i % 2 || sampled;
		struct engine *g = make_engine(&w, !graphs, false, 1, 0);
		long few[CALLS], many[CALLS];
		int n = sampled ? 45 : 100; /* it takes more rounds */
		if (drafted) {
			must(engine_load(g, 1, w.dir[0], sha, &e), &e);
			must(engine_activate(g, 1, false, 0, &e), &e);
		}
		(void)one_request(g, 1, n + 20, sampled, few); /* all is as large as it gets, */
		for (int j = 0; j < (drafted ? 4 : 1) && graphs; j++) /* and was seen twice */
			(void)one_request(g, (uint64_t)(2 + j % 2), j % 2 ? n : 20, sampled, few);
		uint32_t a = one_request(g, 2, 20, sampled, few), b = one_request(g, 3, n, sampled, many);
		print_message("%s%s%s: %u and %u rounds\n", drafted ? "drafted" : "plain", sampled ? ", sampled" : "", graphs ? ", graphs" : "", a, b);
		assert_true(b > a + 10);
		for (int j = 0; j < CALLS; j++)
			print_message("  %-22s %6.2f a round\n", calls[j], (double)(many[j] - few[j]) / (double)(b - a));
		for (int j = TAKES; j <= PINS; j++)
			assert_true(few[j] == 0 && many[j] == 0);
		assert_int_equal(many[STREAM_WAITS] - few[STREAM_WAITS], b - a); /* one each, for draft and target together */
		assert_int_equal(many[EVENT_WAITS], 0);
		assert_true(few[CAPTURES] == 0 && many[CAPTURES] == 0);
		/* the target's; and, drafted, an extend and three steps. Beside them: topk or draw, of which the second brings its numbers along and no row
		 * back, and what brings an extend's rows and feedback to their place. */
		if (graphs) {
			assert_true(many[GRAPHS] - few[GRAPHS] <= (long)(b - a) * (drafted ? 5 : 1));
			assert_true(many[LAUNCHES] - few[LAUNCHES] <= (long)(b - a) * (drafted ? 5 : 1));
			assert_true(many[COPIES] - few[COPIES] <= (long)(b - a) * ((drafted ? 6 : 1) + sampled));
			assert_int_equal(many[PRODUCTS] - few[PRODUCTS], 0);
		}
		engine_free(g);
	}
	world_close(&w);
	if (!called) {
		print_message("skip: a real device does not count\n");
		skip();
	}
}

#ifndef CUDA_ROUNDS /* the tests of rounds are a program of their own: emulated ones are dear */
#define CUDA_ROUNDS 0
#endif

int main(void)
{
	const struct CMUnitTest whole[] = {cmocka_unit_test(ttt_step), cmocka_unit_test(budget), cmocka_unit_test(chain_equals_ttt), cmocka_unit_test(decode), cmocka_unit_test(fast_prompts)};
	const struct CMUnitTest by_round[] = {cmocka_unit_test(chains), cmocka_unit_test(graphs), cmocka_unit_test(loads_beside), cmocka_unit_test(spare), cmocka_unit_test(rounds)};
	return CUDA_ROUNDS ? cmocka_run_group_tests(by_round, NULL, NULL) : cmocka_run_group_tests(whole, NULL, NULL);
}
