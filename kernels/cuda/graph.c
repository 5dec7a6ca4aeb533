/* Parts of a round that come again, each launched as one CUDA graph.
 *
 * The first time a key of ops.h `repeat` is met its operations are queued as they are, and which host arrays they take along is noted, by
 * address. The second time they are captured. From then on they are not called any more: the same host arrays are read anew
 * into the pinned ring, one copy brings them to the graph's own block of device memory, and the graph is launched.
 * So a graph holds addresses alone: weights, pages, arenas, its block. A load into a slot's memory, a switch and a
 * rollback change what lies there, not where, and capture nothing.
 *
 * Attention's tables grow with the contexts. A graph has room for them up to a power of two, and blocks of threads for as many
 * tiles, those too many without work; a batch with longer contexts has another graph under the same key.
 *
 * A capture that fails leaves its part to plain launches from then on, and dev->graphs says why. What grows while it is captured fails it;
 * scratch that has moved since makes a graph be captured anew. Mode thread-local: drafts are loaded by other threads
 * meanwhile, on streams of their own. A graph is destroyed only when the stream is idle.
 */
#include <stdlib.h>
#include <string.h>
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/plan.h"

enum { NOTES = 12, PLANS = 2, ALIGN = 256 };

struct graph {
	void *key;
	size_t key_bytes;
	uint64_t used;
	struct { const void *host; size_t bytes, at; uint32_t below; bool ids, given; } note[NOTES];
	struct { const struct attn_seq *seqs; int n_seqs; struct plan_of of; struct plan_room room; size_t at; } plan[PLANS];
	int n_notes, n_plans;
	size_t bytes;      /* of the block */
	bool refused;      /* it cannot be captured: launched plainly */
	char *block;       /* device */
	cudaGraphExec_t exec;
	const void *scratch; /* where it was */
};

static void forget_exec(struct dev *d, struct graph *x)
{
	if (!x->exec)
		return;
	(void)cudaStreamSynchronize(cuda_of(d)->stream);
	(void)cudaGraphExecDestroy(x->exec);
	x->exec = NULL;
}

static struct graph *graph_free(struct dev *d, struct graph *x)
{
	if (!x)
		return NULL;
	forget_exec(d, x);
	if (x->block)
		(void)cudaFreeAsync(x->block, cuda_of(d)->stream);
	free(x->key);
	free(x);
	return NULL;
}

void cuda_graphs_done(struct dev *d)
{
	struct graphs *g = &cuda_of(d)->graphs;
	while (g->n)
		graph_free(d, g->all[--g->n]);
}

/* ---- what a run takes along ---- */

static size_t room_for(struct graph *x, size_t bytes)
{
	size_t at = x->bytes;
	x->bytes += cuda_round_up(bytes, ALIGN);
	return at;
}

static int find_note(const struct graph *x, const void *host, size_t bytes)
{
	for (int i = 0; i < x->n_notes; i++)
		if (x->note[i].host == host && x->note[i].bytes == bytes)
			return i;
	return -1;
}

void graph_note(struct dev *d, const void *host, size_t bytes)
{
	struct graph *x = cuda_of(d)->graphs.at;
	if (find_note(x, host, bytes) >= 0)
		return;
	if (x->n_notes == NOTES) {
		x->refused = true;
		return;
	}
	x->note[x->n_notes].host = host;
	x->note[x->n_notes].bytes = bytes;
	x->note[x->n_notes++].at = room_for(x, bytes);
}

void graph_note_ids(struct dev *d, const uint32_t *host, int n, uint32_t below, bool given)
{
	struct graph *x = cuda_of(d)->graphs.at;
	int i = find_note(x, host, (size_t)n * sizeof *host);
	if (i < 0)
		return;
	x->note[i].ids = true;
	x->note[i].below = below;
	x->note[i].given = given;
}

static int find_plan(const struct graph *x, const struct attn_seq *seqs, int n_seqs, const struct plan_of *of)
{
	for (int i = 0; i < x->n_plans; i++)
		if (x->plan[i].seqs == seqs && x->plan[i].n_seqs == n_seqs && x->plan[i].of.nh == of->nh)
			return i;
	return -1;
}

