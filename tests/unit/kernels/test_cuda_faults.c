/* What can go wrong with a GPU, and what is said of it: no driver that fits, no device,
 * too old a device, memory short at the start, while loading and in mid-run, an error that lasts,
 * a device that is lost. Each fault has a name in the text, leaves nothing half made and
 * lets the device be closed; short memory is over when there is room again. The faults are
 * played by tests/cuemu; on a real GPU this is skipped.
 */
#include "kt.h"
#include <dlfcn.h>

static void plan(const char *name, const char *value)
{
	static const char *const all[] = {"CUEMU_FAULT", "CUEMU_DEVICES", "CUEMU_MEMORY", "CUEMU_DRIVER", "CUEMU_INIT", "CUEMU_CAPABILITY"};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		(void)unsetenv(all[i]);
	if (name)
		(void)setenv(name, value, 1);
}

static int try_open(enum dev_kind kind, struct dev **ret, struct errtext *e)
{
	struct dev_options o = {.kind = kind, .threads = 1};
	*ret = NULL;
	*e = (struct errtext){""};
	return dev_new(&o, ret, e);
}

static struct dev *open_with(const char *name, const char *value)
{
	plan(name, value);
	struct dev *d = kt_open(&(struct dev_options){.kind = DEV_CUDA, .threads = 1});
	if (!strstr(d->about, "emulated")) {
		dev_free(d);
		print_message("skip: faults are played on an emulated device only\n");
		skip();
	}
	return d;
}

static void has(const char *text, const char *what)
{
	if (!strstr(text, what))
		fail_msg("'%s' does not say '%s'", text, what);
}

/* Neither the start nor the fall-back to the CPU hides why. */
static void refused(void **state)
{
	(void)state;
	static const struct {
		const char *name, *value;
		int r;
		const char *says;
	} cases[] = {
		{"CUEMU_INIT", "100", -ENODEV, "no CUDA driver: cuInit answers 100, no device"},
		{"CUEMU_DRIVER", "11040", -ENODEV, "CUDA driver too old: it is for CUDA 11.4, 12.0 is needed"},
		{"CUEMU_DEVICES", "0", -ENODEV, "no CUDA device"},
		{"CUEMU_CAPABILITY", "75", -ENODEV, "compute capability 7.5 and this build needs 8.0"},
		{"CUEMU_FAULT", "cudaGetDeviceCount:1:35", -ENODEV, "cudaErrorInsufficientDriver"},
		{"CUEMU_FAULT", "cudaSetDevice:1:214", -ENODEV, "cudaErrorECCUncorrectable"},
		{"CUEMU_FAULT", "cudaStreamCreateWithPriority:1:2", -ENOMEM, "cudaErrorMemoryAllocation"},
		{"CUEMU_FAULT", "cudaHostAlloc:1:2", -ENOMEM, "cudaErrorMemoryAllocation"},
		{"CUEMU_FAULT", "cudaMallocAsync:1:2", -ENOMEM, "cudaErrorMemoryAllocation"},
		{"CUEMU_MEMORY", "100000", -ENOMEM, "cudaErrorMemoryAllocation"},
	};
	dev_free(open_with(NULL, NULL));
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct dev *d;
		struct errtext e;
		plan(cases[i].name, cases[i].value);
		assert_int_equal(try_open(DEV_CUDA, &d, &e), cases[i].r);
		assert_null(d);
		has(e.text, cases[i].says);
		assert_int_equal(try_open(DEV_AUTO, &d, &e), 0);
		assert_int_equal(d->kind, DEV_CPU);
		has(d->about, "cpu ");
		has(d->about, cases[i].says);
		dev_free(d);
	}
	plan(NULL, NULL);
	struct dev *d;
	struct errtext e;
	assert_int_equal(try_open(DEV_AUTO, &d, &e), 0);
	assert_int_equal(d->kind, DEV_CUDA);
	has(d->about, "cuda emulated device 0");
	dev_free(d);
}

