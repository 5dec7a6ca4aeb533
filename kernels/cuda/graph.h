/* Graphs of one device (graph.c). */
#pragma once
#include "kernels/ops.h"

enum { GRAPH_MOST = 128 /* kept at a time */ };
enum graph_mode { GRAPH_PLAIN, GRAPH_NOTING, GRAPH_CAPTURING };

struct graph;
struct graphs {
	struct graph *all[GRAPH_MOST];
	int n;
	enum graph_mode mode; /* of the run that is on */
	struct graph *at;     /* its graph */
	uint64_t clock;
};

int cuda_repeat(struct dev *d, const void *key, size_t n, int (*run)(void *arg), void *arg);
void cuda_graphs_done(struct dev *d);

/* While a run is noted: it takes along this host array, this batch's tables; the array's ids lie below `below`, or are OP_GIVEN where `given`. */
void graph_note(struct dev *d, const void *host, size_t bytes);
void graph_note_ids(struct dev *d, const uint32_t *host, int n, uint32_t below, bool given);
struct plan_of;
int graph_note_plan(struct dev *d, const struct attn_seq *seqs, int n_seqs, const struct plan_of *of); /* 0, or -errno: no scratch for it */
/* While it is captured: where the graph has them. */
int graph_index(struct dev *d, const void *host, size_t bytes, const void **ret);
struct plan_room;
int graph_plan(struct dev *d, const struct attn_seq *seqs, int n_seqs, const struct plan_of *of, const char **ret, struct plan_room *ret_room);
