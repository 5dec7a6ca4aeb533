/* Rotate-half RoPE. The cosines and sines of a position are computed once per
 * (frequencies, mscale) and kept: a 30-layer prefill would ask for them 60 times.
 *
 * The angle is the product in `real`, as the reference implementations form it
 * (at position 2,000 a float angle differs from a double one by 1e-4).
 */
#include "kernels/cpu/cpu.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROPE_TABLES = 4, ROPE_MAX_HALF = 256, ROPE_KEEP = 1 << 17 /* positions */ };

struct rope_table {
	int half, n; /* n positions filled */
	real mscale, inv_freq[ROPE_MAX_HALF];
	real *cs; /* [n][2][half] */
};

struct rope_cache {
	struct rope_table t[ROPE_TABLES];
	int next; /* to be reused when all are taken */
};

void cpu_rope_free(struct rope_cache *c)
{
	for (int i = 0; c && i < ROPE_TABLES; i++)
		free(c->t[i].cs);
	free(c);
}

static void rope_fill(real *cs, uint32_t pos, const real *inv_freq, real mscale, int half)
{
	for (int i = 0; i < half; i++) {
		real angle = (real)pos * inv_freq[i];
		cs[i] = (real)cos((double)angle) * mscale;
		cs[half + i] = (real)sin((double)angle) * mscale;
	}
}

static struct rope_table *rope_find(struct rope_cache *c, const real *inv_freq, real mscale, int half)
{
	for (int i = 0; i < ROPE_TABLES; i++)
		if (c->t[i].half == half && memcmp(&c->t[i].mscale, &mscale, sizeof mscale) == 0 &&
		    memcmp(c->t[i].inv_freq, inv_freq, (size_t)half * sizeof *inv_freq) == 0)
			return &c->t[i];
	struct rope_table *t = &c->t[c->next];
	c->next = (c->next + 1) % ROPE_TABLES;
	free(t->cs);
	*t = (struct rope_table){.half = half, .mscale = mscale};
	memcpy(t->inv_freq, inv_freq, (size_t)half * sizeof *inv_freq);
	return t;
}

/* A table that covers positions 0..max, or NULL when memory is short */
static const real *rope_table(struct cpu *c, const real *inv_freq, real mscale, int half, uint32_t max)
{
	if (!c->rope)
		c->rope = calloc(1, sizeof *c->rope);
	if (!c->rope)
		return NULL;
	struct rope_table *t = rope_find(c->rope, inv_freq, mscale, half);
	if ((int)max < t->n)
		return t->cs;
	int want = cpu_min(ROPE_KEEP, cpu_max((int)max + 1, 2 * t->n));
	real *cs = realloc(t->cs, (size_t)want * 2 * (size_t)half * sizeof *cs);
	if (!cs)
		return NULL;
	t->cs = cs;
	for (int p = t->n; p < want; p++)
		rope_fill(cs + (size_t)p * 2 * (size_t)half, (uint32_t)p, inv_freq, mscale, half);
	t->n = want;
	return cs;
}

struct rope_job {
	const struct cpu_kernels *k;
	real *x;
	size_t ldx;
	const uint32_t *pos;
	const real *table, *inv_freq;
	real mscale;
	int nh, half, M;
	bool inverse;
};

static void rope_part(void *ctx, int t, int n)
{
	const struct rope_job *j = ctx;
	int from, to, half = j->half;
	real own[2 * ROPE_MAX_HALF], neg[ROPE_MAX_HALF];

	cpu_split(j->M, 1, t, n, &from, &to);
	for (int m = from; m < to; m++) {
		const real *cs = own;
		if (j->table && j->pos[m] < ROPE_KEEP)
			cs = j->table + (size_t)j->pos[m] * 2 * (size_t)half;
		else
			rope_fill(own, j->pos[m], j->inv_freq, j->mscale, half);
		const real *sn = cs + half;
		if (j->inverse) {
			for (int i = 0; i < half; i++)
				neg[i] = -sn[i];
			sn = neg;
		}
		for (int h = 0; h < j->nh; h++) {
			real *x0 = j->x + (size_t)m * j->ldx + (size_t)h * 2 * (size_t)half;
			j->k->rope(x0, x0 + half, cs, sn, half);
		}
	}
}

int cpu_rope(struct dev *d, real *x, int ldx, int nh, int hd, const uint32_t *pos, const real *inv_freq, real mscale, int M, bool inverse)
{
	uint32_t max = 0;

	if (M < 0 || nh <= 0 || hd <= 0 || hd % 2 || hd / 2 > ROPE_MAX_HALF || ldx < nh * hd)
		return cpu_bad(d, "rope");
	for (int m = 0; m < M; m++)
		if (pos[m] < ROPE_KEEP && pos[m] > max)
			max = pos[m];
	struct rope_job j = {.k = cpu_of(d)->k,
			     .x = x,
			     .ldx = (size_t)ldx,
			     .pos = pos,
			     .inv_freq = inv_freq,
			     .mscale = mscale,
			     .nh = nh,
			     .half = hd / 2,
			     .M = M,
			     .inverse = inverse};
	j.table = rope_table(cpu_of(d), inv_freq, mscale, hd / 2, max);
	cpu_run(d, 8.0 * M * nh * hd, rope_part, &j);
	return 0;
}
