/* How close the CPU kernels come to what this machine can do.
 *
 *   bench_kernels [THREADS [PREFIX [ISA]]]   (default: 1 and 2 threads, every figure, isa auto)
 *
 * Limits are measured here, in the same process, alternating with the kernel: DRAM
 * reads of 512 MB in huge pages, and a loop of independent FMAs. One JSON object a
 * line: {"figure","value","unit","against","ratio","ci","threads","commit","cpu"};
 * ratio is the median of the pairs' ratios, ci their middle 80 %. "Cold" weights
 * rotate over more than 256 MB. Wants a quiet machine.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include "kernels/cpu/pool.h"
#include "kernels/ops.h"
#include "tests/bench/fma.h"

#ifndef REDRAFT_COMMIT
#define REDRAFT_COMMIT "unknown"
#endif

enum { REPS = 11, MAX_T = 64 };

static char cpu_name[128];
static const char *prefix = "";
static struct dev *dev;
static struct pool *pool;
static int threads;

/* BENCH_CPU_TIME: processor seconds instead, for a look at one thread on a machine that is not quiet */
static double now(void)
{
	struct timespec t;
	clock_gettime(getenv("BENCH_CPU_TIME") ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void read_cpu_name(void)
{
	FILE *f = fopen("/proc/cpuinfo", "r");
	char line[256];
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "model name : %127[^\n]", cpu_name) == 1)
			break;
	if (f)
		fclose(f);
}

static void *need(void *p)
{
	if (!p) {
		fprintf(stderr, "bench_kernels: out of memory\n");
		exit(1);
	}
	return p;
}

static void ok(int r)
{
	if (r < 0) {
		fprintf(stderr, "bench_kernels: %s (%s)\n", strerror(-r), dev ? dev->error : "");
		exit(1);
	}
}

static float *floats(size_t n)
{
	float *p = need(dev->ops->alloc(dev, n * sizeof *p));
	for (size_t i = 0; i < n; i++)
		p[i] = (float)((i * 2654435761u >> 8) % 2048) / 1024.0f - 1.0f;
	return p;
}

/* ---- the limits ---- */
static const size_t DRAM_BYTES = (size_t)512 << 20;
static char *dram;
static volatile double sink;

typedef uint64_t v4 __attribute__((vector_size(32)));

static void read_part(void *ctx, int t, int n)
{
	size_t from = DRAM_BYTES / (size_t)n * (size_t)t, len = DRAM_BYTES / (size_t)n / 4 / 128 * 128;
	v4 s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
	const char *p = dram + from;
	(void)ctx;
	for (size_t i = 0; i < len; i += 64) { /* four streams a thread */
		__builtin_prefetch(p + i + 1024);
		__builtin_prefetch(p + len + i + 1024);
		__builtin_prefetch(p + 2 * len + i + 1024);
		__builtin_prefetch(p + 3 * len + i + 1024);
		s0 += *(const v4 *)(const void *)(p + i) + *(const v4 *)(const void *)(p + i + 32);
		s1 += *(const v4 *)(const void *)(p + len + i) + *(const v4 *)(const void *)(p + len + i + 32);
		s2 += *(const v4 *)(const void *)(p + 2 * len + i) + *(const v4 *)(const void *)(p + 2 * len + i + 32);
		s3 += *(const v4 *)(const void *)(p + 3 * len + i) + *(const v4 *)(const void *)(p + 3 * len + i + 32);
	}
	s0 += s1 + s2 + s3;
	sink = (double)(s0[0] + s0[1] + s0[2] + s0[3]);
}

static double dram_once(void) /* bytes a second */
{
	double t = now();
	pool_run(pool, threads, read_part, NULL);
	return (double)DRAM_BYTES / (now() - t);
}

static double fma_once(void)
{
	return fma_rate(pool, threads, dev->isa, now);
}

/* ---- pairs ---- */
static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void print(const char *figure, const double *v, const double *r, const char *unit, double per_unit, const char *against)
{
	double a[REPS], b[REPS];
	memcpy(a, v, sizeof a);
	memcpy(b, r, sizeof b);
	qsort(a, REPS, sizeof *a, by_size);
	qsort(b, REPS, sizeof *b, by_size);
	printf("{\"figure\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",\"against\":\"%s\",\"ratio\":%.3f,\"ci\":[%.3f,%.3f],\"threads\":%d,\"commit\":\"%s\",\"cpu\":\"%s\"}\n",
	       figure, a[REPS / 2] / per_unit, unit, against, b[REPS / 2], b[REPS / 10], b[REPS - 1 - REPS / 10], threads, REDRAFT_COMMIT, cpu_name);
	fflush(stdout);
}

