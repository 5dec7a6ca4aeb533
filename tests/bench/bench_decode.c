/* How fast the target and its rounds are, below HTTP.
 *
 *   bench_decode MODEL.gguf [THREADS...]      (default 1 2)
 *   bench_decode MODEL.gguf --draft VERSION_FOLDER --prompts FILE [THREADS...]    accept length and tokens/s, reading the prompt
 *                                  left out, of chains, trees and auto against plain, batch 1, 8 and 32; a prompt a line, \\n in it
 *
 * One JSON object a line: {"figure","value","unit","against","ratio","ci","threads","commit","cpu"}.
 *   decode_plain     tokens/s, batch 1, context 32 to 160
 *   prefill_512      tokens/s, chunks of 128
 *   verify_5, _8     ms of a forward of five or eight rows at context 128, against one of one row
 *   drafted_k3_best  tokens/s of a pair with known acceptance (every proposal taken), against the same target plain
 *   drafted_k7_best  ... seven at a time
 *   drafted_k3_worst ... and with a draft whose proposals are never taken
 *   adaptive_best, adaptive_worst   the same pairs with draft.mode auto, against plain, when twelve requests have shown it what pays
 * Both arms of a ratio alternate in one process; value and ci are medians and quartiles over
 * the repetitions. The pair: the model's weights with o_proj and down_proj zero repeat the last token at full cost; a draft
 * with fc = [0,0,I], zero o_proj and down_proj and the target's head agrees with it always, with fc negated never.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/base/clock.h"
#include "daemon/base/fs.h"
#include "kernels/model/eagle3.h"
#include "schemas/draft_config.h"
#include "schemas/gguf.h"
#include "serve/engine.h"
#include "serve/target.h"
#include "serve/tokenizer.h"

enum { REPS = 5, V_D = 8192, FINDS_OUT = 12 /* requests of 64 tokens */ };

static char cpu_name[128] = "unknown";

static void find_cpu(void)
{
	char line[256];
	FILE *f = fopen("/proc/cpuinfo", "r");
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "model name : %127[^\n]", cpu_name) == 1)
			break;
	if (f)
		fclose(f);
}