int graph_note_plan(struct dev *d, const struct attn_seq *seqs, int n_seqs, const struct plan_of *of)
{
	struct graph *x = cuda_of(d)->graphs.at;
	struct plan_room room;
	void *parts;
	if (find_plan(x, seqs, n_seqs, of) >= 0)
		return 0;
	if (x->n_plans == PLANS || plan_room(seqs, n_seqs, of, &room)) {
		x->refused = true;
		return 0;
	}
	room = plan_round_up(room);
	x->plan[x->n_plans].seqs = seqs;
	x->plan[x->n_plans].n_seqs = n_seqs;
	x->plan[x->n_plans].of = *of;
	x->plan[x->n_plans].room = room;
	x->plan[x->n_plans++].at = room_for(x, plan_bytes(&room));
	if (room.parts && cuda_scratch(d, (size_t)room.parts * (size_t)(of->pool.d + 2) * sizeof(float), &parts)) {
		if (d->lost)
			return -EIO;
		x->refused = true; /* room for longer contexts than these is not there; for these it may be */
		(void)snprintf(d->graphs, sizeof d->graphs, "%.150s", d->error);
	}
	return 0;
}

static int unknown(struct dev *d, const char *what)
{
	(void)snprintf(d->error, sizeof d->error, "%s that was not there the first time", what);
	return -EIO;
}

int graph_index(struct dev *d, const void *host, size_t bytes, const void **ret)
{
	const struct graph *x = cuda_of(d)->graphs.at;
	int i = find_note(x, host, bytes);
	if (i < 0)
		return unknown(d, "index data");
	*ret = x->block + x->note[i].at;
	return 0;
}

int graph_plan(struct dev *d, const struct attn_seq *seqs, int n_seqs, const struct plan_of *of, const char **ret, struct plan_room *ret_room)
{
	const struct graph *x = cuda_of(d)->graphs.at;
	int i = find_plan(x, seqs, n_seqs, of);
	if (i < 0)
		return unknown(d, "attention");
	*ret = x->block + x->plan[i].at;
	*ret_room = x->plan[i].room;
	return 0;
}

/* ---- which graph ---- */

/* Can it do what the arrays say now? What the operations would refuse it cannot: they are called and say so. */
static bool fits(const struct graph *x)
{
	for (int i = 0; i < x->n_plans; i++) {
		struct plan_room room;
		if (plan_room(x->plan[i].seqs, x->plan[i].n_seqs, &x->plan[i].of, &room) || !plan_fits(&room, &x->plan[i].room))
			return false;
	}
	for (int i = 0; i < x->n_notes; i++) {
		const uint32_t *ids = x->note[i].host;
		for (size_t j = 0; x->note[i].ids && j < x->note[i].bytes / sizeof *ids; j++)
			if (ids[j] & OP_GIVEN ? !x->note[i].given : ids[j] >= x->note[i].below)
				return false;
	}
	return true;
}

/* The smallest that fits */
static struct graph *find(struct graphs *g, const void *key, size_t n)
{
	struct graph *best = NULL;
	for (int i = 0; i < g->n; i++) {
		struct graph *x = g->all[i];
		if (x->key_bytes == n && (!best || x->bytes < best->bytes) && memcmp(x->key, key, n) == 0 && fits(x))
			best = x;
	}
	return best;
}

/* Room for one more: the longest unused goes. */
static void make_room(struct dev *d, struct graphs *g)
{
	int out = 0;
	if (g->n < GRAPH_MOST)
		return;
	for (int i = 1; i < g->n; i++)
		if (g->all[i]->used < g->all[out]->used)
			out = i;
	graph_free(d, g->all[out]);
	g->all[out] = g->all[--g->n];
}

/* ---- running ---- */

static void refuse(struct dev *d, struct graph *x, const char *why)
{
	(void)cudaGetLastError();
	forget_exec(d, x);
	x->refused = true;
	(void)snprintf(d->graphs, sizeof d->graphs, "%.150s", why);
}

