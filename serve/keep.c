/* Rounded as the tap rounds, so that a row told late is the row that would have been told at once. */
#include <stdlib.h>
#include <string.h>
#include "serve/keep.h"
#include "serve/tap.h"

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

void keep_put(struct keep *k, uint32_t at, const float *features, const float *hidden)
{
	tap_to_bf16(k->features + (size_t)at * (size_t)k->W, features, (size_t)k->W);
	if (k->hidden && hidden)
		tap_to_bf16(k->hidden + (size_t)at * (size_t)k->H, hidden, (size_t)k->H);
}

void keep_get(const struct keep *k, uint32_t at, int n, real *features)
{
	const uint16_t *from = k->features + (size_t)at * (size_t)k->W;
	for (size_t i = 0; i < (size_t)n * (size_t)k->W; i++) {
		uint32_t u = (uint32_t)from[i] << 16;
		float f;
		memcpy(&f, &u, sizeof f);
		features[i] = f;
	}
}
