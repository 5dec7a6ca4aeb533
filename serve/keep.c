/* As it was packed for the tap, so that a row told late is the row that would have been told at once. */
#include <stdlib.h>
#include <string.h>
#include "kernels/ops.h"
#include "serve/keep.h"

int keep_init(struct keep *k, int positions, int W, int H)
{
	size_t n = (size_t)positions;
	*k = (struct keep){.W = W, .H = H};
	k->features = malloc(n * (size_t)W * sizeof *k->features);
	k->hidden = H ? malloc(n * (size_t)H * sizeof *k->hidden) : NULL;
	if (k->features && (k->hidden || !H))
		return 0;
	keep_done(k);
	return -ENOMEM;
}

void keep_done(struct keep *k)
{
	free(k->features);
	free(k->hidden);
	*k = (struct keep){0};
}

void keep_put(struct keep *k, uint32_t at, const uint16_t *features, const uint16_t *hidden)
{
	memcpy(k->features + (size_t)at * (size_t)k->W, features, (size_t)k->W * sizeof *features);
	if (k->hidden && hidden)
		memcpy(k->hidden + (size_t)at * (size_t)k->H, hidden, (size_t)k->H * sizeof *hidden);
}

void keep_get(const struct keep *k, uint32_t at, int n, real *features)
{
	const uint16_t *from = k->features + (size_t)at * (size_t)k->W;
	for (size_t i = 0; i < (size_t)n * (size_t)k->W; i++)
		features[i] = bf16_to_f32(from[i]);
}