/* op() does `amount` (bytes or flop) once, limit() gives amount a second */
static void against_limit(const char *figure, void (*op)(void *ctx), void *ctx, double amount, double (*limit)(void), const char *unit, double per_unit,
			  const char *against)
{
	double v[REPS], r[REPS];
	if (strncmp(figure, prefix, strlen(prefix)) != 0)
		return;
	op(ctx);
	double t1 = now();
	op(ctx);
	int times = (int)(0.01 / (now() - t1)) + 1; /* at least 10 ms a sample */
	for (int i = 0; i < REPS; i++) {
		double l = limit(), t = now();
		for (int k = 0; k < times; k++)
			op(ctx);
		v[i] = amount * times / (now() - t);
		r[i] = v[i] / l;
	}
	print(figure, v, r, unit, per_unit, against);
}

/* ---- linear ---- */
struct linear {
	struct weight *w;
	int n, next, M;
	float *x, *y;
};

static void linear_new(struct linear *l, int N, int K, size_t bytes_at_least)
{
	float *src = floats((size_t)N * (size_t)K);
	*l = (struct linear){.n = (int)(bytes_at_least / ((size_t)N * (size_t)K * 2)) + 1, .M = 1};
	l->w = need(calloc((size_t)l->n, sizeof *l->w));
	for (int i = 0; i < l->n; i++)
		ok(dev->ops->weight_pack(dev, &l->w[i], DT_BF16, N, K, src, DT_F32));
	dev->ops->free(dev, src);
	l->x = floats((size_t)512 * (size_t)K);
	l->y = floats((size_t)512 * (size_t)N);
}

static void linear_free(struct linear *l)
{
	for (int i = 0; i < l->n; i++)
		dev->ops->weight_free(dev, &l->w[i]);
	free(l->w);
	dev->ops->free(dev, l->x);
	dev->ops->free(dev, l->y);
}

static void linear_one(void *ctx)
{
	struct linear *l = ctx;
	const struct weight *w = &l->w[l->next];
	l->next = (l->next + 1) % l->n;
	ok(dev->ops->linear(dev, l->y, w->N, w, l->x, w->K, l->M, false));
}

static void linear_all(void *ctx)
{
	struct linear *l = ctx;
	for (int i = 0; i < l->n; i++)
		linear_one(ctx);
}

static void linear_few(struct linear *l, const char *shape)
{
	char name[96];
	double bytes = 0, v[REPS], r[REPS], flop[REPS], of_peak[REPS];
	for (int i = 0; i < l->n; i++)
		bytes += (double)l->w[i].bytes;
	l->M = 1;
	snprintf(name, sizeof name, "linear.m1.cold.%s", shape);
	against_limit(name, linear_all, l, bytes, dram_once, "GB/s", 1e9, "DRAM read");
	static const int rows[] = {2, 4, 5, 6, 8};
	for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
		snprintf(name, sizeof name, "linear.m%d.cold.%s", rows[k], shape);
		if (strncmp(name, prefix, strlen(prefix)) != 0)
			continue;
		for (int i = 0; i < REPS; i++) {
			double peak = fma_once(), t0 = now();
			l->M = 1;
			linear_all(l);
			double t1 = now();
			l->M = rows[k];
			linear_all(l);
			v[i] = (now() - t1) / l->n;
			r[i] = v[i] * l->n / (t1 - t0);
			flop[i] = 2.0 * rows[k] * l->w[0].N * l->w[0].K / v[i];
			of_peak[i] = flop[i] / peak;
		}
		print(name, v, r, "us", 1e-6, "one row (time)");
		snprintf(name, sizeof name, "linear.m%d.cold.%s.flop", rows[k], shape);
		print(name, flop, of_peak, "GFLOP/s", 1e9, "FMA peak");
	}
}

static void linear_many(struct linear *l, const char *shape)
{
	static const int rows[] = {16, 64, 128, 512};
	char name[96];
	for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
		l->M = rows[k];
		snprintf(name, sizeof name, "linear.m%d.%s", rows[k], shape);
		against_limit(name, linear_one, l, 2.0 * rows[k] * l->w[0].N * l->w[0].K, fma_once, "GFLOP/s", 1e9, "FMA peak");
	}
}

/* ---- gemm ---- */
struct gemm {
	int M, N, K;
	bool tA, tB;
	float *A, *B, *C;
};

static void gemm_one(void *ctx)
{
	struct gemm *g = ctx;
	ok(dev->ops->gemm(dev, g->C, g->N, g->tA, g->A, g->tA ? g->M : g->K, g->tB, g->B, g->tB ? g->K : g->N, g->M, g->N, g->K, false));
}

