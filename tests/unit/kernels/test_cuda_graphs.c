/* ops.h `repeat` on a GPU: what is launched as a graph has the bits of what is called, whatever the host arrays say by then, with contexts that grow and
 * shrink, chains and trees; each size of tables is captured once. A run that cannot be captured, and any call of a capture that
 * fails, end in plain launches with a reason and the right numbers. Where the device is emulated, so are captures: the last test asks the stand-in
 * for what CUDA's documentation says of them.
 */
#include "kt.h"
#include "tests/cuemu/include/cuda_runtime_api.h"
#include <dlfcn.h>

enum { M = 3, N = 50, K = 64, PAGES = 36, MIB = 1 << 20 };

struct work {
	struct dev *d;
	struct weight w;
	struct kv_pool kv;
	real *x, *y, *z, *out;
	uint32_t *given;
	uint32_t ids[M], slots[M], rows[M], pages[PAGES];
	int16_t parent[M];
	struct attn_seq seq;
	int key, wrong; /* 1: takes memory, 2: waits */
	bool prompt, emulated;
};

static int run(void *arg)
{
	struct work *k = arg;
	const struct ops *o = k->d->ops;
	float best;
	uint32_t id;
	int r = o->embed(k->d, k->x, &k->w, k->ids, k->given, M);
	r = r ? r : o->kv_write(k->d, &k->kv, 0, k->x, k->x, K, k->slots, M);
	r = r ? r : o->attn(k->d, k->y, K, k->x, K, &k->kv, 0, &k->seq, 1, 1, 0.25f);
	r = r ? r : o->linear(k->d, k->z, N, &k->w, k->y, K, M, false);
	if (k->wrong == 1) {
		void *p = o->alloc(k->d, 100);
		r = p ? r : -ENOMEM;
		o->free(k->d, p);
	}
	if (k->wrong == 2)
		r = r ? r : o->topk(k->d, &id, &best, NULL, k->z, N, 1, N, 1);
	return r ? r : o->copy_rows(k->d, k->out, N, k->z, N, k->rows, M, N);
}

static void work_open_as(struct work *k, enum dev_math math, bool graphs, const char *fault)
{
	float *w = kt_floats(N * K, 1), *past = kt_floats(PAGES * 32 * K, 1);
	struct errtext e = {""};
	memset(k, 0, sizeof *k);
	(void)(fault ? setenv("CUEMU_FAULT", fault, 1) : unsetenv("CUEMU_FAULT"));
	int r = dev_new(&(struct dev_options){.kind = DEV_CUDA, .threads = 1, .math = math, .graphs = graphs}, &k->d, &e);
	if (r == -ENODEV || r == -ENOTSUP) {
		print_message("skip: %s\n", e.text);
		skip();
	}
	assert_int_equal(r, 0);
	k->emulated = strstr(k->d->about, "emulated");
	const struct ops *o = k->d->ops;
	k->kv = (struct kv_pool){.n_layer = 1, .n_kv = 1, .d = K, .page_tok = 32, .n_pages = PAGES, .type = DT_F32};
	assert_int_equal(o->weight_pack(k->d, &k->w, DT_BF16, N, K, w, DT_F32), 0);
	assert_int_equal(o->kv_new(k->d, &k->kv), 0);
	k->x = o->alloc(k->d, M * K * sizeof(real));
	k->y = o->alloc(k->d, M * K * sizeof(real));
	k->z = o->alloc(k->d, M * N * sizeof(real));
	k->out = o->alloc(k->d, M * N * sizeof(real));
	k->given = o->alloc(k->d, sizeof *k->given);
	assert_true(k->x && k->y && k->z && k->out && k->given);
	assert_int_equal(o->upload(k->d, k->kv.k, past, PAGES * 32 * K * sizeof *past), 0);
	assert_int_equal(o->upload(k->d, k->kv.v, past, PAGES * 32 * K * sizeof *past), 0);
	kt_free(w), kt_free(past);
}

static void work_open(struct work *k, bool graphs, const char *fault)
{
	work_open_as(k, MATH_STRICT, graphs, fault);
}

