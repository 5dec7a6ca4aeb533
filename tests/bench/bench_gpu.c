/* make bench-gpu: what the CUDA back end reaches of a GPU's own limits, one JSON object a line.
 *
 * The yardsticks are measured in the same run: memory by y = x over two large arrays, arithmetic by one
 * large bf16 product. Shapes are those of an 8B model (H 4096, I 14336, 32 heads on 8 of 128) and a draft of it. The
 * limits: decode at one row at least 70 % of memory, a TTT step's products at least 40 % of bf16. Without a
 * GPU it says why and ends with 77; `--small` shrinks all shapes, so that the emulated device runs it in a test.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "kernels/ops.h"

static struct dev *d;
static int shrink = 1;

static void ok(int r)
{
	if (r) {
		fprintf(stderr, "bench_gpu: %s (%d)\n", d->error, r);
		exit(1);
	}
}

static void *memory(size_t bytes)
{
	void *p = d->ops->alloc(d, bytes);
	if (!p)
		ok(-ENOMEM);
	return p;
}

static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of one call: the best of three runs of `times` */
static double best_of(int times, void (*fn)(void *), void *arg)
{
	double best = 1e30;
	fn(arg);
	ok(d->ops->sync(d));
	for (int run = 0; run < (shrink > 1 ? 1 : 3); run++) {
		double t = seconds();
		for (int i = 0; i < (shrink > 1 ? 1 : times); i++)
			fn(arg);
		ok(d->ops->sync(d));
		t = (seconds() - t) / (shrink > 1 ? 1 : times);
		best = t < best ? t : best;
	}
	return best;
}

static void say(const char *what, double value, const char *unit, double of)
{
	printf("{\"what\": \"%s\", \"value\": %.4g, \"unit\": \"%s\"", what, value, unit);
	if (of > 0)
		printf(", \"of_limit\": %.3f", value / of);
	printf("}\n");
}

/* ---- y = x ---- */

struct copy { real *y, *x; size_t n; };

static void copy_once(void *arg)
{
	struct copy *c = arg;
	ok(d->ops->copy_rows(d, c->y, 1 << 12, c->x, 1 << 12, NULL, (int)(c->n >> 12), 1 << 12));
}

static double memory_limit(void)
{
	struct copy c = {.n = ((size_t)1 << 28) / (size_t)shrink / (size_t)shrink};
	c.y = memory(c.n * sizeof(real));
	c.x = memory(c.n * sizeof(real));
	double rate = 2 * (double)c.n * sizeof(real) / best_of(10, copy_once, &c) / 1e9;
	d->ops->free(d, c.y);
	d->ops->free(d, c.x);
	say("copy", rate, "GB/s", 0);
	return rate;
}

/* ---- linear layers ---- */

struct layer { struct weight w; real *x, *y; int M; };

static void layer_once(void *arg)
{
	struct layer *l = arg;
	ok(d->ops->linear(d, l->y, l->w.N, &l->w, l->x, l->w.K, l->M, false));
}

static void layers(const char *math, double gbs, double tflops)
{
	static const int rows[] = {1, 5, 64, 512, 2048};
	int N = 28672 / shrink, K = 4096 / shrink;
	struct layer l = {.x = memory((size_t)2048 * (size_t)K * sizeof(real)), .y = memory((size_t)2048 * (size_t)N * sizeof(real))};
	uint16_t *h = calloc((size_t)N * (size_t)K, 2);
	if (!h)
		ok(-ENOMEM);
	ok(d->ops->weight_pack(d, &l.w, DT_BF16, N, K, h, DT_BF16));
	free(h);
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		char what[64];
		l.M = rows[i] > 64 && shrink > 1 ? 64 : rows[i];
		double t = best_of(20, layer_once, &l);
		snprintf(what, sizeof what, "linear %s, %d rows", math, l.M);
		if (l.M < 64)
			say(what, (double)l.w.bytes / t / 1e9, "GB/s", gbs);
		else
			say(what, 2.0 * l.M * N * K / t / 1e12, "TFLOP/s", tflops);
	}
	d->ops->weight_free(d, &l.w);
	d->ops->free(d, l.x);
	d->ops->free(d, l.y);
}