/* forward y = x w', backward dx = dy w and dw = dy' x of a layer in -> out */
static void gemm_layer(int rows, int in, int out)
{
	struct gemm way[3] = {
		{.M = rows, .N = out, .K = in, .tB = true},
		{.M = rows, .N = in, .K = out},
		{.M = out, .N = in, .K = rows, .tA = true},
	};
	static const char *const names[] = {"fwd", "dx", "dw"};
	for (int i = 0; i < 3; i++) {
		struct gemm *g = &way[i];
		char name[96];
		snprintf(name, sizeof name, "gemm.%s.%dx%d-%d", names[i], rows, in, out);
		g->A = floats((size_t)g->M * (size_t)g->K);
		g->B = floats((size_t)g->K * (size_t)g->N);
		g->C = floats((size_t)g->M * (size_t)g->N);
		against_limit(name, gemm_one, g, 2.0 * g->M * g->N * g->K, fma_once, "GFLOP/s", 1e9, "FMA peak");
		dev->ops->free(dev, g->A);
		dev->ops->free(dev, g->B);
		dev->ops->free(dev, g->C);
	}
}

/* ---- attention: 9 query heads over 3 kv heads of 64 ---- */
enum { NH = 9, NKV = 3, HD = 64, CTX = 2048 };

struct attn {
	struct kv_pool pool;
	uint32_t pages[CTX / 32];
	float *q, *out;
	struct attn_seq seq;
};

static void attn_one(void *ctx)
{
	struct attn *a = ctx;
	ok(dev->ops->attn(dev, a->out, NH * HD, a->q, NH * HD, &a->pool, 0, &a->seq, 1, NH, 0.125f));
}

static void attn_figures(void)
{
	struct attn a = {.pool = {.n_layer = 1, .n_kv = NKV, .d = HD, .page_tok = 32, .n_pages = CTX / 32, .type = DT_BF16}};
	uint32_t slots[CTX];
	float *kv = floats((size_t)CTX * NKV * HD);
	a.q = floats((size_t)512 * NH * HD);
	a.out = floats((size_t)512 * NH * HD);
	ok(dev->ops->kv_new(dev, &a.pool));
	for (uint32_t i = 0; i < CTX; i++) {
		slots[i] = i;
		a.pages[i / 32] = i / 32;
	}
	ok(dev->ops->kv_write(dev, &a.pool, 0, kv, kv, NKV * HD, slots, CTX));
	static const int cases[][2] = {{CTX - 1, 1}, {CTX - 5, 5}, {0, 512}, {CTX - 512, 512}}; /* n_past, rows */
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char name[96];
		a.seq = (struct attn_seq){.pages = a.pages, .n_past = cases[i][0], .n_rows = cases[i][1]};
		double keys = 0;
		for (int r = 0; r < cases[i][1]; r++)
			keys += cases[i][0] + r + 1;
		snprintf(name, sizeof name, "attn.past%d.rows%d", cases[i][0], cases[i][1]);
		against_limit(name, attn_one, &a, 4.0 * keys * NH * HD, fma_once, "GFLOP/s", 1e9, "FMA peak");
	}
	dev->ops->kv_free(dev, &a.pool);
	dev->ops->free(dev, kv);
	dev->ops->free(dev, a.q);
	dev->ops->free(dev, a.out);
}

struct ttt {
	int n;
	struct ttt_kv kv;
	float *q, *out, *lse, *dq, *dout;
};

static void ttt_forward(void *ctx)
{
	struct ttt *t = ctx;
	ok(dev->ops->ttt_attn(dev, t->out, t->lse, t->q, &t->kv, NULL, t->n, NH, NKV, HD, 0.125f));
}

static void ttt_backward(void *ctx)
{
	struct ttt *t = ctx;
	ok(dev->ops->ttt_attn_backward(dev, t->dq, &t->kv, t->dout, t->out, t->lse, t->q, NULL, t->n, NH, NKV, HD, 0.125f));
}

static void ttt_figures(int n)
{
	struct ttt t = {.n = n, .kv = {.n_steps = 4}};
	size_t qn = (size_t)n * NH * HD, kn = (size_t)n * NKV * HD;
	char name[96];
	t.q = floats(qn), t.out = floats(qn), t.dq = floats(qn), t.dout = floats(qn), t.lse = floats(qn);
	for (int i = 0; i < 4; i++) {
		t.kv.k[i] = floats(kn), t.kv.v[i] = floats(kn);
		t.kv.dk[i] = floats(kn), t.kv.dv[i] = floats(kn);
	}
	ttt_forward(&t);
	snprintf(name, sizeof name, "ttt_attn.fwd.%d", n);
	against_limit(name, ttt_forward, &t, 2.0 * n * n * NH * HD, fma_once, "GFLOP/s", 1e9, "FMA peak");
	snprintf(name, sizeof name, "ttt_attn.back.%d", n);
	against_limit(name, ttt_backward, &t, 5.0 * n * n * NH * HD, fma_once, "GFLOP/s", 1e9, "FMA peak");
	for (int i = 0; i < 4; i++) {
		dev->ops->free(dev, (void *)(uintptr_t)t.kv.k[i]);
		dev->ops->free(dev, (void *)(uintptr_t)t.kv.v[i]);
		dev->ops->free(dev, t.kv.dk[i]);
		dev->ops->free(dev, t.kv.dv[i]);
	}
	dev->ops->free(dev, t.q), dev->ops->free(dev, t.out), dev->ops->free(dev, t.dq), dev->ops->free(dev, t.dout), dev->ops->free(dev, t.lse);
}