static void work_close(struct work *k)
{
	const struct ops *o = k->d->ops;
	void *const all[] = {k->x, k->y, k->z, k->out, k->given};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		o->free(k->d, all[i]);
	o->kv_free(k->d, &k->kv);
	o->weight_free(k->d, &k->w);
	dev_free(k->d);
	(void)unsetenv("CUEMU_FAULT");
}

/* One round: the arrays say something new, and so does the memory that is read. 0 and its result, or what failed. */
static int one(struct work *k, uint32_t round, int n_past, bool tree, real out[M * N])
{
	const struct ops *o = k->d->ops;
	uint32_t given = (7 * round + 1) % N;
	for (uint32_t i = 0; i < PAGES; i++)
		k->pages[i] = (i + round) % PAGES;
	for (uint32_t i = 0; i < M; i++) {
		uint32_t place = (uint32_t)n_past + i;
		k->ids[i] = i == 1 ? OP_GIVEN : (round + 11 * i) % N;
		k->slots[i] = k->pages[place / 32] * 32 + place % 32;
		k->rows[i] = (i + round) % M;
		k->parent[i] = i ? 0 : -1;
	}
	k->seq = (struct attn_seq){.pages = k->pages, .n_past = n_past, .n_rows = M, .parent = tree ? k->parent : NULL, .tree0 = n_past, .prompt = k->prompt};
	int r = o->upload(k->d, k->given, &given, sizeof given);
	r = r ? r : o->repeat(k->d, &k->key, sizeof k->key, run, k);
	return r ? r : o->download(k->d, out, k->out, M * N * sizeof *out);
}

/* Where there is a real device it says nothing of its calls. */
static void needs_emulation(struct work *k)
{
	if (k->emulated)
		return;
	work_close(k);
	print_message("skip: faults are played and calls counted on an emulated device only\n");
	skip();
}

static long called(const char *what)
{
	void *lib = dlopen("libcuemu.so", RTLD_NOW | RTLD_NOLOAD);
	long (*count)(const char *);
	*(void **)(void *)&count = dlsym(lib, "cuemu_called");
	(void)dlclose(lib);
	return count(what);
}