/* ---- products of training ---- */

struct square { real *a, *b, *c; int n; };

static void square_once(void *arg)
{
	struct square *s = arg;
	ok(d->ops->gemm(d, s->c, s->n, false, s->a, s->n, true, s->b, s->n, s->n, s->n, s->n, false));
}

static double product_limit(void)
{
	struct square s = {.n = 8192 / shrink};
	size_t bytes = (size_t)s.n * (size_t)s.n * sizeof(real);
	s.a = memory(bytes), s.b = memory(bytes), s.c = memory(bytes);
	double rate = 2.0 * s.n * s.n * s.n / best_of(5, square_once, &s) / 1e12;
	d->ops->free(d, s.a), d->ops->free(d, s.b), d->ops->free(d, s.c);
	say("gemm, bf16 inside", rate, "TFLOP/s", 0);
	return rate;
}

/* ---- attention ---- */

struct paged { struct kv_pool kv; struct attn_seq s; real *q, *out; };

static void paged_once(void *arg)
{
	struct paged *p = arg;
	ok(d->ops->attn(d, p->out, 4096, p->q, 4096, &p->kv, 0, &p->s, 1, 32, (real)0.088));
}

/* A prompt's last `chunk` rows of n: operations over the keys that they see */
static void prefill(struct paged *p, const char *what, int n, int chunk, double tflops)
{
	p->s.n_past = n - chunk;
	p->s.n_rows = chunk;
	p->s.prompt = true;
	say(what, 4.0 * chunk * (n - (chunk - 1) / 2.0) * 4096 / best_of(3, paged_once, p) / 1e12, "TFLOP/s", tflops);
}

static void paged(bool fast, double gbs, double tflops)
{
	int n = 32768 / shrink / 32 * 32, chunk = 512 / shrink;
	uint32_t *pages = calloc((size_t)n / 32, sizeof *pages);
	struct paged p = {.kv = {.n_layer = 1, .n_kv = 8, .d = 128, .page_tok = 32, .n_pages = n / 32, .type = DT_BF16}};
	if (!pages)
		ok(-ENOMEM);
	for (int i = 0; i < n / 32; i++)
		pages[i] = (uint32_t)i;
	ok(d->ops->kv_new(d, &p.kv));
	p.q = memory((size_t)chunk * 4096 * sizeof(real)), p.out = memory((size_t)chunk * 4096 * sizeof(real));
	p.s = (struct attn_seq){.pages = pages, .n_past = n - 1, .n_rows = 1};
	if (fast) {
		say("decode attention, one row", (double)p.kv.bytes / best_of(50, paged_once, &p) / 1e9, "GB/s", gbs);
		prefill(&p, "prefill attention", n, chunk, tflops);
		prefill(&p, "prefill attention, 128 rows at 4,096", n / 8, chunk / 4, tflops);
	} else {
		prefill(&p, "prefill attention, strict", n, chunk, tflops);
	}
	d->ops->kv_free(d, &p.kv);
	d->ops->free(d, p.q), d->ops->free(d, p.out);
	free(pages);
}

struct ttt { struct ttt_kv kv; real *q, *out, *lse, *dq, *dout; int n; };

static void ttt_once(void *arg)
{
	struct ttt *t = arg;
	ok(d->ops->ttt_attn(d, t->out, t->lse, t->q, &t->kv, NULL, t->n, 32, 8, 128, (real)0.088));
	ok(d->ops->ttt_attn_backward(d, t->dq, &t->kv, t->dout, t->out, t->lse, t->q, NULL, t->n, 32, 8, 128, (real)0.088));
}