static void limits(void)
{
	double v[REPS], one[REPS];
	for (int i = 0; i < REPS; i++)
		one[i] = 1;
	for (int i = 0; i < REPS; i++)
		v[i] = dram_once();
	print("limit.dram_read", v, one, "GB/s", 1e9, "itself");
	for (int i = 0; i < REPS; i++)
		v[i] = fma_once();
	print("limit.fma", v, one, "GFLOP/s", 1e9, "itself");
}

static void spin_part(void *ctx, int t, int n)
{
	double until = now() + *(double *)ctx;
	(void)t, (void)n;
	while (now() < until)
		;
}

/* What a run of the pool costs beyond its work (median of many), as short as a decoding step's products are: threads that take turns on one
 * processor show here, at twice the work. */
static void pool_figures(void)
{
	enum { RUNS = 500 };
	static const int us[] = {10, 100};
	for (size_t k = 0; k < sizeof us / sizeof *us; k++) {
		double v[REPS], r[REPS], each[RUNS], work = 1e-6 * us[k];
		char name[32];
		for (int i = 0; i < REPS; i++) {
			for (int n = 0; n < RUNS; n++) {
				double t0 = now();
				pool_run(pool, threads, spin_part, &work);
				each[n] = now() - t0;
			}
			qsort(each, RUNS, sizeof *each, by_size);
			v[i] = each[RUNS / 2] - work;
			r[i] = each[RUNS / 2] / work;
		}
		snprintf(name, sizeof name, "pool.%dus", us[k]);
		print(name, v, r, "us", 1e-6, "the work (time)");
	}
}

static bool wanted(const char *group)
{
	size_t a = strlen(group), b = strlen(prefix);
	return strncmp(group, prefix, a < b ? a : b) == 0;
}

static void all_figures(void)
{
	struct linear l;
	limits();
	if (wanted("pool"))
		pool_figures();
	if (wanted("linear")) {
		linear_new(&l, 1536, 576, (size_t)272 << 20);
		linear_few(&l, "576-1536");
		linear_many(&l, "576-1536");
		linear_free(&l);
		linear_new(&l, 576, 1536, (size_t)272 << 20);
		linear_few(&l, "1536-576");
		linear_many(&l, "1536-576");
		linear_free(&l);
		linear_new(&l, 49152, 576, (size_t)272 << 20);
		linear_few(&l, "576-49152");
		linear_free(&l);
	}
	static const int layers[][2] = {{1152, 960}, {576, 3072}, {1536, 576}, {576, 8192}};
	for (int rows = 512; wanted("gemm") && rows <= 2048; rows *= 4)
		for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
			gemm_layer(rows, layers[i][0], layers[i][1]);
	if (wanted("attn"))
		attn_figures();
	if (wanted("ttt_attn")) {
		ttt_figures(512);
		ttt_figures(2048);
	}
}

int main(int argc, char **argv)
{
	enum dev_isa isa = ISA_AUTO;
	int from = argc > 1 ? atoi(argv[1]) : 1, to = argc > 1 ? from : 2;

	prefix = argc > 2 ? argv[2] : "";
	if (from < 1 || to > MAX_T || (argc > 3 && dev_isa_parse(argv[3], &isa) < 0)) {
		fprintf(stderr, "usage: bench_kernels [THREADS [PREFIX [auto|portable|avx2|avx512|avx512-bf16]]]\n");
		return 2;
	}
	read_cpu_name();
	dram = need(aligned_alloc(2 << 20, DRAM_BYTES));
	(void)madvise(dram, DRAM_BYTES, MADV_HUGEPAGE);
	memset(dram, 1, DRAM_BYTES);
	for (threads = from; threads <= to; threads++) {
		ok(dev_cpu_new(threads, isa, &dev));
		ok(pool_new(threads, &pool));
		all_figures();
		pool_free(pool);
		dev = dev_free(dev);
	}
	free(dram);
	return 0;
}