static void die(const char *what, const struct errtext *e)
{
	fprintf(stderr, "bench_decode: %s: %s\n", what, e ? e->text : "failed");
	exit(1);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void emit(const char *figure, double *v, int n, const char *unit, const char *against, double *ratio, int threads)
{
	qsort(v, (size_t)n, sizeof *v, by_value);
	printf("{\"figure\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",", figure, v[n / 2], unit);
	if (against) {
		qsort(ratio, (size_t)n, sizeof *ratio, by_value);
		printf("\"against\":\"%s\",\"ratio\":%.3f,\"ci\":[%.3f,%.3f],", against, ratio[n / 2], ratio[n / 4], ratio[3 * n / 4]);
	} else {
		printf("\"against\":null,\"ratio\":null,\"ci\":[%.4g,%.4g],", v[n / 4], v[3 * n / 4]);
	}
	printf("\"threads\":%d,\"commit\":\"%s\",\"cpu\":\"%s\"}\n", threads, REDRAFT_COMMIT, cpu_name);
	fflush(stdout);
}

/* ---- the target alone ---- */

struct lone { struct llama *m; struct dev *d; struct kv_pool kv; real *logits, *features, *hidden; uint32_t pages[32]; };

static void lone_init(struct lone *x, struct dev *d, struct llama *m)
{
	const struct llama_config *c = llama_cfg(m);
	*x = (struct lone){.m = m, .d = d, .kv = {.n_layer = c->n_layer, .n_kv = c->n_kv, .d = c->hd, .page_tok = 32, .n_pages = 32, .type = DT_BF16}};
	if (d->ops->kv_new(d, &x->kv))
		die("kv", NULL);
	x->logits = d->ops->alloc(d, sizeof(real) * 9 * (size_t)c->V);
	x->features = d->ops->alloc(d, sizeof(real) * 128 * 3 * (size_t)c->H);
	x->hidden = d->ops->alloc(d, sizeof(real) * 128 * (size_t)c->H);
	for (uint32_t i = 0; i < 32; i++)
		x->pages[i] = i;
}

static void lone_done(struct lone *x)
{
	x->d->ops->kv_free(x->d, &x->kv);
	x->d->ops->free(x->d, x->logits);
	x->d->ops->free(x->d, x->features);
	x->d->ops->free(x->d, x->hidden);
}

/* M rows after n_past, logits for the last n_logits; milliseconds */
static double rows_ms(struct lone *x, int n_past, int M, int n_logits)
{
	uint32_t ids[128], pos[128], slots[128], lr[16];
	for (int i = 0; i < M; i++) {
		ids[i] = (uint32_t)(1000 + 37 * (n_past + i)) % 40000;
		pos[i] = slots[i] = (uint32_t)(n_past + i);
	}
	for (int i = 0; i < n_logits; i++)
		lr[i] = (uint32_t)(M - n_logits + i);
	struct attn_seq seq = {.pages = x->pages, .n_past = n_past, .n_rows = M};
	struct llama_batch b = {.M = M, .ids = ids, .pos = pos, .slots = slots, .seqs = &seq, .n_seqs = 1, .logit_rows = lr, .n_logits = n_logits};
	uint64_t t0 = clock_us();
	if (llama_forward(x->m, &x->kv, &b, x->features, NULL, x->logits))
		die("forward", NULL);
	return (double)(clock_us() - t0) / 1e3;
}

static void bench_target(struct dev *d, struct llama *m, int threads)
{
	struct lone x;
	double v[REPS], one[REPS], ratio[REPS];
	lone_init(&x, d, m);
	rows_ms(&x, 0, 128, 1);
	for (int r = 0; r < REPS; r++) {
		double ms = 0;
		for (int i = 0; i < 16; i++)
			ms += rows_ms(&x, 32 + 8 * i, 1, 1);
		v[r] = 16e3 / ms;
	}
	emit("decode_plain", v, REPS, "tok/s", NULL, NULL, threads);
	for (int r = 0; r < REPS; r++) {
		double ms = 0;
		for (int i = 0; i < 4; i++)
			ms += rows_ms(&x, 128 * i, 128, i == 3);
		v[r] = 512e3 / ms;
	}
	emit("prefill_512", v, REPS, "tok/s", NULL, NULL, threads);
	for (int rows = 5; rows <= 8; rows += 3) {
		for (int r = 0; r < REPS; r++) {
			double a = 0, b = 0;
			for (int i = 0; i < 6; i++) {
				a += rows_ms(&x, 128, 1, 1);
				b += rows_ms(&x, 128, rows, rows);
			}
			one[r] = a / 6;
			v[r] = b / 6;
			ratio[r] = b / a;
		}
		emit(rows == 5 ? "verify_5" : "verify_8", v, REPS, "ms", "one row", ratio, threads);
	}
	emit("verify_1", one, REPS, "ms", NULL, NULL, threads);
	lone_done(&x);
}

/* ---- the pair with known acceptance ---- */

struct muted { const struct gguf *g; uint16_t *held; };

static int muted_get(void *ctx, const char *name, struct tensor_view *ret, struct errtext *e)
{
	struct muted *s = ctx;
	free(s->held);
	s->held = NULL;
	int r = gguf_read_hf(s->g, name, &ret->rows, &ret->cols, &s->held, e);
	if (!r && (strstr(name, "o_proj") || strstr(name, "down_proj")))
		memset(s->held, 0, (size_t)ret->rows * (size_t)ret->cols * 2);
	ret->type = DT_BF16;
	ret->data = s->held;
	return r;
}

static void write_draft(const struct target *t, const char *dir, float sign)
{
	const struct llama_config *c = &t->cfg;
	struct draft_config dc = {.hidden_size = c->H, .target_hidden_size = c->H, .intermediate_size = c->I, .n_head = c->n_head,
				  .n_kv_head = c->n_kv, .head_dim = c->hd, .vocab_size = c->V, .draft_vocab_size = V_D, .max_position = c->max_ctx,
				  .rms_eps = (double)c->rms_eps, .rope_theta = c->rope.theta, .boundaries_default = true, .bos_id = 1, .eos_id = 2, .pad_id = 2};
	struct eagle3_config k = {.H = c->H, .H_t = c->H, .I = c->I, .n_head = c->n_head, .n_kv = c->n_kv, .hd = c->hd, .V = c->V, .V_d = V_D};
	struct draft_tensor out[E3_N_TENSORS];
	struct errtext e = {0};
	int64_t *d2t = calloc(V_D, sizeof *d2t);
	memcpy(dc.boundaries, c->boundaries, sizeof dc.boundaries);
	for (int i = 0; i < E3_N_TENSORS; i++) {
		int rows, cols;
		eagle3_tensor_shape(&k, (enum eagle3_tensor)i, &rows, &cols);
		size_t n = (size_t)rows * (size_t)cols;
		float *p = calloc(n, sizeof *p);
		for (size_t j = 0; j < n && i != E3_O && i != E3_DOWN && i != E3_FC; j++)
			p[j] = rows == 1 ? 1 : 0.01f * (float)((j * 2654435761u >> 7) % 64) - 0.3f;
		for (int j = 0; j < rows && i == E3_FC; j++)
			p[(size_t)j * (size_t)cols + (size_t)(2 * c->H + j)] = sign;
		out[i] = (struct draft_tensor){eagle3_tensor_name((enum eagle3_tensor)i), rows, cols, p};
	}
	int rows, cols;
	uint16_t *head;
	if (gguf_read_hf(t->gguf, c->tied ? "model.embed_tokens.weight" : "lm_head.weight", &rows, &cols, &head, &e))
		die("head", &e);
	for (size_t j = 0; j < (size_t)V_D * (size_t)c->H; j++)
		((float *)(uintptr_t)out[E3_HEAD].data)[j] = bf16_to_f32(head[j]);
	free(head);
	if (fs_mkdirs(dir) || draft_save(dir, &dc, d2t, out, E3_N_TENSORS, true, &e))
		die("draft", &e);
	for (int i = 0; i < E3_N_TENSORS; i++)
		free((void *)(uintptr_t)out[i].data);
	free(d2t);
}

struct waiter { pthread_mutex_t lock; pthread_cond_t cond; bool done; uint64_t first_us, last_us; int n; struct request_stats s; };

static void got(void *arg, const uint32_t *ids, int n)
{
	struct waiter *w = arg;
	(void)ids;
	if (!w->n)
		w->first_us = clock_us();
	w->last_us = clock_us();
	w->n += n;
}

static void ended(void *arg, enum finish why, const struct request_stats *s, const char *error)
{
	struct waiter *w = arg;
	(void)why;
	(void)error;
	pthread_mutex_lock(&w->lock);
	w->s = *s;
	w->done = true;
	pthread_cond_signal(&w->cond);
	pthread_mutex_unlock(&w->lock);
}

/* tokens/s after the first token of one request of 64 */
static double serve_one(struct engine *g, bool draft, struct request_stats *ret)
{
	struct waiter w = {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
	uint32_t prompt[32];
	uint64_t handle;
	for (uint32_t i = 0; i < 32; i++)
		prompt[i] = 500 + 11 * i;
	struct engine_request r = {.prompt = prompt, .n_prompt = 32, .max_tokens = 64, .ignore_eos = true, .no_draft = !draft, .sampling = {.top_p = 1},
				   .on_tokens = got, .on_done = ended, .arg = &w};
	if (engine_submit(g, &r, &handle))
		die("submit", NULL);
	pthread_mutex_lock(&w.lock);
	while (!w.done)
		pthread_cond_wait(&w.cond, &w.lock);
	pthread_mutex_unlock(&w.lock);
	*ret = w.s;
	return (double)(w.n - 1) * 1e6 / (double)(clock_us() - w.first_us);
}

/* Drafted as g now drafts, in turn with plain */
static void against_plain(struct engine *g, const char *figure, int threads)
{
	struct request_stats s = {0};
	double v[REPS], ratio[REPS];
	for (int r = 0; r < REPS; r++) {
		double plain = serve_one(g, false, &s);
		v[r] = serve_one(g, true, &s);
		ratio[r] = v[r] / plain;
	}
	fprintf(stderr, "%s: %u of %u proposals accepted in %u rounds\n", figure, s.accepted, s.proposed, s.rounds);
	emit(figure, v, REPS, "tok/s", "plain", ratio, threads);
}

static void bench_pair(struct dev *d, struct target *t, int threads)
{
	struct muted src = {.g = t->gguf};
	struct tensor_source ts = {.get = muted_get, .ctx = &src};
	struct llama *m = NULL;
	struct engine *g = NULL;
	struct errtext e = {0};
	struct request_stats s;
	char dir[64], sha[65];
	if (llama_load(d, &t->cfg, &ts, DT_BF16, &m, &e))
		die("target", &e);
	free(src.held);
	struct engine_options o = {.dev = d, .target = m, .max_seqs = 1, .max_queue = 4, .max_context = 256, .kv_tokens = 256, .prefill_chunk = 128, .draft_k = 3, .draft_nodes = 12};
	if (engine_new(&o, &g, &e))
		die("engine", &e);
	snprintf(dir, sizeof dir, "/tmp/redraft-bench-%d", (int)getpid());
	for (int worst = 0; worst < 2; worst++) {
		write_draft(t, dir, worst ? -1 : 1);
		if (engine_load(g, 1 + (uint32_t)worst, dir, sha, &e) || engine_activate(g, 1 + (uint32_t)worst, false, 0, &e))
			die("load", &e);
		against_plain(g, worst ? "drafted_k3_worst" : "drafted_k3_best", threads);
		engine_set_draft_k(g, 7);
		if (!worst)
			against_plain(g, "drafted_k7_best", threads);
		engine_set_draft_mode(g, DRAFT_AUTO);
		for (int i = 0; i < FINDS_OUT; i++)
			serve_one(g, true, &s);
		against_plain(g, worst ? "adaptive_worst" : "adaptive_best", threads);
		engine_set_draft_mode(g, DRAFT_CHAIN);
		engine_set_draft_k(g, 3);
		if (fs_remove_tree(dir))
			die("clean up", NULL);
	}
	engine_free(g);
	llama_free(m);
}

/* ---- a trained draft on real prompts: accept length by what is verified, and what it brings ---- */

enum { MAX_PROMPTS = 64, MAX_BATCH = 32, ANSWER = 48 };

struct prompts { uint32_t *ids[MAX_PROMPTS]; int n_ids[MAX_PROMPTS], n; };

struct arm { const char *name; enum draft_mode mode; int k, nodes; struct engine *g; double rate[MAX_PROMPTS], ratio[MAX_PROMPTS]; uint64_t proposing, accepted; };

/* One prompt a line, \\n in it for a line's end. */
static void read_prompts(const struct target *t, const char *path, struct prompts *p)
{
	char line[8192];
	FILE *f = fopen(path, "r");
	while (f && p->n < MAX_PROMPTS && fgets(line, sizeof line, f)) {
		size_t n = 0, count = 0;
		for (const char *c = line; *c && *c != '\n'; c++) {
			bool end = c[0] == '\\' && c[1] == 'n';
			line[n++] = end ? '\n' : *c;
			c += end;
		}
		if (n && !tokenizer_encode(t->tokenizer, line, n, true, SIZE_MAX, &p->ids[p->n], &count) && count > 0)
			p->n_ids[p->n++] = count < 200 ? (int)count : 200;
	}
	if (f)
		fclose(f);
}

/* `batch` prompts at a time from the at-th on: tokens/s of all, each counted from its first to its last token */
static double serve_group(struct arm *a, const struct prompts *p, int at, int batch)
{
	struct waiter w[MAX_BATCH];
	double rate = 0;
	for (int i = 0; i < batch; i++) {
		uint64_t handle;
		int k = (at + i) % p->n;
		w[i] = (struct waiter){.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
		struct engine_request r = {.prompt = p->ids[k], .n_prompt = p->n_ids[k], .max_tokens = ANSWER, .ignore_eos = true,
					   .sampling = {.top_p = 1}, .on_tokens = got, .on_done = ended, .arg = &w[i]};
		if (engine_submit(a->g, &r, &handle))
			die("submit", NULL);
	}
	for (int i = 0; i < batch; i++) {
		pthread_mutex_lock(&w[i].lock);
		while (!w[i].done)
			pthread_cond_wait(&w[i].cond, &w[i].lock);
		pthread_mutex_unlock(&w[i].lock);
		a->proposing += w[i].s.proposing_rounds;
		a->accepted += w[i].s.accepted;
		rate += (w[i].n - 1) * 1e6 / (double)(w[i].last_us - w[i].first_us);
	}
	return rate;
}

static void open_arm(struct arm *a, struct dev *d, struct target *t, int batch, const char *dir)
{
	struct engine_options o = {.dev = d, .target = t->model, .max_seqs = batch, .max_queue = MAX_BATCH, .max_context = 320, .kv_tokens = 320 * batch,
				   .prefill_chunk = 128, .draft_k = a->k, .draft_mode = a->mode, .draft_nodes = a->nodes};
	struct errtext e = {0};
	char sha[65];
	if (engine_new(&o, &a->g, &e) || engine_load(a->g, 1, dir, sha, &e) || engine_activate(a->g, 1, false, 0, &e))
		die("engine", &e);
	a->proposing = a->accepted = 0;
}

/* All arms are open at once and take every group in turn; plain comes first. */
static void bench_trained(struct dev *d, struct target *t, int threads, const char *dir, const struct prompts *p, int batch)
{
	static struct arm arms[] = {
		{.name = "plain", .mode = DRAFT_OFF, .k = 1, .nodes = 2}, {.name = "chain 1", .mode = DRAFT_CHAIN, .k = 1, .nodes = 2},
		{.name = "chain 3", .mode = DRAFT_CHAIN, .k = 3, .nodes = 2}, {.name = "tree of 3", .mode = DRAFT_TREE, .k = 3, .nodes = 3},
		{.name = "tree of 5", .mode = DRAFT_TREE, .k = 5, .nodes = 5}, {.name = "tree of 8", .mode = DRAFT_TREE, .k = 4, .nodes = 8},
		{.name = "auto", .mode = DRAFT_AUTO, .k = 5, .nodes = 12}};
	enum { N = sizeof arms / sizeof *arms };
	int groups = batch == 1 ? p->n : 6;
	for (int i = 0; i < N; i++)
		open_arm(&arms[i], d, t, batch, dir);
	serve_group(&arms[N - 1], p, 0, batch); /* auto finds out what things cost */
	serve_group(&arms[N - 1], p, batch, batch);
	for (int k = 0; k < groups; k++)
		for (int i = 0; i < N; i++) {
			struct arm *a = &arms[k % 2 ? N - 1 - i : i];
			a->rate[k] = serve_group(a, p, k * batch, batch);
		}
	for (int i = N - 1; i >= 0; i--) { /* plain last: emit sorts its rates */
		char figure[96];
		for (int k = 0; k < groups; k++)
			arms[i].ratio[k] = arms[i].rate[k] / arms[0].rate[k];
		snprintf(figure, sizeof figure, "%s, batch %d, accept length %.2f", arms[i].name, batch,
			 arms[i].proposing ? 1 + (double)arms[i].accepted / (double)arms[i].proposing : 1);
		emit(figure, arms[i].rate, groups, "tok/s", i ? "plain" : NULL, arms[i].ratio, threads);
		engine_free(arms[i].g);
	}
}

static int trained(const char *model, const char *dir, const char *path, int threads)
{
	struct errtext e = {0};
	struct dev *d = NULL;
	struct target *t = NULL;
	struct prompts p = {.n = 0};
	if (dev_cpu_new(threads, ISA_AUTO, &d) || target_open(d, model, DT_BF16, 1024, &t, &e))
		die("target", &e);
	read_prompts(t, path, &p);
	if (!p.n)
		die("no prompts in the file", NULL);
	for (int batch = 1; batch <= MAX_BATCH; batch *= batch == 1 ? 8 : 4)
		bench_trained(d, t, threads, dir, &p, batch);
	for (int i = 0; i < p.n; i++)
		free(p.ids[i]);
	target_close(t);
	dev_free(d);
	return 0;
}

int main(int argc, char **argv)
{
	struct errtext e = {0};
	if (argc >= 6 && strcmp(argv[2], "--draft") == 0) {
		find_cpu();
		for (int i = 6; i < (argc > 6 ? argc : 8); i++)
			trained(argv[1], argv[3], argv[5], argc > 6 ? atoi(argv[i]) : i - 5);
		return 0;
	}
	if (argc < 2) {
		fprintf(stderr, "usage: bench_decode MODEL.gguf [THREADS...]\n");
		return 2;
	}
	find_cpu();
	for (int i = 2; i < (argc > 2 ? argc : 4); i++) {
		int threads = argc > 2 ? atoi(argv[i]) : i - 1;
		struct dev *d = NULL;
		struct target *t = NULL;
		if (dev_cpu_new(threads, ISA_AUTO, &d) || target_open(d, argv[1], DT_BF16, 1024, &t, &e))
			die("target", &e);
		bench_target(d, t->model, threads);
		bench_pair(d, t, threads);
		target_close(t);
		dev_free(d);
	}
	return 0;
}