static void same_bits(void **state)
{
	(void)state;
	static const struct { int n_past, tree; } shape[] = {{5, 0}, {40, 0}, {250, 0}, {300, 0}, {310, 0}, {700, 0}, {690, 0}, {20, 1}, {33, 1}, {7, 0}, {299, 0}, {800, 0}, {21, 1}};
	enum { SHAPES = sizeof shape / sizeof *shape };
	struct work k[2];
	real out[2][M * N];
	kt_seed(90);
	for (int i = 0; i < 2; i++) {
		kt_seed(91);
		work_open(&k[i], i == 0, NULL);
	}
	bool counted = k[0].emulated;
	long made = counted ? called("cudaGraphInstantiate") : 0, launched = counted ? called("cudaGraphLaunch") : 0;
	for (uint32_t round = 0; round < 3 * SHAPES; round++) {
		for (int i = 0; i < 2; i++)
			assert_int_equal(one(&k[i], round, shape[round % SHAPES].n_past, shape[round % SHAPES].tree, out[i]), 0);
		assert_memory_equal(out[0], out[1], sizeof out[0]);
	}
	if (counted) {
		assert_int_equal(called("cudaGraphInstantiate") - made, 4); /* short, over a split, over two, a tree */
		assert_int_equal(called("cudaGraphLaunch") - launched, 3 * SHAPES - 4);
	}
	assert_string_equal(k[0].d->graphs, "");
	/* what the operations would refuse is refused, though they would not be called */
	k[0].ids[0] = N;
	assert_int_equal(k[0].d->ops->repeat(k[0].d, &k[0].key, sizeof k[0].key, run, &k[0]), -EINVAL);
	k[0].ids[0] = 0;
	k[0].slots[1] = PAGES * 32;
	assert_int_equal(k[0].d->ops->repeat(k[0].d, &k[0].key, sizeof k[0].key, run, &k[0]), -EINVAL);
	/* scratch that moves takes the graphs along */
	struct weight wide = {0};
	float *w = kt_floats(N * 16 * MIB / 1024, 1);
	real *big = k[0].d->ops->alloc(k[0].d, 1024 * sizeof *big), *tall = k[0].d->ops->alloc(k[0].d, 4 * MIB * sizeof *tall);
	assert_true(big && tall);
	assert_int_equal(k[0].d->ops->weight_pack(k[0].d, &wide, DT_BF16, 16 * MIB / 1024, 16, w, DT_F32), 0);
	made = counted ? called("cudaGraphInstantiate") : 0;
	assert_int_equal(k[0].d->ops->linear(k[0].d, tall, 16 * MIB / 1024, &wide, big, 16, 64, false), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(one(&k[i], 77, 30, false, out[i]), 0);
	assert_memory_equal(out[0], out[1], sizeof out[0]);
	if (counted)
		assert_int_equal(called("cudaGraphInstantiate") - made, 1);
	k[0].d->ops->weight_free(k[0].d, &wide);
	k[0].d->ops->free(k[0].d, big), k[0].d->ops->free(k[0].d, tall);
	kt_free(w);
	for (int i = 0; i < 2; i++)
		work_close(&k[i]);
}

/* A prompt's rows on tensor cores and others by turns, over a tile's border and a split's */
static void prompts(void **state)
{
	(void)state;
	static const struct { int n_past; bool prompt; } shape[] = {{5, true}, {62, true}, {700, true}, {5, false}, {300, false}, {1021, true}, {1022, true}, {1030, true}, {20, true}};
	enum { SHAPES = sizeof shape / sizeof *shape, GRAPHS = 6 /* a page or eight, a context, over a split in two sizes of page tables; plain: short, over a split */ };
	struct work k[2];
	real out[2][M * N];
	for (int i = 0; i < 2; i++) {
		kt_seed(96);
		work_open_as(&k[i], MATH_FAST, i == 0, NULL);
	}
	bool counted = k[0].emulated;
	long made = counted ? called("cudaGraphInstantiate") : 0, launched = counted ? called("cudaGraphLaunch") : 0;
	for (uint32_t round = 0; round < 3 * SHAPES; round++) {
		for (int i = 0; i < 2; i++) {
			k[i].prompt = shape[round % SHAPES].prompt;
			assert_int_equal(one(&k[i], round, shape[round % SHAPES].n_past, false, out[i]), 0);
		}
		assert_memory_equal(out[0], out[1], sizeof out[0]);
	}
	if (counted) {
		assert_int_equal(called("cudaGraphInstantiate") - made, GRAPHS);
		assert_int_equal(called("cudaGraphLaunch") - launched, 3 * SHAPES - GRAPHS);
	}
	assert_string_equal(k[0].d->graphs, "");
	for (int i = 0; i < 2; i++)
		work_close(&k[i]);
}

/* Whatever fails, and whenever: an operation that fails plainly says so, everything else is right. */
static void faults(void **state)
{
	(void)state;
	static const char *const calls[] = {"cudaStreamBeginCapture:1:900", "cudaStreamEndCapture:1:901", "cudaGraphInstantiate:1:2", "cudaGraphLaunch:1:1", "cudaGraphLaunch:2:2"};
	static const struct { const char *call; int skip, code; } any[4] = {{"cublasGemmEx", 0, 1}, {"cudaMallocAsync", 9, 2}, {"cudaMemcpyAsync", 3, 1}, {"launch", 0, 1}}; /* skip: opening */
	struct work plain, k;
	real want[6][M * N], out[M * N];
	kt_seed(92);
	work_open(&plain, false, NULL);
	needs_emulation(&plain);
	for (uint32_t round = 0; round < 6; round++)
		assert_int_equal(one(&plain, round, 10, false, want[round]), 0);
	work_close(&plain);
	int reasons = 0;
	for (int c = 0; c < 61; c++) {
		char plan[64];
		int failed = 0;
		if (c < 5)
			(void)snprintf(plan, sizeof plan, "%s", calls[c]);
		else
			(void)snprintf(plan, sizeof plan, "%s:%d:%d", any[c % 4].call, c / 4 + any[c % 4].skip, any[c % 4].code);
		kt_seed(92);
		work_open(&k, true, plan);
		for (uint32_t round = 0; round < 6; round++) {
			int r = one(&k, round, 10, false, out);
			if (!r && memcmp(out, want[round], sizeof out) != 0)
				fail_msg("%s: round %u is wrong", plan, round);
			failed += r != 0;
		}
		if (failed > 1 || (c < 5 && failed) || (c < 5 && !*k.d->graphs) || k.d->lost)
			fail_msg("%s: %d rounds failed, '%s'", plan, failed, k.d->graphs);
		reasons += *k.d->graphs != 0;
		work_close(&k);
	}
	assert_true(reasons > 8);
	for (int wrong = 1; wrong <= 2; wrong++) {
		kt_seed(92);
		work_open(&k, true, NULL);
		k.wrong = wrong;
		for (uint32_t round = 0; round < 4; round++) {
			assert_int_equal(one(&k, round, 10, false, out), 0);
			assert_memory_equal(out, want[round], sizeof out);
		}
		if (!strstr(k.d->graphs, wrong == 1 ? "inside a capture" : "cudaErrorStreamCaptureUnsupported"))
			fail_msg("'%s' does not say what was wrong", k.d->graphs);
		assert_false(k.d->lost);
		work_close(&k);
	}
	kt_seed(92);
	work_open(&k, true, "cudaGraphLaunch:2:719"); /* one that lasts is the device's end, as ever */
	int r = 0;
	for (uint32_t round = 0; round < 6 && !r; round++)
		r = one(&k, round, 10, false, out);
	assert_int_equal(r, -EIO);
	assert_true(k.d->lost);
	work_close(&k);
}

#define OF(name) __typeof__(&name) p_##name; *(void **)(void *)&p_##name = dlsym(lib, #name); assert_true(p_##name != NULL)

static void the_stand_in(void **state)
{
	(void)state;
	struct work k;
	kt_seed(93);
	work_open(&k, false, NULL);
	needs_emulation(&k);
	void *lib = dlopen("libcuemu.so", RTLD_NOW | RTLD_NOLOAD), *pinned = NULL, *mem = NULL;
	assert_non_null(lib);
	OF(cudaStreamCreateWithPriority); OF(cudaStreamDestroy); OF(cudaStreamSynchronize); OF(cudaStreamBeginCapture); OF(cudaStreamEndCapture);
	OF(cudaGraphInstantiate); OF(cudaGraphLaunch); OF(cudaGraphDestroy); OF(cudaGraphExecDestroy); OF(cudaMemcpyAsync); OF(cudaMallocAsync);
	OF(cudaFreeAsync); OF(cudaHostAlloc); OF(cudaFreeHost); OF(cudaEventCreateWithFlags); OF(cudaEventDestroy); OF(cudaEventRecord); OF(cudaEventQuery); OF(cudaStreamWaitEvent);
	OF(cudaMemsetAsync);
	cudaStream_t s, t;
	cudaEvent_t a, b;
	cudaGraph_t g;
	cudaGraphExec_t x;
	assert_int_equal(p_cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, 0) | p_cudaStreamCreateWithPriority(&t, 0, 0), 0);
	assert_int_equal(p_cudaEventCreateWithFlags(&a, cudaEventDisableTiming) | p_cudaEventCreateWithFlags(&b, cudaEventDisableTiming), 0);
	assert_int_equal(p_cudaHostAlloc(&pinned, 8, 0), 0);
	int *n = pinned, *m = n + 1;
	*n = 1, *m = 0;
	/* nothing runs before a launch; a launch reads memory as it is then; one after the other */
	assert_int_equal(p_cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), 0);
	assert_int_equal(p_cudaMemcpyAsync(m, n, sizeof *n, cudaMemcpyDefault, s), 0);
	assert_int_equal(p_cudaStreamSynchronize(t), 0); /* another stream's business */
	assert_int_equal(p_cudaStreamEndCapture(s, &g), 0);
	assert_int_equal(p_cudaStreamSynchronize(s), 0);
	assert_int_equal(*m, 0);
	assert_int_equal(p_cudaGraphInstantiate(&x, g, 0) | p_cudaGraphDestroy(g), 0);
	for (int i = 5; i < 7; i++) {
		*n = i;
		assert_int_equal(p_cudaGraphLaunch(x, s) | p_cudaStreamSynchronize(s), 0);
		assert_int_equal(*m, i);
	}
	assert_int_equal(p_cudaGraphExecDestroy(x), 0);
	/* what spoils a capture */
	for (int how = 0; how < 6; how++) {
		int want[6] = {cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureIsolation,
			       cudaErrorStreamCaptureImplicit, cudaErrorInvalidValue}, got = 0;
		void *more = NULL;
		cudaStream_t c = how == 4 ? t : s;
		assert_int_equal(p_cudaEventRecord(a, how == 4 ? s : t), 0);
		assert_int_equal(p_cudaStreamBeginCapture(c, cudaStreamCaptureModeThreadLocal), 0);
		switch (how) {
		case 0: got = p_cudaStreamSynchronize(c); break;
		case 1: got = p_cudaHostAlloc(&more, 8, 0); break;
		case 2: got = p_cudaEventQuery(a); break;
		case 3: got = p_cudaStreamWaitEvent(c, a, 0); break;
		case 4: got = p_cudaMemsetAsync(m, 0, 4, NULL); break;
		default: got = p_cudaFreeAsync(n, c); break;
		}
		assert_int_equal(got, want[how]);
		assert_int_equal(p_cudaMemsetAsync(m, 0, 4, c), cudaErrorStreamCaptureInvalidated);
		assert_int_equal(p_cudaStreamEndCapture(c, &g), cudaErrorStreamCaptureInvalidated);
		assert_null(g);
		assert_int_equal(p_cudaStreamSynchronize(c), 0);
	}
	/* a stream that joins must be waited for */
	for (int joined = 0; joined < 2; joined++) {
		assert_int_equal(p_cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal) | p_cudaEventRecord(a, s) | p_cudaStreamWaitEvent(t, a, 0), 0);
		assert_int_equal(p_cudaMemsetAsync(m, joined, 4, t) | p_cudaEventRecord(b, t), 0);
		assert_int_equal(p_cudaEventQuery(b), cudaErrorCapturedEvent);
		assert_int_equal(joined ? p_cudaStreamWaitEvent(s, b, 0) : 0, 0);
		assert_int_equal(p_cudaStreamEndCapture(s, &g), joined ? 0 : cudaErrorStreamCaptureUnjoined);
		assert_int_equal(g ? p_cudaGraphDestroy(g) : 0, 0);
	}
	/* memory that a graph takes and keeps */
	assert_int_equal(p_cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal) | p_cudaMallocAsync(&mem, 64, s), 0);
	assert_int_equal(p_cudaStreamEndCapture(s, &g) | p_cudaGraphInstantiate(&x, g, 0) | p_cudaGraphLaunch(x, s) | p_cudaStreamSynchronize(s), 0);
	assert_int_equal(p_cudaGraphLaunch(x, s), cudaErrorInvalidValue);
	assert_int_equal(p_cudaGraphExecDestroy(x) | p_cudaGraphDestroy(g) | p_cudaFreeAsync(mem, s) | p_cudaStreamSynchronize(s), 0);
	assert_int_equal(p_cudaEventDestroy(a) | p_cudaEventDestroy(b) | p_cudaStreamDestroy(s) | p_cudaStreamDestroy(t) | p_cudaFreeHost(pinned), 0);
	(void)dlclose(lib);
	work_close(&k);
}

