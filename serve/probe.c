/* What is told of a probe's features (probe.h). */
#include "serve/probe.h"
#include <math.h>
#include "daemon/base/mix.h"

/* Four signs of one (position, dimension): bits of a mixed number. */
static uint64_t signs(uint64_t pos, uint64_t dim)
{
	return mix64(pos * MIX_GOLDEN + dim * MIX_OTHER + 1);
}

void probe_rows(struct probe *p, int pos0, int n, const real *features, int H)
{
	int first = p->next > pos0 ? p->next - pos0 : 0;

	if (first >= n)
		return;
	for (int r = first; r < n; r++)
		for (int b = 0; b < PROBE_BOUNDARIES; b++)
			for (int i = 0; i < H; i++) {
				double f = (double)features[((size_t)r * PROBE_BOUNDARIES + (size_t)b) * (size_t)H + (size_t)i];
				uint64_t s = signs((uint64_t)(pos0 + r), (uint64_t)i);

				p->square[b] += f * f;
				for (int k = 0; k < PROBE_SIGNS; k++)
					p->sum[b][k] += s >> k & 1 ? f : -f;
			}
	p->values += (int64_t)(n - first) * H;
	p->next = pos0 + n;
}

double probe_rms(const struct probe *p, int boundary)
{
	return p->values ? sqrt(p->square[boundary] / (double)p->values) : 0;
}

double probe_projection(const struct probe *p, int boundary, int sign)
{
	return p->values ? p->sum[boundary][sign] / sqrt((double)p->values) : 0;
}
