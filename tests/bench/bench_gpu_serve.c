/* make bench-gpu: what capture and switching cost a server on a GPU, below HTTP, one JSON object a line.
 *
 * An engine (strict, bf16) with a target of an 8B model's shape, made of noise, and a draft of it in two versions that differ only where they
 * have no say, so that both agree equally often; requests of eight clients, all greedy, in slices. Every slice asks the same, so every
 * slice must answer the same: a version in the way, or the tap, may cost time and never a token. The arms take turns (A B C, C B A):
 *   capture   on, off, and off again, which shows what the method cannot see; records go to librdkafka's mock cluster in this process
 *   switches  none, and between the two versions every 50 ms; then one round of unloading a version, loading and activating it
 * The longest gap between two pieces of a client's text is told in rounds, the median gap without switches.
 *
 * Without a GPU it says why and ends with 77; `--small` shrinks all shapes, so that the emulated device runs it in a test.
 */
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/base/clock.h"
#include "daemon/base/fs.h"
#include "kernels/model/eagle3.h"
#include "kernels/model/llama.h"
#include "schemas/draft_config.h"
#include "serve/engine.h"
#include "serve/tap.h"

enum { MAX_CLIENTS = 8, MAX_TOKENS = 256, MAX_PAIRS = 16, NOISE = 1000003 /* no row of any width begins where another does */ };

static struct shape { int H, I, layers, heads, n_kv, hd, V, V_d, clients, prompt, tokens, pairs; } size = {4096, 14336, 32, 32, 8, 128, 128256, 32000, 8, 64, 256, 8};
static const struct shape small = {64, 128, 8, 4, 2, 16, 512, 256, 3, 8, 12, 2};
static uint16_t *noise; /* [NOISE] */
static double residual; /* how much attention and FFN say against the embedding: the text mostly repeats, but not only */

static void die(const char *what, const struct errtext *e)
{
	fprintf(stderr, "bench_gpu_serve: %s: %s\n", what, e && *e->text ? e->text : "failed");
	exit(1);
}

static void *need(size_t bytes)
{
	void *p = malloc(bytes);
	if (!p)
		die("memory", NULL);
	return p;
}

/* ---- a target and a draft of noise ---- */

static void make_noise(void)
{
	uint64_t s = 1;
	noise = need(NOISE * sizeof *noise);
	for (int i = 0; i < NOISE; i++) {
		double sum = -2;
		for (int j = 0; j < 4; j++) {
			s = s * 6364136223846793005u + 1442695040888963407u;
			sum += (double)(s >> 33) / (double)(1u << 31);
		}
		noise[i] = f32_to_bf16((float)(1.7320508 * sum / sqrt(size.H)));
	}
	residual = 1.2 / sqrt(size.H) * sqrt(8.0 / size.layers);
}

/* n values from a place in the noise that the seed names, times scale */
static void fill(uint16_t *to, size_t n, uint32_t seed, float scale)
{
	size_t at = seed * 2654435761u % NOISE;
	for (size_t i = 0; i < n; i++) {
		to[i] = scale == 1 ? noise[at] : f32_to_bf16(scale * bf16_to_f32(noise[at]));
		at = at + 1 == NOISE ? 0 : at + 1;
	}
}

static int get(void *arg, const char *name, struct tensor_view *ret, struct errtext *e)
{
	uint16_t **held = arg;
	uint32_t seed = 5;
	(void)e;
	for (const char *c = name; *c; c++)
		seed = seed * 31 + (uint8_t)*c;
	bool small_say = strstr(name, "o_proj") || strstr(name, "down_proj");
	ret->cols = strstr(name, "down_proj") ? size.I : strstr(name, "o_proj") ? size.heads * size.hd : size.H;
	ret->rows = strstr(name, "norm") ? 1 : strstr(name, "embed_tokens") ? size.V : strstr(name, "q_proj") ? size.heads * size.hd
		: strstr(name, "k_proj") || strstr(name, "v_proj") ? size.n_kv * size.hd : strstr(name, "gate") || strstr(name, "up_proj") ? size.I : size.H;
	size_t n = (size_t)ret->rows * (size_t)ret->cols;
	free(*held);
	*held = need(n * sizeof **held);
	fill(*held, n, seed, small_say ? (float)residual : 1);
	for (size_t i = 0; ret->rows == 1 && i < n; i++)
		(*held)[i] = f32_to_bf16(1);
	ret->type = DT_BF16;
	ret->data = *held;
	return 0;
}