/* More parts than are kept: what came last is kept, and those that take turns from then on become graphs. */
static void many_keys(void **state)
{
	(void)state;
	enum { MOST = 128, NEW = 5, TURNS = 6 };
	struct work k;
	real out[M * N];
	kt_seed(95);
	work_open(&k, true, NULL);
	needs_emulation(&k);
	for (k.key = 0; k.key < MOST; k.key++)
		for (uint32_t i = 0; i < 2; i++)
			assert_int_equal(one(&k, i, 10, false, out), 0);
	long made = called("cudaGraphInstantiate"), launched = called("cudaGraphLaunch");
	for (uint32_t i = 0; i < TURNS; i++)
		for (k.key = MOST; k.key < MOST + NEW; k.key++)
			assert_int_equal(one(&k, i, 10, false, out), 0);
	assert_int_equal(called("cudaGraphInstantiate") - made, NEW);
	assert_int_equal(called("cudaGraphLaunch") - launched, NEW * (TURNS - 1));
	work_close(&k);
}

enum { WIDE = 8, ROWS = 128, HEADS = 68 };
struct wide { struct dev *d; struct kv_pool kv; real *x, *y; struct attn_seq seq; int nh; };

static int attend(void *arg)
{
	struct wide *k = arg;
	return k->d->ops->attn(k->d, k->y, WIDE * k->nh, k->x, WIDE * k->nh, &k->kv, 0, &k->seq, 1, k->nh, 0.25f);
}