static void ttt(double tflops)
{
	struct ttt t = {.n = 8192 / shrink, .kv = {.n_steps = 2}};
	size_t q = (size_t)t.n * 4096 * sizeof(real), kv = q / 4;
	for (int i = 0; i < 2; i++)
		t.kv.k[i] = memory(kv), t.kv.v[i] = memory(kv), t.kv.dk[i] = memory(kv), t.kv.dv[i] = memory(kv);
	t.q = memory(q), t.out = memory(q), t.dq = memory(q), t.dout = memory(q), t.lse = memory((size_t)t.n * 32 * sizeof(real));
	say("TTT attention forward and backward", 14.0 / 2 * t.n * t.n * 4096 / best_of(3, ttt_once, &t) / 1e12, "TFLOP/s", tflops);
}

/* ---- draws from whole rows, and what it would take to have the rows on the host ---- */

struct rows { real *x, *host; uint32_t *ids; float *vals; struct draw how[64]; int M, N; };

static void draw_once(void *arg)
{
	struct rows *r = arg;
	ok(d->ops->draw(d, r->ids, r->vals, r->x, r->N, r->how, r->M, r->N));
}

static void rows_once(void *arg)
{
	struct rows *r = arg;
	ok(d->ops->copy_rows(d, r->host, r->N, r->x, r->N, NULL, r->M, r->N));
}

static void draws(void)
{
	static const int many[] = {1, 8, 64};
	struct rows r = {.N = 151936 / shrink};
	size_t n = 64 * (size_t)r.N;
	uint64_t seed = 1;
	r.x = memory(n * sizeof *r.x), r.host = d->ops->alloc_shared(d, n * sizeof *r.host);
	r.ids = d->ops->alloc_shared(d, sizeof r.how / sizeof *r.how * sizeof *r.ids), r.vals = d->ops->alloc_shared(d, sizeof r.how / sizeof *r.how * sizeof *r.vals);
	if (!r.host || !r.ids || !r.vals)
		ok(-ENOMEM);
	for (size_t i = 0; i < n; i++) { /* about normal, of deviation 2.5, and one in a thousand as a text's next words */
		real sum = 0;
		for (int j = 0; j < 4; j++)
			sum += (real)((seed = seed * 6364136223846793005u + 1442695040888963407u) >> 40) * (real)0x1p-24;
		r.host[i] = (sum - 2) * (real)4.3 + ((seed >> 40) % 1000 == 0 ? 10 : 0);
	}
	ok(d->ops->upload(d, r.x, r.host, n * sizeof *r.x));
	ok(d->ops->sync(d));
	for (int i = 0; i < 64; i++)
		r.how[i] = (struct draw){.inv_t = 1, .u = (DRAW_ALL - 1) / 65 * (uint64_t)(i + 1), .top = DRAW_ALL / 20 * 19, .row = (uint32_t)i};
	for (size_t i = 0; i < sizeof many / sizeof *many; i++) {
		char what[64];
		r.M = many[i];
		snprintf(what, sizeof what, "draw, top_p 0.95, %d rows of %d ids", r.M, r.N);
		say(what, best_of(20, draw_once, &r) * 1e3, "ms", 0);
		snprintf(what, sizeof what, "%d rows of %d ids to the host", r.M, r.N);
		say(what, best_of(20, rows_once, &r) * 1e3, "ms", 0);
	}
	d->ops->free(d, r.x), d->ops->free(d, r.host), d->ops->free(d, r.ids), d->ops->free(d, r.vals);
}

int main(int argc, char **argv)
{
	struct errtext e = {""};
	shrink = argc > 1 && strcmp(argv[1], "--small") == 0 ? 64 : 1;
	if (dev_new(&(struct dev_options){.kind = DEV_CUDA, .math = MATH_FAST}, &d, &e)) {
		fprintf(stderr, "bench_gpu: skipped: %s\n", e.text);
		return 77;
	}
	printf("{\"device\": \"%s\"}\n", d->about);
	double gbs = memory_limit(), tflops = product_limit();
	layers("fast", gbs, tflops);
	draws();
	paged(true, gbs, tflops);
	ttt(tflops);
	dev_free(d);
	if (dev_new(&(struct dev_options){.kind = DEV_CUDA, .math = MATH_STRICT}, &d, &e))
		return 1;
	layers("strict", gbs, tflops);
	paged(false, gbs, tflops);
	dev_free(d);
	return 0;
}
