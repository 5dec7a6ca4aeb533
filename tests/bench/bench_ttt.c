/* How fast one TTT training step is, below the learner's process, and where its time goes.
 *
 *   bench_ttt [ROWS THREADS [VOCABULARY [ISA]]]     (default: 512 and 2048 rows, 1 and 2 threads, 8192, auto)
 *
 * Shape: H = H_t = 576, I 1536, 9/3 heads of 64, draft vocabulary 8,192 of 49,152, 7 steps,
 * dense teacher, every row with weight: forward, backward, clipping, AdamW. One JSON
 * object a line: {"figure","value","unit","against","ratio","ci","threads","commit","cpu"};
 * value is the median over the repetitions, ci their middle 80 %. The limit is the counted work of
 * a step (products, and the visible pairs of attention) at the FMA peak, which is measured before each
 * repetition; a table of where the time went, op by op, goes to stderr. BENCH_STEPS: other than 7 steps. BENCH_STRICT:
 * products in f32, where the path would take bf16 (learning's default); the limit is f32's all the same. Peak memory is that of the
 * whole process (embedding, teacher and features included), so each shape has its own
 * process: with no arguments this program runs itself.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "learn/trainer.h"
#include "tests/bench/fma.h"

#ifndef REDRAFT_COMMIT
#define REDRAFT_COMMIT "unknown"
#endif

enum { MAX_REPS = 15 };

/* BENCH_CPU_TIME: processor seconds instead, for a look at one thread on a machine that is not quiet */
static double now(void)
{
	struct timespec t;
	clock_gettime(getenv("BENCH_CPU_TIME") ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the ops table with a clock around the slots that matter ---- */
enum { P_FWD, P_DX, P_DW, P_ATTN, P_ATTN_BACK, P_CE, P_ADAMW, P_NORM, P_NORM_BACK, P_SILU, P_SILU_BACK, P_ROPE, P_ADD, P_COPY, P_SUMSQ, P_REST, P_N };
static const char *const p_name[P_N] = {"products, forward", "products, dx", "products, dw", "ttt_attn", "ttt_attn_backward", "distill", "adamw", "rmsnorm", "rmsnorm_backward",
					"silu_gate", "silu_gate_backward", "rope", "add", "copy_rows", "sumsq", "the rest"};
static double p_time[P_N], p_flop[P_N];
static const struct ops *inner;
#define TIMED(slot, call) double t0 = now(); int r = inner->call; p_time[slot] += now() - t0; return r

static double pairs(const uint32_t *seg, int n)
{
	double sum = 0;
	for (int t = 0; t < n; t++)
		sum += t + 1 - (seg ? (int)seg[t] : 0);
	return sum;
}
static int t_gemm(struct dev *d, real *C, int ldc, bool tA, const real *A, int lda, bool tB, const real *B, int ldb, int M, int N, int K, bool add)
{
	int way = tA ? P_DW : tB ? P_FWD : P_DX;
	p_flop[way] += 2.0 * M * N * K;
	TIMED(way, gemm(d, C, ldc, tA, A, lda, tB, B, ldb, M, N, K, add));
}
static int t_attn(struct dev *d, real *out, real *lse, const real *q, const struct ttt_kv *kv, const uint32_t *seg, int n, int nh, int nkv, int hd, real scale)
{
	p_flop[P_ATTN] += 4 * pairs(seg, n) * nh * hd;
	TIMED(P_ATTN, ttt_attn(d, out, lse, q, kv, seg, n, nh, nkv, hd, scale));
}
static int t_attn_back(struct dev *d, real *dq, const struct ttt_kv *kv, const real *dout, const real *out, const real *lse, const real *q,
		       const uint32_t *seg, int n, int nh, int nkv, int hd, real scale)
{
	p_flop[P_ATTN_BACK] += 10 * pairs(seg, n) * nh * hd;
	TIMED(P_ATTN_BACK, ttt_attn_backward(d, dq, kv, dout, out, lse, q, seg, n, nh, nkv, hd, scale));
}
static int t_ce(struct dev *d, real *logits, real *loss, uint32_t *argmax, real *alpha, const struct teacher *q, int r0, const real *w, int m, int Vd, struct distill to)
{
	TIMED(P_CE, distill(d, logits, loss, argmax, alpha, q, r0, w, m, Vd, to));
}
static int t_adamw(struct dev *d, real *w, real *m, real *v, const real *g, size_t n, real lr, real b1, real b2, real eps, real wd, real gscale, int64_t step)
{
	TIMED(P_ADAMW, adamw(d, w, m, v, g, n, lr, b1, b2, eps, wd, gscale, step));
}
static int t_norm(struct dev *d, real *y, int ldy, real *rstd, const real *x, int ldx, const real *g, real eps, int M, int H)
{
	TIMED(P_NORM, rmsnorm(d, y, ldy, rstd, x, ldx, g, eps, M, H));
}
static int t_norm_back(struct dev *d, real *dx, int lddx, real *dg, const real *dy, int lddy, const real *x, int ldx, const real *g, const real *rstd, int M, int H)
{
	TIMED(P_NORM_BACK, rmsnorm_backward(d, dx, lddx, dg, dy, lddy, x, ldx, g, rstd, M, H));
}
static int t_silu(struct dev *d, real *y, const real *gu, int M, int I)
{
	TIMED(P_SILU, silu_gate(d, y, gu, M, I));
}
static int t_silu_back(struct dev *d, real *dgu, const real *dy, const real *gu, int M, int I)
{
	TIMED(P_SILU_BACK, silu_gate_backward(d, dgu, dy, gu, M, I));
}
static int t_rope(struct dev *d, real *x, int ldx, int nh, int hd, const uint32_t *pos, const real *inv_freq, real mscale, int M, bool inverse)
{
	TIMED(P_ROPE, rope(d, x, ldx, nh, hd, pos, inv_freq, mscale, M, inverse));
}
static int t_add(struct dev *d, real *y, const real *x, size_t n)
{
	TIMED(P_ADD, add(d, y, x, n));
}
static int t_copy(struct dev *d, real *y, int ldy, const real *x, int ldx, const uint32_t *rows, int M, int n)
{
	TIMED(P_COPY, copy_rows(d, y, ldy, x, ldx, rows, M, n));
}
static int t_sumsq(struct dev *d, double *ret, const real *x, size_t n)
{
	TIMED(P_SUMSQ, sumsq(d, ret, x, n));
}

static void watch_ops(struct dev *d)
{
	static struct ops timed;
	inner = d->ops;
	timed = *inner;
	timed.gemm = t_gemm;
	timed.ttt_attn = t_attn;
	timed.ttt_attn_backward = t_attn_back;
	timed.distill = t_ce;
	timed.adamw = t_adamw;
	timed.rmsnorm = t_norm;
	timed.rmsnorm_backward = t_norm_back;
	timed.silu_gate = t_silu;
	timed.silu_gate_backward = t_silu_back;
	timed.rope = t_rope;
	timed.add = t_add;
	timed.copy_rows = t_copy;
	timed.sumsq = t_sumsq;
	d->ops = &timed;
}

/* Of all repetitions together: total seconds, against the mean peak of their processors */
static void print_parts(double total, int reps, double peak)
{
	p_time[P_REST] = total;
	for (int i = 0; i < P_REST; i++)
		p_time[P_REST] -= p_time[i];
	for (int i = 0; i < P_N; i++) {
		fprintf(stderr, "  %-18s %8.1f ms a step %5.1f %%", p_name[i], 1e3 * p_time[i] / reps, 100 * p_time[i] / total);
		if (p_flop[i] > 0)
			fprintf(stderr, "  %5.1f GFLOP at %5.1f GFLOP/s, %2.0f %% of the peak", 1e-9 * p_flop[i] / reps, 1e-9 * p_flop[i] / p_time[i], 100 * p_flop[i] / p_time[i] / peak);
		fputc('\n', stderr);
	}
}

/* ---- one shape ---- */
static void *need(size_t bytes)
{
	void *p = malloc(bytes);
	if (!p) {
		fprintf(stderr, "bench_ttt: out of memory\n");
		exit(1);
	}
	return p;
}

static double noise(uint64_t *s)
{
	*s = *s * 6364136223846793005u + 1442695040888963407u;
	return (double)(int64_t)(*s >> 33) / (double)(1u << 30) - 1;
}

static void make_batch(struct train_batch *b, const struct eagle3_config *c, int n)
{
	uint64_t s = 1;
	size_t rows = (size_t)n, F = 3 * (size_t)c->H_t, V = (size_t)c->V_d;
	uint32_t *ids = need((rows + 1) * 4), *pos = need(rows * 4), *y = need(rows * 4);
	uint8_t *ones = need(rows);
	real *f = need(rows * F * sizeof *f), *p = need(rows * V * sizeof *p);
	for (size_t i = 0; i <= rows; i++)
		ids[i] = (uint32_t)((s = s * 6364136223846793005u + 1) >> 33) % (uint32_t)c->V;
	for (size_t i = 0; i < rows * F; i++)
		f[i] = (real)noise(&s);
	for (size_t i = 0; i < rows; i++) {
		pos[i] = (uint32_t)i;
		y[i] = ids[i] % (uint32_t)c->V_d;
		ones[i] = 1;
		for (size_t j = 0; j < V; j++) /* a decided teacher over a flat tail */
			p[i * V + j] = (real)((j == y[i] ? 0.75 : 0) + 0.25 / (double)V);
	}
	*b = (struct train_batch){.n = n, .ids = ids, .pos = pos, .features = f, .mask = ones, .in_vocab = ones, .y = y,
				  .teacher = {.n = n, .K = c->V_d, .p = p}};
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* x sorted */
static double at(const double *x, int n, double share)
{
	return x[(int)(share * (n - 1) + 0.5)];
}

static void cpu_name(char *ret, size_t size)
{
	char line[256], *colon;
	FILE *f = fopen("/proc/cpuinfo", "r");
	snprintf(ret, size, "unknown");
	while (f && fgets(line, sizeof line, f))
		if (!strncmp(line, "model name", 10) && (colon = strchr(line, ':'))) {
			line[strcspn(line, "\n")] = 0;
			snprintf(ret, size, "%s", colon + 2);
			break;
		}
	if (f)
		fclose(f);
}

static void emit(const char *figure, int n, double *x, int reps, const char *unit, const char *against, int threads)
{
	char cpu[160], of[64] = "null", ratio[32] = "null";
	cpu_name(cpu, sizeof cpu);
	qsort(x, (size_t)reps, sizeof *x, by_value);
	if (against) {
		snprintf(of, sizeof of, "\"%s\"", against);
		snprintf(ratio, sizeof ratio, "%.3f", at(x, reps, 0.5));
	}
	printf("{\"figure\":\"%s_%d\",\"value\":%.5g,\"unit\":\"%s\",\"against\":%s,\"ratio\":%s,\"ci\":[%.5g,%.5g],\"threads\":%d,"
	       "\"commit\":\"%s\",\"cpu\":\"%s\"}\n",
	       figure, n, at(x, reps, 0.5), unit, of, ratio, at(x, reps, 0.1), at(x, reps, 0.9), threads, REDRAFT_COMMIT, cpu);
	fflush(stdout);
}

static void measure(struct dev *d, struct trainer *t, const struct train_batch *b, int threads)
{
	double rate[MAX_REPS], share[MAX_REPS], total = 0, peaks = 0, begin = now();
	struct train_result res;
	struct pool *pool;
	int reps = 0;
	if (pool_new(threads, &pool))
		exit(1);
	watch_ops(d);
	while (reps < MAX_REPS && (reps < 3 || now() - begin < 20)) {
		double peak = fma_rate(pool, threads, d->isa, now), flop = 0, t0 = now(), took;
		for (int i = 0; i < P_N; i++)
			flop -= p_flop[i];
		if (trainer_eagle3.step(t, b, &res))
			exit(1);
		took = now() - t0;
		for (int i = 0; i < P_N; i++)
			flop += p_flop[i];
		total += took;
		peaks += peak;
		rate[reps] = b->n / took;
		share[reps++] = flop / took / peak;
	}
	pool_free(pool);
	print_parts(total, reps, peaks / reps);
	emit("ttt_tokens_per_s", b->n, rate, reps, "tok/s", NULL, threads);
	emit("ttt_of_limit", b->n, share, reps, "of the f32 FMA peak", "counted work", threads);
}

/* BENCH_LEAD: so many rows in front are context without weight. The step in turn with one in which the first of them has a weight of 0 and so nothing is left out. */
static void measure_lead(struct trainer *t, struct train_batch *b, int lead, int threads)
{
	double took[2], rel[MAX_REPS];
	struct train_result res;
	uint8_t *mask = need((size_t)b->n);
	real *weight = need((size_t)b->n * sizeof *weight);
	int reps = 0;
	for (int i = 0; i < b->n; i++) {
		mask[i] = i >= lead;
		weight[i] = i > 0;
	}
	b->mask = mask;
	b->weight = weight;
	for (; reps < MAX_REPS; reps++) {
		for (int i = 0; i < 2; i++) {
			bool whole = (reps + i) % 2;
			double t0 = now();
			mask[0] = whole;
			if (trainer_eagle3.step(t, b, &res))
				exit(1);
			took[whole] = now() - t0;
		}
		rel[reps] = took[0] / took[1];
	}
	emit("ttt_lead_of_whole_step", b->n, rel, reps, "of the step", NULL, threads);
}

static int run(int n, int threads, int vocabulary, enum dev_isa isa)
{
	const struct eagle3_config c = {.H = 576, .H_t = 576, .I = 1536, .n_head = 9, .n_kv = 3, .hd = 64, .V = 49152, .V_d = vocabulary,
					.rms_eps = (real)1e-5, .rope = {.theta = 10000, .kind = ROPE_DEFAULT}, .max_ctx = 8192};
	const struct train_options opt = {.ttt_steps = getenv("BENCH_STEPS") ? atoi(getenv("BENCH_STEPS")) : 7, .decay = (real)0.8,
					  .optimizer = getenv("BENCH_MUON") ? OPT_MUON : OPT_ADAMW, .lr = (real)1e-3, .muon_lr = (real)0.02,
					  .beta1 = (real)0.9, .beta2 = (real)0.999, .eps = (real)1e-8, .clip = (real)0.5, .muon_momentum = (real)0.95, .muon_iters = 5};
	size_t V = (size_t)c.V, H = (size_t)c.H;
	uint64_t s = 2;
	struct dev *d;
	struct trainer *t;
	struct errtext e = {""};
	struct train_batch b;
	struct train_result res;
	int64_t *d2t = calloc((size_t)c.V_d, sizeof *d2t);
	uint16_t *embedding = need(V * H * sizeof *embedding);
	for (size_t i = 0; i < V * H; i++)
		embedding[i] = f32_to_bf16((float)noise(&s));
	if (dev_cpu_new(threads, isa, &d) || trainer_eagle3.new(d, &c, &opt, d2t, embedding, &t, &e)) {
		fprintf(stderr, "bench_ttt: %s\n", e.text);
		return 1;
	}
	dev_cpu_math(d, getenv("BENCH_STRICT") ? MATH_STRICT : MATH_FAST);
	trainer_eagle3.init_random(t, 1);
	make_batch(&b, &c, n);
	if (trainer_eagle3.step(t, &b, &res)) /* warm-up: memory is touched here */
		return 1;
	if (getenv("BENCH_LEAD")) {
		measure_lead(t, &b, atoi(getenv("BENCH_LEAD")), threads);
		return 0;
	}
	measure(d, t, &b, threads);
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	double mib = (double)u.ru_maxrss / 1024;
	emit("ttt_peak_memory", n, &mib, 1, "MiB", NULL, threads);
	return 0;
}

int main(int argc, char **argv)
{
	enum dev_isa isa = ISA_AUTO;
	if (argc > 4 && dev_isa_parse(argv[4], &isa)) {
		fprintf(stderr, "bench_ttt: no path of that name: %s\n", argv[4]);
		return 2;
	}
	if (argc >= 3)
		return run(atoi(argv[1]), atoi(argv[2]), argc > 3 ? atoi(argv[3]) : 8192, isa);
	const char *const rows[] = {"512", "2048"}, *const threads[] = {"1", "2"};
	for (int i = 0; i < 4; i++) {
		pid_t pid = fork();
		int status;
		if (pid == 0) {
			execl("/proc/self/exe", "bench_ttt", rows[i / 2], threads[i % 2], (char *)NULL);
			_exit(127);
		}
		if (pid < 0 || waitpid(pid, &status, 0) < 0 || status)
			return 1;
	}
	return 0;
}