/* rows after n_past positions, up to three times, with so much memory. 0 or the first error; *ret_why: why it is launched plainly. */
static int attend_thrice(int rows, int n_past, int nh, size_t memory, bool graphs, char ret_why[160])
{
	struct errtext e = {""};
	int n_pages = (rows + n_past) / 32 + 1, failed = 0;
	size_t n = (size_t)rows * WIDE * (size_t)nh * sizeof(real);
	struct wide k = {.nh = nh, .kv = {.n_layer = 1, .n_kv = 1, .d = WIDE, .page_tok = 32, .n_pages = n_pages, .type = DT_BF16}};
	int r = dev_new(&(struct dev_options){.kind = DEV_CUDA, .threads = 1, .graphs = graphs, .memory_bytes = memory}, &k.d, &e);
	if (r == -ENODEV || r == -ENOTSUP) {
		print_message("skip: %s\n", e.text);
		skip();
	}
	uint32_t *pages = malloc((size_t)n_pages * sizeof *pages);
	assert_true(!r && pages);
	for (int i = 0; i < n_pages; i++)
		pages[i] = (uint32_t)i;
	assert_int_equal(k.d->ops->kv_new(k.d, &k.kv), 0);
	k.x = k.d->ops->alloc(k.d, n), k.y = k.d->ops->alloc(k.d, n);
	assert_true(k.x && k.y);
	k.seq = (struct attn_seq){.pages = pages, .n_past = n_past, .n_rows = rows};
	for (int i = 0; i < 3 && !failed; i++)
		failed = k.d->ops->repeat(k.d, "a", 1, attend, &k);
	(void)snprintf(ret_why, 160, "%s", k.d->graphs);
	k.d->ops->free(k.d, k.x), k.d->ops->free(k.d, k.y), k.d->ops->kv_free(k.d, &k.kv);
	dev_free(k.d);
	free(pages);
	return failed;
}

