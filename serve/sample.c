/* The sampling rule of sample.h: what a row is before it is drawn from, and which number draws. The draw itself is ops.h's.
 *
 * Penalties and bias work on a copy of the row, as the tap and the log-probabilities want the model's own.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/draw.h"
#include "serve/sample.h"

struct sampler {
	int V;
	struct draw_room room;
	real *row;       /* [V] logits after bias and penalties */
	/* the open history: counts of generated tokens, IN_PROMPT for those of the prompt */
	uint32_t *count; /* [V], zero when closed */
	uint32_t *seen;  /* [V] ids with a count */
	int n_seen;
	bool open;
};

#define IN_PROMPT 0x80000000u

struct sampler *sampler_new(int V)
{
	struct sampler *s = calloc(1, sizeof *s);
	if (!s)
		return NULL;
	s->V = V;
	s->room.w = malloc((size_t)V * sizeof *s->room.w);
	s->room.heap = malloc((size_t)V * sizeof *s->room.heap);
	s->row = malloc((size_t)V * sizeof *s->row);
	s->count = calloc((size_t)V, sizeof *s->count);
	s->seen = malloc((size_t)V * sizeof *s->seen);
	return s->room.w && s->room.heap && s->row && s->count && s->seen ? s : sampler_free(s);
}

struct sampler *sampler_free(struct sampler *s)
{
	if (!s)
		return NULL;
	free(s->room.w);
	free(s->room.heap);
	free(s->row);
	free(s->count);
	free(s->seen);
	free(s);
	return NULL;
}

/* ---- bias and penalties ---- */

static bool repeats(const struct sampling *how)
{
	return how->repetition > 0 && (how->repetition < 1 || how->repetition > 1);
}

static bool counts(const struct sampling *how)
{
	return repeats(how) || how->presence < 0 || how->presence > 0 || how->frequency < 0 || how->frequency > 0;
}

static uint32_t *counter(struct sampler *s, uint32_t id)
{
	if (!s->count[id])
		s->seen[s->n_seen++] = id;
	return &s->count[id];
}

void sampler_open(struct sampler *s, const struct sampling *how, const struct history *h)
{
	s->open = counts(how);
	if (!s->open)
		return;
	for (int i = 0; i < h->n_prompt; i++)
		*counter(s, h->tokens[i]) |= IN_PROMPT;
	for (int i = h->n_prompt; i < h->n; i++)
		++*counter(s, h->tokens[i]);
}

void sampler_saw(struct sampler *s, uint32_t id)
{
	if (s->open)
		++*counter(s, id);
}

void sampler_close(struct sampler *s)
{
	for (int i = 0; i < s->n_seen; i++)
		s->count[s->seen[i]] = 0;
	s->n_seen = 0;
	s->open = false;
}

/* The row that is drawn from: l itself when nothing changes it. */
static const real *shape(struct sampler *s, const real *l, const struct sampling *how, uint32_t position)
{
	bool repeat = repeats(how), hold = how->n_held && position < how->held_until;

	if (!how->n_bias && !s->open && !hold)
		return l;
	memcpy(s->row, l, (size_t)s->V * sizeof *l);
	for (int i = 0; i < how->n_bias; i++)
		s->row[how->bias[i].id] += (real)how->bias[i].bias;
	for (int i = 0; i < s->n_seen; i++) {
		real *x = &s->row[s->seen[i]];
		uint32_t n = s->count[s->seen[i]] & ~IN_PROMPT;
		if (repeat)
			*x = *x > 0 ? *x / (real)how->repetition : *x * (real)how->repetition;
		if (n)
			*x -= (real)how->frequency * (real)n + (real)how->presence;
	}
	for (int i = 0; hold && i < how->n_held; i++)
		if (how->held[i] < (uint32_t)s->V) /* a model may name an end of text that it lacks */
			s->row[how->held[i]] = -(real)INFINITY;
	return s->row;
}

/* Philox4x32-10 (Salmon et al. 2011). */
static void philox(uint32_t c[4], uint32_t k0, uint32_t k1)
{
	for (int i = 0; i < 10; i++) {
		uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
		uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a};
		for (int j = 0; j < 4; j++)
			c[j] = next[j];
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
}

double sample_uniform(uint64_t seed, uint32_t choice, uint32_t position)
{
	uint32_t c[4] = {position, choice, 0, 0};
	philox(c, (uint32_t)seed, (uint32_t)(seed >> 32));
	uint64_t bits = ((uint64_t)c[0] << 32 | c[1]) >> 11;
	return (double)bits * 0x1p-53;
}

static bool limits(const struct sampling *how, int V)
{
	return how->top_k > 0 && how->top_k < V;
}

int sample_needs(const struct sampling *how, int V, uint32_t position)
{
	if (how->n_bias || counts(how) || (how->n_held && position < how->held_until))
		return SAMPLE_ROW;
	if (!(how->temperature > 0))
		return 1;
	if (!limits(how, V))
		return SAMPLE_DRAW;
	return how->top_k <= SAMPLE_BEST ? how->top_k : SAMPLE_ROW;
}

/* x of 1, in units of 1/one, never more than 1 */
static uint64_t part(double x, uint64_t one)
{
	return !(x < 1) ? one : x > 0 ? (uint64_t)ceil(x * (double)one) : 0;
}

struct draw sample_draw(const struct sampling *how, uint32_t position)
{
	double u = sample_uniform(how->seed, how->choice, position);
	return (struct draw){.inv_t = 1 / (double)how->temperature, .u = (uint64_t)(u * (double)DRAW_ALL), .top = part((double)how->top_p, DRAW_ALL),
			     .least = part((double)how->min_p, DRAW_ONE)};
}

uint32_t sample_best(struct sampler *s, const uint32_t *ids, const float *vals, const struct sampling *how, uint32_t position)
{
	if (!(how->temperature > 0))
		return ids[0];
	struct draw d = sample_draw(how, position);
	return draw_listed(&s->room, ids, vals, how->top_k, &d);
}

uint32_t sample_token(struct sampler *s, const real *logits, const struct sampling *how, uint32_t position)
{
	const real *l = shape(s, logits, how, position);
	if (!(how->temperature > 0))
		return draw_greedy(l, s->V);
	struct draw d = sample_draw(how, position);
	return limits(how, s->V) ? draw_top(&s->room, l, s->V, how->top_k, &d) : draw_row(&s->room, l, s->V, &d);
}
