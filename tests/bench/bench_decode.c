/* How fast the target and its rounds are, below HTTP.
 *
 *   bench_decode MODEL.gguf [THREADS...]      (default 1 2)
 *   bench_decode MODEL.gguf --draft VERSION_FOLDER --prompts FILE    accept length and tokens/s of chains, trees and auto, batch 1
 *                                                                    and 8, on two threads; a prompt a line
 *
 * One JSON object a line: {"figure","value","unit","against","ratio","ci","threads","commit","cpu"}.
 *   decode_plain     tokens/s, batch 1, context 32 to 160
 *   prefill_512      tokens/s, chunks of 128
 *   verify_5, _8     ms of a forward of five or eight rows at context 128, against one of one row
 *   drafted_k3_best  tokens/s of a pair with known acceptance (every proposal taken), against the same target plain
 *   drafted_k3_worst ... and with a draft whose proposals are never taken
 *   adaptive_best, adaptive_worst   the same pairs with draft.mode auto, against plain
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

enum { REPS = 5, V_D = 8192 };

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

struct waiter { pthread_mutex_t lock; pthread_cond_t cond; bool done; uint64_t first_us; int n; struct request_stats s; };

static void got(void *arg, const uint32_t *ids, int n)
{
	struct waiter *w = arg;
	(void)ids;
	if (!w->n)
		w->first_us = clock_us();
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
		double v[REPS], ratio[REPS];
		write_draft(t, dir, worst ? -1 : 1);
		if (engine_load(g, 1 + (uint32_t)worst, dir, sha, &e) || engine_activate(g, 1 + (uint32_t)worst, false, 0, &e))
			die("load", &e);
		for (int r = 0; r < REPS; r++) {
			double plain = serve_one(g, false, &s);
			v[r] = serve_one(g, true, &s);
			ratio[r] = v[r] / plain;
		}
		fprintf(stderr, "%s: %u of %u proposals accepted in %u rounds\n", worst ? "worst" : "best", s.accepted, s.proposed, s.rounds);
		emit(worst ? "drafted_k3_worst" : "drafted_k3_best", v, REPS, "tok/s", "plain", ratio, threads);
		engine_set_draft_mode(g, DRAFT_AUTO);
		engine_set_draft_k(g, 7);
		serve_one(g, true, &s);
		serve_one(g, true, &s); /* it finds out */
		for (int r = 0; r < REPS; r++) {
			double plain = serve_one(g, false, &s);
			v[r] = serve_one(g, true, &s);
			ratio[r] = v[r] / plain;
		}
		engine_set_draft_mode(g, DRAFT_CHAIN);
		engine_set_draft_k(g, 3);
		emit(worst ? "adaptive_worst" : "adaptive_best", v, REPS, "tok/s", "plain", ratio, threads);
		if (fs_remove_tree(dir))
			die("clean up", NULL);
	}
	engine_free(g);
	llama_free(m);
}

/* ---- a trained draft on real prompts: accept length by what is verified ---- */

struct prompts { uint32_t *ids[64]; int n_ids[64], n; };

/* One prompt a line. */
static void read_prompts(const struct target *t, const char *path, struct prompts *p)
{
	char line[4096];
	FILE *f = fopen(path, "r");
	while (f && p->n < 64 && fgets(line, sizeof line, f)) {
		size_t n = strcspn(line, "\n");
		size_t count = 0;
		if (n && !tokenizer_encode(t->tokenizer, line, n, true, &p->ids[p->n], &count) && count > 0)
			p->n_ids[p->n++] = count < 160 ? (int)count : 160;
	}
	if (f)
		fclose(f);
}