static int run_as(struct cuda *c, enum graph_mode mode, struct graph *x, int (*run)(void *arg), void *arg)
{
	c->graphs.mode = mode;
	c->graphs.at = x;
	int r = run(arg);
	c->graphs.mode = GRAPH_PLAIN;
	c->graphs.at = NULL;
	return r;
}

static int note_run(struct dev *d, const void *key, size_t n, int (*run)(void *arg), void *arg)
{
	struct graphs *g = &cuda_of(d)->graphs;
	struct graph *x = calloc(1, sizeof *x);
	if (x)
		x->key = malloc(n);
	if (!x || !x->key) {
		free(x);
		return run(arg);
	}
	memcpy(x->key, key, n);
	x->key_bytes = n;
	x->used = ++g->clock;
	int r = run_as(cuda_of(d), GRAPH_NOTING, x, run, arg);
	if (r) {
		graph_free(d, x);
		return r;
	}
	x->refused = x->refused || x->bytes > STAGE_HALF;
	make_room(d, g);
	g->all[g->n++] = x;
	return 0;
}

/* Into x->exec, or it is refused. */
static void capture(struct dev *d, struct graph *x, int (*run)(void *arg), void *arg)
{
	struct cuda *c = cuda_of(d);
	char why[sizeof d->graphs];
	cudaGraph_t graph = NULL;
	void *block = x->block;
	if (!block && cuda_take(d, x->bytes, "a graph's index data", &block)) {
		refuse(d, x, d->error);
		return;
	}
	x->block = block;
	x->scratch = c->scratch;
	cudaError_t e = cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal);
	if (e != cudaSuccess) {
		(void)snprintf(why, sizeof why, "beginning a capture: %s", cudaGetErrorName(e));
		refuse(d, x, why);
		return;
	}
	int r = run_as(c, GRAPH_CAPTURING, x, run, arg);
	e = cudaStreamEndCapture(c->stream, &graph);
	if (!r && e == cudaSuccess)
		e = cudaGraphInstantiate(&x->exec, graph, 0);
	if (r || e != cudaSuccess) {
		(void)snprintf(why, sizeof why, "capturing: %.100s", r ? d->error : cudaGetErrorName(e));
		x->exec = NULL;
		refuse(d, x, why);
	}
	if (graph)
		(void)cudaGraphDestroy(graph);
}

/* The block anew, in stream order behind the launch before, and the graph */
static cudaError_t launch(struct dev *d, struct graph *x)
{
	struct cuda *c = cuda_of(d);
	char *host = NULL;
	cudaError_t e = cuda_ring(d, x->bytes, &host);
	if (e != cudaSuccess)
		return e;
	for (int i = 0; i < x->n_notes; i++)
		memcpy(host + x->note[i].at, x->note[i].host, x->note[i].bytes);
	for (int i = 0; i < x->n_plans; i++)
		(void)plan_fill(host + x->plan[i].at, &x->plan[i].room, x->plan[i].seqs, x->plan[i].n_seqs, &x->plan[i].of);
	e = x->bytes ? cudaMemcpyAsync(x->block, host, x->bytes, cudaMemcpyHostToDevice, c->stream) : cudaSuccess;
	return e == cudaSuccess ? cudaGraphLaunch(x->exec, c->stream) : e;
}

int cuda_repeat(struct dev *d, const void *key, size_t n, int (*run)(void *arg), void *arg)
{
	struct cuda *c = cuda_of(d);
	struct graphs *g = &c->graphs;
	if (!c->q.graphs || c->q.wait || g->mode != GRAPH_PLAIN)
		return run(arg);
	struct graph *x = find(g, key, n);
	if (!x)
		return note_run(d, key, n, run, arg);
	x->used = ++g->clock;
	if (x->exec && x->scratch != c->scratch)
		forget_exec(d, x);
	if (!x->exec && !x->refused)
		capture(d, x, run, arg);
	if (!x->exec)
		return run(arg);
	cudaError_t e = launch(d, x);
	if (e == cudaSuccess)
		return cuda_done(d, e, "graph");
	(void)cuda_done(d, e, "launching a graph");
	if (d->lost)
		return -EIO;
	refuse(d, x, d->error);
	return run(arg);
}