static struct llama *make_target(struct dev *d)
{
	struct llama_config c = {.n_layer = size.layers, .H = size.H, .I = size.I, .n_head = size.heads, .n_kv = size.n_kv, .hd = size.hd, .V = size.V, .rms_eps = (real)1e-5,
				 .rope = {.theta = 500000}, .max_ctx = 1024, .tied = true};
	uint16_t *held = NULL;
	struct llama *m = NULL;
	struct errtext e = {""};
	default_boundaries(c.n_layer, c.boundaries);
	if (llama_load(d, &c, &(struct tensor_source){.get = get, .ctx = &held}, DT_BF16, &m, &e))
		die("target", &e);
	free(held);
	return m;
}

/* It reads the high feature through the target's head, attention and FFN mute: right where the target repeats itself. */
static void write_draft(const char *dir, uint32_t version)
{
	struct draft_config c = {.hidden_size = size.H, .target_hidden_size = size.H, .intermediate_size = size.I, .n_head = size.heads, .n_kv_head = size.n_kv, .head_dim = size.hd,
				 .vocab_size = size.V, .draft_vocab_size = size.V_d, .max_position = 1024, .rms_eps = 1e-5, .rope_theta = 500000, .boundaries_default = true, .bos_id = 1, .eos_id = 2, .pad_id = 2};
	struct eagle3_config k = {.H = size.H, .H_t = size.H, .I = size.I, .n_head = size.heads, .n_kv = size.n_kv, .hd = size.hd, .V = size.V, .V_d = size.V_d};
	struct draft_tensor t[E3_N_TENSORS];
	struct errtext e = {""};
	int64_t *d2t = calloc((size_t)size.V_d, sizeof *d2t);
	uint16_t *held = NULL;
	struct tensor_view head;
	default_boundaries(size.layers, c.boundaries);
	(void)get(&held, "model.embed_tokens.weight", &head, &e);
	for (int i = 0; i < E3_N_TENSORS; i++) {
		int rows, cols;
		eagle3_tensor_shape(&k, (enum eagle3_tensor)i, &rows, &cols);
		size_t n = (size_t)rows * (size_t)cols;
		float *p = need(n * sizeof *p);
		for (size_t j = 0; j < n; j++)
			p[j] = rows == 1 ? 1 : i == E3_HEAD ? bf16_to_f32(held[j]) : i == E3_O || i == E3_DOWN ? 0 : i == E3_FC ? j % (3 * (size_t)size.H) == 2 * (size_t)size.H + j / (3 * (size_t)size.H)
				: bf16_to_f32(noise[(j + version * 7919u + (size_t)i) % NOISE]);
		t[i] = (struct draft_tensor){eagle3_tensor_name((enum eagle3_tensor)i), rows, cols, p};
	}
	if (!d2t || fs_mkdirs(dir) || draft_save(dir, &c, d2t, t, E3_N_TENSORS, true, &e))
		die("draft", &e);
	for (int i = 0; i < E3_N_TENSORS; i++)
		free((void *)(uintptr_t)t[i].data);
	free(held);
	free(d2t);
}

/* ---- a slice: every client asks once, all at the same time ---- */

struct client {
	uint32_t out[MAX_TOKENS];
	uint64_t at[MAX_TOKENS]; /* of each piece, us */
	int n, pieces;
	bool done, failed;
	struct request_stats stats;
};