/* A graph wants scratch for longer contexts than there are now: where that is not to be had, the part is launched plainly, as long as it can be. */
static void short_of_memory(void **state)
{
	(void)state;
	char why[160];
	assert_int_equal(attend_thrice(ROWS, 257, HEADS, 6 * MIB, false, why), 0);
	assert_int_equal(attend_thrice(ROWS, 257, HEADS, 6 * MIB, true, why), 0);
	if (!strstr(why, "scratch"))
		fail_msg("'%s' does not say what was short", why);
	assert_int_equal(attend_thrice(ROWS, 257, HEADS, 16 * MIB, true, why), 0);
	assert_string_equal(why, "");
}

/* A chunk of a long prompt: its tables fit into what one operation may bring. (The launch behind them is made to fail, as it would take a minute.) */
static void long_context(void **state)
{
	(void)state;
	char why[160];
	(void)setenv("CUEMU_FAULT", "launch:1:1", 1);
	int r = attend_thrice(1024, 130000, 4, 0, false, why);
	(void)unsetenv("CUEMU_FAULT");
	assert_int_equal(r, -EIO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits), cmocka_unit_test(prompts), cmocka_unit_test(many_keys), cmocka_unit_test(short_of_memory), cmocka_unit_test(long_context),
					   cmocka_unit_test(faults), cmocka_unit_test(the_stand_in)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