/* All prompts, `batch` at a time, 48 tokens each: accept length and tokens/s */
static double serve_all(struct engine *g, const struct prompts *p, int batch, double *ret_al)
{
	uint64_t t0 = clock_us(), proposing = 0, accepted = 0;
	int tokens = 0;
	for (int at = 0; at < p->n; at += batch) {
		struct waiter w[8];
		int m = p->n - at < batch ? p->n - at : batch;
		for (int i = 0; i < m; i++) {
			uint64_t handle;
			w[i] = (struct waiter){.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
			struct engine_request r = {.prompt = p->ids[at + i], .n_prompt = p->n_ids[at + i], .max_tokens = 48, .ignore_eos = true,
						   .sampling = {.top_p = 1}, .on_tokens = got, .on_done = ended, .arg = &w[i]};
			if (engine_submit(g, &r, &handle))
				die("submit", NULL);
		}
		for (int i = 0; i < m; i++) {
			pthread_mutex_lock(&w[i].lock);
			while (!w[i].done)
				pthread_cond_wait(&w[i].cond, &w[i].lock);
			pthread_mutex_unlock(&w[i].lock);
			proposing += w[i].s.proposing_rounds;
			accepted += w[i].s.accepted;
			tokens += w[i].n;
		}
	}
	*ret_al = proposing ? 1 + (double)accepted / (double)proposing : 1;
	return tokens * 1e6 / (double)(clock_us() - t0);
}

static void bench_trained(struct dev *d, struct target *t, int threads, const char *dir, const char *path)
{
	static const struct { enum draft_mode mode; int k, nodes; } arms[] = {
		{DRAFT_OFF, 1, 2}, {DRAFT_CHAIN, 1, 2}, {DRAFT_CHAIN, 3, 2}, {DRAFT_TREE, 3, 3}, {DRAFT_CHAIN, 5, 2}, {DRAFT_TREE, 5, 5}, {DRAFT_TREE, 3, 8},
		{DRAFT_TREE, 4, 12}, {DRAFT_AUTO, 5, 12}};
	struct prompts p = {.n = 0};
	read_prompts(t, path, &p);
	for (int batch = 1; batch <= 8; batch += 7)
		for (size_t i = 0; i < sizeof arms / sizeof *arms; i++) {
			struct engine_options o = {.dev = d, .target = t->model, .max_seqs = batch, .max_queue = 8, .max_context = 256, .kv_tokens = 320 * batch,
						   .prefill_chunk = 128, .draft_k = arms[i].k, .draft_mode = arms[i].mode, .draft_nodes = arms[i].nodes};
			struct engine *g = NULL;
			struct errtext e = {0};
			char sha[65];
			double al;
			if (engine_new(&o, &g, &e) || engine_load(g, 1, dir, sha, &e) || engine_activate(g, 1, false, 0, &e))
				die("engine", &e);
			double rate = serve_all(g, &p, batch, &al);
			static const char *const names[] = {"chain", "tree", "auto", "off"};
			printf("{\"figure\":\"%s k %d nodes %d, batch %d, AL %.3f\",\"value\":%.4g,\"unit\":\"tok/s\",\"against\":null,\"ratio\":null,\"ci\":null,"
			       "\"threads\":%d,\"commit\":\"%s\",\"cpu\":\"%s\"}\n", names[arms[i].mode], arms[i].k, arms[i].mode == DRAFT_CHAIN ? arms[i].k : arms[i].nodes,
			       batch, al, rate, threads, REDRAFT_COMMIT, cpu_name);
			fflush(stdout);
			engine_free(g);
		}
	for (int i = 0; i < p.n; i++)
		free(p.ids[i]);
}

int main(int argc, char **argv)
{
	struct errtext e = {0};
	if (argc == 6 && strcmp(argv[2], "--draft") == 0) {
		struct dev *d = NULL;
		struct target *t = NULL;
		find_cpu();
		if (dev_cpu_new(2, ISA_AUTO, &d) || target_open(d, argv[1], DT_BF16, 1024, &t, &e))
			die("target", &e);
		bench_trained(d, t, 2, argv[3], argv[5]);
		target_close(t);
		dev_free(d);
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
