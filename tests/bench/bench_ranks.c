/* One training step of a long synthetic sequence, or of several, alone, under mpirun, or as ranks with a GPU each: time, memory of every rank, loss.
 *
 *   bench_ranks [n=4096] [wide=64] [heads=2] [steps=7] [data=1] [ulysses=1] [reps=1] [runs=1] [gpu=0] [fast=0] [ranks=1 rank=0 meet=PLACE]
 *   mpirun --oversubscribe -np 4 build/release/bench/bench_ranks n=131072 ulysses=2
 *   for r in 0 1; do build/release/bench/bench_ranks n=131072 ranks=2 rank=$r meet=$PWD/meet & done; wait
 *
 * runs: the rows are so many runs packed, which see only themselves: as much memory for less attention; data groups of ranks share them. fast: a GPU's
 * products in bf16, as the learner's are (loss and gradient then hold to bf16's rounding alone).
 * Rank 0 makes the sequence whole and deals it out; its own peak therefore holds the inputs of all (a few hundred
 * bytes a row). Prints a line of JSON; the same n gives the same loss on any grid, to rounding.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "learn/crew.h"
#include "learn/seqpar.h"

enum { V = 1024, V_D = 512, K = 8 };

struct want {
	int n, wide, heads, steps, data, ulysses, reps, runs, gpu, fast, ranks, rank;
	char meet[200];
};

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *need(size_t n, size_t size)
{
	void *p = calloc(n, size);
	if (!p) {
		fprintf(stderr, "bench_ranks: out of memory\n");
		exit(1);
	}
	return p;
}

static uint32_t draw(uint64_t *s)
{
	*s = *s * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(*s >> 33);
}

static void make_batch(struct train_batch *b, int n, int runs, int H_t)
{
	uint64_t s = 1;
	size_t rows = (size_t)n, F = 3 * (size_t)H_t;
	uint32_t *ids = need(rows + 1, 4), *pos = need(rows, 4), *y = need(rows, 4), *seg = need(rows, 4), *t_ids = need(rows * K, 4);
	uint8_t *ones = need(rows, 1);
	real *f = need(rows * F, sizeof *f), *p = need(rows * K, sizeof *p);
	memset(ones, 1, rows);
	for (size_t i = 0; i <= rows; i++)
		ids[i] = draw(&s) % V;
	for (size_t i = 0; i < rows * F; i++)
		f[i] = (real)draw(&s) / (real)(1u << 30) - 1;
	for (size_t i = 0; i < rows; i++) {
		seg[i] = (uint32_t)(i - i % ((rows + (size_t)runs - 1) / (size_t)runs));
		pos[i] = (uint32_t)i - seg[i];
		y[i] = ids[i + 1] % V_D;
		for (uint32_t j = 0; j < K; j++) {
			t_ids[i * K + j] = (y[i] + j) % V_D;
			p[i * K + j] = (real)(j ? 0.25 / (K - 1) : 0.75);
		}
	}
	*b = (struct train_batch){.n = n, .ids = ids, .pos = pos, .seg = runs > 1 ? seg : NULL, .features = f, .mask = ones, .in_vocab = ones, .y = y, .teacher = {.n = n, .K = K, .ids = t_ids, .p = p}};
}

static double peak_mib(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (double)u.ru_maxrss / 1024;
}

static int lead(const struct want *w, struct comm *c, struct dev *d, const struct eagle3_config *cfg, const uint16_t *embedding, double *ret_took, struct train_result *ret)
{
	const struct train_options o = {.ttt_steps = w->steps, .decay = (real)0.8, .optimizer = OPT_ADAMW, .lr = (real)1e-3, .beta1 = (real)0.9, .beta2 = (real)0.999,
					.eps = (real)1e-8, .clip = (real)0.5, .ranks = c, .data = w->data, .ulysses = w->ulysses};
	struct trainer *t = NULL;
	struct train_batch b;
	struct errtext e = {""};
	int64_t *d2t = need(V_D, sizeof *d2t);
	make_batch(&b, w->n, w->runs, cfg->H_t);
	int r = trainer_eagle3.new(d, cfg, &o, d2t, embedding, &t, &e);
	if (!r)
		trainer_eagle3.init_random(t, 1);
	double t0 = now();
	for (int i = 0; i < w->reps && !r; i++)
		r = trainer_eagle3.step(t, &b, ret);
	*ret_took = (now() - t0) / w->reps;
	trainer_eagle3.free(t);
	if (!r)
		crew_end(c, NULL);
	if (r)
		fprintf(stderr, "bench_ranks: %s\n", *e.text ? e.text : c->failed ? c->error : *d->error ? d->error : strerror(-r));
	return r;
}

int main(int argc, char **argv)
{
	struct want w = {4096, 64, 2, 7, 1, 1, 1, 1, 0, 0, 1, 0, ""};
	struct errtext e = {""};
	struct comm *c = NULL;
	struct dev *d = NULL;
	for (int i = 1; i < argc; i++)
		if (sscanf(argv[i], "n=%d", &w.n) + sscanf(argv[i], "wide=%d", &w.wide) + sscanf(argv[i], "heads=%d", &w.heads) + sscanf(argv[i], "steps=%d", &w.steps) +
			    sscanf(argv[i], "data=%d", &w.data) + sscanf(argv[i], "ulysses=%d", &w.ulysses) + sscanf(argv[i], "reps=%d", &w.reps) + sscanf(argv[i], "runs=%d", &w.runs) +
			    sscanf(argv[i], "gpu=%d", &w.gpu) + sscanf(argv[i], "fast=%d", &w.fast) +
			    sscanf(argv[i], "ranks=%d", &w.ranks) + sscanf(argv[i], "rank=%d", &w.rank) + sscanf(argv[i], "meet=%199s", w.meet) < 1) {
			fprintf(stderr, "bench_ranks: %s is none of n= wide= heads= steps= data= ulysses= reps= runs= gpu= fast= ranks= rank= meet=\n", argv[i]);
			return 2;
		}
	const struct crew_conf ranks = {.count = w.ranks, .rank = w.rank, .meet = w.meet, .secret_file = (char[]){""}, .timeout_s = 120};
	struct dev_options device = {.kind = w.gpu || w.ranks > 1 ? DEV_CUDA : DEV_CPU, .math = w.fast ? MATH_FAST : MATH_STRICT};
	if (crew_open(&ranks, &c, &e) || crew_device(c, &device, &e)) {
		fprintf(stderr, "bench_ranks: %s\n", e.text);
		return 2;
	}
	const struct eagle3_config cfg = {.H = w.wide, .H_t = w.wide, .I = 2 * w.wide, .n_head = w.heads, .n_kv = w.heads, .hd = w.wide / w.heads, .V = V, .V_d = V_D, .rms_eps = (real)1e-5,
					  .rope = {.theta = 500000, .kind = ROPE_DEFAULT}, .max_ctx = w.n};
	uint64_t s = 7;
	uint16_t *embedding = need((size_t)V * (size_t)w.wide, sizeof *embedding);
	for (size_t i = 0; i < (size_t)V * (size_t)w.wide; i++)
		embedding[i] = f32_to_bf16((float)draw(&s) / (float)(1u << 30) - 1);
	if (crew_dev_new(c, &device, &d, &e)) {
		fprintf(stderr, "bench_ranks: %s\n", e.text);
		return 1;
	}
	double took = 0, mine, all[COMM_MAX_RANKS], sum = 0, most = 0;
	struct train_result res = {0};
	int r = c->rank ? crew_follow(c, d, &(struct crew_target){embedding, embedding, V, w.wide}, &e) : lead(&w, c, d, &cfg, embedding, &took, &res);
	if (r && c->rank)
		fprintf(stderr, "bench_ranks: %s\n", e.text);
	mine = peak_mib();
	if (r || comm_all_gather(c, &mine, all, sizeof mine))
		return 1;
	for (int i = 0; i < c->size; i++) {
		sum += all[i];
		most = i && all[i] > most ? all[i] : most; /* of the followers: rank 0 has the whole batch too */
	}
	if (c->rank == 0)
		printf("{\"figure\":\"ranks_step_%d\",\"value\":%.4g,\"unit\":\"s\",\"ranks\":%d,\"data\":%d,\"ulysses\":%d,\"wide\":%d,\"steps\":%d,\"runs\":%d,\"peak_all_mib\":%.0f,\"peak_leader_mib\":%.0f,"
		       "\"peak_follower_mib\":%.0f,\"loss\":%.9g,\"grad_norm\":%.9g,\"commit\":\"%s\"}\n",
		       w.n, took, c->size, w.data, w.ulysses, w.wide, w.steps, w.runs, sum, all[0], most, res.loss, res.grad_norm, REDRAFT_COMMIT);
	dev_free(d);
	comm_free(c);
	return 0;
}