/* 40 MB of device: weights until one does not fit; that one leaves nothing, the others stay right, and there is room again after a free. */
static void memory_while_loading(void **state)
{
	(void)state;
	enum { N = 512, K = 1024, MAX = 64 };
	struct dev *d = open_with("CUEMU_MEMORY", "40000000");
	struct weight w[MAX] = {0};
	uint16_t *h = malloc(N * K * 2), *back = malloc(N * K * 2);
	int n = 0, r = 0;
	assert_true(h && back);
	for (int i = 0; i < N * K; i++)
		h[i] = (uint16_t)(i * 7);
	while (n < MAX && (r = d->ops->weight_pack(d, &w[n], DT_BF16, N, K, h, DT_BF16)) == 0)
		n++;
	assert_int_equal(r, -ENOMEM);
	assert_true(n > 10 && n < MAX);
	assert_null(w[n].packed);
	has(d->error, "out of memory: device memory, 1048576 bytes");
	assert_false(d->lost);
	struct kv_pool p = {.n_layer = 4, .n_kv = 2, .d = 64, .page_tok = 32, .n_pages = 1000, .type = DT_F32};
	assert_int_equal(d->ops->kv_new(d, &p), -ENOMEM);
	assert_true(!p.k && !p.v);
	d->ops->weight_free(d, &w[0]);
	assert_int_equal(d->ops->sync(d), 0);
	assert_int_equal(d->ops->weight_pack(d, &w[0], DT_BF16, N, K, h, DT_BF16), 0);
	for (int i = 0; i < n; i++) {
		assert_int_equal(d->ops->weight_unpack(d, back, &w[i]), 0);
		assert_memory_equal(back, h, N * K * 2);
		d->ops->weight_free(d, &w[i]);
	}
	free(h);
	free(back);
	dev_free(d);
}

/* A process with a budget is refused what would pass it, in a sentence with numbers, though the device has room; what others hold counts, what
 * was given back does not; the operation after it works. */
static void budget(void **state)
{
	(void)state;
	enum { MIB = 1 << 20 };
	struct errtext e = {""};
	struct dev *d = NULL;
	plan(NULL, NULL);
	dev_free(open_with(NULL, NULL));
	assert_int_equal(dev_new(&(struct dev_options){.kind = DEV_CUDA, .threads = 1, .memory_bytes = 64 * MIB}, &d, &e), 0);
	has(d->about, "at most 64 MiB");
	char *a = d->ops->alloc(d, 40 * MIB), *b;
	assert_non_null(a);
	assert_null(d->ops->alloc(d, 30 * MIB));
	has(d->error, "device memory: 30.0 MiB more would pass this process's 64 MiB of device memory; 44.0 are taken");
	assert_false(d->lost);
	struct weight w = {0};
	uint16_t *h = calloc(16 * MIB, sizeof *h);
	assert_non_null(h);
	assert_int_equal(d->ops->weight_pack(d, &w, DT_BF16, 4096, 4096, h, DT_BF16), -ENOMEM);
	assert_null(w.packed);
	assert_int_equal(d->ops->zero(d, a, 40 * MIB), 0);
	d->ops->free(d, a); /* queued, and enough */
	assert_int_equal(d->ops->weight_pack(d, &w, DT_BF16, 4096, 4096, h, DT_BF16), 0);
	b = d->ops->alloc(d, 27 * MIB);
	assert_non_null(b);
	assert_null(d->ops->alloc(d, 2 * MIB));
	d->ops->weight_free(d, &w);
	d->ops->free(d, b);
	free(h);
	dev_free(d);
}

/* The stand-in sees it: a server's stream at the highest priority, a learner's beside it at the lowest, and what the tap carries too. */
static void priorities(void **state)
{
	(void)state;
	struct dev *serve = open_with(NULL, NULL), *learn = NULL, *loads = NULL;
	struct errtext e = {""};
	void *lib = dlopen("libcuemu.so", RTLD_NOW | RTLD_NOLOAD);
	int (*priority)(int);
	uint64_t ticket;
	assert_non_null(lib);
	*(void **)(void *)&priority = dlsym(lib, "cuemu_priority");
	assert_true(priority != NULL);
	assert_int_equal(dev_new(&(struct dev_options){.kind = DEV_CUDA, .threads = 1, .background = true}, &learn, &e), 0);
	assert_int_equal(dev_again(serve, &loads), 0); /* a draft is loaded beside decoding, by the same process */
	real *x = serve->ops->alloc(serve, 64 * sizeof *x);
	uint16_t *to = serve->ops->alloc_shared(serve, 64 * sizeof *to);
	assert_true(x && to);
	assert_int_equal(serve->ops->pack(serve, to, PACK_BF16, x, 1, 64, &ticket), 0);
	const int want[] = {-5, 0, -5, 0, 1};
	for (int i = 0; i < 5; i++)
		assert_int_equal(priority(i), want[i]);
	has(learn->about, "lowest priority");
	serve->ops->free(serve, x);
	serve->ops->free(serve, to);
	dev_free(loads);
	dev_free(learn);
	dev_free(serve);
	(void)dlclose(lib);
}

