/* How a draft begins. The random numbers are a function of (seed, tensor, index),
 * so a tensor's start does not depend on the shape of the others.
 */
#include <math.h>
#include <stdlib.h>
#include "daemon/base/mix.h"
#include "learn/init.h"

struct counted {
	uint64_t count;
	int id;
};

static int more_frequent(const void *a, const void *b)
{
	const struct counted *x = a, *y = b;
	if (x->count != y->count)
		return x->count > y->count ? -1 : 1;
	return x->id - y->id; /* equally frequent, or both unseen: the smaller id */
}

static int by_id(const void *a, const void *b)
{
	return ((const struct counted *)a)->id - ((const struct counted *)b)->id;
}

int draft_vocab_from_counts(const uint64_t *counts, int V, int V_d, int64_t *ret_d2t)
{
	if (V_d < 1 || V_d > V)
		return -EINVAL;
	struct counted *all = malloc((size_t)V * sizeof *all);
	if (!all)
		return -ENOMEM;
	for (int i = 0; i < V; i++)
		all[i] = (struct counted){.count = counts[i], .id = i};
	qsort(all, (size_t)V, sizeof *all, more_frequent);
	qsort(all, (size_t)V_d, sizeof *all, by_id);
	for (int i = 0; i < V_d; i++)
		ret_d2t[i] = all[i].id - i;
	free(all);
	return 0;
}

static uint64_t mix(uint64_t x)
{
	return mix64(x + MIX_GOLDEN);
}

/* in (0,1), never 0, so its logarithm is finite */
static double uniform(uint64_t h)
{
	return ((double)(h >> 11) + 0.5) * 0x1p-53;
}

/* Standard normal within two deviations: Box-Muller, drawn again while outside. */
static double cut_normal(uint64_t key, uint64_t index)
{
	for (uint64_t attempt = 0;; attempt++) {
		uint64_t h = mix(key ^ mix(index * 64 + attempt));
		double z = sqrt(-2 * log(uniform(h))) * cos(2 * M_PI * uniform(mix(h)));
		if (fabs(z) <= 2)
			return z;
	}
}

void draft_init_random(const struct eagle3_config *c, uint64_t seed, real *ret_weights)
{
	struct draft_layout lay;
	draft_layout_init(c, &lay);
	for (int i = 0; i < E3_N_ALL; i++) {
		size_t n = (size_t)lay.rows[i] * (size_t)lay.cols[i];
		uint64_t key = mix(seed) + (uint64_t)i;
		for (size_t j = 0; j < n; j++)
			ret_weights[lay.off[i] + j] = lay.rows[i] == 1 ? 1 : (real)(0.02 * cut_normal(mix(key), j));
	}
}

/* How much of the highest boundary fc passes through at first. It points at the token that is known already, and the
 * residual carries it to the end: at 1 the layer first has to learn to drown it (learn/measured.md). */
#define PASSED 0.1

void draft_init_warm(const struct eagle3_config *c, const int64_t *d2t, const uint16_t *head_bf16, const real *final_norm, uint64_t seed,
		     real *ret_weights)
{
	struct draft_layout lay;
	draft_layout_init(c, &lay);
	draft_init_random(c, seed, ret_weights);
	if (c->H != c->H_t)
		return;
	size_t H = (size_t)c->H;
	real *fc = ret_weights + lay.off[E3_FC], *head = ret_weights + lay.off[E3_HEAD];
	for (size_t r = 0; r < H; r++)
		for (size_t j = 0; j < 3 * H; j++)
			fc[r * 3 * H + j] = (real)0.1 * fc[r * 3 * H + j] + (j == 2 * H + r ? (real)PASSED : 0);
	for (size_t i = 0; i < (size_t)c->V_d; i++)
		for (size_t j = 0; j < H; j++)
			head[i * H + j] = bf16_to_f32(head_bf16[(size_t)((int64_t)i + d2t[i]) * H + j]);
	for (size_t j = 0; final_norm && j < H; j++)
		ret_weights[lay.off[E3_NORM] + j] = final_norm[j];
}