struct slice {
	struct client c[MAX_CLIENTS];
	double per_token_us; /* mean over clients, after the first piece */
	double round_us, longest_us; /* median and longest gap between pieces */
	int accepted, proposed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;

static void got(void *arg, const uint32_t *ids, int n)
{
	struct client *c = arg;
	for (int i = 0; i < n && c->n < MAX_TOKENS; i++)
		c->out[c->n++] = ids[i];
	if (c->pieces < MAX_TOKENS)
		c->at[c->pieces++] = clock_us();
}

static void ended(void *arg, enum finish why, const struct request_stats *s, const char *error)
{
	struct client *c = arg;
	(void)error;
	pthread_mutex_lock(&lock);
	c->stats = *s;
	c->failed = why != FINISH_LENGTH;
	c->done = true;
	pthread_cond_signal(&cond);
	pthread_mutex_unlock(&lock);
}

static bool all_done(const struct slice *s)
{
	bool all = true;
	for (int i = 0; i < size.clients; i++)
		all = all && s->c[i].done;
	return all;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median(double *v, int n, int quarter) /* of 4: 2 is the median */
{
	qsort(v, (size_t)n, sizeof *v, by_value);
	return v[quarter * (n - 1) / 4];
}

static void sum_up(struct slice *s)
{
	static double gaps[MAX_CLIENTS * MAX_TOKENS];
	int n = 0;
	s->per_token_us = s->longest_us = 0;
	s->accepted = s->proposed = 0;
	for (int i = 0; i < size.clients; i++) {
		const struct client *c = &s->c[i];
		if (c->failed || c->pieces < 2)
			die("a request did not come to its end", NULL);
		for (int p = 1; p < c->pieces; p++) {
			gaps[n] = (double)(c->at[p] - c->at[p - 1]);
			s->longest_us = gaps[n] > s->longest_us ? gaps[n] : s->longest_us;
			n++;
		}
		s->per_token_us += (double)(c->at[c->pieces - 1] - c->at[0]) / (c->n - 1) / size.clients;
		s->accepted += (int)c->stats.accepted;
		s->proposed += (int)c->stats.proposed;
	}
	s->round_us = median(gaps, n, 2);
}

/* While the clients wait: NULL, or what to do every 50 ms */
static void run(struct engine *g, struct slice *s, void (*meanwhile)(struct engine *))
{
	uint64_t handle;
	uint32_t prompt[64];
	memset(s, 0, sizeof *s);
	for (int i = 0; i < size.clients; i++) {
		struct engine_request r = {.prompt = prompt, .n_prompt = size.prompt, .max_tokens = size.tokens, .ignore_eos = true, .sampling = {.top_p = 1}, .domain = "code",
					   .on_tokens = got, .on_done = ended, .arg = &s->c[i]};
		for (int j = 0; j < size.prompt; j++)
			prompt[j] = (uint32_t)(i * 131 + j * 37) % (uint32_t)size.V_d;
		(void)snprintf(r.request_id, sizeof r.request_id, "r-%d", i);
		(void)snprintf(r.conversation, sizeof r.conversation, "c-%d", i);
		if (engine_submit(g, &r, &handle))
			die("submit", NULL);
	}
	pthread_mutex_lock(&lock);
	while (!all_done(s)) {
		if (!meanwhile) {
			pthread_cond_wait(&cond, &lock);
			continue;
		}
		pthread_mutex_unlock(&lock);
		meanwhile(g);
		(void)usleep(50000);
		pthread_mutex_lock(&lock);
	}
	pthread_mutex_unlock(&lock);
	sum_up(s);
}

static int changed(const struct slice *a, const struct slice *b)
{
	int n = 0;
	for (int i = 0; i < size.clients; i++)
		n += a->c[i].n != b->c[i].n || memcmp(a->c[i].out, b->c[i].out, (size_t)a->c[i].n * sizeof *a->c[i].out) != 0;
	return n;
}

static void say(const char *what, double value, const char *unit, const char *more)
{
	printf("{\"what\": \"%s\", \"value\": %.4g, \"unit\": \"%s\"%s}\n", what, value, unit, more);
	fflush(stdout);
}

/* ---- the arms ---- */

static int answers, differing; /* against the first slice, which decodes plainly */

static void count(const struct slice *plain, const struct slice *s)
{
	answers += size.clients;
	differing += changed(plain, s);
}

static void ratio(const char *what, double *v, int n)
{
	char more[80];
	double low = median(v, n, 1), high = median(v, n, 3);
	(void)snprintf(more, sizeof more, ", \"quartiles\": [%.4g, %.4g], \"pairs\": %d", low, high, n);
	say(what, median(v, n, 2), "x", more);
}

static void capture(struct engine *g, struct tap *tap, const struct slice *plain)
{
	static struct slice s;
	double on_off[MAX_PAIRS], off_off[MAX_PAIRS], us[3];
	struct tap_stats stats;
	char more[160];
	for (int p = 0; p < size.pairs; p++) {
		for (int i = 0; i < 3; i++) {
			int arm = p % 2 ? 2 - i : i;
			tap_set_enabled(tap, arm == 0);
			run(g, &s, NULL);
			count(plain, &s);
			us[arm] = s.per_token_us;
		}
		on_off[p] = us[0] / us[1];
		off_off[p] = us[2] / us[1];
	}
	tap_set_enabled(tap, false);
	tap_stats(tap, &stats);
	ratio("capture on, time per token against off", on_off, size.pairs);
	ratio("capture off again, against off", off_off, size.pairs);
	(void)snprintf(more, sizeof more, ", \"records\": %llu, \"mb\": %.4g", (unsigned long long)stats.records, (double)stats.bytes / 1e6);
	say("capture, requests dropped", (double)(stats.dropped_ring + stats.dropped_queue + stats.dropped_broker + stats.dropped_size), "", more);
	if (!stats.requests_traced || !stats.records)
		die("capture was on and nothing was recorded", NULL);
}

static uint32_t live = 1;
static int switched;

static void switch_over(struct engine *g)
{
	struct errtext e = {""};
	live = 3 - live;
	if (engine_activate(g, live, true, 0, &e))
		die("switch", &e);
	switched++;
}

static void switches(struct engine *g, const struct slice *plain)
{
	static struct slice calm, busy;
	double none[MAX_PAIRS], many[MAX_PAIRS], per_token[MAX_PAIRS];
	char more[80];
	for (int p = 0; p < size.pairs; p++) {
		for (int i = 0; i < 2; i++)
			run(g, (p + i) % 2 ? &busy : &calm, (p + i) % 2 ? switch_over : NULL);
		count(plain, &calm);
		count(plain, &busy);
		none[p] = calm.longest_us / calm.round_us;
		many[p] = busy.longest_us / calm.round_us;
		per_token[p] = busy.per_token_us / calm.per_token_us;
	}
	say("a round of drafting clients", calm.round_us / 1e3, "ms", "");
	say("longest gap without switches", median(none, size.pairs, 2), "rounds", "");
	(void)snprintf(more, sizeof more, ", \"switches\": %d", switched);
	say("longest gap while versions are switched", median(many, size.pairs, 2), "rounds", more);
	ratio("switching every 50 ms, time per token against not", per_token, size.pairs);
}

static const char *folder[2];

static void *promote(void *arg)
{
	struct engine *g = arg;
	struct errtext e = {""};
	char sha[65];
	uint32_t other = 3 - live;
	if (engine_unload(g, other, &e) || engine_load(g, other, folder[other - 1], sha, &e) || engine_activate(g, other, true, 0, &e))
		die("promotion", &e);
	live = other;
	return NULL;
}

/* A version is read, hashed, packed and warmed beside decoding, which goes on until it is there. */
static void promotion(struct engine *g, const struct slice *plain)
{
	static struct slice s;
	pthread_t t;
	double longest = 0, rounds = 0;
	char more[80];
	uint64_t began = clock_us();
	if (pthread_create(&t, NULL, promote, g))
		die("thread", NULL);
	do {
		run(g, &s, NULL);
		count(plain, &s);
		longest = s.longest_us > longest ? s.longest_us : longest;
		rounds = s.round_us;
	} while (pthread_tryjoin_np(t, NULL));
	(void)snprintf(more, sizeof more, ", \"ms\": %.4g, \"seconds\": %.3g", longest / 1e3, (double)(clock_us() - began) / 1e6);
	say("longest gap while a version is loaded and activated", longest / rounds, "rounds", more);
}

static void bench(struct dev *d, const char *brokers, const char *dir)
{
	static struct slice plain, first;
	struct tap_options to = {.brokers = brokers, .traces_topic = "traces", .rounds_topic = "rounds", .H_t = size.H, .topk = 16, .prompt_hidden = true, .sample = 1, .ring_bytes = 256 << 20,
				 .queue_bytes = 256 << 20, .payload = RECORD_PLANES};
	struct errtext e = {""};
	struct tap *tap = NULL;
	struct engine *g = NULL;
	char sha[65], more[80], path[2][96];
	memset(to.target_fp, 'a', 64);
	struct llama *target = make_target(d);
	if (tap_new(&to, &tap, &e))
		die("tap", &e);
	tap_set_enabled(tap, false);
	struct engine_options o = {.dev = d, .target = target, .max_seqs = size.clients, .max_queue = size.clients, .max_context = 512, .kv_tokens = 512 * size.clients, .prefill_chunk = 256,
				   .draft_k = 3, .draft_mode = DRAFT_CHAIN, .tap = tap};
	if (engine_new(&o, &g, &e))
		die("engine", &e);
	run(g, &plain, NULL); /* no version yet: decoded plainly */
	run(g, &first, NULL);
	say("plain decoding, many clients", 1e6 * size.clients / first.per_token_us, "tok/s", "");
	for (uint32_t i = 0; i < 2; i++) {
		(void)snprintf(path[i], sizeof path[i], "%s/%u", dir, i + 1);
		folder[i] = path[i];
		write_draft(path[i], i + 1);
		if (engine_load(g, i + 1, path[i], sha, &e))
			die("load", &e);
	}
	if (engine_activate(g, live, false, 0, &e))
		die("activate", &e);
	run(g, &first, NULL);
	run(g, &first, NULL);
	count(&plain, &first);
	(void)snprintf(more, sizeof more, ", \"accepted\": %.3f", (double)first.accepted / (first.proposed ? first.proposed : 1));
	say("drafted decoding, many clients, k = 3", 1e6 * size.clients / first.per_token_us, "tok/s", more);
	capture(g, tap, &plain);
	switches(g, &plain);
	promotion(g, &plain);
	(void)snprintf(more, sizeof more, ", \"answers\": %d", answers);
	say("answers that were not plain decoding's", differing, "", more);
	(void)snprintf(e.text, sizeof e.text, "%s", d->graphs);
	engine_free(g);
	tap_free(tap);
	llama_free(target);
	if (*e.text)
		die("graphs were asked for, and parts of rounds were launched plainly", &e);
}

int main(int argc, char **argv)
{
	struct errtext e = {""};
	struct dev *d;
	char dir[64];
	if (argc > 1 && strcmp(argv[1], "--small") == 0)
		size = small;
	if (dev_new(&(struct dev_options){.kind = DEV_CUDA, .math = MATH_STRICT, .graphs = true}, &d, &e)) {
		fprintf(stderr, "bench_gpu_serve: skipped: %s\n", e.text);
		return 77;
	}
	printf("{\"device\": \"%s\"}\n", d->about);
	rd_kafka_conf_t *c = rd_kafka_conf_new();
	char why[200];
	rd_kafka_t *host = rd_kafka_conf_set(c, "log_level", "0", why, sizeof why) ? NULL : rd_kafka_new(RD_KAFKA_PRODUCER, c, why, sizeof why);
	rd_kafka_mock_cluster_t *cluster = host ? rd_kafka_mock_cluster_new(host, 1) : NULL;
	if (!cluster || rd_kafka_mock_topic_create(cluster, "traces", 4, 1) || rd_kafka_mock_topic_create(cluster, "rounds", 4, 1))
		die("mock cluster", NULL);
	(void)snprintf(dir, sizeof dir, "/tmp/redraft-bench-gpu-%d", (int)getpid());
	make_noise();
	bench(d, rd_kafka_mock_cluster_bootstraps(cluster), dir);
	if (fs_remove_tree(dir))
		die("clean up", NULL);
	rd_kafka_mock_cluster_destroy(cluster);
	rd_kafka_destroy(host);
	dev_free(d);
	free(noise);
	return 0;
}