/* A call that fails in mid-run: the operation says so, the next one works. */
static void passing(void **state)
{
	(void)state;
	enum { N = 64 };
	static const char *const calls[] = {"cudaMallocAsync:4:2", "cudaHostAlloc:2:2", "cudaMemcpyAsync:2:1", "cudaMemcpyAsync:3:1", "launch:2:1", "cudaStreamSynchronize:1:1"};
	real host[N], out[N], turned[N];
	uint32_t rows[N];
	for (int i = 0; i < N; i++) {
		host[i] = (real)i;
		rows[i] = N - 1 - (uint32_t)i;
	}
	for (size_t c = 0; c < sizeof calls / sizeof *calls; c++) {
		struct dev *d = open_with("CUEMU_FAULT", calls[c]);
		real *x = d->ops->alloc(d, sizeof host), *y = d->ops->alloc(d, sizeof host);
		assert_true(x && y);
		int failed = 0;
		for (int again = 0; again < 3; again++) {
			double sum = 0;
			uint32_t best = 0;
			int r = d->ops->upload(d, x, host, sizeof host);
			r = r ? r : d->ops->add(d, y, x, N);
			r = r ? r : d->ops->copy_rows(d, y, 1, x, 1, rows, N, 1); /* the second copy: a failed one must not pass for sent */
			r = r ? r : d->ops->sumsq(d, &sum, x, N);
			r = r ? r : d->ops->topk(d, &best, NULL, NULL, x, N, 1, N, 1);
			r = r ? r : d->ops->download(d, out, x, sizeof out);
			r = r ? r : d->ops->download(d, turned, y, sizeof turned);
			if (!r) {
				assert_memory_equal(out, host, sizeof out);
				for (int i = 0; i < N; i++)
					assert_true(turned[i] == host[N - 1 - i]);
				assert_true(sum == 85344 && best == N - 1);
				continue;
			}
			failed++;
			assert_true(r == -EIO || r == -ENOMEM);
			has(d->error, calls[c][strlen(calls[c]) - 1] == '2' ? "cudaErrorMemoryAllocation" : "cudaErrorInvalidValue");
			assert_false(d->lost);
		}
		if (failed != 1)
			fail_msg("%s: %d of 3 rounds failed", calls[c], failed);
		d->ops->free(d, x);
		d->ops->free(d, y);
		dev_free(d);
	}
}

/* An error that lasts: named with the operation, the device marked as lost, every later call fails, and all can be closed. */
static void lasting(void **state)
{
	(void)state;
	static const struct {
		const char *plan, *says;
	} cases[] = {{"launch:3:719", "cudaErrorLaunchFailure"}, {"launch:1:700", "cudaErrorIllegalAddress"}, {"cudaStreamSynchronize:2:214", "cudaErrorECCUncorrectable"}};
	enum { N = 64 };
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		struct dev *d = open_with("CUEMU_FAULT", cases[c].plan), *second = NULL;
		real *x = d->ops->alloc(d, N * sizeof *x), *y = d->ops->alloc(d, N * sizeof *x);
		struct weight w = {0};
		double sum;
		int r = 0;
		assert_true(x && y);
		assert_int_equal(dev_again(d, &second), 0);
		for (int i = 0; i < 4 && !r; i++) {
			r = d->ops->add(d, x, y, N);
			r = r ? r : d->ops->sync(d);
		}
		assert_int_equal(r, -EIO);
		has(d->error, cases[c].says);
		has(d->error, "the device is lost to this process");
		assert_true(d->lost);
		assert_int_equal(d->ops->sumsq(d, &sum, x, N), -EIO);
		assert_int_equal(second->ops->sync(second), -EIO);
		assert_null(d->ops->alloc(d, 100));
		assert_int_not_equal(d->ops->weight_pack(d, &w, DT_F32, 4, 4, (float[16]){0}, DT_F32), 0);
		assert_null(w.packed);
		d->ops->free(d, x);
		d->ops->free(d, y);
		dev_free(second);
		dev_free(d);
	}
	plan(NULL, NULL);
}

/* cuBLAS that cannot begin, or that fails in mid-run */
static void blas(void **state)
{
	(void)state;
	static const char *const plans[] = {"cublasCreate:1:2", "cublasGemmEx:1:1"};
	for (int i = 0; i < 2; i++) {
		struct dev *d = open_with("CUEMU_FAULT", plans[i]);
		real *a = d->ops->alloc(d, 64), *b = d->ops->alloc(d, 64), *c = d->ops->alloc(d, 64);
		assert_int_equal(d->ops->gemm(d, c, 4, false, a, 4, false, b, 4, 4, 4, 4, false), -EIO);
		has(d->error, "cuBLAS");
		assert_false(d->lost);
		assert_int_equal(d->ops->gemm(d, c, 4, false, a, 4, false, b, 4, 4, 4, 4, false), 0);
		assert_int_equal(d->ops->sync(d), 0);
		d->ops->free(d, a);
		d->ops->free(d, b);
		d->ops->free(d, c);
		dev_free(d);
	}
	plan(NULL, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refused), cmocka_unit_test(memory_while_loading), cmocka_unit_test(budget), cmocka_unit_test(priorities), cmocka_unit_test(passing),
		cmocka_unit_test(lasting), cmocka_unit_test(blas), /* a lost device's memory stays lost */
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
